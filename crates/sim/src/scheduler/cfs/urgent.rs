//! Urgent vCPUs over CFS, as `policy/urgent.h` decides: a FIFO on each pCPU, over its queue.
//!
//! Who is urgent and waits stands in line as well as in CFS's queue. Clocks are compared where CFS compares them: siblings' own, else
//! their groups' (`find_matching_se`). Protection is given when somebody asks for the pCPU: its vCPU goes on until its slice is over.

use super::Cfs;
use crate::config::Coordination;
use crate::ids::{IdVec, PcpuId, VcpuId};
use crate::machine::{Machine, VcpuState};
use crate::trace_event::IpiKind;
use microslice_policy::coordinated::{
    self, IpiObservation, RESCHED_CO, RESCHED_DP, TLB_CO, UrgentConfig, UrgentDecision, UrgentObservation,
    UrgentState,
};
use microslice_policy::{Code, InterruptKind};
use std::collections::VecDeque;

pub struct Urgent {
    config: UrgentConfig,
    schemes: u32,
    states: IdVec<VcpuId, UrgentState>,
    lines: IdVec<PcpuId, VecDeque<VcpuId>>,
    /// Since when who runs there is urgent without a break in its turn, if it is.
    since_ns: IdVec<PcpuId, Option<u64>>,
}

impl Urgent {
    pub fn new(coordination: &Coordination, machine: &Machine) -> Self {
        let &Coordination { resched_dp, tlb_co, resched_co, .. } = coordination;
        let bit = |on: bool, bit: u32| if on { bit } else { 0 };
        Self {
            config: UrgentConfig {
                delay_ns: coordination.delay_ns,
                slice_ns: coordination.urgent_slice_ns,
                allowance_ns: coordination.urgent_allowance_ns,
            },
            schemes: bit(resched_dp, RESCHED_DP) | bit(tlb_co, TLB_CO) | bit(resched_co, RESCHED_CO),
            states: IdVec::of(UrgentState::default(), machine.vcpus.len()),
            lines: IdVec::of(VecDeque::new(), machine.pcpus.len()),
            since_ns: IdVec::of(None, machine.pcpus.len()),
        }
    }

    pub fn charge(&mut self, vcpu: VcpuId, ran_ns: u64) {
        self.states[vcpu] = self.states[vcpu].charged(ran_ns);
    }

    pub fn acknowledge(&mut self, vcpu: VcpuId, another_waits: bool) {
        self.states[vcpu] = self.states[vcpu].acknowledged(another_waits);
    }

    /// A pause-loop exit.
    pub fn spins(&mut self, vcpu: VcpuId) {
        self.states[vcpu] = self.states[vcpu].after_ple();
    }

    /// Its turn is over, and it waits on.
    pub fn goes_behind(&mut self, pcpu: PcpuId, vcpu: VcpuId) {
        if self.states[vcpu].is_urgent() {
            self.lines[pcpu].push_back(vcpu);
        }
    }

    /// Until when who runs there keeps its pCPU, if it does.
    pub fn protected_until(&self, now_ns: u64, pcpu: PcpuId, vcpu: VcpuId) -> Option<u64> {
        let since_ns = self.since_ns[pcpu]?;
        let is_protected = coordinated::is_protected(&self.config, &self.states[vcpu], now_ns - since_ns);
        is_protected.then_some(since_ns + self.config.slice_ns)
    }

    /// Its turn begins; returns when it is looked at again.
    pub fn begins(&mut self, now_ns: u64, pcpu: PcpuId, vcpu: VcpuId) -> u64 {
        self.lines[pcpu].retain(|&waiter| waiter != vcpu);
        let is_urgent = self.states[vcpu].is_urgent();
        self.since_ns[pcpu] = is_urgent.then_some(now_ns);
        if is_urgent { now_ns + self.config.slice_ns } else { u64::MAX }
    }
}

impl Cfs {
    /// An IPI is about to be sent.
    pub(super) fn request_urgency(&mut self, machine: &mut Machine, from: VcpuId, to: VcpuId, kind: IpiKind) {
        let kind = match kind {
            IpiKind::Reschedule => InterruptKind::IpiReschedule,
            IpiKind::CallFunction => InterruptKind::IpiCallFunction,
            IpiKind::LockKick => return,
        };
        let on = machine.vcpus[from].pcpu;
        self.charge(machine.now_ns, on);
        let urgent = &mut self.urgent;
        let [sender, recipient] = [from, to].map(|vcpu| urgent.states[vcpu]);
        let schemes = urgent.schemes;
        let seen =
            IpiObservation { sender, recipient, kind: Code::from(kind), schemes, ..Default::default() };
        let decision = coordinated::decide_on_ipi(&urgent.config, &seen);
        (urgent.states[from], urgent.states[to]) = (decision.sender, decision.recipient);
        for vcpu in [from, to].into_iter().filter(|&vcpu| machine.vcpus[vcpu].state == VcpuState::Running) {
            let since_ns = &mut urgent.since_ns[machine.vcpus[vcpu].pcpu];
            if urgent.states[vcpu].is_urgent() {
                *since_ns = since_ns.or(Some(machine.now_ns));
            }
        }
        if machine.vcpus[to].state == VcpuState::Runnable {
            self.line_up(machine, to);
        }
    }

    /// A vCPU that waits may have become urgent.
    pub(super) fn line_up(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        let pcpu = machine.vcpus[vcpu].pcpu;
        if !self.urgent.states[vcpu].is_urgent() || self.urgent.lines[pcpu].contains(&vcpu) {
            return;
        }
        self.urgent.lines[pcpu].push_back(vcpu);
        self.charge(machine.now_ns, pcpu);
        let current = self.roots[pcpu].current;
        let since_ns = self.urgent.since_ns[pcpu]
            .filter(|_| current != VcpuId::NONE && self.urgent.states[current].is_urgent());
        let ran_ns = since_ns.map_or(0, |since_ns| machine.now_ns - since_ns);
        if self.decision_on(pcpu, vcpu, current, since_ns.is_some(), ran_ns) == UrgentDecision::Preempts {
            machine.request_schedule(pcpu);
        }
    }

    /// Whether an urgent vCPU goes before another one, which may be `NONE`.
    fn decision_on(
        &self,
        pcpu: PcpuId,
        vcpu: VcpuId,
        other: VcpuId,
        other_is_urgent: bool,
        other_ran_ns: u64,
    ) -> UrgentDecision {
        let exists = other != VcpuId::NONE;
        let clocks = if exists { self.clocks(pcpu, vcpu, other) } else { [0, 0] };
        let seen = UrgentObservation {
            state: self.urgent.states[vcpu],
            vtime_ns: clocks[0],
            current_vtime_ns: clocks[1],
            current_ran_ns: other_ran_ns,
            current_is_urgent: other_is_urgent.into(),
            current_exists: exists.into(),
        };
        coordinated::decide_on_urgent(&self.urgent.config, &seen)
    }

    /// find_matching_se: siblings' own runtimes, else those of their groups.
    fn clocks(&self, pcpu: PcpuId, vcpu: VcpuId, other: VcpuId) -> [u64; 2] {
        let vms = [vcpu, other].map(|vcpu| self.tasks[vcpu].vm);
        if vms[0] == vms[1] {
            [vcpu, other].map(|vcpu| self.tasks[vcpu].vruntime_ns)
        } else {
            vms.map(|vm| self.groups.of(pcpu, vm).vruntime_ns)
        }
    }

    /// The first in line that may go before the one that CFS would pick. It leaves its group's queue.
    pub(super) fn pick_urgent(&mut self, pcpu: PcpuId) -> Option<VcpuId> {
        let line = std::mem::take(&mut self.urgent.lines[pcpu]);
        let waits = |vcpu: &VcpuId| {
            let of_group = &self.groups.of(pcpu, self.tasks[*vcpu].vm).waiting;
            of_group.contains(vcpu) && self.urgent.states[*vcpu].is_urgent()
        };
        let line: VecDeque<VcpuId> = line.into_iter().filter(waits).collect();
        let first = if line.is_empty() { VcpuId::NONE } else { self.least(pcpu) };
        let mut found = line.iter().copied();
        let picked =
            found.find(|&vcpu| self.decision_on(pcpu, vcpu, first, false, 0) == UrgentDecision::Preempts);
        self.urgent.lines[pcpu] = line;
        let vcpu = picked?;
        self.groups.of_mut(pcpu, self.tasks[vcpu].vm).waiting.retain(|&waiter| waiter != vcpu);
        Some(vcpu)
    }

    /// Who has had the least of the group that has had the least.
    fn least(&self, pcpu: PcpuId) -> VcpuId {
        let groups = self.roots[pcpu].groups.iter();
        let waiting = groups.filter(|&&vm| !self.groups.of(pcpu, vm).waiting.is_empty());
        let vm = waiting.min_by_key(|&&vm| self.groups.of(pcpu, vm).vruntime_ns);
        let of_group = vm.map(|&vm| self.groups.of(pcpu, vm).waiting.iter());
        let least = of_group.and_then(|waiting| waiting.min_by_key(|&&vcpu| self.tasks[vcpu].vruntime_ns));
        least.copied().unwrap_or(VcpuId::NONE)
    }
}
