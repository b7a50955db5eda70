//! Boosts beside the kernel's own scheduler, from the trace: what a VM has run real-time is what its budget
//! has given it so far. Boosts for a bound on waits are no part of that: no budget refuses them.

use crate::config::{BesideConfig, SchedulerKind};
use crate::events::TraceEvent;
use crate::ids::{IdVec, VcpuId};
use crate::machine::Machine;
use microslice_policy::Cause;

/// What wasn't used in a second can be used at once.
const BURST_NS: u64 = 1_000_000_000;

/// What each vCPU has run boosted.
pub struct BoostBudgets {
    limits: Option<Limits>,
    vcpus: IdVec<VcpuId, Boosted>,
}

struct Limits {
    micro_slice_ns: u64,
    vm_percent: u64,
    host_percent: u64,
}

#[derive(Debug, Default, Clone, Copy)]
struct Boosted {
    is_boosted: bool,
    is_for_bound: bool,
    since_ns: Option<u64>,
    ran_ns: u64,
}

impl BoostBudgets {
    pub fn new(vcpus: usize, scheduler: &SchedulerKind) -> Self {
        let limits = |config: &BesideConfig| Limits {
            micro_slice_ns: config.micro_slice_ns,
            vm_percent: u64::from(config.boost_percent),
            host_percent: u64::from(config.host_percent),
        };
        let limits = match scheduler {
            SchedulerKind::Beside(config) => Some(limits(config)),
            _ => None,
        };
        Self { limits, vcpus: IdVec::of(Boosted::default(), vcpus) }
    }

    pub fn observe(&mut self, time_ns: u64, event: &TraceEvent) -> Result<(), String> {
        if self.limits.is_none() {
            return Ok(());
        }
        match *event {
            TraceEvent::Accelerated { vcpu, cause, .. } => {
                let boosted = &mut self.vcpus[vcpu];
                (boosted.is_boosted, boosted.is_for_bound) = (true, cause == Cause::MaxWait);
            }
            TraceEvent::Running { vcpu, .. } if self.vcpus[vcpu].is_boosted => {
                self.vcpus[vcpu].since_ns = Some(time_ns);
            }
            TraceEvent::ReturnedToNormalPool { vcpu, .. } => {
                let boosted = &mut self.vcpus[vcpu];
                let Some(since_ns) = boosted.since_ns.take().filter(|_| boosted.is_boosted) else {
                    return Err(format!("vCPU {vcpu} is given back though it didn't run boosted"));
                };
                boosted.is_boosted = false;
                if !boosted.is_for_bound {
                    boosted.ran_ns += time_ns - since_ns;
                }
            }
            TraceEvent::Stopping { vcpu, .. } if self.vcpus[vcpu].is_boosted => {
                return Err(format!("vCPU {vcpu} stops, and its boost doesn't end"));
            }
            _ => {}
        }
        Ok(())
    }

    /// Of a VM and of all together, since the start: a burst, a part of all that time, and what was granted
    /// when the budget was used up.
    pub fn nobody_exceeds_its_budget(&self, machine: &Machine) -> Result<(), String> {
        let Some(limits) = &self.limits else { return Ok(()) };
        let time_ns = u128::from(machine.now_ns + BURST_NS) * machine.pcpus.len() as u128;
        let allowed_ns = |percent: u64, vcpus: u128| {
            time_ns * u128::from(percent) / 100 + u128::from(limits.micro_slice_ns) * vcpus
        };
        let (mut all_ran_ns, mut all_vcpus) = (0, 0);
        for (id, vm) in machine.vms.enumerate() {
            let vcpus = vm.first_vcpu.span(vm.vcpus);
            let ran_ns = vcpus.map(|vcpu| u128::from(self.vcpus[vcpu].ran_ns)).sum::<u128>();
            let allowed_ns = allowed_ns(limits.vm_percent, u128::from(vm.vcpus));
            if ran_ns > allowed_ns {
                return Err(format!("VM {id} ran boosted for {ran_ns} ns, where {allowed_ns} are allowed"));
            }
            (all_ran_ns, all_vcpus) = (all_ran_ns + ran_ns, all_vcpus + u128::from(vm.vcpus));
        }
        let allowed_ns = allowed_ns(limits.host_percent, all_vcpus);
        if all_ran_ns > allowed_ns {
            return Err(format!("all VMs ran boosted for {all_ran_ns} ns, where {allowed_ns} are allowed"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::StopReason;
    use crate::ids::PcpuId;
    use crate::samples;
    use microslice_policy::GuestClass;

    const VCPU: VcpuId = VcpuId::new(0);
    const PCPU: PcpuId = PcpuId::new(0);

    fn accelerated() -> TraceEvent {
        accelerated_for(Cause::LockYield)
    }

    fn accelerated_for(cause: Cause) -> TraceEvent {
        let class = GuestClass::LockHolder;
        TraceEvent::Accelerated { vcpu: VCPU, pcpu: PCPU, cause, class }
    }

    fn returned() -> TraceEvent {
        TraceEvent::ReturnedToNormalPool { vcpu: VCPU, pcpu: PCPU }
    }

    const RUNS: TraceEvent = TraceEvent::Running { vcpu: VCPU, pcpu: PCPU, micro: true };

    /// Two VMs of twelve vCPUs on twelve pCPUs.
    fn host() -> (BoostBudgets, Machine) {
        let vms = (0..2).map(|_| crate::machine::HostVm::new(12, 256, Vec::new()));
        let machine = Machine::new(&samples::host(), vms.collect());
        let scheduler = SchedulerKind::Beside(samples::beside());
        (BoostBudgets::new(machine.vcpus.len(), &scheduler), machine)
    }

    #[test]
    fn a_vcpu_that_runs_boosted_for_longer_than_its_vm_may_is_found() {
        let (mut boosts, mut machine) = host();
        // 1 % of twelve pCPUs for a second, and a micro slice of each of twelve vCPUs.
        let allowed_ns = 120_000_000 + 12 * 100_000;
        for (time_ns, event) in [(0, accelerated()), (0, RUNS), (allowed_ns, returned())] {
            boosts.observe(time_ns, &event).expect("in order");
        }
        assert_eq!(boosts.nobody_exceeds_its_budget(&machine), Ok(()));
        boosts.vcpus[VCPU].ran_ns += 1;
        let error = boosts.nobody_exceeds_its_budget(&machine);
        assert_eq!(error, Err("VM 0 ran boosted for 121200001 ns, where 121200000 are allowed".to_owned()));
        machine.now_ns = 1_000_000;
        assert_eq!(boosts.nobody_exceeds_its_budget(&machine), Ok(()), "time repays");
    }

    #[test]
    fn no_budget_refuses_what_bounds_on_waits_take() {
        let (mut boosts, machine) = host();
        for (time_ns, event) in [(0, accelerated_for(Cause::MaxWait)), (0, RUNS), (900_000_000, returned())] {
            boosts.observe(time_ns, &event).expect("in order");
        }
        assert_eq!(boosts.nobody_exceeds_its_budget(&machine), Ok(()));
    }

    #[test]
    fn all_vms_that_run_boosted_for_longer_than_they_may_together_are_found() {
        let (mut boosts, machine) = host();
        boosts.limits.as_mut().expect("beside").host_percent = 1;
        // 1 % of twelve pCPUs for a second, and a micro slice of each of 24 vCPUs.
        let allowed_ns = 120_000_000 + 24 * 100_000;
        boosts.vcpus[VCPU].ran_ns = allowed_ns / 2;
        boosts.vcpus[VcpuId::new(12)].ran_ns = allowed_ns / 2;
        assert_eq!(boosts.nobody_exceeds_its_budget(&machine), Ok(()));
        boosts.vcpus[VcpuId::new(12)].ran_ns += 1;
        let error = boosts.nobody_exceeds_its_budget(&machine);
        assert_eq!(
            error,
            Err("all VMs ran boosted for 122400001 ns, where 122400000 are allowed".to_owned())
        );
    }

    #[test]
    fn a_boost_that_is_not_taken_back_and_a_return_without_one_are_found() {
        let stops = TraceEvent::Stopping {
            vcpu: VCPU,
            pcpu: PCPU,
            reason: StopReason::Preempted,
            ip: 0,
            symbol: Default::default(),
        };
        let (mut boosts, _) = host();
        assert!(boosts.observe(0, &returned()).is_err());
        boosts.observe(0, &accelerated()).expect("in order");
        boosts.observe(0, &RUNS).expect("in order");
        assert_eq!(boosts.observe(1, &stops), Err("vCPU 0 stops, and its boost doesn't end".to_owned()));
    }
}
