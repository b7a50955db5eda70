//! The micro pool: which vCPUs wait for a micro slice, on which pCPU, and what follows when it is over
//! (paper, section 5; on a real host: `bpf/mechanisms/micro_pool.bpf.h`).
//!
//! Problem.   A vCPU that holds up its siblings waits for a turn of many milliseconds, and needs one of some
//!            microseconds.
//! Mechanism. The last pCPUs of the host are micro-sliced: each has a place for one that waits, which has a
//!            micro slice there. Another mechanism may serve it elsewhere (`home_slices.rs`); the place is
//!            then that pCPU's.
//! Limits.    Nothing cuts a micro slice short but its vCPU. A vCPU that finds all places taken waits where
//!            it was.

use super::*;
use std::rc::Rc;

/// What the micro pool keeps of a vCPU.
#[derive(Clone, Copy)]
struct Member {
    /// Queued for a micro slice on this pCPU, or running one there; or `NONE`.
    pcpu: PcpuId,
    /// Where it goes back to.
    home: PcpuId,
    /// When it began to run on that pCPU.
    began_ns: u64,
    /// Why it is there.
    cause: Cause,
}

impl Member {
    const NOT_ONE: Self = Self { pcpu: PcpuId::NONE, home: PcpuId::NONE, began_ns: 0, cause: Cause::None };
}

pub(super) struct MicroPool {
    slice_ns: u64,
    /// The pCPUs that may be micro-sliced, the first to be so first.
    order: Rc<[PcpuId]>,
    /// How many of them are.
    count: usize,
    has: IdVec<PcpuId, bool>,
    /// The vCPU that waits for a micro slice on each pCPU: at most one.
    waiting: IdVec<PcpuId, Option<VcpuId>>,
    members: IdVec<VcpuId, Member>,
}

/// The host's last pCPUs, so that the normal pool's numbers stay. Those that a vCPU is pinned to are left
/// out, and so is the last one that is left to a VM.
fn may_be_micro_sliced(machine: &Machine) -> Rc<[PcpuId]> {
    let mut is_pinned_to: IdVec<PcpuId, bool> = IdVec::of(false, machine.pcpus.len());
    machine.vms.iter().flat_map(|vm| &vm.pins).for_each(|&pcpu| is_pinned_to[pcpu] = true);
    // Those that some VM may run on, of all that are left.
    let narrow = machine.vms.iter().filter(|vm| !vm.affinity.is_empty());
    let count = |vm: &HostVm| vm.affinity.iter().filter(|&&allowed| allowed).count();
    let mut left: Vec<_> = narrow.map(|vm| (vm, count(vm))).collect();
    let mut may_be = |&pcpu: &PcpuId| {
        let leaves_one = |&(vm, left): &(&HostVm, usize)| left > 1 || !vm.allows(pcpu);
        let may_be = !is_pinned_to[pcpu] && left.iter().all(leaves_one);
        left.iter_mut().filter(|(vm, _)| may_be && vm.allows(pcpu)).for_each(|(_, left)| *left -= 1);
        may_be
    };
    let last = PcpuId::new(1).until(machine.pcpus.next_id()).rev();
    last.filter(&mut may_be).take(microslice_policy::POOL_LIMIT_MAX).collect()
}

impl MicroPool {
    pub fn new(slice_ns: u64, machine: &Machine) -> Self {
        Self {
            slice_ns,
            order: may_be_micro_sliced(machine),
            count: 0,
            has: IdVec::of(false, machine.pcpus.len()),
            waiting: IdVec::of(None, machine.pcpus.len()),
            members: IdVec::of(Member::NOT_ONE, machine.vcpus.len()),
        }
    }

    pub fn slice_ns(&self) -> u64 {
        self.slice_ns
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// The most that there can be.
    pub fn count_max(&self) -> usize {
        self.order.len()
    }

    /// The one that became one last comes first.
    pub fn pcpus(&self) -> impl Iterator<Item = PcpuId> + Clone + use<> {
        let order = self.order.clone();
        (0..self.count).rev().map(move |at| order[at])
    }

    #[inline]
    pub fn has(&self, pcpu: PcpuId) -> bool {
        self.has[pcpu]
    }

    /// One more pCPU is micro-sliced from now on.
    pub fn grow(&mut self) -> PcpuId {
        let pcpu = self.order[self.count];
        self.count += 1;
        self.has[pcpu] = true;
        pcpu
    }

    /// The last one isn't any longer.
    pub fn shrink(&mut self) -> PcpuId {
        self.count -= 1;
        let pcpu = self.order[self.count];
        self.has[pcpu] = false;
        pcpu
    }

    /// The vCPU that has a micro slice next on this pCPU.
    pub fn next_on(&self, pcpu: PcpuId) -> Option<VcpuId> {
        self.waiting[pcpu]
    }

    pub fn take_next(&mut self, pcpu: PcpuId) -> Option<VcpuId> {
        self.waiting[pcpu].take()
    }

    /// Whether it is queued for a micro slice on this pCPU, or runs one there.
    pub fn is_member(&self, vcpu: VcpuId, pcpu: PcpuId) -> bool {
        self.members[vcpu].pcpu == pcpu
    }

    /// Likewise, on whichever.
    pub fn is_accelerated(&self, vcpu: VcpuId) -> bool {
        self.members[vcpu].pcpu != PcpuId::NONE
    }

    pub fn policy_state(&self, machine: &Machine, vcpu: VcpuId) -> policy::VcpuState {
        let is_accelerated = self.is_accelerated(vcpu);
        match machine.vcpus[vcpu].state {
            VcpuState::Blocked => policy::VcpuState::Blocked,
            VcpuState::Running if is_accelerated => policy::VcpuState::Micro,
            VcpuState::Running => policy::VcpuState::Running,
            VcpuState::Runnable if is_accelerated => policy::VcpuState::Pending,
            VcpuState::Runnable => policy::VcpuState::Runnable,
        }
    }

    pub fn cause_of(&self, vcpu: VcpuId) -> Cause {
        self.members[vcpu].cause
    }

    /// Why it will be there, if it comes.
    pub fn set_cause(&mut self, vcpu: VcpuId, cause: Cause) {
        self.members[vcpu].cause = cause;
    }

    pub fn began_ns(&self, vcpu: VcpuId) -> u64 {
        self.members[vcpu].began_ns
    }

    /// It has a micro slice next, on this pCPU.
    fn enter(&mut self, vcpu: VcpuId, pcpu: PcpuId, home: PcpuId) {
        let member = &mut self.members[vcpu];
        (member.pcpu, member.home) = (pcpu, home);
        self.waiting[pcpu] = Some(vcpu);
    }

    /// Returns where it goes back to.
    fn leave(&mut self, vcpu: VcpuId) -> PcpuId {
        let member = &mut self.members[vcpu];
        member.pcpu = PcpuId::NONE;
        member.home
    }
}

#[cfg(test)]
impl MicroPool {
    pub fn set_next_on(&mut self, pcpu: PcpuId, vcpu: Option<VcpuId>) {
        self.waiting[pcpu] = vcpu;
    }
}

/// The interrupt that a request is about, as the bit that waits in the local APIC.
pub fn interrupt_of(cause: Cause) -> u8 {
    match cause {
        Cause::ReschedIpi => interrupt_bit(InterruptKind::IpiReschedule),
        Cause::CallFunctionIpi => interrupt_bit(InterruptKind::IpiCallFunction),
        Cause::Virq => interrupt_bit(InterruptKind::Virq),
        _ => 0,
    }
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    Granted,
    NoRoom,
    LeftQueue,
    VmAhead,
}

impl<Normal: Core> MicroSliced<Normal> {
    pub(super) fn policy_state(&self, machine: &Machine, vcpu: VcpuId) -> policy::VcpuState {
        self.pool.policy_state(machine, vcpu)
    }

    /// A micro pCPU that would serve it at once; or else a pCPU of the normal pool; or else a micro pCPU with
    /// room.
    pub(super) fn place(&mut self, machine: &Machine, vcpu: VcpuId) -> Option<PcpuId> {
        self.micro_place(machine, vcpu, true)
            .or_else(|| self.home_for(machine, vcpu))
            .or_else(|| self.micro_place(machine, vcpu, false))
    }

    fn micro_place(&mut self, machine: &Machine, vcpu: VcpuId, free_only: bool) -> Option<PcpuId> {
        if machine.is_pinned(vcpu) {
            return None;
        }
        for pcpu in self.pool.pcpus() {
            if free_only && !self.is_free(machine, pcpu) {
                continue;
            }
            if self.has_room_on(pcpu) {
                return Some(pcpu);
            }
            self.asked_again.note_turned_away(pcpu, machine.vcpus[vcpu].vm);
        }
        None
    }

    pub(super) fn has_room_on(&self, pcpu: PcpuId) -> bool {
        self.has_room(self.pool.next_on(pcpu).is_some())
    }

    pub(super) fn has_room(&self, is_taken: bool) -> bool {
        let seen = PlacementObservation { queued_count: u32::from(is_taken), affinity_allows: 1 };
        policy::decide_on_placement(&self.rules, &seen) == PlacementDecision::Queue
    }

    /// Moves a waiting vCPU of the normal pool to a pCPU that has a micro slice for it, if there is one.
    pub(super) fn accelerate(&mut self, machine: &mut Machine, vcpu: VcpuId, cause: Cause) -> Request {
        if policy::vm_ahead_is_refused(&self.rules, cause)
            && self.normal.is_ahead_of_waiting_vcpus(machine, vcpu)
        {
            machine.pool.count_failed_pulls(cause, FailedPull::VmAhead, 1);
            return Request::VmAhead;
        }
        let Some(pcpu) = self.place(machine, vcpu) else {
            self.asked_again.note_first_turned_away(machine.vcpus[vcpu].vm, vcpu);
            machine.pool.count_failed_pulls(cause, FailedPull::QueueFull, 1);
            return Request::NoRoom;
        };
        self.request(machine, vcpu, pcpu, cause)
    }

    /// Moves a waiting vCPU of the normal pool to this pCPU, for a micro slice.
    pub(super) fn request(
        &mut self,
        machine: &mut Machine,
        vcpu: VcpuId,
        pcpu: PcpuId,
        cause: Cause,
    ) -> Request {
        if !self.normal.take_out(machine, vcpu) {
            machine.pool.count_failed_pulls(cause, FailedPull::LeftQueue, 1);
            return Request::LeftQueue;
        }
        self.pool.set_cause(vcpu, cause);
        self.enter(machine, vcpu, pcpu);
        Request::Granted
    }

    /// A runnable vCPU, in no queue of the normal pool, waits for a micro slice on this pCPU from now on.
    pub(super) fn enter(&mut self, machine: &mut Machine, vcpu: VcpuId, pcpu: PcpuId) {
        let class = machine.vcpus[vcpu].class;
        let cause = self.pool.cause_of(vcpu);
        machine.set_requested(vcpu, true);
        self.pool.enter(vcpu, pcpu, machine.vcpus[vcpu].pcpu);
        machine.pool.count_acceleration(class, cause);
        machine.emit(TraceEvent::Accelerated { vcpu, pcpu, cause, class });
        if self.is_free(machine, pcpu) || !self.pool.has(pcpu) {
            machine.request_schedule(pcpu);
        }
    }

    /// Ends a membership: the vCPU is the normal pool's again.
    fn leave(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        let home = self.pool.leave(vcpu);
        machine.set_requested(vcpu, false);
        machine.vcpus[vcpu].pcpu = home;
        machine.count_return(vcpu);
        machine.emit(TraceEvent::ReturnedToNormalPool { vcpu, pcpu: home });
    }

    pub(super) fn give_back(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        self.leave(machine, vcpu);
        self.normal.put_back(machine, vcpu);
        self.normal.tickle(machine, vcpu);
    }

    /// Its turn there has ended: the normal pool accounts for it.
    pub(super) fn account(&mut self, machine: &Machine, vcpu: VcpuId) {
        self.normal.charge(machine.now_ns, vcpu);
        if machine.vcpus[vcpu].state == VcpuState::Blocked {
            self.normal.blocked(vcpu);
        }
    }

    /// A micro pCPU chooses: one that waits for it, a woken one, or one that the core lends it to.
    pub(super) fn first_on_micro_pcpu(
        &mut self,
        machine: &mut Machine,
        pcpu: PcpuId,
        stopped: Option<Stopped>,
    ) -> First {
        // As sched_ext does, it chooses before the vCPU whose micro slice is over can be asked for again.
        let mut next = self.pool.take_next(pcpu);
        self.ask_again(machine, pcpu);
        if next.is_none() {
            next = self.take_woken(machine, pcpu);
        }
        let borrower = stopped.filter(|&(vcpu, _)| self.lends && !self.pool.is_member(vcpu, pcpu));
        if borrower.is_some() && next.is_none() {
            return First::Core(borrower);
        }
        if let Some((vcpu, reason)) = stopped {
            self.account(machine, vcpu);
            if self.pool.is_member(vcpu, pcpu) {
                self.end_micro_slice(machine, vcpu, pcpu);
            } else if machine.vcpus[vcpu].state == VcpuState::Blocked {
                // It comes back when it wakes.
            } else if borrower.is_some() {
                self.call_back(machine, vcpu, pcpu);
            } else {
                self.evict(machine, vcpu, pcpu, reason);
            }
        }
        match next.or_else(|| self.pool.take_next(pcpu)) {
            None if self.lends => First::Core(None),
            next => First::Mechanisms(next.map(|vcpu| self.begin_micro_slice(machine, pcpu, vcpu))),
        }
    }

    pub(super) fn begin_micro_slice(&mut self, machine: &mut Machine, pcpu: PcpuId, vcpu: VcpuId) -> Pick {
        self.normal.set_idle(pcpu, false);
        self.normal.begin_run(machine.now_ns, vcpu);
        machine.vcpus[vcpu].pcpu = pcpu;
        self.pool.members[vcpu].began_ns = machine.now_ns;
        self.for_a_micro_slice(machine, vcpu)
    }

    pub(super) fn for_a_micro_slice(&self, machine: &Machine, vcpu: VcpuId) -> Pick {
        Pick { vcpu, slice_end_ns: machine.now_ns + self.pool.slice_ns }
    }

    /// A micro slice isn't cut short by anything but its vCPU.
    pub(super) fn goes_on_with_micro_slice(
        &self,
        machine: &Machine,
        pcpu: PcpuId,
        (vcpu, reason): Stopped,
    ) -> Option<Pick> {
        let slice_end_ns = machine.pcpus[pcpu].slice_end_ns;
        let goes_on = self.pool.is_member(vcpu, pcpu)
            && self.outlives_stay(pcpu)
            && machine.vcpus[vcpu].state != VcpuState::Blocked
            && machine.now_ns < slice_end_ns
            && reason == StopReason::Preempted;
        goes_on.then_some(Pick { vcpu, slice_end_ns })
    }

    /// A micro slice is over, one way or another.
    pub(super) fn end_micro_slice(&mut self, machine: &mut Machine, vcpu: VcpuId, pcpu: PcpuId) {
        let host = &machine.vcpus[vcpu];
        let (cause, began_ns) = (self.pool.cause_of(vcpu), self.pool.began_ns(vcpu));
        let blocked = host.state == VcpuState::Blocked;
        let answer = self.answers.answer_of(host.owes_answer);
        let awaited = self.awaited_interrupts(interrupt_of(cause));
        let seen = MicroSliceObservation {
            guest_class: host.class.into(),
            interrupt_pending: u32::from(host.pending_interrupts & awaited != 0),
            blocked: u32::from(blocked),
            retry_count: self.asked_again.retries(vcpu),
            answer: answer.into(),
            reserved: 0,
        };
        let decision = policy::decide_after_micro_slice(&self.rules, &seen);
        let outcome = decision.outcome.get();
        if matches!(outcome, Some(MicroSliceOutcome::StillCritical | MicroSliceOutcome::Unhandled)) {
            machine.pool.slice_ended_unfinished += 1;
        }
        machine.pool.micro_slices.record(machine.now_ns - began_ns);
        if self.pool.has(pcpu) {
            self.pool_size.was_busy(began_ns, machine.now_ns);
        }
        machine.pcpus[pcpu].slice_end_ns = u64::MAX;
        self.leave(machine, vcpu);
        self.new_turn(machine, vcpu, pcpu);
        if blocked {
            self.blocks_in_pool(vcpu, pcpu);
        } else {
            self.forgives(vcpu);
            self.normal.put_back(machine, vcpu);
            self.normal.tickle(machine, vcpu);
        }
        self.asked_again.count_retry(vcpu, decision.retry != 0);
        if decision.retry != 0 && cause != Cause::MaxWait {
            let cause = if answer == SiblingAnswer::Owed { Cause::CallFunctionIpi } else { cause };
            self.accelerate(machine, vcpu, cause);
        }
    }
}
