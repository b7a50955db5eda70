//! The guest's own scheduler: per-vCPU queues of threads, time slices, wake-up placement, idling.

use crate::guest::{Act, NO_ARG, NOT_WOKEN, Then, ThreadState, WaitsFor, pending};
use crate::simulation::Simulation;
use crate::text;
use microslice_model::ids::{ThreadId, VcpuId, VmId, WorkloadId};

use microslice_model::events::{IpiKind, StopReason, TraceEvent};
use microslice_policy::InterruptKind;

/// A waking thread preempts one that has run for at least this long (Linux: wakeup_granularity, 1 ms scaled).
const WAKEUP_GRANULARITY_NS: u64 = 1_000_000;

impl Simulation<'_> {
    /// select_idle_sibling: where it ran before if idle, else any idle vCPU of the VM, else where it ran
    /// before.
    pub(crate) fn place(&self, thread: ThreadId) -> VcpuId {
        let state = &self.threads[thread];
        let previous = state.vcpu;
        if state.pinned || self.is_available(previous) {
            return previous;
        }
        let vm = &self.vms[state.vm];
        let at = previous.since(vm.first_vcpu);
        (1..vm.vcpus)
            .map(|step| vm.first_vcpu.plus((at + step) % vm.vcpus))
            .find(|&vcpu| self.is_available(vcpu))
            .unwrap_or(previous)
    }

    /// `available_idle_cpu`: idle, with nothing on its way there, and not preempted as far as is known.
    #[inline]
    fn is_available(&self, vcpu: VcpuId) -> bool {
        self.guest[vcpu].is_idle()
            && (!self.is_modern || self.is_called_nowhere(vcpu))
            && !(self.any_steals && self.seems_busy(vcpu))
    }

    #[cold]
    fn is_called_nowhere(&self, vcpu: VcpuId) -> bool {
        self.wake_lists[vcpu].is_empty() && !self.seems_preempted(vcpu)
    }

    /// What the guest knows of a vCPU (`vcpu_is_preempted`).
    pub(crate) fn seems_preempted(&self, vcpu: VcpuId) -> bool {
        let host = &self.machine.vcpus[vcpu];
        self.vms[host.vm].kernel.features.steal_time && self.is_marked_preempted(vcpu)
    }

    #[inline]
    pub(crate) fn is_eevdf(&self, vcpu: VcpuId) -> bool {
        self.is_modern && self.vms[self.machine.vcpus[vcpu].vm].kernel.is_eevdf
    }

    /// `ttwu_queue_cond`: it makes threads ready itself.
    #[inline]
    pub(crate) fn takes_calls_to_wake(&self, vcpu: VcpuId) -> bool {
        self.is_modern
            && self.vms[self.machine.vcpus[vcpu].vm].kernel.features.ttwu_queue
            && self.guest[vcpu].is_idle()
    }

    /// The waker takes no lock of the target's, and interrupts are off (`try_to_wake_up`).
    #[cold]
    pub(crate) fn begin_call_to_wake(&mut self, vcpu: VcpuId, target: VcpuId, thread: ThreadId) {
        self.threads[thread].vcpu = target;
        let send_ns = self.ipi_send_ns(target);
        let symbol = self.texts[self.vms[self.machine.vcpus[vcpu].vm].text].fixed.wake;
        self.timed(vcpu, Then::CallToWake, symbol, super::execute::WAKE_NS + send_ns);
        let frame = self.guest[vcpu].frame_mut();
        (frame.arg, frame.irqs_off) = (thread.number(), true);
    }

    /// `__smp_call_single_queue`: only the first on a list is called for.
    pub(crate) fn call_to_wake(&mut self, vcpu: VcpuId) {
        let depth = self.guest[vcpu].depth;
        let frame = self.guest[vcpu].frame_mut();
        frame.irqs_off = depth > 0;
        let thread = ThreadId::new(frame.arg);
        let state = &mut self.threads[thread];
        state.state = ThreadState::Waking;
        let target = state.vcpu;
        self.wake_lists[target].push(thread);
        if self.wake_lists[target].len() == 1 {
            self.within_step = vcpu;
            self.send_ipi(vcpu, target, IpiKind::CallFunction);
            self.within_step = VcpuId::NONE;
        }
    }

    /// In the runqueue lock of the target: the thread is ready there.
    pub(crate) fn enqueue_thread(&mut self, vcpu: VcpuId) {
        let now_ns = self.machine.now_ns;
        let thread = ThreadId::new(self.guest[vcpu].frame().arg);
        let state = &mut self.threads[thread];
        state.state = ThreadState::Ready;
        state.waits_for = WaitsFor::Nothing;
        state.woken_at_ns = now_ns;
        let (target, vm) = (state.vcpu, state.vm);
        let is_eevdf = self.is_eevdf(target);
        if is_eevdf {
            self.place_thread(target, thread);
        }
        let on = &mut self.guest[target];
        on.queue.push_back(thread);
        let (idle, since_ns) = (on.thread == ThreadId::NONE, on.thread_since_ns);
        let preempts = if is_eevdf {
            !idle && self.pick_thread(target).is_some_and(|at| self.guest[target].queue[at] == thread)
        } else if self.any_steals && !idle && self.steals(target) {
            self.woken_is_better(target, thread)
        } else {
            !idle && now_ns.saturating_sub(since_ns) >= WAKEUP_GRANULARITY_NS
        };
        self.vms[vm].ready_threads += 1;
        self.release(vcpu);
        if preempts && is_eevdf {
            self.guest[target].need_resched = true;
        } else if preempts {
            // The woken one goes first.
            let on = &mut self.guest[target];
            on.queue.pop_back();
            on.queue.push_front(thread);
            on.need_resched = true;
        }
        if (idle || preempts) && target != vcpu {
            self.send_reschedule(vcpu, target);
        }
    }

    /// A short-lived child was placed on a vCPU: it matters to us only as a runqueue lock and an IPI.
    pub(crate) fn enqueue_child(&mut self, vcpu: VcpuId) {
        let target = VcpuId::new(self.guest[vcpu].frame().arg);
        self.release(vcpu);
        if target != vcpu && self.guest[target].thread == ThreadId::NONE {
            self.send_reschedule(vcpu, target);
        }
    }

    /// The sender goes on with its step afterwards.
    fn send_reschedule(&mut self, vcpu: VcpuId, target: VcpuId) {
        self.within_step = vcpu;
        self.send_ipi(vcpu, target, IpiKind::Reschedule);
        self.within_step = VcpuId::NONE;
    }

    /// The guest's scheduler takes the running thread off.
    pub(crate) fn preempt_thread(&mut self, vcpu: VcpuId) {
        if self.is_eevdf(vcpu) {
            self.charge_thread(vcpu);
        }
        let guest = &mut self.guest[vcpu];
        let thread = guest.thread;
        let frame = &guest.frames[0];
        let left_ns = if frame.act == Act::Timed && frame.symbol == text::USER { frame.left_ns } else { 0 };
        guest.queue.push_back(thread);
        let state = &mut self.threads[thread];
        state.compute_left_ns = left_ns;
        state.state = ThreadState::Ready;
        self.vms[state.vm].ready_threads += 1;
        self.begin_switch(vcpu);
    }

    /// schedule(): in the own runqueue lock.
    pub(crate) fn begin_switch(&mut self, vcpu: VcpuId) {
        self.take_back(vcpu);
        let host = &self.machine.vcpus[vcpu];
        let vm = &self.vms[host.vm];
        let lock = vm.runqueue_lock_of(vcpu);
        let switch_ns = vm.kernel.switch_ns;
        self.acquire(vcpu, lock, switch_ns, Then::SwitchThread, NO_ARG);
    }

    /// Still in that lock: the next thread, or idle.
    pub(crate) fn switch_thread(&mut self, vcpu: VcpuId) {
        self.release(vcpu);
        self.pass_quiet_state(vcpu);
        let now_ns = self.machine.now_ns;
        let vm = self.machine.vcpus[vcpu].vm;
        let mut next = if self.is_eevdf(vcpu) {
            self.pick_next_thread(vcpu)
        } else if self.any_steals && self.steals(vcpu) {
            self.take_best_thread(vcpu)
        } else {
            self.guest[vcpu].queue.pop_front()
        };
        let guest = &mut self.guest[vcpu];
        guest.need_resched = false;
        if next.is_some() {
            self.vms[vm].ready_threads -= 1;
        } else if self.vms[vm].ready_threads > 0 {
            next = self.pull_thread(vcpu, vm);
        }
        let guest = &mut self.guest[vcpu];
        let was_idle = guest.thread == ThreadId::NONE;
        guest.thread = next.unwrap_or(ThreadId::NONE);
        guest.thread_since_ns = now_ns;
        guest.frames[0].act = Act::None;
        guest.frames[0].irqs_off = false;
        let Some(thread) = next else {
            return self.continue_frame(vcpu);
        };
        if was_idle {
            // The tick was stopped while idle (tick_nohz_idle_exit, sched_clock_idle_wakeup_event).
            self.guest[vcpu].clock_set_ns = now_ns;
            let period = self.vms[vm].kernel.tick_ns;
            let guest = &mut self.guest[vcpu];
            if guest.next_tick_ns == u64::MAX {
                guest.next_tick_ns =
                    (now_ns / period + 1) * period + u64::from(vcpu.number()) * 1_000 % period;
            }
        }
        if self.is_eevdf(vcpu) {
            self.run_thread(vcpu, thread);
        }
        let state = &mut self.threads[thread];
        state.state = ThreadState::Running;
        state.vcpu = vcpu;
        let woken_at_ns = std::mem::replace(&mut state.woken_at_ns, NOT_WOKEN);
        let workload = state.workload;
        let due_ns = std::mem::replace(&mut state.due_ns, NOT_WOKEN);
        if due_ns != NOT_WOKEN {
            self.measured.timer_was_late(vm, now_ns.saturating_sub(due_ns));
        }
        if woken_at_ns != NOT_WOKEN {
            // NOT_WOKEN is the latest time.
            self.measured.woken_ran_after(vm, now_ns.saturating_sub(due_ns.min(woken_at_ns)));
        }
        if self.workloads[workload].shared_address_space || self.guest[vcpu].mm == WorkloadId::NONE {
            self.set_address_space(vcpu, workload);
        }
        self.machine.emit(TraceEvent::ThreadSwitched { vcpu, thread });
        self.resume_thread(vcpu, thread);
    }

    #[cold]
    fn pick_next_thread(&mut self, vcpu: VcpuId) -> Option<ThreadId> {
        let at = self.pick_thread(vcpu)?;
        self.guest[vcpu].queue.remove(at)
    }

    /// What the TLB of a vCPU holds, and its pCPU's caches: a workload's, or `NONE`.
    pub(crate) fn set_address_space(&mut self, vcpu: VcpuId, workload: WorkloadId) {
        let (mm, sensitivity) = self
            .workloads
            .get(workload)
            .map_or((WorkloadId::NONE, 0), |workload| (workload.address_space, workload.cache_permille));
        self.guest[vcpu].mm = mm;
        self.machine.vcpus[vcpu].warmth.sensitivity = sensitivity;
    }

    /// Idle balancing: takes a waiting thread from the next vCPU that has one to spare.
    fn pull_thread(&mut self, vcpu: VcpuId, vm: VmId) -> Option<ThreadId> {
        let (first, count) = (self.vms[vm].first_vcpu, self.vms[vm].vcpus);
        let at = vcpu.since(first);
        if self.vms[vm].balancing.as_ref().is_some_and(|balancing| balancing.is_filled(at as usize)) {
            return None;
        }
        for step in 1..count {
            let other = first.plus((at + step) % count);
            let on = &self.guest[other];
            // What an idle vCPU was given is about to run there.
            if on.thread == ThreadId::NONE || on.need_resched {
                continue;
            }
            let threads = &self.threads;
            let found = on.queue.iter().position(|&thread| !threads[thread].pinned);
            if let Some(found) = found {
                self.vms[vm].ready_threads -= 1;
                let thread = self.guest[other].queue[found];
                self.leave_queue(other, vcpu, thread);
                return self.guest[other].queue.remove(found);
            }
        }
        None
    }

    /// A ready thread goes to another vCPU; it is in the first one's queue still.
    pub(crate) fn leave_queue(&mut self, from: VcpuId, to: VcpuId, thread: ThreadId) {
        if self.is_eevdf(from) {
            self.remove_thread(from, thread);
            self.place_thread(to, thread);
        }
    }

    /// The idle loop: HLT, unless something came in.
    pub(crate) fn go_idle(&mut self, vcpu: VcpuId) {
        if self.ksoftirqd_goes_on(vcpu) {
            return;
        }
        let guest = &mut self.guest[vcpu];
        guest.next_tick_ns = u64::MAX;
        guest.need_resched = false;
        guest.frames[0] = crate::guest::Frame::EMPTY;
        self.note_idle(vcpu);
        self.block(vcpu, StopReason::Hlt);
    }

    pub(crate) fn raise_tick(&mut self, vcpu: VcpuId) {
        let vm = self.machine.vcpus[vcpu].vm;
        let period = self.vms[vm].kernel.tick_ns;
        let guest = &mut self.guest[vcpu];
        if guest.next_tick_ns == u64::MAX {
            return;
        }
        guest.pending |= pending::TICK;
        // Ticks missed while it didn't run are merged, as a guest's clockevent does.
        let missed = (self.machine.now_ns - guest.next_tick_ns) / period + 1;
        guest.next_tick_ns += missed * period;
        self.deliver(vcpu);
        // The host's timer stands for the guest's.
        self.machine.leaves_guest(self.machine.vcpus[vcpu].pcpu);
    }

    /// scheduler_tick: is the running thread's slice over?
    pub(crate) fn tick_handled(&mut self, vcpu: VcpuId) {
        let now_ns = self.machine.now_ns;
        let vm = self.machine.vcpus[vcpu].vm;
        let slice_ns = self.vms[vm].kernel.thread_slice_ns;
        let is_eevdf = self.is_eevdf(vcpu);
        let slice_is_over = is_eevdf && self.charge_thread(vcpu);
        let steals = self.any_steals && !is_eevdf && self.steals(vcpu);
        let ticks_are_spent = steals && self.spend_tick(vcpu);
        let guest = &mut self.guest[vcpu];
        guest.clock_set_ns = now_ns;
        let is_over = if is_eevdf {
            slice_is_over
        } else if steals {
            ticks_are_spent
        } else {
            now_ns - guest.thread_since_ns >= slice_ns / (guest.queue.len() as u64 + 1)
        };
        if guest.thread != ThreadId::NONE && (steals || !guest.queue.is_empty()) && is_over {
            guest.need_resched = true;
        }
        if self.vms[vm].balancing.is_some() {
            self.balance_threads(vcpu);
        }
    }

    /// A sleeping thread's timer or I/O is done: an interrupt to the vCPU where it slept.
    pub(crate) fn thread_timer(&mut self, thread: ThreadId) {
        let state = &mut self.threads[thread];
        // To look at a grace period isn't what the program has slept for.
        if state.waits_for != WaitsFor::GracePeriod {
            state.due_ns = self.machine.now_ns;
        }
        let vcpu = state.vcpu;
        let is_from_channel = state.waits_for == WaitsFor::Network && !self.vms[state.vm].are_tasks;
        let kind = if is_from_channel { InterruptKind::Virq } else { InterruptKind::Timer };
        self.guest[vcpu].timer_wakes.push(thread);
        self.send_interrupt(vcpu, pending::TIMER, kind);
    }
}
