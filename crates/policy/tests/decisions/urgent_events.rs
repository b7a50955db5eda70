//! Which events Algorithm 1 counts, and as what (paper 4.3 and 5): one rule for both worlds.

use microslice_policy::UrgentEvent::{Ipi, Irq, None, Ple};
use microslice_policy::*;

fn of_yield(cause: YieldCause, class: GuestClass, interrupts_enabled: u32) -> [UrgentEvent; 3] {
    // Without a micro pool, with one, and while another pass is made.
    [(0, 0), (1, 0), (1, 1)].map(|(micro_pcpu_count, pass_active)| {
        let seen = YieldObservation {
            cause: cause.into(),
            guest_class: class.into(),
            interrupts_enabled,
            micro_pcpu_count,
            pass_active,
            paper_rules: 0,
        };
        urgent_event_of_yield(&seen, &decide_on_yield(&seen))
    })
}

#[test]
fn a_yield_in_a_shootdown_or_to_a_preempted_target_is_caused_by_an_ipi() {
    assert_eq!(of_yield(YieldCause::Ple, GuestClass::TlbShootdown, 1), [Ipi; 3]);
    assert_eq!(of_yield(YieldCause::IpiWait, GuestClass::KernelOther, 1), [Ipi; 3]);
}

#[test]
fn a_waiter_that_spins_for_a_lock_and_one_that_halts_for_it_count_alike() {
    assert_eq!(of_yield(YieldCause::Ple, GuestClass::LockWaiter, 1), [Ple; 3]);
    assert_eq!(of_yield(YieldCause::Ple, GuestClass::LockHolder, 1), [Ple; 3], "it waits for a second one");
    assert_eq!(of_yield(YieldCause::Hlt, GuestClass::LockWaiter, 1), [Ple; 3]);
    assert_eq!(of_yield(YieldCause::Hlt, GuestClass::Idle, 0), [Ple; 3], "only a kick ends it");
}

#[test]
fn what_nobody_is_accelerated_for_is_not_urgent() {
    assert_eq!(of_yield(YieldCause::Ple, GuestClass::User, 1), [None; 3], "a barrier in user mode");
    assert_eq!(of_yield(YieldCause::Ple, GuestClass::Unknown, 1), [None; 3], "a guest without symbols");
    assert_eq!(of_yield(YieldCause::Hlt, GuestClass::Idle, 1), [None; 3]);
}

fn of_interrupt(kind: InterruptKind, seen: InterruptObservation) -> [UrgentEvent; 2] {
    by_rules(&AccelerateConfig::DEFAULT, kind, seen)
}

/// Without a micro pool, and with one.
fn by_rules(config: &AccelerateConfig, kind: InterruptKind, seen: InterruptObservation) -> [UrgentEvent; 2] {
    [0, 1].map(|micro_pcpu_count| {
        let seen = InterruptObservation { kind: kind.into(), micro_pcpu_count, ..seen };
        urgent_event_of_interrupt(config, seen.kind, &decide_on_interrupt(config, &seen))
    })
}

fn recipient(state: VcpuState) -> InterruptObservation {
    InterruptObservation { recipient_state: state.into(), guest_known: 1, ..Default::default() }
}

#[test]
fn a_device_interrupt_is_urgent_while_its_recipient_waits_for_a_pcpu() {
    for (state, event) in [
        (VcpuState::Runnable, Irq),
        (VcpuState::Pending, Irq),
        (VcpuState::Running, None),
        (VcpuState::Micro, None),
        (VcpuState::Blocked, None),
    ] {
        assert_eq!(of_interrupt(InterruptKind::Virq, recipient(state)), [event; 2], "{state}");
    }
    let waits = recipient(VcpuState::Runnable);
    assert_eq!(of_interrupt(InterruptKind::Timer, waits), [None; 2]);
    assert_eq!(
        of_interrupt(InterruptKind::Virq, InterruptObservation { guest_known: 0, ..waits }),
        [None; 2]
    );
    let goes_first = InterruptObservation { recipient_goes_first: 1, ..waits };
    assert_eq!(of_interrupt(InterruptKind::Virq, goes_first), [None; 2], "its turn is next anyway");
}

#[test]
fn a_call_is_urgent_while_its_recipient_waits_for_a_pcpu() {
    assert_eq!(of_interrupt(InterruptKind::IpiCallFunction, recipient(VcpuState::Runnable)), [Ipi; 2]);
    assert_eq!(of_interrupt(InterruptKind::IpiCallFunction, recipient(VcpuState::Running)), [None; 2]);
}

#[test]
fn in_the_paper_ipis_are_counted_by_the_yields_that_they_cause_not_when_they_are_sent() {
    for kind in [InterruptKind::IpiReschedule, InterruptKind::IpiCallFunction] {
        let of_paper = by_rules(&AccelerateConfig::PAPER, kind, recipient(VcpuState::Runnable));
        assert_eq!(of_paper, [None; 2], "{kind}");
    }
}

#[test]
fn a_wake_up_is_urgent_if_a_device_interrupt_is_its_reason() {
    let of_wakeup = |seen: WokenObservation| {
        [0, 1].map(|micro_pcpu_count| {
            let seen = WokenObservation { micro_pcpu_count, ..seen };
            let config = AccelerateConfig::DEFAULT;
            urgent_event_of_wakeup(&config, &seen, &decide_on_woken(&config, &seen))
        })
    };
    let virq = WokenObservation {
        interrupted: 1,
        kind: InterruptKind::Virq.into(),
        guest_known: 1,
        ..Default::default()
    };
    assert_eq!(of_wakeup(virq), [Irq; 2]);
    assert_eq!(of_wakeup(WokenObservation { guest_known: 0, ..virq }), [None; 2]);
    assert_eq!(of_wakeup(WokenObservation { kind: InterruptKind::Timer.into(), ..virq }), [None; 2]);
    assert_eq!(of_wakeup(WokenObservation { lock_halt: 1, ..virq }), [None; 2], "it can't take it yet");
    let kick = WokenObservation { lock_halt: 1, interrupted: 0, ..virq };
    assert_eq!(of_wakeup(kick), [None; 2], "its halt was counted");
}

#[test]
fn a_request_for_a_holder_counts_as_a_lock_wait() {
    for &cause in Cause::ALL {
        let counts = matches!(cause, Cause::Holder | Cause::Heir);
        assert_eq!(urgent_event_of_stop(cause), if counts { Ple } else { None }, "{cause:?}");
    }
}
