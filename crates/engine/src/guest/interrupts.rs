//! Interrupts between vCPUs, and what waits for them: reschedule IPIs, call-function IPIs, TLB shootdowns.

use crate::guest::{Act, Frame, Then, ThreadState, pending};
use crate::simulation::{CACHE_LINE_NS, Simulation};
use crate::text;
use microslice_model::config::InterruptMode;
use microslice_model::events::{IpiKind, StopReason, TraceEvent};
use microslice_model::ids::{LockId, ThreadId, VcpuId, VmId, WorkloadId};
use microslice_model::machine::VcpuState;
use microslice_model::scheduler::WokenBy;
use microslice_policy::{InterruptKind, YieldCause};

/// Timer interrupt that wakes a sleeping thread: hrtimer_interrupt, or a block device's completion.
const TIMER_HANDLER_NS: u64 = 2_000;

/// So many vCPUs have a bit each in the ICR's destination (flat logical mode).
const FLAT_VCPUS_MAX: u32 = 8;

/// What a recipient beyond the first adds to a hypercall that calls many, in % of an IPI of its own. One
/// write to the ICR costs as much: the host wakes or kicks each one's thread.
/// Broadcasts to 79 vCPUs in x2APIC's physical mode took 7.8 s in place of 19.8 s (commit 4180bf1b655a, Linux
/// 4.19).
const PV_IPI_PERCENT: u64 = 39;

impl Simulation<'_> {
    pub(crate) fn count_ipi(&mut self, from: VcpuId, to: VcpuId, kind: IpiKind) {
        let vm = self.machine.vcpus[from].vm;
        if kind != IpiKind::LockKick {
            self.measured.count_ipi_sent(vm, kind == IpiKind::CallFunction);
        }
        self.machine.emit(TraceEvent::IpiSent { from, to, kind });
    }

    pub(crate) fn send_ipi(&mut self, from: VcpuId, to: VcpuId, kind: IpiKind) {
        let exits = self.ipi_exits(to);
        self.deliver_ipi(from, to, kind, exits);
        if exits {
            self.machine.leaves_guest(self.machine.vcpus[from].pcpu);
        }
    }

    /// `exits`: the host knows of it.
    fn deliver_ipi(&mut self, from: VcpuId, to: VcpuId, kind: IpiKind, exits: bool) {
        let (bit, meaning) = match kind {
            IpiKind::Reschedule => (pending::RESCHEDULE, InterruptKind::IpiReschedule),
            IpiKind::CallFunction => (pending::CALL_FUNCTION, InterruptKind::IpiCallFunction),
            IpiKind::LockKick => unreachable!("a kick wakes a vCPU, it interrupts nobody"),
        };
        // Interrupts of one kind merge while pending, as bits of the local APIC do.
        if self.guest[to].pending & bit == 0 {
            self.count_ipi(from, to, kind);
        }
        if exits {
            self.scheduler.ipi(&mut self.machine, from, to, kind);
        }
        self.raise(to, bit, Some(WokenBy::Interrupt(meaning)).filter(|_| exits));
    }

    /// Whether an IPI to that vCPU exits in its sender, now: the host knows of it.
    pub(crate) fn ipi_exits(&self, to: VcpuId) -> bool {
        let mode = self.config.host.kvm.as_ref().map_or(InterruptMode::Software, |kvm| kvm.interrupts);
        mode.exits(self.is_running(to))
    }

    /// What an IPI to that vCPU costs its sender, now.
    pub(crate) fn ipi_send_ns(&self, to: VcpuId) -> u64 {
        match &self.config.host.kvm {
            Some(kvm) if !self.ipi_exits(to) => kvm.icr_write_ns,
            _ => self.costs.ipi_send_ns,
        }
    }

    pub(crate) fn send_interrupt(&mut self, vcpu: VcpuId, bit: u8, kind: InterruptKind) {
        let is_posted =
            kind == InterruptKind::Virq && self.config.host.kvm.as_ref().is_some_and(|kvm| kvm.devices_post);
        if kind == InterruptKind::Virq && !is_posted {
            self.scheduler.device_interrupt();
        }
        self.raise(vcpu, bit, Some(WokenBy::Interrupt(kind)).filter(|_| !is_posted));
    }

    /// `seen`: what the host sees of it; it can read the bit all the same when it looks.
    fn raise(&mut self, vcpu: VcpuId, bit: u8, seen: Option<WokenBy>) {
        if bit == pending::CALL_FUNCTION {
            self.machine.set_owes_answer(vcpu, true);
        }
        let guest = &mut self.guest[vcpu];
        guest.pending |= bit;
        let deaf = guest.frames[0].act == Act::HaltLock && guest.frames[0].irqs_off || guest.depth > 0;
        match self.machine.vcpus[vcpu].state {
            VcpuState::Running => {
                self.sync(vcpu);
                if self.deliver(vcpu) {
                    self.retime(vcpu);
                }
            }
            VcpuState::Blocked if deaf => {}
            _ => {
                self.machine.vcpus[vcpu].pending_interrupts |= bit;
                self.wake_by(vcpu, seen);
            }
        }
    }

    /// An interrupt to a vCPU that doesn't run, or a lock's kick: a blocked one is woken first. It may wait
    /// on a runqueue then, instead of getting a pCPU at once. About that the policy is asked (paper, section
    /// 5: "the vCPU which is on the runqueue").
    pub(crate) fn wake_by(&mut self, vcpu: VcpuId, seen: Option<WokenBy>) {
        let was_blocked = self.machine.vcpus[vcpu].state == VcpuState::Blocked;
        self.wake_vcpu(vcpu);
        self.settle();
        if self.machine.vcpus[vcpu].state == VcpuState::Runnable {
            self.poll(self.machine.vcpus[vcpu].pcpu);
            self.settle();
        }
        if self.machine.vcpus[vcpu].state == VcpuState::Runnable {
            self.note_position(vcpu);
            match seen {
                Some(WokenBy::Interrupt(kind)) if !was_blocked => {
                    self.scheduler.interrupt(&mut self.machine, vcpu, kind)
                }
                Some(what) => self.scheduler.woken(&mut self.machine, vcpu, what),
                None => {}
            }
        }
    }

    /// Begins the handler of a pending interrupt, if the running vCPU may be interrupted now.
    #[inline]
    pub(crate) fn deliver(&mut self, vcpu: VcpuId) -> bool {
        let guest = &self.guest[vcpu];
        guest.pending != 0 && guest.depth == 0 && !guest.frames[0].irqs_off && self.deliver_pending(vcpu)
    }

    #[cold]
    fn deliver_pending(&mut self, vcpu: VcpuId) -> bool {
        // Blocked at this very instant: it is woken, and delivers when it runs.
        if self.machine.vcpus[vcpu].state != VcpuState::Running {
            return false;
        }
        // The woken vCPU took its pCPU, and another pCPU it. A handler between the halves of a step would be
        // taken for the step. It comes behind it.
        if self.within_step == vcpu {
            return false;
        }
        if self.halt_polling.polls(vcpu) {
            self.polled_with_success(vcpu);
        }
        let vm = self.machine.vcpus[vcpu].vm;
        let kernel = &self.vms[vm].kernel;
        let fixed = &self.texts[self.vms[vm].text].fixed;
        let waiting = self.guest[vcpu].pending;
        let calls_to_wake_only =
            self.is_modern && !self.wake_lists[vcpu].is_empty() && self.guest[vcpu].shootdowns.is_empty();
        let (bit, then, symbol, handler_ns) = if waiting & pending::CALL_FUNCTION != 0 {
            (
                pending::CALL_FUNCTION,
                Then::CallFunctionHandled,
                if calls_to_wake_only { fixed.reschedule_handler } else { fixed.call_function_handler },
                kernel.call_function_ns,
            )
        } else if waiting & pending::RESCHEDULE != 0 {
            (pending::RESCHEDULE, Then::RescheduleHandled, fixed.reschedule_handler, kernel.reschedule_ns)
        } else if waiting & pending::VIRQ != 0 {
            let nic = self.vms[vm].nic.as_ref().expect("only a NIC raises virqs");
            (pending::VIRQ, Then::VirqHandled, fixed.virq_handler, nic.irq_handler_ns())
        } else if waiting & pending::TIMER != 0 {
            (pending::TIMER, Then::TimerHandled, fixed.timer_handler, TIMER_HANDLER_NS)
        } else {
            (pending::TICK, Then::TickHandled, fixed.tick_handler, kernel.tick_handler_ns)
        };
        if self.guest[vcpu].frames[0].spins() {
            self.leave_spin(vcpu);
            let guest = &mut self.guest[vcpu];
            guest.interrupted_pv_spin_left_ns = guest.pv_spin_left_ns;
        }
        let is_ipi = bit & (pending::CALL_FUNCTION | pending::RESCHEDULE) != 0;
        let entry_ns = if is_ipi { self.costs.ipi_delivery_ns } else { self.costs.interrupt_entry_ns };
        let left_ns = entry_ns + handler_ns;
        let guest = &mut self.guest[vcpu];
        guest.pending &= !bit;
        guest.depth = 1;
        guest.frames[1] = Frame { act: Act::Timed, then, symbol, irqs_off: true, left_ns, ..Frame::EMPTY };
        match bit {
            pending::CALL_FUNCTION => {
                self.machine.emit(TraceEvent::IpiHandled { vcpu, kind: IpiKind::CallFunction });
                self.measured.count_ipi_handled(vm);
            }
            pending::RESCHEDULE => {
                self.machine.emit(TraceEvent::IpiHandled { vcpu, kind: IpiKind::Reschedule });
                self.measured.count_ipi_handled(vm);
            }
            pending::VIRQ => self.virq_delivered(vcpu),
            _ => {}
        }
        if self.times_guests {
            self.note_mode(vcpu);
        }
        true
    }

    pub(crate) fn return_from_interrupt(&mut self, vcpu: VcpuId) {
        let guest = &mut self.guest[vcpu];
        guest.depth = 0;
        if guest.frames[0].spins() {
            guest.pv_spin_left_ns = guest.interrupted_pv_spin_left_ns;
        }
        if self.deliver(vcpu) {
            return;
        }
        let guest = &mut self.guest[vcpu];
        match guest.frames[0].act {
            Act::None => self.continue_frame(vcpu),
            Act::HaltLock => self.spin_again(vcpu),
            Act::Granted => self.take_granted(vcpu),
            Act::SpinLock => self.look_at_lock_again(vcpu),
            Act::Timed
                if guest.need_resched
                    && guest.thread != ThreadId::NONE
                    && guest.frames[0].symbol == text::USER =>
            {
                debug_assert_eq!(self.threads[guest.thread].state, ThreadState::Running);
                self.preempt_thread(vcpu);
            }
            _ => {}
        }
    }
    /// The sleeping lock is held: what it is held for is a shootdown.
    pub(crate) fn prepare_under(&mut self, vcpu: VcpuId) {
        let vm = self.machine.vcpus[vcpu].vm;
        let frame = &mut self.guest[vcpu].frames[0];
        frame.then = Then::PrepareShootdown;
        frame.symbol = self.texts[self.vms[vm].text].fixed.shootdown_prepare;
    }

    /// The shootdown is over, and with it what it was done under. Returns whether that takes time.
    pub(crate) fn release_under(&mut self, vcpu: VcpuId) -> bool {
        self.guest[vcpu].frames[0].lock != LockId::NONE && self.release_sleeping(vcpu)
    }

    /// flush_tlb_mm_range found that others may hold the address space: which?
    pub(crate) fn prepare_shootdown(&mut self, vcpu: VcpuId) {
        let now_ns = self.machine.now_ns;
        let vm = self.machine.vcpus[vcpu].vm;
        let targets = self.shootdown_targets(vcpu, vm);
        if targets.is_empty() {
            if !self.release_under(vcpu) {
                self.continue_frame(vcpu);
            }
            return;
        }
        let by_hypercall = self.calls_by_hypercall(vm, targets.len());
        let at_once = by_hypercall || self.vms[vm].kernel.flat_ipi && self.vms[vm].vcpus <= FLAT_VCPUS_MAX;
        if by_hypercall || targets.iter().any(|&target| self.ipi_exits(target)) {
            self.scheduler.ipi_begun(&mut self.machine, vcpu);
        }
        let send_ns = if at_once {
            let others = targets.len() as u64 - 1;
            self.costs.ipi_send_ns + others * self.costs.ipi_send_ns * PV_IPI_PERCENT / 100
        } else {
            targets.iter().map(|&target| self.ipi_send_ns(target)).sum()
        };
        let symbol = self.texts[self.vms[vm].text].fixed.shootdown_wait;
        self.timed(vcpu, Then::SendShootdown, symbol, send_ns);
        self.guest[vcpu].waits_since_ns[0] = now_ns;
    }

    fn shootdown_targets(&self, vcpu: VcpuId, vm: VmId) -> Vec<VcpuId> {
        let mm = self.guest[vcpu].mm;
        let (first, count) = (self.vms[vm].first_vcpu, self.vms[vm].vcpus);
        let kernel = &self.vms[vm].kernel;
        let (skip_preempted, skip_lazy) = (kernel.pv_tlb_flush, kernel.features.lazy_tlb);
        first
            .span(count)
            .filter(|&other| other != vcpu && self.guest[other].mm == mm)
            .filter(|&other| {
                // PV TLB flush: a preempted vCPU flushes when it gets back on.
                !(skip_preempted && self.is_marked_preempted(other))
            })
            .filter(|&other| !(skip_lazy && self.guest[other].thread == ThreadId::NONE))
            .collect()
    }

    pub(crate) fn send_shootdown(&mut self, vcpu: VcpuId) {
        let vm = self.machine.vcpus[vcpu].vm;
        let targets = self.shootdown_targets(vcpu, vm);
        self.machine.emit(TraceEvent::ShootdownBegan { vcpu, targets: targets.len() as u32 });
        self.guest[vcpu].acks_left = targets.len() as u32;
        self.guest[vcpu].frames[0].act = Act::SpinAcks;
        self.begin_pause_loop(vcpu);
        if targets.is_empty() {
            self.shootdown_done(vcpu);
            if !self.release_under(vcpu) {
                self.continue_frame(vcpu);
            }
            return;
        }
        let mut preempted = VcpuId::NONE;
        let (is_many, by_hypercall) = (targets.len() > 1, self.calls_by_hypercall(vm, targets.len()));
        for target in targets {
            self.guest[target].shootdowns.push(vcpu);
            if preempted == VcpuId::NONE && self.is_yielded_for(vm, target, is_many) {
                preempted = target;
            }
            let exits = by_hypercall || self.ipi_exits(target);
            self.deliver_ipi(vcpu, target, IpiKind::CallFunction, exits);
        }
        if preempted != VcpuId::NONE && self.vms[vm].kernel.pv_ipi_yield {
            // KVM's hypercall names it, Xen's doesn't.
            let names = self.vms[vm].kernel.features.steal_time;
            self.machine.named_target = if names { preempted } else { VcpuId::NONE };
            self.yield_to_ipi_targets(vcpu);
            self.machine.named_target = VcpuId::NONE;
        }
    }

    /// One hypercall calls them all; a single one is called by its own IPI (`smp_call_function_many_cond`).
    fn calls_by_hypercall(&self, vm: VmId, targets: usize) -> bool {
        targets > 1 && self.vms[vm].kernel.features.pv_ipi
    }

    /// Whether the caller of this vCPU yields, if its kernel does.
    fn is_yielded_for(&self, vm: VmId, target: VcpuId, is_many: bool) -> bool {
        if self.vms[vm].kernel.features.steal_time {
            return is_many && self.guest[target].thread != ThreadId::NONE && self.seems_preempted(target);
        }
        self.is_preempted(target)
    }

    /// The PV kernel sees that a target doesn't run, and yields by hypercall.
    fn yield_to_ipi_targets(&mut self, vcpu: VcpuId) {
        let host = &self.machine.vcpus[vcpu];
        if host.state != VcpuState::Running {
            // A target that was woken took its pCPU.
            return;
        }
        let pcpu = host.pcpu;
        self.measured.count_yield_in_ipi_wait(host.vm);
        self.guest[vcpu].overhead_ns += self.costs.exit_ns;
        self.note_position(vcpu);
        let answer = self.ask_to_yield(vcpu, pcpu, YieldCause::IpiWait);
        if answer == microslice_model::scheduler::YieldAnswer::Yield {
            self.request_stop(pcpu, StopReason::IpiWait);
        }
    }

    pub(crate) fn call_function_handled(&mut self, vcpu: VcpuId) {
        let mut initiators = std::mem::take(&mut self.guest[vcpu].shootdowns);
        for &initiator in &initiators {
            let waiting = &mut self.guest[initiator];
            waiting.acks_left -= 1;
            if waiting.acks_left == 0 {
                self.shootdown_acknowledged(initiator);
            }
        }
        initiators.clear();
        let guest = &mut self.guest[vcpu];
        if guest.shootdowns.is_empty() {
            guest.shootdowns = initiators;
        }
        if self.is_modern {
            let threads = std::mem::take(&mut self.wake_lists[vcpu]);
            self.guest[vcpu].wake_later(1, threads);
        }
        let guest = &self.guest[vcpu];
        let another_waits = guest.pending & pending::CALL_FUNCTION != 0;
        if guest.thread == ThreadId::NONE {
            // Lazy TLB: an idle vCPU leaves the address space and gets no further IPIs for it.
            self.set_address_space(vcpu, WorkloadId::NONE);
        }
        self.machine.set_owes_answer(vcpu, another_waits);
        self.scheduler.acknowledged(&self.machine, vcpu, another_waits);
    }

    fn shootdown_acknowledged(&mut self, initiator: VcpuId) {
        let running = self.is_running(initiator);
        if running {
            self.sync(initiator);
            if self.guest[initiator].depth == 0 {
                self.leave_spin(initiator);
            }
        }
        let frame = &mut self.guest[initiator].frames[0];
        debug_assert_eq!(frame.act, Act::SpinAcks);
        frame.act = Act::Timed;
        frame.then = Then::ShootdownDone;
        frame.left_ns = CACHE_LINE_NS;
        if running {
            self.retime(initiator);
        }
    }

    pub(crate) fn shootdown_done(&mut self, vcpu: VcpuId) {
        let vm = self.machine.vcpus[vcpu].vm;
        let waited_ns = self.machine.now_ns - self.guest[vcpu].waits_since_ns[0];
        self.measured.shootdown_took(vm, waited_ns);
        self.machine.emit(TraceEvent::ShootdownEnded { vcpu, waited_ns });
    }
}
