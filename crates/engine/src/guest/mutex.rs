//! Sleeping locks whose waiters spin as long as the holder runs: mutexes, and semaphores taken for writing.
//!
//! Problem.   Sleeping and waking cost more than most of these locks are held for.
//! Mechanism. Linux, kernel/locking/mutex.c, rwsem-xadd.c, osq_lock.c. A thread that finds the lock free
//!            takes it, in whatever order. One that finds it held spins if its holder is on a CPU. The first
//!            spinner looks at the holder (`mutex_spin_on_owner`), the others queue behind it (`osq_lock`). A
//!            thread without a reason to spin, or that shall be rescheduled, sleeps in the order of arrival.
//!            A release wakes the first sleeper. That one competes like all others, and sleeps again if it
//!            comes too late: the lock is never handed over.
//! What for.  "On a CPU" is what the *guest's* scheduler thinks: the holder of a preempted vCPU is on a CPU.
//!            So its waiters spin until the host runs it again. Kernels from 4.10 on ask the hypervisor
//!            (`vcpu_is_preempted`). Spinners stop at a holder that is preempted (`owner_on_cpu`), and behind
//!            a spinner that is (`osq_lock`). There a sleeper that was woken in vain spins before all others.
//!            It gets the lock at the next release (`MUTEX_FLAG_HANDOFF`, `__mutex_handoff`).
//! Limits.    No readers. The list of sleepers has a lock where the kernel's lists have (`wait_list.rs`).

use crate::guest::{Act, Beside, Holder, Lock, Then, ThreadState, WaitsFor};
use crate::simulation::{CACHE_LINE_NS, Simulation};
use microslice_model::config::Wait;
use microslice_model::ids::{LockId, ThreadId, VcpuId};

use microslice_model::events::TraceEvent;
use std::collections::VecDeque;

/// Spinners for a lock (`osq_lock`), and where their instruction pointers are.
pub struct SpinQueue {
    pub vcpus: VecDeque<VcpuId>,
    pub first_symbol: u16,
    pub queued_symbol: u16,
    /// The first sleeper gets it next.
    pub hands_off: bool,
}

impl Lock {
    pub fn spinners(&self) -> &SpinQueue {
        match self.beside.as_deref() {
            Some(Beside::Spinners(spinners)) => spinners,
            _ => unreachable!("a mutex has them"),
        }
    }

    fn spinners_mut(&mut self) -> &mut SpinQueue {
        match self.beside.as_deref_mut() {
            Some(Beside::Spinners(spinners)) => spinners,
            _ => unreachable!("a mutex has them"),
        }
    }
}

impl Simulation<'_> {
    /// The running thread takes a mutex, spins for it, or sleeps.
    pub(crate) fn lock_mutex(&mut self, vcpu: VcpuId, thread: ThreadId, lock: LockId, hold_ns: u64) {
        let now_ns = self.machine.now_ns;
        self.locks[lock].acquisitions += 1;
        let state = &mut self.threads[thread];
        state.hold_ns = hold_ns;
        state.wait_since_ns = now_ns;
        if self.locks[lock].owner == Holder::NONE {
            self.take_mutex(vcpu, thread, lock, 0);
        } else if self.may_spin(vcpu, lock) {
            self.spin_for_mutex(vcpu, lock, false);
        } else {
            self.sleep_for_mutex(vcpu, thread, lock);
        }
    }

    /// mutex_can_spin_on_owner. The holder never leaves its vCPU while it holds the lock (the guest's
    /// scheduler doesn't preempt kernel code here). So for the guest it is always on a CPU. Not so if it
    /// knows that the vCPU isn't, or if the lock was handed to one that sleeps still.
    fn may_spin(&self, vcpu: VcpuId, lock: LockId) -> bool {
        !self.guest[vcpu].need_resched && (!self.is_modern || self.owner_is_on_cpu(lock))
    }

    #[cold]
    fn owner_is_on_cpu(&self, lock: LockId) -> bool {
        let owner = self.locks[lock].owner;
        owner == Holder::NONE || {
            let thread = &self.threads[owner.as_thread()];
            thread.state == ThreadState::Running && !self.seems_preempted(thread.vcpu)
        }
    }

    /// `is_sleeper`: it has been woken, and spins before all others.
    fn spin_for_mutex(&mut self, vcpu: VcpuId, lock: LockId, is_sleeper: bool) {
        let spinners = self.locks[lock].spinners_mut();
        if is_sleeper {
            spinners.vcpus.push_front(vcpu);
        } else {
            spinners.vcpus.push_back(vcpu);
        }
        let first = spinners.vcpus.front() == Some(&vcpu);
        let symbol = if first { spinners.first_symbol } else { spinners.queued_symbol };
        self.begin_pause_loop(vcpu);
        let guest = &mut self.guest[vcpu];
        guest.pv_spin_left_ns = u64::MAX;
        let frame = guest.frame_mut();
        (frame.act, frame.lock, frame.symbol) = (Act::SpinLock, lock, symbol);
        self.machine.emit(TraceEvent::LockWaitBegan { vcpu, lock });
    }

    fn sleep_for_mutex(&mut self, vcpu: VcpuId, thread: ThreadId, lock: LockId) {
        if !self.takes_list_first(vcpu, lock, Then::WaitInList) {
            self.queue_for_mutex(vcpu, thread, lock);
        }
    }

    fn queue_for_mutex(&mut self, vcpu: VcpuId, thread: ThreadId, lock: LockId) {
        let sleepers = &mut self.locks[lock].waiters;
        // A sleeper that was woken in vain has kept its place.
        if !sleepers.contains(&Holder::thread(thread)) {
            sleepers.push_back(Holder::thread(thread));
        }
        self.block_thread(vcpu, thread, WaitsFor::Lock(lock));
    }

    /// The lock of its list is held: it may be free by now.
    pub(crate) fn wait_for_mutex_in_list(&mut self, vcpu: VcpuId, thread: ThreadId, lock: LockId) {
        let state = &mut self.locks[lock];
        let me = Holder::thread(thread);
        let is_mine = state.owner == Holder::NONE || state.owner == me;
        let waited_ns = self.machine.now_ns - self.threads[thread].wait_since_ns;
        if is_mine {
            self.release(vcpu);
            if !self.is_modern {
                self.locks[lock].waiters.retain(|&sleeper| sleeper != me);
            }
            self.take_mutex(vcpu, thread, lock, waited_ns);
            return;
        }
        // Before the list's lock: whoever gives it up runs on, and may look.
        if !state.waiters.contains(&me) {
            state.waiters.push_back(me);
        }
        self.release(vcpu);
        self.block_thread(vcpu, thread, WaitsFor::Lock(lock));
    }

    fn take_mutex(&mut self, vcpu: VcpuId, thread: ThreadId, lock: LockId, waited_ns: u64) {
        let me = Holder::thread(thread);
        let state = &mut self.locks[lock];
        debug_assert!(state.owner == Holder::NONE || state.owner == me);
        state.owner = me;
        if self.is_modern && state.waiters.contains(&me) {
            state.waiters.retain(|&sleeper| sleeper != me);
            state.spinners_mut().hands_off = false;
        }
        let statistics = state.statistics;
        if waited_ns > 0 {
            let vm = self.machine.vcpus[vcpu].vm;
            self.measured.lock_taken_after(vm, statistics, waited_ns);
        }
        self.machine.emit(TraceEvent::LockAcquired { vcpu, lock, waited_ns });
        self.hold_sleeping(vcpu, thread, lock);
    }

    /// The running holder gives up its lock: the first sleeper is woken, the first spinner takes it if it
    /// runs. Returns whether that takes time.
    pub(crate) fn release_mutex(&mut self, vcpu: VcpuId, lock: LockId) -> bool {
        self.machine.emit(TraceEvent::LockReleased { vcpu, lock });
        let state = &mut self.locks[lock];
        state.owner = Holder::NONE;
        if let Some(sleeper) = state.waiters.front().map(|sleeper| sleeper.as_thread()) {
            if std::mem::take(&mut self.locks[lock].spinners_mut().hands_off) {
                self.locks[lock].owner = Holder::thread(sleeper);
            }
            if self.has_list(lock) {
                self.let_first_spinners_look(lock);
                return self.sleeps_for(lock).is_some()
                    && self.takes_list_first(vcpu, lock, Then::WakeFromList);
            }
            let thread = &mut self.threads[sleeper];
            if thread.state == ThreadState::Blocked && thread.granted == LockId::NONE {
                // Not yet woken by an earlier release.
                thread.granted = lock;
                self.guest[vcpu].wake_later(0, [sleeper]);
            }
        }
        self.let_first_spinners_look(lock);
        false
    }

    /// The first sleeper, if nobody has woken it yet.
    pub(crate) fn sleeps_for(&self, lock: LockId) -> Option<ThreadId> {
        let sleeper = self.locks[lock].waiters.front()?.as_thread();
        let thread = &self.threads[sleeper];
        (thread.state == ThreadState::Blocked && thread.granted == LockId::NONE).then_some(sleeper)
    }

    /// A woken sleeper, or one that was rescheduled while it spun, runs: is the lock free by chance?
    pub(crate) fn try_mutex_again(&mut self, vcpu: VcpuId, thread: ThreadId, lock: LockId) {
        let hands_off = self.vms[self.threads[thread].vm].kernel.features.mutex_handoff;
        let state = &mut self.locks[lock];
        let is_mine = state.owner == Holder::NONE || state.owner == Holder::thread(thread);
        if !is_mine && hands_off {
            return self.wait_as_first(vcpu, thread, lock);
        }
        if !is_mine {
            return self.sleep_for_mutex(vcpu, thread, lock);
        }
        state.waiters.retain(|&sleeper| sleeper != Holder::thread(thread));
        let waited_ns = self.machine.now_ns - self.threads[thread].wait_since_ns;
        self.take_mutex(vcpu, thread, lock, waited_ns);
    }

    /// The thread was woken in vain, or was rescheduled while it spun.
    #[cold]
    fn wait_as_first(&mut self, vcpu: VcpuId, thread: ThreadId, lock: LockId) {
        let state = &mut self.locks[lock];
        let is_first = state.waiters.front() == Some(&Holder::thread(thread));
        if is_first {
            state.spinners_mut().hands_off = true;
        }
        if is_first && self.may_spin(vcpu, lock) {
            self.spin_for_mutex(vcpu, lock, true);
        } else {
            self.sleep_for_mutex(vcpu, thread, lock);
        }
    }

    /// A spinner runs again, or its interrupt is handled.
    pub(crate) fn look_at_mutex(&mut self, vcpu: VcpuId) {
        let lock = self.guest[vcpu].frame().lock;
        if self.look_once(vcpu, lock) {
            self.let_first_spinners_look(lock);
        }
    }

    /// A running spinner looks at the lock and at need_resched. Returns whether it left the line.
    fn look_once(&mut self, vcpu: VcpuId, lock: LockId) -> bool {
        if self.guest[vcpu].need_resched {
            self.stop_spinning(vcpu, lock);
            return true;
        }
        if self.is_modern && self.spins_in_vain(vcpu, lock) {
            self.sleep_instead(vcpu, lock);
            return true;
        }
        let state = &mut self.locks[lock];
        if state.spinners().vcpus.front() != Some(&vcpu) {
            return false;
        }
        if state.owner != Holder::NONE && state.owner != Holder::thread(self.guest[vcpu].thread) {
            self.guest[vcpu].frame_mut().symbol = state.spinners().first_symbol;
            return false;
        }
        state.spinners_mut().vcpus.pop_front();
        self.leave_spin(vcpu);
        let thread = self.guest[vcpu].thread;
        let waited_ns = self.machine.now_ns - self.threads[thread].wait_since_ns;
        self.take_mutex(vcpu, thread, lock, waited_ns);
        self.guest[vcpu].frame_mut().left_ns += CACHE_LINE_NS;
        true
    }

    /// `mutex_spin_on_owner`, `osq_lock`: the first looks at the holder, the others at the one before them.
    #[cold]
    fn spins_in_vain(&self, vcpu: VcpuId, lock: LockId) -> bool {
        let mut spinners = self.locks[lock].spinners().vcpus.iter();
        let at = spinners.position(|&spinner| spinner == vcpu).expect("it spins");
        if at > 0 {
            return self.seems_preempted(self.locks[lock].spinners().vcpus[at - 1]);
        }
        let owner = self.locks[lock].owner;
        owner != Holder::thread(self.guest[vcpu].thread) && !self.owner_is_on_cpu(lock)
    }

    /// Leaves the spinners, and takes the lock or sleeps.
    fn sleep_instead(&mut self, vcpu: VcpuId, lock: LockId) {
        self.locks[lock].spinners_mut().vcpus.retain(|&spinner| spinner != vcpu);
        self.leave_spin(vcpu);
        self.guest[vcpu].frames[0].lock = LockId::NONE;
        let thread = self.guest[vcpu].thread;
        if self.locks[lock].owner == Holder::NONE {
            let waited_ns = self.machine.now_ns - self.threads[thread].wait_since_ns;
            self.take_mutex(vcpu, thread, lock, waited_ns);
        } else {
            self.sleep_for_mutex(vcpu, thread, lock);
        }
    }

    /// A vCPU was preempted. Its guest may know, and spinners see it.
    #[cold]
    pub(crate) fn spinners_see_preempted(&mut self, vcpu: VcpuId) {
        let lock = self.guest[vcpu].frames[0].lock;
        if lock == LockId::NONE || self.locks[lock].wait != Wait::SpinOrSleep || !self.seems_preempted(vcpu) {
            return;
        }
        for spinner in self.locks[lock].spinners().vcpus.clone() {
            let frame = &self.guest[spinner].frames[0];
            let still_spins = frame.act == Act::SpinLock && frame.lock == lock;
            if still_spins && self.is_running(spinner) && self.guest[spinner].depth == 0 {
                self.sync(spinner);
                self.look_once(spinner, lock);
                self.retime(spinner);
            }
        }
    }

    /// Leaves the spinners: another thread shall run.
    fn stop_spinning(&mut self, vcpu: VcpuId, lock: LockId) {
        let spinners = self.locks[lock].spinners_mut();
        spinners.vcpus.retain(|&spinner| spinner != vcpu);
        self.leave_spin(vcpu);
        let guest = &mut self.guest[vcpu];
        guest.frames[0].lock = LockId::NONE;
        let thread = guest.thread;
        self.threads[thread].granted = lock;
        self.preempt_thread(vcpu);
    }

    /// Something changed for the first in the line of spinners: each that comes first looks, one after the
    /// other.
    fn let_first_spinners_look(&mut self, lock: LockId) {
        loop {
            let spinners = self.locks[lock].spinners();
            let Some(&first) = spinners.vcpus.front() else { return };
            if !self.is_running(first) || self.guest[first].depth > 0 {
                return;
            }
            self.sync(first);
            let left = self.look_once(first, lock);
            self.retime(first);
            if !left {
                return;
            }
        }
    }
}
