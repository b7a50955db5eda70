//! What results add up to: of each policy, how throughput, waits and shares are distributed over the
//! scenarios.

use super::{Outcome, ScenarioResult};

/// Nobody notices waits below that: a wait that is compared is at least as long. A micro slice.
pub const WAIT_FLOOR_NS: f64 = 100_000.0;

/// One policy on one scenario, compared with the first policy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Verdict {
    pub seed: u64,
    /// How much of the first policy's work it did: geometric mean over VMs, and in a VM over its workloads.
    pub throughput: f64,
    /// How many times the first policy's 99th and 99.9th percentile of the waits to run.
    pub wait_p99: f64,
    pub wait_p999: f64,
    /// The largest difference of a VM's share from what is due to it; `None` where VMs are pinned.
    pub share_error: Option<f64>,
}

/// Some numbers in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution(Vec<f64>);

/// How many scenarios miss a goal, and of how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    pub below_095: usize,
    pub below_098: usize,
    /// More than 3 % behind the best of all policies.
    pub behind_best: usize,
    pub wait_above_125: usize,
    pub wait_above_2: usize,
    pub share_off_by_2_percent: usize,
}

/// What all scenarios say of one policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    pub policy: String,
    pub verdicts: Vec<Verdict>,
    pub throughput: Distribution,
    pub wait_p99: Distribution,
    pub wait_p999: Distribution,
    /// Of scenarios without pinned VMs.
    pub share_error: Distribution,
    pub counts: Counts,
    pub accelerations: u64,
}

impl Distribution {
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value at that part of the way from the least to the greatest, from 0 to 1; `None` of no values.
    pub fn quantile(&self, part: f64) -> Option<f64> {
        let last = self.0.len().checked_sub(1)?;
        self.0.get((part.clamp(0.0, 1.0) * last as f64).round() as usize).copied()
    }

    pub fn geometric_mean(&self) -> Option<f64> {
        let logarithms: f64 = self.0.iter().map(|value| value.ln()).sum();
        (!self.is_empty()).then(|| (logarithms / self.len() as f64).exp())
    }

    pub fn mean(&self) -> Option<f64> {
        (!self.is_empty()).then(|| self.0.iter().sum::<f64>() / self.len() as f64)
    }

    fn count(&self, is_counted: impl Fn(f64) -> bool) -> usize {
        self.0.iter().filter(|&&value| is_counted(value)).count()
    }
}

/// One of each policy, in their order, and behind them one of the first policy with other seeds.
pub fn summaries(policies: &[String], results: &[ScenarioResult]) -> Vec<Summary> {
    let mut names = policies.to_vec();
    names.extend(policies.first().map(|first| format!("{first} (other seeds)")));
    let names = names.into_iter().enumerate();
    names.map(|(column, name)| Summary::of(name, column, policies.len(), results)).collect()
}

impl Summary {
    fn of(policy: String, column: usize, policies: usize, results: &[ScenarioResult]) -> Self {
        let verdicts: Vec<Verdict> = results.iter().map(|result| Verdict::of(result, column)).collect();
        let throughput = Distribution::of(verdicts.iter().map(|verdict| verdict.throughput));
        let wait_p99 = Distribution::of(verdicts.iter().map(|verdict| verdict.wait_p99));
        let share_error = Distribution::of(verdicts.iter().filter_map(|verdict| verdict.share_error));
        let best = |result: &ScenarioResult| {
            (0..policies).map(|column| Verdict::of(result, column).throughput).fold(0.0, f64::max)
        };
        let is_behind =
            |(verdict, result): (&Verdict, &ScenarioResult)| verdict.throughput < 0.97 * best(result);
        let counts = Counts {
            below_095: throughput.count(|ratio| ratio < 0.95),
            below_098: throughput.count(|ratio| ratio < 0.98),
            behind_best: verdicts.iter().zip(results).filter(|&pair| is_behind(pair)).count(),
            wait_above_125: wait_p99.count(|ratio| ratio > 1.25),
            wait_above_2: wait_p99.count(|ratio| ratio > 2.0),
            share_off_by_2_percent: share_error.count(|error| error > 0.02),
        };
        Self {
            policy,
            wait_p999: Distribution::of(verdicts.iter().map(|verdict| verdict.wait_p999)),
            accelerations: results.iter().map(|result| result.outcomes[column].accelerations).sum(),
            verdicts,
            throughput,
            wait_p99,
            share_error,
            counts,
        }
    }

    /// The seeds of the scenarios where it did least of the first policy's work, the worst first.
    pub fn least_throughput(&self, count: usize) -> Vec<u64> {
        self.worst(count, |verdict| verdict.throughput)
    }

    /// Likewise, where waits are longest.
    pub fn longest_waits(&self, count: usize) -> Vec<u64> {
        self.worst(count, |verdict| -verdict.wait_p99)
    }

    fn worst(&self, count: usize, key: impl Fn(&Verdict) -> f64) -> Vec<u64> {
        let mut verdicts: Vec<&Verdict> = self.verdicts.iter().collect();
        verdicts.sort_by(|one, other| key(one).total_cmp(&key(other)).then(one.seed.cmp(&other.seed)));
        verdicts.iter().take(count).map(|verdict| verdict.seed).collect()
    }
}

impl Verdict {
    fn of(result: &ScenarioResult, column: usize) -> Self {
        let (own, first) = (&result.outcomes[column], &result.outcomes[0]);
        let wait = |wait_ns: f64, first_ns: f64| wait_ns.max(WAIT_FLOOR_NS) / first_ns.max(WAIT_FLOOR_NS);
        Self {
            seed: result.seed,
            throughput: throughput(own, first),
            wait_p99: wait(own.wait_p99_ns, first.wait_p99_ns),
            wait_p999: wait(own.wait_p999_ns, first.wait_p999_ns),
            share_error: result.has_dues.then_some(own.share_error),
        }
    }
}

/// One unit more each: a workload that makes none at all is worse than any other, and still a number.
fn throughput(own: &Outcome, first: &Outcome) -> f64 {
    let ratio = |(own, first): (&u64, &u64)| (*own as f64 + 1.0) / (*first as f64 + 1.0);
    let of_vm = |(own, first): (&Vec<u64>, &Vec<u64>)| {
        Distribution::of(own.iter().zip(first).map(ratio)).geometric_mean().unwrap_or(1.0)
    };
    Distribution::of(own.units.iter().zip(&first.units).map(of_vm)).geometric_mean().unwrap_or(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(units: &[&[u64]], wait_p99_ns: f64, share_error: f64) -> Outcome {
        let units = units.iter().map(|vm| vm.to_vec()).collect();
        Outcome { units, wait_p99_ns, wait_p999_ns: 4.0 * wait_p99_ns, share_error, accelerations: 3 }
    }

    fn result(seed: u64, outcomes: Vec<Outcome>) -> ScenarioResult {
        ScenarioResult { seed, has_dues: seed % 2 == 1, outcomes }
    }

    fn two_policies() -> Vec<Summary> {
        let first = || outcome(&[&[999], &[99, 9]], 1e6, 0.01);
        let results = [
            result(1, vec![first(), outcome(&[&[1_999], &[99, 9]], 2.1e6, 0.03), first()]),
            result(2, vec![first(), outcome(&[&[999], &[24, 9]], 0.5e6, 0.2), first()]),
            result(3, vec![first(), outcome(&[&[999], &[99, 9]], 1e6, 0.0), first()]),
        ];
        summaries(&["a".to_owned(), "b".to_owned()], &results)
    }

    #[test]
    fn throughput_is_the_geometric_mean_over_vms_and_within_them_over_workloads() {
        let ratios: Vec<f64> = two_policies()[1].verdicts.iter().map(|verdict| verdict.throughput).collect();
        let wanted = [2f64.sqrt(), 0.25f64.sqrt().sqrt(), 1.0];
        assert!(ratios.iter().zip(wanted).all(|(ratio, wanted)| (ratio - wanted).abs() < 1e-9), "{ratios:?}");
    }

    #[test]
    fn the_first_policy_is_as_good_as_itself_and_again_with_other_seeds() {
        let all = two_policies();
        assert_eq!(
            all.iter().map(|summary| summary.policy.as_str()).collect::<Vec<_>>(),
            ["a", "b", "a (other seeds)"]
        );
        for at in [0, 2] {
            assert_eq!(all[at].throughput.quantile(0.0), Some(1.0));
            assert_eq!(all[at].counts.behind_best, 1, "b does more of scenario 1");
        }
    }

    #[test]
    fn misses_are_counted_and_pinned_vms_have_no_dues() {
        let b = &two_policies()[1];
        let counts = Counts {
            below_095: 1,
            below_098: 1,
            behind_best: 1,
            wait_above_125: 1,
            wait_above_2: 1,
            share_off_by_2_percent: 1,
        };
        assert_eq!((b.counts, b.share_error.len(), b.accelerations), (counts, 2, 9));
        assert_eq!((b.least_throughput(2), b.longest_waits(1)), (vec![2, 3], vec![1]));
    }

    #[test]
    fn waits_that_nobody_notices_are_equal_and_no_work_is_a_number() {
        let first = outcome(&[&[9]], 10.0, 0.0);
        let result = result(1, vec![first, outcome(&[&[0]], 90_000.0, 0.0)]);
        let verdict = Verdict::of(&result, 1);
        assert_eq!(verdict.wait_p99, 1.0);
        assert!((verdict.throughput - 0.1).abs() < 1e-9);
    }

    #[test]
    fn a_distribution_without_values_has_none() {
        let none = Distribution::of([]);
        assert_eq!((none.quantile(0.5), none.geometric_mean(), none.mean()), (None, None, None));
        let some = Distribution::of([4.0, 1.0, 2.0]);
        assert_eq!(
            (some.quantile(0.0), some.quantile(0.5), some.quantile(1.0)),
            (Some(1.0), Some(2.0), Some(4.0))
        );
        assert!((some.geometric_mean().unwrap_or(0.0) - 2.0).abs() < 1e-9);
    }
}
