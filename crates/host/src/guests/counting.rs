//! Which guests' counts are read: when to look for their words, and what the kernel side and the operator
//! have to hear.

use crate::guests::count_words::CountWords;
use crate::interface::{CountPlace, Vcpu};
use microslice_policy::Belief;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often words that were found have to prove themselves.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// When a guest is looked at first, and then less and less often.
const FIRST_LOOK: Duration = Duration::from_millis(200);
const LOOKS_APART_MAX: Duration = Duration::from_secs(60);
const TOO_FEW_LOOKS: &str = "preempt_count isn't believed yet (too few stops in user mode, or too few idle and for locks): \
     symbols tell who holds locks until then";

/// A kernel where it runs: words are of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunningKernel {
    /// The slot of its ranges.
    pub code: u32,
    pub slide: u64,
}

/// What is known of a guest's counts.
#[derive(Debug)]
pub struct Counting {
    kernel: Option<RunningKernel>,
    words: Option<Arc<CountWords>>,
    /// Of the search that found them; another one for each set of words.
    epoch: u32,
    is_asked: bool,
    next: Option<Instant>,
    apart: Duration,
    /// What the kernel side was told of each vCPU, by slot.
    told: BTreeMap<u32, CountPlace>,
    /// What the kernel side believes of these words.
    belief: Belief,
    said: Option<String>,
}

impl Default for Counting {
    fn default() -> Self {
        Self {
            kernel: None,
            words: None,
            epoch: 0,
            is_asked: false,
            next: None,
            apart: FIRST_LOOK,
            told: BTreeMap::new(),
            belief: Belief::Open,
            said: None,
        }
    }
}

impl Counting {
    /// True once for each look that is due. `kernel`: what the guest runs, once that is known.
    pub fn take_due(&mut self, kernel: Option<RunningKernel>, now: Instant) -> bool {
        if kernel != self.kernel {
            self.kernel = kernel;
            self.words = None;
            self.apart = FIRST_LOOK;
            self.next = kernel.map(|_| now + FIRST_LOOK);
        }
        let is_due = !self.is_asked && self.next.is_some_and(|next| now >= next);
        self.is_asked |= is_due;
        is_due
    }

    /// Returns the words that were found last.
    pub fn words(&self) -> Option<Arc<CountWords>> {
        self.words.clone()
    }

    /// Takes the answer to a look for the words of `kernel`. Returns a line for the operator, if there is
    /// something new to say.
    pub fn hear(
        &mut self,
        kernel: RunningKernel,
        found: Result<Arc<CountWords>, String>,
        now: Instant,
    ) -> Option<String> {
        self.is_asked = false;
        if self.kernel != Some(kernel) {
            return None; // it runs another one meanwhile, and is looked at soon
        }
        self.apart = if found.is_ok() { LOOK_AGAIN } else { (self.apart * 2).min(LOOKS_APART_MAX) };
        self.next = Some(now + self.apart);
        match found {
            Ok(words) => {
                let is_new = self.words.replace(Arc::clone(&words)).as_ref() != Some(&words);
                if is_new {
                    self.epoch += 1;
                    self.belief = Belief::Open;
                }
                // Most have proven themselves by the second look.
                let is_late = !is_new && self.belief == Belief::Open;
                is_late.then(|| self.new_line(TOO_FEW_LOOKS.to_owned())).flatten()
            }
            Err(cause) => {
                self.words = None;
                self.new_line(format!("preempt_count unknown ({cause}): symbols tell who holds locks"))
            }
        }
    }

    /// Returns what the kernel side has to be told of these vCPUs of the VM whose slot has this `generation`:
    /// it has something else.
    pub fn news(&mut self, generation: u32, vcpus: &[(u32, Vcpu)]) -> Vec<(u32, CountPlace)> {
        let place = |vcpu: &Vcpu| {
            let address = self.words.as_ref().and_then(|words| words.of_vcpu(vcpu.vcpu_id)).unwrap_or(0);
            CountPlace { address, kvm_vcpu: vcpu.kvm_vcpu, generation, epoch: self.epoch }
        };
        let now: BTreeMap<u32, CountPlace> =
            vcpus.iter().map(|(slot, vcpu)| (*slot, place(vcpu))).filter(|(_, it)| it.address != 0).collect();
        let gone = self.told.keys().filter(|slot| !now.contains_key(slot));
        let gone: Vec<_> = gone.map(|&slot| (slot, CountPlace::default())).collect();
        let changed = now.iter().filter(|(slot, place)| self.told.get(slot) != Some(place));
        let news = gone.into_iter().chain(changed.map(|(&slot, &place)| (slot, place))).collect();
        self.told = now;
        news
    }

    /// Another scheduler is told anew.
    pub fn forget_told(&mut self) {
        self.told.clear();
    }

    /// Takes what the kernel side believes of the words of this epoch. Returns a line for the operator, if
    /// that is new.
    pub fn hear_belief(&mut self, epoch: u32, belief: Belief) -> Option<String> {
        let words = self.words.as_ref().filter(|_| epoch == self.epoch)?;
        self.belief = belief;
        match belief {
            Belief::Open => None,
            Belief::Believed => {
                let cpus = words.len();
                self.new_line(format!("preempt_count of {cpus} CPUs tells who holds locks"))
            }
            Belief::Lost => self.new_line(
                "preempt_count isn't believed (it isn't as a kernel's): symbols tell who holds locks"
                    .to_owned(),
            ),
        }
    }

    fn new_line(&mut self, line: String) -> Option<String> {
        let is_new = self.said.as_ref() != Some(&line);
        self.said = Some(line.clone());
        is_new.then_some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    const KERNEL: RunningKernel = RunningKernel { code: 1, slide: 0x100_0000 };

    fn vcpu(vcpu_id: u32, kvm_vcpu: u64) -> Vcpu {
        Vcpu { vcpu_id, kvm_vcpu, ..Vcpu::new_zeroed() }
    }

    fn words(by_vcpu: &[(u32, u64)]) -> Arc<CountWords> {
        Arc::new(CountWords::at(by_vcpu))
    }

    fn counting(by_vcpu: &[(u32, u64)]) -> (Counting, Instant) {
        let (mut counting, now) = (Counting::default(), Instant::now());
        assert!(!counting.take_due(Some(KERNEL), now));
        assert!(counting.take_due(Some(KERNEL), now + FIRST_LOOK));
        assert!(!counting.take_due(Some(KERNEL), now + LOOK_AGAIN), "the answer isn't there yet");
        assert_eq!(counting.hear(KERNEL, Ok(words(by_vcpu)), now), None);
        (counting, now)
    }

    #[test]
    fn a_word_is_told_once_and_again_when_it_moves() {
        let (mut counting, now) = counting(&[(0, 0x1000), (2, 0x2000)]);
        let vcpus = [(7, vcpu(0, 70)), (8, vcpu(2, 80)), (9, vcpu(4, 90))];
        let news = counting.news(3, &vcpus);
        let place = |address, kvm_vcpu, epoch| CountPlace { address, kvm_vcpu, generation: 3, epoch };
        assert_eq!(news, [(7, place(0x1000, 70, 1)), (8, place(0x2000, 80, 1))]);
        assert!(counting.news(3, &vcpus).is_empty());
        let moved = counting.news(3, &[(7, vcpu(0, 71)), (8, vcpu(2, 80))]);
        assert_eq!(moved, [(7, place(0x1000, 71, 1))], "another vCPU is there");
        counting.hear(KERNEL, Ok(words(&[(0, 0x1000), (2, 0x3000)])), now);
        let found_anew = counting.news(3, &[(7, vcpu(0, 71)), (8, vcpu(2, 80))]);
        assert_eq!(found_anew, [(7, place(0x1000, 71, 2)), (8, place(0x3000, 80, 2))]);
        counting.forget_told();
        assert_eq!(counting.news(3, &vcpus[..1]).len(), 1);
    }

    #[test]
    fn words_go_with_their_kernel() {
        let (mut counting, now) = counting(&[(0, 0x1000)]);
        let vcpus = [(7, vcpu(0, 70))];
        counting.news(1, &vcpus);
        let other = RunningKernel { slide: 0, ..KERNEL };
        assert!(!counting.take_due(Some(other), now));
        assert_eq!(counting.news(1, &vcpus), [(7, CountPlace::default())]);
        assert_eq!(counting.hear(KERNEL, Ok(words(&[(0, 0x1000)])), now), None);
        assert!(counting.words().is_none(), "of the kernel before");
        assert!(counting.take_due(Some(other), now + FIRST_LOOK));
        counting.take_due(None, now);
        assert!(!counting.take_due(None, now + LOOKS_APART_MAX), "nothing is known of what it runs");
    }

    #[test]
    fn failing_looks_become_rarer_and_are_said_once() {
        let (mut counting, mut now) = (Counting::default(), Instant::now());
        counting.take_due(Some(KERNEL), now);
        let mut lines = Vec::new();
        for _ in 0..20 {
            now += LOOKS_APART_MAX;
            assert!(counting.take_due(Some(KERNEL), now));
            lines.extend(counting.hear(KERNEL, Err("no CPU's area says that it is one".into()), now));
            assert!(!counting.take_due(Some(KERNEL), now));
        }
        let line = "preempt_count unknown (no CPU's area says that it is one): symbols tell who holds locks";
        assert_eq!(lines, [line]);
        assert_eq!(counting.apart, LOOKS_APART_MAX);
    }

    #[test]
    fn belief_that_takes_long_is_said_once_per_search() {
        let (mut counting, now) = counting(&[(0, 0x1000)]);
        let same = || Ok(words(&[(0, 0x1000)]));
        assert_eq!(counting.hear(KERNEL, same(), now).as_deref(), Some(TOO_FEW_LOOKS));
        assert_eq!(counting.hear(KERNEL, same(), now), None, "it was said");
        assert!(counting.hear_belief(1, Belief::Believed).is_some());
        assert_eq!(counting.hear(KERNEL, same(), now), None, "it is believed");
        let moved = || Ok(words(&[(0, 0x2000)]));
        assert_eq!(counting.hear(KERNEL, moved(), now), None, "they were just found");
        assert_eq!(counting.hear(KERNEL, moved(), now).as_deref(), Some(TOO_FEW_LOOKS));
    }

    #[test]
    fn belief_is_said_when_it_changes() {
        let (mut counting, _) = counting(&[(0, 0x1000)]);
        assert_eq!(counting.hear_belief(1, Belief::Open), None);
        assert_eq!(counting.hear_belief(0, Belief::Believed), None, "of words before these");
        let line = counting.hear_belief(1, Belief::Believed);
        assert_eq!(line.as_deref(), Some("preempt_count of 1 CPUs tells who holds locks"));
        assert_eq!(counting.hear_belief(1, Belief::Believed), None);
        assert!(counting.hear_belief(1, Belief::Lost).is_some_and(|line| line.contains("isn't believed")));
    }
}
