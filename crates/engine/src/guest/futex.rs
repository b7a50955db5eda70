//! Barriers whose waiters sleep in a futex's queue, which has a spinlock (kernel/futex.c).
//!
//! A waiter takes the lock, is queued, gives the lock up and sleeps (`futex_wait`). The last one to arrive
//! takes the lock, wakes all, and only then gives it up (`futex_wake`). Each wake-up may send a reschedule
//! IPI, so the lock is held for as long as all of these take. A woken waiter may take the waker's pCPU
//! meanwhile (ASPLOS'13, section 3.1.1 and Figure 4).
//!
//! A barrier that requeues is made of a mutex and a condition variable (pthread_cond_broadcast, glibc 2.13).
//! Its last one wakes one waiter and moves the others to the mutex (`futex_requeue`). Each thread that gives
//! the mutex up wakes the next of them, under the queue's lock.

use crate::guest::{Holder, Then, WaitsFor};
use crate::simulation::Simulation;
use microslice_model::ids::{BarrierId, LockId, ThreadId, VcpuId};

/// Finding the queue's entry, under the lock (Uhlig et al., VM'04: critical sections last for some
/// microseconds at the most).
pub const QUEUE_NS: u64 = 500;

impl Simulation<'_> {
    pub(crate) fn arrive_under(&mut self, vcpu: VcpuId, thread: ThreadId, barrier: BarrierId, lock: LockId) {
        let state = &mut self.barriers[barrier];
        self.threads[thread].passage = state.passages;
        state.arrived += 1;
        let is_last = state.arrived == state.count;
        if is_last {
            (state.arrived, state.passages) = (0, state.passages.wrapping_add(1));
        }
        let then = if is_last { Then::WakeAtBarrier } else { Then::WaitAtBarrier };
        self.acquire(vcpu, lock, QUEUE_NS, then, barrier.number());
    }

    /// The lock is held: a thread that comes too late to wait goes on (EWOULDBLOCK).
    pub(crate) fn wait_at_barrier(&mut self, vcpu: VcpuId) {
        let guest = &self.guest[vcpu];
        let (barrier, thread) = (BarrierId::new(guest.frame().arg), guest.thread);
        let state = &mut self.barriers[barrier];
        let waits = state.passages == self.threads[thread].passage;
        if waits {
            state.waiting.push(thread);
        }
        self.release(vcpu);
        if waits {
            self.block_thread(vcpu, thread, WaitsFor::Barrier(barrier));
        } else {
            self.continue_frame(vcpu);
        }
    }

    /// The lock is held, and stays so while all of the passage that is over are woken.
    pub(crate) fn wake_at_barrier(&mut self, vcpu: VcpuId) {
        let barrier = BarrierId::new(self.guest[vcpu].frame().arg);
        let state = &mut self.barriers[barrier];
        let threads = &self.threads;
        let passages = state.passages;
        let over = state.waiting.extract_if(.., |thread| threads[*thread].passage != passages);
        let mut over: Vec<ThreadId> = over.collect();
        if state.requeues && over.len() > 1 {
            let others = over.split_off(1);
            let mutex = self.mutex_of(barrier);
            self.barriers[mutex].requeued.extend(others);
        }
        self.wake_from_queue(vcpu, over);
    }

    /// The barrier, or gate, with whose mutex this one goes.
    fn mutex_of(&self, barrier: BarrierId) -> BarrierId {
        // The departure gate follows the arrival's.
        if self.barriers[barrier].is_departure { BarrierId::new(barrier.number() - 1) } else { barrier }
    }

    /// Gives the mutex up. Returns false if nobody waits for it.
    pub(crate) fn unlock_barrier(
        &mut self,
        vcpu: VcpuId,
        thread: ThreadId,
        barrier: u32,
        under: u32,
    ) -> bool {
        let state = &self.threads[thread];
        let barrier = self.vms[state.vm].first_barrier.plus(barrier);
        let under = state.first_lock.plus(under);
        if self.barriers[barrier].requeued.is_empty() {
            return false;
        }
        self.acquire(vcpu, under, QUEUE_NS, Then::WakeRequeued, barrier.number());
        true
    }

    /// The lock is held: another thread may have woken the last one meanwhile.
    pub(crate) fn wake_requeued(&mut self, vcpu: VcpuId) {
        let barrier = BarrierId::new(self.guest[vcpu].frame().arg);
        let next = self.barriers[barrier].requeued.pop_front();
        self.wake_from_queue(vcpu, next);
    }

    /// All are awake.
    #[cold]
    pub(crate) fn release_after_wakes(&mut self, vcpu: VcpuId) {
        let guest = &mut self.guest[vcpu];
        guest.set_wakes_under_lock(false);
        let lock = std::mem::replace(&mut self.threads[guest.thread].wakes_under, LockId::NONE);
        guest.frames[0].lock = lock;
        self.release(vcpu);
        self.continue_frame(vcpu);
    }

    /// The spinlock that a vCPU holds outside of interrupt handlers, if it does: the outer one of two.
    pub(crate) fn held_spinlock(&self, vcpu: VcpuId) -> Option<LockId> {
        let guest = &self.guest[vcpu];
        if guest.wakes_under_lock() {
            return Some(self.threads[guest.thread].wakes_under);
        }
        let lock = guest.frames[0].lock;
        (lock != LockId::NONE && self.locks[lock].owner == Holder::frame(vcpu, 0)).then_some(lock)
    }
}
