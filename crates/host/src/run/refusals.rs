//! VMs that stay without a place, said to the operator: once for each owner, whatever an owner does.

use crate::bpf::events::Refusal;
use crate::interface::VMS_MAX;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A VM that is refused again after so long has no place. VMs that come at once count one another's places,
/// until all but those that fit give theirs back. The last of them has its own a moment later. A vCPU that
/// was refused tries again after a second (`bpf/core/vcpu.bpf.h`).
const LASTS_FOR: Duration = Duration::from_millis(500);
/// An owner is told of again after so long.
const AGAIN_AFTER: Duration = Duration::from_secs(600);
/// The most owners that are remembered. More of them bring no more lines than these.
const OWNERS_MAX: usize = 64;

#[derive(Debug)]
struct Heard {
    first: Instant,
    is_said: bool,
}

/// The owners of which the operator has heard, or may have to hear.
#[derive(Debug, Default)]
pub struct Refusals {
    owners: BTreeMap<u32, Heard>,
}

impl Refusals {
    /// The line that is due, if one is.
    pub fn hear(&mut self, refusal: Refusal, now: Instant) -> Option<String> {
        let Refusal { pid, uid, owner, is_owners_bound } = refusal;
        self.owners.retain(|_, heard| now.duration_since(heard.first) < AGAIN_AFTER);
        if !self.owners.contains_key(&owner) && self.owners.len() >= OWNERS_MAX {
            return None;
        }
        let heard = self.owners.entry(owner).or_insert(Heard { first: now, is_said: false });
        if heard.is_said || now.duration_since(heard.first) < LASTS_FOR {
            return None;
        }
        heard.is_said = true;
        let cause = if is_owners_bound {
            "its owner has as many as one may have".to_owned()
        } else {
            format!("all of {VMS_MAX} VMs and the vCPUs are taken")
        };
        let user = if uid == 0 { String::new() } else { format!(" (user {uid})") };
        Some(format!(
            "the VM of pid {pid}{user} has no place: {cause}; it shares as one VM with all such of its owner, and is never accelerated"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pid: u32, owner: u32) -> Refusal {
        Refusal { pid, uid: 1000, owner, is_owners_bound: true }
    }

    #[test]
    fn a_vm_with_a_place_soon_after_is_not_reported() {
        let (start, mut refusals) = (Instant::now(), Refusals::default());
        assert!((0..4).all(|_| refusals.hear(of(7, 0), start).is_none()), "its vCPUs at once");
        assert!(refusals.hear(of(7, 0), start + LASTS_FOR).is_some(), "one of them tries again");
    }

    #[test]
    fn an_owner_is_reported_once_and_again_much_later() {
        let (start, mut refusals) = (Instant::now(), Refusals::default());
        let mut hear_twice = |refusal, at| {
            assert_eq!(refusals.hear(refusal, at), None);
            refusals.hear(refusal, at + LASTS_FOR)
        };
        let line = hear_twice(of(7, 1), start).expect("a line");
        assert!(line.contains("pid 7 (user 1000)") && line.contains("as many as one may have"), "{line}");
        assert!((8..1000).all(|pid| hear_twice(of(pid, 1), start).is_none()));
        assert!(hear_twice(of(7, 2), start).is_some() && hear_twice(of(8, 3), start).is_some());
        assert!(hear_twice(of(9, 1), start + AGAIN_AFTER).is_some());
    }

    #[test]
    fn owners_without_number_bring_no_lines_without_number() {
        let (start, mut refusals) = (Instant::now(), Refusals::default());
        let mut hear_all =
            |at| (1..10_000).filter(|owner| refusals.hear(of(1, *owner), at).is_some()).count();
        assert_eq!([hear_all(start), hear_all(start + LASTS_FOR)], [0, OWNERS_MAX]);
    }
}
