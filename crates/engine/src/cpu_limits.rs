//! `cpu.max`: what holds a VM to its quota, and when its vCPUs rest.
//!
//! Problem.   A tenant that pays for half a pCPU may not get four.
//! Mechanism. A vCPU that may not run leaves its scheduler's queue, and comes back like one that wakes. Which
//!            one that is, and for how long, is said
//!            - under kernels' own schedulers by CFS bandwidth control (`quota.rs`),
//!            - under sched_ext's by `policy/cpu_limit.h` (`turns.rs`).
//!            Either is asked when a vCPU gets on a pCPU, when it is scheduled and at the host's ticks.
//!            Limits of a VM are its own and those of the cgroups around it: all are charged and asked.
//! Limits.    No burst. What QEMU's own threads use isn't counted.

mod quota;
mod turns;

use self::quota::Quota;
use self::turns::{Asked, Clock, Turn};
use crate::simulation::Simulation;
use microslice_model::config::{CpuMax, SimulationConfig, cgroups_around};
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
    Clock(Clock),
}

/// A limit, and those that rest by it, in the order in which they came.
struct Limit {
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
    /// Where limits are kept by turns.
    turn: Turn,
}

pub(crate) struct CpuLimits {
    limits: Vec<Limit>,
    /// Of each VM, the places in `limits` of its own one and of those around it.
    of: IdVec<VmId, Vec<usize>>,
    vcpus: IdVec<VcpuId, Vcpu>,
    /// A turn's length without a limit, where limits are kept by turns.
    slice_ns: u64,
}

impl CpuLimits {
    pub fn new(config: &SimulationConfig, machine: &Machine) -> Self {
        let by_turns = config.scheduler.keeps_limits_by_turns();
        let mut limits = Vec::new();
        let mut add = |max: Option<CpuMax>| {
            let rule = match by_turns {
                Some(_) => Rule::Clock(Clock::new(&max?)),
                None => Rule::Quota(Quota::new(&max?, machine.pcpus.len())),
            };
            limits.push(Limit { rule, resting: Vec::new() });
            Some(limits.len() - 1)
        };
        let own: Vec<_> = config.vms.iter().map(|vm| add(vm.cpu_max)).collect();
        let of_cgroups: Vec<_> = config.cgroups.iter().map(|cgroup| add(cgroup.cpu_max)).collect();
        let of = config.vms.iter().zip(own).map(|(vm, own)| {
            let around = cgroups_around(&config.cgroups, vm.cgroup).filter_map(|at| of_cgroups[at]);
            own.into_iter().chain(around).collect()
        });
        let of = of.collect();
        let vcpus = if limits.is_empty() { 0 } else { machine.vcpus.len() };
        let vcpus = IdVec::of(Vcpu::default(), vcpus);
        Self { limits, of, vcpus, slice_ns: by_turns.unwrap_or(0) }
    }

    pub fn count(&self) -> usize {
        self.limits.len()
    }

    /// Whether a VM is limited, by itself or by a cgroup around it.
    pub fn has_any(&self, vm: VmId) -> bool {
        !self.of[vm].is_empty()
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

    /// Whether a vCPU has any limit.
    #[inline]
    fn limits_vcpu(&self, machine: &Machine, vcpu: VcpuId) -> bool {
        !self.limits.is_empty() && self.has_any(machine.vcpus[vcpu].vm)
    }

    /// What it ran on this pCPU until now is charged.
    fn charge(&mut self, machine: &Machine, vcpu: VcpuId, pcpu: PcpuId) {
        let (now_ns, state) = (machine.now_ns, &mut self.vcpus[vcpu]);
        let ran_ns = now_ns - std::mem::replace(&mut state.charged_until_ns, now_ns);
        let beyond_ns = ran_ns.saturating_sub(state.turn.left_ns);
        state.turn.left_ns = state.turn.left_ns.saturating_sub(ran_ns);
        for &at in &self.of[machine.vcpus[vcpu].vm] {
            match &mut self.limits[at].rule {
                Rule::Quota(quota) => quota.charge(pcpu, ran_ns),
                Rule::Clock(clock) => clock.charge(beyond_ns),
            }
        }
    }

    /// May it run? If not, also by which limit it rests.
    fn verdict(&mut self, machine: &Machine, vcpu: VcpuId, pcpu: PcpuId) -> (Verdict, usize) {
        let vm = machine.vcpus[vcpu].vm;
        let first = self.of[vm][0];
        if matches!(self.limits[first].rule, Rule::Clock(_)) {
            return (self.ask_clocks(machine, vcpu), first);
        }
        let of_vm = &self.of[vm];
        let mut refuses = of_vm.iter().filter(|&&at| match &mut self.limits[at].rule {
            Rule::Quota(quota) => quota.verdict(pcpu) == Verdict::Rests,
            Rule::Clock(_) => false,
        });
        match refuses.next() {
            Some(&at) => (Verdict::Rests, at),
            None => (Verdict::Runs { until_ns: u64::MAX }, first),
        }
    }

    /// `ask_limits`: the turn is as short as the tightest limit has it, and all of them are charged for it.
    fn ask_clocks(&mut self, machine: &Machine, vcpu: VcpuId) -> Verdict {
        let now_ns = machine.now_ns;
        let left_ns = self.vcpus[vcpu].turn.left_ns;
        if left_ns > 0 {
            return Verdict::Runs { until_ns: now_ns + left_ns };
        }
        let vm = machine.vcpus[vcpu].vm;
        let turn = Turn { left_ns: self.slice_ns, rests_until_ns: 0 };
        let mut asked = Asked { now_ns, active: self.active_of(machine, vm), turn };
        for &at in &self.of[vm] {
            if let Rule::Clock(clock) = &mut self.limits[at].rule {
                clock.ask(&mut asked);
            }
        }
        for &at in &self.of[vm] {
            if let Rule::Clock(clock) = &mut self.limits[at].rule {
                clock.charge(asked.turn.left_ns);
            }
        }
        self.vcpus[vcpu].turn = asked.turn;
        match asked.turn.rests_until_ns {
            0 => Verdict::Runs { until_ns: now_ns + asked.turn.left_ns },
            _ => Verdict::Rests,
        }
    }

    /// How many of a VM's vCPUs want to run.
    fn active_of(&self, machine: &Machine, vm: VmId) -> usize {
        let of_vm = &machine.vms[vm];
        let wants =
            |vcpu: &VcpuId| machine.vcpus[*vcpu].state != VcpuState::Blocked || self.vcpus[*vcpu].rests;
        of_vm.first_vcpu.span(of_vm.vcpus).filter(wants).count()
    }

    /// When a limit's timer is due.
    fn next_ns(&self, at: usize) -> u64 {
        let Limit { rule, resting } = &self.limits[at];
        match rule {
            Rule::Quota(quota) => quota.next_ns(),
            Rule::Clock(_) => {
                let rests_until = |&vcpu: &VcpuId| self.vcpus[vcpu].turn.rests_until_ns;
                resting.iter().map(rests_until).min().unwrap_or(u64::MAX)
            }
        }
    }
}

impl Simulation<'_> {
    /// The vCPU that runs here is about to be scheduled. Whether it rests instead of going on.
    pub(crate) fn is_throttled(&mut self, vcpu: VcpuId, pcpu: PcpuId) -> bool {
        if !self.cpu_limits.limits_vcpu(&self.machine, vcpu) {
            return false;
        }
        self.cpu_limits.charge(&self.machine, vcpu, pcpu);
        if self.machine.vcpus[vcpu].state != VcpuState::Running {
            return false;
        }
        match self.cpu_limits.verdict(&self.machine, vcpu, pcpu) {
            (Verdict::Runs { .. }, _) => false,
            (Verdict::Rests, limit) => {
                self.rest(limit, vcpu);
                true
            }
        }
    }

    /// It begins to run here, or goes on: until when, at most.
    pub(crate) fn limit_turn(&mut self, vcpu: VcpuId, pcpu: PcpuId) {
        if !self.cpu_limits.limits_vcpu(&self.machine, vcpu) {
            return;
        }
        self.cpu_limits.vcpus[vcpu].charged_until_ns = self.machine.now_ns;
        match self.cpu_limits.verdict(&self.machine, vcpu, pcpu) {
            (Verdict::Runs { until_ns }, _) => {
                let end_ns = &mut self.machine.pcpus[pcpu].slice_end_ns;
                *end_ns = until_ns.min(*end_ns);
            }
            (Verdict::Rests, limit) => {
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
        if !self.cpu_limits.limits_vcpu(&self.machine, vcpu) {
            return;
        }
        let blocked = self.machine.vcpus[vcpu].state == VcpuState::Blocked;
        let state = &mut self.cpu_limits.vcpus[vcpu];
        let left_ns = if state.rests { 0 } else { std::mem::take(&mut state.turn.left_ns) };
        for place in 0..self.cpu_limits.of[self.machine.vcpus[vcpu].vm].len() {
            let at = self.cpu_limits.of[self.machine.vcpus[vcpu].vm][place];
            let Limit { rule, resting } = &mut self.cpu_limits.limits[at];
            match rule {
                Rule::Quota(quota) if blocked => {
                    quota.give_back(self.machine.now_ns, pcpu, !resting.is_empty());
                }
                Rule::Quota(_) => {}
                Rule::Clock(clock) => clock.settle(left_ns),
            }
            self.time_limit(at);
        }
    }

    fn rest(&mut self, limit: usize, vcpu: VcpuId) {
        let state = &mut self.cpu_limits.vcpus[vcpu];
        (state.rests, state.rests_since_ns) = (true, self.machine.now_ns);
        self.cpu_limits.limits[limit].resting.push(vcpu);
        self.machine.blocks(vcpu);
        self.time_limit(limit);
    }

    pub(crate) fn time_limit(&mut self, limit: usize) {
        let (slot, next_ns) = (self.slots.limit(limit), self.cpu_limits.next_ns(limit));
        match next_ns {
            u64::MAX => self.timeline.cancel(slot),
            _ => self.timeline.set(slot, next_ns),
        }
    }

    /// A limit's timer: those that may run again come back.
    pub(crate) fn limit_event(&mut self, limit: usize) {
        let now_ns = self.machine.now_ns;
        let CpuLimits { limits, vcpus, .. } = &mut self.cpu_limits;
        let Limit { rule, resting } = &mut limits[limit];
        let resting_before = std::mem::take(resting);
        let (released, left): (Vec<_>, Vec<_>) = match rule {
            Rule::Quota(quota) => {
                quota.refill(now_ns);
                let place = |vcpu: VcpuId| self.machine.vcpus[vcpu].pcpu;
                resting_before.into_iter().partition(|&vcpu| quota.releases(place(vcpu)))
            }
            Rule::Clock(_) => {
                resting_before.into_iter().partition(|&vcpu| vcpus[vcpu].turn.rests_until_ns <= now_ns)
            }
        };
        *resting = left;
        for &vcpu in &released {
            if self.rests_by_another(vcpu) {
                continue;
            }
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

    /// One limit lets it go on. Whether it rests by another one of its VM's from now on.
    fn rests_by_another(&mut self, vcpu: VcpuId) -> bool {
        let host = &self.machine.vcpus[vcpu];
        let (pcpu, of_vm) = (host.pcpu, &self.cpu_limits.of[host.vm]);
        let is_its_only = of_vm.len() == 1;
        if is_its_only || matches!(self.cpu_limits.limits[of_vm[0]].rule, Rule::Clock(_)) {
            return false;
        }
        let (verdict, limit) = self.cpu_limits.verdict(&self.machine, vcpu, pcpu);
        if verdict == Verdict::Rests {
            self.cpu_limits.limits[limit].resting.push(vcpu);
        }
        verdict == Verdict::Rests
    }

    /// Those that rest at the end have done so until then.
    pub(crate) fn finish_rests(&mut self) {
        let now_ns = self.machine.now_ns;
        for limit in &self.cpu_limits.limits {
            for &vcpu in &limit.resting {
                let vm = self.machine.vcpus[vcpu].vm;
                self.measured.rested(vm, now_ns, self.cpu_limits.vcpus[vcpu].rests_since_ns);
            }
        }
    }
}
