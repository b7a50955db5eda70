//! A pCPU's queue of groups, and each group's queue of tasks, or of groups that lie in it.

use super::entity::{Entity, Sums, WEIGHT, pick};
use super::load::Load;
use crate::ids::{IdVec, VcpuId, VmId};

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

/// A VM on a pCPU, or a cgroup around VMs.
#[derive(Debug)]
pub(super) struct Group {
    /// Cgroups around VMs have the numbers behind the VMs'.
    pub(super) vm: VmId,
    /// The group in whose queue it stands; `NONE`: it is the pCPU's.
    pub(super) parent: VmId,
    /// In its parent's queue, while there is any task.
    pub(super) entity: Entity,
    pub(super) lag: Lag,
    pub(super) tasks: Vec<Task>,
    /// Groups in its queue that have any task.
    pub(super) inner: u32,
    /// Of the tasks, the target of a yield; or none.
    pub(super) next: VcpuId,
    /// Likewise, of the groups.
    pub(super) next_inner: VmId,
    pub(super) load: Load,
    /// As much of the load is in the VM's sum.
    pub(super) counted: u64,
    /// Where in the queue's time the average was when a vCPU was in it last.
    pub(super) zero_ns: i64,
}

impl Group {
    pub(super) fn new(vm: VmId, parent: VmId) -> Self {
        Self {
            vm,
            parent,
            entity: Entity::new(WEIGHT),
            lag: Lag::default(),
            tasks: Vec::new(),
            inner: 0,
            next: VcpuId::NONE,
            next_inner: VmId::NONE,
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

    /// Whether it has no task, itself or in a group.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.inner == 0
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

    /// Returns the group of a VM, or of a cgroup, of which `parents` says where it lies. It is made if it
    /// isn't there.
    pub(super) fn place_or_new(&mut self, vm: VmId, parents: &IdVec<VmId, VmId>) -> usize {
        if let Some(at) = self.place_of(vm) {
            return at;
        }
        let parent = parents[vm];
        if parent != VmId::NONE {
            self.place_or_new(parent, parents);
        }
        self.groups.push(Group::new(vm, parent));
        self.groups.len() - 1
    }

    /// Returns the group in whose queue this one stands.
    #[inline]
    pub(super) fn around(&self, at: usize) -> Option<usize> {
        let parent = self.groups[at].parent;
        if parent == VmId::NONE { None } else { self.place_of(parent) }
    }

    /// Returns the groups of this VM and of the cgroups around it, the innermost first.
    pub(super) fn levels(&self, vm: VmId) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(self.place_of(vm), |&at| self.around(at))
    }

    /// Returns the one of these levels that stands in the queue of `parent`.
    #[inline]
    pub(super) fn level_in(&self, parent: VmId, vm: VmId) -> Option<usize> {
        let mut at = self.place_of(vm)?;
        while self.groups[at].parent != parent {
            at = self.around(at)?;
        }
        Some(at)
    }

    /// Returns the innermost group that has both; `NONE`: the pCPU's queue.
    pub(super) fn around_both(&self, vm: VmId, other: VmId) -> VmId {
        let around = self.levels(vm).skip(1).map(|at| self.groups[at].vm);
        around.into_iter().find(|&around| self.is_within(other, around)).unwrap_or(VmId::NONE)
    }

    /// Whether a VM, or a cgroup, is this one or lies in it.
    pub(super) fn is_within(&self, vm: VmId, outer: VmId) -> bool {
        self.levels(vm).any(|at| self.groups[at].vm == outer)
    }

    /// Returns what stands in the queue of a group, or of the pCPU.
    #[inline]
    pub(super) fn queued_in(&self, parent: VmId) -> impl Iterator<Item = (usize, &Entity)> + Clone {
        let is_queued = move |group: &Group| group.parent == parent && !group.is_empty();
        let groups = self.groups.iter().enumerate().filter(move |(_, group)| is_queued(group));
        groups.map(|(at, group)| (at, &group.entity))
    }

    pub(super) fn queued(&self) -> impl Iterator<Item = (usize, &Entity)> + Clone {
        self.queued_in(VmId::NONE)
    }

    /// Of all in the queue where this group stands.
    pub(super) fn sums_around(&self, at: usize) -> Sums {
        Sums::of(self.queued_in(self.groups[at].parent).map(|(_, entity)| entity))
    }

    /// Likewise, without it.
    pub(super) fn sums_without(&self, at: usize) -> Sums {
        let around = self.queued_in(self.groups[at].parent);
        Sums::of(around.filter(|&(other, _)| other != at).map(|(_, entity)| entity))
    }

    /// What stands in a group's queue weighs (`cfs_rq->load`).
    pub(super) fn load_in(&self, at: usize) -> u64 {
        let group = &self.groups[at];
        match group.inner {
            0 => group.tasks.len() as u64 * WEIGHT,
            _ => self.queued_in(group.vm).map(|(_, entity)| entity.weight).sum(),
        }
    }

    /// The target of a yield in a group's queue, or in the pCPU's.
    pub(super) fn next_in(&mut self, parent: VmId) -> &mut VmId {
        match self.place_of(parent) {
            Some(at) => &mut self.groups[at].next_inner,
            None => &mut self.next,
        }
    }

    /// Names this one of a VM's vCPUs, and its levels, to go first (`set_next_buddy`).
    pub(super) fn set_next(&mut self, vm: VmId, vcpu: VcpuId) {
        if let Some(at) = self.place_of(vm) {
            self.groups[at].next = vcpu;
        }
        let mut level = Some(vm);
        while let Some(vm) = level {
            let at = self.place_of(vm);
            let parent = at.map_or(VmId::NONE, |at| self.groups[at].parent);
            *self.next_in(parent) = vm;
            level = Some(parent).filter(|&parent| parent != VmId::NONE);
        }
    }

    /// A group that has its first task comes into the queue that it stands in, and so do those around it.
    pub(super) fn enqueue_group(&mut self, mut at: usize, slice_ns: u64) {
        loop {
            // Its weight first: what it stands for is in the queue by now, and it isn't.
            let others = self.sums_without(at);
            let around = self.around(at);
            let zero_ns = around.map_or(self.zero_ns, |around| self.groups[around].zero_ns);
            let group = &mut self.groups[at];
            let lag_ns = group.lag.left_ns(others.average_ns());
            let entity = &mut group.entity;
            entity.place(&others, zero_ns, lag_ns);
            entity.deadline_ns = entity.vruntime_ns + entity.weighted_ns(slice_ns);
            entity.protected_until_ns = entity.vruntime_ns;
            let Some(around) = around else { return };
            let was_empty = self.groups[around].is_empty();
            self.groups[around].inner += 1;
            if !was_empty {
                return;
            }
            at = around;
        }
    }

    /// A vCPU of another VM runs: the levels that it doesn't share with the one before are picked.
    pub(super) fn levels_change(&mut self, vm: VmId) {
        let around = self.around_both(vm, self.running_vm);
        let mut level = self.place_of(vm);
        while let Some(at) = level {
            self.groups[at].entity.is_picked();
            level = self.around(at).filter(|&outer| self.groups[outer].vm != around);
        }
    }

    /// The one that runs is the target of a yield no longer, at any level.
    pub(super) fn clear_next(&mut self, vm: VmId) {
        let mut level = vm;
        while level != VmId::NONE {
            let parent = self.place_of(level).map_or(VmId::NONE, |at| self.groups[at].parent);
            let next = self.next_in(parent);
            if *next == level {
                *next = VmId::NONE;
            }
            level = parent;
        }
    }

    /// Those that run or wait (`nr_running`).
    pub(super) fn tasks(&self) -> usize {
        self.groups.iter().map(|group| group.tasks.len()).sum()
    }

    pub(super) fn waiting(&self) -> usize {
        self.tasks() - usize::from(self.running != VcpuId::NONE)
    }

    /// From the pCPU's queue down.
    pub(super) fn pick_group(&self, ran_vm: VmId) -> Option<usize> {
        let (mut parent, mut next) = (VmId::NONE, self.next);
        loop {
            let at = pick(self.queued_in(parent), self.level_in(parent, ran_vm), self.place_of(next))?;
            let group = &self.groups[at];
            if group.inner == 0 {
                return Some(at);
            }
            (parent, next) = (group.vm, group.next_inner);
        }
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
        self.each_level(at, |group| group.entity.end_slice(slice_ns));
        let group = &mut self.groups[at];
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
        let running = self.running;
        let Some(at) = self.place_of(self.running_vm) else { return false };
        let mut group_is_over = false;
        let mut level = Some(at);
        while let Some(at) = level {
            let groups = self.queued_in(self.groups[at].parent).count();
            let entity = &mut self.groups[at].entity;
            let is_over = entity.charge(ran_ns, slice_ns) | !entity.is_protected();
            group_is_over |= is_over && groups > 1;
            level = self.around(at);
        }
        let group = &mut self.groups[at];
        let tasks = group.tasks.len();
        let of_task = group.tasks.iter_mut().find(|task| task.vcpu == running);
        let task_is_over =
            of_task.is_some_and(|task| task.entity.charge(ran_ns, slice_ns) | !task.entity.is_protected());
        group_is_over || (task_is_over && tasks > 1)
    }

    /// Does something with a group, and with those around it.
    pub(super) fn each_level(&mut self, at: usize, mut act: impl FnMut(&mut Group)) {
        let mut level = Some(at);
        while let Some(at) = level {
            act(&mut self.groups[at]);
            level = self.around(at);
        }
    }
}
