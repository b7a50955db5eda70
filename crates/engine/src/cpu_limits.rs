//! `cpu.max`: what holds a VM to its quota, and when its vCPUs rest.
//!
//! Problem.   A tenant that pays for half a pCPU may not get four.
//! Mechanism. A vCPU that may not run leaves its scheduler's queue, and comes back like one that wakes. Which
//!            one that is, and for how long, is said
//!            - under kernels' own schedulers by CFS bandwidth control (`quota.rs`),
//!            - under sched_ext's by `policy/cpu_limit.h` (`turns.rs`).
//!            Either is asked when a vCPU gets on a pCPU, when it is scheduled and at the host's ticks.
//! Limits.    A limit is a VM's own: cgroups above it have none. No burst. What QEMU's own threads use isn't
//!            counted.

mod quota;
mod turns;

use self::quota::Quota;
use self::turns::Turns;
use crate::simulation::Simulation;
use microslice_model::config::{CpuMax, SimulationConfig};
use microslice_model::events::{StopReason, TraceEvent};
use microslice_model::ids::{IdVec, PcpuId, VcpuId, VmId};
use microslice_model::machine::{Machine, VcpuState};

/// Whether a vCPU may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Until then, if nothing else happens.
    Runs {
        until_ns: u64,
    },
    Rests,
}

enum Rule {
    Quota(Quota),
    Turns(Turns),
}

/// A VM's limit, and those of its vCPUs that rest, in the order in which they came.
struct Limit {
    vm: VmId,
    rule: Rule,
    resting: Vec<VcpuId>,
}

#[derive(Clone, Copy, Default)]
struct Vcpu {
    rests: bool,
    rests_since_ns: u64,
    /// It comes back from a rest.
    comes_back: bool,
    charged_until_ns: u64,
}

pub(crate) struct CpuLimits {
    limits: Vec<Limit>,
    /// Of each VM, its place in `limits`.
    of: IdVec<VmId, Option<usize>>,
    vcpus: IdVec<VcpuId, Vcpu>,
}

impl CpuLimits {
    pub fn new(config: &SimulationConfig, machine: &Machine) -> Self {
        let by_turns = config.scheduler.keeps_limits_by_turns();
        let limited =
            machine.vms.ids().zip(&config.vms).filter_map(|(vm, config)| Some((vm, config.cpu_max?)));
        let rule = |max: &CpuMax| match by_turns {
            Some(slice_ns) => Rule::Turns(Turns::new(max, slice_ns, machine)),
            None => Rule::Quota(Quota::new(max, machine.pcpus.len())),
        };
        let limits: Vec<Limit> =
            limited.map(|(vm, max)| Limit { vm, rule: rule(&max), resting: Vec::new() }).collect();
        let mut of = IdVec::of(None, machine.vms.len());
        limits.iter().enumerate().for_each(|(at, limit)| of[limit.vm] = Some(at));
        let vcpus = if limits.is_empty() { 0 } else { machine.vcpus.len() };
        Self { limits, of, vcpus: IdVec::of(Vcpu::default(), vcpus) }
    }

    pub fn count(&self) -> usize {
        self.limits.len()
    }

    /// Whether a vCPU rests: nothing wakes it before its VM has quota again.
    #[inline]
    pub fn rests(&self, vcpu: VcpuId) -> bool {
        !self.limits.is_empty() && self.vcpus[vcpu].rests
    }

    /// Whether a vCPU that gets on a pCPU has rested, not halted.
    #[inline]
    pub fn comes_back(&mut self, vcpu: VcpuId) -> bool {
        !self.limits.is_empty() && std::mem::take(&mut self.vcpus[vcpu].comes_back)
    }

    #[inline]
    fn limit_of(&self, machine: &Machine, vcpu: VcpuId) -> Option<usize> {
        if self.limits.is_empty() { None } else { self.of[machine.vcpus[vcpu].vm] }
    }

    /// What it ran on this pCPU until now is charged. Then: may it go on?
    fn charge(&mut self, machine: &Machine, limit: usize, vcpu: VcpuId, pcpu: PcpuId) {
        let now_ns = machine.now_ns;
        let ran_ns = now_ns - std::mem::replace(&mut self.vcpus[vcpu].charged_until_ns, now_ns);
        match &mut self.limits[limit].rule {
            Rule::Quota(quota) => quota.charge(pcpu, ran_ns),
            Rule::Turns(turns) => turns.charge(vcpu, ran_ns),
        }
    }

    fn verdict(&mut self, machine: &Machine, limit: usize, vcpu: VcpuId, pcpu: PcpuId) -> Verdict {
        let Limit { vm, rule, resting } = &mut self.limits[limit];
        match rule {
            Rule::Quota(quota) => quota.verdict(pcpu),
            Rule::Turns(turns) => {
                let of_vm = &machine.vms[*vm];
                let vcpus = of_vm.first_vcpu.span(of_vm.vcpus);
                let awake = vcpus.filter(|&vcpu| machine.vcpus[vcpu].state != VcpuState::Blocked).count();
                turns.verdict(machine.now_ns, vcpu, awake + resting.len())
            }
        }
    }
}

impl Limit {
    fn next_ns(&self) -> u64 {
        match &self.rule {
            Rule::Quota(quota) => quota.next_ns(),
            Rule::Turns(turns) => turns.next_ns(&self.resting),
        }
    }
}

impl Simulation<'_> {
    /// The vCPU that runs here is about to be scheduled. Whether it rests instead of going on.
    pub(crate) fn is_throttled(&mut self, vcpu: VcpuId, pcpu: PcpuId) -> bool {
        let Some(limit) = self.cpu_limits.limit_of(&self.machine, vcpu) else { return false };
        self.cpu_limits.charge(&self.machine, limit, vcpu, pcpu);
        if self.machine.vcpus[vcpu].state != VcpuState::Running {
            return false;
        }
        match self.cpu_limits.verdict(&self.machine, limit, vcpu, pcpu) {
            Verdict::Runs { .. } => false,
            Verdict::Rests => {
                self.rest(limit, vcpu);
                true
            }
        }
    }

    /// It begins to run here, or goes on: until when, at most.
    pub(crate) fn limit_turn(&mut self, vcpu: VcpuId, pcpu: PcpuId) {
        let Some(limit) = self.cpu_limits.limit_of(&self.machine, vcpu) else { return };
        self.cpu_limits.vcpus[vcpu].charged_until_ns = self.machine.now_ns;
        match self.cpu_limits.verdict(&self.machine, limit, vcpu, pcpu) {
            Verdict::Runs { until_ns } => {
                let end_ns = &mut self.machine.pcpus[pcpu].slice_end_ns;
                *end_ns = until_ns.min(*end_ns);
            }
            Verdict::Rests => {
                self.rest(limit, vcpu);
                self.request_stop(pcpu, StopReason::Throttled);
            }
        }
    }

    /// The host's tick on this pCPU.
    pub(crate) fn tick_of_limit(&mut self, vcpu: VcpuId, pcpu: PcpuId) {
        if !self.halt_polling.polls(vcpu) && self.is_throttled(vcpu, pcpu) {
            self.request_stop(pcpu, StopReason::Throttled);
        }
    }

    /// It has left this pCPU. What it didn't use goes back.
    pub(crate) fn end_limited_turn(&mut self, vcpu: VcpuId, pcpu: PcpuId) {
        let Some(at) = self.cpu_limits.limit_of(&self.machine, vcpu) else { return };
        let blocked = self.machine.vcpus[vcpu].state == VcpuState::Blocked;
        let limit = &mut self.cpu_limits.limits[at];
        match &mut limit.rule {
            Rule::Quota(quota) if blocked => {
                quota.give_back(self.machine.now_ns, pcpu, !limit.resting.is_empty());
            }
            Rule::Quota(_) => {}
            Rule::Turns(turns) if !self.cpu_limits.vcpus[vcpu].rests => turns.settle(vcpu),
            Rule::Turns(_) => {}
        }
        self.time_limit(at);
    }

    fn rest(&mut self, limit: usize, vcpu: VcpuId) {
        let state = &mut self.cpu_limits.vcpus[vcpu];
        (state.rests, state.rests_since_ns) = (true, self.machine.now_ns);
        self.cpu_limits.limits[limit].resting.push(vcpu);
        self.machine.blocks(vcpu);
        self.time_limit(limit);
    }

    pub(crate) fn time_limit(&mut self, limit: usize) {
        let (slot, next_ns) = (self.slots.limit(limit), self.cpu_limits.limits[limit].next_ns());
        match next_ns {
            u64::MAX => self.timeline.cancel(slot),
            _ => self.timeline.set(slot, next_ns),
        }
    }

    /// A limit's timer: those that may run again come back.
    pub(crate) fn limit_event(&mut self, limit: usize) {
        let now_ns = self.machine.now_ns;
        let Limit { rule, resting, .. } = &mut self.cpu_limits.limits[limit];
        let resting_before = std::mem::take(resting);
        let (released, left): (Vec<_>, Vec<_>) = match rule {
            Rule::Quota(quota) => {
                quota.refill(now_ns);
                let place = |vcpu: VcpuId| self.machine.vcpus[vcpu].pcpu;
                resting_before.into_iter().partition(|&vcpu| quota.releases(place(vcpu)))
            }
            Rule::Turns(turns) => {
                resting_before.into_iter().partition(|&vcpu| turns.rests_until_ns(vcpu) <= now_ns)
            }
        };
        *resting = left;
        for &vcpu in &released {
            let since_ns = self.cpu_limits.vcpus[vcpu].rests_since_ns;
            self.measured.rested(self.machine.vcpus[vcpu].vm, now_ns, since_ns);
            let state = &mut self.cpu_limits.vcpus[vcpu];
            (state.rests, state.comes_back) = (false, true);
            self.machine.vcpus[vcpu].since_ns = now_ns;
            self.machine.wakes(vcpu);
            self.machine.emit(TraceEvent::Runnable { vcpu });
            self.scheduler.wake(&mut self.machine, vcpu);
            self.settle();
            self.poll(self.machine.vcpus[vcpu].pcpu);
            self.settle();
        }
        self.time_limit(limit);
    }

    /// Those that rest at the end have done so until then.
    pub(crate) fn finish_rests(&mut self) {
        let now_ns = self.machine.now_ns;
        for limit in &self.cpu_limits.limits {
            for &vcpu in &limit.resting {
                self.measured.rested(limit.vm, now_ns, self.cpu_limits.vcpus[vcpu].rests_since_ns);
            }
        }
    }
}
