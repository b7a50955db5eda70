//! Which runs a figure needs, and what they measured.

use microslice_engine::SimError;
use microslice_engine::report::{RunReport, VmReport, WorkloadReport};
use microslice_experiments::batch::{BatchProgress, run_all};
use microslice_experiments::scenario::{self, Overrides, ScenarioError};
use microslice_metrics::Estimate;
use microslice_model::config::SimulationConfig;
use std::collections::BTreeMap;

/// The paper's baseline.
pub const BASELINE: &str = "credit";
/// Algorithm 1, with the host mechanics of the prototype that the paper measured.
pub const DYNAMIC: &str = "micro-xen";
/// Static pools of Figures 4 and 5.
pub const STATIC: [&str; 6] =
    ["micro-xen:1", "micro-xen:2", "micro-xen:3", "micro-xen:4", "micro-xen:5", "micro-xen:6"];

/// A scenario under a policy, with some of its values changed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Experiment {
    pub scenario: String,
    pub policy: String,
    /// As `--set` takes them.
    pub settings: Vec<(String, String)>,
}

impl Experiment {
    pub fn new(scenario: &str, policy: &str) -> Self {
        Self { scenario: scenario.to_owned(), policy: policy.to_owned(), settings: Vec::new() }
    }

    /// The same with this value.
    pub fn set(mut self, path: &str, value: impl ToString) -> Self {
        self.settings.push((path.to_owned(), value.to_string()));
        self
    }

    pub(super) fn overrides(&self) -> Overrides {
        Overrides {
            policy: Some(self.policy.clone()),
            settings: self.settings.clone(),
            ..Overrides::default()
        }
    }

    fn name(&self) -> String {
        let settings = self.settings.iter().map(|(path, value)| format!(" {path}={value}"));
        format!("{}{}", self.scenario, settings.collect::<String>())
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
            let mut config = scenario::load(&experiment.scenario, &experiment.overrides())?.config;
            adjust(&mut config);
            jobs.extend(seeds.iter().map(|&seed| SimulationConfig { seed, ..config.clone() }));
        }
        let reports = run_all(&jobs, progress).map_err(|(index, error)| {
            let experiment = experiments[index / seeds.len().max(1)].clone();
            let (scenario, policy) = (experiment.name(), experiment.policy);
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
        self.of(&Experiment::new(scenario, policy), value)
    }

    /// One value per seed of an experiment; empty if it wasn't run.
    pub fn of(&self, experiment: &Experiment, value: impl Fn(&RunReport) -> f64) -> Vec<f64> {
        self.reports.get(experiment).into_iter().flatten().map(value).collect()
    }

    /// The report of an experiment's first seed.
    pub fn first(&self, experiment: &Experiment) -> Option<&RunReport> {
        self.reports.get(experiment)?.first()
    }

    /// `of / to`, seed by seed, for one value; infinite where one of both is: nothing says how much slower a
    /// run without progress is, or how much faster the other one.
    pub fn relative(
        &self,
        scenario: &str,
        of: &str,
        to: &str,
        value: impl Fn(&RunReport) -> f64,
    ) -> Vec<f64> {
        let (above, below) = (self.each(scenario, of, &value), self.each(scenario, to, &value));
        let ratio = |above: f64, below: f64| {
            if above.is_infinite() || below.is_infinite() { f64::INFINITY } else { above / below }
        };
        above.iter().zip(&below).map(|(&above, &below)| ratio(above, below)).collect()
    }

    /// The static pool with the shortest execution time of the target, of those that were run. One in which
    /// the target starves with any seed isn't it.
    pub fn best_static(&self, scenario: &str) -> Option<&'static str> {
        let mean = |policy: &str| mean(&self.each(scenario, policy, target_time));
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
/// Infinite for a VM that made no progress; NaN if there is no such VM.
pub fn time_of(vm: Option<&VmReport>) -> f64 {
    let time = |workload: &WorkloadReport| workload.execution_time_s.unwrap_or(1.0 / workload.units_per_s);
    vm.and_then(|vm| vm.workloads.first()).map_or(f64::NAN, time)
}

/// A count or a time of the measured interval, as it would be over one whole run of the target; infinite if
/// that never ends.
pub fn over_one_run(report: &RunReport, measured: u64) -> f64 {
    let run_time_s = target(report).workloads.first().and_then(|workload| workload.run_time_s);
    per_work(measured as f64 / (report.measured_ns as f64 / 1e9), run_time_s.unwrap_or(target_time(report)))
}

/// So many a second, for work that takes so long. Without progress it is infinite, were it never so rare.
pub fn per_work(per_second: f64, time_s: f64) -> f64 {
    if time_s.is_infinite() { f64::INFINITY } else { per_second * time_s }
}

/// Mean of the runs that have a value (of which NaN is none); infinite if one of them is.
pub fn mean(values: &[f64]) -> Option<f64> {
    if stalled(values) > 0 { Some(f64::INFINITY) } else { Estimate::of(values).map(|estimate| estimate.mean) }
}

/// The same with its confidence interval. None if one of the runs has an infinite value: without it the mean
/// would be better than that of a VM which starves with no seed.
pub fn estimate(values: &[f64]) -> Option<Estimate> {
    if stalled(values) > 0 { None } else { Estimate::of(values) }
}

/// How many runs have an infinite value: in them a VM made no progress.
pub fn stalled(values: &[f64]) -> usize {
    values.iter().filter(|value| value.is_infinite()).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use microslice_model::events::NoTrace;

    /// The first 100 ms of a scenario.
    fn short_run(scenario: &str) -> RunReport {
        let mut config = scenario::load(scenario, &Overrides::default()).expect("a built-in scenario").config;
        (config.warmup_ns, config.duration_ns) = (0, 100_000_000);
        microslice_engine::simulate(&config, &mut NoTrace).expect("runs")
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

    /// The target makes no progress.
    fn starve(report: &mut RunReport) {
        let workload = &mut report.vms[0].workloads[0];
        (workload.units_done, workload.units_per_s, workload.execution_time_s) = (0, 0.0, None);
    }

    #[test]
    fn a_vm_without_progress_is_infinitely_slow_and_one_that_is_not_there_has_no_time() {
        for scenario in ["exim-solo", "gmake-solo"] {
            let mut report = short_run(scenario);
            starve(&mut report);
            assert_eq!(target_time(&report), f64::INFINITY, "{scenario}");
            assert!(corunner_time(&report).is_nan(), "there is no co-runner");
        }
    }

    #[test]
    fn over_a_run_that_never_ends_there_is_no_end_of_anything() {
        let mut report = short_run("gmake-solo");
        starve(&mut report);
        assert_eq!(over_one_run(&report, 0), f64::INFINITY);
    }

    /// Two seeds, of which the second one may starve under this policy.
    fn two_seeds(policy: &str, starves: bool) -> (Experiment, Vec<RunReport>) {
        let mut reports = vec![short_run("gmake-solo"); 2];
        if starves {
            starve(&mut reports[1]);
        }
        (Experiment::new("gmake-solo", policy), reports)
    }

    #[test]
    fn a_seed_without_progress_does_not_make_a_mean_better() {
        let reports = [two_seeds(BASELINE, false), two_seeds("micro-xen:1", true)];
        let runs = RunTable { reports: BTreeMap::from(reports) };
        for (of, to) in [("micro-xen:1", BASELINE), (BASELINE, "micro-xen:1")] {
            let times = runs.relative("gmake-solo", of, to, target_time);
            assert_eq!(times, [1.0, f64::INFINITY]);
            assert_eq!((mean(&times), estimate(&times)), (Some(f64::INFINITY), None));
        }
    }

    #[test]
    fn a_static_pool_in_which_the_target_starves_with_one_seed_is_not_the_best() {
        let mut slower = two_seeds("micro-xen:2", false);
        for report in &mut slower.1 {
            report.vms[0].workloads[0].execution_time_s = Some(1e6);
        }
        let reports = [two_seeds("micro-xen:1", true), slower];
        let runs = RunTable { reports: BTreeMap::from(reports) };
        assert_eq!(runs.best_static("gmake-solo"), Some("micro-xen:2"));
    }
}
