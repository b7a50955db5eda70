//! Whether help brings a VM anything (`policy/worth_helping.h`).

use microslice_policy::*;
use proptest::prelude::*;

const TICK_NS: u64 = 1_000_000;
const LOOK_NS: u64 = HELP_LOOK_NS as u64;
const FIRST_NS: u64 = HELP_FIRST_NS as u64;
const HOLD_MAX_NS: u64 = HELP_HOLD_MAX_NS;

/// A VM that works at so many of a hundred ticks with help and without. Returns what was found, and for how
/// much of the time there was no help.
fn tried(with_percent: u64, without_percent: u64, ticks: u64) -> (HelpState, f64) {
    let (mut state, mut off) = (HelpState::default(), 0);
    for tick in 1..=ticks {
        let percent = if state.is_off == 0 { with_percent } else { without_percent };
        let class = if tick * 37 % 100 < percent { GuestClass::User } else { GuestClass::LockWaiter };
        let seen = HelpObservation { now_ns: tick * TICK_NS, guest_class: class.into(), reserved: 0 };
        state = decide_on_help(&state, &seen);
        off += u64::from(state.is_off != 0);
    }
    (state, off as f64 / ticks as f64)
}

#[test]
fn a_vm_that_does_better_without_help_is_left_without() {
    let (state, off) = tried(10, 60, 60_000);
    assert_eq!(state.was_off, 1);
    assert!(off > 0.9, "{off}");
}

#[test]
fn one_that_gains_by_help_is_without_it_for_a_look_of_each_trial_only() {
    let (state, off) = tried(60, 30, 60_000);
    assert_eq!((state.was_off, state.hold_ns), (0, HOLD_MAX_NS));
    // Five trials in a minute, 50 ms each.
    assert!(off > 0.0 && off < 0.006, "{off}");
}

#[test]
fn where_help_makes_no_difference_and_where_nobody_works_there_is_help() {
    for percent in [0, 50, 100] {
        let (state, off) = tried(percent, percent, 20_000);
        assert_eq!(state.was_off, 0);
        assert!(off < 0.02, "{percent} %: {off}");
    }
    assert_eq!(tried(50, 58, 60_000).0.was_off, 0, "a gain that isn't worth it");
}

#[test]
fn a_vm_that_has_just_come_is_helped_and_not_tried_yet() {
    let ticks = FIRST_NS / TICK_NS;
    assert_eq!(tried(10, 60, ticks).1, 0.0);
    assert!(tried(10, 60, ticks + 2 * LOOK_NS / TICK_NS).1 > 0.0);
}

#[test]
fn a_vm_that_slept_through_the_end_of_its_look_is_helped() {
    let seen = |now_ns| HelpObservation { now_ns, guest_class: GuestClass::User.into(), reserved: 0 };
    let look = HelpState { since_ns: 1, until_ns: 1 + LOOK_NS, look: 1, is_off: 1, ..HelpState::default() };
    let late = decide_on_help(&look, &seen(2 + 2 * LOOK_NS));
    assert_eq!((late.look, late.is_off), (HELP_LOOKS, 0));
    let few = decide_on_help(&HelpState { useful: [0, 0], ..look }, &seen(1 + LOOK_NS));
    assert_eq!((few.useful, few.is_off), ([0, 1], 0), "one sample is one of two that chance may bring");
}

proptest! {
    #[test]
    fn whatever_is_seen_looks_are_of_a_trial_and_what_holds_has_an_end(
        steps in prop::collection::vec((1u64..3_000_000_000, 0u32..GuestClass::ALL.len() as u32), 1..300)
    ) {
        let (mut state, mut now_ns) = (HelpState::default(), 0);
        for (pause_ns, class) in steps {
            now_ns += pause_ns;
            let seen = HelpObservation { now_ns, guest_class: Code::raw(class), reserved: 0 };
            state = decide_on_help(&state, &seen);
            prop_assert!(state.look <= HELP_LOOKS && state.is_off <= 1 && state.hold_ns <= HOLD_MAX_NS);
            prop_assert!(state.until_ns > now_ns && state.until_ns <= now_ns + HOLD_MAX_NS);
            prop_assert!(state.look == HELP_LOOKS || state.is_off == state.look & 1);
        }
    }
}
