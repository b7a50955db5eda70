use microslice_policy::*;
use proptest::prelude::*;

const SLICE_NS: u64 = 100_000;
const FIRST_REST_NS: u64 = HEIR_REST_NS as u64;
const LONGEST_REST_NS: u64 = FIRST_REST_NS << HEIR_REST_DOUBLINGS;

fn seen(now_ns: u64, waiter_count: u32) -> HeirObservation {
    HeirObservation { now_ns, waiter_count, ..HeirObservation::default() }
}

fn decide(state: &HeirState, seen: &HeirObservation) -> HeirDecision {
    decide_on_heir(state, seen).decision.get().expect("a decision")
}

/// What is known after a trial.
fn after(state: &HeirState, trial: HeirTrial, seen: HeirObservation) -> HeirState {
    decide_on_heir(state, &HeirObservation { trial: trial.into(), ..seen }).state
}

#[test]
fn a_stopped_waiter_is_tried_where_nobody_holds_anything() {
    let fresh = HeirState::default();
    let waiting = seen(5, 3);
    assert_eq!(decide(&fresh, &waiting), HeirDecision::Try);
    assert_eq!(decide(&fresh, &seen(5, 0)), HeirDecision::NoWaiter);
    let held = HeirObservation { holder_count: 1, ..waiting };
    assert_eq!(decide(&fresh, &held), HeirDecision::Held);
    let under_way = HeirObservation { helped_count: 1, ..waiting };
    assert_eq!(decide(&fresh, &under_way), HeirDecision::UnderWay);
}

#[test]
fn only_stopped_waiters_are_heirs() {
    for &state in VcpuState::ALL {
        for &class in GuestClass::ALL {
            let waits = state == VcpuState::Runnable && class == GuestClass::LockWaiter;
            assert_eq!(sibling_may_be_heir(state, class), waits, "{state:?} {class:?}");
        }
    }
}

#[test]
fn a_running_vcpu_may_hold_unless_it_was_seen_waiting() {
    let may_hold = |count, class| sibling_may_hold(VcpuState::Running, count, class);
    assert!(may_hold(1, GuestClass::User), "its class is that of an earlier look");
    assert!(!may_hold(1, GuestClass::LockWaiter));
    assert!(
        !may_hold(0x8000_0000, GuestClass::KernelOther),
        "that bit says only that nothing is to be scheduled"
    );
    assert!(!sibling_may_hold(VcpuState::Blocked, 1, GuestClass::LockHolder));
    assert!(sibling_may_hold(VcpuState::Runnable, 1, GuestClass::KernelOther));
    assert!(!sibling_may_hold(VcpuState::Runnable, 1, GuestClass::Idle));
    assert!(!sibling_may_hold(VcpuState::Runnable, 0x10000, GuestClass::IrqHandler), "a handler alone");
    assert!(sibling_may_hold(VcpuState::Runnable, 0x10001, GuestClass::IrqHandler));
}

#[test]
fn who_left_its_wait_or_ran_long_was_the_heir() {
    assert_eq!(heir_trial_of(GuestClass::LockWaiter, HEIR_WAIT_SEEN_NS as u64), HeirTrial::InVain);
    assert_eq!(heir_trial_of(GuestClass::LockWaiter, HEIR_WAIT_SEEN_NS as u64 + 1), HeirTrial::Found);
    assert_eq!(heir_trial_of(GuestClass::User, 0), HeirTrial::Found);
}

#[test]
fn rounds_in_vain_are_followed_by_rests_that_double() {
    let mut state = HeirState::default();
    for round in 0..8u32 {
        for trial in 0..=2 {
            assert_eq!(state.tried, trial);
            state = after(&state, HeirTrial::InVain, seen(1_000, 2));
        }
        let rest_ns = FIRST_REST_NS << round.min(HEIR_REST_DOUBLINGS);
        assert_eq!(state.rest_until_ns, 1_000 + rest_ns);
        assert_eq!(decide(&state, &seen(999 + rest_ns, 2)), HeirDecision::Rests);
        assert_eq!(decide(&state, &seen(1_000 + rest_ns, 2)), HeirDecision::Try);
    }
    assert_eq!(after(&state, HeirTrial::None, seen(0, 2)), state);
    assert_eq!(after(&state, HeirTrial::Found, seen(0, 2)), HeirState::default());
}

#[test]
fn a_vcpu_that_always_holds_something_is_not_asked_for() {
    let mut in_a_row = 0;
    for _ in 0..HOLDS_ALWAYS {
        assert!(!holds_always(in_a_row));
        in_a_row = holds_in_a_row(in_a_row, Held::Preemption);
    }
    assert!(holds_always(in_a_row));
    assert_eq!(holds_in_a_row(in_a_row, Held::Hardirq), HOLDS_ALWAYS);
    assert_eq!(holds_in_a_row(in_a_row, Held::Nothing), 0);
}

proptest! {
    /// A guest whose waiters never get a lock has a round of trials a rest, and in the long run one in 16 ms.
    #[test]
    fn trials_in_vain_are_bounded(waiters in 1u32..64, looks in 2_000usize..20_000) {
        let (mut state, mut trials) = (HeirState::default(), 0u64);
        for look in 0..looks as u64 {
            let seen = seen(look * SLICE_NS, waiters);
            if decide(&state, &seen) == HeirDecision::Try {
                trials += 1;
                state = after(&state, HeirTrial::InVain, seen);
            }
        }
        let rounds = u64::from(HEIR_REST_DOUBLINGS) + 1 + looks as u64 * SLICE_NS / LONGEST_REST_NS;
        prop_assert!(trials <= (rounds + 1) * u64::from(waiters + 1), "{} trials", trials);
    }

    #[test]
    fn whatever_the_state_somebody_who_may_hold_ends_the_search(
        (rest_until_ns, now_ns) in any::<(u64, u64)>(), (tried, vain_rounds) in any::<(u32, u32)>(),
        (waiters, holders, helped) in (any::<u32>(), 1u32.., any::<u32>()),
    ) {
        let state = HeirState { rest_until_ns, tried, vain_rounds };
        let seen = HeirObservation {
            now_ns, waiter_count: waiters, holder_count: holders, helped_count: helped, ..Default::default()
        };
        prop_assert_ne!(decide(&state, &seen), HeirDecision::Try);
        let next = after(&HeirState { tried: tried / 2, ..state }, HeirTrial::InVain, seen);
        let rest_ns = next.rest_until_ns.wrapping_sub(now_ns);
        prop_assert!(next.rest_until_ns == rest_until_ns || rest_ns <= LONGEST_REST_NS);
    }
}
