//! Boosts beside the kernel's own scheduler: which VM may have one, and what one gains that asks all the
//! time.

use microslice_policy::*;
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
/// The monotonic clock of a host that has been up for a while.
const NOW: u64 = 5_000 * SECOND;
const CONFIG: BoostConfig =
    BoostConfig { burst_ns: SECOND, vm_percent: 1, host_percent: 5, pcpu_count: 4, reserved: 0 };

fn asked() -> BoostObservation {
    BoostObservation { now_ns: NOW, is_seen: 1, ..Default::default() }
}

#[test]
fn a_vm_that_has_budget_left_is_granted_a_boost() {
    assert_eq!(decide_on_boost(&CONFIG, &asked()), BoostDecision::Granted);
    let spent = BoostObservation { vm_clock_ns: NOW, ..asked() };
    assert_eq!(decide_on_boost(&CONFIG, &spent), BoostDecision::Granted, "the very end of it");
}

#[test]
fn threads_that_the_operator_cares_for_are_never_boosted() {
    let real_time = BoostObservation { is_real_time: 1, ..asked() };
    assert_eq!(decide_on_boost(&CONFIG, &real_time), BoostDecision::RealTime);
    let pinned = BoostObservation { is_pinned: 1, ..asked() };
    assert_eq!(decide_on_boost(&CONFIG, &pinned), BoostDecision::Pinned);
    let unseen = BoostObservation { is_seen: 0, ..asked() };
    assert_eq!(decide_on_boost(&CONFIG, &unseen), BoostDecision::NotSeen);
}

#[test]
fn a_vm_that_has_used_up_its_budget_is_refused_until_time_has_repaid_it() {
    let spent = BoostObservation { vm_clock_ns: NOW + 1, ..asked() };
    assert_eq!(decide_on_boost(&CONFIG, &spent), BoostDecision::OverBudget);
    let later = BoostObservation { now_ns: NOW + 1, ..spent };
    assert_eq!(decide_on_boost(&CONFIG, &later), BoostDecision::Granted);
    let none = BoostConfig { vm_percent: 0, ..CONFIG };
    assert_eq!(decide_on_boost(&none, &asked()), BoostDecision::OverBudget);
}

#[test]
fn where_the_hosts_budget_is_used_up_nobody_is_boosted() {
    let behind = BoostObservation { vm_clock_ns: 0, host_clock_ns: NOW + 1, ..asked() };
    assert_eq!(decide_on_boost(&CONFIG, &behind), BoostDecision::HostSpent);
    let later = BoostObservation { now_ns: NOW + 1, ..behind };
    assert_eq!(decide_on_boost(&CONFIG, &later), BoostDecision::Granted, "time repays");
}

#[test]
fn half_of_a_budget_is_for_whom_others_wait_for() {
    let half_spent = BoostObservation { vm_clock_ns: NOW - SECOND / 2 + 1, ..asked() };
    let woken = BoostObservation { is_woken: 1, ..half_spent };
    assert_eq!(decide_on_boost(&CONFIG, &half_spent), BoostDecision::Granted);
    assert_eq!(decide_on_boost(&CONFIG, &woken), BoostDecision::VmAhead);
    let earlier = BoostObservation { vm_clock_ns: NOW - SECOND / 2, ..woken };
    assert_eq!(decide_on_boost(&CONFIG, &earlier), BoostDecision::Granted);
}

#[test]
fn the_last_tenth_of_the_hosts_budget_is_for_those_that_have_half_of_their_own() {
    let soon_spent = BoostObservation { host_clock_ns: NOW - SECOND / 10 + 1, ..asked() };
    let ahead = BoostObservation { vm_clock_ns: NOW - SECOND / 2 + 1, ..soon_spent };
    assert_eq!(decide_on_boost(&CONFIG, &ahead), BoostDecision::VmAhead);
    let behind = BoostObservation { vm_clock_ns: NOW - SECOND / 2, ..soon_spent };
    assert_eq!(decide_on_boost(&CONFIG, &behind), BoostDecision::Granted);
    let enough = BoostObservation { host_clock_ns: NOW - SECOND / 10, ..ahead };
    assert_eq!(decide_on_boost(&CONFIG, &enough), BoostDecision::Granted);
}

#[test]
fn a_boost_costs_the_time_in_which_the_budget_gives_as_much() {
    // 1 % of four pCPUs are 40 ms a second.
    assert_eq!(boost_cost(&CONFIG, 1, 40 * MS), SECOND);
    assert_eq!(boost_cost(&CONFIG, 5, 40 * MS), SECOND / 5);
    assert_eq!(boost_cost(&CONFIG, 0, 1), SECOND);
}

proptest! {
    /// Whatever it asks, and whenever: over a minute it has its budget and one burst, and overdraws by a
    /// slice at most.
    #[test]
    fn a_vm_that_asks_all_the_time_has_no_more_than_its_budget(
        percent in 1u32..=50,
        pcpus in 1u32..=256,
        slice_us in 10u64..=100_000,
        gaps in prop::collection::vec(0u64..=50 * MS, 1..200),
    ) {
        let config = BoostConfig { vm_percent: percent, pcpu_count: pcpus, ..CONFIG };
        let (slice, start) = (slice_us * 1000, NOW);
        let (mut now, mut clock, mut had) = (start, 0, 0u64);
        for gap in gaps.iter().cycle().take(20_000) {
            let seen = BoostObservation { now_ns: now, vm_clock_ns: clock, ..asked() };
            if decide_on_boost(&config, &seen) == BoostDecision::Granted {
                now += slice;
                had += slice;
                clock = boost_clock(&config, now, clock) + boost_cost(&config, percent, slice);
            }
            now += gap + 1;
        }
        let allowed = (now - start + config.burst_ns) as u128 * u128::from(percent * pcpus) / 100;
        // Each cost is rounded down by less than a nanosecond.
        prop_assert!(u128::from(had) <= allowed + u128::from(slice) + 20_000 * u128::from(percent * pcpus) / 100 + 1);
    }

    /// However many VMs ask all the time, together they have the host's budget and one burst, and overdraw by
    /// a slice at most.
    #[test]
    fn all_vms_together_have_no_more_than_the_hosts_budget(
        vms in 1usize..=40,
        percent in 1u32..=50,
        pcpus in 1u32..=256,
        slice_us in 10u64..=100_000,
        gaps in prop::collection::vec(0u64..=5 * MS, 1..200),
        who in prop::collection::vec(any::<prop::sample::Index>(), 1..200),
    ) {
        let host_percent = (5 * percent).min(50);
        let config = BoostConfig { vm_percent: percent, host_percent, pcpu_count: pcpus, ..CONFIG };
        let slice = slice_us * 1000;
        let (mut now, mut clocks, mut host_clock, mut had) = (NOW, vec![0; vms], 0, 0u64);
        for (gap, who) in gaps.iter().cycle().zip(who.iter().cycle()).take(20_000) {
            let clock = &mut clocks[who.index(vms)];
            let seen =
                BoostObservation { now_ns: now, vm_clock_ns: *clock, host_clock_ns: host_clock, ..asked() };
            if decide_on_boost(&config, &seen) == BoostDecision::Granted {
                // On many pCPUs: little time passes until the next one asks, or none.
                had += slice;
                *clock = boost_clock(&config, now, *clock) + boost_cost(&config, percent, slice);
                host_clock =
                    boost_clock(&config, now, host_clock) + boost_cost(&config, host_percent, slice);
            }
            now += gap;
        }
        let parts = u128::from(host_percent * pcpus);
        let allowed = (now - NOW + config.burst_ns) as u128 * parts / 100;
        // Each cost is rounded down by less than a nanosecond.
        prop_assert!(u128::from(had) <= allowed + u128::from(slice) + 20_000 * parts / 100 + 1);
    }

    /// No clock, however far off, makes a decision that isn't one.
    #[test]
    fn any_observation_has_a_decision(
        now_ns: u64, vm_clock_ns: u64, host_clock_ns: u64, is_seen: u32, is_real_time: u32, is_pinned: u32,
        is_woken: u32, burst_ns: u64, vm_percent: u32, host_percent: u32, pcpu_count: u32, ran_ns: u64,
    ) {
        let config = BoostConfig { burst_ns, vm_percent, host_percent, pcpu_count, reserved: 0 };
        let seen = BoostObservation {
            now_ns, vm_clock_ns, host_clock_ns, is_seen, is_real_time, is_pinned, is_woken,
            for_bound: 0, reserved: 0,
        };
        let decision = decide_on_boost(&config, &seen);
        if decision == BoostDecision::Granted {
            prop_assert!(is_seen != 0 && is_real_time == 0 && is_pinned == 0);
        }
        boost_cost(&config, vm_percent, ran_ns);
    }
}
