use microslice_policy::*;
use proptest::prelude::*;

fn bit(kind: InterruptKind) -> u8 {
    1 << kind as u8
}

#[test]
fn a_waiting_vcpu_is_wanted_for_its_most_urgent_interrupt() {
    use InterruptKind::{IpiCallFunction, IpiReschedule, Other, Timer, Virq};
    let wanted = |pending| interrupt_by_look(VcpuState::Runnable, pending);
    assert_eq!(wanted(bit(IpiReschedule) | bit(Virq) | bit(IpiCallFunction)), IpiCallFunction);
    assert_eq!(wanted(bit(IpiReschedule) | bit(Virq) | bit(Timer)), Virq);
    assert_eq!([wanted(bit(IpiReschedule)), wanted(bit(Timer)), wanted(0)], [IpiReschedule, Other, Other]);
    for state in [VcpuState::Blocked, VcpuState::Running, VcpuState::Pending, VcpuState::Micro] {
        assert_eq!(interrupt_by_look(state, u8::MAX), Other, "{state:?}: nobody can help it");
    }
}

proptest! {
    /// Whatever looks find, a round of them leaves nobody out, and is over within its bound.
    #[test]
    fn a_round_of_looks_reaches_every_place(count in 1_u32..5_000, finds in prop::collection::vec(0_u32..3, 200)) {
        let mut state = LookState::default();
        let mut reached = 0;
        for found in finds {
            prop_assert_eq!(state.next, if reached < count { reached } else { 0 }, "no place is left out");
            reached = state.next + LOOK_MAX;
            let before_ns = state.interval_ns;
            state = look_after(&state, count, found);
            let interval_ns = state.interval_ns;
            prop_assert!((u64::from(LOOK_LEAST_NS)..=u64::from(LOOK_MOST_NS)).contains(&interval_ns));
            prop_assert!(found == 0 || interval_ns == u64::from(LOOK_LEAST_NS), "who finds looks again soon");
            prop_assert!(interval_ns <= 2 * before_ns.max(u64::from(LOOK_LEAST_NS)));
        }
    }

    #[test]
    fn looks_in_vain_become_rare(count in 1_u32..200) {
        let rounds = u64::from(count.div_ceil(LOOK_MAX)) * 4;
        let state = (0..rounds).fold(LookState::default(), |state, _| look_after(&state, count, 0));
        prop_assert_eq!(state.interval_ns, u64::from(LOOK_MOST_NS));
    }
}
