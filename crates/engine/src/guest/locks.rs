//! Spinlocks of every kind: how their waiters wait, and which one gets the lock when it is released.
//!
//! | kind | waiters | the lock goes to |
//! |---|---|---|
//! | test-and-set | spin | any waiter that runs; if none does, the first that runs again, or a newcomer |
//! | ticket, queued | spin | the first in line, running or not (lock-waiter preemption) |
//! | PV ticket, PV queued | spin for a while, then halt | the first in line, kicked if it halted |
//! | hybrid PV queued | `hybrid.rs` | the head of the queue if it spins, else whoever comes |
//! | oticket, iticket | likewise, some longer than others | likewise; an oticket kicks the next few ahead |
//! | yield, spin-yield | yield, at once or after a while, and look again when they run | as of test-and-set |

use crate::guest::program::Op;
use crate::guest::{Act, Holder, NO_ARG, Then, WaitsFor};
use crate::simulation::{CACHE_LINE_NS, Simulation};
use microslice_model::config::{Halting, Handover, Patience, Wait};
use microslice_model::events::{IpiKind, StopReason, TraceEvent};
use microslice_model::ids::{LockId, PcpuId, ThreadId, VcpuId};
use microslice_model::machine::VcpuState;
use microslice_model::scheduler::{WokenBy, YieldAnswer};
use microslice_policy::YieldCause;

impl Simulation<'_> {
    /// The running thread takes a lock and holds it for `hold_ns`; then its program goes on.
    pub(crate) fn take_lock(&mut self, vcpu: VcpuId, thread: ThreadId, lock: LockId, hold_ns: u64) {
        match self.locks[lock].wait {
            Wait::Spin(_) | Wait::SpinThenHalt(_) | Wait::StealOrHalt | Wait::SpinThenYield(_) => {
                self.acquire(vcpu, lock, hold_ns, Then::Release, NO_ARG)
            }
            Wait::Sleep => self.acquire_sleeping(vcpu, thread, lock, hold_ns),
            Wait::SpinOrSleep => self.lock_mutex(vcpu, thread, lock, hold_ns),
        }
    }

    /// A thread that slept for a lock runs again: it has the lock, or may try for it.
    pub(crate) fn wake_with_lock(&mut self, vcpu: VcpuId, thread: ThreadId, lock: LockId) {
        match self.locks[lock].wait {
            Wait::SpinOrSleep => self.try_mutex_again(vcpu, thread, lock),
            _ => {
                let waiter = &self.threads[thread];
                let (waited_ns, vm) = (self.machine.now_ns - waiter.wait_since_ns, waiter.vm);
                self.measured.lock_taken_after(vm, self.locks[lock].statistics, waited_ns);
                if !self.threads[thread].reads {
                    self.machine.emit(TraceEvent::LockAcquired { vcpu, lock, waited_ns });
                }
                self.hold_sleeping(vcpu, thread, lock);
            }
        }
    }

    /// The active frame takes `lock`, holds it for `hold_ns`, then does `then` (which releases it).
    pub(crate) fn acquire(&mut self, vcpu: VcpuId, lock: LockId, hold_ns: u64, then: Then, arg: u32) {
        let guest = &mut self.guest[vcpu];
        let me = Holder::frame(vcpu, guest.depth);
        let state = &mut self.locks[lock];
        let frame = &mut guest.frames[guest.depth as usize];
        frame.then = then;
        frame.arg = arg;
        frame.lock = lock;
        frame.left_ns = hold_ns;
        frame.irqs_off = state.irqs_off || guest.depth > 0;
        state.acquisitions += 1;
        let may_take =
            state.waiters.is_empty() || state.wait != Wait::StealOrHalt || !state.stealers().pending;
        if state.owner == Holder::NONE && may_take {
            debug_assert!(state.waiters.is_empty() || !state.wait.serves_in_line(), "it was handed on");
            state.owner = me;
            frame.act = Act::Timed;
            frame.symbol = state.hold_symbol;
            self.hold_elsewhere(vcpu, lock);
            self.machine.emit(TraceEvent::LockAcquired { vcpu, lock, waited_ns: 0 });
            if self.times_guests {
                self.note_hold(vcpu);
            }
            return;
        }
        frame.act = Act::SpinLock;
        frame.symbol = state.spin_symbol;
        if state.wait == Wait::StealOrHalt {
            guest.waits_since_ns[guest.depth as usize] = self.machine.now_ns;
            self.machine.emit(TraceEvent::LockWaitBegan { vcpu, lock });
            return self.wait_for_hybrid(vcpu, lock);
        }
        state.waiters.push_back(me);
        // The holder is the first of them.
        frame.distance = state.waiters.len().min(u8::MAX.into()) as u8;
        guest.waits_since_ns[guest.depth as usize] = self.machine.now_ns;
        self.begin_spinning(vcpu);
        self.machine.emit(TraceEvent::LockWaitBegan { vcpu, lock });
    }

    /// The active frame spins for its lock: for how long, before it does anything else?
    pub(crate) fn begin_spinning(&mut self, vcpu: VcpuId) {
        let frame = self.guest[vcpu].frame();
        let lock = &self.locks[frame.lock];
        let kernel = &self.vms[self.machine.vcpus[vcpu].vm].kernel;
        let spin_ns = match lock.wait {
            Wait::StealOrHalt => self.hybrid_spin_ns(vcpu, frame.lock),
            Wait::SpinThenHalt(Halting::Stock) => kernel.pv_spin_ns,
            Wait::SpinThenHalt(halting) => {
                halting.spins_for(kernel.pv_spin_ns, frame.distance.into(), lock.doublings.into())
            }
            // It has found it taken: the line has come.
            Wait::SpinThenYield(Patience::None) => CACHE_LINE_NS,
            Wait::SpinThenYield(Patience::Some) => kernel.yield_spin_ns,
            Wait::Spin(_) | Wait::Sleep | Wait::SpinOrSleep => u64::MAX,
        };
        let halts = matches!(lock.wait, Wait::SpinThenHalt(_) | Wait::StealOrHalt);
        self.guest[vcpu].pv_spin_left_ns = spin_ns;
        self.begin_pause_loop(vcpu);
        if halts {
            let exits_ns = self.growing_exits_ns(vcpu, spin_ns);
            self.guest[vcpu].pv_spin_left_ns = spin_ns.saturating_add(exits_ns);
        }
    }

    /// The active frame has just got its lock. It may hold it in a function of no list.
    #[inline(always)]
    fn hold_elsewhere(&mut self, vcpu: VcpuId, lock: LockId) {
        if self.holds_vary && !self.is_listed_hold(vcpu, lock) {
            let text = self.vms[self.machine.vcpus[vcpu].vm].text;
            self.guest[vcpu].frame_mut().symbol = self.texts[text].fixed.unlisted;
        }
    }

    /// Whether a hold that begins now is in the lock's own function: so many of a hundred are, evenly spread.
    #[cold]
    fn is_listed_hold(&self, vcpu: VcpuId, lock: LockId) -> bool {
        let percent = u64::from(self.vms[self.machine.vcpus[vcpu].vm].kernel.listed_percent);
        let acquisitions = self.locks[lock].acquisitions;
        acquisitions * percent / 100 != acquisitions.saturating_sub(1) * percent / 100
    }

    /// The active frame, which runs, gives up its lock.
    pub(crate) fn release(&mut self, vcpu: VcpuId) {
        let guest = &mut self.guest[vcpu];
        let depth = guest.depth;
        let frame = &mut guest.frames[depth as usize];
        let lock = std::mem::replace(&mut frame.lock, LockId::NONE);
        frame.irqs_off = depth > 0;
        debug_assert_eq!(self.locks[lock].owner, Holder::frame(vcpu, depth));
        self.machine.emit(TraceEvent::LockReleased { vcpu, lock });
        if self.times_guests {
            self.note_release(vcpu);
        }
        let state = &mut self.locks[lock];
        state.owner = Holder::NONE;
        if state.waiters.is_empty() {
            return;
        }
        if state.wait == Wait::StealOrHalt {
            self.within_step = vcpu;
            self.pass_hybrid_on(vcpu, lock);
            self.within_step = VcpuId::NONE;
            return;
        }
        let next = match state.wait {
            Wait::Spin(Handover::WhoeverRuns) | Wait::SpinThenYield(_) => self.take_any_running_waiter(lock),
            _ => state.waiters.pop_front(),
        };
        if let Some(next) = next {
            self.locks[lock].owner = next;
            self.within_step = vcpu;
            self.grant(vcpu, next);
            if let Wait::SpinThenHalt(halting) = self.locks[lock].wait
                && halting.kicks() > 1
            {
                self.kick_ahead(vcpu, lock, halting.kicks() - 1);
            }
            self.within_step = VcpuId::NONE;
        }
    }

    /// The next in line are woken before it is their turn: they spin then, and nobody waits for them to wake.
    #[cold]
    fn kick_ahead(&mut self, from: VcpuId, lock: LockId, count: usize) {
        let next: Vec<Holder> = self.locks[lock].waiters.iter().copied().take(count).collect();
        for waiter in next {
            let frame = &self.guest[waiter.vcpu()].frames[usize::from(waiter.depth())];
            let halts = self.machine.vcpus[waiter.vcpu()].state == VcpuState::Blocked
                || self.halt_polling.polls(waiter.vcpu());
            if halts && frame.act == Act::HaltLock && frame.lock == lock {
                self.kick(from, waiter.vcpu());
            }
        }
    }

    /// A halted waiter is woken by hypercall.
    pub(crate) fn kick(&mut self, from: VcpuId, vcpu: VcpuId) {
        self.guest[from].overhead_ns += self.costs.kick_ns;
        self.count_ipi(from, vcpu, IpiKind::LockKick);
        self.scheduler.ipi(&mut self.machine, from, vcpu, IpiKind::LockKick);
        self.wake_by(vcpu, Some(WokenBy::LockKick));
    }

    fn take_any_running_waiter(&mut self, lock: LockId) -> Option<Holder> {
        let running = |waiter: &Holder| self.machine.vcpus[waiter.vcpu()].state == VcpuState::Running;
        let waiters = &mut self.locks[lock].waiters;
        let candidates = waiters.iter().filter(|waiter| running(waiter)).count();
        if candidates == 0 {
            return None;
        }
        let winner = self.random.below(candidates as u32) as usize;
        let at = (0..waiters.len()).filter(|&at| running(&waiters[at])).nth(winner);
        waiters.remove(at.expect("there are that many candidates"))
    }

    fn grant(&mut self, from: VcpuId, to: Holder) {
        let (vcpu, depth) = (to.vcpu(), usize::from(to.depth()));
        if self.is_running(vcpu) {
            self.sync(vcpu);
        }
        let halted = self.guest[vcpu].frames[depth].act == Act::HaltLock;
        self.guest[vcpu].frames[depth].act = Act::Granted;
        if self.is_running(vcpu) && !self.halt_polling.polls(vcpu) {
            if usize::from(self.guest[vcpu].depth) == depth {
                self.leave_spin(vcpu);
                self.take_granted(vcpu);
                self.retime(vcpu);
            }
        } else if halted {
            self.kick(from, vcpu);
        }
    }

    /// The active frame was granted its lock, and notices.
    pub(crate) fn take_granted(&mut self, vcpu: VcpuId) {
        let now_ns = self.machine.now_ns;
        let vm = self.machine.vcpus[vcpu].vm;
        let hand_over_ns = if self.costs.waiter_line_ns > 0 { self.hand_over_ns(vcpu) } else { 0 };
        let guest = &mut self.guest[vcpu];
        let since_ns = guest.waits_since_ns[guest.depth as usize];
        let waited_ns = now_ns - since_ns;
        // Where interrupts are off no tick sets the guest's clock, which stands still a tick later.
        let stands_ns = guest.clock_set_ns + self.vms[vm].kernel.tick_ns;
        let frame = guest.frame_mut();
        let lockstat_ns =
            if frame.irqs_off { now_ns.min(stands_ns) - since_ns.min(stands_ns) } else { waited_ns };
        let lock = frame.lock;
        let state = &self.locks[lock];
        frame.act = Act::Timed;
        frame.symbol = state.hold_symbol;
        frame.left_ns += CACHE_LINE_NS + hand_over_ns;
        self.measured.lock_taken_after(vm, state.statistics, waited_ns);
        self.measured.lockstat_saw(vm, state.statistics, lockstat_ns);
        self.hold_elsewhere(vcpu, lock);
        self.machine.emit(TraceEvent::LockAcquired { vcpu, lock, waited_ns });
        if self.times_guests {
            self.note_hold(vcpu);
        }
    }

    /// What the other waiters of a ticket lock add to its hand-over: each that spins reads the line that says
    /// whose turn it is. In a queue each has a line of its own.
    #[cold]
    fn hand_over_ns(&self, vcpu: VcpuId) -> u64 {
        let lock = &self.locks[self.guest[vcpu].frame().lock];
        let text = self.vms[self.machine.vcpus[vcpu].vm].text;
        let is_ticket = lock.wait.serves_in_line() && lock.spin_symbol == self.texts[text].fixed.spin_simple;
        let spins = |waiter: &&Holder| {
            let frame = &self.guest[waiter.vcpu()].frames[usize::from(waiter.depth())];
            frame.act == Act::SpinLock && self.is_running(waiter.vcpu())
        };
        let spinning = if is_ticket { lock.waiters.iter().filter(spins).count() } else { 0 };
        spinning as u64 * self.costs.waiter_line_ns
    }

    /// A spinner runs again: was the lock left free for it?
    pub(crate) fn look_at_lock_again(&mut self, vcpu: VcpuId) {
        let guest = &self.guest[vcpu];
        let me = Holder::frame(vcpu, guest.depth);
        let state = &mut self.locks[guest.frame().lock];
        match state.wait {
            Wait::SpinOrSleep => return self.look_at_mutex(vcpu),
            Wait::StealOrHalt => return self.look_at_hybrid(vcpu),
            _ => {}
        }
        if state.owner == Holder::NONE {
            state.owner = me;
            let at = state.waiters.iter().position(|&waiter| waiter == me).expect("a spinner waits");
            state.waiters.remove(at);
            self.take_granted(vcpu);
        } else if matches!(state.wait, Wait::SpinThenYield(_)) {
            self.begin_spinning(vcpu);
        }
    }

    /// Enough spinning: the slow path of a paravirtual lock, or a yield.
    pub(crate) fn spun_enough(&mut self, vcpu: VcpuId, pcpu: PcpuId) {
        let lock = self.guest[vcpu].frame().lock;
        match self.locks[lock].wait {
            Wait::SpinThenYield(_) => self.yield_in_lock(vcpu, pcpu),
            Wait::StealOrHalt => self.halt_for_hybrid(vcpu),
            Wait::SpinThenHalt(Halting::Doubling) => {
                let doublings = &mut self.locks[lock].doublings;
                *doublings = doublings.saturating_add(1).min(Halting::LONGEST_BITS as u8);
                self.halt_in_lock(vcpu);
            }
            _ => self.halt_in_lock(vcpu),
        }
    }

    /// It halts until it is kicked.
    pub(crate) fn halt_in_lock(&mut self, vcpu: VcpuId) {
        self.leave_spin(vcpu);
        self.guest[vcpu].frame_mut().act = Act::HaltLock;
        self.block(vcpu, StopReason::LockHlt);
    }

    /// It gives its turn up by hypercall, which the host answers as it answers a pause loop's exit.
    fn yield_in_lock(&mut self, vcpu: VcpuId, pcpu: PcpuId) {
        self.leave_spin(vcpu);
        self.begin_spinning(vcpu);
        let guest = &mut self.guest[vcpu];
        guest.spins.lock_exits += 1;
        // The exit of a vCPU that is switched away from is part of the switch.
        guest.overhead_ns += self.costs.exit_ns;
        if self.machine.watched {
            self.note_position(vcpu);
        }
        if self.machine.tracing {
            self.machine.emit(TraceEvent::PauseLoopExits { vcpu, count: 1 });
        }
        let answer = self.ask_to_yield(vcpu, pcpu, YieldCause::Ple);
        if answer == YieldAnswer::Yield {
            self.request_stop(pcpu, StopReason::Ple);
        }
    }

    /// Something ended the halt, the lock isn't granted yet.
    pub(crate) fn spin_again(&mut self, vcpu: VcpuId) {
        self.guest[vcpu].frame_mut().act = Act::SpinLock;
        self.begin_spinning(vcpu);
        if self.locks[self.guest[vcpu].frame().lock].wait == Wait::StealOrHalt {
            self.look_at_hybrid(vcpu);
        }
    }

    /// A sleeping lock: the thread gets it, or blocks.
    pub(crate) fn acquire_sleeping(&mut self, vcpu: VcpuId, thread: ThreadId, lock: LockId, hold_ns: u64) {
        let now_ns = self.machine.now_ns;
        let waiter = &mut self.threads[thread];
        waiter.hold_ns = hold_ns;
        waiter.wait_since_ns = now_ns;
        let state = &mut self.locks[lock];
        state.acquisitions += 1;
        if state.owner == Holder::NONE {
            state.owner = Holder::thread(thread);
            self.machine.emit(TraceEvent::LockAcquired { vcpu, lock, waited_ns: 0 });
            self.hold_sleeping(vcpu, thread, lock);
        } else if self.takes_list_first(vcpu, lock, Then::WaitInList) {
        } else {
            self.locks[lock].waiters.push_back(Holder::thread(thread));
            self.block_thread(vcpu, thread, WaitsFor::Lock(lock));
        }
    }

    /// The running thread holds a sleeping lock: what its program wants it for begins.
    pub(crate) fn hold_sleeping(&mut self, vcpu: VcpuId, thread: ThreadId, lock: LockId) {
        let state = &self.threads[thread];
        let op = self.programs.op(state.pc - 1);
        let symbol = self.locks[lock].hold_symbol;
        self.timed(vcpu, Then::ReleaseSleeping, symbol, state.hold_ns);
        self.hold_elsewhere(vcpu, lock);
        self.guest[vcpu].frame_mut().lock = lock;
        if matches!(op, Op::Shootdown { .. } | Op::ReadingShootdown { .. }) {
            self.prepare_under(vcpu);
        }
    }

    /// Gives up a sleeping lock: it goes to its first waiter, which is woken; a mutex to the first thread
    /// that takes it. Returns whether that takes time: the lock of its list comes first then.
    pub(crate) fn release_sleeping(&mut self, vcpu: VcpuId) -> bool {
        let guest = &mut self.guest[vcpu];
        let depth = guest.depth as usize;
        let lock = std::mem::replace(&mut guest.frames[depth].lock, LockId::NONE);
        let state = &mut self.locks[lock];
        if state.wait == Wait::SpinOrSleep {
            return self.release_mutex(vcpu, lock);
        }
        if state.owner == Holder::READERS {
            return self.release_reading(vcpu, lock);
        }
        if !state.waiters.is_empty() && self.takes_list_first(vcpu, lock, Then::WakeFromList) {
            return true;
        }
        self.machine.emit(TraceEvent::LockReleased { vcpu, lock });
        let state = &mut self.locks[lock];
        state.owner = Holder::NONE;
        if let Some(next) = state.waiters.pop_front() {
            state.owner = next;
            let next = next.as_thread();
            // It waits on, until it has been woken and runs (`wake_with_lock`).
            self.threads[next].granted = lock;
            self.guest[vcpu].wake_later(depth, [next]);
        }
        false
    }
}
