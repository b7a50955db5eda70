//! Paper 4.1, rule by rule: which vCPU is accelerated because of an interrupt, at once or when it was woken
//! and has to wait.

use microslice_policy::*;
use proptest::prelude::*;

fn an_interrupt(kind: InterruptKind, recipient: VcpuState) -> InterruptObservation {
    InterruptObservation {
        kind: kind.into(),
        recipient_state: recipient.into(),
        micro_pcpu_count: 1,
        guest_known: 1,
        recipient_goes_first: 0,
        reserved: 0,
    }
}

// ---- 4.1, IRQ events ----

fn on_interrupt(seen: &InterruptObservation) -> (Cause, InterruptReason) {
    let decision = decide_on_interrupt(&AccelerateConfig::PAPER, seen);
    (decision.cause.get().unwrap(), decision.reason.get().unwrap())
}

#[test]
fn a_device_interrupt_accelerates_a_recipient_that_was_preempted_which_boost_would_miss() {
    let seen = an_interrupt(InterruptKind::Virq, VcpuState::Runnable);
    assert_eq!(on_interrupt(&seen), (Cause::Virq, InterruptReason::Requests));
}

#[test]
fn a_reschedule_ipi_accelerates_a_preempted_recipient() {
    let seen = an_interrupt(InterruptKind::IpiReschedule, VcpuState::Runnable);
    assert_eq!(on_interrupt(&seen), (Cause::ReschedIpi, InterruptReason::Requests));
}

#[test]
fn a_call_function_ipi_accelerates_its_recipient_only_where_configured() {
    let seen = an_interrupt(InterruptKind::IpiCallFunction, VcpuState::Runnable);
    assert_eq!(on_interrupt(&seen), (Cause::None, InterruptReason::NotUrgent));
    let config = AccelerateConfig { call_function_ipi: 1, ..AccelerateConfig::PAPER };
    assert_eq!(decide_on_interrupt(&config, &seen).cause.get(), Some(Cause::CallFunctionIpi));
}

#[test]
fn timers_and_unrecognised_interrupts_accelerate_nobody() {
    for kind in [InterruptKind::Timer, InterruptKind::Other] {
        let seen = an_interrupt(kind, VcpuState::Runnable);
        assert_eq!(on_interrupt(&seen), (Cause::None, InterruptReason::NotUrgent));
    }
}

#[test]
fn recipients_that_run_sleep_or_are_on_their_way_are_left_alone_each_for_its_reason() {
    for (state, reason) in [
        (VcpuState::Running, InterruptReason::RecipientRunning),
        (VcpuState::Micro, InterruptReason::RecipientRunning),
        (VcpuState::Blocked, InterruptReason::RecipientBlocked),
        (VcpuState::Pending, InterruptReason::AlreadyRequested),
    ] {
        assert_eq!(on_interrupt(&an_interrupt(InterruptKind::Virq, state)), (Cause::None, reason));
    }
}

#[test]
fn a_recipient_whose_turn_is_next_keeps_it() {
    let waits = an_interrupt(InterruptKind::IpiReschedule, VcpuState::Runnable);
    let first = InterruptObservation { recipient_goes_first: 1, ..waits };
    assert_eq!(on_interrupt(&waits).1, InterruptReason::Requests);
    let reason = |config, seen| decide_on_interrupt(config, seen).reason.get();
    assert_eq!(reason(&AccelerateConfig::DEFAULT, &first), Some(InterruptReason::RecipientGoesFirst));
    assert_eq!(on_interrupt(&first), (Cause::ReschedIpi, InterruptReason::Requests), "in the paper");
    let call = InterruptObservation { kind: InterruptKind::IpiCallFunction.into(), ..first };
    let called = reason(&AccelerateConfig::DEFAULT, &call);
    assert_eq!(called, Some(InterruptReason::Requests), "somebody spins for the answer");
}

#[test]
fn an_interrupt_needs_a_micro_pool_and_a_known_guest() {
    let seen = an_interrupt(InterruptKind::Virq, VcpuState::Runnable);
    let no_pool = InterruptObservation { micro_pcpu_count: 0, ..seen };
    assert_eq!(on_interrupt(&no_pool), (Cause::None, InterruptReason::NoMicroPool));
    let unknown = InterruptObservation { guest_known: 0, ..seen };
    assert_eq!(on_interrupt(&unknown), (Cause::None, InterruptReason::GuestUnknown));
}

// ---- A vCPU that was blocked, was woken, and has to wait ----

fn woken_by(kind: InterruptKind) -> WokenObservation {
    WokenObservation {
        interrupted: 1,
        kind: kind.into(),
        interrupts_enabled: 1,
        micro_pcpu_count: 1,
        guest_known: 1,
        ..Default::default()
    }
}

/// Nothing but a kick makes a vCPU go on that halted with interrupts disabled.
const KICKED: WokenObservation = WokenObservation {
    interrupted: 0,
    kind: Code::raw(0),
    lock_halt: 1,
    interrupts_enabled: 0,
    micro_pcpu_count: 1,
    guest_known: 1,
};

fn on_woken(seen: &WokenObservation) -> (Cause, WokenReason) {
    let decision = decide_on_woken(&AccelerateConfig::DEFAULT, seen);
    (decision.cause.get().unwrap(), decision.reason.get().unwrap())
}

#[test]
fn a_vcpu_that_an_urgent_interrupt_woke_and_that_waits_is_accelerated_as_a_preempted_one_is() {
    for kind in InterruptKind::ALL {
        let preempted =
            decide_on_interrupt(&AccelerateConfig::DEFAULT, &an_interrupt(*kind, VcpuState::Runnable));
        let (cause, reason) = on_woken(&woken_by(*kind));
        assert_eq!(cause, preempted.cause.get().unwrap(), "{kind}");
        assert_eq!(reason == WokenReason::Requests, cause != Cause::None, "{kind}");
    }
}

#[test]
fn a_timer_or_an_unseen_reason_wakes_nobody_into_the_micro_pool() {
    let unseen = WokenObservation { interrupted: 0, ..woken_by(InterruptKind::Virq) };
    for seen in [woken_by(InterruptKind::Timer), woken_by(InterruptKind::Other), unseen] {
        assert_eq!(on_woken(&seen), (Cause::None, WokenReason::NotUrgent));
    }
}

#[test]
fn a_halted_waiter_that_is_kicked_for_a_lock_is_accelerated_for_it() {
    assert_eq!(on_woken(&KICKED), (Cause::LockKick, WokenReason::Requests));
    let in_waiters_code = WokenObservation { interrupts_enabled: 1, ..KICKED };
    assert_eq!(on_woken(&in_waiters_code), (Cause::LockKick, WokenReason::Requests));
}

#[test]
fn an_interrupt_to_a_waiter_that_halted_with_interrupts_disabled_changes_nothing_for_it() {
    let seen = WokenObservation { interrupted: 1, kind: InterruptKind::IpiReschedule.into(), ..KICKED };
    assert_eq!(on_woken(&seen), (Cause::None, WokenReason::NotUrgent));
    let takes_it = WokenObservation { interrupts_enabled: 1, ..seen };
    assert_eq!(on_woken(&takes_it), (Cause::ReschedIpi, WokenReason::Requests));
}

#[test]
fn a_wake_up_needs_a_micro_pool_and_a_known_guest_too() {
    for seen in [KICKED, woken_by(InterruptKind::Virq)] {
        let no_pool = WokenObservation { micro_pcpu_count: 0, ..seen };
        assert_eq!(on_woken(&no_pool), (Cause::None, WokenReason::NoMicroPool));
        let unknown = WokenObservation { guest_known: 0, ..seen };
        assert_eq!(on_woken(&unknown), (Cause::None, WokenReason::GuestUnknown));
    }
}

proptest! {
    #[test]
    fn an_interrupt_has_a_cause_exactly_when_it_requests(
        kind in 0u32..8, state in 0u32..8, pool in 0u32..3, known in 0u32..2, first in 0u32..2,
        call_function_ipi in 0u32..2,
    ) {
        let config = AccelerateConfig { call_function_ipi, paper_rules: 0, ..AccelerateConfig::PAPER };
        let seen = InterruptObservation {
            kind: Code::raw(kind), recipient_state: Code::raw(state), micro_pcpu_count: pool, guest_known: known,
            recipient_goes_first: first, reserved: 0,
        };
        let decision = decide_on_interrupt(&config, &seen);
        let requests = decision.reason.get() == Some(InterruptReason::Requests);
        prop_assert_eq!(decision.cause.get() != Some(Cause::None), requests);
        let waits_for_it = seen.kind.get() == Some(InterruptKind::IpiCallFunction);
        prop_assert!(!requests || (pool > 0 && known == 1 && (first == 0 || waits_for_it)));
    }
}
