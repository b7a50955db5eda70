//! A pCPU's queue of groups, and each group's queue of tasks.

use super::entity::{Entity, Sums, WEIGHT, pick};
use super::load::Load;
use crate::ids::{VcpuId, VmId};

/// What an entity takes along when it leaves a queue (`update_entity_lag`).
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Lag {
    pub(super) ns: i64,
    /// The queue's average then.
    pub(super) average_ns: i64,
}

impl Lag {
    /// What is left of it now: a sleeper that had more than its due loses that as the queue's others run.
    /// `None`: nothing is in the queue.
    pub(super) fn left_ns(self, average_ns: Option<i64>) -> i64 {
        match average_ns {
            _ if self.ns >= 0 => self.ns,
            Some(average_ns) => (self.ns + (average_ns - self.average_ns).max(0)).min(0),
            None => 0,
        }
    }
}

/// A vCPU's group, or its only thread: it runs, or waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Task {
    pub(super) vcpu: VcpuId,
    pub(super) entity: Entity,
}

/// A VM on a pCPU.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) vm: VmId,
    /// In the pCPU's queue, while there is any task.
    pub(super) entity: Entity,
    pub(super) lag: Lag,
    pub(super) tasks: Vec<Task>,
    /// Of the tasks, the target of a yield; or none.
    pub(super) next: VcpuId,
    pub(super) load: Load,
    /// As much of the load is in the VM's sum.
    pub(super) counted: u64,
    /// Where in the queue's time the average was when a vCPU was in it last.
    pub(super) zero_ns: i64,
}

impl Group {
    pub(super) fn new(vm: VmId) -> Self {
        Self {
            vm,
            entity: Entity::new(WEIGHT),
            lag: Lag::default(),
            tasks: Vec::new(),
            next: VcpuId::NONE,
            load: Load::default(),
            counted: 0,
            zero_ns: 0,
        }
    }

    pub(super) fn sums(&self) -> Sums {
        Sums::of(self.tasks.iter().map(|task| &task.entity))
    }

    pub(super) fn place_of(&self, vcpu: VcpuId) -> Option<usize> {
        self.tasks.iter().position(|task| task.vcpu == vcpu)
    }

    /// What its tasks weigh.
    pub(super) fn weight_of_tasks(&self) -> u64 {
        self.tasks.len() as u64 * WEIGHT
    }

    pub(super) fn pick(&self, ran: VcpuId) -> Option<usize> {
        let entities = self.tasks.iter().map(|task| &task.entity).enumerate();
        pick(entities, self.place_of(ran), self.place_of(self.next))
    }
}

/// A pCPU's queue.
pub(super) struct Queue {
    /// Also those whose load hasn't faded yet.
    pub(super) groups: Vec<Group>,
    pub(super) running: VcpuId,
    pub(super) running_vm: VmId,
    /// The VM that is the target of a yield, or none.
    pub(super) next: VmId,
    pub(super) charged_until_ns: u64,
    /// Since when `running` does.
    pub(super) since_ns: u64,
    pub(super) zero_ns: i64,
    /// When a directed yield last ended a turn here that wasn't over.
    pub(super) forced_ns: Option<u64>,
}

impl Queue {
    pub(super) fn new() -> Self {
        Self {
            groups: Vec::new(),
            running: VcpuId::NONE,
            running_vm: VmId::NONE,
            next: VmId::NONE,
            charged_until_ns: 0,
            since_ns: 0,
            zero_ns: 0,
            forced_ns: None,
        }
    }

    pub(super) fn place_of(&self, vm: VmId) -> Option<usize> {
        self.groups.iter().position(|group| group.vm == vm)
    }

    pub(super) fn queued(&self) -> impl Iterator<Item = (usize, &Entity)> + Clone {
        let groups = self.groups.iter().enumerate().filter(|(_, group)| !group.tasks.is_empty());
        groups.map(|(at, group)| (at, &group.entity))
    }

    /// Of all groups but this one.
    pub(super) fn sums_without(&self, at: usize) -> Sums {
        Sums::of(self.queued().filter(|&(other, _)| other != at).map(|(_, entity)| entity))
    }

    /// Those that run or wait (`nr_running`).
    pub(super) fn tasks(&self) -> usize {
        self.groups.iter().map(|group| group.tasks.len()).sum()
    }

    pub(super) fn waiting(&self) -> usize {
        self.tasks() - usize::from(self.running != VcpuId::NONE)
    }

    pub(super) fn pick_group(&self, ran_vm: VmId) -> Option<usize> {
        pick(self.queued(), self.place_of(ran_vm), self.place_of(self.next))
    }

    /// The one that would be next, if `ran` of `ran_vm` ran until now, and may go on.
    pub(super) fn pick(&self, ran_vm: VmId, ran: VcpuId) -> Option<(VmId, VcpuId)> {
        let group = &self.groups[self.pick_group(ran_vm)?];
        let task = &group.tasks[group.pick(ran)?];
        Some((group.vm, task.vcpu))
    }

    /// The running one has had its slice, by the window that its turn ends in
    /// ([`crate::scheduler::mechanisms`]).
    pub(super) fn end_turn(&mut self, slice_ns: u64) {
        let running = self.running;
        let Some(at) = self.place_of(self.running_vm) else { return };
        let group = &mut self.groups[at];
        group.entity.end_slice(slice_ns);
        if let Some(task) = group.tasks.iter_mut().find(|task| task.vcpu == running) {
            task.entity.end_slice(slice_ns);
        }
    }

    /// What ran here is charged (`update_curr`, at both levels). Whether another one may be the one to run.
    pub(super) fn charge(&mut self, now_ns: u64, slice_ns: u64) -> bool {
        let ran_ns = now_ns - std::mem::replace(&mut self.charged_until_ns, now_ns);
        if self.running == VcpuId::NONE {
            return false;
        }
        let groups = self.queued().count();
        let running = self.running;
        let Some(at) = self.place_of(self.running_vm) else { return false };
        let group = &mut self.groups[at];
        let is_over = group.entity.charge(ran_ns, slice_ns) | !group.entity.is_protected();
        let tasks = group.tasks.len();
        let of_task = group.tasks.iter_mut().find(|task| task.vcpu == running);
        let task_is_over =
            of_task.is_some_and(|task| task.entity.charge(ran_ns, slice_ns) | !task.entity.is_protected());
        (is_over && groups > 1) || (task_is_over && tasks > 1)
    }
}
