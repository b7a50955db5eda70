//! What results add up to: how each policy's work, felt waits and shares are distributed over scenarios.

use super::felt::{FELT_WAITS, FeltWait};
use super::misses::{Miss, WAIT_MISS, misses};
use super::{Outcome, ScenarioResult};
use microslice_metrics::Estimate;
use std::collections::BTreeMap;

/// Nobody notices waits below that: a wait that is compared is at least as long. A micro slice.
pub const WAIT_FLOOR_NS: f64 = 100_000.0;

/// One policy on one scenario, compared with the first policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    pub seed: u64,
    /// How much of the first policy's work it did: geometric mean over VMs, and in a VM over its workloads.
    pub throughput: f64,
    /// The largest difference of a VM's share from what is due to it; `None` where shares aren't due.
    pub share_error: Option<f64>,
    vms: Vec<VmVerdict>,
}

#[derive(Debug, Clone, PartialEq)]
struct VmVerdict {
    work: f64,
    /// How many times the first policy's.
    felt: [Option<f64>; FELT_WAITS.len()],
}

/// Some numbers in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution(Vec<f64>);

/// A kind of felt waits: of VMs, each times its own under the first policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Felt {
    pub ratios: Distribution,
    pub above_125: usize,
}

/// What is said of a part of all scenarios, or of VMs.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    pub name: &'static str,
    /// Of scenarios, or of VMs.
    pub work: Option<Estimate>,
    pub felt: [Felt; FELT_WAITS.len()],
}

/// How many scenarios miss a goal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// More than 3 % behind the best of all policies.
    pub behind_best: usize,
    pub share_off_by_2_percent: usize,
}

/// What all scenarios say of one policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    pub policy: String,
    pub verdicts: Vec<Verdict>,
    pub throughput: Distribution,
    /// Of each kind, in the order of [`FELT_WAITS`].
    pub felt: [Felt; FELT_WAITS.len()],
    /// The longest wait for a pCPU of each VM in each second, in ns: as they are, not relative.
    pub longest_waits: Distribution,
    /// The part of the time by which siblings' waits differ, of each VM of several vCPUs.
    pub skew: Distribution,
    /// Of scenarios without VMs that are pinned or limited.
    pub share_error: Distribution,
    pub counts: Counts,
    /// Beside those of the first policy with other seeds.
    pub misses: Vec<Miss>,
    pub accelerations: u64,
    /// Scenarios by how interrupts reach vCPUs.
    pub interrupts: Vec<Group>,
    /// VMs by what they run; one that runs two kinds of programs is in both groups.
    pub programs: Vec<Group>,
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
        self.estimate().map(|of| of.mean)
    }

    /// The geometric mean with its 95 % interval.
    pub fn estimate(&self) -> Option<Estimate> {
        Estimate::of_ratios(&self.0)
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
    let mut all: Vec<Summary> =
        names.map(|(column, name)| Summary::of(name, column, policies.len(), results)).collect();
    if let Some(other_seeds) = all.last().map(|of| of.verdicts.clone()) {
        all.iter_mut().for_each(|of| of.misses = misses(&of.verdicts, &other_seeds));
    }
    all
}

impl Summary {
    fn of(policy: String, column: usize, policies: usize, results: &[ScenarioResult]) -> Self {
        let verdicts: Vec<Verdict> = results.iter().map(|result| Verdict::of(result, column)).collect();
        let throughput = Distribution::of(verdicts.iter().map(|verdict| verdict.throughput));
        let share_error = Distribution::of(verdicts.iter().filter_map(|verdict| verdict.share_error));
        let best = |result: &ScenarioResult| {
            (0..policies).map(|column| Verdict::of(result, column).throughput).fold(0.0, f64::max)
        };
        let is_behind =
            |(verdict, result): (&Verdict, &ScenarioResult)| verdict.throughput < 0.97 * best(result);
        let counts = Counts {
            behind_best: verdicts.iter().zip(results).filter(|&pair| is_behind(pair)).count(),
            share_off_by_2_percent: share_error.count(|error| error > 0.02),
        };
        Self {
            policy,
            felt: felt_of(verdicts.iter().flat_map(|verdict| &verdict.vms)),
            longest_waits: Distribution::of(
                results
                    .iter()
                    .flat_map(|of| &of.outcomes[column].longest_waits)
                    .map(|&wait_ns| wait_ns as f64),
            ),
            skew: Distribution::of(results.iter().flat_map(|of| &of.outcomes[column].skews).copied()),
            accelerations: results.iter().map(|result| result.outcomes[column].accelerations).sum(),
            interrupts: by_interrupts(&verdicts, results),
            programs: by_programs(&verdicts, results),
            verdicts,
            throughput,
            share_error,
            counts,
            misses: Vec::new(),
        }
    }

    /// True if it misses no more often than the first policy with other seeds does.
    pub fn is_never_worse(&self) -> bool {
        !self.misses.iter().any(Miss::is_worse)
    }

    /// The mean of its work, with its interval.
    pub fn work(&self) -> Option<Estimate> {
        self.throughput.estimate()
    }

    /// The seeds of the scenarios where it did least of the first policy's work, the worst first.
    pub fn least_throughput(&self, count: usize) -> Vec<u64> {
        self.worst(count, |verdict| verdict.throughput)
    }

    /// Likewise, where a VM's felt waits grew most.
    pub fn longest_waits(&self, count: usize) -> Vec<u64> {
        self.worst(count, |verdict| -verdict.worst_wait())
    }

    fn worst(&self, count: usize, key: impl Fn(&Verdict) -> f64) -> Vec<u64> {
        let mut verdicts: Vec<&Verdict> = self.verdicts.iter().collect();
        verdicts.sort_by(|one, other| key(one).total_cmp(&key(other)).then(one.seed.cmp(&other.seed)));
        verdicts.iter().take(count).map(|verdict| verdict.seed).collect()
    }
}

fn felt_of<'v>(vms: impl Iterator<Item = &'v VmVerdict> + Clone) -> [Felt; FELT_WAITS.len()] {
    FELT_WAITS.map(|wait| {
        let ratios = Distribution::of(vms.clone().filter_map(|vm| vm.felt[wait as usize]));
        Felt { above_125: ratios.count(|ratio| ratio > WAIT_MISS), ratios }
    })
}

fn by_interrupts(verdicts: &[Verdict], results: &[ScenarioResult]) -> Vec<Group> {
    let mut groups: BTreeMap<&'static str, Vec<&Verdict>> = BTreeMap::new();
    for (verdict, result) in verdicts.iter().zip(results) {
        groups.entry(result.interrupts).or_default().push(verdict);
    }
    let groups = groups.into_iter().map(|(name, of)| {
        let work = of.iter().map(|verdict| verdict.throughput).collect::<Vec<_>>();
        let felt = felt_of(of.iter().flat_map(|verdict| &verdict.vms));
        Group { name, work: Estimate::of_ratios(&work), felt }
    });
    groups.collect()
}

fn by_programs(verdicts: &[Verdict], results: &[ScenarioResult]) -> Vec<Group> {
    let mut groups: BTreeMap<&'static str, Vec<&VmVerdict>> = BTreeMap::new();
    for (verdict, result) in verdicts.iter().zip(results) {
        for (vm, words) in verdict.vms.iter().zip(&result.programs) {
            let mut words = words.clone();
            words.dedup();
            words.into_iter().for_each(|word| groups.entry(word).or_default().push(vm));
        }
    }
    let groups = groups.into_iter().map(|(name, vms)| {
        let work = vms.iter().map(|vm| vm.work).collect::<Vec<_>>();
        Group { name, work: Estimate::of_ratios(&work), felt: felt_of(vms.iter().copied()) }
    });
    groups.collect()
}

impl Verdict {
    fn of(result: &ScenarioResult, column: usize) -> Self {
        let (own, first) = (&result.outcomes[column], &result.outcomes[0]);
        let vms: Vec<VmVerdict> = (0..own.units.len()).map(|vm| VmVerdict::of(own, first, vm)).collect();
        Self {
            seed: result.seed,
            throughput: Distribution::of(vms.iter().map(|vm| vm.work)).geometric_mean().unwrap_or(1.0),
            share_error: result.has_dues.then_some(own.share_error),
            vms,
        }
    }

    /// One felt wait of its VMs, in the order of [`FELT_WAITS`].
    pub fn felt(&self, wait: usize) -> impl Iterator<Item = f64> {
        self.vms.iter().filter_map(move |vm| vm.felt[wait])
    }

    /// How many times the first policy's that felt wait of a VM is that grew most.
    pub fn worst_wait(&self) -> f64 {
        self.vms.iter().flat_map(|vm| vm.felt).flatten().fold(0.0, f64::max)
    }
}

impl VmVerdict {
    fn of(own: &Outcome, first: &Outcome, vm: usize) -> Self {
        // One unit more each: a workload that makes none at all is worse than any other, and still a number.
        let ratio = |(own, first): (&u64, &u64)| (*own as f64 + 1.0) / (*first as f64 + 1.0);
        let works = Distribution::of(own.units[vm].iter().zip(&first.units[vm]).map(ratio));
        let felt = |wait: FeltWait| {
            let [own_ns, first_ns] = [own, first].map(|outcome| outcome.felt[vm].ns(wait));
            Some(own_ns?.max(WAIT_FLOOR_NS) / first_ns?.max(WAIT_FLOOR_NS))
        };
        Self { work: works.geometric_mean().unwrap_or(1.0), felt: FELT_WAITS.map(felt) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regret::felt::FeltTimes;

    fn outcome(units: &[&[u64]], wait_ns: f64, share_error: f64) -> Outcome {
        let units: Vec<Vec<u64>> = units.iter().map(|vm| vm.to_vec()).collect();
        let felt = units.iter().map(|_| FeltTimes::all(wait_ns)).collect();
        Outcome {
            units,
            felt,
            longest_waits: vec![wait_ns as u64],
            skews: vec![0.1],
            share_error,
            accelerations: 3,
        }
    }

    fn result(seed: u64, outcomes: Vec<Outcome>) -> ScenarioResult {
        let interrupts = if seed == 2 { "avic" } else { "ipiv" };
        let programs = vec![vec!["locks", "locks"], vec!["locks", "sleepers"]];
        ScenarioResult { seed, has_dues: seed % 2 == 1, interrupts, programs, outcomes }
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
        let counts = Counts { behind_best: 1, share_off_by_2_percent: 1 };
        assert_eq!((b.counts, b.share_error.len(), b.accelerations), (counts, 2, 9));
        assert_eq!((b.least_throughput(2), b.longest_waits(1)), (vec![2, 3], vec![1]));
        let misses: Vec<_> =
            b.misses.iter().map(|miss| (miss.what.as_str(), miss.count, miss.more)).collect();
        assert_eq!(misses[..3], [("work below 0.95", 1, 1), ("work below 0.98", 1, 1), ("wake-up", 2, 2)]);
        assert!(b.is_never_worse(), "one scenario of three shows nothing");
        assert!(b.felt.iter().all(|felt| (felt.above_125, felt.ratios.len()) == (2, 6)), "{:?}", b.felt);
    }

    #[test]
    fn groups_are_by_interrupts_and_by_programs() {
        let b = &two_policies()[1];
        let counts = |groups: &[Group]| -> Vec<(&str, usize, usize)> {
            let count = |group: &Group| group.work.as_ref().map_or(0, |work| work.count);
            groups.iter().map(|group| (group.name, count(group), group.felt[0].ratios.len())).collect()
        };
        assert_eq!(counts(&b.interrupts), [("avic", 1, 2), ("ipiv", 2, 4)]);
        assert_eq!(counts(&b.programs), [("locks", 6, 6), ("sleepers", 3, 3)]);
    }

    #[test]
    fn waits_that_nobody_notices_are_equal_and_no_work_is_a_number() {
        let first = outcome(&[&[9]], 10.0, 0.0);
        let result = result(1, vec![first, outcome(&[&[0]], 90_000.0, 0.0)]);
        let verdict = Verdict::of(&result, 1);
        assert_eq!(verdict.worst_wait(), 1.0);
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
