//! The scheduling policies of `policy/`, built natively from the very C that the kernel runs.
//!
//! This crate is the only FFI of the policies: [`layout`] has their structs, [`code`] their enumerations,
//! this file the functions, [`recording`] and [`replay`] the (observation, decision) streams of real runs.
//! [`weights`] says what the weights of cgroups give each VM, here and on a real host.
//! What each policy does, and why, is written at the head of its C header.

// They panic where nobody reads.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod code;
pub mod coordinated;
pub mod delay_preemption;
pub mod layout;
pub mod queue_domain;
pub mod recording;
pub mod replay;
pub mod rules;
pub mod weights;

pub use code::*;
pub use layout::*;

use layout::c;

// Why each call below is sound: pointers come from references, so they are aligned, initialised and live for
// the call; the C keeps none of them; types and signatures are generated from the headers.

/// What the guest does at instruction pointer `rip` (`policy/classify.h`).
pub fn classify(code: &GuestCode, layout: &GuestLayout, rip: u64) -> GuestClass {
    // SAFETY: both pointers come from references; the C bounds every index by the array's constant length.
    GuestClass::of(unsafe { c::classify(code, layout, rip) })
}

/// Whether users' sessions are below this cgroup (`policy/vm_owner.h`).
pub fn cgroup_is_users(seen: &OwnerObservation) -> bool {
    // SAFETY: the pointer comes from a reference; the C bounds every index by the array's constant length.
    unsafe { c::cgroup_is_users(seen) != 0 }
}

/// Whether this cgroup is the owner of a VMM's VMs, if none further out is.
pub fn cgroup_is_owner(seen: &OwnerObservation) -> bool {
    // SAFETY: the pointer comes from a reference; the C bounds every index by the array's constant length.
    unsafe { c::cgroup_is_owner(seen) != 0 }
}

/// Code whose preemption makes others wait (paper, Table 3).
pub fn class_is_critical(class: GuestClass) -> bool {
    // SAFETY: plain values.
    unsafe { c::class_is_critical(class as u32) != 0 }
}

/// Returns what a vCPU holds by its guest's word, and what is believed of that guest from now on. Other
/// policies know the vCPU by the class in it (`policy/held.h`).
pub fn decide_on_count(seen: &CountObservation) -> CountDecision {
    // SAFETY: the pointer comes from a reference.
    unsafe { c::decide_on_count(seen) }
}

/// Returns what a vCPU holds that was stopped in code of `class`, with this word, if its guest is believed.
pub fn held_by_count(count: u32, class: GuestClass) -> Held {
    // SAFETY: plain values.
    Held::of(unsafe { c::held_by_count(count, class as u32) })
}

/// Returns the class by which policies know a vCPU that holds this.
pub fn class_by_held(by: CriticalBy, held: Held, class: GuestClass) -> GuestClass {
    // SAFETY: plain values.
    GuestClass::of(unsafe { c::class_by_held(by as u32, held as u32, class as u32) })
}

/// Returns the time between two moments, or none if the first is later (`policy/types.h`).
pub fn elapsed_ns(since_ns: u64, now_ns: u64) -> u64 {
    // SAFETY: plain values.
    unsafe { c::elapsed_ns(since_ns, now_ns) }
}

/// Returns what becomes of a vCPU's wait for a pCPU (`policy/max_wait.h`).
pub fn decide_on_wait(seen: &WaitObservation) -> WaitDecision {
    // SAFETY: the pointer comes from a reference.
    WaitDecision::of(unsafe { c::decide_on_wait(seen) })
}

/// Returns until when the host needn't look at a VM of which nobody that waits has waited longer.
pub fn wait_next_look_ns(bound_ns: u64, longest_ns: u64) -> u64 {
    // SAFETY: plain values.
    unsafe { c::wait_next_look_ns(bound_ns, longest_ns) }
}

/// Returns how long nobody looks after a look that took so long.
pub fn wait_look_pause_ns(took_ns: u64) -> u64 {
    // SAFETY: plain values.
    unsafe { c::wait_look_pause_ns(took_ns) }
}

/// Returns the least bound that so many vCPUs can have on so many pCPUs.
pub fn max_wait_least_ns(micro_slice_ns: u64, vcpu_count: u32, pcpu_count: u32) -> u64 {
    // SAFETY: plain values.
    unsafe { c::max_wait_least_ns(micro_slice_ns, vcpu_count, pcpu_count) }
}

/// Returns how long a bound that nobody chose is for each vCPU that a pCPU has.
pub fn max_wait_each_ns(micro_slice_ns: u64) -> u64 {
    // SAFETY: plain values.
    unsafe { c::max_wait_each_ns(micro_slice_ns) }
}

/// Returns the bound of so many vCPUs that run or want to: `each_ns` for each that a pCPU has of them, if
/// that is longer than `bound_ns`.
pub fn max_wait_shared_ns(bound_ns: u64, each_ns: u64, wanting_count: u32, pcpu_count: u32) -> u64 {
    // SAFETY: plain values.
    unsafe { c::max_wait_shared_ns(bound_ns, each_ns, wanting_count, pcpu_count) }
}

/// Returns how long vCPUs of a VM with this bound of its own (0: none) may wait, if all others may wait for
/// `host_ns` and so many as want to run can have `least_ns`.
pub fn max_wait_of_vm_ns(own_ns: u64, host_ns: u64, least_ns: u64) -> u64 {
    // SAFETY: plain values.
    unsafe { c::max_wait_of_vm_ns(own_ns, host_ns, least_ns) }
}

/// Returns the least bound of its own that a VM has while so many run or want to.
pub fn max_wait_least_now_ns(micro_slice_ns: u64, wanting_count: u32, pcpu_count: u32) -> u64 {
    // SAFETY: plain values.
    unsafe { c::max_wait_least_now_ns(micro_slice_ns, wanting_count, pcpu_count) }
}

/// Returns what a vCPU is wanted for, of these interrupts that wait for it (`policy/looks.h`).
pub fn interrupt_by_look(state: VcpuState, pending: u8) -> InterruptKind {
    // SAFETY: plain values.
    InterruptKind::of(unsafe { c::interrupt_by_look(state as u32, pending.into()) })
}

/// Returns the state after a look at [`LOOK_MAX`] of so many places.
pub fn look_after(state: &LookState, count: u32, found_count: u32) -> LookState {
    // SAFETY: the pointer comes from a reference.
    unsafe { c::look_after(state, count, found_count) }
}

/// Returns which weight a group has until the next look, so that it pays back what it had by boosts
/// (`policy/pay_back.h`).
pub fn decide_on_pay_back(seen: &PayBackObservation) -> PayBackDecision {
    // SAFETY: the pointer comes from a reference.
    unsafe { c::decide_on_pay_back(seen) }
}

/// True if a sibling in that state, last seen in that class, may have been handed a lock that it can't take
/// (`policy/heirs.h`).
pub fn sibling_may_be_heir(state: VcpuState, class: GuestClass) -> bool {
    // SAFETY: plain values.
    unsafe { c::sibling_may_be_heir(state as u32, class as u32) != 0 }
}

/// True if a sibling in that state, with that word, last seen in that class, may hold a lock.
pub fn sibling_may_hold(state: VcpuState, count: u32, class: GuestClass) -> bool {
    // SAFETY: plain values.
    unsafe { c::sibling_may_hold(state as u32, count, class as u32) != 0 }
}

/// Returns what came of a trial whose vCPU was last seen in `class`, and has run for so long since it was
/// asked for.
pub fn heir_trial_of(class: GuestClass, ran_ns: u64) -> HeirTrial {
    // SAFETY: plain values.
    HeirTrial::of(unsafe { c::heir_trial_of(class as u32, ran_ns) })
}

/// Somebody waits for a lock: is one of the stopped waiters tried? In it is what is known of its VM's heirs
/// from now on, too.
pub fn decide_on_heir(state: &HeirState, seen: &HeirObservation) -> HeirStep {
    // SAFETY: the pointers come from references.
    unsafe { c::decide_on_heir(state, seen) }
}

/// Returns how many of a vCPU's last stops found it holding something.
pub fn holds_in_a_row(before: u32, held: Held) -> u32 {
    // SAFETY: plain values.
    unsafe { c::holds_in_a_row(before, held as u32) }
}

/// True if a vCPU always holds something: it isn't asked for because of that.
pub fn holds_always(in_a_row: u32) -> bool {
    // SAFETY: plain values.
    unsafe { c::holds_always(in_a_row) != 0 }
}

/// True if a vCPU that was stopped with this, and could go on, is asked for at once.
pub fn holder_is_asked_for(by: CriticalBy, held: Held) -> bool {
    // SAFETY: plain values.
    unsafe { c::holder_is_asked_for(by as u32, held as u32) != 0 }
}

/// Does the host look which siblings owe an answer?
pub fn answers_are_read(config: &AccelerateConfig) -> bool {
    // SAFETY: a plain value.
    unsafe { c::answers_are_read(config.paper_rules) != 0 }
}

/// Have woken vCPUs a place of their own at each micro pCPU?
pub fn woken_have_places(config: &AccelerateConfig) -> bool {
    // SAFETY: a plain value.
    unsafe { c::woken_have_places(config.paper_rules) != 0 }
}

/// Is a request with this cause refused while its VM is ahead of the first that waits?
pub fn vm_ahead_is_refused(config: &AccelerateConfig, cause: Cause) -> bool {
    // SAFETY: plain values.
    unsafe { c::vm_ahead_is_refused(config.paper_rules, cause as u32) != 0 }
}

/// Is this yield a hint that a sibling needs a micro slice, and which one? (`policy/accelerate.h`, paper
/// 4.1-4.2)
pub fn decide_on_yield(seen: &YieldObservation) -> YieldDecision {
    // SAFETY: the pointers come from references.
    unsafe { c::decide_on_yield(seen) }
}

/// Is this sibling one of those that a pass of `scope` needs?
pub fn decide_on_sibling(scope: PassScope, seen: &SiblingObservation) -> SiblingDecision {
    // SAFETY: the pointer comes from a reference.
    SiblingDecision::of(unsafe { c::decide_on_sibling(scope as u32, seen) })
}

/// After a pass: does the spinner's own yield go ahead?
pub fn decide_on_spinner(config: &AccelerateConfig, seen: &SpinnerObservation) -> SpinnerDecision {
    // SAFETY: the pointers come from references.
    SpinnerDecision::of(unsafe { c::decide_on_spinner(config, seen) })
}

/// Was this sibling stopped while it waited for a lock?
pub fn sibling_is_stranded(seen: &SiblingObservation) -> bool {
    // SAFETY: the pointer comes from a reference.
    unsafe { c::sibling_is_stranded(seen) != 0 }
}

/// The longest that a vCPU's next pause-loop window can be, in its present turn.
pub fn window_after_exit(window_ns: u64, apart_ns: u64) -> u64 {
    // SAFETY: plain values.
    unsafe { c::window_after_exit(window_ns, apart_ns) }
}

/// Whether an exit is of another wait than the one before it.
pub fn exit_begins_wait(apart_ns: u64, window_ns: u64, micro_slice_ns: u64) -> bool {
    // SAFETY: plain values.
    unsafe { c::exit_begins_wait(apart_ns, window_ns, micro_slice_ns) != 0 }
}

/// How often patience has run out in a spinner's VM, to no end, since a vCPU there halted for a lock.
pub fn vain_waits_after(config: &AccelerateConfig, seen: &SpinnerObservation) -> u32 {
    // SAFETY: the pointers come from references.
    unsafe { c::vain_waits_after(config, seen) }
}

/// Is the recipient of this interrupt worth a micro slice?
pub fn decide_on_interrupt(config: &AccelerateConfig, seen: &InterruptObservation) -> InterruptDecision {
    // SAFETY: the pointers come from references.
    unsafe { c::decide_on_interrupt(config, seen) }
}

/// Is a vCPU that was blocked, was woken, and has to wait worth a micro slice?
pub fn decide_on_woken(config: &AccelerateConfig, seen: &WokenObservation) -> WokenDecision {
    // SAFETY: the pointers come from references.
    unsafe { c::decide_on_woken(config, seen) }
}

/// Has this micro pCPU room for a request?
pub fn decide_on_placement(config: &AccelerateConfig, seen: &PlacementObservation) -> PlacementDecision {
    // SAFETY: both pointers come from references.
    PlacementDecision::of(unsafe { c::decide_on_placement(config, seen) })
}

/// May a request that no micro pCPU can serve at once have a micro slice of this pCPU of the normal pool?
pub fn decide_on_home(config: &AccelerateConfig, seen: &HomeObservation) -> HomeDecision {
    // SAFETY: both pointers come from references.
    HomeDecision::of(unsafe { c::decide_on_home(config, seen) })
}

/// A micro slice has ended: was it worth it, and should the vCPU ask again?
pub fn decide_after_micro_slice(
    config: &AccelerateConfig,
    seen: &MicroSliceObservation,
) -> MicroSliceDecision {
    // SAFETY: the pointers come from references.
    unsafe { c::decide_after_micro_slice(config, seen) }
}

/// One run of Algorithm 1 (`policy/pool_size.h`, paper 4.3).
pub fn step_pool_size(
    config: &PoolSizeConfig,
    state: &mut PoolSizeState,
    seen: &PoolSizeObservation,
) -> PoolSizeDecision {
    // SAFETY: the pointers come from references.
    unsafe { c::step_pool_size(config, state, seen) }
}

/// What Algorithm 1 counts a yield as (`policy/urgent_events.h`).
pub fn urgent_event_of_yield(seen: &YieldObservation, decision: &YieldDecision) -> UrgentEvent {
    // SAFETY: the pointer comes from a reference.
    UrgentEvent::of(unsafe { c::urgent_event_of_yield(seen, decision.cause.value()) })
}

/// What Algorithm 1 counts an interrupt of this kind as.
pub fn urgent_event_of_interrupt(
    config: &AccelerateConfig,
    kind: Code<InterruptKind>,
    decision: &InterruptDecision,
) -> UrgentEvent {
    let (kind, reason) = (kind.value(), decision.reason.value());
    // SAFETY: plain values.
    UrgentEvent::of(unsafe { c::urgent_event_of_interrupt(config.paper_rules, kind, reason) })
}

/// What Algorithm 1 counts a woken vCPU as that has to wait.
pub fn urgent_event_of_wakeup(
    config: &AccelerateConfig,
    seen: &WokenObservation,
    decision: &WokenDecision,
) -> UrgentEvent {
    // SAFETY: the pointer comes from a reference.
    UrgentEvent::of(unsafe { c::urgent_event_of_wakeup(config.paper_rules, seen, decision.reason.value()) })
}

/// What Algorithm 1 counts a stop as after which a vCPU is asked for because of this.
pub fn urgent_event_of_stop(cause: Cause) -> UrgentEvent {
    // SAFETY: a plain value.
    UrgentEvent::of(unsafe { c::urgent_event_of_stop(cause as u32) })
}

/// The weight of one of a VM's active vCPUs (`policy/fair_share.h`).
pub fn vcpu_weight(vm_weight: u32, active_vcpu_count: u32) -> u64 {
    // SAFETY: plain values.
    unsafe { c::vcpu_weight(vm_weight, active_vcpu_count) }
}

/// See `policy/fair_share.h`.
pub fn service_task_weight(service_weight: u32, own_weight: u32) -> u64 {
    // SAFETY: values in, value out.
    unsafe { c::service_task_weight(service_weight, own_weight) }
}

/// See `policy/fair_share.h`.
pub fn owed_to_vcpus(ran_ns: u64, vms_weight: u32, services_weight: u32) -> u64 {
    // SAFETY: values in, value out.
    unsafe { c::owed_to_vcpus(ran_ns, vms_weight, services_weight) }
}

/// Virtual time that running for `ran_ns` costs a vCPU of this weight.
pub fn charge(ran_ns: u64, weight: u64) -> u64 {
    // SAFETY: plain values.
    unsafe { c::charge(ran_ns, weight) }
}

/// Is virtual time `a` earlier than `b`? Clocks may wrap.
pub fn vtime_before(a: u64, b: u64) -> bool {
    // SAFETY: plain values.
    unsafe { c::vtime_before(a, b) != 0 }
}

/// What running for `ran_ns` moves the clock of a whole VM by.
pub fn vm_charge(ran_ns: u64, vm_weight: u32) -> u64 {
    // SAFETY: plain values.
    unsafe { c::vm_charge(ran_ns, vm_weight) }
}

/// A VM's clock, no further behind that of the first VM than it can catch up with.
pub fn vm_clock(config: &FairShareConfig, size: &VmSize, first_ns: u64, vm_ns: u64) -> u64 {
    // SAFETY: the pointers come from references.
    unsafe { c::vm_clock(config, *size, first_ns, vm_ns) }
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
    unsafe { c::catch_up_weight(config, *size, weight, first_ns, vm_ns) }
}

/// Has a VM, of this size and with this clock, had more than another one, by more than either may make up
/// for?
pub fn vm_is_ahead(
    config: &FairShareConfig,
    size: &VmSize,
    vm_ns: u64,
    other_size: &VmSize,
    other_vm_ns: u64,
) -> bool {
    // SAFETY: the pointers come from references.
    unsafe { c::vm_is_ahead(config, *size, vm_ns, *other_size, other_vm_ns) != 0 }
}

/// The weight of all threads of a VMM together.
pub fn vmm_threads_weight(vm_weight: u32, active_vcpu_count: u32) -> u64 {
    // SAFETY: a pure function of its arguments.
    unsafe { c::vmm_threads_weight(vm_weight, active_vcpu_count) }
}

/// Does a VMM's thread that isn't a vCPU go before vCPUs?
pub fn vmm_thread_goes_first(config: &FairShareConfig, seen: &VmmThreadObservation) -> bool {
    // SAFETY: likewise.
    unsafe { c::vmm_thread_goes_first(config, seen) != 0 }
}

/// Whether the first boosted vCPU goes before those that a pCPU prefers (`policy/fair_share.h`).
pub fn first_boosted_is_due(config: &FairShareConfig, seen: &BoostedObservation) -> bool {
    // SAFETY: both pointers come from references.
    unsafe { c::first_boosted_is_due(config, seen) != 0 }
}

/// Whether the heir of a directed yield may run on the spinner's pCPU (`policy/fair_share.h`).
pub fn heir_may_come(seen: &YieldHeirObservation) -> bool {
    // SAFETY: the pointer comes from a reference.
    unsafe { c::heir_may_come(seen) != 0 }
}

/// May a vCPU with this clock and weight go before the first of the queue? Its caches are warm, or a sibling
/// yields to it.
pub fn may_go_first(config: &FairShareConfig, first_vtime_ns: u64, vtime_ns: u64, weight: u64) -> bool {
    // SAFETY: the pointer comes from a reference.
    unsafe { c::may_go_first(config, first_vtime_ns, vtime_ns, weight) != 0 }
}

/// May one whose caches are warm go before the first of the queue, which has waited for so long?
pub fn is_worth_warm_caches(config: &FairShareConfig, first_waited_ns: u64) -> bool {
    // SAFETY: the pointer comes from a reference.
    unsafe { c::is_worth_warm_caches(config, first_waited_ns) != 0 }
}

/// Where a waking vCPU's clock stands, and whether it is boosted.
pub fn decide_on_wakeup(config: &FairShareConfig, seen: &WakeupObservation) -> WakeupDecision {
    // SAFETY: the pointers come from references.
    unsafe { c::decide_on_wakeup(config, seen) }
}

/// How far running for `ran_ns` moves the clock of a limit (`policy/cpu_limit.h`).
pub fn limit_charge(limit: &CpuLimit, ran_ns: u64) -> u64 {
    // SAFETY: the pointer comes from a reference.
    unsafe { c::limit_charge(limit, ran_ns) }
}

/// Does a task with this limit have to rest before its next turn, and how long may that be?
pub fn decide_on_limit(limit: &CpuLimit, seen: &LimitObservation) -> LimitDecision {
    // SAFETY: the pointers come from references.
    unsafe { c::decide_on_limit(limit, seen) }
}

/// May a task that stopped in the kernel go on there in place of a rest? It has gone on for `went_on_ns`
/// since it rested in user mode.
pub fn limit_lets_go_on(went_on_ns: u64) -> bool {
    // SAFETY: it takes values.
    unsafe { c::limit_lets_go_on(went_on_ns) != 0 }
}

/// The turn of a task that does so for the `times`th time, and has reserved `turn_ns`.
pub fn limit_turn_in_kernel(turn_ns: u64, times: u32) -> u64 {
    // SAFETY: it takes values.
    unsafe { c::limit_turn_in_kernel(turn_ns, times) }
}

/// When a rest in the kernel ends, the `times`th since one in user mode.
pub fn limit_rest_in_kernel_until(now_ns: u64, until_ns: u64, times: u32) -> u64 {
    // SAFETY: it takes values.
    unsafe { c::limit_rest_in_kernel_until(now_ns, until_ns, times) }
}

/// A boost budget's clock, no further behind than a burst (`policy/boost_budget.h`).
pub fn boost_clock(config: &BoostConfig, now_ns: u64, clock_ns: u64) -> u64 {
    // SAFETY: the pointer comes from a reference.
    unsafe { c::boost_clock(config, now_ns, clock_ns) }
}

/// How far a boost that ran for `ran_ns` moves a clock whose budget is `percent` of the host.
pub fn boost_cost(config: &BoostConfig, percent: u32, ran_ns: u64) -> u64 {
    // SAFETY: the pointer comes from a reference.
    unsafe { c::boost_cost(config, percent, ran_ns) }
}

/// May this vCPU's thread become real-time for a micro slice?
pub fn decide_on_boost(config: &BoostConfig, seen: &BoostObservation) -> BoostDecision {
    // SAFETY: both pointers come from references.
    BoostDecision::of(unsafe { c::decide_on_boost(config, seen) })
}
