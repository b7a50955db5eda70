//! What a stopped vCPU holds by its guest's own count, and when that is believed (`policy/held.h`).

use microslice_policy::*;
use proptest::prelude::*;

const NO_RESCHED: u32 = 1 << 31;
const PREEMPTION: u32 = 1;
const SOFTIRQ: u32 = 1 << 8;
const BH_OFF: u32 = 2 << 8;
const HARDIRQ: u32 = 1 << 16;
const KINDS: usize = BELIEF_KINDS as usize;
const ENOUGH: usize = BELIEF_LOOKS as usize;

fn any_class() -> impl Strategy<Value = GuestClass> {
    proptest::sample::select(GuestClass::ALL)
}

fn stopped_in(class: GuestClass, count: u32, belief: CountBelief) -> CountDecision {
    let look = CountLook { count, guest_class: class.into() };
    decide_on_count(&CountObservation { critical_by: CriticalBy::Counter.into(), reserved: 0, belief, look })
}

/// What is believed of a guest after these looks.
fn after(looks: impl IntoIterator<Item = (GuestClass, u32)>) -> CountBelief {
    let look = |belief, (class, count)| stopped_in(class, count, belief).belief;
    looks.into_iter().fold(CountBelief::default(), look)
}

/// A guest whose words are as a kernel's.
fn honest(looks: usize) -> impl Iterator<Item = (GuestClass, u32)> {
    let turns = [(GuestClass::User, 0), (GuestClass::Idle, 1), (GuestClass::KernelOther, HARDIRQ)];
    turns.into_iter().cycle().take(looks)
}

fn believed() -> CountBelief {
    let belief = after(honest(3 * ENOUGH));
    assert_eq!(belief.belief, Belief::Believed.into());
    belief
}

#[test]
fn each_part_of_a_count_is_told_apart() {
    let cases = [
        (0, Held::Nothing),
        (PREEMPTION, Held::Preemption),
        (3 * PREEMPTION, Held::Preemption),
        (BH_OFF, Held::Bh),
        (BH_OFF | PREEMPTION, Held::Preemption),
        (SOFTIRQ, Held::Softirq),
        (SOFTIRQ | BH_OFF, Held::Softirq),
        (SOFTIRQ | BH_OFF | PREEMPTION, Held::Preemption),
        (HARDIRQ, Held::Hardirq),
        (HARDIRQ | SOFTIRQ | PREEMPTION, Held::Preemption),
        (1 << 20, Held::Hardirq),
        (1 << 24, Held::Unknown),
        (COUNT_PREEMPTION_MAX + 1, Held::Unknown),
    ];
    for (count, held) in cases {
        for resched in [0, NO_RESCHED] {
            let class = GuestClass::KernelOther;
            assert_eq!(held_by_count(count | resched, class), held, "{count:#x}");
        }
    }
}

#[test]
fn a_class_by_counter_says_who_holds() {
    let by = |by: CriticalBy, class: GuestClass, count| {
        let look = CountLook { count, guest_class: class.into() };
        let seen = CountObservation { critical_by: by.into(), reserved: 0, belief: believed(), look };
        decide_on_count(&seen).guest_class.get().expect("a class")
    };
    let (other, holder) = (GuestClass::KernelOther, GuestClass::LockHolder);
    assert_eq!(by(CriticalBy::Symbols, other, PREEMPTION), other);
    assert_eq!(by(CriticalBy::Symbols, holder, 0), holder);
    for critical_by in [CriticalBy::Counter, CriticalBy::Both] {
        assert_eq!(by(critical_by, other, PREEMPTION), holder);
        assert_eq!(by(critical_by, GuestClass::IrqHandler, HARDIRQ), GuestClass::IrqHandler);
        assert_eq!(by(critical_by, GuestClass::LockWaiter, PREEMPTION), GuestClass::LockWaiter);
    }
    assert_eq!(by(CriticalBy::Counter, holder, 0), other);
    assert_eq!(by(CriticalBy::Both, holder, 0), holder);
}

#[test]
fn belief_takes_enough_right_looks_of_each_kind() {
    assert_eq!(after(honest(3 * ENOUGH - 3)).belief, Belief::Open.into());
    assert_eq!(after(honest(3 * ENOUGH)).belief, Belief::Believed.into());
    let in_user_mode = after((0..1000).map(|_| (GuestClass::User, NO_RESCHED)));
    assert_eq!(in_user_mode.belief, Belief::Open.into());
    let idle = after((0..1000).map(|_| (GuestClass::Idle, 1)));
    assert_eq!(idle.belief, Belief::Open.into());
}

/// VMs that wait for a lock all the time are seldom stopped in user mode: of 2,000 stops 13 were.
#[test]
fn a_vm_that_waits_nearly_always_is_believed_soon() {
    let looks = (0..700).map(|at| match at % 154 {
        0 => (GuestClass::User, 0),
        _ => (GuestClass::LockWaiter, 1),
    });
    assert_eq!(after(looks).belief, Belief::Believed.into());
}

#[test]
fn belief_begins_only_once_no_doubt_is_left() {
    let wrong = after([(GuestClass::User, 1)]);
    let doubtful = |looks| {
        honest(looks).fold(wrong, |belief, (class, count)| stopped_in(class, count, belief).belief).belief
    };
    let costs = BELIEF_WRONG_COSTS as usize;
    assert!(ENOUGH < costs, "else it takes more right looks anyway");
    assert_eq!(doubtful(3 * costs - 3), Belief::Open.into());
    assert_eq!(doubtful(3 * costs), Belief::Believed.into());
}

#[test]
fn a_lost_belief_stays_lost() {
    let lost = (0..40).fold(believed(), |belief, _| stopped_in(GuestClass::User, 1, belief).belief);
    assert_eq!(lost.belief, Belief::Lost.into());
    let later = honest(1000).fold(lost, |belief, (class, count)| stopped_in(class, count, belief).belief);
    assert_eq!(later.belief, Belief::Lost.into());
    assert_eq!(stopped_in(GuestClass::KernelOther, PREEMPTION, later).held, Held::Unknown.into());
}

#[test]
fn waiters_that_count_nothing_now_and_then_are_borne() {
    // Of 5,850 stops in code of this class 243 counted nothing, in guests whose words were right.
    let waiter = |at| (GuestClass::LockWaiter, u32::from(at % 24 != 0));
    let looks = (0..100_000).flat_map(|at| [waiter(at), (GuestClass::User, 0)]);
    assert_eq!(after(looks).belief, Belief::Believed.into());
}

#[test]
fn constant_words_are_not_believed() {
    for constant in [0, 1, NO_RESCHED, u32::MAX] {
        let classes = [GuestClass::User, GuestClass::Idle, GuestClass::LockWaiter, GuestClass::KernelOther];
        let belief = after(classes.into_iter().cycle().take(4000).map(|class| (class, constant)));
        assert_eq!(belief.belief, Belief::Lost.into(), "{constant:#x}");
        let one_kind = after((0..4000).map(|_| (GuestClass::User, constant)));
        assert_ne!(one_kind.belief, Belief::Believed.into(), "{constant:#x}");
    }
}

proptest! {
    #[test]
    fn random_words_are_not_believed(words in proptest::collection::vec((any_class(), any::<u32>()), 1..400)) {
        prop_assert_ne!(after(words).belief, Belief::Believed.into());
    }

    /// Words of another place in a kernel: small numbers, pointers' halves, mostly zeros.
    #[test]
    fn words_of_another_place_are_not_believed(
        words in proptest::collection::vec((any_class(), 0u32..4), 200..600),
    ) {
        prop_assert_ne!(after(words).belief, Belief::Believed.into());
    }

    #[test]
    fn nothing_is_held_before_belief(class in any_class(), count: u32, looks in 0..3 * ENOUGH - 3) {
        let decision = stopped_in(class, count, after(honest(looks)));
        prop_assert_eq!(decision.held, Held::Unknown.into());
        prop_assert_eq!(decision.guest_class, class.into());
    }

    #[test]
    fn waiters_senders_idlers_and_users_hold_nothing(count: u32) {
        let classes =
            [GuestClass::User, GuestClass::LockWaiter, GuestClass::TlbShootdown, GuestClass::Idle];
        for class in classes {
            prop_assert!(matches!(held_by_count(count, class), Held::Nothing | Held::Unknown));
        }
        prop_assert_eq!(held_by_count(count, GuestClass::Unknown), Held::Unknown);
    }

    #[test]
    fn a_count_never_takes_another_critical_class_away(class in any_class(), count: u32) {
        let decided = stopped_in(class, count, believed()).guest_class.get().expect("a class");
        if class_is_critical(class) && class != GuestClass::LockHolder {
            prop_assert_eq!(decided, class);
        }
        let is_raised = decided != class && class_is_critical(decided);
        prop_assert!(!is_raised || !matches!(class, GuestClass::User | GuestClass::Idle | GuestClass::LockWaiter));
    }

    /// Whatever words come: tallies stay within bounds.
    #[test]
    fn belief_never_overflows(words in proptest::collection::vec((any_class(), any::<u32>()), 0..2000)) {
        let belief = after(words);
        for kind in 0..KINDS {
            prop_assert!(belief.right[kind] <= BELIEF_LOOKS);
            prop_assert!(belief.doubt[kind] <= BELIEF_DOUBT_MAX + BELIEF_WRONG_COSTS);
        }
    }

    #[test]
    fn who_may_hold_a_lock_is_asked_for_by_counter_alone(held in proptest::sample::select(Held::ALL)) {
        let holds = held == Held::Preemption;
        prop_assert!(!holder_is_asked_for(CriticalBy::Symbols, held));
        prop_assert_eq!(holder_is_asked_for(CriticalBy::Counter, held), holds);
        prop_assert_eq!(holder_is_asked_for(CriticalBy::Both, held), holds);
    }
}
