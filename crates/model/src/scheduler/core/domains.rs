//! Queue domains: which pCPUs share queues, and how work moves between them (`policy/queue_domain.h`).
//!
//! | when | from where |
//! |---|---|
//! | a pCPU has no vCPU to run | the nearest domain with a waiter: same core, same cache, anywhere |
//! | it has one | of the next few domains the one furthest behind, if the policy lets its first go before |
//! | a pCPU is asked to come for one | it waits in that pCPU's domain from then on (`FairShare::bring`) |

use super::{Account, FairShare, Hooks, LOOK_MAX};
use crate::ids::{DomainQueueId, IdVec, PcpuId, VcpuId};
use crate::machine::Machine;
use microslice_policy as policy;
use microslice_policy::queue_domain::{
    decide_on_elsewhere, domains_to_look_at, may_inherit_without_a_look, next_domain_to_look_at,
    queue_to_join,
};
use microslice_policy::{ElsewhereObservation, QueueDomain, QueueObservation};
use std::ops::Range;

pub struct Domains {
    kind: QueueDomain,
    count: u32,
    /// Of each pCPU: into which domain it looks next.
    cursors: IdVec<PcpuId, u32>,
    /// Of each pCPU: when it looked last.
    looked_at_ns: IdVec<PcpuId, u64>,
}

impl Domains {
    pub fn new(kind: QueueDomain, machine: &Machine) -> Self {
        let pcpus = machine.pcpus.len();
        let last = PcpuId::from_index(pcpus - 1);
        let count = kind.of_pcpu(last.number(), machine.llc_of(last)) + 1;
        let cursors = machine.pcpus.ids().map(|pcpu| kind.of_pcpu(pcpu.number(), machine.llc_of(pcpu)));
        Self { kind, count, cursors: cursors.collect(), looked_at_ns: IdVec::of(0, pcpus) }
    }

    /// Of the domains, and behind them of each pCPU.
    pub fn queue_count(&self) -> usize {
        self.count as usize + self.cursors.len()
    }

    pub fn of(&self, machine: &Machine, pcpu: PcpuId) -> u32 {
        self.kind.of_pcpu(pcpu.number(), machine.llc_of(pcpu))
    }

    fn queue(&self, machine: &Machine, pcpu: PcpuId, is_confined: bool) -> DomainQueueId {
        let seen = QueueObservation {
            domain_count: self.count,
            domain: self.of(machine, pcpu),
            pcpu: pcpu.number(),
            is_confined: is_confined.into(),
        };
        DomainQueueId::new(queue_to_join(&seen))
    }

    /// Into which queues a pCPU looks: its domain's, and that of the vCPUs that may run there only.
    pub fn queues_of(&self, machine: &Machine, pcpu: PcpuId) -> [DomainQueueId; 2] {
        [false, true].map(|is_confined| self.queue(machine, pcpu, is_confined))
    }

    /// The next few, as the policy bounds them.
    fn next_few(&mut self, machine: &Machine, pcpu: PcpuId, looks: u32) -> Vec<u32> {
        let own = self.of(machine, pcpu);
        let cursor = &mut self.cursors[pcpu];
        let mut next = || {
            *cursor = next_domain_to_look_at(self.count, own, *cursor);
            *cursor
        };
        (0..looks).map(|_| next()).collect()
    }
}

fn further_behind(accounts: &IdVec<VcpuId, Account>, a: VcpuId, b: VcpuId) -> VcpuId {
    if policy::vtime_before(accounts[b].vtime_ns, accounts[a].vtime_ns) { b } else { a }
}

impl<H: Hooks> FairShare<H> {
    /// Where it waits if it ran there last.
    pub(super) fn queue_at(&self, machine: &Machine, vcpu: VcpuId, pcpu: PcpuId) -> DomainQueueId {
        match machine.only_pcpu(vcpu) {
            Some(only) => self.domains.queue(machine, only, true),
            None => self.domains.queue(machine, pcpu, false),
        }
    }

    /// Where it waits: in the domain of its last turn. If another pool has that pCPU by now, in that of the
    /// next one that it may run on.
    pub(super) fn queue_of(&self, machine: &Machine, vcpu: VcpuId) -> DomainQueueId {
        let home = self.accounts[vcpu].home;
        let mut near = machine.pcpus.round_from(home);
        let home = near.find(|&pcpu| self.usable[pcpu] && machine.allows(vcpu, pcpu)).unwrap_or(home);
        self.queue_at(machine, vcpu, home)
    }

    /// A vCPU that waits in another domain and runs here before those of the own one. `ran`: the one that
    /// could go on here.
    pub fn take_from_elsewhere(
        &mut self,
        machine: &Machine,
        pcpu: PcpuId,
        ran: Option<VcpuId>,
    ) -> Option<VcpuId> {
        if self.domains.count == 1 {
            return None;
        }
        self.domains.looked_at_ns[pcpu] = machine.now_ns;
        let first = self.first_in_line(machine, pcpu).map(|waiter| waiter.vcpu);
        let own = [ran, first].into_iter().flatten().reduce(|a, b| further_behind(&self.accounts, a, b));
        let Some(own) = own else { return self.nearest_elsewhere(machine, pcpu) };
        let looks = domains_to_look_at(self.domains.count, true);
        let mut found = None;
        for domain in self.domains.next_few(machine, pcpu, looks) {
            let Some(first) = self.first_of(machine, domain, pcpu) else { continue };
            self.locks.operate(machine, self.accounts[first].place, pcpu);
            if self.goes_before_own(own, first) {
                found = Some(found.map_or(first, |found| further_behind(&self.accounts, found, first)));
            }
        }
        found
    }

    /// Whether an heir may go first on this pCPU, before its next look.
    pub fn may_inherit_without_a_look(&self, machine: &Machine, pcpu: PcpuId) -> bool {
        let looked_ns_ago = machine.now_ns - self.domains.looked_at_ns[pcpu];
        may_inherit_without_a_look(&self.rules, self.domains.count, looked_ns_ago)
    }

    fn goes_before_own(&self, own: VcpuId, first: VcpuId) -> bool {
        let [own, first] = [own, first].map(|vcpu| &self.accounts[vcpu]);
        let seen = ElsewhereObservation {
            first_vtime_ns: first.vtime_ns,
            own_vtime_ns: own.vtime_ns,
            own_weight: self.weight_of(own.vm),
            has_own: 1,
            reserved: 0,
        };
        decide_on_elsewhere(&self.rules, &seen)
    }

    /// The first of a domain that may run on a pCPU.
    fn first_of(&self, machine: &Machine, domain: u32, pcpu: PcpuId) -> Option<VcpuId> {
        let queues = &self.queues[DomainQueueId::new(domain)];
        let boosted = queues.boosted.iter().map(|boosted| boosted.vcpu);
        let ordered = queues.ordered.iter().map(|waiter| waiter.vcpu);
        boosted.chain(ordered).find(|&vcpu| machine.allows(vcpu, pcpu))
    }

    /// Those of these domains in which a vCPU waits but a pCPU's own one, those behind that first. To
    /// look at all of a large host's would fetch them from slow caches.
    fn waited_in(&self, own: u32, domains: Range<u32>) -> impl Iterator<Item = u32> {
        let span = |from, end| self.occupied.span(DomainQueueId::new(from), DomainQueueId::new(end));
        let behind = span(domains.start.max(own + 1), domains.end);
        behind.chain(span(domains.start, domains.end.min(own))).map(DomainQueueId::number)
    }

    /// The first that waits in the nearest other domain and may run on a pCPU. Domains of the same core come
    /// first, then those of the same last-level cache, then all. That near ones come twice does no harm.
    fn nearest_elsewhere(&self, machine: &Machine, pcpu: PcpuId) -> Option<VcpuId> {
        let (own, all) = (self.domains.of(machine, pcpu), 0..self.domains.count);
        let first_of = |domain: u32| self.first_of(machine, domain, pcpu);
        if self.domains.kind == QueueDomain::Pcpu {
            let threads = machine.threads_beside(pcpu).map(PcpuId::number);
            let of_cache = machine.pcpus_of_llc(pcpu).flat_map(|pcpus| self.waited_in(own, pcpus));
            let mut near = threads.chain(of_cache);
            if let Some(first) = near.find_map(first_of) {
                return Some(first);
            }
        }
        self.waited_in(own, all).find_map(first_of)
    }

    /// Whether a vCPU waits in another domain that may run on a pCPU.
    pub(super) fn a_vcpu_waits_elsewhere(&self, machine: &Machine, pcpu: PcpuId) -> bool {
        let mut others = self.waited_in(self.domains.of(machine, pcpu), 0..self.domains.count);
        others.any(|domain| self.first_of(machine, domain, pcpu).is_some())
    }

    /// Of all that wait by virtual time, wherever, the first that counts.
    pub(super) fn first_of_all(&self, counts: impl Fn(VcpuId) -> bool) -> Option<VcpuId> {
        let occupied = self.occupied.span(DomainQueueId::new(0), self.queues.next_id());
        let first = |queue| self.queues[queue].ordered.iter().take(LOOK_MAX).find(|first| counts(first.vcpu));
        occupied.filter_map(first).min().map(|first| first.vcpu)
    }
}
