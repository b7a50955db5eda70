//! Linux's EEVDF as libvirt and systemd set it up: a cgroup per VM below `machine.slice`, and one per vCPU in
//! each. Names in brackets are of Linux 6.18, kernel/sched/fair.c.
//!
//! Problem.   VMs shall share the host by their weights, whatever their numbers of vCPUs.
//! Mechanism. Each VM has a queue of its own on every pCPU. It stands in the pCPU's queue with its part of
//!            the VM's weight: that of its load there, by what the VM has on all pCPUs (`calc_group_shares`;
//!            `load.rs`). At both levels those that haven't had more than their due are eligible, and of them
//!            the earliest deadline is picked (`pick_eevdf`; `entity.rs`). The running one stays picked until
//!            its slice is over, while it is eligible (RUN_TO_PARITY). Turns end at ticks. A woken one has
//!            the lag that it left with (`place_entity`, PLACE_LAG). It runs at once only if it is the one to
//!            pick (`check_preempt_wakeup_fair`). They are compared at the level at which it and the running
//!            one differ (`find_matching_se`). KVM's directed yield is in `directed_yield.rs`.
//!            Cgroups around VMs are levels more of the same: a group of groups has the weights of what is in
//!            its queue as its load.
//! Limits.    `machine.slice` has no siblings, and a scope has one child: they are left out. The load that a
//!            vCPU takes to another pCPU goes along in its VM's group; those around follow within 32 ms
//!            (no `propagate_entity_load_avg`). A vCPU's group has one thread, so its weight is whole
//!            wherever that is (its load elsewhere has been removed by the time:
//!            `remove_entity_load_avg`). A sleeper that had more than its due loses that lag as the
//!            others run (DELAY_DEQUEUE), but doesn't weigh in their average meanwhile. Where vCPUs start and
//!            wake is as in `eevdf-flat`. No hrtick.

mod balance;
mod directed_yield;
mod entity;
mod load;
mod other_class;
mod queue;

use self::directed_yield::Interrupts;
use self::entity::{Entity, Sums, WEIGHT, WEIGHT_MIN, pick};
use self::load::Load;
use self::other_class::Away;
use self::queue::{Group, Lag, Queue, Task};
use super::balance::{Balance, Balances};
use super::spread;
use crate::bits::Bits;
use crate::config::EevdfConfig;
use crate::events::{IpiKind, StopReason};
use crate::ids::{IdVec, PcpuId, VcpuId, VmId};
use crate::machine::{Machine, VcpuState};
use crate::scheduler::{Pick, Scheduler, TurnEnds, YieldAnswer};
use microslice_policy::YieldCause;

/// Weight of a VM that says nothing; its cgroup has a `cpu.weight` of 100.
const VM_WEIGHT_DEFAULT: u64 = 256;

pub struct GroupedEevdf {
    config: EevdfConfig,
    queues: IdVec<PcpuId, Queue>,
    /// Of those that another class schedules.
    away: IdVec<VcpuId, Option<Away>>,
    /// Of those that are in no queue.
    lags: IdVec<VcpuId, Lag>,
    loads: IdVec<VcpuId, Load>,
    vm_of: IdVec<VcpuId, VmId>,
    /// Of each VM, and of each cgroup around VMs, which have the numbers behind: what it lies in, or `NONE`.
    parents: IdVec<VmId, VmId>,
    /// Likewise, its weight; and the load of its groups on all pCPUs (`tg->load_avg`).
    shares: IdVec<VmId, u64>,
    totals: IdVec<VmId, u64>,
    /// Where the round-robin over a VM's vCPUs stands.
    last_boosted: IdVec<VmId, VcpuId>,
    interrupts: Interrupts,
    balance: IdVec<PcpuId, Balance>,
    /// pCPUs where a vCPU waits, and those that run none.
    waited_for: Bits<PcpuId>,
    idle: Bits<PcpuId>,
    waiting_total: usize,
}

impl GroupedEevdf {
    pub fn new(config: EevdfConfig, machine: &mut Machine) -> Self {
        spread(machine);
        let (pcpus, vcpus) = (machine.pcpus.len(), machine.vcpus.len());
        let first = machine.vms.next_id();
        let id_of = |at: Option<usize>| at.map_or(VmId::NONE, |at| first.plus(at as u32));
        let of_vms = machine.vms.iter().map(|vm| (id_of(vm.cgroup), shares_of(vm.weight)));
        let outer = machine.cgroups.iter().map(|cgroup| (id_of(cgroup.parent), shares_of(cgroup.weight)));
        let (parents, shares): (Vec<_>, Vec<_>) = of_vms.chain(outer).unzip();
        Self {
            config,
            queues: machine.pcpus.iter().map(|_| Queue::new()).collect(),
            away: IdVec::of(None, vcpus),
            lags: IdVec::of(Lag::default(), vcpus),
            loads: IdVec::of(Load::default(), vcpus),
            vm_of: machine.vcpus.iter().map(|host| host.vm).collect(),
            totals: IdVec::of(0, shares.len()),
            parents: parents.into(),
            shares: shares.into(),
            last_boosted: machine.vms.iter().map(|vm| vm.first_vcpu).collect(),
            interrupts: Interrupts::new(vcpus),
            balance: machine.pcpus.ids().map(|pcpu| Balance::starts(machine, pcpu)).collect(),
            waited_for: Bits::new(pcpus, false),
            idle: Bits::new(pcpus, true),
            waiting_total: 0,
        }
    }

    fn charge(&mut self, now_ns: u64, pcpu: PcpuId) -> bool {
        self.queues[pcpu].charge(now_ns, self.config.base_slice_ns)
    }

    /// The most lag that is kept (`entity_lag`).
    fn limited_ns(&self, entity: &Entity, lag_ns: i64) -> i64 {
        let most_ns = entity.weighted_ns((2 * self.config.base_slice_ns).max(self.config.tick_ns));
        lag_ns.clamp(-most_ns, most_ns)
    }

    /// Brings a group's load up to now, before anything changes in it.
    fn update_load(&mut self, now_ns: u64, pcpu: PcpuId, at: usize) {
        let queue = &mut self.queues[pcpu];
        let weight = queue.load_in(at);
        queue.groups[at].load.update(now_ns, weight);
    }

    /// Likewise, and those of the groups around it.
    fn update_loads(&mut self, now_ns: u64, pcpu: PcpuId, at: usize) {
        self.update_load(now_ns, pcpu, at);
        if let Some(around) = self.queues[pcpu].around(at) {
            self.update_loads(now_ns, pcpu, around);
        }
    }

    /// A group's weight, and those of the groups around it.
    fn update_weights(&mut self, pcpu: PcpuId, at: usize) {
        self.update_weight(pcpu, at);
        if let Some(around) = self.queues[pcpu].around(at) {
            self.update_weights(pcpu, around);
        }
    }

    /// `update_tg_load_avg` and `update_cfs_group`: the group's part of its VM's weight.
    fn update_weight(&mut self, pcpu: PcpuId, at: usize) {
        let queue = &mut self.queues[pcpu];
        let weight_in = queue.load_in(at);
        let group = &mut queue.groups[at];
        let total = &mut self.totals[group.vm];
        *total = *total - std::mem::replace(&mut group.counted, group.load.average) + group.load.average;
        let load = weight_in.max(group.load.average);
        let of_all = (*total - group.counted + load).max(1);
        let shares = self.shares[group.vm];
        let weight = (u128::from(shares) * u128::from(load) / u128::from(of_all)) as u64;
        let weight = weight.clamp(WEIGHT_MIN, shares);
        if weight == group.entity.weight {
            return;
        }
        let old = group.entity.weight;
        if group.is_empty() {
            group.entity.reweigh(weight);
            group.lag.ns = scaled(group.lag.ns, old, weight);
            return;
        }
        let average_ns = queue.sums_around(at).average_ns();
        let others = queue.sums_without(at);
        let entity = &mut queue.groups[at].entity;
        let lag_ns = average_ns.map_or(0, |average_ns| average_ns - entity.vruntime_ns);
        let zero_ns = entity.vruntime_ns;
        entity.reweigh(weight);
        entity.place(&others, zero_ns, scaled(lag_ns, old, weight));
    }

    /// A vCPU comes into a pCPU's queue, with the lag that it has (`enqueue_task_fair`); `fresh`: its slice
    /// begins.
    fn enqueue(&mut self, now_ns: u64, pcpu: PcpuId, vcpu: VcpuId, task: Option<Entity>) {
        let vm = self.vm_of[vcpu];
        let slice_ns = self.config.base_slice_ns;
        let queue = &mut self.queues[pcpu];
        let at = queue.place_or_new(vm, &self.parents);
        self.update_loads(now_ns, pcpu, at);
        let queue = &mut self.queues[pcpu];
        let group = &mut queue.groups[at];
        let (was_empty, sums) = (group.tasks.is_empty(), group.sums());
        let fresh = task.is_none();
        let mut entity = task.unwrap_or(Entity::new(WEIGHT));
        let lag_ns = self.lags[vcpu].ns;
        entity.place(&sums, group.zero_ns, lag_ns);
        if fresh {
            entity.deadline_ns = entity.vruntime_ns + entity.weighted_ns(slice_ns);
        }
        group.tasks.push(Task { vcpu, entity });
        self.waiting_total += 1;
        self.waited_for.set(pcpu, true);
        if was_empty {
            self.queues[pcpu].enqueue_group(at, slice_ns);
        }
        self.update_weights(pcpu, at);
    }

    /// A vCPU that ran or waited leaves a pCPU's queue (`dequeue_task_fair`).
    fn dequeue(&mut self, now_ns: u64, pcpu: PcpuId, vcpu: VcpuId) -> Option<Entity> {
        let queue = &mut self.queues[pcpu];
        let at = queue.place_of(self.vm_of[vcpu])?;
        self.update_loads(now_ns, pcpu, at);
        let queue = &mut self.queues[pcpu];
        let all = queue.sums_around(at);
        let group = &mut queue.groups[at];
        let average_ns = group.sums().average_ns()?;
        let place = group.place_of(vcpu)?;
        let task = group.tasks.remove(place);
        if group.next == vcpu {
            group.next = VcpuId::NONE;
        }
        group.zero_ns = average_ns;
        let is_empty = group.tasks.is_empty();
        let lag_ns = self.limited_ns(&task.entity, average_ns - task.entity.vruntime_ns);
        self.lags[vcpu] = Lag { ns: lag_ns, average_ns };
        if is_empty {
            self.dequeue_group(pcpu, at, all)?;
        }
        if self.queues[pcpu].running == vcpu {
            self.queues[pcpu].running = VcpuId::NONE;
        } else {
            self.waiting_total -= 1;
        }
        let waits = self.queues[pcpu].waiting() > 0;
        self.waited_for.set(pcpu, waits);
        self.update_weights(pcpu, at);
        Some(task.entity)
    }

    /// A group whose last task has gone leaves the queue that it stands in, and so do those around it that
    /// have nothing else. `all`: what stood in that queue, with it.
    fn dequeue_group(&mut self, pcpu: PcpuId, mut at: usize, mut all: Sums) -> Option<()> {
        loop {
            let average_ns = all.average_ns()?;
            let entity = self.queues[pcpu].groups[at].entity;
            let lag_ns = self.limited_ns(&entity, average_ns - entity.vruntime_ns);
            let queue = &mut self.queues[pcpu];
            let Group { vm, parent, .. } = queue.groups[at];
            queue.groups[at].lag = Lag { ns: lag_ns, average_ns };
            if *queue.next_in(parent) == vm {
                *queue.next_in(parent) = VmId::NONE;
            }
            if queue.running_vm == vm {
                queue.running_vm = parent;
            }
            let Some(around) = queue.around(at) else {
                queue.zero_ns = average_ns;
                return Some(());
            };
            all = queue.sums_around(around);
            let group = &mut queue.groups[around];
            group.zero_ns = average_ns;
            group.inner -= 1;
            if !group.is_empty() {
                return Some(());
            }
            at = around;
        }
    }

    /// What is left of a sleeper's lag, by the queue that it left.
    fn lag_left_ns(&self, pcpu: PcpuId, vcpu: VcpuId) -> i64 {
        let queue = &self.queues[pcpu];
        let group = queue.place_of(self.vm_of[vcpu]).map(|at| &queue.groups[at]);
        self.lags[vcpu].left_ns(group.and_then(|group| group.sums().average_ns()))
    }

    /// Its load goes along (`migrate_task_rq_fair`), from a queue that it isn't in any more to one that it
    /// isn't in yet.
    fn move_load(&mut self, now_ns: u64, vcpu: VcpuId, from: PcpuId, to: PcpuId) {
        let vm = self.vm_of[vcpu];
        let load = self.loads[vcpu];
        if let Some(at) = self.queues[from].place_of(vm) {
            self.update_loads(now_ns, from, at);
            self.queues[from].groups[at].load.remove(&load);
            self.update_weights(from, at);
        }
        let at = self.queues[to].place_or_new(vm, &self.parents);
        self.update_loads(now_ns, to, at);
        self.queues[to].groups[at].load.add(&load);
    }

    /// One that waits goes to another pCPU's queue, where it is as far behind as it was.
    fn migrate(&mut self, machine: &mut Machine, vcpu: VcpuId, to: PcpuId) {
        let from = std::mem::replace(&mut machine.vcpus[vcpu].pcpu, to);
        let now_ns = machine.now_ns;
        self.charge(now_ns, from);
        self.charge(now_ns, to);
        let entity = self.dequeue(now_ns, from, vcpu);
        self.loads[vcpu].update(now_ns, WEIGHT);
        self.move_load(now_ns, vcpu, from, to);
        self.enqueue(now_ns, to, vcpu, entity);
    }

    /// Out of line: a loaded host hardly ever does (`sched_balance_newidle`).
    #[inline(never)]
    fn steal(&mut self, machine: &mut Machine, thief: PcpuId) {
        if self.waiting_total == 0 {
            return;
        }
        let found = machine
            .near_first(&self.waited_for, thief)
            // An idle peer is about to take from its queue itself.
            .filter(|&peer| peer != thief && !machine.is_idle(peer))
            .find_map(|peer| self.waiting_on(peer).find(|&vcpu| machine.allows(vcpu, thief)));
        if let Some(vcpu) = found {
            self.migrate(machine, vcpu, thief);
        }
    }

    fn find_idle(&self, machine: &Machine, vcpu: VcpuId) -> Option<PcpuId> {
        let home = machine.vcpus[vcpu].pcpu;
        machine
            .near_first(&self.idle, home)
            .find(|&pcpu| machine.allows(vcpu, pcpu) && self.queues[pcpu].waiting() == 0)
    }

    /// It runs on this pCPU from now on (`set_next_entity`, at the levels that change).
    fn runs(&mut self, now_ns: u64, pcpu: PcpuId, vcpu: VcpuId, ran: VcpuId) {
        let vm = self.vm_of[vcpu];
        let queue = &mut self.queues[pcpu];
        let group_changes = queue.running_vm != vm;
        if group_changes {
            queue.levels_change(vm);
        }
        queue.clear_next(vm);
        (queue.running, queue.running_vm) = (vcpu, vm);
        if ran != vcpu {
            queue.since_ns = now_ns;
        }
        if let Some(group) = queue.groups.iter_mut().find(|group| group.vm == vm) {
            if group.next == vcpu {
                group.next = VcpuId::NONE;
            }
            if ran != vcpu
                && let Some(task) = group.tasks.iter_mut().find(|task| task.vcpu == vcpu)
            {
                task.entity.is_picked();
            }
        }
    }

    /// Whether the vCPU that has just woken is the one to run where it waits (`check_preempt_wakeup_fair`).
    fn preempts(&self, pcpu: PcpuId, vcpu: VcpuId) -> bool {
        let queue = &self.queues[pcpu];
        if queue.running == VcpuId::NONE {
            return true;
        }
        let vm = self.vm_of[vcpu];
        let group = |at: usize| &queue.groups[at];
        if vm != queue.running_vm {
            // No buddies here.
            let around = queue.around_both(vm, queue.running_vm);
            let picked = pick(queue.queued_in(around), queue.level_in(around, queue.running_vm), None);
            return picked.is_some() && picked == queue.level_in(around, vm);
        }
        queue.place_of(vm).map(group).is_some_and(|group| {
            let entities = group.tasks.iter().map(|task| &task.entity).enumerate();
            let picked = pick(entities, group.place_of(queue.running), None);
            picked.is_some_and(|at| group.tasks[at].vcpu == vcpu)
        })
    }

    /// The account of the vCPU that ran on this pCPU until now. Returns it, if it waits from now on.
    fn stops(&mut self, machine: &Machine, pcpu: PcpuId, stopped: Option<(VcpuId, StopReason)>) -> VcpuId {
        let now_ns = machine.now_ns;
        self.charge(now_ns, pcpu);
        let Some((vcpu, reason)) = stopped else { return VcpuId::NONE };
        debug_assert_eq!(self.queues[pcpu].running, vcpu);
        if reason == StopReason::SliceExpired {
            self.queues[pcpu].end_turn(self.config.base_slice_ns);
        }
        if machine.vcpus[vcpu].state == VcpuState::Blocked {
            self.loads[vcpu].update(now_ns, WEIGHT);
            self.dequeue(now_ns, pcpu, vcpu);
            return VcpuId::NONE;
        }
        self.queues[pcpu].running = VcpuId::NONE;
        self.waiting_total += 1;
        vcpu
    }

    /// A pCPU chooses, of those that wait there. `ran` is one of them, or none.
    fn choose(&mut self, machine: &mut Machine, pcpu: PcpuId, ran: VcpuId) -> Option<Pick> {
        if self.queues[pcpu].tasks() == 0 {
            self.steal(machine, pcpu);
        }
        // A VM whose vCPU has just blocked is the one that ran, if it has another one there.
        let ran_vm = self.queues[pcpu].running_vm;
        let Some((_, vcpu)) = self.queues[pcpu].pick(ran_vm, ran) else {
            self.idle.set(pcpu, true);
            return None;
        };
        self.waiting_total -= 1;
        self.runs(machine.now_ns, pcpu, vcpu, ran);
        self.idle.set(pcpu, false);
        let waits = self.queues[pcpu].waiting() > 0;
        self.waited_for.set(pcpu, waits);
        // Turns end at ticks.
        Some(Pick { vcpu, slice_end_ns: u64::MAX })
    }

    fn waits_on(&self, pcpu: PcpuId, vcpu: VcpuId) -> bool {
        let queue = &self.queues[pcpu];
        let group = queue.place_of(self.vm_of[vcpu]).map(|at| &queue.groups[at]);
        queue.running != vcpu && group.is_some_and(|group| group.place_of(vcpu).is_some())
    }

    /// At ticks: loads and weights of the VMs that have any here; groups whose load has faded go.
    fn update_groups(&mut self, now_ns: u64, pcpu: PcpuId) {
        for at in 0..self.queues[pcpu].groups.len() {
            self.update_load(now_ns, pcpu, at);
            self.update_weight(pcpu, at);
        }
        // Those around others stay: they are few.
        let vms = self.last_boosted.len();
        let stays = |group: &Group| !group.is_empty() || group.load.average > 0 || group.vm.index() >= vms;
        self.queues[pcpu].groups.retain(stays);
    }
}

/// In the kernel's unit, of a VM's weight.
fn shares_of(weight: u32) -> u64 {
    (u64::from(weight) * WEIGHT / VM_WEIGHT_DEFAULT).max(WEIGHT_MIN)
}

fn scaled(lag_ns: i64, old: u64, new: u64) -> i64 {
    (i128::from(lag_ns) * i128::from(old) / i128::from(new)) as i64
}

impl Scheduler for GroupedEevdf {
    fn wake(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        let now_ns = machine.now_ns;
        let home = machine.vcpus[vcpu].pcpu;
        debug_assert_ne!(machine.current(home), Some(vcpu), "it has left its pCPU");
        let target = self.find_idle(machine, vcpu).unwrap_or(home);
        let is_over = self.charge(now_ns, target);
        if target != home {
            self.charge(now_ns, home);
        }
        self.lags[vcpu].ns = self.lag_left_ns(home, vcpu);
        self.loads[vcpu].update(now_ns, 0);
        if target != home {
            machine.vcpus[vcpu].pcpu = target;
            self.move_load(now_ns, vcpu, home, target);
        }
        self.enqueue(now_ns, target, vcpu, None);
        if is_over || self.preempts(target, vcpu) {
            machine.request_lazily(target);
        }
    }

    fn schedule(
        &mut self,
        machine: &mut Machine,
        pcpu: PcpuId,
        stopped: Option<(VcpuId, StopReason)>,
    ) -> Option<Pick> {
        let ran = self.stops(machine, pcpu, stopped);
        self.choose(machine, pcpu, ran)
    }

    fn yields(
        &mut self,
        machine: &mut Machine,
        vcpu: VcpuId,
        pcpu: PcpuId,
        cause: YieldCause,
    ) -> YieldAnswer {
        let goes_on = YieldAnswer::KeepSpinning { until_ns: machine.now_ns };
        if cause == YieldCause::Hlt || !self.config.directed_yield {
            return if self.waiting_total == 0 { goes_on } else { YieldAnswer::Yield };
        }
        if !self.yield_to_a_sibling(machine, vcpu, pcpu) {
            return goes_on;
        }
        self.charge(machine.now_ns, pcpu);
        let queue = &self.queues[pcpu];
        // Most yields end where they began: the yielder is still the one to run.
        match queue.pick(queue.running_vm, vcpu) {
            Some((_, next)) if next != vcpu => YieldAnswer::Yield,
            _ => goes_on,
        }
    }

    fn ipi(&mut self, machine: &mut Machine, from: VcpuId, to: VcpuId, kind: IpiKind) {
        if self.config.ipi_aware && kind == IpiKind::CallFunction {
            self.interrupts.sent(machine.now_ns, from, to);
        }
    }

    fn acknowledged(&mut self, _machine: &Machine, vcpu: VcpuId, another_waits: bool) {
        if self.config.ipi_aware && !another_waits {
            self.interrupts.handled(vcpu);
        }
    }

    fn tick_ns(&self) -> u64 {
        self.config.tick_ns
    }

    fn tick(&mut self, machine: &mut Machine, pcpu: PcpuId) {
        let is_over = self.charge(machine.now_ns, pcpu);
        self.update_groups(machine.now_ns, pcpu);
        if self.queues[pcpu].running == VcpuId::NONE {
            if self.waiting_total > 0 {
                machine.request_schedule(pcpu);
            }
            return;
        }
        if is_over {
            machine.request_schedule(pcpu);
        }
        self.push_to_the_next(machine, pcpu);
        self.pull_from_the_busiest(machine, pcpu);
    }
}

impl TurnEnds for GroupedEevdf {
    /// At the level that ends first; nobody else may be here to end it for.
    fn turn_due_ns(&self, pcpu: PcpuId) -> Option<u64> {
        let queue = &self.queues[pcpu];
        let group = &queue.groups[queue.place_of(queue.running_vm)?];
        let task = group.tasks.iter().find(|task| task.vcpu == queue.running)?;
        let groups = queue.levels(queue.running_vm).map(|at| &queue.groups[at]);
        let groups = groups.map(|group| (&group.entity, queue.queued_in(group.parent).count()));
        let levels = groups.chain([(&task.entity, group.tasks.len())]);
        let shared = levels.filter(|&(_, queued)| queued > 1);
        shared.map(|(entity, _)| queue.charged_until_ns + entity.left_ns()).min()
    }
}

#[cfg(test)]
mod tests;
