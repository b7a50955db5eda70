//! Resched-Co where it is `auto`: whether it acts for a VM is tried, and tried again (`decide_on_resched_co`;
//! ASPLOS'13, section 4.2).

use crate::guests::vms::Vm;
use crate::interface::VmStats;
use crate::settings::coordination::Schemes;
use microslice_policy::InterruptKind;
use microslice_policy::coordinated::{
    ReschedCoConfig, ReschedCoObservation, ReschedCoState, decide_on_resched_co,
};

/// A VM's trials.
#[derive(Debug, Default)]
pub struct Trials {
    state: ReschedCoState,
    /// Reschedule IPIs, and nanoseconds run, up to the last decision.
    counted: (u64, u64),
}

impl Trials {
    /// Does Resched-Co act from `now_ns` on? `stats` are those of the VM's whole life.
    pub(crate) fn decide(&mut self, now_ns: u64, stats: &VmStats) -> bool {
        let (ipis, ran_ns) = (stats.urgent.ipis[InterruptKind::IpiReschedule as usize], stats.ran_ns);
        let seen = ReschedCoObservation {
            now_ns,
            ipi_count: ipis.saturating_sub(self.counted.0),
            ran_ns: ran_ns.saturating_sub(self.counted.1),
        };
        self.counted = (ipis, ran_ns);
        self.state = decide_on_resched_co(&ReschedCoConfig::USUAL, &self.state, &seen);
        self.state.is_on != 0
    }
}

impl Vm {
    pub(crate) fn coordinate(&mut self, schemes: &Schemes) {
        self.urgent_schemes = schemes.bits();
        self.resched_co = schemes.tries_resched_co().then(Trials::default);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// What is found after a trial, if a VM that runs all the time sends these reschedule IPIs per
    /// millisecond with it and without.
    fn found(with: u64, without: u64) -> bool {
        let (mut trials, mut stats, mut is_on) = (Trials::default(), VmStats::default(), false);
        for now_ms in 1..1000 {
            stats.ran_ns += MS;
            stats.urgent.ipis[InterruptKind::IpiReschedule as usize] += if is_on { with } else { without };
            is_on = trials.decide(now_ms * MS, &stats);
        }
        is_on
    }

    #[test]
    fn it_acts_where_it_makes_reschedule_ipis_rarer() {
        assert!(found(8, 10));
        assert!(!found(10, 10) && !found(12, 10));
    }
}
