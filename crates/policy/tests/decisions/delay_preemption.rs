//! Delayed preemption (VM'04, section 3): which vCPU may be preempted where, and turns that are as long as
//! due all the same.

use microslice_policy::delay_preemption::decide_on_delay;
use microslice_policy::*;
use proptest::prelude::*;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// The monotonic clock of a host that has been up for a while.
const NOW: u64 = 5_000_000 * MS;
const TURN_NS: u64 = 5 * MS;

fn config(unsafe_where: DelayUnsafe) -> DelayConfig {
    DelayConfig {
        window_ns: MS,
        look_ns: 0,
        history: DelayConfig::HISTORY,
        unsafe_where: unsafe_where.into(),
    }
}

fn seen(now_ns: u64, class: GuestClass) -> DelayObservation {
    let window = DelayWindow { begin_ns: NOW, end_ns: NOW + MS };
    DelayObservation { window, now_ns, guest_class: class.into(), ..Default::default() }
}

fn verdict(config: &DelayConfig, seen: &DelayObservation) -> DelayVerdict {
    decide_on_delay(config, seen).verdict.get().expect("a verdict")
}

#[test]
fn without_the_guests_help_user_mode_and_the_idle_loop_are_safe_and_nothing_else() {
    let config = config(DelayUnsafe::InKernel);
    for class in GuestClass::ALL.iter().copied() {
        let safe = matches!(class, GuestClass::User | GuestClass::Idle);
        let expected = if safe { DelayVerdict::EndsSafe } else { DelayVerdict::GoesOn };
        assert_eq!(verdict(&config, &seen(NOW, class)), expected, "{class}");
    }
}

#[test]
fn by_choice_only_critical_code_is_unsafe() {
    let config = config(DelayUnsafe::InCriticalCode);
    for class in GuestClass::ALL.iter().copied() {
        let expected = if class_is_critical(class) { DelayVerdict::GoesOn } else { DelayVerdict::EndsSafe };
        assert_eq!(verdict(&config, &seen(NOW, class)), expected, "{class}");
    }
}

#[test]
fn a_guest_that_hints_is_believed_for_as_long_as_it_says_and_no_longer_than_the_window() {
    let config = config(DelayUnsafe::WhereHinted);
    let hinting = |now_ns, hint_ns| DelayObservation { hint_ns, ..seen(now_ns, GuestClass::User) };
    assert_eq!(
        verdict(&config, &seen(NOW, GuestClass::LockHolder)),
        DelayVerdict::EndsSafe,
        "it says nothing"
    );
    assert_eq!(verdict(&config, &hinting(NOW, 20 * US)), DelayVerdict::GoesOn);
    assert_eq!(decide_on_delay(&config, &hinting(NOW, 20 * US)).look_at_ns, NOW + 20 * US);
    assert_eq!(verdict(&config, &hinting(NOW + 20 * US, 20 * US)), DelayVerdict::EndsForced);
    assert_eq!(decide_on_delay(&config, &hinting(NOW, u64::MAX)).look_at_ns, NOW + MS);
    assert_eq!(verdict(&config, &hinting(NOW + MS, u64::MAX)), DelayVerdict::EndsForced);
}

#[test]
fn nobody_is_preempted_before_the_window_nor_kept_behind_it() {
    let config = config(DelayUnsafe::InKernel);
    let before = seen(NOW - 1, GuestClass::User);
    assert_eq!(verdict(&config, &before), DelayVerdict::NotYet);
    assert_eq!(decide_on_delay(&config, &before).look_at_ns, NOW);
    assert_eq!(verdict(&config, &seen(NOW + MS, GuestClass::KernelOther)), DelayVerdict::EndsForced);
}

#[test]
fn a_safe_point_that_was_put_in_ends_the_turn_in_the_kernel() {
    for unsafe_where in DelayUnsafe::ALL.iter().copied() {
        let seen = DelayObservation { at_safe_point: 1, hint_ns: MS, ..seen(NOW, GuestClass::LockHolder) };
        assert_eq!(verdict(&config(unsafe_where), &seen), DelayVerdict::EndsSafe);
    }
}

#[test]
fn looks_are_so_far_apart_and_the_last_one_is_at_the_windows_end() {
    let config = DelayConfig { look_ns: 300 * US, ..config(DelayUnsafe::InKernel) };
    let look = |now_ns| decide_on_delay(&config, &seen(now_ns, GuestClass::KernelOther)).look_at_ns;
    assert_eq!(look(NOW), NOW + 300 * US);
    assert_eq!(look(NOW + 900 * US), NOW + MS);
}

/// A turn of a vCPU that is in code of this class is over, and so many micro slices were given already, of
/// two.
fn at_the_end_of_a_turn(class: GuestClass, given: u64) -> DelayVerdict {
    let config = DelayConfig::of_grace(2, 100 * US);
    let window = config.window_of_grace();
    let seen = DelayObservation {
        window,
        now_ns: given * 100 * US,
        guest_class: class.into(),
        ..DelayObservation::default()
    };
    verdict(&config, &seen)
}

#[test]
fn grace_is_so_many_micro_slices_in_critical_code_and_none_elsewhere() {
    for class in GuestClass::ALL.iter().copied() {
        let verdicts = [0, 1, 2].map(|given| at_the_end_of_a_turn(class, given));
        if class_is_critical(class) {
            let expected = [DelayVerdict::GoesOn, DelayVerdict::GoesOn, DelayVerdict::EndsForced];
            assert_eq!(verdicts, expected, "{class}");
        } else {
            assert_eq!(verdicts, [DelayVerdict::EndsSafe; 3], "{class}");
        }
    }
}

#[test]
fn grace_is_given_until_a_call_that_came_when_the_turn_was_over_is_answered() {
    let config = DelayConfig::of_grace(2, 100 * US);
    let answers = |answer: SiblingAnswer| {
        let window = config.window_of_grace();
        let guest_class = GuestClass::User.into();
        verdict(
            &config,
            &DelayObservation { window, guest_class, answer: answer.into(), ..Default::default() },
        )
    };
    assert_eq!(answers(SiblingAnswer::Owed), DelayVerdict::GoesOn);
    assert_eq!(answers(SiblingAnswer::Given), DelayVerdict::EndsSafe);
    assert_eq!(answers(SiblingAnswer::Unknown), DelayVerdict::EndsSafe);
}

#[test]
fn a_vcpu_that_is_to_run_before_a_turn_is_over_waits_for_no_grace_but_for_a_window_that_slides() {
    let critical = DelayObservation { guest_class: GuestClass::LockHolder.into(), ..Default::default() };
    let grace = DelayConfig::of_grace(2, 100 * US);
    for (is_cut_short, expected) in [(0, DelayVerdict::GoesOn), (1, DelayVerdict::EndsSafe)] {
        let seen = DelayObservation { window: grace.window_of_grace(), is_cut_short, ..critical };
        assert_eq!(verdict(&grace, &seen), expected);
        let config = config(DelayUnsafe::InCriticalCode);
        let window = DelayState::default().window_from(&config, NOW);
        let seen = DelayObservation { window, now_ns: NOW, is_cut_short, ..critical };
        assert_eq!(verdict(&config, &seen), DelayVerdict::GoesOn);
    }
}

#[test]
fn no_grace_is_given_where_the_paper_knows_none_and_its_window_does_not_slide() {
    let none = DelayConfig::of_grace(0, 100 * US);
    let critical = DelayObservation { guest_class: GuestClass::LockHolder.into(), ..Default::default() };
    let seen = DelayObservation { window: none.window_of_grace(), ..critical };
    assert_eq!(verdict(&none, &seen), DelayVerdict::EndsForced);
    assert!(!none.window_slides() && !DelayConfig::of_grace(2, 100 * US).window_slides());
    assert!(config(DelayUnsafe::InKernel).window_slides());
}

#[test]
fn preemptions_behind_the_turns_end_slide_the_window_back_and_those_before_it_forwards() {
    let config = config(DelayUnsafe::InKernel);
    let begin_after = |offset_ns: u64| {
        let state = (0..20).fold(DelayState::default(), |state, _| {
            let window = state.window_around(&config, NOW);
            let seen = DelayObservation { window, now_ns: window.begin_ns + offset_ns, ..Default::default() };
            state.after_turn(&config, &seen, DelayVerdict::EndsSafe)
        });
        state.window_around(&config, NOW).begin_ns
    };
    assert_eq!(begin_after(0), NOW, "always safe at once: nobody is preempted early");
    assert_eq!(begin_after(300 * US), NOW - 300 * US);
    assert_eq!(begin_after(MS), NOW - MS, "never safe: the window ends where the turn does");
    assert_eq!(DelayState::default().window_around(&config, NOW).begin_ns, NOW - MS / 2);
}

#[test]
fn a_turn_that_outlasts_its_window_counts_as_the_window() {
    let config = config(DelayUnsafe::InKernel);
    let after = |late_ns| {
        let seen = seen(NOW + MS + late_ns, GuestClass::User);
        DelayState::default().after_turn(&config, &seen, DelayVerdict::EndsForced)
    };
    assert_eq!(after(0).offset_sum_ns, MS);
    assert_eq!(after(7 * MS).offset_sum_ns, MS);
}

#[test]
fn a_vcpu_that_keeps_its_pcpu_until_it_is_taken_away_ends_some_turns_early_and_untimely() {
    let config = config(DelayUnsafe::WhereHinted);
    let mut state = DelayState::default();
    let mut penalties = Vec::new();
    for _ in 0..8 {
        let window = state.window_around(&config, NOW);
        let seen = DelayObservation { window, now_ns: window.end_ns, hint_ns: MS, ..Default::default() };
        state = state.after_turn(&config, &seen, DelayVerdict::EndsForced);
        penalties.push(state.penalty_turns);
        let untimely = state.window_around(&config, NOW);
        assert_eq!((untimely.begin_ns, untimely.end_ns), (NOW - MS, NOW - MS));
        assert_eq!(state.window_from(&config, NOW).end_ns, NOW, "nor is a preemption put off");
        while state.penalty_turns > 0 {
            let window = state.window_around(&config, NOW);
            let seen =
                DelayObservation { window, now_ns: window.begin_ns, hint_ns: MS, ..Default::default() };
            state = state.after_turn(&config, &seen, DelayVerdict::EndsForced);
        }
    }
    assert_eq!(penalties, [2, 4, 8, 16, 32, 64, 64, 64]);
    let seen = DelayObservation {
        window: DelayWindow { begin_ns: NOW, end_ns: NOW + MS },
        now_ns: NOW,
        ..Default::default()
    };
    state = state.after_turn(&config, &seen, DelayVerdict::EndsSafe);
    assert_eq!((state.overdrawn, state.penalty_turns), (0, 0), "it is forgiven");
}

#[test]
fn nonsense_divides_by_nothing_and_leads_nowhere() {
    for history in [0, 1, DelayConfig::HISTORY_MAX, u32::MAX] {
        let config = DelayConfig { history, window_ns: u64::MAX, ..config(DelayUnsafe::InKernel) };
        let mut state = DelayState { oldest: u32::MAX, ..DelayState::default() };
        for _ in 0..40 {
            let window = state.window_around(&config, NOW);
            let length_ns = window.end_ns.wrapping_sub(window.begin_ns);
            assert_eq!(length_ns, DelayConfig::WINDOW_MAX_NS);
            let seen = DelayObservation { window, now_ns: NOW.wrapping_mul(3), ..Default::default() };
            state = state.after_turn(&config, &seen, DelayVerdict::EndsSafe);
            assert!(state.oldest < DelayConfig::HISTORY_MAX);
        }
    }
}

/// What a guest does at the end of a turn: for how long it is unsafe from the window's begin on.
fn behaviour() -> impl Strategy<Value = (u64, u64)> {
    let length = 0..3 * MS;
    (length.clone(), length)
}

/// The mean of 1,000 turns of a guest that changes between two behaviours every so many turns.
fn mean_turn_ns(config: &DelayConfig, (calm, busy): (u64, u64), every: usize) -> f64 {
    let (mut state, mut now, mut ran) = (DelayState::default(), NOW, 0);
    for turn in 0..1000 {
        let window = state.window_around(config, now + TURN_NS);
        let unsafe_until = window.begin_ns + if (turn / every).is_multiple_of(2) { calm } else { busy };
        let mut look_at = window.begin_ns;
        let (seen, verdict) = loop {
            let in_kernel = look_at < unsafe_until;
            let seen = DelayObservation {
                window,
                now_ns: look_at,
                guest_class: if in_kernel { GuestClass::KernelOther } else { GuestClass::User }.into(),
                hint_ns: if in_kernel { u64::MAX } else { 0 },
                ..Default::default()
            };
            let decision = decide_on_delay(config, &seen);
            match decision.verdict.get().expect("a verdict") {
                DelayVerdict::GoesOn if config.look_ns == 0 => {
                    look_at = unsafe_until.min(decision.look_at_ns)
                }
                DelayVerdict::GoesOn => look_at = decision.look_at_ns,
                verdict => break (seen, verdict),
            }
        };
        ran += seen.now_ns - now;
        now = seen.now_ns;
        state = state.after_turn(config, &seen, verdict);
    }
    ran as f64 / 1000.0
}

proptest! {
    #[test]
    fn grace_ends_whatever_is_seen(
        class in 0u32..12,
        answer in 0u32..5,
        given in 0u64..200,
        micro_slices in 0u32..101,
        micro_slice_ns in 1u64..=3 * MS,
    ) {
        let config = DelayConfig::of_grace(micro_slices, micro_slice_ns);
        let seen = DelayObservation {
            window: config.window_of_grace(),
            now_ns: given * micro_slice_ns,
            guest_class: Code::raw(class),
            answer: Code::raw(answer),
            ..Default::default()
        };
        prop_assert!(verdict(&config, &seen) != DelayVerdict::GoesOn || given < u64::from(micro_slices));
    }

    #[test]
    fn turns_are_as_long_as_due_on_average_whatever_the_guest_does(
        behaviour in behaviour(),
        every in 1usize..600,
        history in 1u32..=DelayConfig::HISTORY_MAX,
        window_ns in 10 * US..=TURN_NS,
        look_ns in prop_oneof![Just(0), 10 * US..200 * US],
        critical in prop::bool::ANY,
    ) {
        let unsafe_where = if critical { DelayUnsafe::InCriticalCode } else { DelayUnsafe::InKernel };
        let config = DelayConfig { window_ns, look_ns, history, unsafe_where: unsafe_where.into() };
        let mean_ns = mean_turn_ns(&config, behaviour, every);
        prop_assert!((mean_ns / TURN_NS as f64 - 1.0).abs() <= 0.01, "{mean_ns} ns");
    }

    #[test]
    fn a_guest_gains_nothing_by_its_hints(
        behaviour in behaviour(),
        every in 1usize..600,
        window_ns in 10 * US..=TURN_NS,
    ) {
        let config = DelayConfig { window_ns, ..config(DelayUnsafe::WhereHinted) };
        let mean_ns = mean_turn_ns(&config, behaviour, every);
        prop_assert!(mean_ns <= 1.01 * TURN_NS as f64, "{mean_ns} ns");
        // Half of the window long it is unsafe at the most: nobody ever takes its pCPU away, and it has what
        // is due.
        let honest = mean_turn_ns(&config, (behaviour.0 % window_ns, behaviour.1 % window_ns), every);
        prop_assert!((honest / TURN_NS as f64 - 1.0).abs() <= 0.01, "{honest} ns");
    }
}
