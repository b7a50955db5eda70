//! The normal pool's shares: weights, charges, wake-ups.

use microslice_policy::*;
use proptest::prelude::*;

/// The default weight, of a VM with one active vCPU.
const ALONE: u64 = 100 * SHARE_SCALE as u64;

#[test]
fn a_vms_weight_is_split_over_its_active_vcpus() {
    assert_eq!(vcpu_weight(100, 1), 100 * u64::from(SHARE_SCALE));
    assert_eq!(vcpu_weight(100, 4) * 4, vcpu_weight(100, 1));
    assert_eq!(vcpu_weight(200, 4), 2 * vcpu_weight(100, 4));
}

#[test]
fn impossible_weights_fall_back_to_possible_ones() {
    assert_eq!(vcpu_weight(0, 1), vcpu_weight(WEIGHT_DEFAULT, 1));
    assert_eq!(vcpu_weight(100, 0), vcpu_weight(100, 1));
    assert_eq!(vcpu_weight(u32::MAX, 1), vcpu_weight(10_000, 1));
    assert_eq!(vcpu_weight(1, u32::MAX), 1);
}

#[test]
fn running_costs_the_time_that_it_took_at_the_default_weight_and_half_at_twice_the_weight() {
    assert_eq!(charge(30_000_000, vcpu_weight(100, 1)), 30_000_000);
    assert_eq!(charge(30_000_000, vcpu_weight(200, 1)), 15_000_000);
    assert_eq!(charge(30_000_000, vcpu_weight(100, 4)), 120_000_000);
}

#[test]
fn a_task_of_a_service_weighs_as_its_cgroup_and_its_nice_value_say() {
    assert_eq!(service_task_weight(100, 100), vcpu_weight(100, 1));
    assert_eq!(service_task_weight(300, 100), vcpu_weight(300, 1));
    assert_eq!(service_task_weight(50, 200), vcpu_weight(100, 1));
    assert_eq!(service_task_weight(0, 100), 1);
}

#[test]
fn host_tasks_owe_vcpus_what_the_outermost_weights_say_within_bounds() {
    assert_eq!(owed_to_vcpus(1_000, 0, 100), 1_000, "unknown: half");
    assert_eq!(owed_to_vcpus(1_000, 100, 100), 1_000);
    assert_eq!(owed_to_vcpus(1_000, 300, 100), 3_000);
    assert_eq!(owed_to_vcpus(1_000, 100, 200), 500);
    let most = u64::from(SIDES_RATIO_MAX);
    assert_eq!(owed_to_vcpus(1_000, 1_000_000, 1), 1_000 * most);
    assert_eq!(owed_to_vcpus(1_600, 1, u32::MAX), 100);
}

#[test]
fn a_long_sleeper_comes_back_behind_by_the_lag_limit_at_most() {
    let config = FairShareConfig::PAPER;
    let seen = WakeupObservation {
        pool_vtime_ns: 10_000_000_000,
        vcpu_vtime_ns: 5,
        weight: ALONE,
        was_blocked: 1,
        reserved: 0,
    };
    let decision = decide_on_wakeup(&config, &seen);
    assert_eq!(decision.vtime_ns, 10_000_000_000 - config.lag_max_ns);
}

#[test]
fn the_lag_limit_is_time_to_run_so_a_light_clock_may_be_behind_by_more() {
    let config = FairShareConfig::PAPER;
    let lag = |weight| {
        let seen = WakeupObservation {
            pool_vtime_ns: 1 << 60,
            vcpu_vtime_ns: 5,
            weight,
            was_blocked: 1,
            reserved: 0,
        };
        seen.pool_vtime_ns - decide_on_wakeup(&config, &seen).vtime_ns
    };
    for weight in [vcpu_weight(100, 1), vcpu_weight(100, 12), vcpu_weight(200, 3)] {
        assert_eq!(lag(weight), charge(config.lag_max_ns, weight));
    }
    assert_eq!(lag(vcpu_weight(100, 4)), 4 * config.lag_max_ns);
}

#[test]
fn one_whose_caches_are_warm_may_go_first_if_a_slice_is_what_it_is_ahead_by() {
    let config = FairShareConfig::PAPER;
    let first = u64::MAX - 5;
    for weight in [vcpu_weight(100, 1), vcpu_weight(100, 12)] {
        let ahead = |ns: u64| may_go_first(&config, first, first.wrapping_add(ns), weight);
        let slice = charge(config.slice_ns, weight);
        assert_eq!([0, slice, slice + 1].map(ahead), [true, true, false]);
    }
}

#[test]
fn warm_caches_are_not_worth_that_another_waits_for_a_tenth_of_a_slice() {
    let config = FairShareConfig::PAPER;
    let worth_it = |waited_ns| is_worth_warm_caches(&config, waited_ns);
    assert_eq!([0, config.slice_ns / 10 - 1, config.slice_ns / 10].map(worth_it), [true, true, false]);
}

#[test]
fn one_that_was_preempted_keeps_its_clock_however_far_behind_it_is() {
    // A VM of twice the weight is behind by up to a slice of the lighter one: forgiving that would take its
    // share.
    let seen = WakeupObservation {
        pool_vtime_ns: 10_000_000_000,
        vcpu_vtime_ns: 5,
        weight: ALONE,
        was_blocked: 0,
        reserved: 0,
    };
    assert_eq!(decide_on_wakeup(&FairShareConfig::PAPER, &seen).vtime_ns, 5);
}

#[test]
fn one_that_was_blocked_and_is_not_ahead_is_boosted() {
    let seen = WakeupObservation {
        pool_vtime_ns: 100,
        vcpu_vtime_ns: 100,
        weight: ALONE,
        was_blocked: 1,
        reserved: 0,
    };
    let decision = decide_on_wakeup(&FairShareConfig::PAPER, &seen);
    assert_eq!((decision.boost, decision.slice_ns), (1, FairShareConfig::PAPER.boost_slice_ns));
}

#[test]
fn one_that_was_preempted_or_overused_its_share_is_not_boosted() {
    let config = FairShareConfig::PAPER;
    let seen = WakeupObservation {
        pool_vtime_ns: 100,
        vcpu_vtime_ns: 100,
        weight: ALONE,
        was_blocked: 0,
        reserved: 0,
    };
    assert_eq!(decide_on_wakeup(&config, &seen).boost, 0);
    let ahead = WakeupObservation { vcpu_vtime_ns: 101, was_blocked: 1, ..seen };
    assert_eq!(decide_on_wakeup(&config, &ahead).boost, 0);
    let no_boost = FairShareConfig { boost_slice_ns: 0, ..config };
    let blocked = WakeupObservation { was_blocked: 1, ..seen };
    assert_eq!(decide_on_wakeup(&no_boost, &blocked).boost, 0);
}

#[test]
fn nobody_waits_for_having_been_ahead_by_more_than_a_slice() {
    // An accelerated vCPU ran half a second in the micro pool: that is its VM's debt.
    let config = FairShareConfig::PAPER;
    for (weight, was_blocked) in [(ALONE, 0), (ALONE, 1), (vcpu_weight(100, 4), 0)] {
        let ahead = 1_000_000_000 + charge(500_000_000, weight);
        let seen = WakeupObservation {
            pool_vtime_ns: 1_000_000_000,
            vcpu_vtime_ns: ahead,
            weight,
            was_blocked,
            reserved: 0,
        };
        assert_eq!(
            decide_on_wakeup(&config, &seen).vtime_ns,
            1_000_000_000 + charge(config.slice_ns, weight)
        );
    }
}

fn four(weight: u32) -> VmSize {
    VmSize { weight, vcpu_count: 4 }
}

#[test]
fn a_wide_vm_is_ahead_by_a_slice_of_each_of_its_vcpus() {
    let config = FairShareConfig::PAPER;
    let wide = VmSize { weight: 100, vcpu_count: 64 };
    let is_ahead = |slices| vm_is_ahead(&config, &wide, vm_charge(slices * config.slice_ns, 100), &wide, 0);
    assert_eq!([11, 64, 65].map(is_ahead), [false, false, true]);
}

#[test]
fn a_vm_is_ahead_by_ten_slices_of_its_own_weight() {
    let config = FairShareConfig::PAPER;
    let other = u64::MAX - 3;
    for weight in [50, 100, 300] {
        let is_ahead = |ran_ns| {
            let own = other.wrapping_add(vm_charge(ran_ns, weight));
            vm_is_ahead(&config, &four(weight), own, &four(weight), other)
        };
        assert_eq!([0, 10 * config.slice_ns, 11 * config.slice_ns].map(is_ahead), [false, false, true]);
    }
    assert!(!vm_is_ahead(&config, &four(100), u64::MAX, &four(100), 5), "it is behind");
}

#[test]
fn a_light_or_wide_vm_is_ahead_of_a_heavy_one_by_the_lag_of_that_one() {
    let config = FairShareConfig::PAPER;
    let heavy = four(300);
    // No VM is left further behind the first one than that.
    let lag = vm_charge(10 * config.slice_ns, 300);
    let furthest = 3 * lag;
    assert_eq!(vm_clock(&config, &heavy, furthest + 1, 0), 1);
    for taker in [four(100), VmSize { weight: 100, vcpu_count: 32 }, VmSize { weight: 1, vcpu_count: 1 }] {
        assert!(vm_is_ahead(&config, &taker, furthest, &heavy, 0), "{taker:?}");
        assert!(!vm_is_ahead(&config, &taker, lag, &heavy, 0), "{taker:?}");
    }
}

#[test]
fn a_vm_that_is_behind_weighs_more_until_it_has_caught_up() {
    let config = FairShareConfig::PAPER;
    let weight = vcpu_weight(100, 4);
    let behind =
        |ran_ns| catch_up_weight(&config, &four(100), weight, 1 << 50, (1 << 50) - vm_charge(ran_ns, 100));
    assert_eq!(behind(0), weight);
    let parts = |ran_ns| (behind(ran_ns) as f64 / weight as f64 * 100.0).round();
    assert_eq!(
        [5, 10, 20, 30, 300].map(|slices| parts(slices * config.slice_ns)),
        [150.0, 200.0, 300.0, 400.0, 400.0]
    );
    assert_eq!(catch_up_weight(&config, &four(100), weight, 5, 6), weight, "nobody is further ahead");
}

#[test]
fn a_vms_clock_is_left_no_further_behind_than_it_catches_up_with() {
    let config = FairShareConfig::PAPER;
    let most = 3 * vm_charge(10 * config.slice_ns, 200);
    assert_eq!(vm_clock(&config, &four(200), 1 << 50, 7), (1 << 50) - most);
    assert_eq!(vm_clock(&config, &four(200), 1 << 50, (1 << 50) - most + 1), (1 << 50) - most + 1);
    assert_eq!(vm_clock(&config, &four(200), 5, 9), 9);
}

#[test]
fn clocks_may_wrap() {
    assert!(vtime_before(u64::MAX, 5));
    assert!(!vtime_before(5, u64::MAX));
    assert!(!vtime_before(5, 5));
}

proptest! {
    #[test]
    fn the_vcpu_that_is_furthest_behind_runs_and_shares_follow_weights(
        weights in proptest::collection::vec((1u32..=400, 1u32..=6), 2..5),
    ) {
        // One pCPU, every vCPU always runnable: after many slices each VM has its weight's part of the time.
        let slice_ns = 1_000_000;
        let mut vcpus: Vec<(usize, u64, u64)> = Vec::new();
        for (vm, (weight, count)) in weights.iter().enumerate() {
            vcpus.extend((0..*count).map(|_| (vm, 0, vcpu_weight(*weight, *count))));
        }
        let mut received = vec![0u64; weights.len()];
        let slices = 40_000;
        for _ in 0..slices {
            let next = vcpus.iter_mut().min_by_key(|vcpu| vcpu.1).unwrap();
            next.1 += charge(slice_ns, next.2);
            received[next.0] += 1;
        }
        let total: u32 = weights.iter().map(|(weight, _)| weight).sum();
        for (vm, (weight, count)) in weights.iter().enumerate() {
            let due = slices as f64 * f64::from(*weight) / f64::from(total);
            // Each vCPU may be one slice ahead, and one weighted slice of its competitors behind.
            let grain = f64::from(*count) * (2.0 + f64::from(*weight) / 10.0) + due * 0.01;
            prop_assert!((received[vm] as f64 - due).abs() <= grain, "vm {}: {} of {}", vm, received[vm], due);
        }
    }

    #[test]
    fn charging_never_overflows_nor_runs_backwards(ran in any::<u64>(), more in any::<u64>(), weight in any::<u64>()) {
        let (less, most) = (ran.min(more), ran.max(more));
        prop_assert!(charge(less, weight) <= charge(most, weight));
    }

    #[test]
    fn catching_up_never_overflows_nor_takes_weight_away(
        weight in any::<u32>(), count in any::<u32>(), first in any::<u64>(), vm in any::<u64>(), slice in 1u64..10_000_000_000,
    ) {
        let config = FairShareConfig::with_slice(slice);
        let own = vcpu_weight(weight, count);
        let weighs = catch_up_weight(&config, &VmSize { weight, vcpu_count: count }, own, first, vm);
        prop_assert!(own <= weighs && weighs <= 4 * own);
    }

    #[test]
    fn a_wake_up_never_moves_a_clock_back(pool in any::<u64>(), behind in 0u64..1 << 62, was_blocked in 0u32..2) {
        let seen = WakeupObservation {
            pool_vtime_ns: pool, vcpu_vtime_ns: pool.wrapping_sub(behind), weight: ALONE, was_blocked, reserved: 0,
        };
        let decision = decide_on_wakeup(&FairShareConfig::PAPER, &seen);
        prop_assert!(!vtime_before(decision.vtime_ns, seen.vcpu_vtime_ns));
        prop_assert!(was_blocked == 0 || pool.wrapping_sub(decision.vtime_ns) <= FairShareConfig::PAPER.lag_max_ns);
    }
}

#[test]
fn all_threads_of_a_vmm_weigh_as_one_more_vcpu() {
    assert_eq!(vmm_threads_weight(100, 3), vcpu_weight(100, 4));
    assert_eq!(vmm_threads_weight(100, 0), vcpu_weight(100, 1));
}

proptest! {
    /// A thread of a VMM goes first when it is woken, and for no longer than a boost; never while its VM is
    /// ahead, nor as a vCPU.
    #[test]
    fn a_vmms_thread_goes_first_for_a_boost_at_most(
        first_ran_ns in 0..100_000_000u64, was_blocked in 0..2u32, went_first in 0..2u32, is_vcpu in 0..2u32, vm_is_ahead in 0..2u32,
    ) {
        let config = FairShareConfig::DEFAULT;
        let seen = VmmThreadObservation { first_ran_ns, was_blocked, went_first, is_vcpu, vm_is_ahead };
        let goes = vmm_thread_goes_first(&config, &seen);
        prop_assert!(!goes || (is_vcpu == 0 && vm_is_ahead == 0));
        prop_assert!(!goes || was_blocked == 1 || first_ran_ns < config.boost_slice_ns);
        prop_assert!(goes || is_vcpu == 1 || vm_is_ahead == 1 || was_blocked == 0);
        let no_boost = FairShareConfig { boost_slice_ns: 0, ..config };
        prop_assert!(!vmm_thread_goes_first(&no_boost, &seen));
    }
}

#[test]
fn a_spinner_yields_only_to_an_heir_that_may_come() {
    let may_come = |is_queued, affinity_allows| {
        heir_may_come(&YieldHeirObservation { is_queued, affinity_allows, paper_rules: 0 })
    };
    assert_eq!([may_come(1, 1), may_come(1, 0), may_come(0, 1)], [true, false, false]);
}

proptest! {
    /// Two queues, each in the order in which its vCPUs came, and whichever first ones they have: whoever has
    /// waited for longer than a turn is overtaken by none that came later.
    #[test]
    fn boosted_vcpus_are_overtaken_for_a_turn_at_most(
        now_ns in 1u64 << 40..1 << 50, first_ns in 0..1u64 << 34, bound_ns in 0..1u64 << 34, is_bound in any::<bool>(),
    ) {
        let config = FairShareConfig::DEFAULT;
        let (first, bound) = (now_ns - first_ns, now_ns - bound_ns);
        let bound_since_ns = if is_bound { bound } else { 0 };
        let seen = BoostedObservation { now_ns, first_since_ns: first, bound_since_ns };
        let is_due = first_boosted_is_due(&config, &seen);
        prop_assert_eq!(is_due, first_ns > config.slice_ns && (!is_bound || first < bound));
        let nobody = BoostedObservation { first_since_ns: 0, ..seen };
        prop_assert!(!first_boosted_is_due(&config, &nobody));
    }
}
