//! Guards: what ends an arm for good, before it harms a VM for long.

use super::outcomes::{ALL_VMS, Had, Outcome};
use microslice_metrics::Unit;
use std::collections::BTreeMap;
use std::time::Duration;

/// What no VM may meet in an arm other than the first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Guards {
    /// A longer wait for a pCPU ends the arm.
    pub longest_wait: Duration,
    /// So does a smaller share of what is due to a VM.
    pub least_share: f64,
}

impl Guards {
    /// Returns what breaks a guard in this block, in one phrase. Where the first arm's own last block did as
    /// badly, the arm isn't to blame.
    pub fn broken_by(
        &self,
        block: &BTreeMap<String, Had>,
        first: Option<&BTreeMap<String, Had>>,
    ) -> Option<String> {
        block.iter().filter(|(name, _)| *name != ALL_VMS).find_map(|(name, had)| {
            let before = first.and_then(|first| first.get(name));
            self.broken_by_vm(had, before).map(|what| format!("VM {name:?} {what}"))
        })
    }

    fn broken_by_vm(&self, had: &Had, before: Option<&Had>) -> Option<String> {
        let longest = self.longest_wait.as_nanos() as u64;
        let share = |of: &Had| of.figures.get(&Outcome::Share).copied();
        let too_long = |of: &Had| of.longest_wait_ns > longest;
        let too_little = |of: &Had| share(of).is_some_and(|share| share < self.least_share);
        if too_long(had) && !before.is_some_and(too_long) {
            return Some(format!(
                "waited for {}, and {} are allowed",
                Unit::Nanoseconds.show(had.longest_wait_ns as f64),
                Unit::Nanoseconds.show(longest as f64)
            ));
        }
        if too_little(had) && !before.is_some_and(too_little) {
            return Some(format!(
                "had {:.2} of what was due to it, and {:.2} is the least",
                share(had).unwrap_or(0.0),
                self.least_share
            ));
        }
        None
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
    fn a_long_wait_or_a_small_share_breaks_a_guard() {
        assert_eq!(GUARDS.broken_by(&block(900_000_000, 0.6), None), None);
        let long = GUARDS.broken_by(&block(1_500_000_000, 0.6), None).expect("broken");
        assert!(long.contains("\"web\" waited for 1.5"), "{long}");
        let small = GUARDS.broken_by(&block(0, 0.2), None).expect("broken");
        assert!(small.contains("0.20 of what was due"), "{small}");
    }

    #[test]
    fn an_arm_is_not_blamed_for_what_the_first_one_does() {
        let bad = block(1_500_000_000, 0.2);
        assert_eq!(GUARDS.broken_by(&bad, Some(&bad)), None);
        assert!(GUARDS.broken_by(&bad, Some(&block(0, 1.0))).is_some());
    }
}
