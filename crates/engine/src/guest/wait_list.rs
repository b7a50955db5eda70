//! Lists of those that sleep for a lock, each with a spinlock of its own; and readers of such locks.
//!
//! Problem.   Queues of sleepers are what ASPLOS'13 saw guests spin for (section 3.1.1): who wakes a sleeper
//!            sends an IPI, by exits of the host, and may lose its pCPU to the woken one meanwhile.
//! Mechanism. A thread that finds a sleeping lock taken takes the lock of its list, is queued, gives that
//!            lock up and sleeps. So do `rwsem_down_failed_common` (lib/rwsem.c) and `__mutex_lock_common` of
//!            Linux 3.2. Who gives up a sleeping lock for which somebody sleeps takes it as well, and wakes
//!            the next one (`rwsem_wake`). In old kernels all wake-ups and their IPIs are under it; those of
//!            today only gather there whom to wake (`wake_up_q`).
//! Readers.   They share a semaphore, but come behind whoever waits for it. The first in line are woken
//!            together: one writer, or all readers up to the next writer (`__rwsem_do_wake`).
//! Limits.    Queues of items and barriers without `under` have no such lock. Readers emit no events of
//!            locks: those say who excludes others.

use super::futex::QUEUE_NS;
use crate::guest::{Beside, Holder, Lock, Then, WaitsFor};
use crate::simulation::Simulation;
use microslice_model::config::{Wait, WakesUp};
use microslice_model::events::TraceEvent;
use microslice_model::ids::{LockId, ThreadId, VcpuId};

impl Lock {
    fn readers_mut(&mut self) -> &mut u32 {
        match self.beside.as_deref_mut() {
            Some(Beside::Readers(readers)) => readers,
            _ => unreachable!("its kernel has readers"),
        }
    }

    /// One more holds it for reading, if it may now.
    fn joins_readers(&mut self) -> bool {
        let joins = self.owner == Holder::NONE || self.owner == Holder::READERS && self.waiters.is_empty();
        if joins {
            self.owner = Holder::READERS;
            *self.readers_mut() += 1;
        }
        joins
    }
}

impl Simulation<'_> {
    pub(crate) fn has_list(&self, lock: LockId) -> bool {
        self.list_locks[lock] != LockId::NONE
    }

    pub(crate) fn list_is_held(&self, lock: LockId) -> bool {
        self.has_list(lock) && self.locks[self.list_locks[lock]].owner != Holder::NONE
    }

    /// Takes the lock of the list of those that sleep for `lock`, then does `then`. Returns false if there is
    /// none.
    pub(crate) fn takes_list_first(&mut self, vcpu: VcpuId, lock: LockId, then: Then) -> bool {
        let has_list = self.has_list(lock);
        if has_list {
            self.acquire(vcpu, self.list_locks[lock], QUEUE_NS, then, lock.number());
        }
        has_list
    }

    /// The running thread takes a sleeping lock for reading and holds it for `hold_ns`.
    pub(crate) fn acquire_reading(&mut self, vcpu: VcpuId, thread: ThreadId, lock: LockId, hold_ns: u64) {
        let reader = &mut self.threads[thread];
        (reader.reads, reader.hold_ns, reader.wait_since_ns) = (true, hold_ns, self.machine.now_ns);
        let state = &mut self.locks[lock];
        state.acquisitions += 1;
        if state.joins_readers() {
            self.hold_sleeping(vcpu, thread, lock);
        } else {
            self.takes_list_first(vcpu, lock, Then::WaitInList);
        }
    }

    /// Returns whether it takes time: the last reader wakes whoever is next.
    pub(crate) fn release_reading(&mut self, vcpu: VcpuId, lock: LockId) -> bool {
        self.threads[self.guest[vcpu].thread].reads = false;
        let state = &mut self.locks[lock];
        let readers = state.readers_mut();
        if *readers > 1 {
            *readers -= 1;
            return false;
        }
        if !state.waiters.is_empty() {
            return self.takes_list_first(vcpu, lock, Then::WakeFromList);
        }
        *state.readers_mut() = 0;
        state.owner = Holder::NONE;
        false
    }

    /// The lock of the list is held. What the thread wants to sleep for may be free by now.
    pub(crate) fn wait_in_list(&mut self, vcpu: VcpuId) {
        let guest = &self.guest[vcpu];
        let (lock, thread) = (LockId::new(guest.frame().arg), guest.thread);
        if self.locks[lock].wait == Wait::SpinOrSleep {
            self.wait_for_mutex_in_list(vcpu, thread, lock);
        } else {
            self.wait_for_semaphore(vcpu, thread, lock);
        }
        self.deliver(vcpu);
    }

    fn wait_for_semaphore(&mut self, vcpu: VcpuId, thread: ThreadId, lock: LockId) {
        let reads = self.threads[thread].reads;
        let state = &mut self.locks[lock];
        let takes = if reads { state.joins_readers() } else { state.owner == Holder::NONE };
        if !takes {
            state.waiters.push_back(Holder::thread(thread));
            self.release(vcpu);
            return self.block_thread(vcpu, thread, WaitsFor::Lock(lock));
        }
        if !reads {
            state.owner = Holder::thread(thread);
        }
        self.release(vcpu);
        let waited_ns = self.machine.now_ns - self.threads[thread].wait_since_ns;
        if !reads {
            self.machine.emit(TraceEvent::LockAcquired { vcpu, lock, waited_ns });
        }
        self.hold_sleeping(vcpu, thread, lock);
    }

    /// The lock of the list is held: whoever is next gets what it slept for, or may try.
    pub(crate) fn wake_from_list(&mut self, vcpu: VcpuId) {
        let lock = LockId::new(self.guest[vcpu].frame().arg);
        let woken = if self.locks[lock].wait == Wait::SpinOrSleep {
            self.sleeps_for(lock).into_iter().collect()
        } else {
            self.hand_semaphore_on(vcpu, lock)
        };
        for &thread in &woken {
            self.threads[thread].granted = lock;
        }
        self.wake_from_queue(vcpu, woken);
    }

    fn hand_semaphore_on(&mut self, vcpu: VcpuId, lock: LockId) -> Vec<ThreadId> {
        if self.locks[lock].owner != Holder::READERS {
            self.machine.emit(TraceEvent::LockReleased { vcpu, lock });
        }
        let (threads, state) = (&self.threads, &mut self.locks[lock]);
        let reads = |waiter: &Holder| threads[waiter.as_thread()].reads;
        let readers = state.waiters.iter().take_while(|waiter| reads(waiter)).count();
        let count = readers.max(1).min(state.waiters.len());
        let woken = state.waiters.drain(..count).map(Holder::as_thread).collect::<Vec<_>>();
        state.owner = match woken.first() {
            Some(_) if readers > 0 => Holder::READERS,
            Some(&writer) => Holder::thread(writer),
            None => Holder::NONE,
        };
        if let Some(Beside::Readers(holding)) = state.beside.as_deref_mut() {
            *holding = readers as u32;
        }
        woken
    }

    /// The active frame holds the lock of a queue, and wakes these. It gives that lock up behind them, or
    /// before, by its kernel.
    pub(crate) fn wake_from_queue(&mut self, vcpu: VcpuId, woken: impl IntoIterator<Item = ThreadId>) {
        let vm = self.machine.vcpus[vcpu].vm;
        if self.vms[vm].kernel.wait_lists == Some(WakesUp::AfterLock) {
            self.release(vcpu);
            return self.guest[vcpu].wake_later(0, woken);
        }
        let guest = &mut self.guest[vcpu];
        let lock = std::mem::replace(&mut guest.frame_mut().lock, LockId::NONE);
        guest.set_wakes_under_lock(true);
        self.threads[guest.thread].wakes_under = lock;
        guest.wake_later(0, woken);
    }
}
