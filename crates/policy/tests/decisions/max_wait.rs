//! Bounds on waits: who is asked for, and when.

use microslice_policy::*;
use proptest::prelude::*;

const MS: u64 = 1_000_000;

fn waits(waited_ns: u64) -> WaitObservation {
    WaitObservation { bound_ns: 10 * MS, waited_ns, state: VcpuState::Runnable.into(), reserved: 0 }
}

#[test]
fn a_wait_ends_before_its_bound_and_not_long_before() {
    assert_eq!(decide_on_wait(&waits(8 * MS)), WaitDecision::GoesOn);
    assert_eq!(decide_on_wait(&waits(9 * MS)), WaitDecision::Ends);
    assert_eq!(decide_on_wait(&waits(10 * MS)), WaitDecision::Late);
}

#[test]
fn where_nobody_waits_nobody_looks_often() {
    assert_eq!(wait_next_look_ns(16 * MS, 0), 13 * MS);
    assert_eq!(wait_next_look_ns(16 * MS, 11 * MS), 2 * MS);
    assert_eq!(wait_next_look_ns(16 * MS, 100 * MS), MS);
}

#[test]
fn only_waiting_vcpus_of_bounded_vms_are_asked_for() {
    let unbounded = WaitObservation { bound_ns: 0, ..waits(u64::MAX) };
    assert_eq!(decide_on_wait(&unbounded), WaitDecision::GoesOn);
    for state in [VcpuState::Blocked, VcpuState::Running, VcpuState::Micro] {
        let elsewhere = WaitObservation { state: state.into(), ..waits(20 * MS) };
        assert_eq!(decide_on_wait(&elsewhere), WaitDecision::GoesOn);
    }
    let asked_for = WaitObservation { state: VcpuState::Pending.into(), ..waits(20 * MS) };
    assert_eq!(decide_on_wait(&asked_for), WaitDecision::Helped);
}

#[test]
fn the_least_bound_leaves_half_of_the_host_to_turns() {
    assert_eq!(max_wait_least_ns(MS / 10, 800, 8), 20 * MS);
    assert_eq!(max_wait_least_ns(MS / 10, 8, 8), MS);
    assert_eq!(max_wait_least_ns(MS / 10, 8, 0), 16 * MS / 10);
}

#[test]
fn a_bound_that_nobody_chose_grows_with_demand() {
    let auto_ns = |wanting| max_wait_shared_ns(10 * MS, 5 * MS, wanting, 16);
    assert_eq!([0, 32, 33, 64, 512].map(auto_ns), [10 * MS, 10 * MS, 10_312_500, 20 * MS, 160 * MS]);
    assert_eq!(auto_ns(u32::MAX), u64::from(MAX_WAIT_MOST_NS));
    assert_eq!(max_wait_shared_ns(7 * MS, 0, 1_000, 1), 7 * MS, "one that somebody chose stays");
}

#[test]
fn long_micro_slices_lengthen_a_bound_that_nobody_chose() {
    assert_eq!([MS / 100, MS / 10, MS, 30 * MS].map(max_wait_each_ns), [5 * MS, 5 * MS, 50 * MS, 1_500 * MS]);
}

#[test]
fn a_vms_own_bound_goes_before_the_hosts() {
    assert_eq!(max_wait_of_vm_ns(0, 10 * MS, 0), 10 * MS);
    assert_eq!(max_wait_of_vm_ns(5 * MS, 10 * MS, 0), 5 * MS);
    assert_eq!(max_wait_of_vm_ns(50 * MS, 0, 0), 50 * MS, "others may wait for ever");
    assert_eq!(max_wait_of_vm_ns(MAX_WAIT_NEVER, 10 * MS, 0), 0, "it may wait for ever");
}

#[test]
fn own_bounds_leave_half_of_the_host_to_turns() {
    assert_eq!(max_wait_least_now_ns(MS / 10, 800, 8), 20 * MS);
    assert_eq!(max_wait_of_vm_ns(5 * MS, 10 * MS, max_wait_least_now_ns(MS / 10, 800, 8)), 20 * MS);
    assert_eq!(max_wait_least_now_ns(MS, u32::MAX, 1), u64::from(MAX_WAIT_MOST_NS));
}

#[test]
fn looks_that_take_long_are_rare() {
    let took_ns = 3 * MS;
    assert_eq!(took_ns + wait_look_pause_ns(took_ns), 16 * took_ns);
}

proptest! {
    /// Looks come when the policy says, and no later than a sixteenth of the bound; whoever is helped within
    /// another one keeps its bound.
    #[test]
    fn whoever_is_asked_for_in_time_keeps_its_bound(
        bound_ns in u64::from(MAX_WAIT_LEAST_NS)..=u64::from(MAX_WAIT_MOST_NS),
        // Since it began to wait, of all that the host may wait without a look.
        first_look in 0u64..=1_000,
        late in 0u64..=1_000,
    ) {
        let late_ns = bound_ns / 16 * late / 1_000;
        let mut waited_ns = wait_next_look_ns(bound_ns, 0) * first_look / 1_000 + late_ns;
        loop {
            let seen = WaitObservation { bound_ns, waited_ns, ..waits(0) };
            match decide_on_wait(&seen) {
                WaitDecision::GoesOn => waited_ns += wait_next_look_ns(bound_ns, waited_ns) + late_ns,
                decision => {
                    prop_assert_eq!(decision, WaitDecision::Ends);
                    break;
                }
            }
        }
        prop_assert!(waited_ns + bound_ns / 16 <= bound_ns, "{waited_ns} of {bound_ns}");
        prop_assert!(waited_ns * 16 >= bound_ns * 13 - 16, "not long before it has to: {waited_ns} of {bound_ns}");
    }
}

/// Another CPU sets when a wait began, also after this one has read its clock.
#[test]
fn a_wait_that_begins_after_now_has_no_length() {
    assert_eq!(elapsed_ns(5, 7), 2);
    assert_eq!(elapsed_ns(7, 5), 0);
}
