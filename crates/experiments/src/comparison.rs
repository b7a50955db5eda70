//! Policies side by side on one scenario, over several seeds.

pub use crate::rows::Row;

use crate::batch::{BatchProgress, Job, run_each};
use crate::figures::snapshot_of;
use crate::rows::{RowKeys, entries_of};
use crate::scenario::{self, Overrides, Place, ScenarioError, quoted};
use microslice_engine::SimError;
use microslice_model::config::{SimulationConfig, VmConfig};
use microslice_policy::{Coded, GuestClass};
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

/// Why a comparison can't be made.
#[derive(Debug, thiserror::Error)]
pub enum ComparisonError {
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    #[error("{scenario} under {policy}, seed {seed}: {error}")]
    Run { scenario: String, policy: String, seed: u64, error: SimError },
}

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
            keys.lock().unwrap_or_else(PoisonError::into_inner).numbers_of(index, entries_of(&snapshot))
        });
        let numbers = numbers.map_err(|(index, error)| ComparisonError::Run {
            scenario: self.scenario.clone(),
            policy: self.policies[index / self.seeds.len()].clone(),
            seed: jobs[index].seed,
            error,
        })?;
        let numbers: Vec<_> = numbers.into_iter().map(Some).collect();
        let by_policy: Vec<_> = numbers.chunks(self.seeds.len()).collect();
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
pub fn blame_policies(mut error: ScenarioError) -> ScenarioError {
    if let Some(behind) = error.place.file.strip_prefix("--policy").filter(|_| error.place.is_command_line())
    {
        error.place = Place::whole(&format!("--policies{behind}"));
    }
    error.cause = error.cause.replace("`--policy`", "`--policies`");
    error
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
