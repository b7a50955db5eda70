//! Regret: on programs that nobody chose, what would an operator lose by a policy that he hadn't lost by the
//! first one?
//!
//! [`Regret`] runs scenarios that are drawn from seeds ([`generator`], [`programs`]) under each policy, and
//! [`summary`] says how throughput, waits and shares compare. Each scenario is a file: [`scenario`] writes
//! it, and the runs read what it wrote.

mod draw;
mod generator;
mod programs;
mod summary;
#[cfg(test)]
mod tests;

pub use generator::scenario;
pub use summary::{Counts, Distribution, Summary, Verdict, summaries};

use generator::{DURATION_NS, WARMUP_NS};
use microslice_engine::SimError;
use microslice_engine::report::RunReport;
use microslice_engine::simulate;
use microslice_experiments::batch::{BatchProgress, run_numbered};
use microslice_experiments::scenario::{Overrides, ScenarioError, parse};
use microslice_model::config::SimulationConfig;

/// Runs of each scenario under each policy, each with a seed of its own, from the scenario's on.
pub const RUNS: u64 = 2;

/// What to compare. All policies are compared with the first one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Regret {
    pub policies: Vec<String>,
    pub scenarios: u64,
    /// Of the first scenario; the others follow.
    pub first_seed: u64,
    /// Verify the model's invariants in every run.
    pub check: bool,
}

/// What one scenario showed.
#[derive(Debug, Clone, PartialEq)]
pub struct ScenarioResult {
    pub seed: u64,
    /// That its shares can be said to be due: no VM is pinned.
    pub has_dues: bool,
    /// Of each policy, and behind them of the first one again, with other seeds: what two runs differ by that
    /// differ in nothing else.
    pub outcomes: Vec<Outcome>,
}

/// What the runs of one scenario under one policy made.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Units of work of each workload of each VM, all runs together.
    pub units: Vec<Vec<u64>>,
    /// From runnable to running, all vCPUs; geometric mean over the runs, in ns.
    pub wait_p99_ns: f64,
    pub wait_p999_ns: f64,
    /// The largest difference between a VM's share of the host and what is due to it by the policy's own
    /// weights; mean over the runs.
    pub share_error: f64,
    /// vCPUs that were accelerated.
    pub accelerations: u64,
}

/// Why a comparison can't be made.
#[derive(Debug, thiserror::Error)]
pub enum RegretError {
    /// A policy that there isn't, or that a host of this size can't have.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    #[error("regret scenario {scenario} under {policy}, seed {seed}: {error}")]
    Run { scenario: u64, policy: String, seed: u64, error: SimError },
}

/// Why a run failed, before it is known which.
enum RunError {
    Scenario(ScenarioError),
    Simulation(SimError),
}

impl From<SimError> for RunError {
    fn from(error: SimError) -> Self {
        Self::Simulation(error)
    }
}

/// One run's part of an [`Outcome`].
struct Run {
    has_dues: bool,
    outcome: Outcome,
}

impl Regret {
    /// Runs everything, on all cores; the results come in the order of the scenarios' seeds.
    pub fn run(&self, progress: &BatchProgress) -> Result<Vec<ScenarioResult>, RegretError> {
        // Policies that there aren't are refused before anything runs.
        let first = scenario(self.first_seed);
        for policy in &self.policies {
            self.configuration(&first, self.first_seed, policy, self.first_seed)?;
        }
        let per_scenario = self.columns() * RUNS as usize;
        let jobs = self.scenarios as usize * per_scenario;
        let runs = run_numbered(jobs, jobs as u64 * (WARMUP_NS + DURATION_NS), progress, |job, sink| {
            let (number, policy, seed) = self.job(job);
            let config = self.configuration(&scenario(number), number, policy, seed);
            let config = config.map_err(RunError::Scenario)?;
            Ok(Run::of(&config, &simulate(&config, sink)?))
        });
        let runs = runs.map_err(|(job, error)| self.failed(job, error))?;
        let results = runs.chunks(per_scenario).zip(self.first_seed..).map(|(runs, seed)| ScenarioResult {
            seed,
            has_dues: runs[0].has_dues,
            outcomes: runs.chunks(RUNS as usize).map(Outcome::of).collect(),
        });
        Ok(results.collect())
    }

    /// The policies, and the first one again.
    fn columns(&self) -> usize {
        self.policies.len() + 1
    }

    /// Of a job, the scenario's seed, the policy, and the run's seed.
    fn job(&self, job: usize) -> (u64, &str, u64) {
        let (run, column) = (job as u64 % RUNS, job / RUNS as usize % self.columns());
        let scenario = self.first_seed + (job / RUNS as usize / self.columns()) as u64;
        match self.policies.get(column) {
            Some(policy) => (scenario, policy, scenario.wrapping_add(run)),
            None => (scenario, &self.policies[0], scenario.wrapping_add(RUNS + run)),
        }
    }

    fn configuration(
        &self,
        text: &str,
        number: u64,
        policy: &str,
        seed: u64,
    ) -> Result<SimulationConfig, ScenarioError> {
        let policy = Some(policy.to_owned());
        // A seed of a file is at most the largest signed number.
        let seed = Some(seed & i64::MAX as u64);
        let overrides = Overrides { policy, seed, settings: Vec::new() };
        let scenario = parse(&file_name(number), text, &overrides)
            .map_err(microslice_experiments::comparison::blame_policies)?;
        Ok(SimulationConfig { check: self.check, ..scenario.config })
    }

    fn failed(&self, job: usize, error: RunError) -> RegretError {
        let (scenario, policy, seed) = self.job(job);
        match error {
            RunError::Scenario(error) => RegretError::Scenario(error),
            RunError::Simulation(error) => {
                RegretError::Run { scenario, policy: policy.to_owned(), seed, error }
            }
        }
    }
}

/// How the file of a scenario is called.
pub fn file_name(seed: u64) -> String {
    format!("regret-{seed}.toml")
}

impl Run {
    fn of(config: &SimulationConfig, report: &RunReport) -> Self {
        let units_of = |workloads: &[microslice_engine::report::WorkloadReport]| {
            workloads.iter().map(|workload| workload.units_done).collect()
        };
        let wait_ns = |percent| report.wait_to_run.percentile(percent).unwrap_or(0) as f64;
        let outcome = Outcome {
            units: report.vms.iter().map(|vm| units_of(&vm.workloads)).collect(),
            wait_p99_ns: wait_ns(99.0),
            wait_p999_ns: wait_ns(99.9),
            share_error: report.fairness_error_permille as f64 / 1_000.0,
            accelerations: report.pool.acceleration_count(),
        };
        Self { has_dues: config.vms.iter().all(|vm| vm.affinity.is_empty()), outcome }
    }
}

impl Outcome {
    /// Of all runs of a scenario under a policy.
    fn of(runs: &[Run]) -> Self {
        let mut units = runs[0].outcome.units.clone();
        for run in &runs[1..] {
            let sums = units.iter_mut().flatten();
            sums.zip(run.outcome.units.iter().flatten()).for_each(|(sum, more)| *sum += more);
        }
        let count = runs.len() as f64;
        // A wait of less than a nanosecond has no logarithm.
        let mean_wait_ns = |wait_ns: fn(&Outcome) -> f64| {
            (runs.iter().map(|run| wait_ns(&run.outcome).max(1.0).ln()).sum::<f64>() / count).exp()
        };
        Self {
            units,
            wait_p99_ns: mean_wait_ns(|outcome| outcome.wait_p99_ns),
            wait_p999_ns: mean_wait_ns(|outcome| outcome.wait_p999_ns),
            share_error: runs.iter().map(|run| run.outcome.share_error).sum::<f64>() / count,
            accelerations: runs.iter().map(|run| run.outcome.accelerations).sum(),
        }
    }
}
