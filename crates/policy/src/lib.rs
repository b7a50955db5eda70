//! The scheduling policies of `policy/`, built natively from the very C that the kernel runs.
//!
//! This crate is the only FFI of the policies: [`layout`] has their structs, [`code`] their enumerations, this file
//! the functions, [`recording`] and [`replay`] the (observation, decision) streams of real runs. What each policy
//! does, and why, is written at the head of its C header.

// They panic where nobody reads.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod code;
pub mod coordinated;
pub mod layout;
pub mod recording;
pub mod replay;

pub use code::*;
pub use layout::*;

mod ffi {
    use crate::layout::*;

    unsafe extern "C" {
        pub fn ms_classify(code: *const GuestCode, layout: *const GuestLayout, rip: u64) -> u32;
        pub fn ms_class_is_critical(guest_class: u32) -> u32;
        pub fn ms_decide_on_yield(seen: *const YieldObservation, decision: *mut YieldDecision);
        pub fn ms_decide_on_sibling(scope: u32, seen: *const SiblingObservation) -> u32;
        pub fn ms_decide_on_spinner(config: *const AccelerateConfig, seen: *const SpinnerObservation) -> u32;
        pub fn ms_decide_on_interrupt(
            config: *const AccelerateConfig,
            seen: *const InterruptObservation,
            decision: *mut InterruptDecision,
        );
        pub fn ms_decide_on_woken(
            config: *const AccelerateConfig,
            seen: *const WokenObservation,
            decision: *mut WokenDecision,
        );
        pub fn ms_decide_on_placement(
            config: *const AccelerateConfig,
            seen: *const PlacementObservation,
        ) -> u32;
        pub fn ms_decide_on_home(config: *const AccelerateConfig, seen: *const HomeObservation) -> u32;
        pub fn ms_decide_at_turn_end(config: *const AccelerateConfig, seen: *const TurnObservation) -> u32;
        pub fn ms_decide_after_micro_slice(
            config: *const AccelerateConfig,
            seen: *const MicroSliceObservation,
            decision: *mut MicroSliceDecision,
        );
        pub fn ms_step_pool_size(
            config: *const PoolSizeConfig,
            state: *mut PoolSizeState,
            seen: *const PoolSizeObservation,
            decision: *mut PoolSizeDecision,
        );
        pub fn ms_vcpu_weight(vm_weight: u32, active_vcpu_count: u32) -> u64;
        pub fn ms_charge(ran_ns: u64, weight: u64) -> u64;
        pub fn ms_vtime_before(a: u64, b: u64) -> u32;
        pub fn ms_vm_charge(ran_ns: u64, vm_weight: u32) -> u64;
        pub fn ms_vm_clock(
            config: *const FairShareConfig,
            size: *const VmSize,
            first_ns: u64,
            vm_ns: u64,
        ) -> u64;
        pub fn ms_catch_up_weight(
            config: *const FairShareConfig,
            size: *const VmSize,
            weight: u64,
            first_ns: u64,
            vm_ns: u64,
        ) -> u64;
        pub fn ms_vm_is_ahead(
            config: *const FairShareConfig,
            size: *const VmSize,
            vm_ns: u64,
            other_size: *const VmSize,
            other_vm_ns: u64,
        ) -> u32;
        pub fn ms_may_go_first(
            config: *const FairShareConfig,
            first_vtime_ns: u64,
            vtime_ns: u64,
            weight: u64,
        ) -> u32;
        pub fn ms_is_worth_warm_caches(config: *const FairShareConfig, first_waited_ns: u64) -> u32;
        pub fn ms_decide_on_wakeup(
            config: *const FairShareConfig,
            seen: *const WakeupObservation,
            decision: *mut WakeupDecision,
        );
        pub fn ms_limit_charge(limit: *const CpuLimit, ran_ns: u64) -> u64;
        pub fn ms_decide_on_limit(
            limit: *const CpuLimit,
            seen: *const LimitObservation,
            decision: *mut LimitDecision,
        );
        #[cfg(test)]
        pub static ms_sizes: [u32; crate::layout::STRUCT_COUNT];
        #[cfg(test)]
        pub static ms_sizes_count: u32;
        #[cfg(test)]
        pub static ms_record_version: u32;
    }
}

/// Why each call below is sound: pointers come from references, so they are aligned, initialised and live for the
/// call; the C keeps none of them; `layout.rs` is tested against C's own sizes; and C writes every field of a decision.
macro_rules! decide {
    ($decision:ty, $function:ident($($argument:expr),*)) => {{
        let mut decision = <$decision>::default();
        // SAFETY: see the comment on this macro.
        unsafe { ffi::$function($($argument,)* &mut decision) };
        decision
    }};
}

/// What the guest does at instruction pointer `rip` (`policy/classify.h`).
pub fn classify(code: &GuestCode, layout: &GuestLayout, rip: u64) -> GuestClass {
    // SAFETY: both pointers come from references; the C bounds every index by the array's constant length.
    GuestClass::of(unsafe { ffi::ms_classify(code, layout, rip) })
}

/// Code whose preemption makes others wait (paper, Table 3).
pub fn class_is_critical(class: GuestClass) -> bool {
    // SAFETY: plain values.
    unsafe { ffi::ms_class_is_critical(class as u32) != 0 }
}

/// Is this yield a hint that somebody needs a micro slice, and who? (`policy/accelerate.h`, paper 4.1-4.2)
pub fn decide_on_yield(seen: &YieldObservation) -> YieldDecision {
    decide!(YieldDecision, ms_decide_on_yield(seen))
}

/// Is this sibling one of those that a pass of `scope` needs?
pub fn decide_on_sibling(scope: PassScope, seen: &SiblingObservation) -> SiblingDecision {
    // SAFETY: the pointer comes from a reference.
    SiblingDecision::of(unsafe { ffi::ms_decide_on_sibling(scope as u32, seen) })
}

/// After a pass: does the spinner's own yield go ahead?
pub fn decide_on_spinner(config: &AccelerateConfig, seen: &SpinnerObservation) -> SpinnerDecision {
    // SAFETY: the pointers come from references.
    SpinnerDecision::of(unsafe { ffi::ms_decide_on_spinner(config, seen) })
}

/// Is the recipient of this interrupt worth a micro slice?
pub fn decide_on_interrupt(config: &AccelerateConfig, seen: &InterruptObservation) -> InterruptDecision {
    decide!(InterruptDecision, ms_decide_on_interrupt(config, seen))
}

/// Is who was blocked, was woken, and has to wait worth a micro slice?
pub fn decide_on_woken(config: &AccelerateConfig, seen: &WokenObservation) -> WokenDecision {
    decide!(WokenDecision, ms_decide_on_woken(config, seen))
}

/// Has this micro pCPU room for a request?
pub fn decide_on_placement(config: &AccelerateConfig, seen: &PlacementObservation) -> PlacementDecision {
    // SAFETY: both pointers come from references.
    PlacementDecision::of(unsafe { ffi::ms_decide_on_placement(config, seen) })
}

/// May a request that no micro pCPU can serve at once have a micro slice of this pCPU of the normal pool?
pub fn decide_on_home(config: &AccelerateConfig, seen: &HomeObservation) -> HomeDecision {
    // SAFETY: both pointers come from references.
    HomeDecision::of(unsafe { ffi::ms_decide_on_home(config, seen) })
}

/// A turn in the normal pool is over: may the vCPU go on for a micro slice, because it is in critical code?
pub fn decide_at_turn_end(config: &AccelerateConfig, seen: &TurnObservation) -> TurnDecision {
    // SAFETY: both pointers come from references.
    TurnDecision::of(unsafe { ffi::ms_decide_at_turn_end(config, seen) })
}

/// A micro slice has ended: was it worth it, and should the vCPU ask again?
pub fn decide_after_micro_slice(
    config: &AccelerateConfig,
    seen: &MicroSliceObservation,
) -> MicroSliceDecision {
    decide!(MicroSliceDecision, ms_decide_after_micro_slice(config, seen))
}

/// One run of Algorithm 1 (`policy/pool_size.h`, paper 4.3).
pub fn step_pool_size(
    config: &PoolSizeConfig,
    state: &mut PoolSizeState,
    seen: &PoolSizeObservation,
) -> PoolSizeDecision {
    decide!(PoolSizeDecision, ms_step_pool_size(config, state, seen))
}

/// The weight of one of a VM's active vCPUs (`policy/fair_share.h`).
pub fn vcpu_weight(vm_weight: u32, active_vcpu_count: u32) -> u64 {
    // SAFETY: plain values.
    unsafe { ffi::ms_vcpu_weight(vm_weight, active_vcpu_count) }
}

/// Virtual time that running for `ran_ns` costs a vCPU of this weight.
pub fn charge(ran_ns: u64, weight: u64) -> u64 {
    // SAFETY: plain values.
    unsafe { ffi::ms_charge(ran_ns, weight) }
}

/// Is virtual time `a` earlier than `b`? Clocks may wrap.
pub fn vtime_before(a: u64, b: u64) -> bool {
    // SAFETY: plain values.
    unsafe { ffi::ms_vtime_before(a, b) != 0 }
}

/// What running for `ran_ns` moves the clock of a whole VM by.
pub fn vm_charge(ran_ns: u64, vm_weight: u32) -> u64 {
    // SAFETY: plain values.
    unsafe { ffi::ms_vm_charge(ran_ns, vm_weight) }
}

/// A VM's clock, no further behind that of the first VM than it can catch up with.
pub fn vm_clock(config: &FairShareConfig, size: &VmSize, first_ns: u64, vm_ns: u64) -> u64 {
    // SAFETY: the pointers come from references.
    unsafe { ffi::ms_vm_clock(config, size, first_ns, vm_ns) }
}

/// The weight of a vCPU whose VM may be behind the first one, and is to catch up.
pub fn catch_up_weight(
    config: &FairShareConfig,
    size: &VmSize,
    weight: u64,
    first_ns: u64,
    vm_ns: u64,
) -> u64 {
    // SAFETY: the pointers come from references.
    unsafe { ffi::ms_catch_up_weight(config, size, weight, first_ns, vm_ns) }
}

/// Has a VM, of this size and with this clock, had more than another one, by more than either may make up for?
pub fn vm_is_ahead(
    config: &FairShareConfig,
    size: &VmSize,
    vm_ns: u64,
    other_size: &VmSize,
    other_vm_ns: u64,
) -> bool {
    // SAFETY: the pointers come from references.
    unsafe { ffi::ms_vm_is_ahead(config, size, vm_ns, other_size, other_vm_ns) != 0 }
}

/// May one whose caches are warm, or to whom is yielded, with this clock and weight, go before the first of the queue?
pub fn may_go_first(config: &FairShareConfig, first_vtime_ns: u64, vtime_ns: u64, weight: u64) -> bool {
    // SAFETY: the pointer comes from a reference.
    unsafe { ffi::ms_may_go_first(config, first_vtime_ns, vtime_ns, weight) != 0 }
}

/// May one whose caches are warm go before the first of the queue, which has waited for so long?
pub fn is_worth_warm_caches(config: &FairShareConfig, first_waited_ns: u64) -> bool {
    // SAFETY: the pointer comes from a reference.
    unsafe { ffi::ms_is_worth_warm_caches(config, first_waited_ns) != 0 }
}

/// Where a waking vCPU's clock stands, and whether it is boosted.
pub fn decide_on_wakeup(config: &FairShareConfig, seen: &WakeupObservation) -> WakeupDecision {
    decide!(WakeupDecision, ms_decide_on_wakeup(config, seen))
}

/// How far running for `ran_ns` moves the clock of a limit (`policy/cpu_limit.h`).
pub fn limit_charge(limit: &CpuLimit, ran_ns: u64) -> u64 {
    // SAFETY: the pointer comes from a reference.
    unsafe { ffi::ms_limit_charge(limit, ran_ns) }
}

/// Does a vCPU with this limit have to rest, and how long may it run if not?
pub fn decide_on_limit(limit: &CpuLimit, seen: &LimitObservation) -> LimitDecision {
    decide!(LimitDecision, ms_decide_on_limit(limit, seen))
}
