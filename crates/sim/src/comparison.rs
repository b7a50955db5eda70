//! Policies side by side on one scenario, over several seeds.

use crate::SimError;
use crate::batch::{BatchProgress, run_all};
use crate::config::SimulationConfig;
use crate::figures::snapshot_of;
use crate::scenario::{self, Overrides, Place, ScenarioError, quoted};
use microslice_metrics::{Estimate, Figure, Kind, Snapshot, figures};
use std::path::PathBuf;

/// What to compare.
#[derive(Debug, Clone)]
pub struct Comparison {
    pub scenario: String,
    pub description: String,
    pub policies: Vec<String>,
    pub seeds: Vec<u64>,
    /// Of the disk, that the scenario and the policies were read from.
    pub files: Vec<PathBuf>,
    jobs: Vec<SimulationConfig>,
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
        let (mut jobs, mut seeds, mut description) = (Vec::new(), Vec::new(), String::new());
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
            jobs.extend(seeds.iter().map(|&seed| SimulationConfig {
                seed,
                check,
                ..scenario.config.clone()
            }));
        }
        let (scenario, policies) = (reference.to_owned(), policies.to_vec());
        Ok(Self { scenario, description, policies, seeds, files, jobs })
    }

    /// Runs everything: one row per figure and labels, in the order in which reports show them.
    pub fn run(&self, progress: &BatchProgress) -> Result<Vec<Row>, ComparisonError> {
        let reports = run_all(&self.jobs, progress).map_err(|(index, error)| ComparisonError::Run {
            scenario: self.scenario.clone(),
            policy: self.policies[index / self.seeds.len()].clone(),
            seed: self.jobs[index].seed,
            error,
        })?;
        let by_policy: Vec<Vec<Snapshot>> =
            reports.chunks(self.seeds.len()).map(|runs| runs.iter().map(snapshot_of).collect()).collect();
        Ok(rows_of(&by_policy))
    }
}

/// What a scenario calls `--policy` is one of `--policies` here.
fn blame_policies(mut error: ScenarioError) -> ScenarioError {
    if let Some(behind) = error.place.file.strip_prefix("--policy").filter(|_| error.place.is_command_line())
    {
        error.place = Place::whole(&format!("--policies{behind}"));
    }
    error
}

impl Row {
    /// Whether people want to see it without asking.
    pub fn is_main(&self) -> bool {
        MAIN_FIGURES.iter().any(|figure| figure.id == self.figure.id)
    }
}

/// Every (figure, labels) that any run has, in the figures' order, then by first appearance.
fn rows_of(by_policy: &[Vec<Snapshot>]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for figure in figures::ALL {
        let mut labels: Vec<&Vec<String>> = Vec::new();
        for entry in by_policy.iter().flatten().flat_map(|snapshot| snapshot.of(figure)) {
            if !labels.contains(&&entry.labels) {
                labels.push(&entry.labels);
            }
        }
        for labels in labels {
            let values: Vec<Vec<f64>> =
                by_policy.iter().map(|snapshots| values_of(snapshots, figure, labels)).collect();
            let estimates = values.iter().map(|values| Estimate::of(values)).collect();
            let ratios = values.iter().map(|own| relative(own, &values[0])).collect();
            rows.push(Row { figure, labels: labels.clone(), estimates, ratios });
        }
    }
    rows
}

/// One per seed. A counter that a run doesn't mention is zero there; other figures are simply absent (NaN).
fn values_of(snapshots: &[Snapshot], figure: &Figure, labels: &[String]) -> Vec<f64> {
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    let absent = if figure.kind == Kind::Counter { 0.0 } else { f64::NAN };
    let value = |snapshot: &Snapshot| {
        snapshot.get(figure, &labels).and_then(|value| value.number()).unwrap_or(absent)
    };
    snapshots.iter().map(value).collect()
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
