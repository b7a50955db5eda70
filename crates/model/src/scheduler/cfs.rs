//! CFS of Linux 3.2 with a control group per VM: the baseline of Kim et al., ASPLOS'13 (section 4). Names in
//! brackets are of kernel/sched_fair.c.
//!
//! Problem.   Share pCPUs among VMs by weight, whatever their numbers of vCPUs, and let sleepers run soon.
//! Mechanism. Each VM is a group, which has a queue on every pCPU. The group stands in the pCPU's own queue
//!            with its part of the VM's shares: that of its load there (`calc_cfs_shares`). At both levels
//!            the least virtual runtime is next (`pick_next_entity`). A turn ends at a tick once its part of
//!            the latency is over, or another one is that far behind (`check_preempt_tick`). A woken vCPU is
//!            placed half a latency behind the others at the most (`place_entity`, GENTLE_FAIR_SLEEPERS). It
//!            preempts one that is a granularity ahead (`wakeup_preempt_entity`). It goes to an idle pCPU of
//!            a last-level cache: that of its waker, if loads allow, else its own (`cfs/placement.rs`). pCPUs
//!            balance their loads at ticks, and pull when they run out (`cfs/balance.rs`). On a pause-loop
//!            exit KVM yields to the next sibling that waits (`kvm_vcpu_on_spin`, virt/kvm/kvm_main.c).
//! Limits.    LAST_BUDDY, which needs eight vCPUs of a VM in one queue, isn't modelled.

mod balance;
mod knobs;
mod placement;
mod queue;
mod urgent;

use self::balance::Balance;
use self::queue::{Groups, Root, pick_next, preempts, weighted_ns};
use self::urgent::Urgent;
use super::{Pick, Scheduler, TurnEnds, YieldAnswer};
use crate::config::CfsConfig;
use crate::events::{IpiKind, StopReason};
use crate::ids::{IdVec, PcpuId, VcpuId, VmId};
use crate::machine::{Machine, VcpuState};
use microslice_policy::YieldCause;

/// Of a VM of the default weight: 1024 for each pCPU (section 4), so that a group's entity on one of them
/// weighs as much as a task.
const SHARES_PER_PCPU: u64 = 1024;
const WEIGHT_DEFAULT: u64 = 256;

#[derive(Debug, Clone, Copy)]
struct Task {
    vruntime_ns: u64,
    /// When it ran last (`exec_start`).
    ran_ns: u64,
    vm: VmId,
}

pub struct Cfs {
    config: CfsConfig,
    tasks: IdVec<VcpuId, Task>,
    roots: IdVec<PcpuId, Root>,
    groups: Groups,
    balance: IdVec<PcpuId, Balance>,
    /// Where each VM's round over its vCPUs stands (`last_boosted_vcpu`).
    last_boosted: IdVec<VmId, VcpuId>,
    /// The vCPU that is about to be woken by an IPI, and the pCPU that sends it.
    woken_from: Option<(VcpuId, PcpuId)>,
    urgent: Urgent,
}

impl Cfs {
    pub fn new(config: CfsConfig, machine: &mut Machine) -> Self {
        let pcpus = machine.pcpus.len();
        let shares_of =
            |weight: u32| (u64::from(weight) * SHARES_PER_PCPU * pcpus as u64 / WEIGHT_DEFAULT).max(2);
        let task = |host: &crate::machine::HostVcpu| Task {
            vruntime_ns: queue::FIRST_VRUNTIME_NS,
            ran_ns: 0,
            vm: host.vm,
        };
        Self {
            urgent: Urgent::new(&config.coordination, machine),
            config,
            tasks: machine.vcpus.iter().map(task).collect(),
            roots: IdVec::of(Root::new(), pcpus),
            groups: Groups::new(pcpus, machine.vms.iter().map(|vm| shares_of(vm.weight)).collect()),
            balance: machine.pcpus.ids().map(|_| Balance::default()).collect(),
            last_boosted: machine.vms.iter().map(|vm| vm.first_vcpu).collect(),
            woken_from: None,
        }
    }

    /// update_curr, at both levels.
    fn charge(&mut self, now_ns: u64, pcpu: PcpuId) {
        let root = &mut self.roots[pcpu];
        let ran_ns = now_ns - std::mem::replace(&mut root.charged_until_ns, now_ns);
        let (vcpu, vm) = (root.current, root.current_vm);
        if vcpu == VcpuId::NONE {
            return;
        }
        let task = &mut self.tasks[vcpu];
        task.vruntime_ns += ran_ns;
        task.ran_ns = now_ns;
        self.urgent.charge(vcpu, ran_ns);
        self.urgent.knobs.ran(vm, ran_ns);
        let group = self.groups.of_mut(pcpu, vm);
        group.vruntime_ns += weighted_ns(ran_ns, group.weight);
        self.raise_floors(pcpu, vm);
    }

    /// update_min_vruntime, of a group's queue and of the pCPU's.
    fn raise_floors(&mut self, pcpu: PcpuId, vm: VmId) {
        let root = &self.roots[pcpu];
        let current = (root.current_vm == vm && root.current != VcpuId::NONE).then_some(root.current);
        let group = self.groups.of(pcpu, vm);
        let least =
            group.waiting.iter().copied().chain(current).map(|vcpu| self.tasks[vcpu].vruntime_ns).min();
        let least_group = root.groups.iter().map(|&vm| self.groups.of(pcpu, vm).vruntime_ns).min();
        let group = self.groups.of_mut(pcpu, vm);
        group.min_vruntime_ns = group.min_vruntime_ns.max(least.unwrap_or(0));
        let root = &mut self.roots[pcpu];
        root.min_vruntime_ns = root.min_vruntime_ns.max(least_group.unwrap_or(0));
    }

    /// enqueue_task_fair: `woken` is placed by `place_entity`, and so is its group if nobody of it was here.
    fn enqueue(&mut self, now_ns: u64, pcpu: PcpuId, vcpu: VcpuId, woken: bool) {
        self.charge(now_ns, pcpu);
        let vm = self.tasks[vcpu].vm;
        self.groups.update(pcpu, vm, now_ns);
        let credit_ns = self.config.latency_ns / 2;
        let root = &mut self.roots[pcpu];
        let group = self.groups.of_mut(pcpu, vm);
        let task = &mut self.tasks[vcpu];
        if woken {
            task.vruntime_ns = task.vruntime_ns.max(group.min_vruntime_ns - credit_ns);
        }
        if group.running == 0 {
            group.vruntime_ns = group.vruntime_ns.max(root.min_vruntime_ns - credit_ns);
            root.groups.push(vm);
        }
        group.waiting.push(vcpu);
        group.running += 1;
        self.groups.update(pcpu, vm, now_ns);
    }

    /// A vCPU leaves a group's queue, and is no longer among its waiting: dequeue_task_fair.
    fn leaves(&mut self, now_ns: u64, pcpu: PcpuId, vcpu: VcpuId) {
        let vm = self.tasks[vcpu].vm;
        self.groups.update(pcpu, vm, now_ns);
        let group = self.groups.of_mut(pcpu, vm);
        group.buddies.forget(vcpu);
        group.running -= 1;
        if group.running == 0 {
            let root = &mut self.roots[pcpu];
            root.groups.retain(|&other| other != vm);
            root.buddies.forget(vm);
        }
        self.groups.update(pcpu, vm, now_ns);
        self.raise_floors(pcpu, vm);
    }

    /// A waiting vCPU goes to another pCPU's queue: what it is ahead of its old one it is ahead of the new
    /// one.
    fn migrate(&mut self, machine: &mut Machine, vcpu: VcpuId, to: PcpuId) {
        let from = std::mem::replace(&mut machine.vcpus[vcpu].pcpu, to);
        let task = &mut self.tasks[vcpu];
        let floors = [from, to].map(|pcpu| self.groups.of(pcpu, task.vm).min_vruntime_ns);
        task.vruntime_ns = (task.vruntime_ns + floors[1]).saturating_sub(floors[0]);
    }

    /// check_preempt_wakeup: is it so far behind the vCPU that runs there?
    fn preempts_current(&self, pcpu: PcpuId, vcpu: VcpuId) -> bool {
        let root = &self.roots[pcpu];
        if root.current == VcpuId::NONE {
            return true;
        }
        let (vm, granularity_ns) = (self.tasks[vcpu].vm, self.config.wakeup_granularity_ns);
        let verdict = if vm == root.current_vm {
            let [current, woken] = [root.current, vcpu].map(|vcpu| self.tasks[vcpu].vruntime_ns);
            preempts(current, woken, queue::TASK_WEIGHT, granularity_ns)
        } else {
            let [current, woken] = [root.current_vm, vm].map(|vm| self.groups.of(pcpu, vm));
            preempts(current.vruntime_ns, woken.vruntime_ns, woken.weight, granularity_ns)
        };
        verdict == Some(true)
    }

    /// pick_next_task_fair: a group, then one of its vCPUs.
    fn pick(&mut self, pcpu: PcpuId) -> Option<VcpuId> {
        let granularity_ns = self.config.wakeup_granularity_ns;
        let root = &self.roots[pcpu];
        let entity = |&vm: &VmId| {
            let group = self.groups.of(pcpu, vm);
            (vm, group.vruntime_ns, group.weight)
        };
        let groups: Vec<_> = root.groups.iter().map(entity).collect();
        let vm = pick_next(&groups, root.buddies, granularity_ns)?;
        let group = self.groups.of(pcpu, vm);
        let entity = |&vcpu: &VcpuId| (vcpu, self.tasks[vcpu].vruntime_ns, queue::TASK_WEIGHT);
        let waiting: Vec<_> = group.waiting.iter().map(entity).collect();
        let vcpu = pick_next(&waiting, group.buddies, granularity_ns)?;
        self.roots[pcpu].buddies.forget(vm);
        let group = self.groups.of_mut(pcpu, vm);
        group.buddies.forget(vcpu);
        group.waiting.retain(|&waiter| waiter != vcpu);
        Some(vcpu)
    }

    /// sched_slice: its part of the latency, at the level of vCPUs or of groups.
    fn slice_ns(&self, pcpu: PcpuId, of_group: bool) -> u64 {
        let root = &self.roots[pcpu];
        let group = self.groups.of(pcpu, root.current_vm);
        let running = if of_group { root.groups.len() as u64 } else { group.running };
        let period_ns = self.config.latency_ns.max(self.config.min_granularity_ns * running);
        let of_root_ns = period_ns * group.weight / self.load(pcpu).max(1);
        if of_group { of_root_ns } else { of_root_ns / group.running.max(1) }
    }

    /// The weights of all groups that have a vCPU here (`rq->load`).
    fn load(&self, pcpu: PcpuId) -> u64 {
        self.roots[pcpu].groups.iter().map(|&vm| self.groups.of(pcpu, vm).weight).sum()
    }

    /// check_preempt_tick, at one of both levels: `own` of the running one, and the least of the others.
    fn turn_is_over(&self, now_ns: u64, pcpu: PcpuId, of_group: bool) -> bool {
        let root = &self.roots[pcpu];
        let group = self.groups.of(pcpu, root.current_vm);
        let others = if of_group { root.groups.len() as u64 } else { group.running };
        if others <= 1 {
            return false;
        }
        let (slice_ns, ran_ns) = (self.slice_ns(pcpu, of_group), now_ns - root.turn_since_ns);
        if ran_ns > slice_ns {
            return true;
        }
        if ran_ns < self.config.min_granularity_ns {
            return false;
        }
        let (own_ns, least_ns) = if of_group {
            let others = root.groups.iter().filter(|&&vm| vm != root.current_vm);
            (group.vruntime_ns, others.map(|&vm| self.groups.of(pcpu, vm).vruntime_ns).min())
        } else {
            let waiting = group.waiting.iter().map(|&vcpu| self.tasks[vcpu].vruntime_ns);
            (self.tasks[root.current].vruntime_ns, waiting.min())
        };
        least_ns.is_some_and(|least_ns| own_ns.saturating_sub(least_ns) > slice_ns)
    }

    /// kvm_vcpu_on_spin: the next sibling that waits for a pCPU, wherever it was stopped.
    fn directed_yield(&mut self, machine: &mut Machine, vcpu: VcpuId, on: PcpuId) -> bool {
        let vm = self.tasks[vcpu].vm;
        let (first, count) = (machine.vms[vm].first_vcpu, machine.vms[vm].vcpus);
        let last = self.last_boosted[vm].since(first);
        let mut round = (1..=count).map(|step| first.plus((last + step) % count));
        let waits = |&other: &VcpuId| other != vcpu && machine.vcpus[other].state == VcpuState::Runnable;
        let Some(sibling) = round.find(waits) else { return false };
        self.last_boosted[vm] = sibling;
        machine.pays_for_yield();
        let pcpu = machine.vcpus[sibling].pcpu;
        self.groups.of_mut(pcpu, vm).buddies.next = Some(sibling);
        self.roots[pcpu].buddies.next = Some(vm);
        // yield_task_fair.
        self.groups.of_mut(on, vm).buddies.skip = Some(vcpu);
        self.roots[on].buddies.skip = Some(vm);
        if pcpu != on {
            machine.request_schedule(pcpu);
        }
        true
    }
}

impl Scheduler for Cfs {
    fn ipi_begun(&mut self, machine: &mut Machine, from: VcpuId) {
        self.request_early(machine, from);
    }

    fn ipi(&mut self, machine: &mut Machine, from: VcpuId, to: VcpuId, kind: IpiKind) {
        self.woken_from = Some((to, machine.vcpus[from].pcpu));
        self.request_urgency(machine, from, to, kind);
    }

    fn acknowledged(&mut self, _machine: &Machine, vcpu: VcpuId, another_waits: bool) {
        self.urgent.acknowledge(vcpu, another_waits);
    }

    fn wake(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        let now_ns = machine.now_ns;
        let sender = self.woken_from.take().filter(|&(woken, _)| woken == vcpu).map(|(_, pcpu)| pcpu);
        let target = self.select_pcpu(machine, vcpu, sender);
        if target != machine.vcpus[vcpu].pcpu {
            self.migrate(machine, vcpu, target);
        }
        self.enqueue(now_ns, target, vcpu, true);
        self.roots[target].ends_idling(now_ns);
        if self.preempts_current(target, vcpu) {
            machine.request_schedule(target);
        }
        self.line_up(machine, vcpu);
    }

    fn schedule(
        &mut self,
        machine: &mut Machine,
        pcpu: PcpuId,
        stopped: Option<(VcpuId, StopReason)>,
    ) -> Option<Pick> {
        let now_ns = machine.now_ns;
        self.charge(now_ns, pcpu);
        if let Some((vcpu, StopReason::Preempted)) = stopped
            && machine.vcpus[vcpu].state != VcpuState::Blocked
            && let Some(until_ns) = self.urgent.protected_until(now_ns, pcpu, vcpu)
        {
            return Some(Pick { vcpu, slice_end_ns: until_ns });
        }
        self.roots[pcpu].current = VcpuId::NONE;
        if let Some((vcpu, _)) = stopped {
            if machine.vcpus[vcpu].state == VcpuState::Blocked {
                self.urgent.tell(machine, vcpu);
                self.leaves(now_ns, pcpu, vcpu);
            } else {
                self.groups.of_mut(pcpu, self.tasks[vcpu].vm).waiting.push(vcpu);
                self.urgent.goes_behind(machine, pcpu, vcpu);
            }
        }
        if self.roots[pcpu].groups.is_empty() {
            self.idle_balance(machine, pcpu);
        }
        let urgent = self.pick_urgent(machine, pcpu);
        let next = urgent.or_else(|| self.pick(pcpu));
        let root = &mut self.roots[pcpu];
        let Some(vcpu) = next else {
            root.idle_since_ns = root.idle_since_ns.or(Some(now_ns));
            return None;
        };
        root.idle_since_ns = None;
        (root.current, root.current_vm) = (vcpu, self.tasks[vcpu].vm);
        (root.charged_until_ns, root.turn_since_ns) = (now_ns, now_ns);
        Some(Pick { vcpu, slice_end_ns: self.urgent.begins(machine, pcpu, vcpu) })
    }

    fn yields(
        &mut self,
        machine: &mut Machine,
        vcpu: VcpuId,
        pcpu: PcpuId,
        cause: YieldCause,
    ) -> YieldAnswer {
        let keep = YieldAnswer::KeepSpinning { until_ns: machine.now_ns };
        if cause == YieldCause::Ple {
            self.urgent.spins(vcpu);
            if self.spins_for_answers(machine, vcpu, pcpu) {
                return keep;
            }
        }
        match cause {
            YieldCause::Ple if self.directed_yield(machine, vcpu, pcpu) => YieldAnswer::Yield,
            _ => keep,
        }
    }

    fn tick_ns(&self) -> u64 {
        self.config.tick_ns
    }

    /// scheduler_tick: task_tick_fair, then trigger_load_balance.
    fn tick(&mut self, machine: &mut Machine, pcpu: PcpuId) {
        let now_ns = machine.now_ns;
        self.charge(now_ns, pcpu);
        for vm in machine.vms.ids() {
            self.groups.update(pcpu, vm, now_ns);
        }
        self.urgent.knobs.look(now_ns);
        let runs = self.roots[pcpu].current != VcpuId::NONE;
        if runs {
            self.urgent.tell(machine, self.roots[pcpu].current);
        }
        if runs && [false, true].into_iter().any(|of_group| self.turn_is_over(now_ns, pcpu, of_group)) {
            machine.request_schedule(pcpu);
        }
        self.balance(machine, pcpu);
    }
}

impl TurnEnds for Cfs {
    fn is_urgent_slice(&self, pcpu: PcpuId) -> bool {
        self.urgent.is_slice(pcpu)
    }

    fn is_wanted(&self, pcpu: PcpuId) -> bool {
        !self.urgent.lines[pcpu].is_empty()
    }

    /// By its part of the latency, at the level that ends first; nobody else may be here to end it for.
    fn turn_due_ns(&self, pcpu: PcpuId) -> Option<u64> {
        let root = &self.roots[pcpu];
        let others = |of_group: bool| {
            if of_group { root.groups.len() as u64 } else { self.groups.of(pcpu, root.current_vm).running }
        };
        let levels = [false, true].into_iter().filter(|&of_group| others(of_group) > 1);
        levels.map(|of_group| root.turn_since_ns + self.slice_ns(pcpu, of_group)).min()
    }
}

#[cfg(test)]
mod tests;
