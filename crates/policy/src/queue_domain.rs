//! Queue domains (`policy/queue_domain.h`): in which queue a vCPU waits, and when a pCPU looks into another
//! domain's.

use crate::layout::c;
use crate::{ElsewhereObservation, FairShareConfig, QueueDomain, QueueObservation, QueuePlace};

/// Into how many other domains a pCPU looks that has a task to run.
pub const BALANCE_LOOK_MAX: u32 = crate::layout::BALANCE_LOOK_MAX;

impl QueueDomain {
    /// The number of the domain that a pCPU is in, among those of its kind.
    pub fn of_pcpu(self, pcpu: u32, llc: u32) -> u32 {
        // SAFETY: plain values.
        unsafe { c::queue_domain_of(self as u32, pcpu, llc) }
    }
}

/// The number of the queue that a vCPU joins: domains' come first, behind them those of single pCPUs.
pub fn queue_to_join(seen: &QueueObservation) -> u32 {
    // SAFETY: the pointer comes from a reference.
    unsafe { c::queue_to_join(seen) }
}

/// Into how many other domains a pCPU looks when it chooses, with a task to run or without.
pub fn domains_to_look_at(domain_count: u32, has_own: bool) -> u32 {
    // SAFETY: plain values.
    unsafe { c::domains_to_look_at(domain_count, has_own.into()) }
}

/// The n-th domain, from 0, that a pCPU looks into which has nobody to run: the nearest first.
pub fn nth_nearest_domain(place: &QueuePlace, n: u32) -> u32 {
    // SAFETY: the pointer comes from a reference.
    unsafe { c::nth_nearest_domain(place, n) }
}

/// The domain after `last` that a pCPU looks into which has a task to run: all in turn, but the own one.
pub fn next_domain_to_look_at(domain_count: u32, own: u32, last: u32) -> u32 {
    // SAFETY: plain values.
    unsafe { c::next_domain_to_look_at(domain_count, own, last) }
}

/// May an heir go first, though that long ago was the last look into other domains?
pub fn may_inherit_without_a_look(config: &FairShareConfig, domain_count: u32, looked_ns_ago: u64) -> bool {
    // SAFETY: the pointer comes from a reference.
    unsafe { c::may_inherit_without_a_look(config, domain_count, looked_ns_ago) != 0 }
}

/// Does the first of the other domain run here?
pub fn decide_on_elsewhere(config: &FairShareConfig, seen: &ElsewhereObservation) -> bool {
    // SAFETY: both pointers come from references.
    unsafe { c::decide_on_elsewhere(config, seen) != 0 }
}
