//! What each VM had of late, and was due: of the last seconds, as a share since the start would say nothing
//! of now.

use crate::run::report::{Report, VmReport};
use crate::shares::due;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// How far back a share looks.
const SPAN: Duration = Duration::from_secs(10);

/// Nanoseconds that each VM, by its name and its VMM's pid, had and waited for since the start.
type Readings = BTreeMap<(String, u32), (u64, u64)>;

/// Readings of the last seconds.
#[derive(Debug, Default)]
pub(super) struct Lately(VecDeque<(Instant, Readings)>);

impl Lately {
    /// Shares received and due of the report's VMs, in their order, since the last reading that is as old as
    /// the span; all are kept.
    pub(super) fn shares_of(&mut self, report: &Report, now: Instant) -> Vec<(f64, f64)> {
        let key = |vm: &VmReport| (vm.name.clone(), vm.pid);
        let had = |vm: &VmReport| (vm.stats.had_ns(), vm.stats.waited_ns);
        // The oldest that is kept is the last that is old enough.
        while self.0.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= SPAN) {
            self.0.pop_front();
        }
        let before = self.0.front().map(|(_, readings)| readings);
        let lately = report.vms.iter().map(|vm| {
            let before = before.and_then(|readings| readings.get(&key(vm))).copied().unwrap_or_default();
            let (ran_ns, waited_ns) = had(vm);
            (f64::from(vm.weight), ran_ns.saturating_sub(before.0), waited_ns.saturating_sub(before.1))
        });
        let shares = due::shares_of(&lately.collect::<Vec<_>>());
        self.0.push_back((now, report.vms.iter().map(|vm| (key(vm), had(vm))).collect()));
        shares
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::report::tests::{report, vm};

    #[test]
    fn shares_are_of_the_last_seconds() {
        let start = Instant::now();
        let mut shares = Lately::default();
        let at = |second: u64, a: u64, b: u64| {
            (start + Duration::from_secs(second), report(vec![vm("a", 100, a, 0), vm("b", 100, b, 0)]))
        };
        let (now, first) = at(0, 600, 200);
        assert_eq!(shares.shares_of(&first, now), [(0.75, 0.75), (0.25, 0.25)], "all that there is");
        let (now, later) = at(9, 700, 200);
        assert_eq!(shares.shares_of(&later, now)[0].0, 1.0, "since the first");
        let (now, later) = at(15, 700, 300);
        assert_eq!(
            shares.shares_of(&later, now)[0].0,
            0.5,
            "still since the first: the second isn't old enough"
        );
        let (now, later) = at(19, 700, 500);
        assert_eq!(shares.shares_of(&later, now)[0].0, 0.0, "since the second");
    }
}
