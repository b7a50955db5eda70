//! Linux's EEVDF with KVM's directed yield: today's default (kernel/sched/fair.c, virt/kvm/kvm_main.c).
//!
//! Problem.   Share pCPUs by weight with bounded lag; let a spinning vCPU give way to the sibling it waits for.
//! Mechanism. Each vCPU is a task with a virtual runtime. A pCPU runs, of those eligible (not ahead of the queue's
//!            average), the one with the earliest virtual deadline (runtime + slice / weight). A waking vCPU preempts
//!            when its deadline is earlier. On a pause-loop exit KVM goes round-robin over the siblings and yields to
//!            the first that is runnable and was preempted (`kvm_vcpu_on_spin`, `vcpu->ready`); `yield_to` works only
//!            where the target waits, makes it the queue's next pick (buddy) if it is eligible, and puts the yielder's
//!            deadline off by a slice. vCPUs start spread over the host (fork balancing). Who wakes goes to an idle pCPU,
//!            and an idle pCPU pulls, in both cases within the own last-level cache first, then host-wide.
//! Limits.    No cgroup hierarchy, no bandwidth control; weights are the VM's, per vCPU. At ticks load is balanced by queue
//!            length, with the next pCPU only. NUMA nodes are no domain of their own, and looking beyond the cache costs nothing.

use super::{Pick, Scheduler, YieldAnswer};
use crate::bits::Bits;
use crate::config::EevdfConfig;
use crate::machine::{HostVcpu, Machine, NONE, VcpuState};
use crate::trace_event::{PcpuId, StopReason, VcpuId};
use microslice_policy::YieldCause;

/// Weight of a VM that says nothing.
const WEIGHT_DEFAULT: u32 = 256;

#[derive(Clone, Copy)]
struct Task {
    vruntime_ns: u64,
    deadline_ns: u64,
    charged_until_ns: u64,
    /// Its VM's.
    weight: u32,
}

impl Task {
    /// Time by the weight. Nearly all VMs have the default one, and a division takes as long as the rest of this.
    #[inline]
    fn weighted_ns(&self, time_ns: u64) -> u64 {
        if self.weight == WEIGHT_DEFAULT {
            time_ns
        } else {
            time_ns * u64::from(WEIGHT_DEFAULT) / u64::from(self.weight)
        }
    }
}

#[derive(Default)]
struct Queue {
    /// Everybody who waits here; who was preempted is always among them.
    tasks: Vec<VcpuId>,
    /// Lower bound that newcomers start from.
    floor_ns: u64,
    /// Picked next whatever its deadline, if it is eligible (`pick_next_entity`): the target of a directed yield.
    buddy: Option<VcpuId>,
}

pub struct Eevdf {
    config: EevdfConfig,
    tasks: Vec<Task>,
    queues: Vec<Queue>,
    /// Where each VM's round-robin over its siblings stands.
    last_boosted: Vec<u32>,
    queued_total: usize,
    /// pCPUs where somebody waits, and those that run nobody.
    waited_for: Bits,
    idle: Bits,
}

impl Eevdf {
    pub fn new(config: EevdfConfig, machine: &mut Machine) -> Self {
        spread(machine);
        let task = |host: &HostVcpu| Task {
            vruntime_ns: 0,
            deadline_ns: 0,
            charged_until_ns: 0,
            weight: machine.vms[host.vm as usize].weight,
        };
        let pcpus = machine.pcpus.len();
        Self {
            config,
            tasks: machine.vcpus.iter().map(task).collect(),
            queues: machine.pcpus.iter().map(|_| Queue::default()).collect(),
            last_boosted: vec![0; machine.vms.len()],
            queued_total: 0,
            waited_for: Bits::new(pcpus, false),
            idle: Bits::new(pcpus, true),
        }
    }

    fn charge(&mut self, now_ns: u64, vcpu: VcpuId) {
        let task = &mut self.tasks[vcpu as usize];
        let ran_ns = now_ns - task.charged_until_ns;
        task.charged_until_ns = now_ns;
        task.vruntime_ns += task.weighted_ns(ran_ns);
    }

    /// No running vCPU's answer changes by that, since none of them is promised to last.
    fn enqueue(&mut self, pcpu: PcpuId, vcpu: VcpuId) {
        self.queues[pcpu as usize].tasks.push(vcpu);
        self.queued_total += 1;
        self.waited_for.set(pcpu as usize, true);
    }

    fn dequeue(&mut self, pcpu: PcpuId, at: usize) -> VcpuId {
        let queue = &mut self.queues[pcpu as usize];
        let vcpu = match queue.tasks[..] {
            // By far the most frequent, and which of the two can't be predicted: the other one stays, without a branch.
            [first, second] => {
                queue.tasks.truncate(1);
                let (taken, left) = if at == 0 { (first, second) } else { (second, first) };
                queue.tasks[0] = left;
                taken
            }
            _ => queue.tasks.remove(at),
        };
        if queue.buddy == Some(vcpu) {
            queue.buddy = None;
        }
        self.queued_total -= 1;
        self.waited_for.set(pcpu as usize, !queue.tasks.is_empty());
        vcpu
    }

    /// pick_eevdf: the earliest deadline among the eligible.
    fn pick(&mut self, pcpu: PcpuId) -> Option<VcpuId> {
        let queue = &self.queues[pcpu as usize];
        let buddy = queue.buddy.and_then(|buddy| queue.tasks.iter().position(|&vcpu| vcpu == buddy));
        let at = match buddy.filter(|&at| self.is_eligible(&queue.tasks, at)) {
            Some(at) => at,
            None => self.earliest_eligible(&queue.tasks)?,
        };
        let vcpu = self.dequeue(pcpu, at);
        let floor_ns = self.tasks[vcpu as usize].vruntime_ns;
        let queue = &mut self.queues[pcpu as usize];
        queue.floor_ns = queue.floor_ns.max(floor_ns);
        Some(vcpu)
    }

    /// Whether a task's runtime isn't above the average of its queue.
    fn is_eligible(&self, waiting: &[VcpuId], at: usize) -> bool {
        let runtime = |vcpu: VcpuId| u128::from(self.tasks[vcpu as usize].vruntime_ns);
        let sum: u128 = waiting.iter().map(|&vcpu| runtime(vcpu)).sum();
        runtime(waiting[at]) * waiting.len() as u128 <= sum
    }

    /// Place of the earliest deadline among those whose runtime isn't above the average. Of one or two, who has the least
    /// runtime is eligible, and the other only if both have the same.
    #[inline]
    fn earliest_eligible(&self, waiting: &[VcpuId]) -> Option<usize> {
        let task = |at: usize| &self.tasks[waiting[at] as usize];
        match waiting.len() {
            0 => None,
            1 => Some(0),
            2 => {
                let (first, second) = (task(0), task(1));
                let behind = second.vruntime_ns < first.vruntime_ns;
                let sooner = second.deadline_ns < first.deadline_ns;
                Some(usize::from(behind | (second.vruntime_ns == first.vruntime_ns) & sooner))
            }
            count => {
                let sum: u128 = (0..count).map(|at| u128::from(task(at).vruntime_ns)).sum();
                (0..count)
                    .filter(|&at| u128::from(task(at).vruntime_ns) * count as u128 <= sum)
                    .min_by_key(|&at| task(at).deadline_ns)
            }
        }
    }

    fn new_deadline(&mut self, vcpu: VcpuId) {
        let task = &mut self.tasks[vcpu as usize];
        task.deadline_ns = task.vruntime_ns + task.weighted_ns(self.config.base_slice_ns);
    }

    /// yield_task_fair: a slice later than it would have been. Without it who spins for short, again and again, keeps the
    /// earliest deadline of all.
    fn postpone(&mut self, vcpu: VcpuId) {
        let task = &mut self.tasks[vcpu as usize];
        task.deadline_ns += task.weighted_ns(self.config.base_slice_ns);
    }

    /// Moves a vCPU's clock from one queue's to another's.
    fn migrate(&mut self, machine: &mut Machine, vcpu: VcpuId, to: PcpuId) {
        let from = machine.vcpus[vcpu as usize].pcpu as usize;
        let lag = self.tasks[vcpu as usize].vruntime_ns as i64 - self.queues[from].floor_ns as i64;
        let floor_ns = self.queues[to as usize].floor_ns as i64;
        self.tasks[vcpu as usize].vruntime_ns = (floor_ns + lag).max(0) as u64;
        machine.vcpus[vcpu as usize].pcpu = to;
        self.new_deadline(vcpu);
    }

    fn steal(&mut self, machine: &mut Machine, thief: PcpuId) -> Option<VcpuId> {
        if self.queued_total == 0 {
            return None;
        }
        let found = near_first(&self.waited_for, machine, thief)
            // An idle peer is about to take from its queue itself.
            .filter(|&peer| peer != thief as usize && !machine.is_idle(peer as u32))
            .find_map(|peer| {
                let waiting = &self.queues[peer].tasks;
                let at = waiting.iter().position(|&vcpu| machine.allows(vcpu, thief))?;
                Some((peer as u32, at))
            });
        let (peer, at) = found?;
        let vcpu = self.dequeue(peer, at);
        self.migrate(machine, vcpu, thief);
        Some(vcpu)
    }

    fn find_idle(&self, machine: &Machine, vcpu: VcpuId) -> Option<PcpuId> {
        let home = machine.vcpus[vcpu as usize].pcpu;
        let pcpu = near_first(&self.idle, machine, home)
            .find(|&pcpu| machine.allows(vcpu, pcpu as u32) && self.queues[pcpu].tasks.is_empty())?;
        debug_assert!(machine.is_idle(pcpu as u32), "pCPU {pcpu} is thought idle");
        Some(pcpu as u32)
    }

    /// How many run or wait there.
    fn load(&self, machine: &Machine, pcpu: usize) -> usize {
        self.queues[pcpu].tasks.len() + usize::from(machine.pcpus[pcpu].current != NONE)
    }

    /// kvm_vcpu_on_spin: the next preempted sibling that waits; `yield_to` makes it its queue's next pick.
    fn directed_yield(&mut self, machine: &mut Machine, vcpu: VcpuId) -> bool {
        let vm = machine.vcpus[vcpu as usize].vm as usize;
        let (first, count) = (machine.vms[vm].first_vcpu, machine.vms[vm].vcpus);
        let last = first + self.last_boosted[vm];
        let next = machine
            .find_preempted(last + 1, first + count)
            .or_else(|| machine.find_preempted(first, last + 1));
        let Some(sibling) = next else { return false };
        self.last_boosted[vm] = sibling - first;
        let pcpu = machine.vcpus[sibling as usize].pcpu;
        self.queues[pcpu as usize].buddy = Some(sibling);
        if machine.vcpus[vcpu as usize].pcpu != pcpu {
            machine.request_schedule(pcpu);
        }
        true
    }
}

/// pCPUs of a set, from one on: first those of its last-level cache, then all others.
fn near_first<'a>(set: &'a Bits, machine: &'a Machine, from: PcpuId) -> impl Iterator<Item = usize> + 'a {
    let own = machine.llc_of(from);
    let of_own = move |near: bool| {
        set.round_from(from as usize).filter(move |&pcpu| (machine.llc_of(pcpu as u32) == own) == near)
    };
    of_own(true).chain(of_own(false))
}

/// Each VM's vCPUs start on the pCPUs behind those of the VM before it: new threads go where the fewest are (SD_BALANCE_FORK).
/// If each VM started at pCPU 0, all vCPUs of a large host would wait on the first few, hundreds in a queue.
fn spread(machine: &mut Machine) {
    let pcpus = machine.pcpus.len();
    for vcpu in 0..machine.vcpus.len() {
        let start = (0..pcpus)
            .map(|step| ((vcpu + step) % pcpus) as PcpuId)
            .find(|&pcpu| machine.allows(vcpu as VcpuId, pcpu));
        if let Some(pcpu) = start {
            machine.vcpus[vcpu].pcpu = pcpu;
        }
    }
}

impl Scheduler for Eevdf {
    fn wake(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        let home = machine.vcpus[vcpu as usize].pcpu;
        let target = self.find_idle(machine, vcpu).unwrap_or(home);
        if target != home {
            self.migrate(machine, vcpu, target);
        }
        // What it didn't use while asleep is not saved up beyond one slice (place_entity).
        let floor_ns = self.queues[target as usize].floor_ns.saturating_sub(self.config.base_slice_ns);
        let task = &mut self.tasks[vcpu as usize];
        task.vruntime_ns = task.vruntime_ns.max(floor_ns);
        self.new_deadline(vcpu);
        self.enqueue(target, vcpu);
        match machine.current(target) {
            None => machine.request_schedule(target),
            Some(current) => {
                self.charge(machine.now_ns, current);
                if self.tasks[vcpu as usize].deadline_ns < self.tasks[current as usize].deadline_ns {
                    machine.request_schedule(target);
                }
            }
        }
    }

    fn schedule(
        &mut self,
        machine: &mut Machine,
        pcpu: PcpuId,
        stopped: Option<(VcpuId, StopReason)>,
    ) -> Option<Pick> {
        if let Some((vcpu, reason)) = stopped {
            self.charge(machine.now_ns, vcpu);
            if machine.vcpus[vcpu as usize].state != VcpuState::Blocked {
                let task = &self.tasks[vcpu as usize];
                if matches!(reason, StopReason::Ple | StopReason::IpiWait) {
                    self.postpone(vcpu);
                } else if task.vruntime_ns >= task.deadline_ns {
                    self.new_deadline(vcpu);
                }
                self.enqueue(pcpu, vcpu);
            }
        }
        let next = self.pick(pcpu).or_else(|| self.steal(machine, pcpu));
        self.idle.set(pcpu as usize, next.is_none());
        let vcpu = next?;
        self.tasks[vcpu as usize].charged_until_ns = machine.now_ns;
        let left_ns = {
            let task = &self.tasks[vcpu as usize];
            task.deadline_ns.saturating_sub(task.vruntime_ns).clamp(100_000, self.config.base_slice_ns)
        };
        Some(Pick { vcpu, slice_end_ns: machine.now_ns + left_ns })
    }

    fn yields(
        &mut self,
        machine: &mut Machine,
        vcpu: VcpuId,
        pcpu: PcpuId,
        cause: YieldCause,
    ) -> YieldAnswer {
        if cause == YieldCause::Hlt || !self.config.directed_yield {
            let nobody = self.queues[pcpu as usize].tasks.is_empty() && self.queued_total == 0;
            return if nobody {
                YieldAnswer::KeepSpinning { until_ns: machine.now_ns }
            } else {
                YieldAnswer::Yield
            };
        }
        if self.directed_yield(machine, vcpu) {
            YieldAnswer::Yield
        } else {
            YieldAnswer::KeepSpinning { until_ns: machine.now_ns }
        }
    }

    fn tick_ns(&self) -> u64 {
        self.config.tick_ns
    }

    fn tick(&mut self, machine: &mut Machine, pcpu: PcpuId) {
        let Some(current) = machine.current(pcpu) else {
            if self.queued_total > 0 {
                machine.request_schedule(pcpu);
            }
            return;
        };
        self.charge(machine.now_ns, current);
        let task = &self.tasks[current as usize];
        if task.vruntime_ns >= task.deadline_ns && !self.queues[pcpu as usize].tasks.is_empty() {
            machine.request_schedule(pcpu);
        }
        self.balance(machine, pcpu);
    }
}

impl Eevdf {
    /// Load balancing at ticks: a queue two longer than a neighbour's gives one away.
    fn balance(&mut self, machine: &mut Machine, pcpu: PcpuId) {
        let count = self.queues.len();
        let peer = (pcpu as usize + 1) % count;
        if self.load(machine, pcpu as usize) < self.load(machine, peer) + 2 {
            return;
        }
        let found =
            self.queues[pcpu as usize].tasks.iter().position(|&vcpu| machine.allows(vcpu, peer as u32));
        if let Some(at) = found {
            let vcpu = self.dequeue(pcpu, at);
            self.migrate(machine, vcpu, peer as u32);
            self.enqueue(peer as u32, vcpu);
            if machine.is_idle(peer as u32) {
                machine.request_schedule(peer as u32);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Waiting;
    use crate::scenario::{Overrides, load};

    /// A host with VMs of so many vCPUs, each on the pCPUs it names (none: on all).
    fn host(pcpus: usize, llc_pcpus: usize, vms: &[(u32, &[usize])]) -> (Eevdf, Machine) {
        let overrides = Overrides { policy: Some("eevdf".into()), ..Overrides::default() };
        let config = load("gmake-swaptions", &overrides).expect("built in").config;
        let crate::config::SchedulerKind::Eevdf(parameters) = config.scheduler else { panic!("eevdf") };
        let vm = |&(vcpus, pinned): &(u32, &[usize])| crate::machine::HostVm {
            first_vcpu: 0,
            vcpus,
            weight: WEIGHT_DEFAULT,
            affinity: match pinned {
                [] => Vec::new(),
                _ => (0..pcpus).map(|pcpu| pinned.contains(&pcpu)).collect(),
            },
            waiting: Waiting::nobody(),
        };
        let host = crate::config::HostConfig { pcpus, llc_pcpus, ..config.host };
        let mut machine = Machine::new(&host, vms.iter().map(vm).collect());
        let eevdf = Eevdf::new(parameters, &mut machine);
        (eevdf, machine)
    }

    #[test]
    fn vcpus_of_many_vms_start_on_all_pcpus() {
        let (_, machine) = host(40, 0, &[(12, [].as_slice()); 10]);
        let starts = |pcpu| machine.vcpus.iter().filter(|vcpu| vcpu.pcpu == pcpu).count();
        assert!((0..40).all(|pcpu| starts(pcpu) == 3));
    }

    #[test]
    fn vcpus_start_where_their_vm_may_run() {
        let (_, machine) = host(8, 0, &[(3, &[]), (6, &[1, 6])]);
        let pinned = machine.vcpus[3..].iter().map(|vcpu| vcpu.pcpu);
        assert!(pinned.clone().all(|pcpu| pcpu == 1 || pcpu == 6), "{:?}", pinned.collect::<Vec<_>>());
    }

    #[test]
    fn an_idle_pcpu_pulls_within_its_cache_before_all_others() {
        let (mut eevdf, mut machine) = host(8, 4, &[(8, &[])]);
        for pcpu in [1, 2, 6] {
            machine.pcpus[pcpu].current = 0;
            eevdf.idle.set(pcpu, false);
        }
        eevdf.enqueue(6, 6);
        eevdf.enqueue(1, 1);
        assert_eq!(eevdf.steal(&mut machine, 3), Some(1), "pCPU 6 would be nearer by number");
        assert_eq!(eevdf.steal(&mut machine, 3), Some(6));
        assert_eq!(eevdf.steal(&mut machine, 3), None);
        machine.vcpus[7].pcpu = 2;
        assert_eq!(eevdf.find_idle(&machine, 7), Some(3), "of those of its cache, from pCPU 2 on");
    }
}
