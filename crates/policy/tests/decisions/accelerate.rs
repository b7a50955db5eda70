//! Paper 4.1 and 4.2, rule by rule: which vCPU is accelerated after which hint. Interrupts have a file of
//! their own.

use microslice_policy::*;
use proptest::prelude::*;

fn a_yield(cause: YieldCause, guest_class: GuestClass) -> YieldObservation {
    YieldObservation {
        cause: cause.into(),
        guest_class: guest_class.into(),
        interrupts_enabled: 1,
        micro_pcpu_count: 1,
        ..Default::default()
    }
}

const UNCRITICAL: [GuestClass; 5] = [
    GuestClass::User,
    GuestClass::KernelOther,
    GuestClass::LockWaiter,
    GuestClass::Idle,
    GuestClass::Unknown,
];

fn preempted_sibling(guest_class: GuestClass) -> SiblingObservation {
    SiblingObservation {
        state: VcpuState::Runnable.into(),
        preempted: 1,
        guest_class: guest_class.into(),
        ..Default::default()
    }
}

const CRITICAL: [GuestClass; 4] =
    [GuestClass::LockHolder, GuestClass::TlbShootdown, GuestClass::ReschedIpi, GuestClass::IrqHandler];

fn started(seen: &YieldObservation) -> (PassScope, Cause, YieldReason) {
    let decision = decide_on_yield(seen);
    (decision.scope.get().unwrap(), decision.cause.get().unwrap(), decision.reason.get().unwrap())
}

// ---- 4.2, first: TLB synchronization ----

#[test]
fn a_spinner_of_a_vm_that_has_had_its_share_gives_its_turn_away() {
    let refused = SpinnerObservation { refused_count: 1, ..SPINNING };
    let config = AccelerateConfig { patience_ns: 0, ..AccelerateConfig::DEFAULT };
    let decide = |seen: &SpinnerObservation| decide_on_spinner(&config, seen);
    assert_eq!(decide(&refused), SpinnerDecision::Yields);
    assert_eq!(decide(&SpinnerObservation { helped_count: 1, ..refused }), SpinnerDecision::KeepsSpinning);
}

#[test]
fn by_paper_rules_a_lock_takes_all_in_critical_code() {
    let seen = YieldObservation { paper_rules: 1, ..a_yield(YieldCause::Ple, GuestClass::LockWaiter) };
    assert_eq!(started(&seen), (PassScope::AllCritical, Cause::LockYield, YieldReason::StartsPass));
    for class in GuestClass::ALL {
        let sibling = SiblingObservation { requested_count: 5, ..preempted_sibling(*class) };
        let wanted = CRITICAL.contains(class);
        let expected = if wanted { SiblingDecision::Request } else { SiblingDecision::NotCritical };
        assert_eq!(decide_on_sibling(PassScope::AllCritical, &sibling), expected, "{class}");
    }
    let yielded = SiblingObservation { preempted: 0, yielded: 1, ..preempted_sibling(CRITICAL[0]) };
    assert_eq!(decide_on_sibling(PassScope::AllCritical, &yielded), SiblingDecision::Yielded);
}

#[test]
fn a_yield_inside_a_tlb_shootdown_asks_for_every_preempted_sibling() {
    let seen = a_yield(YieldCause::Ple, GuestClass::TlbShootdown);
    assert_eq!(started(&seen), (PassScope::AllPreempted, Cause::TlbYield, YieldReason::StartsPass));
}

#[test]
fn a_shootdown_takes_preempted_siblings_whatever_code_they_were_stopped_in() {
    for class in GuestClass::ALL {
        let sibling = SiblingObservation { requested_count: 5, ..preempted_sibling(*class) };
        assert_eq!(decide_on_sibling(PassScope::AllPreempted, &sibling), SiblingDecision::Request);
    }
}

#[test]
fn a_shootdown_takes_siblings_that_yielded_too_because_each_must_acknowledge() {
    let sibling =
        SiblingObservation { preempted: 0, yielded: 1, ..preempted_sibling(GuestClass::LockWaiter) };
    assert_eq!(decide_on_sibling(PassScope::AllPreempted, &sibling), SiblingDecision::Request);
}

#[test]
fn a_shootdown_leaves_out_siblings_that_have_answered_unless_they_are_still_in_critical_code() {
    for class in GuestClass::ALL {
        let sibling = SiblingObservation { answer: SiblingAnswer::Given.into(), ..preempted_sibling(*class) };
        let expected =
            if CRITICAL.contains(class) { SiblingDecision::Request } else { SiblingDecision::Answered };
        assert_eq!(decide_on_sibling(PassScope::AllPreempted, &sibling), expected, "{class}");
    }
}

#[test]
fn a_sibling_that_runs_and_owes_an_answer_counts_as_help_only_if_the_host_can_see_that_it_owes_one() {
    let running = |answer: SiblingAnswer| SiblingObservation {
        state: VcpuState::Running.into(),
        answer: answer.into(),
        ..preempted_sibling(GuestClass::User)
    };
    let decide = |answer| decide_on_sibling(PassScope::AllPreempted, &running(answer));
    assert_eq!(decide(SiblingAnswer::Owed), SiblingDecision::Answering);
    assert_eq!(decide(SiblingAnswer::Given), SiblingDecision::NotPreempted);
    assert_eq!(decide(SiblingAnswer::Unknown), SiblingDecision::NotPreempted);
    assert_eq!(
        decide_on_sibling(PassScope::OneCritical, &running(SiblingAnswer::Owed)),
        SiblingDecision::NotPreempted
    );
}

#[test]
fn whether_a_sibling_answered_is_nothing_to_a_waiter_for_a_lock() {
    let sibling = SiblingObservation {
        answer: SiblingAnswer::Given.into(),
        ..preempted_sibling(GuestClass::LockHolder)
    };
    assert_eq!(decide_on_sibling(PassScope::OneCritical, &sibling), SiblingDecision::Request);
}

// ---- 4.2, second: locks ----

#[test]
fn a_yield_while_spinning_for_a_lock_asks_for_one_sibling_in_critical_code() {
    let seen = a_yield(YieldCause::Ple, GuestClass::LockWaiter);
    assert_eq!(started(&seen), (PassScope::OneCritical, Cause::LockYield, YieldReason::StartsPass));
}

#[test]
fn spinning_inside_critical_code_is_waiting_for_a_second_lock() {
    for class in [GuestClass::LockHolder, GuestClass::ReschedIpi, GuestClass::IrqHandler] {
        assert_eq!(started(&a_yield(YieldCause::Ple, class)).1, Cause::LockYield, "{class}");
    }
}

#[test]
fn a_lock_pass_takes_the_first_preempted_sibling_in_critical_code_and_no_second() {
    for class in CRITICAL {
        let first = preempted_sibling(class);
        assert_eq!(decide_on_sibling(PassScope::OneCritical, &first), SiblingDecision::Request);
        let second = SiblingObservation { requested_count: 1, ..first };
        assert_eq!(decide_on_sibling(PassScope::OneCritical, &second), SiblingDecision::PassDone);
    }
}

#[test]
fn a_lock_pass_leaves_siblings_that_are_in_no_critical_code() {
    for class in UNCRITICAL {
        let sibling = preempted_sibling(class);
        assert_eq!(decide_on_sibling(PassScope::OneCritical, &sibling), SiblingDecision::NotCritical);
    }
}

#[test]
fn a_lock_pass_leaves_siblings_that_yielded_by_themselves() {
    let sibling = SiblingObservation { yielded: 1, ..preempted_sibling(GuestClass::LockHolder) };
    assert_eq!(decide_on_sibling(PassScope::OneCritical, &sibling), SiblingDecision::Yielded);
}

#[test]
fn siblings_that_run_or_sleep_need_no_help() {
    for state in [VcpuState::Running, VcpuState::Blocked] {
        for scope in [PassScope::OneCritical, PassScope::AllPreempted] {
            let sibling =
                SiblingObservation { state: state.into(), ..preempted_sibling(GuestClass::LockHolder) };
            assert_eq!(decide_on_sibling(scope, &sibling), SiblingDecision::NotPreempted);
        }
    }
}

#[test]
fn a_sibling_that_is_pending_or_in_the_micro_pool_is_not_requested_twice() {
    for state in [VcpuState::Pending, VcpuState::Micro] {
        for scope in [PassScope::OneCritical, PassScope::AllPreempted] {
            let sibling =
                SiblingObservation { state: state.into(), ..preempted_sibling(GuestClass::LockHolder) };
            assert_eq!(decide_on_sibling(scope, &sibling), SiblingDecision::AlreadyRequested);
        }
    }
}

// ---- Halts: a lock's slow path, or the idle loop ----

#[test]
fn a_halt_in_the_idle_loop_starts_nothing() {
    let seen = a_yield(YieldCause::Hlt, GuestClass::Idle);
    assert_eq!(started(&seen), (PassScope::None, Cause::None, YieldReason::Idle));
}

#[test]
fn a_halt_of_a_lock_waiter_asks_for_one_sibling_in_critical_code() {
    let seen = a_yield(YieldCause::Hlt, GuestClass::LockWaiter);
    assert_eq!(started(&seen), (PassScope::OneCritical, Cause::LockHalt, YieldReason::StartsPass));
}

#[test]
fn a_halt_with_interrupts_disabled_waits_for_a_lock_whatever_instruction_it_shares_with_the_idle_loop() {
    let seen = YieldObservation { interrupts_enabled: 0, ..a_yield(YieldCause::Hlt, GuestClass::Idle) };
    assert_eq!(started(&seen).1, Cause::LockHalt);
}

// ---- Paravirtual yields ----

#[test]
fn a_paravirtual_yield_to_an_ipi_target_asks_for_every_preempted_sibling() {
    let seen = a_yield(YieldCause::IpiWait, GuestClass::KernelOther);
    assert_eq!(started(&seen), (PassScope::AllPreempted, Cause::PvYield, YieldReason::StartsPass));
}

// ---- What starts nothing ----

#[test]
fn spinning_in_user_code_starts_nothing() {
    let seen = a_yield(YieldCause::Ple, GuestClass::User);
    assert_eq!(started(&seen), (PassScope::None, Cause::None, YieldReason::NotCritical));
}

#[test]
fn a_guest_without_symbols_starts_nothing() {
    for cause in YieldCause::ALL {
        let seen = YieldObservation { interrupts_enabled: 0, ..a_yield(*cause, GuestClass::Unknown) };
        assert_eq!(started(&seen), (PassScope::None, Cause::None, YieldReason::Unknown));
    }
}

#[test]
fn with_an_empty_micro_pool_a_yield_is_counted_under_its_cause_but_starts_nothing() {
    let seen = YieldObservation { micro_pcpu_count: 0, ..a_yield(YieldCause::Ple, GuestClass::TlbShootdown) };
    assert_eq!(started(&seen), (PassScope::None, Cause::TlbYield, YieldReason::NoMicroPool));
}

#[test]
fn only_one_pass_at_a_time_walks_a_vm() {
    let seen = YieldObservation { pass_active: 1, ..a_yield(YieldCause::Ple, GuestClass::LockWaiter) };
    assert_eq!(started(&seen), (PassScope::None, Cause::LockYield, YieldReason::PassActive));
}

// ---- The spinner ----

/// What a spinner decides that has spun for longer than any patience lasts.
fn after_spinning_for_long(seen: SpinnerObservation) -> SpinnerDecision {
    let seen = SpinnerObservation { spun_ns: 1_000_000, ..seen };
    let decision = decide_on_spinner(&AccelerateConfig::DEFAULT, &seen);
    let impatient = AccelerateConfig { patience_ns: 0, ..AccelerateConfig::DEFAULT };
    let without = decide_on_spinner(&impatient, &SpinnerObservation { spun_ns: 0, ..seen });
    assert_eq!(decision, without, "nothing else is left of patience");
    assert_eq!(decide_on_spinner(&AccelerateConfig::PAPER, &seen), SpinnerDecision::Yields, "section 5");
    decision
}

const SPINNING: SpinnerObservation = SpinnerObservation {
    cause: Code::raw(YieldCause::Ple as u32),
    helped_count: 0,
    refused_count: 0,
    pass_active: 0,
    scope: Code::raw(PassScope::AllPreempted as u32),
    stranded_count: 0,
    vain_waits: 0,
    ran_out_before: 0,
    spun_ns: 0,
};

#[test]
fn the_spinner_keeps_spinning_if_help_is_on_its_way() {
    assert_eq!(after_spinning_for_long(SPINNING), SpinnerDecision::Yields);
    let helped = SpinnerObservation { helped_count: 1, ..SPINNING };
    assert_eq!(after_spinning_for_long(helped), SpinnerDecision::KeepsSpinning);
}

#[test]
fn another_pass_over_the_same_vm_is_worth_waiting_for() {
    let active = SpinnerObservation { pass_active: 1, scope: Code::raw(PassScope::None as u32), ..SPINNING };
    assert_eq!(after_spinning_for_long(active), SpinnerDecision::KeepsSpinning);
}

#[test]
fn while_its_patience_lasts_a_spinner_keeps_its_pcpu_though_no_sibling_was_preempted() {
    let config = AccelerateConfig::DEFAULT;
    for cause in [YieldCause::Ple, YieldCause::IpiWait] {
        let after = |spun_ns| {
            let seen = SpinnerObservation { cause: cause.into(), spun_ns, ..SPINNING };
            decide_on_spinner(&config, &seen)
        };
        assert_eq!(after(0), SpinnerDecision::KeepsSpinning);
        assert_eq!(after(config.patience_ns - 1), SpinnerDecision::KeepsSpinning);
        assert_eq!(
            after(config.patience_ns),
            SpinnerDecision::Yields,
            "who is waited for may be in unknown code"
        );
    }
}

/// The exits of a turn, in ns, and which of them begin a wait.
fn waits(exits_ns: impl IntoIterator<Item = u64>) -> Vec<bool> {
    let (mut window_ns, mut before_ns) = (MICRO_SLICE_NS, 0);
    let begins = |now_ns: u64| {
        let apart_ns = now_ns - std::mem::replace(&mut before_ns, now_ns);
        let begins = exit_begins_wait(apart_ns, window_ns, MICRO_SLICE_NS);
        window_ns = window_after_exit(window_ns, apart_ns);
        begins
    };
    exits_ns.into_iter().map(begins).collect()
}

const MICRO_SLICE_NS: u64 = 100_000;
/// A turn begins then.
const TURN_NS: u64 = 1_000_000_000;

/// Twelve exits of a vCPU that spins on and on, from a window that doubles up to a limit.
fn exits_of_doubling_windows(base_ns: u64, max_ns: u64) -> Vec<u64> {
    let windows = std::iter::successors(Some(base_ns), |window| Some((2 * window).min(max_ns)));
    let exits = windows.scan(TURN_NS, |now_ns, window_ns| {
        *now_ns += window_ns + 500;
        Some(*now_ns)
    });
    exits.take(12).collect()
}

#[test]
fn while_windows_double_a_wait_is_one_wait() {
    // 4,096 cycles of 2.5 GHz without a limit; 3,000 and at most 65,535 PAUSEs of 20 ns; no growth at all.
    for (base_ns, max_ns) in [(1_638, u64::MAX), (60_000, 1_310_700), (1_638, 1_638)] {
        let begins = waits(exits_of_doubling_windows(base_ns, max_ns));
        assert!(begins[0]);
        assert_eq!(begins.iter().filter(|&&begins| begins).count(), 1, "{base_ns}: {begins:?}");
    }
}

#[test]
fn a_pause_longer_than_windows_have_grown_ends_a_wait() {
    let mut exits = exits_of_doubling_windows(1_638, u64::MAX);
    exits.truncate(4);
    // The next window is 26 µs.
    let last_ns = exits[3];
    assert!(!waits(exits.iter().copied().chain([last_ns + 125_000]))[4]);
    assert!(waits(exits.iter().copied().chain([last_ns + 135_000]))[4]);
}

const AT_A_LOCK: SpinnerObservation = SpinnerObservation {
    scope: Code::raw(PassScope::OneCritical as u32),
    vain_waits: VAIN_WAITS_MAX,
    ..SPINNING
};

#[test]
fn where_patience_was_in_vain_nobody_has_any_while_a_sibling_was_stopped_that_waits_for_a_lock_itself() {
    let decide = |seen: SpinnerObservation| decide_on_spinner(&AccelerateConfig::DEFAULT, &seen);
    let stranded = SpinnerObservation { stranded_count: 1, ..AT_A_LOCK };
    assert_eq!(decide(stranded), SpinnerDecision::Yields);
    assert_eq!(decide(AT_A_LOCK), SpinnerDecision::KeepsSpinning, "all that wait for it run");
    for other in [
        SpinnerObservation { vain_waits: VAIN_WAITS_MAX - 1, ..stranded },
        SpinnerObservation { scope: SPINNING.scope, ..stranded },
        SpinnerObservation { helped_count: 1, ..stranded },
    ] {
        assert_eq!(decide(other), SpinnerDecision::KeepsSpinning, "{other:?}");
    }
}

#[test]
fn waits_are_in_vain_when_patience_runs_out_again_and_again_and_nobody_halts_for_a_lock() {
    let config = AccelerateConfig::DEFAULT;
    let after = |seen: SpinnerObservation| vain_waits_after(&config, &seen);
    let run_out = SpinnerObservation { vain_waits: 3, spun_ns: config.patience_ns, ..AT_A_LOCK };
    assert_eq!(after(run_out), 4);
    assert_eq!(after(SpinnerObservation { vain_waits: VAIN_WAITS_MAX, ..run_out }), VAIN_WAITS_MAX);
    for other in [
        SpinnerObservation { spun_ns: config.patience_ns - 1, ..run_out },
        SpinnerObservation { ran_out_before: 1, ..run_out },
        SpinnerObservation { scope: SPINNING.scope, ..run_out },
        SpinnerObservation { helped_count: 1, ..run_out },
        SpinnerObservation { refused_count: 1, ..run_out },
    ] {
        assert_eq!(after(other), 3, "{other:?}");
    }
    let halted = SpinnerObservation { cause: YieldCause::Hlt.into(), ..AT_A_LOCK };
    assert_eq!(after(halted), 0, "its waiters do halt");
}

#[test]
fn a_waiter_that_was_stopped_while_it_spun_for_a_lock_is_stranded() {
    let preempted = preempted_sibling(GuestClass::LockWaiter);
    let yielded = SiblingObservation { preempted: 0, yielded: 1, ..preempted };
    assert!(sibling_is_stranded(&preempted) && sibling_is_stranded(&yielded));
    for other in [
        preempted_sibling(GuestClass::LockHolder),
        SiblingObservation { preempted: 0, ..preempted },
        SiblingObservation { state: VcpuState::Running.into(), ..preempted },
        SiblingObservation { state: VcpuState::Micro.into(), ..preempted },
    ] {
        assert!(!sibling_is_stranded(&other), "{other:?}");
    }
}

#[test]
fn without_a_micro_pool_or_where_nobody_knows_what_it_waits_for_it_yields_at_once() {
    let seen = SpinnerObservation { scope: PassScope::None.into(), ..SPINNING };
    assert_eq!(decide_on_spinner(&AccelerateConfig::DEFAULT, &seen), SpinnerDecision::Yields);
}

#[test]
fn a_halted_waiter_is_not_kept_spinning_and_one_that_yielded_by_hypercall_only_by_its_patience() {
    for cause in [YieldCause::Hlt, YieldCause::IpiWait] {
        let spinner = SpinnerObservation { cause: cause.into(), helped_count: 3, pass_active: 1, ..SPINNING };
        assert_eq!(after_spinning_for_long(spinner), SpinnerDecision::Yields);
    }
    let halted = SpinnerObservation { cause: YieldCause::Hlt.into(), ..SPINNING };
    assert_eq!(decide_on_spinner(&AccelerateConfig::DEFAULT, &halted), SpinnerDecision::Yields);
}

// ---- Section 5: the runqueue limit of one ----

#[test]
fn a_micro_pcpu_queues_one_vcpu_at_most() {
    let config = AccelerateConfig::PAPER;
    let pcpu = |queued_count| PlacementObservation { queued_count, affinity_allows: 1 };
    assert_eq!(decide_on_placement(&config, &pcpu(0)), PlacementDecision::Queue);
    assert_eq!(decide_on_placement(&config, &pcpu(1)), PlacementDecision::Full);
}

#[test]
fn a_micro_pcpu_that_a_vcpu_may_not_run_on_never_takes_it() {
    let pcpu = PlacementObservation { queued_count: 0, affinity_allows: 0 };
    assert_eq!(decide_on_placement(&AccelerateConfig::PAPER, &pcpu), PlacementDecision::Affinity);
}

// ---- A micro slice at home ----

/// An ordinary turn of another VM's vCPU runs there.
const AT_HOME: HomeObservation = HomeObservation {
    affinity_allows: 1,
    queued_count: 0,
    gives_way: 1,
    is_sibling: 0,
    vm_is_ahead: 0,
    disturbed: 0,
};

#[test]
fn a_request_has_a_micro_slice_at_home_from_a_turn_that_gives_way_and_has_had_as_much() {
    let decide = |seen: &HomeObservation| decide_on_home(&AccelerateConfig::DEFAULT, seen);
    assert_eq!(decide(&AT_HOME), HomeDecision::Queue);
    for (seen, decision) in [
        (HomeObservation { affinity_allows: 0, ..AT_HOME }, HomeDecision::Affinity),
        (HomeObservation { gives_way: 0, ..AT_HOME }, HomeDecision::Busy),
        (HomeObservation { queued_count: 1, ..AT_HOME }, HomeDecision::Busy),
        (HomeObservation { is_sibling: 1, ..AT_HOME }, HomeDecision::Sibling),
        (HomeObservation { vm_is_ahead: 1, ..AT_HOME }, HomeDecision::VmAhead),
        (HomeObservation { disturbed: 1, ..AT_HOME }, HomeDecision::TooSoon),
    ] {
        assert_eq!(decide(&seen), decision, "{seen:?}");
    }
}

#[test]
fn by_the_papers_rules_nobody_has_a_micro_slice_at_home() {
    assert_eq!(decide_on_home(&AccelerateConfig::PAPER, &AT_HOME), HomeDecision::Off);
}

#[test]
fn a_call_that_came_at_the_end_of_a_micro_slice_is_asked_for_again() {
    const GRACE: AccelerateConfig = AccelerateConfig { grace_max: 2, ..AccelerateConfig::PAPER };
    let user = MicroSliceObservation { guest_class: GuestClass::User.into(), ..Default::default() };
    let owes = MicroSliceObservation { answer: SiblingAnswer::Owed.into(), ..user };
    assert_eq!(decide_after_micro_slice(&GRACE, &user).retry, 0);
    assert_eq!(decide_after_micro_slice(&GRACE, &owes).retry, 1);
    assert_eq!(decide_after_micro_slice(&GRACE, &MicroSliceObservation { retry_count: 2, ..owes }).retry, 0);
    assert_eq!(decide_after_micro_slice(&GRACE, &MicroSliceObservation { blocked: 1, ..owes }).retry, 0);
    assert_eq!(decide_after_micro_slice(&AccelerateConfig::PAPER, &owes).retry, 0);
}

#[test]
fn once_there_is_room_only_those_are_asked_for_again_that_a_sibling_still_waits_for() {
    let waits = |class: GuestClass, answer: SiblingAnswer| {
        let seen = SiblingObservation { answer: answer.into(), ..preempted_sibling(class) };
        decide_on_sibling(PassScope::AllOwing, &seen)
    };
    assert_eq!(waits(GuestClass::User, SiblingAnswer::Owed), SiblingDecision::Request);
    assert_eq!(waits(GuestClass::User, SiblingAnswer::Given), SiblingDecision::Answered);
    // Where the host can't see which siblings owe an answer, none is asked for on suspicion.
    assert_eq!(waits(GuestClass::User, SiblingAnswer::Unknown), SiblingDecision::Answered);
    // The interrupt is acknowledged before it is handled.
    assert_eq!(waits(GuestClass::TlbShootdown, SiblingAnswer::Given), SiblingDecision::Request);
}

// ---- The end of a micro slice ----

#[test]
fn a_micro_slice_that_ended_too_early_is_told_from_one_that_served() {
    let outcome = |seen: MicroSliceObservation| {
        decide_after_micro_slice(&AccelerateConfig::PAPER, &seen).outcome.get().unwrap()
    };
    let user = MicroSliceObservation { guest_class: GuestClass::User.into(), ..Default::default() };
    assert_eq!(outcome(user), MicroSliceOutcome::Served);
    assert_eq!(outcome(MicroSliceObservation { interrupt_pending: 1, ..user }), MicroSliceOutcome::Unhandled);
    assert_eq!(outcome(MicroSliceObservation { blocked: 1, ..user }), MicroSliceOutcome::Blocked);
    for class in CRITICAL {
        let seen = MicroSliceObservation { guest_class: class.into(), ..user };
        assert_eq!(outcome(seen), MicroSliceOutcome::StillCritical);
    }
}

#[test]
fn the_paper_never_asks_again_and_a_retry_limit_is_kept() {
    let seen = MicroSliceObservation { interrupt_pending: 1, ..Default::default() };
    assert_eq!(decide_after_micro_slice(&AccelerateConfig::PAPER, &seen).retry, 0);
    let config = AccelerateConfig { grace_max: 2, ..AccelerateConfig::PAPER };
    for (retry_count, retry) in [(0, 1), (1, 1), (2, 0), (3, 0)] {
        let seen = MicroSliceObservation { retry_count, ..seen };
        assert_eq!(decide_after_micro_slice(&config, &seen).retry, retry);
    }
}

// ---- Properties: whatever is observed ----

proptest! {
    #[test]
    fn every_yield_decision_is_consistent(
        cause in 0u32..5, class in 0u32..12, irqs in 0u32..2, pool in 0u32..3, active in 0u32..2,
    ) {
        let seen = YieldObservation {
            cause: Code::raw(cause), guest_class: Code::raw(class), interrupts_enabled: irqs,
            micro_pcpu_count: pool, pass_active: active, paper_rules: 0,
        };
        let (scope, cause, reason) = started(&seen);
        prop_assert_eq!(scope != PassScope::None, reason == YieldReason::StartsPass);
        prop_assert!(scope == PassScope::None || (cause != Cause::None && pool > 0 && active == 0));
        prop_assert!(class != GuestClass::Unknown as u32 || cause == Cause::None);
        prop_assert!(class != GuestClass::User as u32 || cause == Cause::None);
    }

    #[test]
    fn only_runnable_siblings_are_requested_and_a_lock_pass_requests_at_most_one(
        scope in 0usize..5, states in proptest::collection::vec((0u32..6, 0u32..2, 0u32..2, 0u32..10, 0u32..4), 0..64),
    ) {
        let scope = PassScope::ALL[scope];
        let mut requested_count = 0;
        for (state, preempted, yielded, class, answer) in states {
            let seen = SiblingObservation {
                state: Code::raw(state), preempted, yielded, guest_class: Code::raw(class),
                requested_count, answer: Code::raw(answer),
            };
            if decide_on_sibling(scope, &seen) == SiblingDecision::Request {
                prop_assert_eq!(seen.state.get(), Some(VcpuState::Runnable));
                requested_count += 1;
            }
        }
        prop_assert!(scope != PassScope::None || requested_count == 0);
        prop_assert!(scope != PassScope::OneCritical || requested_count <= 1);
    }
}
