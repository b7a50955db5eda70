//! Linux 2.4's scheduler, whose CPUs take their threads from one list, and what a module can do about it
//! (VM'04, section 4.2).
//!
//! Problem.   A vCPU whose guest is idle may have lost its pCPU. Who wakes a thread suggests it to such a
//!            vCPU, where it waits for the host.
//! Mechanism. kernel/sched.c of Linux 2.4. Each CPU takes the ready thread with the greatest goodness,
//!            wherever it ran last. Goodness is what is left of a thread's slice, and more on the CPU that
//!            it prefers: where it ran last (`PROC_CHANGE_PENALTY`). Once no ready thread has anything left,
//!            all get a new slice (`recalculate`). Who wakes a thread looks for an idle CPU, first the
//!            preferred one (`reschedule_idle`); the thread stays on the list for whoever comes first.
//! Balloons.  Bound to a slower vCPU. Wakers don't take it for idle, and it takes no threads of others: its
//!            balloon comes before them, and gives the pCPU to the host.
//! Plans.     At each poll the module sets the preferred vCPU of threads that don't run. Each vCPU is
//!            preferred by as many as it is due then.
//! Limits.    Balloons never come before the threads of their vCPU. The bonus for the address space that is
//!            loaded, nice values and real-time threads are left out.

use crate::guest::ThreadState;
use crate::guest::balance::{Balancing, WHOLE};
use crate::simulation::Simulation;
use microslice_model::config::BalanceRule;
use microslice_model::ids::{ThreadId, VcpuId, VmId};

/// `PROC_CHANGE_PENALTY` of x86, include/asm-i386/smp.h.
const PREFERRED: u32 = 15;
/// `NICE_TO_TICKS(0)` at 100 Hz.
const SLICE_TICKS: u8 = 6;
/// Who is given less by so many thousandths of a pCPU is slower, as of the module for kernels of today
/// (`SHARE_TOLERANCE`, guest/balloon/balloons.h).
const TOLERANCE: u64 = 100;

/// How many of `threads` are due to each vCPU, by their shares: all of them, by the largest remainders.
fn due(shares: &[u64], threads: u64) -> Vec<u64> {
    let sum = shares.iter().sum::<u64>().max(1);
    let mut due: Vec<u64> = shares.iter().map(|share| share * threads / sum).collect();
    let mut order: Vec<usize> = (0..shares.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(shares[at] * threads % sum));
    let rest = threads - due.iter().sum::<u64>().min(threads);
    order.into_iter().cycle().take(rest as usize).for_each(|at| due[at] += 1);
    due
}

/// One balloon on each vCPU that is slower than the fastest.
pub fn balloons(shares: &[u64]) -> Vec<u64> {
    let most = shares.iter().copied().max().unwrap_or(0);
    shares.iter().map(|share| u64::from(most - share >= TOLERANCE)).collect()
}

impl Balancing {
    pub fn steals(&self) -> bool {
        self.config.rule == BalanceRule::WorkStealing
    }

    /// One more thread, whose slice is new.
    pub fn add_thread(&mut self) {
        if self.steals() {
            self.ticks_left.push(SLICE_TICKS);
        }
    }
}

impl Simulation<'_> {
    /// Whether the threads of its VM are on one list.
    #[inline]
    pub(crate) fn steals(&self, vcpu: VcpuId) -> bool {
        let vm = self.machine.vcpus[vcpu].vm;
        self.vms[vm].balancing.as_ref().is_some_and(Balancing::steals)
    }

    /// A balloon makes it seem busy to wakers.
    pub(crate) fn seems_busy(&self, vcpu: VcpuId) -> bool {
        let vm = &self.vms[self.machine.vcpus[vcpu].vm];
        let at = vcpu.since(vm.first_vcpu) as usize;
        vm.balancing.as_ref().is_some_and(|balancing| balancing.steals() && balancing.is_filled(at))
    }

    fn goodness(&self, thread: ThreadId, vcpu: VcpuId) -> u32 {
        let vm = &self.vms[self.threads[thread].vm];
        let at = thread.since(vm.first_thread) as usize;
        let prefers = self.threads[thread].vcpu == vcpu;
        match vm.balancing.as_ref().expect("its VM steals").ticks_left[at] {
            0 => 0,
            ticks => u32::from(ticks) + if prefers { PREFERRED } else { 0 },
        }
    }

    /// `preemption_goodness`: is the woken one better here than who runs?
    #[cold]
    pub(crate) fn woken_is_better(&self, vcpu: VcpuId, woken: ThreadId) -> bool {
        let running = self.guest[vcpu].thread;
        self.goodness(woken, vcpu) > self.goodness(running, vcpu) + 1
    }

    /// A tick of the running thread. Returns whether its slice is over.
    #[cold]
    pub(crate) fn spend_tick(&mut self, vcpu: VcpuId) -> bool {
        let thread = self.guest[vcpu].thread;
        if thread == ThreadId::NONE {
            return false;
        }
        let vm = &mut self.vms[self.threads[thread].vm];
        let at = thread.since(vm.first_thread) as usize;
        let left = &mut vm.balancing.as_mut().expect("its VM steals").ticks_left[at];
        *left = left.saturating_sub(1);
        *left == 0
    }

    /// `schedule`: takes the best of the list.
    #[cold]
    pub(crate) fn take_best_thread(&mut self, vcpu: VcpuId) -> Option<ThreadId> {
        let vm = self.machine.vcpus[vcpu].vm;
        let best = self.best_thread(vcpu, vm)?;
        if self.goodness(self.guest[best.0].queue[best.1], vcpu) > 0 {
            return self.guest[best.0].queue.remove(best.1);
        }
        for left in &mut self.vms[vm].balancing.as_mut().expect("its VM steals").ticks_left {
            *left = *left / 2 + SLICE_TICKS;
        }
        let (on, at) = self.best_thread(vcpu, vm)?;
        self.guest[on].queue.remove(at)
    }

    /// Where the best one is queued. Of equals the first, its own before others'.
    fn best_thread(&self, vcpu: VcpuId, vm: VmId) -> Option<(VcpuId, usize)> {
        let (first, count) = (self.vms[vm].first_vcpu, self.vms[vm].vcpus);
        let at = vcpu.since(first);
        let looked_at = if self.seems_busy(vcpu) { 1 } else { count };
        let mut best: Option<(u32, VcpuId, usize)> = None;
        for on in (0..looked_at).map(|step| first.plus((at + step) % count)) {
            for place in 0..self.guest[on].queue.len() {
                let thread = self.guest[on].queue[place];
                let goodness = self.goodness(thread, vcpu);
                let may = on == vcpu || !self.threads[thread].pinned;
                if may && best.is_none_or(|(most, ..)| goodness > most) {
                    best = Some((goodness, on, place));
                }
            }
        }
        best.map(|(_, on, place)| (on, place))
    }

    /// The module's plan: which vCPU each thread prefers that doesn't run.
    pub(crate) fn plan_preferred(&mut self, vm: VmId) {
        let (first, first_thread, count) =
            (self.vms[vm].first_vcpu, self.vms[vm].first_thread, self.vms[vm].threads);
        let threads = || (0..count).map(|at| first_thread.plus(at));
        let may_move = |thread: &Self, id: ThreadId| !thread.threads[id].pinned;
        let shares = self.vms[vm].balancing.as_ref().expect("its VM steals").shares();
        let planned = threads().filter(|&thread| may_move(self, thread)).count() as u64;
        let mut due = due(&shares, planned);
        let mut others = Vec::new();
        // Who runs keeps its place.
        let runs = |state: ThreadState| matches!(state, ThreadState::Running | ThreadState::Waking);
        let mut order: Vec<ThreadId> = threads().filter(|&thread| may_move(self, thread)).collect();
        order.sort_by_key(|&thread| !runs(self.threads[thread].state));
        for thread in order {
            let state = &self.threads[thread];
            match &mut due[state.vcpu.since(first) as usize] {
                0 if runs(state.state) => {}
                0 => others.push(thread),
                left => *left -= 1,
            }
        }
        for thread in others {
            let Some(at) = due.iter().position(|&left| left > 0) else { return };
            due[at] -= 1;
            self.prefer(thread, first.plus(at as u32));
        }
    }

    /// A ready thread isn't given to a vCPU that idles: nobody would call that one.
    fn prefer(&mut self, thread: ThreadId, vcpu: VcpuId) {
        let from = self.threads[thread].vcpu;
        let at = self.guest[from].queue.iter().position(|&queued| queued == thread);
        if at.is_some() && self.guest[vcpu].thread == ThreadId::NONE {
            return;
        }
        self.threads[thread].vcpu = vcpu;
        if let Some(at) = at {
            self.leave_queue(from, vcpu, thread);
            self.guest[from].queue.remove(at);
            self.guest[vcpu].queue.push_back(thread);
        }
    }
}

/// Of a whole pCPU.
const _: () = assert!(TOLERANCE < WHOLE);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_are_due_to_some_vcpu() {
        // VM'04's own case: 2.3 of ten threads belong to the vCPU with 30 %.
        assert_eq!(due(&[300, 1000], 10), [2, 8]);
        assert_eq!(due(&[1000, 1000, 1000], 10).iter().sum::<u64>(), 10);
        assert_eq!(due(&[0, 0], 3).iter().sum::<u64>(), 3, "nobody was given anything");
    }

    #[test]
    fn a_vcpu_that_is_slower_by_a_tenth_has_a_balloon() {
        assert_eq!(balloons(&[300, 1000]), [1, 0]);
        assert_eq!(balloons(&[901, 1000]), [0, 0]);
    }
}
