//! EEVDF among the threads of a vCPU, as in guests of today.
//!
//! Mechanism. Linux 6.12, kernel/sched/fair.c. A thread is eligible while it has had no more than the average
//!            of its runqueue (`entity_eligible`). Of the eligible ones the earliest deadline runs
//!            (`pick_eevdf`), until its slice is over or it is eligible no longer (`RUN_TO_PARITY`).
//!            `update_curr` looks at that at ticks, and when a thread wakes. One that wakes is placed by the
//!            lag that it left with (`place_entity`), and preempts if it would be picked
//!            (`check_preempt_wakeup_fair`). Lag is at most two slices, or a tick. A debt is over once the
//!            others have caught up (`DELAY_DEQUEUE`, `DELAY_ZERO`). A slice is 0.75 ms times one plus the
//!            logarithm of the number of vCPUs, of up to eight (`get_update_sysctl_factor`).
//! What for.  Time is the runqueue's: what the host stole isn't counted, if the guest knows of it
//!            (`update_rq_clock_task`).
//! Limits.    Threads have equal weights. A thread that sleeps in debt doesn't count in the average.

use crate::guest::ThreadState;
use crate::reporting::run_and_wait_ns;
use crate::simulation::Simulation;
use microslice_model::ids::{IdVec, ThreadId, VcpuId};

/// Times of guests, which may be behind others.
type Virtual = i64;

#[derive(Clone, Copy, Default)]
struct Runqueue {
    /// The running thread's time is counted until here, and how long the vCPU had waited by then.
    charged_ns: u64,
    waited_ns: u64,
    /// The average when it was looked at last: where the next thread begins if there is none.
    zero: Virtual,
}

#[derive(Clone, Copy, Default)]
struct Entity {
    vruntime: Virtual,
    deadline: Virtual,
    /// The deadline it was picked for: it runs to that one.
    picked_for: Virtual,
    /// What it is due, if it sleeps.
    lag: Virtual,
    /// Where it sleeps.
    slept_on: VcpuId,
}

/// Of guests whose threads are under EEVDF; empty if there are none.
#[derive(Default)]
pub struct ThreadClocks {
    runqueues: IdVec<VcpuId, Runqueue>,
    entities: IdVec<ThreadId, Entity>,
}

impl ThreadClocks {
    pub fn new(vcpus: usize, threads: usize) -> Self {
        let entity = Entity { slept_on: VcpuId::NONE, ..Entity::default() };
        Self { runqueues: IdVec::of(Runqueue::default(), vcpus), entities: IdVec::of(entity, threads) }
    }
}

/// A guest's slice (`sysctl_sched_base_slice`), by that of one CPU.
pub fn base_slice_ns(normalized_ns: u64, vcpus: usize) -> u64 {
    normalized_ns.saturating_mul(1 + u64::from(vcpus.clamp(1, 8).ilog2()))
}

impl Simulation<'_> {
    fn slice(&self, vcpu: VcpuId) -> Virtual {
        self.vms[self.machine.vcpus[vcpu].vm].kernel.thread_slice_ns as Virtual
    }

    /// The running thread, unless it waits in the queue already or is about to sleep.
    fn current(&self, vcpu: VcpuId) -> Option<ThreadId> {
        let thread = self.guest[vcpu].thread;
        (thread != ThreadId::NONE && self.threads[thread].state == ThreadState::Running).then_some(thread)
    }

    /// How many threads a vCPU has, and their average.
    fn average(&self, vcpu: VcpuId) -> (Virtual, Virtual) {
        let clocks = &self.thread_clocks;
        let zero = clocks.runqueues[vcpu].zero;
        let threads = self.guest[vcpu].queue.iter().copied().chain(self.current(vcpu));
        let (count, sum) = threads.fold((0, 0), |(count, sum), thread| {
            (count + 1, sum + i128::from(clocks.entities[thread].vruntime - zero))
        });
        let average = if count == 0 { zero } else { zero + (sum / i128::from(count)) as Virtual };
        (count, average)
    }

    /// `update_curr`: the running thread has had the time since the last call. Returns whether its slice is
    /// over.
    pub(crate) fn charge_thread(&mut self, vcpu: VcpuId) -> bool {
        let (now_ns, slice) = (self.machine.now_ns, self.slice(vcpu));
        let host = &self.machine.vcpus[vcpu];
        let knows_steal = self.vms[host.vm].kernel.features.steal_time;
        let (_, waited_ns) = run_and_wait_ns(host, self.measured.since_ns(), now_ns);
        let runqueue = &mut self.thread_clocks.runqueues[vcpu];
        let stolen_ns = if knows_steal { waited_ns.saturating_sub(runqueue.waited_ns) } else { 0 };
        let ran_ns = (now_ns - runqueue.charged_ns).saturating_sub(stolen_ns);
        (runqueue.charged_ns, runqueue.waited_ns) = (now_ns, waited_ns);
        let Some(thread) = self.current(vcpu) else { return false };
        let entity = &mut self.thread_clocks.entities[thread];
        entity.vruntime += ran_ns as Virtual;
        let is_over = entity.vruntime >= entity.deadline;
        if is_over {
            entity.deadline = entity.vruntime + slice;
        }
        self.thread_clocks.runqueues[vcpu].zero = self.average(vcpu).1;
        is_over
    }

    /// `place_entity`: the thread comes to the vCPU, in whose queue it isn't yet.
    pub(crate) fn place_thread(&mut self, vcpu: VcpuId, thread: ThreadId) {
        self.charge_thread(vcpu);
        let slice = self.slice(vcpu);
        let (count, average) = self.average(vcpu);
        let entity = &mut self.thread_clocks.entities[thread];
        let mut lag = entity.lag;
        if lag < 0 && entity.slept_on == vcpu {
            lag = (average - entity.vruntime).clamp(lag, 0);
        }
        // Its own weight moves the average.
        let lag = if count == 0 { 0 } else { lag * (count + 1) / count };
        (entity.vruntime, entity.slept_on) = (average - lag, VcpuId::NONE);
        entity.deadline = entity.vruntime + slice;
    }

    /// `dequeue_entity`: the thread leaves the vCPU, to sleep there or to go to another.
    pub(crate) fn remove_thread(&mut self, vcpu: VcpuId, thread: ThreadId) {
        self.charge_thread(vcpu);
        let host_vm = self.machine.vcpus[vcpu].vm;
        let most = (2 * self.slice(vcpu)).max(self.vms[host_vm].kernel.tick_ns as Virtual);
        let average = self.average(vcpu).1;
        let entity = &mut self.thread_clocks.entities[thread];
        entity.lag = (average - entity.vruntime).clamp(-most, most);
        entity.slept_on = vcpu;
    }

    /// `pick_eevdf`: the place in the queue of the thread that runs next, or `None`: the running one.
    pub(crate) fn pick_thread(&self, vcpu: VcpuId) -> Option<usize> {
        let entities = &self.thread_clocks.entities;
        let (_, average) = self.average(vcpu);
        let current = self.current(vcpu).map(|thread| &entities[thread]);
        let current = current.filter(|entity| entity.vruntime <= average);
        if current.is_some_and(|entity| entity.picked_for == entity.deadline) {
            return None;
        }
        let queue = &self.guest[vcpu].queue;
        let eligible = (0..queue.len()).filter(|&at| entities[queue[at]].vruntime <= average);
        let first = eligible.min_by_key(|&at| entities[queue[at]].deadline);
        match (first, current) {
            (Some(at), Some(current)) => (entities[queue[at]].deadline < current.deadline).then_some(at),
            (None, Some(_)) => None,
            // Rounding may leave none.
            (first, None) => {
                first.or_else(|| (0..queue.len()).min_by_key(|&at| entities[queue[at]].vruntime))
            }
        }
    }

    /// `set_next_entity`: the thread runs from now on.
    pub(crate) fn run_thread(&mut self, vcpu: VcpuId, thread: ThreadId) {
        self.charge_thread(vcpu);
        let entity = &mut self.thread_clocks.entities[thread];
        entity.picked_for = entity.deadline;
    }

    /// `yield_task_fair`: its turn comes a slice later.
    pub(crate) fn put_thread_off(&mut self, vcpu: VcpuId, thread: ThreadId) {
        let slice = self.slice(vcpu);
        self.thread_clocks.entities[thread].deadline += slice;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_grow_with_the_logarithm_of_vcpus_up_to_eight() {
        let slices = [1, 2, 3, 4, 8, 64].map(|vcpus| base_slice_ns(750, vcpus));
        assert_eq!(slices, [750, 1_500, 1_500, 2_250, 3_000, 3_000]);
    }
}
