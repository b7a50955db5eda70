//! Paravirtual queued spinlocks of today: a queue from which newcomers may steal.
//!
//! Problem.   A lock that goes to the first in line waits for that one's vCPU, however long it doesn't run.
//! Mechanism. Linux 6.12, kernel/locking/qspinlock_paravirt.h. The head of the queue sets the pending bit
//!            while it spins (`pv_wait_head_or_lock`). A newcomer that doesn't see the bit takes the lock
//!            when it is free. While there is a queue it spins for that, beside it; else it queues
//!            (`pv_hybrid_queued_unfair_trylock`). Head and others halt after SPIN_THRESHOLD loops. One
//!            behind a waiter that has halted does so sooner: it looks every 256 loops (`pv_wait_early`,
//!            `PV_PREV_CHECK_MASK`). A halted one that becomes the head sleeps on until the lock is given up
//!            (`pv_kick_node`). Then it is kicked, and competes with whoever steals
//!            (`__pv_queued_spin_unlock_slowpath`).
//! What for.  A head that is preempted while it spins has the bit set: nobody steals, and all wait for it.
//!            One that is preempted before, or has halted, holds up nobody.
//! Limits.    The hash table of halted heads costs nothing.

use crate::guest::{Act, Beside, Holder, Lock};
use crate::simulation::{CACHE_LINE_NS, Simulation};
use microslice_model::ids::{LockId, VcpuId};

/// One look at the one before, of 2^15 loops (`PV_PREV_CHECK_MASK`, `SPIN_THRESHOLD`).
const CHECKS: u64 = (1 << 15) / (1 << 8);

/// What a hybrid lock has beside its queue.
#[derive(Default)]
pub struct Stealers {
    /// The head spins for it.
    pub pending: bool,
    /// Newcomers that spin to steal it.
    pub spinning: Vec<Holder>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Head,
    Behind(Holder),
    Stealer,
}

impl Lock {
    pub fn stealers(&self) -> &Stealers {
        match self.beside.as_deref() {
            Some(Beside::Stealers(stealers)) => stealers,
            _ => unreachable!("a hybrid lock has them"),
        }
    }

    fn stealers_mut(&mut self) -> &mut Stealers {
        match self.beside.as_deref_mut() {
            Some(Beside::Stealers(stealers)) => stealers,
            _ => unreachable!("a hybrid lock has them"),
        }
    }

    fn place_of(&self, waiter: Holder) -> Place {
        match self.waiters.iter().position(|&other| other == waiter) {
            None => Place::Stealer,
            Some(0) => Place::Head,
            Some(at) => Place::Behind(self.waiters[at - 1]),
        }
    }
}

impl Simulation<'_> {
    /// The active frame finds the lock taken, or the head about to take it.
    pub(crate) fn wait_for_hybrid(&mut self, vcpu: VcpuId, lock: LockId) {
        let me = Holder::frame(vcpu, self.guest[vcpu].depth);
        let state = &mut self.locks[lock];
        if state.waiters.is_empty() || state.stealers().pending {
            self.queue_for_hybrid(vcpu, lock, me);
        } else {
            state.stealers_mut().spinning.push(me);
            self.begin_spinning(vcpu);
        }
    }

    fn queue_for_hybrid(&mut self, vcpu: VcpuId, lock: LockId, me: Holder) {
        self.locks[lock].waiters.push_back(me);
        self.begin_spinning(vcpu);
        self.look_at_hybrid(vcpu);
    }

    /// For how long the active frame spins for such a lock before it halts.
    pub(crate) fn hybrid_spin_ns(&self, vcpu: VcpuId, lock: LockId) -> u64 {
        let me = Holder::frame(vcpu, self.guest[vcpu].depth);
        match self.locks[lock].place_of(me) {
            Place::Stealer => u64::MAX,
            Place::Head | Place::Behind(_) => self.vms[self.machine.vcpus[vcpu].vm].kernel.pv_spin_ns,
        }
    }

    /// A running waiter looks at the lock, its bit, and the one before it.
    pub(crate) fn look_at_hybrid(&mut self, vcpu: VcpuId) {
        let lock = self.guest[vcpu].frame().lock;
        let me = Holder::frame(vcpu, self.guest[vcpu].depth);
        let state = &self.locks[lock];
        let place = state.place_of(me);
        let (is_free, pending) = (state.owner == Holder::NONE, state.stealers().pending);
        let nobody_queues = state.waiters.is_empty();
        match place {
            Place::Head if is_free => self.take_hybrid(vcpu, lock, me, place),
            Place::Head if pending => {}
            Place::Head => {
                self.locks[lock].stealers_mut().pending = true;
                self.begin_spinning(vcpu);
                self.let_stealers_look(lock);
            }
            Place::Behind(before) if self.has_halted(before) => self.halt_early(vcpu),
            Place::Behind(_) => {}
            Place::Stealer if is_free && !pending => self.take_hybrid(vcpu, lock, me, place),
            Place::Stealer if pending || nobody_queues => {
                self.locks[lock].stealers_mut().spinning.retain(|&other| other != me);
                self.queue_for_hybrid(vcpu, lock, me);
            }
            Place::Stealer => {}
        }
    }

    fn take_hybrid(&mut self, vcpu: VcpuId, lock: LockId, me: Holder, place: Place) {
        let state = &mut self.locks[lock];
        state.owner = me;
        if place == Place::Head {
            state.waiters.pop_front();
            state.stealers_mut().pending = false;
        } else {
            state.stealers_mut().spinning.retain(|&other| other != me);
        }
        self.leave_spin(vcpu);
        self.take_granted(vcpu);
        if place == Place::Head {
            self.let_head_look(lock);
            self.let_stealers_look(lock);
        }
    }

    /// The holder, which runs, has given the lock up, and some wait for it.
    pub(crate) fn pass_hybrid_on(&mut self, vcpu: VcpuId, lock: LockId) {
        // One that has halted is kicked when the lock is free already.
        self.let_head_look(lock);
        self.let_stealers_look(lock);
        if let Some(&head) = self.locks[lock].waiters.front()
            && self.has_halted(head)
        {
            self.kick(vcpu, head.vcpu());
        }
    }

    /// It has spun enough: it halts.
    pub(crate) fn halt_for_hybrid(&mut self, vcpu: VcpuId) {
        let lock = self.guest[vcpu].frame().lock;
        let me = Holder::frame(vcpu, self.guest[vcpu].depth);
        let state = &mut self.locks[lock];
        let behind = state.waiters.iter().position(|&other| other == me).map(|at| at + 1);
        if behind == Some(1) {
            state.stealers_mut().pending = false;
        }
        self.halt_in_lock(vcpu);
        let next = behind.and_then(|at| self.locks[lock].waiters.get(at).copied());
        if let Some(next) = next {
            self.let_look(next);
        }
    }

    fn has_halted(&self, waiter: Holder) -> bool {
        self.guest[waiter.vcpu()].frames[usize::from(waiter.depth())].act == Act::HaltLock
    }

    /// It spins until it looks at the one before it the next time, and sees that.
    fn halt_early(&mut self, vcpu: VcpuId) {
        let check_ns = (self.vms[self.machine.vcpus[vcpu].vm].kernel.pv_spin_ns / CHECKS).max(1);
        let left_ns = &mut self.guest[vcpu].pv_spin_left_ns;
        *left_ns = (*left_ns % check_ns).max(CACHE_LINE_NS).min(*left_ns);
    }

    fn let_head_look(&mut self, lock: LockId) {
        if let Some(&head) = self.locks[lock].waiters.front() {
            self.let_look(head);
        }
    }

    /// Whichever of them is first, by chance.
    fn let_stealers_look(&mut self, lock: LockId) {
        let count = self.locks[lock].stealers().spinning.len();
        if count == 0 {
            return;
        }
        let mut stealers = self.locks[lock].stealers().spinning.clone();
        stealers.rotate_left(self.random.below(count as u32) as usize);
        for stealer in stealers {
            self.let_look(stealer);
        }
    }

    /// Something changed for this waiter: if it executes its loop it sees that.
    fn let_look(&mut self, waiter: Holder) {
        let vcpu = waiter.vcpu();
        let guest = &self.guest[vcpu];
        let executes =
            self.is_running(vcpu) && guest.depth == waiter.depth() && guest.frame().act == Act::SpinLock;
        if executes {
            self.sync(vcpu);
            self.look_at_hybrid(vcpu);
            self.retime(vcpu);
        }
    }
}
