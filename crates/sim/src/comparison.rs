//! Policies side by side on one scenario, over several seeds.

use crate::SimError;
use crate::batch::{BatchProgress, Job, run_each};
use crate::config::{SimulationConfig, VmConfig};
use crate::figures::snapshot_of;
use crate::scenario::{self, Overrides, Place, ScenarioError, quoted};
use crate::trace_event::GuestClass;
use microslice_metrics::{Entry, Estimate, Figure, Kind, Snapshot, figures};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Numbers that all runs together may leave behind: 2 GiB.
const NUMBERS_MAX: usize = 1 << 28;

/// What to compare.
#[derive(Debug, Clone)]
pub struct Comparison {
    pub scenario: String,
    pub description: String,
    pub policies: Vec<String>,
    pub seeds: Vec<u64>,
    /// Of the disk, that the scenario and the policies were read from.
    pub files: Vec<PathBuf>,
    /// One per policy; seeds are those of the jobs.
    configs: Vec<SimulationConfig>,
}

/// One figure under each policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub figure: &'static Figure,
    pub labels: Vec<String>,
    /// In the order of the policies; `None` where no run has the figure.
    pub estimates: Vec<Option<Estimate>>,
    /// The same relative to the first policy, seed by seed; `None` where no seed has both, or only zeros to divide by.
    pub ratios: Vec<Option<Estimate>>,
}

/// Why a comparison can't be made.
#[derive(Debug, thiserror::Error)]
pub enum ComparisonError {
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    #[error("{scenario} under {policy}, seed {seed}: {error}")]
    Run { scenario: String, policy: String, seed: u64, error: SimError },
}

/// Figures that a table shows first; the others are for `--all` and JSON.
const MAIN_FIGURES: [&Figure; 12] = [
    &figures::EXECUTION_TIME,
    &figures::THROUGHPUT,
    &figures::BANDWIDTH,
    &figures::JITTER,
    &figures::SHARE_RECEIVED,
    &figures::FAIRNESS_ERROR,
    &figures::YIELDS,
    &figures::LOCK_WAIT,
    &figures::SHOOTDOWN_WAIT,
    &figures::WAIT_TO_RUN,
    &figures::ACCELERATIONS,
    &figures::MICRO_POOL_MEAN,
];

impl Comparison {
    /// Loads the scenario once per policy; seeds count up from the scenario's (or the given) seed.
    pub fn load(
        reference: &str,
        policies: &[String],
        seed_count: u64,
        overrides: &Overrides,
        check: bool,
    ) -> Result<Self, ScenarioError> {
        let (mut configs, mut seeds, mut description) = (Vec::new(), Vec::new(), String::new());
        let mut files = Vec::new();
        for (index, policy) in policies.iter().enumerate() {
            // Columns and JSON are told apart by the policies' names.
            if policies[..index].contains(policy) {
                let cause = format!("{} is named twice", quoted(policy));
                return Err(ScenarioError { place: Place::whole("--policies"), cause });
            }
            let overrides = Overrides { policy: Some(policy.clone()), ..overrides.clone() };
            let scenario = scenario::load(reference, &overrides).map_err(blame_policies)?;
            files.extend(scenario.files);
            let first = scenario.config.seed;
            let end = first.checked_add(seed_count).ok_or_else(|| {
                let cause = format!("there aren't {seed_count} seeds from {first}");
                ScenarioError { place: Place::whole("--seed"), cause }
            })?;
            seeds = (first..end).collect();
            description = scenario.description;
            configs.push(SimulationConfig { check, ..scenario.config });
        }
        refuse_what_does_not_fit(&configs, seeds.len())?;
        let (scenario, policies) = (reference.to_owned(), policies.to_vec());
        Ok(Self { scenario, description, policies, seeds, files, configs })
    }

    /// Runs everything: one row per figure and labels, in the order in which reports show them.
    pub fn run(&self, progress: &BatchProgress) -> Result<Vec<Row>, ComparisonError> {
        let seeded = |config| self.seeds.iter().map(move |&seed| Job { config, seed });
        let jobs: Vec<Job<'_>> = self.configs.iter().flat_map(seeded).collect();
        let keys = Mutex::new(RowKeys::default());
        let numbers = run_each(&jobs, progress, |index, report| {
            let snapshot = snapshot_of(&report);
            keys.lock().unwrap_or_else(PoisonError::into_inner).numbers_of(index, &snapshot)
        });
        let numbers = numbers.map_err(|(index, error)| ComparisonError::Run {
            scenario: self.scenario.clone(),
            policy: self.policies[index / self.seeds.len()].clone(),
            seed: jobs[index].seed,
            error,
        })?;
        let by_policy: Vec<&[Numbers]> = numbers.chunks(self.seeds.len()).collect();
        Ok(keys.into_inner().unwrap_or_else(PoisonError::into_inner).rows(&by_policy))
    }
}

/// A number is kept of every run for each of its figures.
fn refuse_what_does_not_fit(configs: &[SimulationConfig], seeds: usize) -> Result<(), ScenarioError> {
    let of_a_run = |config: &SimulationConfig| config.vms.iter().map(most_figures_of).sum::<usize>();
    let numbers = seeds.saturating_mul(configs.iter().map(of_a_run).sum());
    if numbers <= NUMBERS_MAX {
        return Ok(());
    }
    let cause = format!(
        "{} runs of {} VMs have up to {numbers} figures; at most {NUMBERS_MAX} fit into memory: use fewer seeds",
        configs.len() * seeds,
        configs.first().map_or(0, |config| config.vms.len())
    );
    Err(ScenarioError { place: Place::whole("--seeds"), cause })
}

/// Figures of one VM: those of workloads, of locks, preemptions by class, and about 20 that any VM has.
fn most_figures_of(vm: &VmConfig) -> usize {
    2 * vm.workloads.len() + vm.kernel.locks.len() + GuestClass::ALL.len() + 20
}

/// What a scenario calls `--policy` is one of `--policies` here.
pub(crate) fn blame_policies(mut error: ScenarioError) -> ScenarioError {
    if let Some(behind) = error.place.file.strip_prefix("--policy").filter(|_| error.place.is_command_line())
    {
        error.place = Place::whole(&format!("--policies{behind}"));
    }
    error.cause = error.cause.replace("`--policy`", "`--policies`");
    error
}

impl Row {
    /// Whether people want to see it without asking.
    pub fn is_main(&self) -> bool {
        MAIN_FIGURES.iter().any(|figure| figure.id == self.figure.id)
    }
}

/// Of one run: a number for each row, NaN where it has none. Rows that later runs brought are missing at the end.
type Numbers = Vec<f64>;

/// Every (figure, labels) that any run has, numbered as runs mention them. Runs end in any order.
#[derive(Default)]
struct RowKeys {
    numbers: HashMap<&'static str, HashMap<Vec<String>, usize>>,
    keys: Vec<RowKey>,
}

struct RowKey {
    figure: &'static Figure,
    labels: Vec<String>,
    /// The first job that has it, and where among its figures.
    first: (usize, usize),
}

impl RowKeys {
    fn numbers_of(&mut self, job: usize, snapshot: &Snapshot) -> Numbers {
        let mut numbers = vec![f64::NAN; self.keys.len()];
        for (at, entry) in snapshot.entries().iter().enumerate() {
            let row = self.row_of(entry);
            let first = &mut self.keys[row].first;
            *first = (*first).min((job, at));
            numbers.resize(self.keys.len(), f64::NAN);
            numbers[row] = entry.value.number().unwrap_or(f64::NAN);
        }
        numbers
    }

    fn row_of(&mut self, entry: &Entry) -> usize {
        let of_figure = self.numbers.entry(entry.figure.id).or_default();
        if let Some(&row) = of_figure.get(&entry.labels) {
            return row;
        }
        of_figure.insert(entry.labels.clone(), self.keys.len());
        let (figure, labels) = (entry.figure, entry.labels.clone());
        self.keys.push(RowKey { figure, labels, first: (usize::MAX, 0) });
        self.keys.len() - 1
    }

    /// In the figures' order, then by first appearance in the order of jobs.
    fn rows(self, by_policy: &[&[Numbers]]) -> Vec<Row> {
        let place = |figure: &Figure| figures::ALL.iter().position(|other| other.id == figure.id);
        let mut rows: Vec<(usize, RowKey)> = self.keys.into_iter().enumerate().collect();
        rows.sort_by_key(|(_, key)| (place(key.figure), key.first));
        rows.into_iter().map(|(row, key)| key.row(row, by_policy)).collect()
    }
}

impl RowKey {
    fn row(self, row: usize, by_policy: &[&[Numbers]]) -> Row {
        let values: Vec<Vec<f64>> = by_policy.iter().map(|runs| self.values(row, runs)).collect();
        let estimates = values.iter().map(|values| Estimate::of(values)).collect();
        let ratios = values.iter().map(|own| relative(own, &values[0])).collect();
        Row { figure: self.figure, labels: self.labels, estimates, ratios }
    }

    /// One per seed. A counter that a run doesn't mention is zero there; other figures are simply absent (NaN).
    fn values(&self, row: usize, runs: &[Numbers]) -> Vec<f64> {
        let absent = if self.figure.kind == Kind::Counter { 0.0 } else { f64::NAN };
        let value = |numbers: &Numbers| numbers.get(row).copied().filter(|value| !value.is_nan());
        runs.iter().map(|numbers| value(numbers).unwrap_or(absent)).collect()
    }
}

/// Seed by seed: what all policies have in common with a seed (who starts when) takes no part in the interval.
fn relative(values: &[f64], to: &[f64]) -> Option<Estimate> {
    Estimate::of(&values.iter().zip(to).map(|(value, to)| value / to).collect::<Vec<_>>())
}

/// Mean of the values that are numbers.
pub(crate) fn mean(values: &[f64]) -> Option<f64> {
    Estimate::of(values).map(|estimate| estimate.mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(time_ns: f64, ple: Option<u64>) -> Snapshot {
        let mut snapshot = Snapshot::new();
        if let Some(count) = ple {
            snapshot.counter(&figures::YIELDS, &["vm", "ple"], count);
        }
        snapshot.gauge(&figures::EXECUTION_TIME, &["vm", "gmake"], time_ns);
        snapshot
    }

    /// All policies' runs, which end in the opposite order of the jobs.
    fn rows_of(by_policy: &[Vec<Snapshot>]) -> Vec<Row> {
        let mut keys = RowKeys::default();
        let jobs: Vec<&Snapshot> = by_policy.iter().flatten().collect();
        let jobs = jobs.into_iter().enumerate().rev();
        let mut numbers: Vec<Numbers> = jobs.map(|(job, snapshot)| keys.numbers_of(job, snapshot)).collect();
        numbers.reverse();
        keys.rows(&numbers.chunks(by_policy[0].len()).collect::<Vec<_>>())
    }

    #[test]
    fn rows_follow_the_figures_order_and_absent_counters_are_zero() {
        let rows = rows_of(&[
            vec![snapshot(10.0, Some(4)), snapshot(14.0, Some(6))],
            vec![snapshot(6.0, None), snapshot(6.0, None)],
        ]);
        let names: Vec<_> = rows.iter().map(|row| row.figure.id).collect();
        assert_eq!(names, ["execution_time", "yields"]);
        let means = |row: &Row| row.estimates.iter().map(|e| e.map(|e| e.mean)).collect::<Vec<_>>();
        assert_eq!(means(&rows[0]), [Some(12.0), Some(6.0)]);
        assert_eq!(means(&rows[1]), [Some(5.0), Some(0.0)]);
    }

    #[test]
    fn rows_of_a_figure_come_in_the_order_in_which_jobs_mention_them_whichever_ends_first() {
        let run = |vms: &[&str]| {
            let mut snapshot = Snapshot::new();
            vms.iter().for_each(|vm| snapshot.counter(&figures::IPIS, &[vm], 1));
            snapshot
        };
        let rows = rows_of(&[vec![run(&["b"]), run(&["c", "b"])], vec![run(&["d", "a"]), run(&[])]]);
        assert_eq!(rows.iter().map(|row| row.labels.concat()).collect::<Vec<_>>(), ["b", "c", "d", "a"]);
    }

    #[test]
    fn configurations_are_shared_by_seeds_and_what_does_not_fit_is_refused() {
        let load = |copies: &str, seeds| {
            let settings = vec![("vm.0.copies".to_owned(), copies.to_owned())];
            let overrides = Overrides { settings, ..Overrides::default() };
            Comparison::load("gmake-solo", &["credit".to_owned()], seeds, &overrides, false)
        };
        let comparison = load("1", 1000).expect("it fits");
        assert_eq!((comparison.configs.len(), comparison.seeds.len()), (1, 1000));
        let error = load("100", 1_000_000).expect_err("too much").to_string();
        assert!(error.starts_with("--seeds: 1000000 runs of 100 VMs have up to "), "{error}");
    }

    #[test]
    fn ratios_are_of_the_same_seed_and_absent_where_there_is_nothing_to_divide_by() {
        let rows = rows_of(&[
            vec![snapshot(10.0, None), snapshot(20.0, Some(4))],
            vec![snapshot(20.0, Some(1)), snapshot(40.0, Some(6))],
            vec![snapshot(5.0, None), snapshot(20.0, None)],
        ]);
        let exact = |mean| Some(Estimate { mean, low: mean, high: mean, count: 2 });
        assert_eq!(
            rows[0].ratios[..2],
            [exact(1.0), exact(2.0)],
            "execution times, twice as long with both seeds"
        );
        assert_eq!(rows[0].ratios[2].map(|ratio| ratio.mean), Some(0.75));
        let yields: Vec<_> = rows[1].ratios.iter().map(|ratio| ratio.map(|r| (r.mean, r.count))).collect();
        assert_eq!(
            yields,
            [Some((1.0, 1)), Some((1.5, 1)), Some((0.0, 1))],
            "the first seed has none to divide by"
        );
    }
}
