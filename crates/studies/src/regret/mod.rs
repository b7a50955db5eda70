//! Regret: on programs that nobody chose, what would an operator lose by a policy that he hadn't lost by the
//! first one?
//!
//! [`Regret`] runs scenarios that are drawn from seeds ([`generator`]) under each policy, and [`summary`]
//! says how work, felt waits and shares compare. Each scenario is a file: [`scenario`] writes it, and the
//! runs read what it wrote.

mod draw;
mod felt;
mod generator;
mod misses;
mod papers;
mod programs;
mod summary;
#[cfg(test)]
mod tests;
mod today;

pub use felt::{FELT_WAITS, FeltTimes, FeltWait};
pub use generator::Hosts;
pub use misses::Miss;
pub use summary::{Counts, Distribution, Felt, Group, Summary, Verdict, summaries};

use generator::{DURATION_NS, Scenario, WARMUP_NS};
use microslice_engine::SimError;
use microslice_engine::report::RunReport;
use microslice_engine::simulate;
use microslice_experiments::batch::{BatchProgress, run_numbered};
use microslice_experiments::scenario::{Overrides, ScenarioError, parse};
use microslice_model::config::{InterruptMode, SimulationConfig, VmConfig};

/// Scenarios that run before it is asked whether intervals are narrow enough.
const BATCH: u64 = 40;

/// What to compare. All policies are compared with the first one.
#[derive(Debug, Clone, PartialEq)]
pub struct Regret {
    pub policies: Vec<String>,
    pub hosts: Hosts,
    /// How many; with a precision, at most.
    pub scenarios: u64,
    /// Half of the 95 % interval of each policy's mean work at which there are enough scenarios, as a part of
    /// the first policy's work.
    pub precision: Option<f64>,
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
    /// How interrupts reach vCPUs, in a word of scenario files.
    pub interrupts: &'static str,
    /// What each VM runs, in a word or two.
    pub programs: Vec<Vec<&'static str>>,
    /// Of each policy, and behind them of the first one again, with other seeds: what two runs differ by that
    /// differ in nothing else.
    pub outcomes: Vec<Outcome>,
}

/// What the run of one scenario under one policy made.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Units of work of each workload of each VM.
    pub units: Vec<Vec<u64>>,
    /// Of each VM.
    pub felt: Vec<FeltTimes>,
    /// The longest wait for a pCPU of each VM in each second, in ns.
    pub longest_waits: Vec<u64>,
    /// Of each VM of several vCPUs, the part of the time by which siblings' waits differ.
    pub skews: Vec<f64>,
    /// The largest difference between a VM's share of the host and what is due to it by the policy's own
    /// weights.
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
    interrupts: &'static str,
    outcome: Outcome,
}

impl Regret {
    /// Runs everything, on all cores; the results come in the order of the scenarios' seeds.
    pub fn run(&self, progress: &BatchProgress) -> Result<Vec<ScenarioResult>, RegretError> {
        // Policies that there aren't are refused before anything runs.
        let first = self.draw(self.first_seed);
        for policy in &self.policies {
            self.configuration(&first.text, self.first_seed, policy, self.first_seed)?;
        }
        let batch = if self.precision.is_some() { BATCH } else { self.scenarios };
        let mut results = Vec::new();
        while (results.len() as u64) < self.scenarios && !self.is_precise(&results) {
            let first_seed = self.first_seed + results.len() as u64;
            let scenarios = batch.min(self.scenarios - results.len() as u64);
            results.extend(self.run_some(first_seed, scenarios, progress)?);
        }
        Ok(results)
    }

    fn run_some(
        &self,
        first_seed: u64,
        scenarios: u64,
        progress: &BatchProgress,
    ) -> Result<Vec<ScenarioResult>, RegretError> {
        let jobs = scenarios as usize * self.columns();
        let runs = run_numbered(jobs, jobs as u64 * (WARMUP_NS + DURATION_NS), progress, |job, sink| {
            let (number, policy, seed) = self.job(first_seed, job);
            let config = self.configuration(&self.draw(number).text, number, policy, seed);
            let config = config.map_err(RunError::Scenario)?;
            Ok(Run::of(&config, &simulate(&config, sink)?))
        });
        let runs = runs.map_err(|(job, error)| self.failed(first_seed, job, error))?;
        let results = runs.chunks(self.columns()).zip(first_seed..).map(|(runs, seed)| ScenarioResult {
            seed,
            has_dues: runs[0].has_dues,
            interrupts: runs[0].interrupts,
            programs: self.draw(seed).programs,
            outcomes: runs.iter().map(|run| run.outcome.clone()).collect(),
        });
        Ok(results.collect())
    }

    fn is_precise(&self, results: &[ScenarioResult]) -> bool {
        self.precision.is_some_and(|precision| {
            let all = summaries(&self.policies, results);
            let compared = &all[1..self.policies.len()];
            compared.iter().all(|of| of.work().is_some_and(|work| work.half_width() <= precision))
        })
    }

    fn draw(&self, seed: u64) -> Scenario {
        Scenario::draw(self.hosts, seed)
    }

    /// The policies, and the first one again.
    fn columns(&self) -> usize {
        self.policies.len() + 1
    }

    /// Of a job, the scenario's seed, the policy, and the run's seed.
    fn job(&self, first_seed: u64, job: usize) -> (u64, &str, u64) {
        let scenario = first_seed + (job / self.columns()) as u64;
        match self.policies.get(job % self.columns()) {
            Some(policy) => (scenario, policy, scenario),
            None => (scenario, &self.policies[0], scenario.wrapping_add(1)),
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

    fn failed(&self, first_seed: u64, job: usize, error: RunError) -> RegretError {
        let (scenario, policy, seed) = self.job(first_seed, job);
        match error {
            RunError::Scenario(error) => RegretError::Scenario(error),
            RunError::Simulation(error) => {
                RegretError::Run { scenario, policy: policy.to_owned(), seed, error }
            }
        }
    }
}

/// Returns the scenario of this seed, as a file.
pub fn scenario(hosts: Hosts, seed: u64) -> String {
    Scenario::draw(hosts, seed).text
}

/// How the file of a scenario is called.
pub fn file_name(seed: u64) -> String {
    format!("regret-{seed}.toml")
}

fn skews(report: &RunReport) -> Vec<f64> {
    let wide = report.vms.iter().filter(|vm| vm.vcpus > 1);
    wide.map(|vm| vm.skew_ns as f64 / report.measured_ns as f64).collect()
}

impl Run {
    fn of(config: &SimulationConfig, report: &RunReport) -> Self {
        let units_of = |workloads: &[microslice_engine::report::WorkloadReport]| {
            workloads.iter().map(|workload| workload.units_done).collect()
        };
        let outcome = Outcome {
            units: report.vms.iter().map(|vm| units_of(&vm.workloads)).collect(),
            felt: report.vms.iter().map(FeltTimes::of).collect(),
            longest_waits: report.vms.iter().flat_map(|vm| &vm.longest_waits).copied().collect(),
            skews: skews(report),
            share_error: report.fairness_error_permille as f64 / 1_000.0,
            accelerations: report.pool.acceleration_count(),
        };
        let interrupts = match config.host.kvm.as_ref().map(|kvm| kvm.interrupts) {
            None | Some(InterruptMode::Software) => "software",
            Some(InterruptMode::Apicv) => "apicv",
            Some(InterruptMode::Avic) => "avic",
            Some(InterruptMode::Ipiv) => "ipiv",
        };
        let is_free = |vm: &VmConfig| vm.affinity.is_empty() && vm.cpu_max.is_none();
        Self { has_dues: config.vms.iter().all(is_free), interrupts, outcome }
    }
}
