//! Load balancing: load_balance at ticks, idle_balance when a pCPU runs out of work.
//!
//! Problem.   Wake-ups leave some pCPUs with more to do than others, and groups weigh differently from pCPU
//!            to pCPU.
//! Mechanism. A pCPU looks within its last-level cache, and less often at the whole host, for the busiest
//!            one. If that has a quarter more load (`imbalance_pct` 125), it takes waiting vCPUs. It takes up
//!            to the smaller one of both distances from the average, but at least one where that helps
//!            (`calculate_imbalance`, `fix_small_imbalance`). A vCPU that ran in the last 0.5 ms is cache-hot
//!            and stays, unless none could be moved twice (`task_hot`, `cache_nice_tries`). A pCPU that runs
//!            out of work takes one, unless it usually idles for less than that (`idle_balance`).
//! Limits.    A running vCPU is never moved (no active balance): after some failures any that waits is.
//!            Intervals are the shortest ones; loads are those of the moment.

use super::Cfs;
use super::queue::{MIGRATION_COST_NS, TASK_WEIGHT};
use crate::ids::{PcpuId, VcpuId};
use crate::machine::Machine;

const IMBALANCE_PERCENT: u64 = 125;
/// cache_nice_tries of SD_MC_INIT, and how many failures beyond it lead to active balance.
const HOT_TRIES: u32 = 1;
const TRIES_MAX: u32 = HOT_TRIES + 2;

/// How far a pCPU looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Domain {
    /// SD_MC_INIT.
    Cache,
    /// SD_NODE_INIT.
    Host,
}

impl Domain {
    const ALL: [Self; 2] = [Self::Cache, Self::Host];

    /// min_interval, times busy_factor for a busy pCPU.
    fn interval_ns(self, is_idle: bool) -> u64 {
        match (self, is_idle) {
            (Self::Cache, true) => 1_000_000,
            (Self::Cache, false) => 64_000_000,
            (Self::Host, true) => 8_000_000,
            (Self::Host, false) => 256_000_000,
        }
    }
}

/// Of each domain: when a pCPU looked last, and how often it has found nobody to move since.
#[derive(Debug, Clone, Default)]
pub struct Balance {
    looked_ns: [u64; 2],
    failed: [u32; 2],
}

impl Cfs {
    /// rebalance_domains.
    pub(super) fn balance(&mut self, machine: &mut Machine, pcpu: PcpuId) {
        let is_idle = machine.is_idle(pcpu);
        for domain in Domain::ALL {
            let looked_ns = &mut self.balance[pcpu].looked_ns[domain as usize];
            if machine.now_ns >= *looked_ns + domain.interval_ns(is_idle) {
                *looked_ns = machine.now_ns;
                self.pull(machine, pcpu, domain, usize::MAX);
            }
        }
    }

    /// Takes what it can before it idles; stops at the first domain that gave something.
    pub(super) fn idle_balance(&mut self, machine: &mut Machine, pcpu: PcpuId) {
        if self.roots[pcpu].idle_mean_ns >= MIGRATION_COST_NS {
            let _found = Domain::ALL.into_iter().any(|domain| self.pull(machine, pcpu, domain, 1));
        }
    }

    /// load_balance: whether a vCPU came.
    fn pull(&mut self, machine: &mut Machine, pcpu: PcpuId, domain: Domain, most: usize) -> bool {
        let Some((busiest, imbalance)) = self.busiest(machine, pcpu, domain) else {
            self.balance[pcpu].failed[domain as usize] = 0;
            return false;
        };
        let tries = self.balance[pcpu].failed[domain as usize];
        let mut left = imbalance;
        let mut moved = 0;
        for vcpu in self.waiting_on(busiest) {
            let load = self.load_of(busiest, vcpu);
            let is_hot = machine.now_ns - self.tasks[vcpu].ran_ns < MIGRATION_COST_NS && tries <= HOT_TRIES;
            if !machine.allows(vcpu, pcpu)
                || !self.may_move(vcpu, pcpu)
                || is_hot
                || (load / 2 > left && tries <= TRIES_MAX)
            {
                continue;
            }
            self.move_waiting(machine, vcpu, busiest, pcpu);
            moved += 1;
            left = left.saturating_sub(load);
            if left == 0 || moved == most {
                break;
            }
        }
        self.balance[pcpu].failed[domain as usize] = if moved > 0 { 0 } else { tries + 1 };
        moved > 0
    }

    /// find_busiest_group and find_busiest_queue: the busiest pCPU where a vCPU waits that may run here, and
    /// how much load should come from there.
    fn busiest(&self, machine: &Machine, pcpu: PcpuId, domain: Domain) -> Option<(PcpuId, u64)> {
        let of_cache = |peer: &PcpuId| machine.llc_of(*peer) == machine.llc_of(pcpu);
        let within: Vec<PcpuId> = match domain {
            Domain::Cache => machine.pcpus.ids().filter(of_cache).collect(),
            Domain::Host => machine.pcpus.ids().collect(),
        };
        let total: u64 = within.iter().map(|&peer| self.load(peer)).sum();
        let (own, average) = (self.load(pcpu), total / within.len() as u64);
        let beyond = |peer: &PcpuId| domain == Domain::Cache || !of_cache(peer);
        let peers = within.iter().copied().filter(|&peer| peer != pcpu).filter(beyond);
        // load_balance looks again without a pCPU whose tasks may all not move here (LBF_ALL_PINNED).
        let may_come = |&peer: &PcpuId| self.waiting_on(peer).any(|vcpu| machine.allows(vcpu, pcpu));
        let busiest = peers.filter(may_come).max_by_key(|&peer| self.load(peer))?;
        let load = self.load(busiest);
        if load * 100 <= own * IMBALANCE_PERCENT || load <= average || own >= average.max(1) {
            return None;
        }
        let imbalance = (load - average).min(average - own.min(average));
        let [per_task, own_per_task] =
            [busiest, pcpu].map(|pcpu| self.load(pcpu) / self.running_on(pcpu).max(1));
        if imbalance >= per_task {
            return Some((busiest, imbalance));
        }
        let helps = per_task > own_per_task || load - own >= per_task;
        helps.then_some((busiest, per_task))
    }

    fn running_on(&self, pcpu: PcpuId) -> u64 {
        self.roots[pcpu].groups.iter().map(|&vm| self.groups.of(pcpu, vm).running).sum()
    }

    pub(super) fn waiting_on(&self, pcpu: PcpuId) -> impl Iterator<Item = VcpuId> + use<> {
        let groups = self.roots[pcpu].groups.iter();
        groups.flat_map(|&vm| self.groups.of(pcpu, vm).waiting.clone()).collect::<Vec<_>>().into_iter()
    }

    /// What a vCPU adds to its pCPU's load (`task_h_load`).
    fn load_of(&self, pcpu: PcpuId, vcpu: VcpuId) -> u64 {
        let group = self.groups.of(pcpu, self.tasks[vcpu].vm);
        group.weight * TASK_WEIGHT / group.load().max(1)
    }

    pub(super) fn move_waiting(&mut self, machine: &mut Machine, vcpu: VcpuId, from: PcpuId, to: PcpuId) {
        let now_ns = machine.now_ns;
        self.charge(now_ns, from);
        self.groups.of_mut(from, self.tasks[vcpu].vm).waiting.retain(|&waiter| waiter != vcpu);
        self.leaves(now_ns, from, vcpu);
        self.leave_line(machine, from, vcpu);
        self.migrate(machine, vcpu, to);
        self.enqueue(now_ns, to, vcpu, false);
        if self.preempts_current(to, vcpu) {
            machine.request_schedule(to);
        }
        self.line_up(machine, vcpu);
    }
}
