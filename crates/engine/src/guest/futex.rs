//! Barriers whose waiters sleep in a futex's queue, which has a spinlock (kernel/futex.c).
//!
//! A waiter takes the lock, is queued, gives the lock up and sleeps (`futex_wait`). The last one to arrive
//! takes the lock, wakes all, and only then gives it up (`futex_wake`). Each wake-up may send a reschedule
//! IPI, so the lock is held for as long as all of these take. A woken waiter may take the waker's pCPU
//! meanwhile (ASPLOS'13, section 3.1.1 and Figure 4).

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
        let guest = &mut self.guest[vcpu];
        let barrier = BarrierId::new(guest.frame().arg);
        let lock = std::mem::replace(&mut guest.frame_mut().lock, LockId::NONE);
        guest.set_wakes_under_lock(true);
        self.threads[guest.thread].wakes_under = lock;
        let state = &mut self.barriers[barrier];
        let threads = &self.threads;
        let passages = state.passages;
        let over = state.waiting.extract_if(.., |thread| threads[*thread].passage != passages);
        guest.wake_later(0, over);
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
