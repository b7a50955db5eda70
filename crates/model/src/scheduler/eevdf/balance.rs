//! Load balancing at ticks, by the weights of the tasks that run or wait (`sched_balance_rq` in
//! kernel/sched/fair.c).
//!
//! Problem.   Three equal tasks on two pCPUs can't be spread evenly, and tasks of equal weight may all have
//!            begun on the same pCPU: without balancing their shares stay unequal for ever.
//! Mechanism. A queue gives a task to the next pCPU at once if that one then has no more to do than itself.
//!            Now and then a pCPU looks for the busiest one that has more than 117 % of its load
//!            (`imbalance_pct`). It does so every 16 ms times the pCPUs of its last-level cache, and of the
//!            host (`busy_factor`, `sd_weight`). It takes a task of at most half the difference; of twice
//!            that if it found none the time before, and so on (`nr_balance_failed`). So the third of three
//!            equal tasks goes to and fro.
//! Limits.    Load is that of the moment, not a decaying average.

use super::Eevdf;
use crate::bits::Bits;
use crate::ids::{PcpuId, VcpuId};
use crate::machine::{Distance, Machine};

const INTERVAL_PER_PCPU_NS: u64 = 16_000_000;
const IMBALANCE_PERCENT: u64 = 117;
/// 2^20 times as much as any weight.
const FAILED_MAX: u32 = 20;

/// pCPUs up to so far away: a domain.
fn pcpus_within(distance: Distance, machine: &Machine) -> u64 {
    match distance {
        Distance::Cache => u64::from(machine.llc_pcpus),
        Distance::Node => u64::from(machine.node_pcpus),
        Distance::Host => machine.pcpus.len() as u64,
    }
}

/// Of each domain.
pub struct Balance {
    next_ns: [u64; Distance::ALL.len()],
    /// How often there was an imbalance, but no vCPU light enough, since one came last.
    failed: [u32; Distance::ALL.len()],
}

impl Balance {
    /// The pCPUs of a domain take turns.
    pub fn starts(machine: &Machine, pcpu: PcpuId) -> Self {
        let turn = |domain| pcpu.index() as u64 % pcpus_within(domain, machine) + 1;
        let next_ns = Distance::ALL.map(|domain| INTERVAL_PER_PCPU_NS * turn(domain));
        Self { next_ns, failed: [0; Distance::ALL.len()] }
    }
}

/// Queues of pCPUs among which load is balanced.
pub trait Balances {
    fn balance_of(&mut self, pcpu: PcpuId) -> &mut Balance;

    /// pCPUs where a vCPU waits.
    fn waited_for(&self) -> &Bits<PcpuId>;

    /// The pCPU whose turn it is to be given to.
    fn next_to(&self, pcpu: PcpuId) -> Option<PcpuId>;

    fn waiting_on(&self, pcpu: PcpuId) -> impl Iterator<Item = VcpuId>;

    /// Of all that run or wait there.
    fn load(&self, pcpu: PcpuId) -> u64;

    /// Of one that waits there.
    fn load_of(&self, machine: &Machine, pcpu: PcpuId, vcpu: VcpuId) -> u64;

    fn move_waiting(&mut self, machine: &mut Machine, vcpu: VcpuId, from: PcpuId, to: PcpuId);

    fn push_to_the_next(&mut self, machine: &mut Machine, pcpu: PcpuId) {
        let Some(peer) = self.next_to(pcpu).filter(|&peer| peer != pcpu) else { return };
        if self.waiting_on(pcpu).next().is_none() {
            return;
        }
        let more = self.load(pcpu).saturating_sub(self.load(peer));
        let fits =
            |&vcpu: &VcpuId| 2 * self.load_of(machine, pcpu, vcpu) <= more && machine.allows(vcpu, peer);
        let found = self.waiting_on(pcpu).find(fits);
        if let Some(vcpu) = found {
            self.move_waiting(machine, vcpu, pcpu, peer);
        }
    }

    fn pull_from_the_busiest(&mut self, machine: &mut Machine, pcpu: PcpuId) {
        let widest = machine.widest();
        for domain in Distance::ALL.into_iter().filter(|&domain| domain <= widest) {
            let next_ns = &mut self.balance_of(pcpu).next_ns[domain as usize];
            if machine.now_ns >= *next_ns {
                *next_ns = machine.now_ns + INTERVAL_PER_PCPU_NS * pcpus_within(domain, machine);
                pull(self, machine, pcpu, domain);
            }
        }
    }
}

fn pull<B: Balances + ?Sized>(queues: &mut B, machine: &mut Machine, pcpu: PcpuId, domain: Distance) {
    let busiest = busiest(queues, machine, pcpu, domain);
    let failed = &mut queues.balance_of(pcpu).failed[domain as usize];
    let Some((busiest, load)) = busiest else {
        *failed = 0;
        return;
    };
    let before = *failed;
    *failed = (before + 1).min(FAILED_MAX);
    let most = (load - queues.load(pcpu)) / 2;
    let fits = |&vcpu: &VcpuId| {
        queues.load_of(machine, busiest, vcpu) >> before <= most && machine.allows(vcpu, pcpu)
    };
    let found = queues.waiting_on(busiest).find(fits);
    if let Some(vcpu) = found {
        queues.balance_of(pcpu).failed[domain as usize] = 0;
        queues.move_waiting(machine, vcpu, busiest, pcpu);
    }
}

/// The pCPU that has the most to do, with a task that may come here.
fn busiest<B: Balances + ?Sized>(
    queues: &B,
    machine: &Machine,
    pcpu: PcpuId,
    domain: Distance,
) -> Option<(PcpuId, u64)> {
    let own = queues.load(pcpu);
    let mut most = None;
    for peer in queues.waited_for().round_from(pcpu) {
        if peer == pcpu || machine.distance(peer, pcpu) != domain {
            continue;
        }
        let load = queues.load(peer);
        if load * 100 > own * IMBALANCE_PERCENT
            && most.is_none_or(|(_, most)| load > most)
            && queues.waiting_on(peer).any(|vcpu| machine.allows(vcpu, pcpu))
        {
            most = Some((peer, load));
        }
    }
    most
}

impl Balances for Eevdf {
    fn balance_of(&mut self, pcpu: PcpuId) -> &mut Balance {
        &mut self.balance[pcpu]
    }

    fn waited_for(&self) -> &Bits<PcpuId> {
        &self.waited_for
    }

    fn next_to(&self, pcpu: PcpuId) -> Option<PcpuId> {
        self.queues.round_from(pcpu.plus(1)).next()
    }

    fn waiting_on(&self, pcpu: PcpuId) -> impl Iterator<Item = VcpuId> {
        self.queues[pcpu].waiting().map(|task| task.vcpu)
    }

    fn load(&self, pcpu: PcpuId) -> u64 {
        let queue = &self.queues[pcpu];
        let weight = |vm| u64::from(self.vms[vm].weight);
        let running = if queue.is_idle() { 0 } else { weight(queue.running.vm) };
        running + queue.waiting().map(|task| weight(task.vm)).sum::<u64>()
    }

    fn load_of(&self, machine: &Machine, _pcpu: PcpuId, vcpu: VcpuId) -> u64 {
        u64::from(self.vms[machine.vcpus[vcpu].vm].weight)
    }

    fn move_waiting(&mut self, machine: &mut Machine, vcpu: VcpuId, from: PcpuId, to: PcpuId) {
        let Some(at) = self.queues[from].waiting().position(|task| task.vcpu == vcpu) else { return };
        let mut task = self.dequeue(from, at);
        self.migrate(machine, &mut task, to);
        self.enqueue(to, task);
        if machine.is_idle(to) {
            machine.request_lazily(to);
        }
    }
}
