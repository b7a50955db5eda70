//! Urgent vCPUs over CFS, as `policy/urgent.h` decides: a FIFO on each pCPU, over its queue.
//!
//! An urgent vCPU that waits stands in line as well as in CFS's queue. Clocks are compared where CFS compares
//! them: siblings' own, else their groups' (`find_matching_se`). Protection is given when another vCPU asks
//! for the pCPU: the present one goes on until its slice is over.

use super::Cfs;
use super::knobs::Knobs;
use crate::config::Coordination;
use crate::events::{IpiKind, TraceEvent};
use crate::ids::{IdVec, PcpuId, VcpuId};
use crate::machine::{Machine, VcpuState};
use microslice_policy::coordinated::{
    self, CalledDecision, CalledObservation, CallerObservation, IpiObservation, UrgentConfig, UrgentDecision,
    UrgentObservation, UrgentState,
};
use microslice_policy::{Code, InterruptKind};
use std::collections::VecDeque;

pub struct Urgent {
    pub(super) config: UrgentConfig,
    pub knobs: Knobs,
    states: IdVec<VcpuId, UrgentState>,
    /// When each vCPU sent its last shootdown.
    called_ns: IdVec<VcpuId, Option<u64>>,
    /// Which vCPUs are urgent, as far as observers know.
    told: IdVec<VcpuId, bool>,
    pub(super) lines: IdVec<PcpuId, VecDeque<VcpuId>>,
    /// Since when the vCPU there is urgent without a break in its turn, if it is.
    since_ns: IdVec<PcpuId, Option<u64>>,
}

impl Urgent {
    pub fn new(coordination: &Coordination, machine: &Machine) -> Self {
        Self {
            config: UrgentConfig {
                delay_ns: coordination.delay_ns,
                slice_ns: coordination.urgent_slice_ns,
                allowance_ns: coordination.urgent_allowance_ns,
                ..UrgentConfig::PAPER
            },
            knobs: Knobs::new(coordination, machine),
            states: IdVec::of(UrgentState::default(), machine.vcpus.len()),
            called_ns: IdVec::of(None, machine.vcpus.len()),
            told: IdVec::of(false, machine.vcpus.len()),
            lines: IdVec::of(VecDeque::new(), machine.pcpus.len()),
            since_ns: IdVec::of(None, machine.pcpus.len()),
        }
    }

    pub fn charge(&mut self, vcpu: VcpuId, ran_ns: u64) {
        self.states[vcpu] = self.states[vcpu].charged(ran_ns);
    }

    /// The model's guests acknowledge with their answer.
    pub fn acknowledge(&mut self, vcpu: VcpuId, another_waits: bool) {
        self.states[vcpu] = self.states[vcpu].acknowledged(&self.config, another_waits);
    }

    /// A pause-loop exit.
    pub fn spins(&mut self, vcpu: VcpuId) {
        self.states[vcpu] = self.states[vcpu].after_ple();
    }

    /// Its turn is over, and it waits on.
    pub fn goes_behind(&mut self, machine: &mut Machine, pcpu: PcpuId, vcpu: VcpuId) {
        self.tell(machine, vcpu);
        if self.states[vcpu].is_urgent() {
            self.queue(machine, pcpu, vcpu);
        }
    }

    /// Observers learn that it isn't urgent any longer.
    pub fn tell(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        if self.told[vcpu] && !self.states[vcpu].is_urgent() {
            self.told[vcpu] = false;
            machine.emit(TraceEvent::UrgencyEnded { vcpu });
        }
    }

    /// Until when the vCPU there keeps its pCPU, if it does.
    pub fn protected_until(&self, now_ns: u64, pcpu: PcpuId, vcpu: VcpuId) -> Option<u64> {
        let since_ns = self.since_ns[pcpu]?;
        let is_protected = coordinated::is_protected(&self.config, &self.states[vcpu], now_ns - since_ns);
        is_protected.then_some(since_ns + self.config.slice_ns)
    }

    /// Whether the vCPU there is urgent, and has been since its turn began or it was asked to be.
    pub fn is_slice(&self, pcpu: PcpuId) -> bool {
        self.since_ns[pcpu].is_some()
    }

    /// Its turn begins; returns when it is looked at again.
    pub fn begins(&mut self, machine: &mut Machine, pcpu: PcpuId, vcpu: VcpuId) -> u64 {
        self.unqueue(machine, pcpu, vcpu);
        let is_urgent = self.states[vcpu].is_urgent();
        self.since_ns[pcpu] = is_urgent.then_some(machine.now_ns);
        if is_urgent { machine.now_ns + self.config.slice_ns } else { u64::MAX }
    }

    fn queue(&mut self, machine: &mut Machine, pcpu: PcpuId, vcpu: VcpuId) {
        self.lines[pcpu].push_back(vcpu);
        machine.emit(TraceEvent::UrgentQueued { vcpu, pcpu });
    }

    fn unqueue(&mut self, machine: &mut Machine, pcpu: PcpuId, vcpu: VcpuId) {
        let line = &mut self.lines[pcpu];
        let before = line.len();
        line.retain(|&waiter| waiter != vcpu);
        if line.len() < before {
            machine.emit(TraceEvent::UrgentUnqueued { vcpu, pcpu });
        }
    }

    /// It was asked to be urgent, or asked itself.
    fn requested(&mut self, machine: &mut Machine, vcpu: VcpuId, state: UrgentState) {
        if state != self.states[vcpu] {
            self.told[vcpu] = true;
            machine.emit(TraceEvent::UrgencyRequested { vcpu });
        }
        self.states[vcpu] = state;
        let host = &machine.vcpus[vcpu];
        if host.state == VcpuState::Running && state.is_urgent() {
            let since_ns = &mut self.since_ns[host.pcpu];
            *since_ns = since_ns.or(Some(machine.now_ns));
        }
    }
}

impl Cfs {
    /// Early delayed preemption: an IPI of some kind is going to be sent.
    pub(super) fn request_early(&mut self, machine: &mut Machine, from: VcpuId) {
        let schemes = self.urgent.knobs.schemes_of(self.tasks[from].vm);
        if schemes & coordinated::EARLY_DP == 0 {
            return;
        }
        self.charge(machine.now_ns, machine.vcpus[from].pcpu);
        let urgent = &mut self.urgent;
        let state = coordinated::decide_on_ipi_begun(&urgent.config, &urgent.states[from], schemes);
        urgent.requested(machine, from, state);
    }

    /// An IPI is about to be sent.
    pub(super) fn request_urgency(&mut self, machine: &mut Machine, from: VcpuId, to: VcpuId, kind: IpiKind) {
        let vm = self.tasks[from].vm;
        let kind = match kind {
            IpiKind::Reschedule => InterruptKind::IpiReschedule,
            IpiKind::CallFunction => InterruptKind::IpiCallFunction,
            IpiKind::LockKick => return,
        };
        if kind == InterruptKind::IpiReschedule {
            self.urgent.knobs.count_resched_ipi(vm);
        } else {
            self.urgent.called_ns[from] = Some(machine.now_ns);
        }
        let on = machine.vcpus[from].pcpu;
        self.charge(machine.now_ns, on);
        let urgent = &mut self.urgent;
        let [sender, recipient] = [from, to].map(|vcpu| urgent.states[vcpu]);
        let schemes = urgent.knobs.schemes_of(vm);
        let seen =
            IpiObservation { sender, recipient, kind: Code::from(kind), schemes, ..Default::default() };
        let decision = coordinated::decide_on_ipi(&urgent.config, &seen);
        urgent.requested(machine, from, decision.sender);
        urgent.requested(machine, to, decision.recipient);
        if machine.vcpus[to].state == VcpuState::Runnable {
            self.line_up(machine, to);
        }
    }

    /// A vCPU that waits may have become urgent, or have come here.
    pub(super) fn line_up(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        let pcpu = machine.vcpus[vcpu].pcpu;
        if !self.urgent.states[vcpu].is_urgent() || self.urgent.lines[pcpu].contains(&vcpu) {
            return;
        }
        self.urgent.queue(machine, pcpu, vcpu);
        self.charge(machine.now_ns, pcpu);
        let seen = self.seen_beside_current(machine.now_ns, pcpu, vcpu);
        if coordinated::decide_on_urgent(&self.urgent.config, &seen) == UrgentDecision::Preempts {
            machine.request_schedule(pcpu);
        }
    }

    /// Whether a vCPU keeps its pCPU at a pause-loop exit: it has sent a shootdown, and all that owe it an
    /// answer run, or come urgently (4.3).
    pub(super) fn spins_for_answers(&mut self, machine: &mut Machine, vcpu: VcpuId, on: PcpuId) -> bool {
        let vm = self.tasks[vcpu].vm;
        let schemes = self.urgent.knobs.schemes_of(vm);
        let Some(called_ns) = self.urgent.called_ns[vcpu].filter(|_| schemes & coordinated::TLB_SPIN != 0)
        else {
            return false;
        };
        let waited_ns = machine.now_ns - called_ns;
        let mut seen = CallerObservation { waited_ns, schemes, ..Default::default() };
        let siblings = machine.vms[vm].first_vcpu.span(machine.vms[vm].vcpus);
        for sibling in siblings.filter(|&sibling| sibling != vcpu) {
            match self.decision_on_called(machine, sibling, on) {
                CalledDecision::OwesNothing => {}
                CalledDecision::Comes => seen.coming_count += 1,
                CalledDecision::IsLate => seen.late_count += 1,
            }
        }
        coordinated::caller_keeps_pcpu(&self.urgent.config, &seen)
    }

    /// Clocks have gone on since it was called: who was refused then may come now.
    fn decision_on_called(
        &mut self,
        machine: &mut Machine,
        vcpu: VcpuId,
        of_caller: PcpuId,
    ) -> CalledDecision {
        let (pcpu, state) = (machine.vcpus[vcpu].pcpu, machine.vcpus[vcpu].state);
        self.charge(machine.now_ns, pcpu);
        let urgent = self.seen_beside_current(machine.now_ns, pcpu, vcpu);
        let waits_elsewhere = state == VcpuState::Runnable && pcpu != of_caller;
        let seen = CalledObservation {
            urgent,
            runs: (state == VcpuState::Running).into(),
            waits_elsewhere: waits_elsewhere.into(),
        };
        let preempts =
            coordinated::decide_on_urgent(&self.urgent.config, &urgent) == UrgentDecision::Preempts;
        if waits_elsewhere && preempts {
            machine.request_schedule(pcpu);
        }
        coordinated::decide_on_called(&self.urgent.config, &seen)
    }

    /// A waiting vCPU is about to be moved away.
    pub(super) fn leave_line(&mut self, machine: &mut Machine, pcpu: PcpuId, vcpu: VcpuId) {
        self.urgent.unqueue(machine, pcpu, vcpu);
    }

    /// An urgent vCPU beside the one that runs there, if any.
    fn seen_beside_current(&self, now_ns: u64, pcpu: PcpuId, vcpu: VcpuId) -> UrgentObservation {
        let current = self.roots[pcpu].current;
        let since_ns = self.urgent.since_ns[pcpu]
            .filter(|_| current != VcpuId::NONE && self.urgent.states[current].is_urgent());
        UrgentObservation {
            current_ran_ns: since_ns.map_or(0, |since_ns| now_ns - since_ns),
            current_is_urgent: since_ns.is_some().into(),
            ..self.seen_beside(pcpu, vcpu, current)
        }
    }

    /// An urgent vCPU beside another one, which may be `NONE`, and isn't urgent.
    fn seen_beside(&self, pcpu: PcpuId, vcpu: VcpuId, other: VcpuId) -> UrgentObservation {
        let exists = other != VcpuId::NONE;
        let [vtime_ns, current_vtime_ns] = if exists { self.clocks(pcpu, vcpu, other) } else { [0, 0] };
        UrgentObservation {
            state: self.urgent.states[vcpu],
            vtime_ns,
            current_vtime_ns,
            current_exists: exists.into(),
            ..Default::default()
        }
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

    /// The first in line that may go before the one that CFS would pick. It leaves the line and its group's
    /// queue.
    pub(super) fn pick_urgent(&mut self, machine: &mut Machine, pcpu: PcpuId) -> Option<VcpuId> {
        let line = &self.urgent.lines[pcpu];
        if line.is_empty() {
            return None;
        }
        let first = self.least(pcpu);
        for at in 0..line.len() {
            let vcpu = self.urgent.lines[pcpu][at];
            let seen = self.seen_beside(pcpu, vcpu, first);
            let ahead_ns = seen.vtime_ns.saturating_sub(seen.current_vtime_ns);
            if coordinated::decide_on_urgent(&self.urgent.config, &seen) == UrgentDecision::Preempts {
                machine.emit(TraceEvent::UrgentServed { vcpu, pcpu, ahead_ns });
                self.urgent.lines[pcpu].remove(at);
                self.groups.of_mut(pcpu, self.tasks[vcpu].vm).waiting.retain(|&waiter| waiter != vcpu);
                return Some(vcpu);
            }
            machine.emit(TraceEvent::UrgentRefused { vcpu, pcpu, ahead_ns });
        }
        None
    }

    /// The vCPU that has had the least of the group that has had the least.
    fn least(&self, pcpu: PcpuId) -> VcpuId {
        let groups = self.roots[pcpu].groups.iter();
        let waiting = groups.filter(|&&vm| !self.groups.of(pcpu, vm).waiting.is_empty());
        let vm = waiting.min_by_key(|&&vm| self.groups.of(pcpu, vm).vruntime_ns);
        let of_group = vm.map(|&vm| self.groups.of(pcpu, vm).waiting.iter());
        let least = of_group.and_then(|waiting| waiting.min_by_key(|&&vcpu| self.tasks[vcpu].vruntime_ns));
        least.copied().unwrap_or(VcpuId::NONE)
    }
}
