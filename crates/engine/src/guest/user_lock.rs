//! Spinlocks of programs, and what their holders say to the host.
//!
//! Problem.   A program's own lock is held in user mode, where no host sees it (EuroSys'18, section 4.4:
//!            "certain critical codes in applications"). A holder that loses its pCPU makes its siblings spin
//!            for a turn.
//! Mechanism. Test-and-set: a waiter looks every microsecond. Pause-loop exits are of the kernel alone
//!            (Intel's SDM: CPL 0). Whoever has taken it says "not now" by the device of `microslice_hints`
//!            (guest/hints/microslice_user.h), if the phase has a hint and the kernel the module. It takes
//!            that back behind the release. A system call is made for each. The hint is the vCPU's while the
//!            thread runs: a switch of the guest's scheduler takes it back for good.
//! Limits.    Waiters say nothing. To the guest's scheduler a holder is a thread like all others.

use crate::guest::program::NO_LOCK;
use crate::guest::{NOT_WOKEN, Then};
use crate::simulation::Simulation;
use crate::text;
use microslice_model::ids::{ThreadId, VcpuId};

/// Between two looks at a lock that is taken.
const LOOK_NS: u64 = 1_000;
/// A system call that finds its file and writes a word: an assumption.
const SAY_NS: u64 = 200;

/// A spinlock of a workload.
pub struct UserLock {
    /// With its workload's.
    pub name: String,
    pub owner: ThreadId,
    /// Index into the VM's lock statistics.
    pub statistics: u32,
    pub acquisitions: u64,
}

impl UserLock {
    pub fn new(name: String) -> Self {
        Self { name, owner: ThreadId::NONE, statistics: 0, acquisitions: 0 }
    }
}

impl Simulation<'_> {
    /// Takes it and goes on at once, or looks again. Returns whether that takes time.
    pub(crate) fn take_user_lock(&mut self, vcpu: VcpuId, thread: ThreadId, lock: u32) -> bool {
        let now_ns = self.machine.now_ns;
        let state = &mut self.threads[thread];
        let number = self.vms[state.vm].first_user_lock + lock;
        let lock = &mut self.user_locks[number as usize];
        if lock.owner != ThreadId::NONE {
            state.spins_since_ns = state.spins_since_ns.min(now_ns);
            state.pc -= 1;
            self.workloads[state.workload].computed_ns += LOOK_NS;
            self.timed(vcpu, Then::NextOp, text::USER, LOOK_NS);
            return true;
        }
        lock.owner = thread;
        lock.acquisitions += 1;
        state.user_lock = number;
        let since_ns = std::mem::replace(&mut state.spins_since_ns, NOT_WOKEN);
        if since_ns != NOT_WOKEN {
            self.measured.lock_taken_after(state.vm, lock.statistics, now_ns - since_ns);
        }
        false
    }

    pub(crate) fn give_up_user_lock(&mut self, thread: ThreadId) {
        let number = std::mem::replace(&mut self.threads[thread].user_lock, NO_LOCK);
        self.user_locks[number as usize].owner = ThreadId::NONE;
    }

    /// The thread makes a system call: for so long its vCPU isn't to be preempted.
    pub(crate) fn say(&mut self, vcpu: VcpuId, thread: ThreadId, ns: u32, symbol: u16) {
        self.threads[thread].says_ns = ns;
        self.timed(vcpu, Then::NextOp, symbol, SAY_NS);
    }

    /// The guest's scheduler takes the running thread off its vCPU.
    pub(crate) fn take_back(&mut self, vcpu: VcpuId) {
        let thread = self.guest[vcpu].thread;
        if thread != ThreadId::NONE {
            self.threads[thread].says_ns = 0;
        }
    }

    /// What the program says that a vCPU runs; 0: nothing.
    pub(crate) fn said_by_program(&self, vcpu: VcpuId) -> u32 {
        let thread = self.guest[vcpu].thread;
        if thread == ThreadId::NONE { 0 } else { self.threads[thread].says_ns }
    }

    /// Counts the preemption of a vCPU whose thread holds a lock of its program.
    pub(crate) fn count_preempted_user(&mut self, vcpu: VcpuId) {
        let thread = self.guest[vcpu].thread;
        if thread != ThreadId::NONE && self.threads[thread].user_lock != NO_LOCK {
            let state = &self.threads[thread];
            let statistics = self.user_locks[state.user_lock as usize].statistics;
            self.measured.count_holder_preemption(state.vm, statistics);
        }
    }
}
