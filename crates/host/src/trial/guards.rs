//! Guards: what ends an arm for good, before it harms a VM for long.

use super::outcomes::{ALL_VMS, Had, Outcome};
use microslice_metrics::Unit;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What no VM may meet in an arm other than the first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Guards {
    /// A longer wait for a pCPU ends the arm.
    pub longest_wait: Duration,
    /// So does a smaller part of the first arm's share, in two rounds one after the other.
    pub least_share: f64,
}

/// What broke a guard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    pub vm: String,
    pub what: String,
}

impl Guards {
    /// Returns what a round's block of an arm breaks, beside that round's block of the first arm. Where that
    /// did as badly, the arm isn't to blame. `is_short` keeps the VMs whose share was too small last time.
    pub fn broken_by(
        &self,
        block: &BTreeMap<String, Had>,
        first: &BTreeMap<String, Had>,
        is_short: &mut BTreeSet<String>,
    ) -> Option<Broken> {
        let was_short = std::mem::take(is_short);
        let mut broken = None;
        for (vm, had) in block.iter().filter(|(vm, _)| *vm != ALL_VMS) {
            let Some(before) = first.get(vm) else { continue };
            let what = self.too_long(had, before).or_else(|| {
                let what = self.too_little(had, before)?;
                is_short.insert(vm.clone());
                was_short.contains(vm).then_some(what)
            });
            broken = broken.or_else(|| what.map(|what| Broken { vm: vm.clone(), what }));
        }
        broken
    }

    fn too_long(&self, had: &Had, before: &Had) -> Option<String> {
        let longest = self.longest_wait.as_nanos() as u64;
        (had.longest_wait_ns > longest && before.longest_wait_ns <= longest).then(|| {
            let [waited, longest] =
                [had.longest_wait_ns, longest].map(|ns| Unit::Nanoseconds.show(ns as f64));
            format!("waited for {waited}, and {longest} are allowed")
        })
    }

    fn too_little(&self, had: &Had, before: &Had) -> Option<String> {
        let share = |of: &Had| of.figures.get(&Outcome::Share).copied();
        let part = share(had)? / share(before)?;
        (part < self.least_share).then(|| {
            format!("had {part:.2} of the first arm's share, twice, and {:.2} is the least", self.least_share)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUARDS: Guards = Guards { longest_wait: Duration::from_secs(1), least_share: 0.5 };

    fn block(longest_wait_ns: u64, share: f64) -> BTreeMap<String, Had> {
        let had = Had { figures: [(Outcome::Share, share)].into(), longest_wait_ns };
        [("web".to_owned(), had.clone()), (ALL_VMS.to_owned(), had)].into()
    }

    #[test]
    fn a_long_wait_breaks_a_guard_at_once() {
        let broken = GUARDS.broken_by(&block(1_500_000_000, 0.6), &block(0, 0.6), &mut BTreeSet::new());
        let Broken { vm, what } = broken.expect("broken");
        assert_eq!(vm, "web");
        assert!(what.contains("waited for 1.5"), "{what}");
    }

    #[test]
    fn a_small_share_breaks_one_when_it_comes_twice() {
        let mut is_short = BTreeSet::new();
        let (little, usual) = (block(0, 0.2), block(0, 0.6));
        assert_eq!(GUARDS.broken_by(&little, &usual, &mut is_short), None);
        assert_eq!(GUARDS.broken_by(&usual, &usual, &mut is_short), None);
        assert_eq!(GUARDS.broken_by(&little, &usual, &mut is_short), None);
        let broken = GUARDS.broken_by(&little, &usual, &mut is_short).expect("broken");
        assert!(broken.what.contains("0.33 of the first arm's share"), "{broken:?}");
    }

    #[test]
    fn an_arm_is_not_blamed_for_what_the_first_one_does() {
        let bad = block(1_500_000_000, 0.2);
        for _ in 0..3 {
            assert_eq!(GUARDS.broken_by(&bad, &bad, &mut ["web".to_owned()].into()), None);
        }
    }
}
