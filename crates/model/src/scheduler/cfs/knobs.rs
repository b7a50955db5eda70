//! Which schemes each VM has: its own knobs, else the policy's; and the trials of Resched-Co where it is
//! `auto`.

use crate::config::{Coordination, ReschedCo, VmKnobs};
use crate::ids::{IdVec, VmId};
use crate::machine::Machine;
use microslice_policy::coordinated::{
    EARLY_DP, RESCHED_CO, RESCHED_DP, ReschedCoConfig, ReschedCoObservation, ReschedCoState, TLB_CO,
    TLB_SPIN, decide_on_resched_co,
};

pub struct Knobs(IdVec<VmId, VmSchemes>);

struct VmSchemes {
    schemes: u32,
    /// Of `auto`: with what has been seen since it was asked last.
    trial: Option<(ReschedCoState, ReschedCoObservation)>,
}

impl Knobs {
    pub fn new(of_all: &Coordination, machine: &Machine) -> Self {
        let of_vm = |knobs: VmKnobs| {
            let resched_co = knobs.resched_co.unwrap_or(of_all.resched_co);
            let resched_dp = knobs.resched_dp.unwrap_or(of_all.resched_dp);
            let tlb_co = knobs.tlb_co.unwrap_or(of_all.tlb_co);
            let bits = [
                (resched_dp, RESCHED_DP),
                (tlb_co, TLB_CO),
                (tlb_co && of_all.tlb_spin, TLB_SPIN),
                (resched_co == ReschedCo::On, RESCHED_CO),
                (resched_dp && of_all.early_dp, EARLY_DP),
            ];
            VmSchemes {
                schemes: bits.into_iter().filter(|(on, _)| *on).map(|(_, bit)| bit).sum(),
                trial: (resched_co == ReschedCo::Auto).then(Default::default),
            }
        };
        Self(machine.vms.iter().map(|vm| of_vm(vm.knobs)).collect())
    }

    pub fn schemes_of(&self, vm: VmId) -> u32 {
        let VmSchemes { schemes, trial } = &self.0[vm];
        let is_on = trial.as_ref().is_some_and(|(state, _)| state.is_on != 0);
        if is_on { schemes | RESCHED_CO } else { *schemes }
    }

    pub fn count_resched_ipi(&mut self, vm: VmId) {
        if let Some((_, seen)) = &mut self.0[vm].trial {
            seen.ipi_count += 1;
        }
    }

    pub fn ran(&mut self, vm: VmId, ran_ns: u64) {
        if let Some((_, seen)) = &mut self.0[vm].trial {
            seen.ran_ns += ran_ns;
        }
    }

    /// At ticks.
    pub fn look(&mut self, now_ns: u64) {
        for (state, seen) in self.0.iter_mut().filter_map(|vm| vm.trial.as_mut()) {
            let seen = ReschedCoObservation { now_ns, ..std::mem::take(seen) };
            *state = decide_on_resched_co(&ReschedCoConfig::USUAL, state, &seen);
        }
    }
}
