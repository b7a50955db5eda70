//! Which runs a figure needs, and what they measured.

use crate::SimError;
use crate::batch::{BatchProgress, run_all};
use crate::config::SimulationConfig;
use crate::report::{RunReport, VmReport, WorkloadReport};
use crate::scenario::{self, Overrides, ScenarioError};
use std::collections::BTreeMap;

/// The paper's baseline.
pub const BASELINE: &str = "credit";
/// Algorithm 1, with the host mechanics of the prototype that the paper measured.
pub const DYNAMIC: &str = "micro-xen";
/// Static pools of Figures 4 and 5.
pub const STATIC: [&str; 6] =
    ["micro-xen:1", "micro-xen:2", "micro-xen:3", "micro-xen:4", "micro-xen:5", "micro-xen:6"];

/// A scenario under a policy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Experiment {
    pub scenario: String,
    pub policy: String,
}

impl Experiment {
    pub fn new(scenario: &str, policy: &str) -> Self {
        Self { scenario: scenario.to_owned(), policy: policy.to_owned() }
    }
}

/// The reports of all experiments, one per seed.
#[derive(Debug, Default)]
pub struct RunTable {
    reports: BTreeMap<Experiment, Vec<RunReport>>,
}

/// Why the experiments can't be run.
#[derive(Debug, thiserror::Error)]
pub enum ReproductionError {
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    #[error("{scenario} under {policy}, seed {seed}: {error}")]
    Run { scenario: String, policy: String, seed: u64, error: SimError },
}

impl RunTable {
    /// Runs `experiments` with `seeds`, each configuration changed by `adjust` first.
    pub fn run(
        experiments: &[Experiment],
        seeds: &[u64],
        adjust: &dyn Fn(&mut SimulationConfig),
        progress: &BatchProgress,
    ) -> Result<Self, ReproductionError> {
        let mut jobs = Vec::new();
        for experiment in experiments {
            let overrides = Overrides { policy: Some(experiment.policy.clone()), ..Overrides::default() };
            let mut config = scenario::load(&experiment.scenario, &overrides)?.config;
            adjust(&mut config);
            jobs.extend(seeds.iter().map(|&seed| SimulationConfig { seed, ..config.clone() }));
        }
        let reports = run_all(&jobs, progress).map_err(|(index, error)| {
            let experiment = experiments[index / seeds.len().max(1)].clone();
            let (scenario, policy) = (experiment.scenario, experiment.policy);
            ReproductionError::Run { scenario, policy, seed: jobs[index].seed, error }
        })?;
        let mut reports = reports.into_iter();
        let rows = experiments.iter().map(|e| (e.clone(), reports.by_ref().take(seeds.len()).collect()));
        Ok(Self { reports: rows.collect() })
    }

    /// Events of all runs.
    pub fn events(&self) -> u64 {
        self.reports.values().flatten().map(|report| report.events).sum()
    }

    /// One value per seed; empty if the experiment wasn't run.
    pub fn each(&self, scenario: &str, policy: &str, value: impl Fn(&RunReport) -> f64) -> Vec<f64> {
        self.reports.get(&Experiment::new(scenario, policy)).into_iter().flatten().map(value).collect()
    }

    /// `of / to`, seed by seed, for one value.
    pub fn relative(
        &self,
        scenario: &str,
        of: &str,
        to: &str,
        value: impl Fn(&RunReport) -> f64,
    ) -> Vec<f64> {
        let (above, below) = (self.each(scenario, of, &value), self.each(scenario, to, &value));
        above.iter().zip(&below).map(|(above, below)| above / below).collect()
    }

    /// The static pool with the shortest execution time of the target, of those that were run.
    pub fn best_static(&self, scenario: &str) -> Option<&'static str> {
        let mean = |policy: &str| crate::comparison::mean(&self.each(scenario, policy, target_time));
        let candidates = STATIC.into_iter().filter_map(|policy| mean(policy).map(|time| (policy, time)));
        candidates.min_by(|(_, left), (_, right)| left.total_cmp(right)).map(|(policy, _)| policy)
    }
}

/// The VM under test.
pub fn target(report: &RunReport) -> &VmReport {
    &report.vms[0]
}

/// Time that the work of the target's first workload takes, in s: see [`time_of`].
pub fn target_time(report: &RunReport) -> f64 {
    time_of(report.vms.first())
}

/// Time that the co-runner's work takes, in s: see [`time_of`].
pub fn corunner_time(report: &RunReport) -> f64 {
    time_of(report.vms.get(1))
}

/// Execution time of a run; of one unit if runs end by the clock. Only times of the same workload compare.
fn time_of(vm: Option<&VmReport>) -> f64 {
    let time = |workload: &WorkloadReport| {
        let of_one_unit = (workload.units_per_s > 0.0).then(|| 1.0 / workload.units_per_s);
        workload.execution_time_s.or(of_one_unit)
    };
    vm.and_then(|vm| vm.workloads.first()).and_then(time).unwrap_or(f64::NAN)
}

/// A count or a time of the measured interval, as it would be over one whole run of the target.
pub fn over_one_run(report: &RunReport, measured: u64) -> f64 {
    let length = |workload: &WorkloadReport| workload.execution_time_s.or(workload.run_time_s);
    let run_s = target(report).workloads.first().and_then(length);
    measured as f64 / (report.measured_ns as f64 / 1e9) * run_s.unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace_event::NoTrace;

    /// The first 100 ms of a scenario.
    fn short_run(scenario: &str) -> RunReport {
        let mut config = scenario::load(scenario, &Overrides::default()).expect("a built-in scenario").config;
        (config.warmup_ns, config.duration_ns) = (0, 100_000_000);
        crate::simulate(&config, &mut NoTrace).expect("runs")
    }

    #[test]
    fn a_run_that_ends_by_the_clock_counts_over_its_time_and_has_that_of_one_unit() {
        let report = short_run("exim-solo");
        let exim = &target(&report).workloads[0];
        assert_eq!((exim.execution_time_s, exim.run_time_s), (None, Some(15.0)));
        assert!((over_one_run(&report, 2) - 2.0 / 0.1 * 15.0).abs() < 1e-6);
        assert!((target_time(&report) * exim.units_per_s - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_run_that_ends_with_its_work_counts_over_its_execution_time() {
        let report = short_run("gmake-solo");
        let time = target(&report).workloads[0].execution_time_s.expect("it has run_units");
        assert!((over_one_run(&report, 2) - 2.0 / 0.1 * time).abs() < 1e-6);
        assert!((target_time(&report) - time).abs() < 1e-12);
    }

    #[test]
    fn a_vm_without_progress_has_no_time() {
        let mut report = short_run("exim-solo");
        report.vms[0].workloads[0].units_per_s = 0.0;
        assert!(target_time(&report).is_nan());
        assert!(corunner_time(&report).is_nan(), "there is no co-runner");
    }
}
