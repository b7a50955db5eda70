//! What a vCPU does next: the end of a timed step, and the operations of a thread's program.

use crate::guest::program::{NO_LOCK, Op};
use crate::guest::{Act, Then, ThreadState, WaitsFor};
use crate::simulation::Simulation;
use crate::text;
use microslice_model::ids::{BarrierId, LockId, QueueId, ThreadId, VcpuId};

/// Cost of a wake-up inside the target's runqueue lock: try_to_wake_up to ttwu_do_activate.
pub const WAKE_NS: u64 = 700;
/// Placing a new child: wake_up_new_task.
const SPAWN_NS: u64 = 1_500;

impl Simulation<'_> {
    /// The active frame's timed step is over. By far the most are ordinary steps of programs and critical
    /// sections.
    #[inline(always)]
    pub(crate) fn finish(&mut self, vcpu: VcpuId) {
        let then = self.guest[vcpu].frame().then;
        if then == Then::Release {
            self.release(vcpu);
        } else if then != Then::NextOp {
            return self.finish_rarer(vcpu, then);
        }
        self.continue_frame_here(vcpu);
    }

    #[cold]
    #[inline(never)]
    fn finish_rarer(&mut self, vcpu: VcpuId, then: Then) {
        match then {
            Then::NextOp | Then::Release => {}
            Then::ReleaseSleeping => {
                if self.release_sleeping(vcpu) {
                    return;
                }
            }
            Then::EnqueueThread => self.enqueue_thread(vcpu),
            Then::CallToWake => self.call_to_wake(vcpu),
            Then::EnqueueChild => self.enqueue_child(vcpu),
            Then::WaitAtBarrier => return self.wait_at_barrier(vcpu),
            Then::WakeAtBarrier => self.wake_at_barrier(vcpu),
            Then::WakeRequeued => self.wake_requeued(vcpu),
            Then::WaitInList => return self.wait_in_list(vcpu),
            Then::WakeFromList => self.wake_from_list(vcpu),
            Then::SwitchThread => return self.switch_thread(vcpu),
            Then::PrepareShootdown => return self.prepare_shootdown(vcpu),
            Then::SendShootdown => return self.send_shootdown(vcpu),
            Then::ShootdownDone => {
                self.shootdown_done(vcpu);
                if self.release_under(vcpu) {
                    return;
                }
            }
            Then::CallFunctionHandled => self.call_function_handled(vcpu),
            Then::RescheduleHandled => {}
            Then::VirqHandled => return self.virq_handled(vcpu),
            Then::SoftirqDone => return self.softirq_done(vcpu),
            Then::TimerHandled => {
                let due = std::mem::take(&mut self.guest[vcpu].timer_wakes);
                self.guest[vcpu].wake_later(1, due);
            }
            Then::TickHandled => {
                self.tick_handled(vcpu);
                if self.tick_of_rcu(vcpu) {
                    return;
                }
            }
            Then::LeaveReader => self.pass_quiet_state(vcpu),
            Then::ReportQuiet => {
                self.release(vcpu);
                self.reported_quiet(vcpu);
            }
        }
        self.continue_frame(vcpu);
    }

    /// The active frame has nothing under way: its wake-ups first, then what lies below it.
    pub(crate) fn continue_frame(&mut self, vcpu: VcpuId) {
        self.continue_frame_here(vcpu);
    }

    /// The same without a call: the end of an ordinary step has a copy of its own.
    #[inline(always)]
    fn continue_frame_here(&mut self, vcpu: VcpuId) {
        let guest = &mut self.guest[vcpu];
        let depth = guest.depth as usize;
        guest.frames[depth].act = Act::None;
        if let Some(thread) = guest.next_wake() {
            return self.start_wake(vcpu, thread);
        }
        if depth == 1 {
            return self.return_from_interrupt(vcpu);
        }
        if guest.wakes_under_lock() {
            return self.release_after_wakes(vcpu);
        }
        let (thread, need_resched) = (guest.thread, guest.need_resched);
        let frame = &mut guest.frames[0];
        frame.irqs_off = false;
        frame.symbol = if thread == ThreadId::NONE { text::IDLE } else { text::USER };
        if guest.pending != 0 && self.deliver(vcpu) {
            return;
        }
        if thread == ThreadId::NONE {
            if self.guest[vcpu].queue.is_empty() {
                self.go_idle(vcpu);
            } else {
                self.begin_switch(vcpu);
            }
            return;
        }
        if need_resched {
            return self.preempt_thread(vcpu);
        }
        if self.threads[thread].state == ThreadState::Blocked {
            return self.begin_switch(vcpu);
        }
        self.next_op(vcpu, thread);
    }

    /// Goes on with a thread that was just switched to.
    pub(crate) fn resume_thread(&mut self, vcpu: VcpuId, thread: ThreadId) {
        let state = &mut self.threads[thread];
        let compute_left_ns = std::mem::take(&mut state.compute_left_ns);
        let granted = std::mem::replace(&mut state.granted, LockId::NONE);
        if granted != LockId::NONE {
            self.wake_with_lock(vcpu, thread, granted);
        } else if compute_left_ns > 0 {
            self.timed(vcpu, Then::NextOp, text::USER, compute_left_ns);
            // What came while the runqueue's lock had interrupts off.
            self.deliver(vcpu);
        } else {
            self.continue_frame(vcpu);
        }
    }

    #[inline(always)]
    fn next_op(&mut self, vcpu: VcpuId, thread: ThreadId) {
        loop {
            let state = &mut self.threads[thread];
            let op = self.programs.op(state.pc);
            state.pc += 1;
            if self.execute(vcpu, thread, op) {
                return;
            }
        }
    }

    /// Begins an operation. Returns false when it took no time and the thread goes on with the next one.
    #[inline(always)]
    fn execute(&mut self, vcpu: VcpuId, thread: ThreadId, op: Op) -> bool {
        let state = &mut self.threads[thread];
        match op {
            Op::Compute { duration } => {
                let ns = self.samplers.sample(duration, &mut state.random);
                self.workloads[state.workload].computed_ns += ns;
                self.timed(vcpu, Then::NextOp, text::USER, ns);
                true
            }
            Op::Kernel { duration, symbol } => {
                let ns = self.samplers.sample(duration, &mut state.random);
                self.timed(vcpu, Then::NextOp, symbol, ns);
                true
            }
            Op::Lock { first, instances, hold } => self.lock_one(vcpu, thread, first, instances, hold),
            Op::Shootdown { prepare, under } => self.shoot_down(vcpu, thread, prepare, under),
            Op::Read { lock, hold } => self.read(vcpu, thread, lock, hold),
            Op::ReadingShootdown { prepare, under } => self.read(vcpu, thread, under, prepare),
            Op::Sleep { duration } => {
                let ns = self.samplers.sample(duration, &mut state.random);
                self.timeline.set(self.slots.thread(thread), self.machine.now_ns + ns.max(1));
                self.block_thread(vcpu, thread, WaitsFor::Timer);
                true
            }
            Op::Barrier { barrier, under, instances } => self.meet(vcpu, thread, barrier, [under, instances]),
            Op::UnlockBarrier { barrier, under } => self.unlock_barrier(vcpu, thread, barrier, under),
            Op::SpinBarrier { step, barrier, under, spin_ns } => {
                let arrival = self.vms[state.vm].first_barrier.plus(barrier);
                let under = state.first_lock.plus(under);
                self.spin_barrier(vcpu, thread, step, [arrival, arrival.plus(1)], under, spin_ns.into())
            }
            Op::Send { queue } => self.send_item(vcpu, thread, self.queue_of(thread, queue)),
            Op::Receive { queue } => self.receive_item(vcpu, thread, self.queue_of(thread, queue)),
            Op::SendOut { channel } => self.send_out(vcpu, thread, QueueId::new(channel)),
            Op::ReceiveIn { channel } => self.receive_in(vcpu, thread, QueueId::new(channel)),
            Op::NetworkReceive => self.network_receive(vcpu, thread),
            Op::Spawn => self.spawn(vcpu, thread),
            Op::Progress { units } => {
                self.workloads[state.workload].units_done += units;
                false
            }
            Op::RepeatBegin { slot } => {
                state.loops[slot as usize] = 0;
                false
            }
            Op::RepeatEnd { slot, count, body } => {
                let done = &mut state.loops[slot as usize];
                *done += 1;
                if *done < count {
                    state.pc = body;
                }
                false
            }
            Op::Sometimes { ppm, end } => {
                if state.random.below(1_000_000) >= ppm {
                    state.pc = end;
                }
                false
            }
            Op::Again { start } => {
                state.pc = start;
                false
            }
            Op::YieldThread => self.yield_thread(vcpu),
            op => self.execute_rarer(vcpu, thread, op),
        }
    }

    /// The same, of RCU and of programs' own locks.
    #[cold]
    #[inline(never)]
    fn execute_rarer(&mut self, vcpu: VcpuId, thread: ThreadId, op: Op) -> bool {
        match op {
            Op::ReadRcu { duration, symbol } => {
                let ns = self.samplers.sample(duration, &mut self.threads[thread].random);
                self.timed(vcpu, Then::LeaveReader, symbol, ns);
            }
            Op::WantGracePeriod => {
                self.want_grace_period(thread);
                return false;
            }
            Op::AwaitGracePeriod => return self.await_grace_period(vcpu, thread),
            Op::UserLock { lock } => return self.take_user_lock(vcpu, thread, lock),
            Op::UserUnlock => {
                self.give_up_user_lock(thread);
                return false;
            }
            Op::Say { ns, symbol } => self.say(vcpu, thread, ns, symbol),
            _ => unreachable!("it is one of these"),
        }
        true
    }

    /// The queue that its VM's programs call by this number.
    #[inline(always)]
    fn queue_of(&self, thread: ThreadId, queue: u32) -> QueueId {
        self.vms[self.threads[thread].vm].first_queue.plus(queue)
    }

    /// One of several locks of a kind, drawn anew each time.
    #[inline(always)]
    fn lock_one(&mut self, vcpu: VcpuId, thread: ThreadId, first: u32, instances: u32, hold: u32) -> bool {
        let state = &mut self.threads[thread];
        let hold_ns = self.samplers.sample(hold, &mut state.random);
        let instance = if instances > 1 { state.random.below(instances) } else { 0 };
        let lock = state.first_lock.plus(first + instance);
        self.take_lock(vcpu, thread, lock, hold_ns);
        true
    }

    /// Prepares a shootdown, under a lock where the program says so.
    #[inline(always)]
    fn shoot_down(&mut self, vcpu: VcpuId, thread: ThreadId, prepare: u32, under: u32) -> bool {
        let state = &mut self.threads[thread];
        let ns = self.samplers.sample(prepare, &mut state.random);
        if under != NO_LOCK {
            let under = state.first_lock.plus(under);
            self.take_lock(vcpu, thread, under, ns);
            return true;
        }
        let vm = state.vm;
        let symbol = self.texts[self.vms[vm].text].fixed.shootdown_prepare;
        self.timed(vcpu, Then::PrepareShootdown, symbol, ns);
        true
    }

    /// Takes a sleeping lock for reading: a page fault, or for a shootdown.
    fn read(&mut self, vcpu: VcpuId, thread: ThreadId, lock: u32, hold: u32) -> bool {
        let state = &mut self.threads[thread];
        let ns = self.samplers.sample(hold, &mut state.random);
        let lock = state.first_lock.plus(lock);
        self.acquire_reading(vcpu, thread, lock, ns);
        true
    }

    /// Arrives at a barrier, under a lock where the program says so.
    #[inline(always)]
    fn meet(&mut self, vcpu: VcpuId, thread: ThreadId, barrier: u32, [under, instances]: [u32; 2]) -> bool {
        let state = &self.threads[thread];
        let barrier = self.vms[state.vm].first_barrier.plus(barrier);
        if under != NO_LOCK {
            let bucket = self.barriers[barrier].passages % instances.max(1);
            let under = state.first_lock.plus(under + bucket);
            self.arrive_under(vcpu, thread, barrier, under);
            return true;
        }
        self.arrive(vcpu, thread, barrier)
    }

    /// A child begins on any vCPU, under the lock of that one's runqueue.
    #[inline(always)]
    fn spawn(&mut self, vcpu: VcpuId, thread: ThreadId) -> bool {
        let state = &mut self.threads[thread];
        let vm = &self.vms[state.vm];
        let target = vm.first_vcpu.plus(state.random.below(vm.vcpus));
        let lock = vm.runqueue_lock_of(target);
        self.acquire(vcpu, lock, SPAWN_NS, Then::EnqueueChild, target.number());
        true
    }

    /// Makes way for another thread, if one waits.
    #[inline(always)]
    fn yield_thread(&mut self, vcpu: VcpuId) -> bool {
        if self.guest[vcpu].queue.is_empty() {
            return false;
        }
        let thread = self.guest[vcpu].thread;
        self.preempt_thread(vcpu);
        if self.is_eevdf(vcpu) {
            self.put_thread_off(vcpu, thread);
        }
        true
    }

    /// Blocks the running thread and switches away from it.
    pub(crate) fn block_thread(&mut self, vcpu: VcpuId, thread: ThreadId, waits_for: WaitsFor) {
        if self.is_eevdf(vcpu) {
            self.remove_thread(vcpu, thread);
        }
        let state = &mut self.threads[thread];
        state.state = ThreadState::Blocked;
        state.waits_for = waits_for;
        self.begin_switch(vcpu);
    }

    fn arrive(&mut self, vcpu: VcpuId, thread: ThreadId, barrier: BarrierId) -> bool {
        let state = &mut self.barriers[barrier];
        if state.waiting.len() + 1 < state.count {
            state.waiting.push(thread);
            self.block_thread(vcpu, thread, WaitsFor::Barrier(barrier));
            return true;
        }
        let waiting = std::mem::take(&mut state.waiting);
        self.wake_then_go_on(vcpu, waiting)
    }

    fn send_item(&mut self, vcpu: VcpuId, thread: ThreadId, queue: QueueId) -> bool {
        let state = &mut self.queues[queue];
        if let Some(receiver) = state.receivers.pop_front() {
            return self.wake_then_go_on(vcpu, vec![receiver]);
        }
        if state.items < state.capacity {
            state.items += 1;
            return false;
        }
        state.senders.push_back(thread);
        self.block_thread(vcpu, thread, WaitsFor::Room(queue));
        true
    }

    fn receive_item(&mut self, vcpu: VcpuId, thread: ThreadId, queue: QueueId) -> bool {
        let state = &mut self.queues[queue];
        if let Some(sender) = state.senders.pop_front() {
            // The waiting sender's item takes the place of the one received.
            return self.wake_then_go_on(vcpu, vec![sender]);
        }
        if state.items > 0 {
            state.items -= 1;
            return false;
        }
        state.receivers.push_back(thread);
        self.block_thread(vcpu, thread, WaitsFor::Item(queue));
        true
    }

    /// Wakes threads on behalf of the running one; it goes on with its program when all are awake.
    pub(crate) fn wake_then_go_on(&mut self, vcpu: VcpuId, threads: Vec<ThreadId>) -> bool {
        if threads.is_empty() {
            return false;
        }
        self.guest[vcpu].wake_later(0, threads);
        self.continue_frame(vcpu);
        true
    }

    /// Takes the runqueue lock of the vCPU that `thread` will run on.
    fn start_wake(&mut self, vcpu: VcpuId, thread: ThreadId) {
        let target =
            if self.threads[thread].state == ThreadState::Waking { vcpu } else { self.place(thread) };
        if target != vcpu && self.takes_calls_to_wake(target) {
            return self.begin_call_to_wake(vcpu, target, thread);
        }
        let vm = &self.vms[self.threads[thread].vm];
        let lock = vm.runqueue_lock_of(target);
        self.threads[thread].vcpu = target;
        // The lock is held for as long as the reschedule IPI takes to send (paper, section 3.1), whether it
        // is needed or not: that shows when the thread is enqueued, at the end of this time
        // (`enqueue_thread`).
        let send_ns = if target == vcpu { 0 } else { self.ipi_send_ns(target) };
        if target != vcpu && self.ipi_exits(target) && send_ns > 0 {
            self.scheduler.ipi_begun(&mut self.machine, vcpu);
        }
        self.acquire(vcpu, lock, WAKE_NS + send_ns, Then::EnqueueThread, thread.number());
    }
}
