//! Stride scheduling per pCPU (Waldspurger and Weihl, 1995): the hypervisor of Uhlig et al., VM'04 (5.1,
//! 6.1).
//!
//! Problem.   Proportional shares of each pCPU, and nothing else: what a guest's locks lose by that is to be
//!            seen.
//! Mechanism. Each vCPU has a pass, which running moves on, the heavier its VM the slower. The vCPU with the
//!            least pass has the next turn. A turn lasts for a slice, unless the vCPU blocks or gives it up.
//!            A sleeper comes back no further behind than the vCPU that was chosen last: what wasn't used is
//!            others'. So it is with a turn that is given up: a waiter may give up hundreds. vCPUs never
//!            leave their pCPU.
//! Limits.    No vCPU preempts because it wakes. One that gives its turn up goes behind all others that wait,
//!            once.

use super::{Pick, Scheduler, TurnEnds, YieldAnswer};
use crate::config::StrideConfig;
use crate::events::StopReason;
use crate::ids::{IdVec, PcpuId, VcpuId};
use crate::machine::{Machine, VcpuState};
use microslice_policy::YieldCause;

/// Passes of a VM of the default weight move as fast as time.
const WEIGHT_DEFAULT: u64 = 256;
/// Nothing happens at ticks.
const TICK_NS: u64 = 1_000_000_000;

pub struct Stride {
    config: StrideConfig,
    passes: IdVec<VcpuId, u64>,
    queues: IdVec<PcpuId, Queue>,
}

#[derive(Clone, Default)]
struct Queue {
    waiting: Vec<VcpuId>,
    /// That of the one that was chosen last.
    pass: u64,
    charged_until_ns: u64,
}

impl Stride {
    pub fn new(config: StrideConfig, machine: &Machine) -> Self {
        Self {
            config,
            passes: IdVec::of(0, machine.vcpus.len()),
            queues: IdVec::of(Queue::default(), machine.pcpus.len()),
        }
    }

    fn charge(&mut self, machine: &Machine, pcpu: PcpuId, vcpu: VcpuId) {
        let ran_ns = machine.now_ns - self.queues[pcpu].charged_until_ns;
        let weight = u64::from(machine.vms[machine.vcpus[vcpu].vm].weight);
        self.passes[vcpu] += ran_ns * WEIGHT_DEFAULT / weight;
    }

    /// The place of the one whose pass is least; of equals, the one that has waited longest.
    fn first(&self, pcpu: PcpuId) -> Option<usize> {
        let waiting = self.queues[pcpu].waiting.iter().enumerate();
        waiting.min_by_key(|&(_, &vcpu)| self.passes[vcpu]).map(|(at, _)| at)
    }
}

impl Scheduler for Stride {
    fn wake(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        let pcpu = machine.vcpus[vcpu].pcpu;
        let queue = &mut self.queues[pcpu];
        self.passes[vcpu] = self.passes[vcpu].max(queue.pass);
        queue.waiting.push(vcpu);
        if machine.is_idle(pcpu) {
            machine.request_schedule(pcpu);
        } else {
            // A spinner there may give way to it.
            machine.answers_changed(pcpu);
        }
    }

    fn schedule(
        &mut self,
        machine: &mut Machine,
        pcpu: PcpuId,
        stopped: Option<(VcpuId, StopReason)>,
    ) -> Option<Pick> {
        let mut gave_way = None;
        if let Some((vcpu, reason)) = stopped {
            self.charge(machine, pcpu, vcpu);
            if machine.vcpus[vcpu].state != VcpuState::Blocked {
                if matches!(reason, StopReason::Ple | StopReason::IpiWait) {
                    gave_way = Some(vcpu);
                } else {
                    self.queues[pcpu].waiting.push(vcpu);
                }
            }
        }
        let next = self.first(pcpu).map(|at| self.queues[pcpu].waiting.remove(at));
        let vcpu = match (next, gave_way) {
            (Some(next), Some(gave_way)) => {
                self.passes[gave_way] = self.passes[gave_way].max(self.passes[next]);
                self.queues[pcpu].waiting.push(gave_way);
                next
            }
            (next, gave_way) => next.or(gave_way)?,
        };
        let queue = &mut self.queues[pcpu];
        queue.pass = queue.pass.max(self.passes[vcpu]);
        queue.charged_until_ns = machine.now_ns;
        Some(Pick { vcpu, slice_end_ns: machine.now_ns + self.config.slice_ns })
    }

    fn yields(
        &mut self,
        machine: &mut Machine,
        _vcpu: VcpuId,
        pcpu: PcpuId,
        cause: YieldCause,
    ) -> YieldAnswer {
        if cause == YieldCause::Hlt || !self.queues[pcpu].waiting.is_empty() {
            return YieldAnswer::Yield;
        }
        YieldAnswer::KeepSpinning { until_ns: machine.pcpus[pcpu].slice_end_ns }
    }

    fn tick_ns(&self) -> u64 {
        TICK_NS
    }

    fn tick(&mut self, _machine: &mut Machine, _pcpu: PcpuId) {}
}

impl TurnEnds for Stride {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{HostConfig, US};
    use crate::machine::HostVm;
    use crate::samples;

    const PCPU: PcpuId = PcpuId::new(0);
    const SPINNER: VcpuId = VcpuId::new(0);
    const OTHER: VcpuId = VcpuId::new(1);

    #[test]
    fn who_gave_many_turns_up_has_no_more_at_once() {
        let host = HostConfig { pcpus: 1, llc_pcpus: 1, smt_threads: 1, ..samples::host() };
        let mut machine = Machine::new(&host, vec![HostVm::new(2, 256, Vec::new())]);
        let mut stride = Stride::new(StrideConfig { slice_ns: 20 * US }, &machine);
        machine.vcpus[OTHER].state = VcpuState::Runnable;
        machine.vcpus[SPINNER].state = VcpuState::Running;
        stride.queues[PCPU].waiting.push(OTHER);
        let mut ends = |ran_ns: u64, vcpu, reason| {
            machine.now_ns += ran_ns;
            stride.schedule(&mut machine, PCPU, Some((vcpu, reason))).map(|pick| pick.vcpu)
        };
        for _ in 0..50 {
            assert_eq!(ends(US, SPINNER, StopReason::Ple), Some(OTHER));
            assert_eq!(ends(20 * US, OTHER, StopReason::SliceExpired), Some(SPINNER));
        }
        let turns = (0..10).take_while(|_| ends(20 * US, SPINNER, StopReason::SliceExpired) == Some(SPINNER));
        assert!(turns.count() <= 1, "it is owed none of the fifty");
    }
}
