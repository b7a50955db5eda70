//! The queues: where a vCPU waits, and who goes first there.

use super::{Account, FairShare, Hooks};
use crate::ids::{PcpuId, VcpuId};
use crate::machine::Machine;
use microslice_policy as policy;

/// How many of those who wait are looked at for one that ran here last: `OWN_LOOK_MAX` of `bpf/core/turns.bpf.h`.
pub const LOOK_MAX: usize = 32;

/// Where a vCPU waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Nowhere,
    /// It goes first.
    Boosted,
    /// By virtual time; equal ones in the order in which they came.
    Ordered(Waiter),
    /// An idle pCPU takes it next.
    Local(PcpuId),
}

/// Who waits by virtual time, in the order in which they go. It names where it ran last, too: whoever chooses looks at up
/// to [`LOOK_MAX`] of them, and on a large host each would have to be fetched from slow caches for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Waiter {
    pub vtime_ns: u64,
    /// How many came before.
    came: u64,
    pub vcpu: VcpuId,
    pub home: PcpuId,
}

pub fn ran_here_last(machine: &Machine, vcpu: VcpuId, pcpu: PcpuId) -> bool {
    machine.vcpus[vcpu].pcpu == pcpu && machine.allows(vcpu, pcpu)
}

impl<H: Hooks> FairShare<H> {
    pub(super) fn put_ordered(&mut self, machine: &Machine, vcpu: VcpuId) {
        let account = &mut self.accounts[vcpu];
        debug_assert_eq!(account.place, Place::Nowhere, "vCPU {vcpu} is in a queue already");
        self.came += 1;
        let home = machine.vcpus[vcpu].pcpu;
        let waiter = Waiter { vtime_ns: account.vtime_ns, came: self.came, vcpu, home };
        account.place = Place::Ordered(waiter);
        account.out_of_order = false;
        account.queued_at_ns = machine.now_ns;
        self.ordered.insert(waiter);
    }

    pub(super) fn put_boosted(&mut self, vcpu: VcpuId, first: bool) {
        let account = &mut self.accounts[vcpu];
        debug_assert_eq!(account.place, Place::Nowhere, "vCPU {vcpu} is in a queue already");
        account.place = Place::Boosted;
        if first { self.boosted.push_front(vcpu) } else { self.boosted.push_back(vcpu) }
    }

    pub(super) fn take(&mut self, vcpu: VcpuId) -> VcpuId {
        let account = &mut self.accounts[vcpu];
        match std::mem::replace(&mut account.place, Place::Nowhere) {
            Place::Nowhere => unreachable!("vCPU {vcpu} is in no queue"),
            Place::Boosted => self.boosted.retain(|&other| other != vcpu),
            Place::Ordered(waiter) => {
                let was_there = self.ordered.remove(&waiter);
                debug_assert!(was_there, "it waits where its account says");
                debug_assert_eq!(account.vtime_ns, waiter.vtime_ns, "a queued vCPU's clock stands still");
            }
            Place::Local(pcpu) => self.local[pcpu] = None,
        }
        vcpu
    }

    /// Of the boosted the one that ran here last, or the first.
    pub fn first_boosted(&self, machine: &Machine, pcpu: PcpuId) -> Option<VcpuId> {
        let boosted = || self.boosted.iter().copied();
        let own = boosted().take(LOOK_MAX).find(|&vcpu| ran_here_last(machine, vcpu, pcpu));
        own.or_else(|| boosted().find(|&vcpu| machine.allows(vcpu, pcpu)))
    }

    /// Who would be next here by the clocks: who may run elsewhere only isn't passed over by going on, or by warm caches.
    pub(super) fn first_in_line(&self, machine: &Machine, pcpu: PcpuId) -> Option<&Waiter> {
        self.ordered.iter().find(|waiter| machine.allows(waiter.vcpu, pcpu))
    }

    /// Of the others the first, or whom a mechanism puts before it.
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

    /// Those that wait by virtual time, in their order.
    pub fn in_line(&self) -> impl Iterator<Item = &Waiter> {
        self.ordered.iter()
    }

    /// Whether it goes first by the order of the queues.
    pub(super) fn is_first(&self, vcpu: VcpuId) -> bool {
        match self.accounts[vcpu].place {
            Place::Boosted => self.boosted.front() == Some(&vcpu),
            Place::Ordered(waiter) => self.ordered.first() == Some(&waiter),
            Place::Nowhere | Place::Local(_) => true,
        }
    }

    /// Whether it waits in a queue and might be chosen for that pCPU out of its order: it isn't a slice ahead of the first there.
    pub fn may_go_first(&self, machine: &Machine, pcpu: PcpuId, vcpu: VcpuId) -> bool {
        let account = &self.accounts[vcpu];
        let clocks_let_it =
            || self.first_in_line(machine, pcpu).is_none_or(|first| self.may_go_before(first, account));
        match account.place {
            Place::Boosted | Place::Ordered(_) => machine.allows(vcpu, pcpu) && clocks_let_it(),
            Place::Nowhere | Place::Local(_) => false,
        }
    }

    fn may_go_before(&self, first: &Waiter, account: &Account) -> bool {
        let weight = self.weight_of(account.vm);
        policy::may_go_first(&self.rules, first.vtime_ns, account.vtime_ns, weight)
    }
}
