//! Threads that leave the fair class for a while and come back: what `__sched_setscheduler` does
//! (kernel/sched/syscalls.c, 6.18).
//!
//! Problem.   A real-time thread runs before all others, and what it runs is charged to nobody here.
//! Mechanism. A vCPU that leaves is dequeued with its lag and what is left of its slice (`DEQUEUE_SAVE`;
//!            `update_entity_lag`, `PLACE_REL_DEADLINE`). It comes back with both, on the pCPU where it is
//!            then (`place_entity`). The vCPU that ran where it goes first waits meanwhile, as if it had been
//!            preempted.

use super::{Eevdf, Task};
use crate::events::StopReason;
use crate::ids::{PcpuId, VcpuId, VmId};
use crate::machine::{Machine, VcpuState};
use crate::scheduler::{Pick, Scheduler};

/// The kernel's own scheduler, as one that boosts threads beside it meets it.
pub trait FairClass: Scheduler {
    /// In whose queue it waits.
    fn queue_of(&self, machine: &Machine, vcpu: VcpuId) -> PcpuId;
    /// A vCPU that waits leaves this class. False: it waits nowhere.
    fn leaves(&mut self, machine: &Machine, vcpu: VcpuId) -> bool;
    /// Another class takes this pCPU: the vCPU that ran there waits.
    fn gives_way(&mut self, machine: &Machine, pcpu: PcpuId, stopped: Option<(VcpuId, StopReason)>);
    /// It is in this class again, on a pCPU that it ran on until now. Then that pCPU chooses.
    fn comes_back(&mut self, machine: &mut Machine, pcpu: PcpuId, vcpu: VcpuId) -> Option<Pick>;
    /// Its group has this weight from now on. Without groups there is none.
    fn set_weight(&mut self, _machine: &Machine, _vm: VmId, _weight: u32) {}
}

/// A vCPU that another class schedules, as it comes back.
#[derive(Debug, Clone, Copy)]
pub(super) struct Away {
    task: Task,
    /// How far its runtime is ahead of its queue's.
    lag_ns: i64,
}

impl Away {
    /// On a queue whose runtimes begin there.
    fn back(self, floor_ns: u64) -> Task {
        let vruntime_ns = (floor_ns as i64 + self.lag_ns).max(0) as u64;
        let left_ns = self.task.deadline_ns - self.task.vruntime_ns.min(self.task.deadline_ns);
        Task { vruntime_ns, deadline_ns: vruntime_ns + left_ns, ..self.task }
    }
}

impl FairClass for Eevdf {
    fn queue_of(&self, _machine: &Machine, vcpu: VcpuId) -> PcpuId {
        self.waits_on[vcpu]
    }

    fn leaves(&mut self, machine: &Machine, vcpu: VcpuId) -> bool {
        let pcpu = self.waits_on[vcpu];
        if pcpu == PcpuId::NONE {
            return false;
        }
        let Some(at) = self.queues[pcpu].waiting().position(|task| task.vcpu == vcpu) else { return false };
        self.queues[pcpu].charge(&self.vms, machine.now_ns);
        let task = self.dequeue(pcpu, at);
        let lag_ns = task.vruntime_ns as i64 - self.queues[pcpu].floor_ns as i64;
        self.away[vcpu] = Some(Away { task, lag_ns });
        true
    }

    fn gives_way(&mut self, machine: &Machine, pcpu: PcpuId, stopped: Option<(VcpuId, StopReason)>) {
        let ran = self.stops(machine, pcpu, stopped);
        if ran.vcpu != VcpuId::NONE {
            self.enqueue(pcpu, ran);
        }
        self.idle.set(pcpu, false);
    }

    fn comes_back(&mut self, machine: &mut Machine, pcpu: PcpuId, vcpu: VcpuId) -> Option<Pick> {
        let task = self.away[vcpu].take()?.back(self.queues[pcpu].floor_ns);
        if machine.vcpus[vcpu].state == VcpuState::Blocked {
            self.blocked[vcpu] = task;
            return self.choose(machine, pcpu, Task::NOBODY);
        }
        self.choose(machine, pcpu, task)
    }
}
