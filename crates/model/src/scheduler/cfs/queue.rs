//! Run queues of CFS: of each pCPU the groups (VMs) that have a vCPU there, and of each group there its
//! vCPUs.

use crate::ids::{PcpuId, VcpuId, VmId};

/// NICE_0_LOAD: the weight of every vCPU within its group.
pub const TASK_WEIGHT: u64 = 1024;
/// MIN_SHARES.
const SHARES_MIN: u64 = 2;
/// sysctl_sched_shares_window: over how long a group's load on a pCPU is averaged.
const SHARES_WINDOW_NS: u64 = 10_000_000;
/// Virtual runtimes begin here, so that half a latency below them is still a number.
pub const FIRST_VRUNTIME_NS: u64 = 1 << 40;

/// A group's queue on a pCPU, and what stands for it in the pCPU's own queue (its `sched_entity`).
#[derive(Debug, Clone)]
pub struct Group {
    /// Of the entity: its runtime among the groups of this pCPU, and its part of the VM's shares.
    pub vruntime_ns: u64,
    pub weight: u64,
    /// Of the queue.
    pub min_vruntime_ns: u64,
    /// Those that wait, in the order of coming; the running one isn't among them.
    pub waiting: Vec<VcpuId>,
    /// Those that wait, and the running one.
    pub running: u64,
    /// `next` of a directed yield, and the vCPU that gave way.
    pub buddies: Buddies<VcpuId>,
    average: LoadAverage,
}

/// Which one to pick, if it is fair, and which to pass over (`cfs_rq->next`, `cfs_rq->skip`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buddies<T> {
    pub next: Option<T>,
    pub skip: Option<T>,
}

impl<T> Default for Buddies<T> {
    fn default() -> Self {
        Self { next: None, skip: None }
    }
}

impl<T: Copy + PartialEq> Buddies<T> {
    /// clear_buddies.
    pub fn forget(&mut self, entity: T) {
        self.next = self.next.filter(|&next| next != entity);
        self.skip = self.skip.filter(|&skip| skip != entity);
    }
}

/// `load_avg`, `load_period`, `load_contribution`: what a pCPU tells the group about its load there.
#[derive(Debug, Clone, Default)]
struct LoadAverage {
    sum: u64,
    period_ns: u64,
    stamp_ns: u64,
    loaded_ns: u64,
    contribution: u64,
}

impl Group {
    pub fn new() -> Self {
        Self {
            vruntime_ns: FIRST_VRUNTIME_NS,
            weight: SHARES_MIN,
            min_vruntime_ns: FIRST_VRUNTIME_NS,
            waiting: Vec::new(),
            running: 0,
            buddies: Buddies::default(),
            average: LoadAverage::default(),
        }
    }

    pub fn load(&self) -> u64 {
        self.running * TASK_WEIGHT
    }

    /// update_cfs_load: returns by how much the group's total changes.
    pub fn update_load(&mut self, now_ns: u64) -> i64 {
        let load = self.load();
        let average = &mut self.average;
        let mut delta_ns = now_ns - average.stamp_ns;
        if average.stamp_ns > average.loaded_ns && now_ns - average.loaded_ns > 4 * SHARES_WINDOW_NS {
            (average.period_ns, average.sum, delta_ns) = (0, 0, SHARES_WINDOW_NS - 1);
        }
        average.stamp_ns = now_ns;
        average.period_ns += delta_ns;
        if load > 0 {
            average.loaded_ns = now_ns;
            average.sum += delta_ns * load;
        }
        let mean = average.sum / (average.period_ns + 1);
        let change = mean as i64 - average.contribution as i64;
        let tells = change.unsigned_abs() > average.contribution / 8;
        while average.period_ns > SHARES_WINDOW_NS {
            (average.period_ns, average.sum) = (average.period_ns / 2, average.sum / 2);
        }
        if !tells {
            return 0;
        }
        average.contribution = mean;
        change
    }

    /// calc_tg_weight: the group's load on all pCPUs, here as it is now.
    pub fn group_load(&self, total: u64) -> u64 {
        (total + self.load()).saturating_sub(self.average.contribution)
    }

    /// calc_cfs_shares: this pCPU's part of the shares of a VM whose pCPUs have told of `total`.
    pub fn part_of(&self, shares: u64, total: u64) -> u64 {
        let group_load = self.group_load(total).max(1);
        (shares * self.load() / group_load).clamp(SHARES_MIN, shares)
    }

    /// effective_load: how much its weight changes by `more` load here, when the group's total gets `moved`.
    pub fn effective_load(&self, shares: u64, total: u64, more: u64, moved: u64) -> i64 {
        let (all, here) = (moved + self.group_load(total), self.load() + more);
        let weight = if all > 0 && here < all { here * shares / all } else { shares };
        weight.max(SHARES_MIN) as i64 - self.weight as i64
    }
}

/// A pCPU's queue.
#[derive(Debug, Clone)]
pub struct Root {
    /// The running vCPU, or `NONE`, and its VM.
    pub current: VcpuId,
    pub current_vm: VmId,
    pub charged_until_ns: u64,
    /// Since when this turn lasts (`prev_sum_exec_runtime`).
    pub turn_since_ns: u64,
    /// Groups that have a vCPU here.
    pub groups: Vec<VmId>,
    pub min_vruntime_ns: u64,
    pub buddies: Buddies<VmId>,
    /// Since when it idles, and for how long it usually does (`idle_stamp`, `avg_idle`).
    pub idle_since_ns: Option<u64>,
    pub idle_mean_ns: u64,
}

/// sysctl_sched_migration_cost: a vCPU that ran that recently is cache-hot.
pub const MIGRATION_COST_NS: u64 = 500_000;

impl Root {
    pub fn new() -> Self {
        Self {
            current: VcpuId::NONE,
            current_vm: VmId::NONE,
            charged_until_ns: 0,
            turn_since_ns: 0,
            groups: Vec::new(),
            min_vruntime_ns: FIRST_VRUNTIME_NS,
            buddies: Buddies::default(),
            idle_since_ns: Some(0),
            idle_mean_ns: 2 * MIGRATION_COST_NS,
        }
    }

    /// ttwu_do_wakeup: a vCPU comes to a pCPU that idled.
    pub fn ends_idling(&mut self, now_ns: u64) {
        let Some(since_ns) = self.idle_since_ns.take() else { return };
        let idled_ns = now_ns - since_ns;
        self.idle_mean_ns = if idled_ns > 2 * MIGRATION_COST_NS {
            2 * MIGRATION_COST_NS
        } else {
            (self.idle_mean_ns as i64 + (idled_ns as i64 - self.idle_mean_ns as i64) / 8) as u64
        };
    }
}

/// calc_delta_fair: real time as virtual time of an entity of that weight.
pub fn weighted_ns(time_ns: u64, weight: u64) -> u64 {
    if weight == TASK_WEIGHT { time_ns } else { time_ns * TASK_WEIGHT / weight.max(1) }
}

/// wakeup_preempt_entity: whether an entity of `weight` at `vruntime_ns` is so far behind `current_ns` that
/// it preempts. `None`: it isn't behind.
pub fn preempts(current_ns: u64, vruntime_ns: u64, weight: u64, granularity_ns: u64) -> Option<bool> {
    let behind_ns = current_ns.checked_sub(vruntime_ns).filter(|&ns| ns > 0)?;
    Some(behind_ns > weighted_ns(granularity_ns, weight))
}

/// pick_next_entity over (entity, runtime, weight): the one furthest behind, but the second instead of the
/// one that gave way, and before both a buddy, where that is fair.
pub fn pick_next<T: Copy + PartialEq>(
    waiting: &[(T, u64, u64)],
    buddies: Buddies<T>,
    granularity_ns: u64,
) -> Option<T> {
    let first = |without: Option<T>| {
        let others = waiting.iter().filter(move |entity| Some(entity.0) != without);
        others.min_by_key(|entity| entity.1).copied()
    };
    let left = first(None)?;
    // An entity may go before the first if it isn't further ahead of it than a wake-up's granularity.
    let is_fair = |entity: &(T, u64, u64)| preempts(entity.1, left.1, left.2, granularity_ns) != Some(true);
    let mut picked = left;
    if buddies.skip == Some(left.0) {
        picked = first(Some(left.0)).filter(is_fair).unwrap_or(left);
    }
    if let Some(next) =
        waiting.iter().find(|entity| Some(entity.0) == buddies.next).filter(|entity| is_fair(entity))
    {
        picked = *next;
    }
    Some(picked.0)
}

/// Groups' queues of all pCPUs: one of each VM on each.
pub struct Groups {
    queues: Vec<Group>,
    vms: usize,
    /// Each VM's shares, and what its pCPUs have told of its load.
    pub shares: Vec<u64>,
    pub totals: Vec<u64>,
}

impl Groups {
    pub fn new(pcpus: usize, shares: Vec<u64>) -> Self {
        let vms = shares.len();
        Self { queues: vec![Group::new(); pcpus * vms], vms, totals: vec![0; vms], shares }
    }

    pub fn of(&self, pcpu: PcpuId, vm: VmId) -> &Group {
        &self.queues[pcpu.index() * self.vms + vm.index()]
    }

    pub fn of_mut(&mut self, pcpu: PcpuId, vm: VmId) -> &mut Group {
        &mut self.queues[pcpu.index() * self.vms + vm.index()]
    }

    /// update_cfs_load and update_cfs_shares.
    pub fn update(&mut self, pcpu: PcpuId, vm: VmId, now_ns: u64) {
        let at = pcpu.index() * self.vms + vm.index();
        let change = self.queues[at].update_load(now_ns);
        let total = &mut self.totals[vm.index()];
        *total = total.saturating_add_signed(change);
        let queue = &mut self.queues[at];
        queue.weight = queue.part_of(self.shares[vm.index()], self.totals[vm.index()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_those_that_wait_the_one_furthest_behind_is_next() {
        let waiting = [('a', 20, 1024), ('b', 10, 1024), ('c', 30, 1024)];
        assert_eq!(pick_next(&waiting, Buddies::default(), 5), Some('b'));
        assert_eq!(pick_next::<char>(&[], Buddies::default(), 5), None);
    }

    #[test]
    fn a_buddy_goes_first_and_a_vcpu_that_gave_way_last_where_neither_is_further_ahead_than_the_granularity()
    {
        let waiting = [('a', 14, 1024), ('b', 10, 1024), ('c', 30, 1024)];
        let pick = |next, skip| pick_next(&waiting, Buddies { next, skip }, 5);
        assert_eq!(pick(Some('a'), None), Some('a'));
        assert_eq!(pick(Some('c'), None), Some('b'), "it is too far ahead");
        assert_eq!(pick(None, Some('b')), Some('a'));
        assert_eq!(pick_next(&waiting[1..], Buddies { next: None, skip: Some('b') }, 5), Some('b'));
    }

    #[test]
    fn a_light_group_has_to_be_further_behind_to_preempt() {
        assert_eq!(preempts(10, 10, 1024, 4), None);
        assert_eq!(preempts(15, 10, 1024, 4), Some(true));
        assert_eq!(preempts(15, 10, 512, 4), Some(false), "8 by its weight");
    }

    #[test]
    fn a_vms_shares_are_divided_among_the_pcpus_where_it_has_a_vcpu() {
        let mut groups = Groups::new(2, vec![8192]);
        let (pcpus, vm) = ([PcpuId::new(0), PcpuId::new(1)], VmId::new(0));
        groups.of_mut(pcpus[0], vm).running = 1;
        for ms in 1..100 {
            pcpus.iter().for_each(|&pcpu| groups.update(pcpu, vm, ms * 1_000_000));
        }
        assert_eq!(groups.of(pcpus[0], vm).weight, 8192, "all of them where all its load is");
        groups.of_mut(pcpus[1], vm).running = 1;
        for ms in 100..200 {
            pcpus.iter().for_each(|&pcpu| groups.update(pcpu, vm, ms * 1_000_000));
        }
        let weights = pcpus.map(|pcpu| groups.of(pcpu, vm).weight);
        assert!(weights.iter().all(|weight| weight.abs_diff(4096) < 300), "{weights:?}");
    }

    #[test]
    fn a_pcpu_that_idles_for_short_again_and_again_is_known_to() {
        let mut root = Root::new();
        root.ends_idling(3_000_000);
        assert_eq!(root.idle_mean_ns, 1_000_000, "longer is no difference");
        for turn in 1..40 {
            root.idle_since_ns = Some(turn * 10_000_000);
            root.ends_idling(turn * 10_000_000 + 100_000);
        }
        assert!(root.idle_mean_ns < 120_000);
    }
}
