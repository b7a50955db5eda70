//! Which guests have hint pages: each VM is looked at again and again, as a module may come and go.

use crate::guests::hint_page::HintPage;
use crate::guests::kernel_reader::{KernelReader, VmKey};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How often a page that was found is looked at: its module may be gone.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// When a guest that has none is looked at first, and then less and less often.
const FIRST_LOOK: Duration = Duration::from_secs(1);
const LOOKS_APART_MAX: Duration = Duration::from_secs(60);

/// A VM and its hint page.
struct Known {
    page: Option<HintPage>,
    said: Option<String>,
    is_asked: bool,
    next: Instant,
    apart: Duration,
}

/// The hint pages of all VMs.
#[derive(Default)]
pub(crate) struct HintPages {
    of: BTreeMap<VmKey, Known>,
}

impl HintPages {
    /// Forgets VMs that are gone, and asks for those for which it is time.
    pub fn look(&mut self, vms: &[VmKey], reader: &KernelReader, now: Instant) {
        self.of.retain(|vm, _| vms.contains(vm));
        for &vm in vms {
            let known = self.of.entry(vm).or_insert_with(|| Known {
                page: None,
                said: None,
                is_asked: false,
                next: now + FIRST_LOOK,
                apart: FIRST_LOOK,
            });
            if !known.is_asked && now >= known.next {
                known.is_asked = true;
                reader.ask_for_hints(vm, known.page);
            }
        }
    }

    /// The answer. What is to be told of it: the page that the VM has now, if that has changed, and a line,
    /// if it is a new one.
    pub fn hear(
        &mut self,
        vm: VmKey,
        found: Result<Option<HintPage>, String>,
        now: Instant,
    ) -> (Option<Option<HintPage>>, Option<String>) {
        let Some(known) = self.of.get_mut(&vm) else { return (None, None) };
        let (page, line) = match found {
            Ok(Some(page)) => (
                Some(page),
                Some(format!("hints of {} vCPUs, at {:#x} of its memory", page.vcpu_count, page.guest_phys)),
            ),
            Ok(None) => (None, known.page.map(|_| "its hint page is gone".to_owned())),
            Err(cause) => (None, Some(cause)),
        };
        known.is_asked = false;
        known.apart = if page.is_some() { LOOK_AGAIN } else { (known.apart * 2).min(LOOKS_APART_MAX) };
        known.next = now + known.apart;
        let has_changed = known.page != page;
        known.page = page;
        let is_new = line.is_some() && known.said != line;
        if is_new {
            known.said.clone_from(&line);
        }
        (has_changed.then_some(page), line.filter(|_| is_new))
    }

    /// Another scheduler is told anew.
    pub fn forget(&mut self) {
        self.of.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_and_lost_pages_are_told_once() {
        let (vm, now) = ((7, 1), Instant::now());
        let mut pages = HintPages::default();
        let found = HintPage { guest_phys: 0x1000, address: 0x7f00_0000_1000, vcpu_count: 4 };
        assert_eq!(pages.hear(vm, Ok(Some(found)), now), (None, None), "nobody asked");
        pages.of.insert(vm, Known { page: None, said: None, is_asked: true, next: now, apart: FIRST_LOOK });
        assert_eq!(pages.hear(vm, Ok(None), now), (None, None));
        let (told, line) = pages.hear(vm, Ok(Some(found)), now);
        assert_eq!(
            (told, line.as_deref()),
            (Some(Some(found)), Some("hints of 4 vCPUs, at 0x1000 of its memory"))
        );
        assert_eq!(pages.hear(vm, Ok(Some(found)), now), (None, None));
        assert_eq!(pages.hear(vm, Err("a lie".into()), now), (Some(None), Some("a lie".into())));
        assert_eq!(pages.hear(vm, Err("a lie".into()), now), (None, None));
        for _ in 0..9 {
            pages.hear(vm, Ok(None), now);
        }
        assert_eq!(pages.of[&vm].next, now + LOOKS_APART_MAX);
    }
}
