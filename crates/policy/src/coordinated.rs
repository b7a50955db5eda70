//! Demand-based coordinated scheduling (`policy/urgent.h`, `policy/balance.h`): structs, codes and functions.

use crate::code::{Code, InterruptKind};

/// As in C: plain integers, no padding.
macro_rules! plain {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[repr(C)]
        pub struct $name { $(pub $field: $type),+ }
    };
}

/// `URGENT_RESCHED_DP`: the sender of a reschedule IPI isn't preempted.
pub const RESCHED_DP: u32 = 1;
/// `URGENT_TLB_CO`: the recipient of a shootdown's IPI is urgent.
pub const TLB_CO: u32 = 2;
/// `URGENT_RESCHED_CO`: so is the recipient of a reschedule IPI.
pub const RESCHED_CO: u32 = 4;

plain! {
    UrgentConfig { delay_ns: u64, slice_ns: u64, allowance_ns: u64 }
}

impl UrgentConfig {
    /// Section 4.1.1.
    pub const PAPER: Self = Self { delay_ns: 500_000, slice_ns: 500_000, allowance_ns: 18_000_000 };
}

plain! {
    /// Of a vCPU: urgent while either number isn't 0.
    UrgentState { left_ns: u64, events: u32, reserved: u32 }
}

impl UrgentState {
    pub fn is_urgent(&self) -> bool {
        // SAFETY: the pointer comes from a reference.
        unsafe { ffi::ms_is_urgent(self) != 0 }
    }

    /// Its interrupt was acknowledged; another one of that vector may wait already.
    pub fn acknowledged(mut self, another_waits: bool) -> Self {
        // SAFETY: the pointer comes from a reference.
        unsafe { ffi::ms_acknowledge_urgent(&mut self, another_waits.into()) };
        self
    }

    /// It spins: a pause-loop exit has come.
    pub fn after_ple(mut self) -> Self {
        // SAFETY: the pointer comes from a reference.
        unsafe { ffi::ms_urgent_after_ple(&mut self) };
        self
    }

    pub fn charged(mut self, ran_ns: u64) -> Self {
        // SAFETY: the pointer comes from a reference.
        unsafe { ffi::ms_charge_urgent(&mut self, ran_ns) };
        self
    }
}

plain! {
    /// An IPI is about to be sent.
    IpiObservation {
        sender: UrgentState,
        recipient: UrgentState,
        kind: Code<InterruptKind>,
        is_no_shootdown: u32,
        schemes: u32,
        reserved: u32,
    }
}

plain! {
    IpiDecision { sender: UrgentState, recipient: UrgentState }
}

plain! {
    /// An urgent vCPU waits, and somebody runs there or nobody does.
    UrgentObservation {
        state: UrgentState,
        vtime_ns: u64,
        current_vtime_ns: u64,
        current_ran_ns: u64,
        current_is_urgent: u32,
        current_exists: u32,
    }
}

plain! {
    HostLoad { total: u64, pcpus: u32, reserved: u32 }
}

plain! {
    CandidateObservation { load: u64, has_sibling: u32, some_candidate_has_room: u32 }
}

/// When an urgent vCPU that waits runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UrgentDecision {
    IsNot,
    Refused,
    Waits,
    Preempts,
}

/// What becomes of an urgent vCPU that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UrgentTurn {
    GoesOn,
    Requeue,
    Leaves,
}

/// Where siblings may be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BalanceScheme {
    None,
    Apart,
    LoadConscious,
}

mod ffi {
    use super::*;

    unsafe extern "C" {
        pub fn ms_is_urgent(state: *const UrgentState) -> u32;
        pub fn ms_acknowledge_urgent(state: *mut UrgentState, another_waits: u32);
        pub fn ms_urgent_after_ple(state: *mut UrgentState);
        pub fn ms_charge_urgent(state: *mut UrgentState, ran_ns: u64);
        pub fn ms_decide_on_ipi(
            config: *const UrgentConfig,
            seen: *const IpiObservation,
            decision: *mut IpiDecision,
        );
        pub fn ms_decide_on_urgent(config: *const UrgentConfig, seen: *const UrgentObservation) -> u32;
        pub fn ms_decide_on_urgent_turn(
            config: *const UrgentConfig,
            state: *const UrgentState,
            ran_ns: u64,
            others_count: u32,
        ) -> u32;
        pub fn ms_is_protected(config: *const UrgentConfig, state: *const UrgentState, ran_ns: u64) -> u32;
        pub fn ms_is_overloaded(host: *const HostLoad, load: u64) -> u32;
        pub fn ms_decide_on_candidate(scheme: u32, seen: *const CandidateObservation) -> u32;
        pub fn ms_decide_on_move(
            scheme: u32,
            host: *const HostLoad,
            seen: *const CandidateObservation,
        ) -> u32;
        #[cfg(test)]
        pub static ms_coordinated_sizes: [u32; 7];
    }
}

/// Whom an IPI makes urgent.
pub fn decide_on_ipi(config: &UrgentConfig, seen: &IpiObservation) -> IpiDecision {
    let mut decision = IpiDecision::default();
    // SAFETY: all pointers come from references, and C writes every field of the decision.
    unsafe { ffi::ms_decide_on_ipi(config, seen, &mut decision) };
    decision
}

/// Does a vCPU that waits run now because it is urgent?
pub fn decide_on_urgent(config: &UrgentConfig, seen: &UrgentObservation) -> UrgentDecision {
    const ALL: [UrgentDecision; 4] =
        [UrgentDecision::IsNot, UrgentDecision::Refused, UrgentDecision::Waits, UrgentDecision::Preempts];
    // SAFETY: both pointers come from references.
    ALL[unsafe { ffi::ms_decide_on_urgent(config, seen) } as usize]
}

/// Does a vCPU that has run urgently for so long go on, while so many urgent ones wait there?
pub fn decide_on_urgent_turn(
    config: &UrgentConfig,
    state: &UrgentState,
    ran_ns: u64,
    others_count: u32,
) -> UrgentTurn {
    const ALL: [UrgentTurn; 3] = [UrgentTurn::GoesOn, UrgentTurn::Requeue, UrgentTurn::Leaves];
    // SAFETY: both pointers come from references.
    ALL[unsafe { ffi::ms_decide_on_urgent_turn(config, state, ran_ns, others_count) } as usize]
}

/// Is who has run for so long in its slice safe from others that aren't urgent?
pub fn is_protected(config: &UrgentConfig, state: &UrgentState, ran_ns: u64) -> bool {
    // SAFETY: both pointers come from references.
    unsafe { ffi::ms_is_protected(config, state, ran_ns) != 0 }
}

/// Has a pCPU more than its part of the host's load?
pub fn is_overloaded(host: &HostLoad, load: u64) -> bool {
    // SAFETY: the pointer comes from a reference.
    unsafe { ffi::ms_is_overloaded(host, load) != 0 }
}

/// May a waking vCPU be placed on a pCPU?
pub fn decide_on_candidate(scheme: BalanceScheme, seen: &CandidateObservation) -> bool {
    // SAFETY: the pointer comes from a reference.
    unsafe { ffi::ms_decide_on_candidate(scheme as u32, seen) != 0 }
}

/// May a waiting vCPU be moved to a pCPU?
pub fn decide_on_move(scheme: BalanceScheme, host: &HostLoad, seen: &CandidateObservation) -> bool {
    // SAFETY: both pointers come from references.
    unsafe { ffi::ms_decide_on_move(scheme as u32, host, seen) != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_struct_has_the_size_that_c_gives_it() {
        let sizes = [
            size_of::<UrgentConfig>(),
            size_of::<UrgentState>(),
            size_of::<IpiObservation>(),
            size_of::<IpiDecision>(),
            size_of::<UrgentObservation>(),
            size_of::<HostLoad>(),
            size_of::<CandidateObservation>(),
        ];
        // SAFETY: a constant of the shim, initialised at link time and never written.
        assert!(sizes.iter().map(|&size| size as u32).eq(unsafe { ffi::ms_coordinated_sizes }));
    }
}
