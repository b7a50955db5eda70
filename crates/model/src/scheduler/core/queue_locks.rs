//! Locks of queues: how long each is held, which pCPUs wait for it, and which pCPU pays.
//!
//! Problem.   sched_ext's queues have a lock each. All that come while it is held wait. What it protects has
//!            to come from the caches of its last holder.
//! Formula.   held = hold + LINES_MOVED x (0 on the same pCPU, `line_near` within a last-level cache,
//!            `line_far` beyond) waited = until the operation before has ended; first come, first served, as
//!            the kernel's queued spinlocks
//! Limits.    What is chosen doesn't change by having waited. A spinner's own traffic slows no other, so long
//!            queues are dearer than here. A pCPU that finds a queue empty takes no lock (`list_empty` in
//!            `consume_dispatch_q`, kernel/sched/ext.c).

use super::queues::Place;
use crate::config::QueueLockCosts;
use crate::counters::QueueLockTimes;
use crate::ids::{DomainQueueId, IdVec, PcpuId};
use crate::machine::{Distance, Machine};

/// The lock's own line, the queue's head and root, and the neighbour in the tree that an entry is tied to.
const LINES_MOVED: u64 = 3;

#[derive(Clone, Copy)]
struct Lock {
    free_at_ns: u64,
    held_by: PcpuId,
}

pub struct QueueLocks {
    costs: Option<QueueLockCosts>,
    /// Of each queue's boosted, and of its others.
    locks: IdVec<DomainQueueId, [Lock; 2]>,
    /// Of each pCPU, not asked for so far.
    times: IdVec<PcpuId, QueueLockTimes>,
}

impl QueueLocks {
    pub fn new(machine: &Machine, queues: usize) -> Self {
        let queues = if machine.queue_locks.is_some() { queues } else { 0 };
        Self {
            costs: machine.queue_locks.clone(),
            locks: IdVec::of([Lock { free_at_ns: 0, held_by: PcpuId::NONE }; 2], queues),
            times: IdVec::of(QueueLockTimes::default(), machine.pcpus.len()),
        }
    }

    /// A pCPU puts a vCPU there, takes one away, or looks at the first one.
    pub fn operate(&mut self, machine: &Machine, place: Place, by: PcpuId) {
        let Some(costs) = &self.costs else { return };
        let (queue, which) = match place {
            Place::Boosted(queue, _) => (queue, 0),
            Place::Ordered(queue, _) => (queue, 1),
            Place::Nowhere | Place::Local(_) => return,
        };
        let lock = &mut self.locks[queue][which];
        let line_ns = match lock.held_by {
            PcpuId::NONE => 0,
            before if before == by => 0,
            before if machine.distance(before, by) > Distance::Cache => costs.line_far_ns,
            _ => costs.line_near_ns,
        };
        let held_ns = costs.hold_ns + LINES_MOVED * line_ns;
        let waited_ns = lock.free_at_ns.saturating_sub(machine.now_ns);
        *lock = Lock { free_at_ns: machine.now_ns + waited_ns + held_ns, held_by: by };
        self.times[by] += QueueLockTimes { operations: 1, held_ns, waited_ns, longest_wait_ns: waited_ns };
    }

    /// What they have cost a pCPU since this was asked last.
    pub fn take_times(&mut self, pcpu: PcpuId) -> QueueLockTimes {
        std::mem::take(&mut self.times[pcpu])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HostConfig;
    use crate::ids::VcpuId;
    use crate::samples;
    use crate::scheduler::core::queues::Waiter;

    const COSTS: QueueLockCosts = QueueLockCosts { hold_ns: 40, line_near_ns: 50, line_far_ns: 130 };

    /// Of four pCPUs with two last-level caches.
    fn machine(costs: Option<QueueLockCosts>) -> Machine {
        let host =
            HostConfig { pcpus: 4, llc_pcpus: 2, smt_threads: 1, queue_locks: costs, ..samples::host() };
        Machine::new(&host, Vec::new())
    }

    fn place(queue: u32) -> Place {
        Place::Ordered(DomainQueueId::new(queue), Waiter::of(VcpuId::new(0)))
    }

    #[test]
    fn a_pcpu_that_comes_while_a_lock_is_held_waits_and_lines_come_from_the_last_holder() {
        let machine = machine(Some(COSTS));
        let mut locks = QueueLocks::new(&machine, 2);
        let mut on = |pcpu, queue| {
            locks.operate(&machine, place(queue), PcpuId::new(pcpu));
            let QueueLockTimes { operations, held_ns, waited_ns, .. } = locks.take_times(PcpuId::new(pcpu));
            assert_eq!(operations, 1);
            (held_ns, waited_ns)
        };
        assert_eq!(on(0, 0), (40, 0));
        assert_eq!(on(0, 0), (40, 40), "its lines are here");
        assert_eq!(on(1, 0), (40 + 3 * 50, 80));
        assert_eq!(on(2, 0), (40 + 3 * 130, 80 + 190), "from another last-level cache");
        assert_eq!(on(3, 1), (40, 0), "another queue");
        assert_eq!(locks.take_times(PcpuId::new(3)), QueueLockTimes::default(), "asked for before");
    }

    #[test]
    fn a_host_that_names_no_costs_has_none() {
        let machine = machine(None);
        let mut locks = QueueLocks::new(&machine, 1);
        locks.operate(&machine, place(0), PcpuId::new(0));
        assert_eq!(locks.take_times(PcpuId::new(0)), QueueLockTimes::default());
    }
}
