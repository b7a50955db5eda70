//! What groups had by boosts is paid back by their weights.

use microslice_policy::*;
use proptest::prelude::*;

const S: u64 = 1_000_000_000;

fn seen(owed_ns: u64, boosted_ns: u64, ran_ns: u64, weight: u32, weight_now: u32) -> PayBackObservation {
    PayBackObservation { owed_ns, boosted_ns, ran_ns, weight, weight_now }
}

#[test]
fn a_group_without_boosts_has_its_weight() {
    for ran_ns in [0, 1, S] {
        assert_eq!(decide_on_pay_back(&seen(0, 0, ran_ns, 100, 100)).weight, 100);
    }
    assert_eq!(decide_on_pay_back(&seen(0, S, S, 0, 0)).weight, 0, "an idle one");
}

#[test]
fn a_fifth_by_boosts_is_a_fifth_less_by_weight() {
    let decision = decide_on_pay_back(&seen(0, S / 5, S, 1000, 1000));
    assert_eq!((decision.weight, decision.owed_ns), (800, S / 5));
    let paid = decide_on_pay_back(&seen(S / 5, 0, S * 4 / 5, 1000, 800));
    assert_eq!((paid.weight, paid.owed_ns), (1000, 0));
}

#[test]
fn what_rounding_leaves_is_owed_until_it_is_a_step() {
    let (mut owed_ns, mut lowered) = (0, 0);
    for _ in 0..100 {
        // A quarter of a step each second.
        let decision = decide_on_pay_back(&seen(owed_ns, S / 400, S, 100, 100 - u32::from(lowered & 1 == 1)));
        owed_ns = decision.owed_ns;
        assert!(owed_ns < S / 50, "{owed_ns}");
        lowered = (lowered << 1) | u128::from(decision.weight < 100);
    }
    assert!((20..=30).contains(&lowered.count_ones()), "{lowered:b}");
}

proptest! {
    #[test]
    fn no_weight_is_raised_or_more_than_halved(
        owed_ns: u64, boosted_ns: u64, ran_ns: u64, weight: u32, weight_now: u32
    ) {
        let decision = decide_on_pay_back(&seen(owed_ns, boosted_ns, ran_ns, weight, weight_now));
        prop_assert!(decision.weight <= weight);
        prop_assert!(weight > PAY_BACK_WEIGHT_MAX || decision.weight >= weight / 2);
    }

    /// Two groups that always want to run: the one with boosts has what is due to its weight.
    #[test]
    fn shares_are_those_by_weight(
        weights in (50u32..2_000, 50u32..2_000), boosted_percent in 0u64..10, seconds in 30u64..60
    ) {
        let (mut now, mut owed_ns, mut had_ns) = (weights.0, 0, 0);
        for _ in 0..seconds {
            let boosted_ns = S * boosted_percent / 100 * u64::from(weights.0) / u64::from(weights.0 + weights.1);
            let by_weight_ns = (S - boosted_ns) * u64::from(now) / u64::from(now + weights.1);
            let ran_ns = boosted_ns + by_weight_ns;
            had_ns += ran_ns;
            let decision = decide_on_pay_back(&seen(owed_ns, boosted_ns, ran_ns, weights.0, now));
            (owed_ns, now) = (decision.owed_ns, decision.weight);
        }
        let due = f64::from(weights.0) / f64::from(weights.0 + weights.1);
        let share = had_ns as f64 / (seconds * S) as f64;
        // The first second isn't paid for when it ends.
        let error = 0.002 + 0.1 * due / seconds as f64;
        prop_assert!((share - due).abs() < error, "{} of {}", share, due);
    }
}
