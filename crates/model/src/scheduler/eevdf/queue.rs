//! A pCPU's queue under EEVDF: the running task, the waiting ones, and which of them is the next.

use crate::events::StopReason;
use crate::ids::{IdVec, VcpuId, VmId};
use crate::machine::{HostVm, Machine};
use std::hint::select_unpredictable;

/// Weight of a VM that says nothing.
const WEIGHT_DEFAULT: u32 = 256;

/// A vCPU as this scheduler knows it.
#[derive(Debug, Clone, Copy)]
pub struct Task {
    pub vruntime_ns: u64,
    pub deadline_ns: u64,
    pub vcpu: VcpuId,
    pub vm: VmId,
}

impl Task {
    /// It is never picked: nobody's deadline is later.
    pub const NOBODY: Self =
        Self { vruntime_ns: 0, deadline_ns: u64::MAX, vcpu: VcpuId::NONE, vm: VmId::NONE };

    pub fn new_deadline(&mut self, vm: &Vm, slice_ns: u64) {
        self.deadline_ns = self.vruntime_ns + vm.weighted_ns(slice_ns);
    }

    /// yield_task_fair: a slice later than it would have been. Without it a task that spins for short, again
    /// and again, keeps the earliest deadline of all.
    pub fn postpone(&mut self, vm: &Vm, slice_ns: u64) {
        self.deadline_ns += vm.weighted_ns(slice_ns);
    }

    /// It could go on. Why it doesn't is as good as random.
    pub fn stops(&mut self, vm: &Vm, reason: StopReason, slice_ns: u64) {
        let slice_ns = vm.weighted_ns(slice_ns);
        let is_over = self.vruntime_ns >= self.deadline_ns;
        let unasked_ns = select_unpredictable(is_over, self.vruntime_ns + slice_ns, self.deadline_ns);
        let yields = matches!(reason, StopReason::Ple | StopReason::IpiWait);
        self.deadline_ns = select_unpredictable(yields, self.deadline_ns + slice_ns, unasked_ns);
    }
}

/// A VM as this scheduler knows it.
pub struct Vm {
    pub weight: u32,
    /// Where the round-robin over its vCPUs stands.
    pub last_boosted: VcpuId,
}

impl Vm {
    pub fn of(vm: &HostVm) -> Self {
        let &HostVm { first_vcpu, weight, .. } = vm;
        Self { weight, last_boosted: first_vcpu }
    }

    /// Time by the weight, in which runtimes and deadlines are. Rounded up: else a slice that is charged in
    /// parts ends a nanosecond before its deadline. Nearly all VMs have the default weight, and a division
    /// takes as long as the rest of this.
    #[inline]
    pub fn weighted_ns(&self, time_ns: u64) -> u64 {
        if self.weight == WEIGHT_DEFAULT {
            time_ns
        } else {
            (time_ns * u64::from(WEIGHT_DEFAULT)).div_ceil(u64::from(self.weight))
        }
    }

    /// And back: for how long it has to run until that much is charged.
    #[inline]
    pub fn unweighted_ns(&self, weighted_ns: u64) -> u64 {
        if self.weight == WEIGHT_DEFAULT {
            weighted_ns
        } else {
            (weighted_ns * u64::from(self.weight)).div_ceil(u64::from(WEIGHT_DEFAULT))
        }
    }
}

/// So many waiting tasks lie in their queue itself.
const NEAR: usize = 5;

/// A pCPU's queue. Its tasks lie in it, not only their numbers. Choosing one of them happens millions of
/// times a second. It would otherwise fetch a cache line for each, from anywhere in a large host. With three
/// that wait, it is two lines.
#[repr(C, align(64))]
pub struct Queue {
    /// The running task, unless it is [`Task::NOBODY`].
    pub running: Task,
    /// Lower bound that newcomers start from.
    pub floor_ns: u64,
    pub charged_until_ns: u64,
    /// Picked next whatever its deadline, if it is eligible (`pick_next_entity`): the target of a directed
    /// yield. Or `NO_BUDDY`.
    pub buddy: VcpuId,
    pub waiting: u32,
    /// Since when `running` does.
    pub since_ns: u64,
    /// All that wait here, in the order of arrival; a preempted task is always among them. Behind the last
    /// one there is `Task::NOBODY`.
    near: [Task; NEAR],
    far: Box<Far>,
}

/// Those that wait behind the first few.
#[derive(Default)]
struct Far(Vec<Task>);

/// Not [`Task::NOBODY`] either.
pub const NO_BUDDY: VcpuId = VcpuId::new(u32::MAX - 1);

impl Queue {
    pub fn new() -> Self {
        Self {
            running: Task::NOBODY,
            floor_ns: 0,
            charged_until_ns: 0,
            buddy: NO_BUDDY,
            waiting: 0,
            since_ns: 0,
            near: [Task::NOBODY; NEAR],
            far: Box::default(),
        }
    }

    pub fn waiting(&self) -> impl Iterator<Item = &Task> {
        self.near[..self.len().min(NEAR)].iter().chain(&self.far.0)
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.waiting as usize
    }

    #[inline]
    pub fn push(&mut self, task: Task) {
        let len = self.len();
        match self.near.get_mut(len) {
            Some(place) => *place = task,
            None => self.far.0.push(task),
        }
        self.waiting += 1;
    }

    #[inline]
    pub fn remove(&mut self, at: usize) -> Task {
        self.waiting -= 1;
        if at >= NEAR {
            return self.far.0.remove(at - NEAR);
        }
        let task = self.near[at];
        self.close_gap(at);
        self.near[NEAR - 1] = if self.far.0.is_empty() { Task::NOBODY } else { self.far.0.remove(0) };
        task
    }

    /// The task that waits at `at` goes, another one comes.
    #[inline]
    pub fn exchange(&mut self, at: usize, coming: Task) -> Task {
        if self.len() > NEAR {
            let going = self.remove(at);
            self.push(coming);
            return going;
        }
        let going = self.near[at];
        self.close_gap(at);
        self.near[self.len() - 1] = coming;
        going
    }

    /// Without branches on how many there are.
    #[inline(always)]
    pub fn close_gap(&mut self, at: usize) {
        for place in 0..NEAR - 1 {
            self.near[place] = self.near[place + usize::from(place >= at)];
        }
    }

    pub fn is_idle(&self) -> bool {
        self.running.vcpu == VcpuId::NONE
    }

    /// Whether its vCPU was switched to so recently that it isn't in its guest yet.
    pub fn is_switching(&self, machine: &Machine) -> bool {
        !self.is_idle() & (machine.now_ns - self.since_ns < machine.switch_ns)
    }

    /// The running task, its account brought up to now.
    #[inline]
    pub fn charged(&self, vms: &IdVec<VmId, Vm>, now_ns: u64) -> Task {
        let mut task = self.running;
        if task.vcpu != VcpuId::NONE {
            task.vruntime_ns += vms[task.vm].weighted_ns(now_ns - self.charged_until_ns);
        }
        task
    }

    #[inline]
    pub fn charge(&mut self, vms: &IdVec<VmId, Vm>, now_ns: u64) {
        self.running = self.charged(vms, now_ns);
        self.charged_until_ns = now_ns;
    }

    /// pick_eevdf: of those that wait, and behind them `running`, the earliest deadline among those whose
    /// runtime isn't above the average of all. `None`: `running`'s.
    #[inline]
    pub fn earliest_eligible(&self, running: &Task) -> Option<usize> {
        let others = self.len();
        let choice = if others > NEAR {
            self.earliest_eligible_of_many(running)
        } else {
            // Runtimes are below 2^56 (a day, of the least weight): the sum of a few, and products with their
            // number, have room.
            let count = others as u64 + u64::from(running.vcpu != VcpuId::NONE);
            let sum: u64 = self.near.iter().map(|task| task.vruntime_ns).sum::<u64>() + running.vruntime_ns;
            let mut choice = (u64::MAX, usize::MAX);
            for (at, task) in self.near.iter().chain([running]).enumerate() {
                choice = self.earlier(choice, at, task, task.vruntime_ns * count <= sum);
            }
            choice.1
        };
        (choice < others).then_some(choice)
    }

    #[cold]
    pub fn earliest_eligible_of_many(&self, running: &Task) -> usize {
        let all = || self.waiting().chain(Some(running).filter(|running| running.vcpu != VcpuId::NONE));
        let count = all().count() as u128;
        let sum: u128 = all().map(|task| u128::from(task.vruntime_ns)).sum();
        let earlier = |choice, (at, task): (usize, &Task)| {
            self.earlier(choice, at, task, u128::from(task.vruntime_ns) * count <= sum)
        };
        all().enumerate().fold((u64::MAX, usize::MAX), earlier).1
    }

    /// Of the deadline and place of the best so far and another one's, the better ones. No branch of these
    /// could be predicted.
    #[inline(always)]
    pub fn earlier(&self, best: (u64, usize), at: usize, task: &Task, eligible: bool) -> (u64, usize) {
        let deadline_ns = select_unpredictable(task.vcpu == self.buddy, 0, task.deadline_ns);
        let deadline_ns = select_unpredictable(eligible, deadline_ns, u64::MAX);
        (deadline_ns.min(best.0), select_unpredictable(deadline_ns < best.0, at, best.1))
    }

    /// This task runs from now on.
    pub fn run(&mut self, task: Task, now_ns: u64) {
        self.running = task;
        self.charged_until_ns = now_ns;
    }

    /// The same, of one that was picked here.
    pub fn run_picked(&mut self, task: Task, now_ns: u64) {
        self.floor_ns = self.floor_ns.max(task.vruntime_ns);
        if self.buddy == task.vcpu {
            self.buddy = NO_BUDDY;
        }
        self.run(task, now_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_more_tasks_than_lie_in_the_queue_the_order_is_kept() {
        let mut queue = Queue::new();
        let task = |vcpu: VcpuId| Task {
            vruntime_ns: 1,
            deadline_ns: 100 - u64::from(vcpu.number()),
            vcpu,
            vm: VmId::NONE,
        };
        let mut expected: Vec<VcpuId> = VcpuId::new(0).span(12).collect();
        expected.iter().for_each(|&vcpu| queue.push(task(vcpu)));
        for at in [11, 0, 4, 5, 3, 6, 0] {
            assert_eq!(queue.earliest_eligible(&Task::NOBODY), Some(expected.len() - 1));
            assert_eq!(queue.remove(at).vcpu, expected.remove(at));
            assert!(queue.waiting().map(|task| task.vcpu).eq(expected.iter().copied()));
        }
        for at in [1, 0, 4, 3] {
            assert_eq!(queue.exchange(at, task(VcpuId::new(20))).vcpu, expected.remove(at));
            expected.push(VcpuId::new(20));
            assert!(queue.waiting().map(|task| task.vcpu).eq(expected.iter().copied()));
        }
        while !expected.is_empty() {
            assert_eq!(queue.remove(0).vcpu, expected.remove(0));
        }
        assert_eq!(queue.earliest_eligible(&Task::NOBODY), None);
        assert_eq!(queue.earliest_eligible(&task(VcpuId::new(1))), None, "who runs goes on");
    }
}
