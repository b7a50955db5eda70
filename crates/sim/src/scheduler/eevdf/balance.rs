//! Load balancing at ticks, by the weights of those who run or wait (`sched_balance_rq` in kernel/sched/fair.c).
//!
//! Problem.   Three equal tasks on two pCPUs can't be spread evenly, and tasks of equal weight may all have begun on the same
//!            pCPU: without balancing their shares stay unequal for ever.
//! Mechanism. A queue gives a task to the next pCPU at once if that one then has no more to do than itself. Now
//!            and then (every 16 ms times the pCPUs of its last-level cache, and of the host: `busy_factor`, `sd_weight`) a
//!            pCPU looks there for the busiest one that has more than 117 % of its load (`imbalance_pct`), and takes a task of
//!            at most half the difference; of twice that if it found none the time before, and so on (`nr_balance_failed`).
//!            So the third of three equal tasks goes to and fro.
//! Limits.    Load is that of the moment, not a decaying average.

use super::{Eevdf, Task};
use crate::ids::PcpuId;
use crate::machine::Machine;

const INTERVAL_PER_PCPU_NS: u64 = 16_000_000;
pub const IMBALANCE_PERCENT: u64 = 117;
/// 2^20 times as much as any weight.
pub const FAILED_MAX: u32 = 20;

/// Where a pCPU looks: in its own last-level cache, and beyond.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Domain {
    Cache,
    Host,
}

impl Domain {
    pub const ALL: [Self; 2] = [Self::Cache, Self::Host];

    fn pcpus(self, machine: &Machine) -> u64 {
        match self {
            Self::Cache => u64::from(machine.llc_pcpus),
            Self::Host => machine.pcpus.len() as u64,
        }
    }

    pub fn interval_ns(self, machine: &Machine) -> u64 {
        INTERVAL_PER_PCPU_NS * self.pcpus(machine)
    }
}

/// Of each domain.
pub struct Balance {
    pub next_ns: [u64; 2],
    /// How often there was an imbalance, but nobody light enough, since somebody came last.
    pub failed: [u32; 2],
}

impl Balance {
    /// The pCPUs of a domain take turns.
    pub fn starts(machine: &Machine, pcpu: PcpuId) -> Self {
        let turn = |domain: Domain| pcpu.index() as u64 % domain.pcpus(machine) + 1;
        Self { next_ns: Domain::ALL.map(|domain| INTERVAL_PER_PCPU_NS * turn(domain)), failed: [0; 2] }
    }
}

impl Eevdf {
    fn weight(&self, task: &Task) -> u64 {
        u64::from(self.vms[task.vm].weight)
    }

    /// The weights of all who run or wait there.
    fn load(&self, pcpu: PcpuId) -> u64 {
        let queue = &self.queues[pcpu];
        let running = if queue.is_idle() { 0 } else { self.weight(&queue.running) };
        running + queue.waiting().map(|task| self.weight(task)).sum::<u64>()
    }

    pub(super) fn push_to_the_next(&mut self, machine: &mut Machine, pcpu: PcpuId) {
        let Some(peer) = self.queues.round_from(pcpu.plus(1)).next() else { return };
        if self.queues[pcpu].waiting == 0 {
            return;
        }
        let more = self.load(pcpu).saturating_sub(self.load(peer));
        let fits = |task: &Task| 2 * self.weight(task) <= more && machine.allows(task.vcpu, peer);
        let at = self.queues[pcpu].waiting().position(fits);
        if let Some(at) = at {
            self.move_task(machine, pcpu, at, peer);
        }
    }

    pub(super) fn pull_from_the_busiest(&mut self, machine: &mut Machine, pcpu: PcpuId) {
        for domain in Domain::ALL {
            let next_ns = &mut self.balance[pcpu].next_ns[domain as usize];
            if machine.now_ns >= *next_ns {
                *next_ns = machine.now_ns + domain.interval_ns(machine);
                self.pull(machine, pcpu, domain);
            }
        }
    }

    fn pull(&mut self, machine: &mut Machine, pcpu: PcpuId, domain: Domain) {
        let busiest = self.busiest(machine, pcpu, domain);
        let failed = &mut self.balance[pcpu].failed[domain as usize];
        let Some((busiest, load)) = busiest else {
            *failed = 0;
            return;
        };
        let before = *failed;
        *failed = (before + 1).min(FAILED_MAX);
        let most = (load - self.load(pcpu)) / 2;
        let fits = |task: &Task| self.weight(task) >> before <= most && machine.allows(task.vcpu, pcpu);
        let at = self.queues[busiest].waiting().position(fits);
        if let Some(at) = at {
            self.balance[pcpu].failed[domain as usize] = 0;
            self.move_task(machine, busiest, at, pcpu);
        }
    }

    /// Who has the most to do, with somebody who may come here.
    fn busiest(&self, machine: &Machine, pcpu: PcpuId, domain: Domain) -> Option<(PcpuId, u64)> {
        let own = self.load(pcpu);
        let mut most = None;
        for peer in self.waited_for.round_from(pcpu) {
            let is_near = machine.llc_of(peer) == machine.llc_of(pcpu);
            if peer == pcpu || is_near != (domain == Domain::Cache) {
                continue;
            }
            let load = self.load(peer);
            if load * 100 > own * IMBALANCE_PERCENT
                && most.is_none_or(|(_, most)| load > most)
                && self.queues[peer].waiting().any(|task| machine.allows(task.vcpu, pcpu))
            {
                most = Some((peer, load));
            }
        }
        most
    }

    fn move_task(&mut self, machine: &mut Machine, from: PcpuId, at: usize, to: PcpuId) {
        let mut task = self.dequeue(from, at);
        self.migrate(machine, &mut task, to);
        self.enqueue(to, task);
        if machine.is_idle(to) {
            machine.request_schedule(to);
        }
    }
}
