//! A VM's waiting vCPUs, counted by kind.

use super::{HostVcpu, Machine, VcpuState};
use crate::ids::{IdVec, VcpuId, VmId};
use microslice_policy::{Coded, GuestClass};

/// Kinds of waiting vCPUs: by the class of the instruction pointer, how they left their pCPU, whether they
/// owe an answer.
pub const WAITING_KINDS: usize = GuestClass::ALL.len() * 6;
const _: () = assert!(WAITING_KINDS <= u64::BITS as usize, "a kind is a bit of `Waiting::kinds`");

/// What a kind says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// By number.
    pub class: usize,
    /// Never both; a woken vCPU is neither.
    pub preempted: bool,
    pub yielded: bool,
    pub owes_answer: bool,
}

impl Kind {
    #[inline]
    pub fn number(self) -> usize {
        let how = usize::from(self.preempted) + 2 * usize::from(self.yielded);
        self.class * 6 + how * 2 + usize::from(self.owes_answer)
    }

    pub fn of_number(number: usize) -> Self {
        let (class, how) = (number / 6, number / 2 % 3);
        Self { class, preempted: how == 1, yielded: how == 2, owes_answer: number % 2 == 1 }
    }
}

/// A VM's runnable vCPUs that aren't requested, counted by kind. So a scheduler sees at once that there is
/// none of those it looks for. Only where it does look ([`Machine::watched`]).
#[derive(PartialEq)]
pub struct Waiting {
    counts: [u32; WAITING_KINDS],
    /// One bit a kind: a vCPU is of that kind.
    pub kinds: u64,
    /// The requested ones, waiting or running, but not the blocked ones.
    pub requested: u32,
    /// Those that run, aren't requested, and owe an answer.
    pub answering: u32,
}

impl Waiting {
    pub(super) fn nobody() -> Self {
        Self { counts: [0; WAITING_KINDS], kinds: 0, requested: 0, answering: 0 }
    }

    /// What can be helped by now: the requested, and those about to answer.
    #[inline]
    pub(super) fn helped(&self) -> (u32, u32) {
        (self.requested, self.answering)
    }

    /// How many are of one of these kinds (a bit each).
    pub fn count(&self, kinds: u64) -> u32 {
        let mut left = kinds & self.kinds;
        let mut count = 0;
        while left != 0 {
            count += self.counts[left.trailing_zeros() as usize];
            left &= left - 1;
        }
        count
    }

    pub(super) fn enter(&mut self, host: &HostVcpu) {
        if host.requested {
            self.requested += u32::from(host.state != VcpuState::Blocked);
        } else if host.state == VcpuState::Runnable {
            self.add(host.kind().number());
        } else if host.state == VcpuState::Running {
            self.answering += u32::from(host.owes_answer);
        }
    }

    pub(super) fn leave(&mut self, host: &HostVcpu) {
        if host.requested {
            self.requested -= u32::from(host.state != VcpuState::Blocked);
        } else if host.state == VcpuState::Runnable {
            self.remove(host.kind().number());
        } else if host.state == VcpuState::Running {
            self.answering -= u32::from(host.owes_answer);
        }
    }

    pub(super) fn add(&mut self, kind: usize) {
        self.counts[kind] += 1;
        self.kinds |= 1 << kind;
    }

    pub(super) fn remove(&mut self, kind: usize) {
        self.counts[kind] -= 1;
        if self.counts[kind] == 0 {
            self.kinds &= !(1 << kind);
        }
    }
}

impl Machine {
    /// Whether `Waiting` has counted right: for the checker.
    pub fn waiting_adds_up(&self) -> bool {
        let mut counted: IdVec<VmId, _> = self.vms.iter().map(|_| Waiting::nobody()).collect();
        if self.watched {
            self.vcpus.iter().for_each(|host| counted[host.vm].enter(host));
        }
        let boostable = |(vcpu, host): (VcpuId, &HostVcpu)| {
            self.boostable.has(vcpu) == host.is_boostable(self.boosts_woken)
        };
        self.vms.iter().zip(&counted).all(|(vm, counted)| vm.waiting == *counted)
            && self.vcpus.enumerate().all(boostable)
    }
}
