//! Demand-based coordinated scheduling (ASPLOS'13): which vCPU is urgent and when it runs (3.1.3), and where
//! siblings are placed (3.2.2).

use microslice_policy::coordinated::*;
use microslice_policy::{Code, InterruptKind};
use proptest::prelude::*;

const CONFIG: UrgentConfig = UrgentConfig::PAPER;
const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const ALL_SCHEMES: u32 = RESCHED_DP | TLB_CO | RESCHED_CO;
const CALM: UrgentState = UrgentState { left_ns: 0, events: 0, reserved: 0 };
const CALLED: UrgentState = UrgentState { events: 1, ..CALM };

fn ipi(kind: InterruptKind, schemes: u32) -> IpiObservation {
    IpiObservation { kind: kind.into(), schemes, ..Default::default() }
}

fn waits_urgently() -> UrgentObservation {
    UrgentObservation { state: CALLED, current_exists: 1, ..Default::default() }
}

#[test]
fn each_scheme_acts_for_its_ipi_and_its_side_only() {
    let urgent = |kind, schemes| {
        let IpiDecision { sender, recipient } = decide_on_ipi(&CONFIG, &ipi(kind, schemes));
        (sender.is_urgent(), recipient.is_urgent())
    };
    use InterruptKind::{IpiCallFunction as Call, IpiReschedule as Reschedule};
    assert_eq!(urgent(Reschedule, RESCHED_DP), (true, false));
    assert_eq!(urgent(Reschedule, RESCHED_CO), (false, true));
    assert_eq!(urgent(Reschedule, TLB_CO), (false, false));
    assert_eq!(urgent(Call, TLB_CO), (false, true));
    assert_eq!(urgent(Call, RESCHED_DP | RESCHED_CO), (false, false));
    for kind in [InterruptKind::Virq, InterruptKind::Timer, InterruptKind::Other] {
        assert_eq!(urgent(kind, ALL_SCHEMES), (false, false), "{kind}");
    }
}

#[test]
fn a_call_that_is_known_to_be_no_shootdown_makes_nobody_urgent() {
    let seen = IpiObservation { is_no_shootdown: 1, ..ipi(InterruptKind::IpiCallFunction, ALL_SCHEMES) };
    assert!(!decide_on_ipi(&CONFIG, &seen).recipient.is_urgent());
}

#[test]
fn an_event_lasts_until_it_is_acknowledged_however_long_its_vcpu_runs() {
    let called = decide_on_ipi(&CONFIG, &ipi(InterruptKind::IpiCallFunction, TLB_CO)).recipient;
    assert!(called.charged(100 * MS).is_urgent());
    assert!(called.acknowledged(&CONFIG, true).is_urgent(), "the next shootdown's has come");
    assert!(!called.acknowledged(&CONFIG, false).is_urgent());
}

#[test]
fn a_responder_that_acknowledges_before_it_answers_is_urgent_until_it_has_run_for_an_answer() {
    let config = UrgentConfig { answer_ns: 100 * US, ..CONFIG };
    let called = decide_on_ipi(&config, &ipi(InterruptKind::IpiCallFunction, TLB_CO)).recipient;
    let acknowledged = called.charged(MS).acknowledged(&config, false);
    assert!(acknowledged.charged(99 * US).is_urgent() && !acknowledged.charged(100 * US).is_urgent());
    assert_eq!(acknowledged.acknowledged(&config, false), acknowledged, "one answer is due");
    assert!(!CALM.acknowledged(&config, false).is_urgent(), "nobody had called it");
}

#[test]
fn a_time_lasts_until_its_vcpu_has_run_for_it_whatever_is_acknowledged() {
    let sender = decide_on_ipi(&CONFIG, &ipi(InterruptKind::IpiReschedule, RESCHED_DP)).sender;
    assert_eq!(sender.left_ns, 500 * US);
    assert!(sender.acknowledged(&CONFIG, false).charged(499 * US).is_urgent());
    assert!(!sender.charged(500 * US).is_urgent());
}

#[test]
fn a_second_request_begins_the_time_again_and_adds_nothing() {
    let first = decide_on_ipi(&CONFIG, &ipi(InterruptKind::IpiReschedule, RESCHED_DP)).sender;
    let again =
        IpiObservation { sender: first.charged(400 * US), ..ipi(InterruptKind::IpiReschedule, RESCHED_DP) };
    assert_eq!(decide_on_ipi(&CONFIG, &again).sender.left_ns, 500 * US);
}

#[test]
fn a_pause_loop_exit_ends_urgency_of_either_kind() {
    assert!(!UrgentState { left_ns: 400 * US, events: 1, reserved: 0 }.after_ple().is_urgent());
}

#[test]
fn a_vcpu_that_is_not_urgent_waits_like_any_other() {
    let seen = UrgentObservation { state: CALM, ..waits_urgently() };
    assert_eq!(decide_on_urgent(&CONFIG, &seen), UrgentDecision::IsNot);
}

#[test]
fn an_urgent_vcpu_borrows_up_to_the_allowance_and_no_more() {
    let ahead = |ns| decide_on_urgent(&CONFIG, &UrgentObservation { vtime_ns: ns, ..waits_urgently() });
    assert_eq!(ahead(0), UrgentDecision::Preempts);
    assert_eq!(ahead(18 * MS), UrgentDecision::Preempts);
    assert_eq!(ahead(18 * MS + 1), UrgentDecision::Refused);
    let alone = UrgentObservation { vtime_ns: 19 * MS, current_exists: 0, ..waits_urgently() };
    assert_eq!(decide_on_urgent(&CONFIG, &alone), UrgentDecision::Preempts, "it takes it from nobody");
}

#[test]
fn an_urgent_slice_is_protected_from_urgent_and_other_vcpus_until_it_is_over() {
    let seen = |ran| UrgentObservation { current_is_urgent: 1, current_ran_ns: ran, ..waits_urgently() };
    assert_eq!(decide_on_urgent(&CONFIG, &seen(499 * US)), UrgentDecision::Waits);
    assert_eq!(decide_on_urgent(&CONFIG, &seen(500 * US)), UrgentDecision::Preempts);
    assert!(is_protected(&CONFIG, &CALLED, 499 * US) && !is_protected(&CONFIG, &CALLED, 500 * US));
    assert!(!is_protected(&CONFIG, &CALM, 0));
}

#[test]
fn urgent_vcpus_take_turns_of_an_urgent_slice() {
    let turn = |state, ran, others| decide_on_urgent_turn(&CONFIG, &state, ran, others);
    assert_eq!(turn(CALLED, 499 * US, 2), UrgentTurn::GoesOn);
    assert_eq!(turn(CALLED, 500 * US, 2), UrgentTurn::Requeue);
    assert_eq!(turn(CALLED, 500 * US, 0), UrgentTurn::GoesOn, "nobody else is urgent");
    assert_eq!(turn(CALM, 0, 2), UrgentTurn::Leaves);
}

fn called(ahead_ns: u64) -> CalledObservation {
    let urgent = UrgentObservation { vtime_ns: ahead_ns, ..waits_urgently() };
    CalledObservation { urgent, waits_elsewhere: 1, runs: 0 }
}

#[test]
fn a_called_sibling_comes_if_it_runs_or_its_allowance_lasts() {
    let decide = |seen| decide_on_called(&CONFIG, &seen);
    assert_eq!(decide(called(18 * MS)), CalledDecision::Comes);
    assert_eq!(decide(called(18 * MS + 1)), CalledDecision::IsLate, "it is refused");
    assert_eq!(decide(CalledObservation { runs: 1, ..called(19 * MS) }), CalledDecision::Comes);
    let behind_another =
        UrgentObservation { current_is_urgent: 1, current_ran_ns: 499 * US, ..waits_urgently() };
    assert_eq!(
        decide(CalledObservation { urgent: behind_another, ..called(0) }),
        CalledDecision::Comes,
        "it is next"
    );
    let on_the_spinners = CalledObservation { waits_elsewhere: 0, ..called(0) };
    assert_eq!(decide(on_the_spinners), CalledDecision::IsLate, "the spinner keeps it from running");
    let asked_by_time = UrgentState { left_ns: 500 * US, ..CALM };
    let urgent = UrgentObservation { state: asked_by_time, ..waits_urgently() };
    assert_eq!(decide(CalledObservation { urgent, ..called(0) }), CalledDecision::OwesNothing);
}

fn caller(coming_count: u32, late_count: u32) -> CallerObservation {
    CallerObservation { coming_count, late_count, schemes: TLB_CO | TLB_SPIN, ..Default::default() }
}

#[test]
fn a_caller_keeps_its_pcpu_while_all_answers_come() {
    let keeps = |seen| caller_keeps_pcpu(&CONFIG, &seen);
    assert!(keeps(caller(3, 0)));
    assert!(!keeps(caller(3, 1)), "one of them doesn't come");
    assert!(!keeps(caller(0, 0)), "it waits for something else");
    assert!(keeps(CallerObservation { waited_ns: 500 * US - 1, ..caller(1, 0) }));
    assert!(!keeps(CallerObservation { waited_ns: 500 * US, ..caller(1, 0) }));
    assert!(!keeps(CallerObservation { schemes: ALL_SCHEMES, ..caller(3, 0) }));
}

fn candidate(has_sibling: bool, some_has_room: bool) -> CandidateObservation {
    CandidateObservation {
        has_sibling: has_sibling.into(),
        some_candidate_has_room: some_has_room.into(),
        ..Default::default()
    }
}

#[test]
fn balance_keeps_siblings_apart_and_load_conscious_balance_unless_all_others_are_overloaded() {
    use BalanceScheme::{Apart, LoadConscious, None};
    let allows = |scheme, sibling, room| decide_on_candidate(scheme, &candidate(sibling, room));
    for room in [false, true] {
        assert!(allows(None, true, room) && allows(None, false, room));
        assert!(!allows(Apart, true, room) && allows(Apart, false, room));
    }
    assert!(!allows(LoadConscious, true, true) && allows(LoadConscious, false, true));
    assert!(allows(LoadConscious, true, false) && allows(LoadConscious, false, false));
}

#[test]
fn only_load_conscious_balance_moves_a_vcpu_to_a_siblings_pcpu_and_only_where_load_is_low() {
    let host = HostLoad { total: 800, pcpus: 4, reserved: 0 };
    let moves = |scheme, sibling, load| {
        decide_on_move(scheme, &host, &CandidateObservation { load, ..candidate(sibling, false) })
    };
    assert!(
        moves(BalanceScheme::LoadConscious, true, 200) && !moves(BalanceScheme::LoadConscious, true, 201)
    );
    assert!(!moves(BalanceScheme::Apart, true, 0) && moves(BalanceScheme::Apart, false, 500));
    assert!(moves(BalanceScheme::None, true, 500));
}

prop_compose! {
    fn state()(left_ns in 0..2 * MS, events in 0u32..2) -> UrgentState {
        UrgentState { left_ns, events, reserved: 0 }
    }
}

proptest! {
    /// A guest that sends IPIs without end gets no more by the second than by the first.
    #[test]
    fn however_many_ipis_come_nobody_is_urgent_for_longer_than_one_request(
        ipis in prop::collection::vec((0u32..5, any::<bool>()), 1..100), schemes in 0u32..8,
    ) {
        let (mut sender, mut recipient) = (CALM, CALM);
        for (kind, is_no_shootdown) in ipis {
            let seen = IpiObservation {
                sender, recipient, kind: Code::raw(kind), schemes,
                is_no_shootdown: is_no_shootdown.into(), reserved: 0,
            };
            IpiDecision { sender, recipient } = decide_on_ipi(&CONFIG, &seen);
            prop_assert!(sender.left_ns <= CONFIG.delay_ns && recipient.left_ns <= CONFIG.delay_ns);
            prop_assert!(sender.events == 0 && recipient.events <= 1);
        }
        prop_assert!(!recipient.acknowledged(&CONFIG, false).charged(CONFIG.delay_ns).is_urgent());
        prop_assert!(schemes != 0 || !sender.is_urgent() && !recipient.is_urgent());
    }

    /// Whatever the clocks are, even where they wrap, only their distance counts.
    #[test]
    fn nobody_preempts_beyond_the_allowance(
        state in state(), current_vtime_ns: u64, ahead_ns in -40i64 * MS as i64..40 * MS as i64,
        current_ran_ns in 0..2 * MS, current_is_urgent in 0u32..2,
    ) {
        let vtime_ns = current_vtime_ns.wrapping_add_signed(ahead_ns);
        let seen = UrgentObservation {
            state, vtime_ns, current_vtime_ns, current_ran_ns, current_is_urgent, current_exists: 1,
        };
        let decision = decide_on_urgent(&CONFIG, &seen);
        let preempts = decision == UrgentDecision::Preempts;
        prop_assert!(!preempts || state.is_urgent() && ahead_ns <= CONFIG.allowance_ns as i64);
        prop_assert!(!preempts || current_is_urgent == 0 || current_ran_ns >= CONFIG.slice_ns);
        prop_assert_eq!(decision == UrgentDecision::IsNot, !state.is_urgent());
    }

    /// Whoever is refused as urgent, or needs the spinner's pCPU, makes the spinner yield.
    #[test]
    fn a_caller_spins_only_where_all_that_owe_answers_may_run(
        siblings in prop::collection::vec(
            (state(), 0u64..40 * MS, 0..2 * MS, any::<[bool; 3]>()), 1..20),
        waited_ns in 0..2 * MS,
    ) {
        let mut seen = CallerObservation { waited_ns, ..caller(0, 0) };
        let mut all_may_run = true;
        for (state, vtime_ns, current_ran_ns, [runs, waits_elsewhere, current_is_urgent]) in siblings {
            let urgent = UrgentObservation {
                state, vtime_ns, current_vtime_ns: 0, current_ran_ns,
                current_is_urgent: current_is_urgent.into(), current_exists: 1,
            };
            let waits_elsewhere = !runs && waits_elsewhere;
            let called = CalledObservation {
                urgent, runs: runs.into(), waits_elsewhere: waits_elsewhere.into(),
            };
            match decide_on_called(&CONFIG, &called) {
                CalledDecision::OwesNothing => prop_assert_eq!(state.events, 0),
                CalledDecision::Comes => seen.coming_count += 1,
                CalledDecision::IsLate => seen.late_count += 1,
            }
            let is_refused = decide_on_urgent(&CONFIG, &urgent) == UrgentDecision::Refused;
            all_may_run &= state.events == 0 || runs || waits_elsewhere && !is_refused;
        }
        let keeps = caller_keeps_pcpu(&CONFIG, &seen);
        prop_assert!(!keeps || all_may_run && seen.coming_count > 0 && waited_ns < CONFIG.slice_ns);
        prop_assert!(keeps || !all_may_run || seen.coming_count == 0 || waited_ns >= CONFIG.slice_ns);
    }

    /// Where some pCPU is without siblings, a vCPU may be placed somewhere, whatever the scheme.
    #[test]
    fn a_waking_vcpu_always_finds_a_pcpu_if_one_has_no_sibling(
        pcpus in prop::collection::vec((0u64..10_000, any::<bool>()), 1..20), scheme in 0usize..3,
    ) {
        use BalanceScheme::{Apart, LoadConscious, None};
        let scheme = [None, Apart, LoadConscious][scheme];
        let host = HostLoad {
            total: pcpus.iter().map(|(load, _)| load).sum(), pcpus: pcpus.len() as u32, reserved: 0,
        };
        let has_room = pcpus.iter().any(|&(load, sibling)| !sibling && !is_overloaded(&host, load));
        let allowed = |sibling| decide_on_candidate(scheme, &candidate(sibling, has_room));
        let any = pcpus.iter().any(|&(_, sibling)| allowed(sibling));
        prop_assert!(any || scheme == Apart && pcpus.iter().all(|&(_, sibling)| sibling));
        prop_assert!(pcpus.iter().any(|&(load, _)| !is_overloaded(&host, load)), "not all are above the mean");
    }
}

#[test]
fn the_sender_of_an_ipi_of_any_kind_is_urgent_by_early_delayed_preemption_only() {
    let begun = |schemes| decide_on_ipi_begun(&CONFIG, &CALM, schemes).left_ns;
    assert_eq!(begun(EARLY_DP), 500 * US);
    assert_eq!(begun(ALL_SCHEMES), 0);
    let asks_for_more = UrgentState { left_ns: MS, ..CALM };
    assert_eq!(decide_on_ipi_begun(&CONFIG, &asks_for_more, EARLY_DP).left_ns, MS, "requests don't add up");
}

const TRIAL: ReschedCoConfig = ReschedCoConfig::USUAL;

/// A trial of a VM that sends so many reschedule IPIs a look, without and with Resched-Co, while it runs for
/// so long: its state once what was found holds, and when that is.
fn tried([without, with]: [u64; 2], ran_ns: u64) -> (ReschedCoState, u64) {
    let (mut state, mut now_ns) = (ReschedCoState::default(), 5);
    for _ in 0..=RESCHED_CO_LOOKS {
        let ipi_count = if state.is_on != 0 { with } else { without };
        let seen = ReschedCoObservation { now_ns, ipi_count, ran_ns };
        state = decide_on_resched_co(&TRIAL, &state, &seen);
        now_ns += TRIAL.look_ns;
    }
    (state, now_ns - TRIAL.look_ns)
}

#[test]
fn coscheduling_by_reschedule_ipis_stays_on_where_they_get_rarer_by_it() {
    let is_on = |counts| tried(counts, 100 * MS).0.is_on;
    assert_eq!(is_on([1_000, 790]), 1, "streamcluster's, in the paper");
    assert_eq!(is_on([1_000, 950]), 0, "too little to be sure of");
    assert_eq!(is_on([1_000, 1_300]), 0, "it does harm");
    assert_eq!(is_on([20, 0]), 0, "no bulk traffic");
}

#[test]
fn a_vm_that_runs_for_longer_with_it_may_send_more() {
    let seen = |now_ns, ipi_count, ran_ns| ReschedCoObservation { now_ns, ipi_count, ran_ns };
    let mut state = decide_on_resched_co(&TRIAL, &ReschedCoState::default(), &seen(5, 0, 0));
    for look in 1..=u64::from(RESCHED_CO_LOOKS) {
        let (ipis, ran_ns) = if state.is_on != 0 { (1_200, 200 * MS) } else { (1_000, 100 * MS) };
        state = decide_on_resched_co(&TRIAL, &state, &seen(5 + look * TRIAL.look_ns, ipis, ran_ns));
    }
    assert_eq!((state.look, state.is_on), (RESCHED_CO_LOOKS, 1), "6,000 in place of 10,000 a second");
}

#[test]
fn looks_without_and_with_it_take_turns_and_what_they_found_is_tried_again() {
    let (held, now_ns) = tried([1_000, 500], 100 * MS);
    assert_eq!((held.look, held.ipi_count), (RESCHED_CO_LOOKS, [2_000, 1_000]));
    let at = |now_ns| ReschedCoObservation { now_ns, ipi_count: 9_000, ran_ns: 1 };
    assert_eq!(decide_on_resched_co(&TRIAL, &held, &at(now_ns + TRIAL.hold_ns - 1)), held);
    let again = decide_on_resched_co(&TRIAL, &held, &at(now_ns + TRIAL.hold_ns));
    assert_eq!((again.look, again.is_on, again.ipi_count), (0, 0, [0, 0]));
}

proptest! {
    #[test]
    fn a_trial_ends_whatever_it_sees(counts in prop::collection::vec((any::<u32>(), any::<u32>()), 5)) {
        let (mut state, mut now_ns) = (ReschedCoState::default(), 1);
        for (ipi_count, ran_ns) in counts {
            prop_assert!(state.look < RESCHED_CO_LOOKS);
            let seen = ReschedCoObservation { now_ns, ipi_count: ipi_count.into(), ran_ns: ran_ns.into() };
            state = decide_on_resched_co(&TRIAL, &state, &seen);
            prop_assert!(state.is_on <= 1 && state.until_ns > now_ns);
            now_ns = state.until_ns;
        }
        prop_assert_eq!(state.look, RESCHED_CO_LOOKS);
    }
}
