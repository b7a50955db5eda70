//! `cpu.max`: what is left of a quota, and when those that used it up rest.

use microslice_policy::*;
use proptest::prelude::*;

const MS: u64 = 1_000_000;
/// The monotonic clock of a host that has been up for a while.
const NOW: u64 = 5_000_000 * MS;
const FIFTH: CpuLimit = CpuLimit { quota_us: 20_000, period_us: 100_000 };
/// `LIMIT_REST_MAX_NS`, `LIMIT_SLICE_MIN_NS` and `RAN_MAX_NS`.
const REST_MAX_NS: u64 = 2_000 * MS;
const SLICE_MIN_NS: u64 = MS;

fn asked_at(now_ns: u64, clock_ns: u64) -> LimitObservation {
    LimitObservation { now_ns, clock_ns, slice_ns: 30 * MS, active_count: 1, ..Default::default() }
}

#[test]
fn a_vm_that_slept_has_a_periods_quota_and_no_more() {
    let decision = decide_on_limit(&FIFTH, &asked_at(NOW, 0));
    assert_eq!((decision.rest_until_ns, decision.slice_ns), (0, 20 * MS));
    assert_eq!(decision.clock_ns, NOW - 100 * MS);
}

#[test]
fn running_uses_up_the_time_in_which_the_limit_gives_as_much() {
    assert_eq!(limit_charge(&FIFTH, 4 * MS), 20 * MS);
    let four = CpuLimit { quota_us: 400_000, period_us: 100_000 };
    assert_eq!(limit_charge(&four, 4 * MS), MS);
}

#[test]
fn once_the_quota_is_used_up_it_rests_until_half_a_period_has_been_saved_up_again() {
    let decision = decide_on_limit(&FIFTH, &asked_at(NOW, NOW + 10 * MS));
    assert_eq!(decision.rest_until_ns, NOW + 60 * MS);
}

#[test]
fn siblings_rest_as_long_though_some_quota_is_there_again() {
    let seen = LimitObservation { rest_until_ns: NOW + 30 * MS, ..asked_at(NOW, NOW - 20 * MS) };
    assert_eq!(decide_on_limit(&FIFTH, &seen).rest_until_ns, NOW + 30 * MS);
    let rested = LimitObservation { now_ns: NOW + 30 * MS, ..seen };
    let decision = decide_on_limit(&FIFTH, &rested);
    assert_eq!((decision.rest_until_ns, decision.slice_ns), (0, 10 * MS));
}

#[test]
fn what_is_left_is_split_over_the_vcpus_that_are_active() {
    let seen = LimitObservation { active_count: 4, ..asked_at(NOW, 0) };
    assert_eq!(decide_on_limit(&FIFTH, &seen).slice_ns, 5 * MS);
    let many = LimitObservation { active_count: 400, ..seen };
    assert_eq!(decide_on_limit(&FIFTH, &many).slice_ns, SLICE_MIN_NS);
    let micro = LimitObservation { slice_ns: MS / 10, ..many };
    assert_eq!(decide_on_limit(&FIFTH, &micro).slice_ns, MS / 10, "a micro slice isn't made longer");
}

#[test]
fn without_a_quota_or_a_period_there_is_no_limit() {
    for limit in [CpuLimit { quota_us: 0, ..FIFTH }, CpuLimit { period_us: 0, ..FIFTH }] {
        let seen = asked_at(NOW, NOW + 10 * MS);
        let decision = decide_on_limit(&limit, &seen);
        assert_eq!((decision.rest_until_ns, decision.slice_ns), (0, seen.slice_ns));
        assert_eq!((decision.clock_ns, limit_charge(&limit, 5 * MS)), (seen.clock_ns, 0));
    }
}

proptest! {
    /// A VM that always wants all that it may have, with turns that end at the host's ticks of 4 ms.
    #[test]
    fn a_vm_gets_its_limit_whatever_the_quota_the_period_and_the_ticks(
        vcpus in 1u64..8,
        percent in 5u64..400,
        period_ms in 10u64..1000,
    ) {
        let percent = percent.min(vcpus * 100);
        let limit = CpuLimit { quota_us: (period_ms * 10 * percent) as u32, period_us: (period_ms * 1000) as u32 };
        let tick_ns = 4 * MS;
        let (mut now, mut clock, mut rest_until, mut ran) = (NOW, 0, 0, 0u64);
        let until = NOW + 200 * period_ms * MS;
        while now < until {
            let active_count = vcpus as u32;
            let seen = LimitObservation { rest_until_ns: rest_until, active_count, ..asked_at(now, clock) };
            let decision = decide_on_limit(&limit, &seen);
            (clock, rest_until) = (decision.clock_ns, decision.rest_until_ns);
            if rest_until > 0 {
                prop_assert!(rest_until > now && rest_until <= now + REST_MAX_NS);
                now = rest_until;
            } else {
                let turn = decision.slice_ns.div_ceil(tick_ns) * tick_ns;
                now += turn;
                ran += turn * vcpus;
                clock += limit_charge(&limit, turn * vcpus);
            }
        }
        let due = (now - NOW) as f64 * percent as f64 / 100.0;
        // The quota that was saved up before, and the debt of the last turns.
        let period = period_ms as f64 * 1e6 * percent as f64 / 100.0;
        let grain = period + (tick_ns * vcpus) as f64 * 2.0;
        prop_assert!((ran as f64 - due).abs() <= grain + due * 0.02, "{} of {}", ran, due);
    }

    #[test]
    fn whatever_it_sees_nobody_rests_for_longer_than_two_seconds_nor_runs_for_longer_than_its_slice(
        quota_us in any::<u32>(), period_us in any::<u32>(), now_ns in REST_MAX_NS..u64::MAX / 2,
        clock_ns in any::<u64>(), rest_until_ns in any::<u64>(), slice_ns in any::<u64>(), active_count in any::<u32>(),
    ) {
        let limit = CpuLimit { quota_us, period_us };
        let seen = LimitObservation { now_ns, clock_ns, rest_until_ns, slice_ns, active_count, reserved: 0 };
        let decision = decide_on_limit(&limit, &seen);
        prop_assert!(decision.slice_ns <= slice_ns);
        prop_assert!(decision.rest_until_ns == 0 || decision.rest_until_ns <= now_ns + REST_MAX_NS);
        if decision.rest_until_ns > 0 {
            prop_assert!(decision.rest_until_ns > now_ns);
        }
    }
}
