//! Demand-based coordinated scheduling (`policy/urgent.h`, `policy/balance.h`): structs, codes and functions.

use crate::layout::c;
pub use crate::{
    BalanceScheme, CalledDecision, CalledObservation, CallerObservation, CandidateObservation, HostLoad,
    IpiDecision, IpiObservation, ReschedCoConfig, ReschedCoObservation, ReschedCoState, UrgentConfig,
    UrgentDecision, UrgentObservation, UrgentState, UrgentTurn,
};

/// The sender of a reschedule IPI isn't preempted.
pub const RESCHED_DP: u32 = crate::URGENT_RESCHED_DP;
/// The recipient of a shootdown's IPI is urgent.
pub const TLB_CO: u32 = crate::URGENT_TLB_CO;
/// So is the recipient of a reschedule IPI.
pub const RESCHED_CO: u32 = crate::URGENT_RESCHED_CO;
/// A vCPU that begins to send any IPI isn't preempted.
pub const EARLY_DP: u32 = crate::URGENT_EARLY_DP;
/// The sender of a shootdown spins on where its recipients come urgently.
pub const TLB_SPIN: u32 = crate::URGENT_TLB_SPIN;
/// So many looks make a trial of Resched-Co.
pub const RESCHED_CO_LOOKS: u32 = crate::RESCHED_CO_LOOKS;

impl UrgentConfig {
    /// Section 4.1.1. The guests of that time flushed before they acknowledged (smp_invalidate_interrupt(),
    /// Linux 3.2).
    pub const PAPER: Self =
        Self { delay_ns: 500_000, slice_ns: 500_000, allowance_ns: 18_000_000, answer_ns: 0 };
}

impl ReschedCoConfig {
    /// Ours: the paper suggests the inference and gives no numbers but that streamcluster's IPIs get rarer by
    /// 21 % (4.2), of which this asks for half. A trial takes a sixth of the time.
    pub const USUAL: Self = Self {
        look_ns: 100_000_000,
        hold_ns: 2_000_000_000,
        ipi_count_min: 100,
        rarer_percent: 10,
        reserved: 0,
    };
}

/// Is Resched-Co good for a VM?
pub fn decide_on_resched_co(
    config: &ReschedCoConfig,
    state: &ReschedCoState,
    seen: &ReschedCoObservation,
) -> ReschedCoState {
    // SAFETY: the pointers come from references.
    unsafe { c::decide_on_resched_co(config, state, seen) }
}

/// A vCPU begins to send an IPI of whatever kind: is it urgent?
pub fn decide_on_ipi_begun(config: &UrgentConfig, sender: &UrgentState, schemes: u32) -> UrgentState {
    // SAFETY: both pointers come from references.
    unsafe { c::decide_on_ipi_begun(config, sender, schemes) }
}

impl UrgentState {
    pub fn is_urgent(&self) -> bool {
        // SAFETY: the pointer comes from a reference.
        unsafe { c::is_urgent(self) != 0 }
    }

    /// Its interrupt was acknowledged; another one of that vector may wait already.
    pub fn acknowledged(self, config: &UrgentConfig, another_waits: bool) -> Self {
        // SAFETY: both pointers come from references.
        unsafe { c::acknowledge_urgent(config, &self, another_waits.into()) }
    }

    /// It spins: a pause-loop exit has come.
    pub fn after_ple(self) -> Self {
        // SAFETY: no values.
        unsafe { c::urgent_after_ple() }
    }

    pub fn charged(self, ran_ns: u64) -> Self {
        // SAFETY: the pointer comes from a reference.
        unsafe { c::charge_urgent(&self, ran_ns) }
    }
}

/// Which vCPUs an IPI makes urgent.
pub fn decide_on_ipi(config: &UrgentConfig, seen: &IpiObservation) -> IpiDecision {
    // SAFETY: both pointers come from references.
    unsafe { c::decide_on_ipi(config, seen) }
}

/// Does a vCPU that waits run now because it is urgent?
pub fn decide_on_urgent(config: &UrgentConfig, seen: &UrgentObservation) -> UrgentDecision {
    // SAFETY: both pointers come from references.
    UrgentDecision::of(unsafe { c::decide_on_urgent(config, seen) })
}

/// Does a sibling owe an answer to a shootdown, and may it give it soon?
pub fn decide_on_called(config: &UrgentConfig, seen: &CalledObservation) -> CalledDecision {
    // SAFETY: both pointers come from references.
    CalledDecision::of(unsafe { c::decide_on_called(config, seen) })
}

/// Does a vCPU that spins for the answers to a shootdown keep its pCPU?
pub fn caller_keeps_pcpu(config: &UrgentConfig, seen: &CallerObservation) -> bool {
    // SAFETY: both pointers come from references.
    unsafe { c::caller_keeps_pcpu(config, seen) != 0 }
}

/// Does a vCPU that has run urgently for so long go on, while so many urgent ones wait there?
pub fn decide_on_urgent_turn(
    config: &UrgentConfig,
    state: &UrgentState,
    ran_ns: u64,
    others_count: u32,
) -> UrgentTurn {
    // SAFETY: both pointers come from references.
    UrgentTurn::of(unsafe { c::decide_on_urgent_turn(config, state, ran_ns, others_count) })
}

/// Is a vCPU that has run for so long in its slice safe from others that aren't urgent?
pub fn is_protected(config: &UrgentConfig, state: &UrgentState, ran_ns: u64) -> bool {
    // SAFETY: both pointers come from references.
    unsafe { c::is_protected(config, state, ran_ns) != 0 }
}

/// Has a pCPU more than its part of the host's load?
pub fn is_overloaded(host: &HostLoad, load: u64) -> bool {
    // SAFETY: the pointer comes from a reference.
    unsafe { c::is_overloaded(host, load) != 0 }
}

/// May a waking vCPU be placed on a pCPU?
pub fn decide_on_candidate(scheme: BalanceScheme, seen: &CandidateObservation) -> bool {
    // SAFETY: the pointer comes from a reference.
    unsafe { c::decide_on_candidate(scheme as u32, seen) != 0 }
}

/// May a waiting vCPU be moved to a pCPU?
pub fn decide_on_move(scheme: BalanceScheme, host: &HostLoad, seen: &CandidateObservation) -> bool {
    // SAFETY: both pointers come from references.
    unsafe { c::decide_on_move(scheme as u32, host, seen) != 0 }
}
