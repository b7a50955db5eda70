//! The queues: where a vCPU waits, and which goes first there. Each domain has them once (`domains.rs`), and
//! so has each pCPU, for those that may run nowhere else.

use super::{Account, FairShare, Hooks};
use crate::ids::{DomainQueueId, PcpuId, VcpuId};
use crate::machine::Machine;
use microslice_policy as policy;
use microslice_policy::{BoostedObservation, YieldHeirObservation};
use std::collections::BTreeSet;
use std::iter::Peekable;

/// How many waiters are looked at for one that ran here last: `OWN_LOOK_MAX` of `bpf/core/turns.bpf.h`.
pub const LOOK_MAX: usize = 32;

/// Where a vCPU waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Nowhere,
    /// It goes first.
    Boosted(DomainQueueId, Boosted),
    /// By virtual time; equal ones in the order in which they came.
    Ordered(DomainQueueId, Waiter),
    /// An idle pCPU takes it next.
    Local(PcpuId),
}

/// vCPUs that go first, in the order in which they go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Boosted {
    /// How many came before; negative: how many were put first.
    turn: i64,
    pub vcpu: VcpuId,
}

/// vCPUs that wait by virtual time, in the order in which they go. Each names where it ran last, too. A
/// choice looks at up to [`LOOK_MAX`] of them, and on a large host each would have to be fetched from slow
/// caches for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Waiter {
    pub vtime_ns: u64,
    /// How many came before.
    came: u64,
    pub vcpu: VcpuId,
    pub home: PcpuId,
}

#[cfg(test)]
impl Waiter {
    pub fn of(vcpu: VcpuId) -> Self {
        Self { vtime_ns: 0, came: 0, vcpu, home: PcpuId::NONE }
    }
}

/// Of one domain, or of one pCPU.
#[derive(Clone, Default)]
pub struct DomainQueues {
    pub(super) boosted: BTreeSet<Boosted>,
    pub(super) ordered: BTreeSet<Waiter>,
}

/// Two queues as if they were one.
struct Merged<A: Iterator, B: Iterator> {
    a: Peekable<A>,
    b: Peekable<B>,
}

impl<T: Ord, A: Iterator<Item = T>, B: Iterator<Item = T>> Iterator for Merged<A, B> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        match (self.a.peek(), self.b.peek()) {
            (Some(a), Some(b)) if b < a => self.b.next(),
            (None, _) => self.b.next(),
            _ => self.a.next(),
        }
    }
}

fn merged<T: Ord>(a: impl IntoIterator<Item = T>, b: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    Merged { a: a.into_iter().peekable(), b: b.into_iter().peekable() }
}

pub fn ran_here_last(machine: &Machine, vcpu: VcpuId, pcpu: PcpuId) -> bool {
    machine.vcpus[vcpu].pcpu == pcpu && machine.allows(vcpu, pcpu)
}

impl<H: Hooks> FairShare<H> {
    pub(super) fn put_ordered(&mut self, machine: &Machine, vcpu: VcpuId) {
        let queue = self.queue_of(machine, vcpu);
        let account = &mut self.accounts[vcpu];
        debug_assert_eq!(account.place, Place::Nowhere, "vCPU {vcpu} is in a queue already");
        self.came += 1;
        let home = machine.vcpus[vcpu].pcpu;
        let waiter = Waiter { vtime_ns: account.vtime_ns, came: self.came, vcpu, home };
        account.out_of_order = false;
        account.queued_at_ns = machine.now_ns;
        self.put(machine, Place::Ordered(queue, waiter));
    }

    pub(super) fn put_boosted(&mut self, machine: &Machine, vcpu: VcpuId, first: bool) {
        let queue = self.queue_of(machine, vcpu);
        debug_assert_eq!(self.accounts[vcpu].place, Place::Nowhere, "vCPU {vcpu} is in a queue already");
        self.came += 1;
        let turn = if first { -(self.came as i64) } else { self.came as i64 };
        self.accounts[vcpu].queued_at_ns = machine.now_ns;
        self.put(machine, Place::Boosted(queue, Boosted { turn, vcpu }));
    }

    /// Into that queue, which is locked for it by the pCPU where the vCPU ran last.
    fn put(&mut self, machine: &Machine, place: Place) {
        let vcpu = match place {
            Place::Boosted(queue, boosted) => {
                self.queues[queue].boosted.insert(boosted);
                boosted.vcpu
            }
            Place::Ordered(queue, waiter) => {
                self.queues[queue].ordered.insert(waiter);
                waiter.vcpu
            }
            Place::Nowhere | Place::Local(_) => unreachable!("no queue"),
        };
        self.accounts[vcpu].place = place;
        self.note_occupied(place);
        self.locks.operate(machine, place, machine.vcpus[vcpu].pcpu);
    }

    /// `by`: the pCPU that does it.
    pub(super) fn take(&mut self, machine: &Machine, vcpu: VcpuId, by: PcpuId) -> VcpuId {
        let account = &mut self.accounts[vcpu];
        let place = std::mem::replace(&mut account.place, Place::Nowhere);
        match place {
            Place::Nowhere => unreachable!("vCPU {vcpu} is in no queue"),
            Place::Boosted(queue, boosted) => {
                let was_there = self.queues[queue].boosted.remove(&boosted);
                debug_assert!(was_there, "it waits where its account says");
            }
            Place::Ordered(queue, waiter) => {
                let was_there = self.queues[queue].ordered.remove(&waiter);
                debug_assert!(was_there, "it waits where its account says");
                debug_assert_eq!(account.vtime_ns, waiter.vtime_ns, "a queued vCPU's clock stands still");
            }
            Place::Local(pcpu) => self.local[pcpu] = None,
        }
        self.note_occupied(place);
        self.locks.operate(machine, place, by);
        vcpu
    }

    /// A vCPU came to that place's queue, or left it.
    fn note_occupied(&mut self, place: Place) {
        if let Place::Boosted(queue, _) | Place::Ordered(queue, _) = place {
            let DomainQueues { boosted, ordered } = &self.queues[queue];
            self.occupied.set(queue, !boosted.is_empty() || !ordered.is_empty());
        }
    }

    /// A pCPU comes for one that waits in another domain: it waits where that pCPU looks, at the same place
    /// in the order.
    pub(super) fn bring(&mut self, machine: &Machine, vcpu: VcpuId, pcpu: PcpuId) {
        let queue = self.queue_at(machine, vcpu, pcpu);
        let place = match self.accounts[vcpu].place {
            Place::Boosted(from, boosted) if from != queue => Place::Boosted(queue, boosted),
            Place::Ordered(from, waiter) if from != queue => Place::Ordered(queue, waiter),
            _ => return,
        };
        self.take(machine, vcpu, machine.vcpus[vcpu].pcpu);
        self.put(machine, place);
    }

    /// Of the boosted of the own domain the one that ran here last, or the first.
    pub fn first_boosted(&self, machine: &Machine, pcpu: PcpuId) -> Option<VcpuId> {
        let [shared, own] = self.domains.queues_of(machine, pcpu).map(|queue| &self.queues[queue].boosted);
        if shared.is_empty() && own.is_empty() {
            return None;
        }
        let waits_since = |first: Option<&Boosted>| first.map_or(0, |it| self.accounts[it.vcpu].queued_at_ns);
        let first = shared.iter().take(LOOK_MAX).find(|boosted| machine.allows(boosted.vcpu, pcpu));
        let seen = BoostedObservation {
            now_ns: machine.now_ns,
            first_since_ns: waits_since(first),
            bound_since_ns: waits_since(own.first()),
        };
        if policy::first_boosted_is_due(&self.rules, &seen) {
            return first.map(|first| first.vcpu);
        }
        let boosted = || merged(shared, own).map(|boosted| boosted.vcpu);
        let own = boosted().take(LOOK_MAX).find(|&vcpu| ran_here_last(machine, vcpu, pcpu));
        own.or_else(|| boosted().find(|&vcpu| machine.allows(vcpu, pcpu)))
    }

    /// The vCPU that would be next here by the clocks. One that may run elsewhere only isn't passed over by
    /// going on, or by warm caches.
    pub(super) fn first_in_line(&self, machine: &Machine, pcpu: PcpuId) -> Option<&Waiter> {
        self.in_line(machine, pcpu).find(|waiter| machine.allows(waiter.vcpu, pcpu))
    }

    /// Of the others the first, or the one that a mechanism puts before it.
    pub(super) fn first_ordered(&self, machine: &Machine, pcpu: PcpuId) -> Option<VcpuId> {
        let first = self.first_in_line(machine, pcpu)?;
        let before = H::goes_before(self, machine, pcpu, first).map(|waiter| waiter.vcpu);
        let may_go_before = |&before: &VcpuId| self.may_go_before(first, &self.accounts[before]);
        Some(before.filter(may_go_before).unwrap_or(first.vcpu))
    }

    /// For how long it has waited in its queue.
    pub fn waited_ns(&self, machine: &Machine, waiter: &Waiter) -> u64 {
        machine.now_ns - self.accounts[waiter.vcpu].queued_at_ns
    }

    /// Those that wait by virtual time in a pCPU's domain, or for just that pCPU, in their order.
    pub fn in_line(&self, machine: &Machine, pcpu: PcpuId) -> impl Iterator<Item = &Waiter> {
        let [shared, own] = self.domains.queues_of(machine, pcpu).map(|queue| &self.queues[queue].ordered);
        merged(shared, own)
    }

    /// Whether it goes first by the order of its queue.
    pub(super) fn is_first(&self, vcpu: VcpuId) -> bool {
        match self.accounts[vcpu].place {
            Place::Boosted(queue, boosted) => self.queues[queue].boosted.first() == Some(&boosted),
            Place::Ordered(queue, waiter) => self.queues[queue].ordered.first() == Some(&waiter),
            Place::Nowhere | Place::Local(_) => true,
        }
    }

    /// Whether it waits in a queue and might be chosen for that pCPU out of its order: it isn't a slice ahead
    /// of the first there.
    pub fn may_go_first(&self, machine: &Machine, pcpu: PcpuId, vcpu: VcpuId) -> bool {
        let account = &self.accounts[vcpu];
        let clocks_let_it =
            || self.first_in_line(machine, pcpu).is_none_or(|first| self.may_go_before(first, account));
        match account.place {
            Place::Boosted(..) | Place::Ordered(..) => machine.allows(vcpu, pcpu) && clocks_let_it(),
            Place::Nowhere | Place::Local(_) => false,
        }
    }

    /// Whether an heir that waits may run there.
    pub fn may_come(&self, machine: &Machine, pcpu: PcpuId, heir: VcpuId) -> bool {
        let is_queued = matches!(self.accounts[heir].place, Place::Boosted(..) | Place::Ordered(..));
        let seen = YieldHeirObservation {
            is_queued: is_queued.into(),
            affinity_allows: machine.allows(heir, pcpu).into(),
            paper_rules: machine.paper_rules.into(),
        };
        policy::heir_may_come(&seen)
    }

    fn may_go_before(&self, first: &Waiter, account: &Account) -> bool {
        let weight = self.weight_of(account.vm);
        policy::may_go_first(&self.rules, first.vtime_ns, account.vtime_ns, weight)
    }
}
