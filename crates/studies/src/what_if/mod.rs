//! What another scheduler would bring the VMs of a profile: a model that is fitted to it, run under each
//! policy.
//!
//! [`fit`] makes the model ([`model`]) behave, under the scheduler of the profile, as the profile says
//! ([`observer`] looks at both in the same way). [`predict`] runs it under other policies.
//! docs/how-to/what-if.md says how well that works, and what it can't know.

mod fit;
mod model;
mod observer;

use fit::{FITTED, blame_profile};
pub use fit::{Fit, fit};
pub use model::{MeasuredHost, Model};
pub use observer::profile_of;

use microslice_engine::SimError;
use microslice_engine::report::{RunReport, VmReport};
use microslice_experiments::batch::{BatchProgress, Job, run_each};
use microslice_experiments::scenario::{Overrides, Place, ScenarioError, parse, quoted};
use microslice_metrics::profile::Profile;
use microslice_metrics::{Estimate, Unit};
use microslice_model::config::SimulationConfig;

/// Why there is no prediction.
#[derive(Debug, thiserror::Error)]
pub enum WhatIfError {
    /// The model can't have what the profile says: the place in it, and the cause.
    #[error("{0}")]
    Profile(String),
    /// A policy that there isn't, or that a host of this size can't have.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    #[error("the fitted scenario under {policy}, seed {seed}: {error}")]
    Run { policy: String, seed: u64, error: SimError },
}

/// What the prediction can't know, whatever the profile says: a line each.
pub const UNKNOWN: [&str; 7] = [
    "which vCPU wakes which: sleeps end by timers, so what faster wake-ups between vCPUs or by devices bring isn't in it",
    "which vCPU does what: all of a VM's do the same, on average",
    "how long locks are held, and which of them: each section takes 2 us, at a rate that fits how many turns ended in one",
    "how many siblings a call goes to: that follows from how many calls and interrupts waited, or is all of them",
    "how long sleeps and computing last but on average: both are exponential",
    "the host's other tasks, the VMMs' threads, cpu.max, NUMA, and what changes over the day",
    "what the host's switches and interrupts cost but by the turns that ended in them: without guests' symbols they cost what one host's did",
];

/// How far predictions were off where they were compared with a measurement (docs/lab/what-if.md): a line
/// each.
pub const WAS_OFF: [&str; 1] = [
    "on an emulated host shootdowns' p50 was 0.77 of the kernel's own; 0.03 was predicted, and 0.17 with --host",
];

/// One figure of a VM, in one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figure {
    /// What its programs computed: a pCPU's worth is 1.
    Work,
    /// pCPUs that it had.
    Cpus,
    /// Part of the time that its vCPUs could have run and had no pCPU.
    Ready,
    ShootdownP50,
    ShootdownP99,
}

impl Figure {
    pub const ALL: [Self; 5] = [Self::Work, Self::Cpus, Self::Ready, Self::ShootdownP50, Self::ShootdownP99];

    /// As tables and JSON call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Work => "work",
            Self::Cpus => "cpus",
            Self::Ready => "ready",
            Self::ShootdownP50 => "shootdown_p50",
            Self::ShootdownP99 => "shootdown_p99",
        }
    }

    pub fn unit(self) -> Unit {
        match self {
            Self::Work | Self::Cpus | Self::Ready => Unit::Ratio,
            Self::ShootdownP50 | Self::ShootdownP99 => Unit::Nanoseconds,
        }
    }

    /// NaN where a VM has none.
    pub fn of(self, vm: &VmReport, measured_ns: u64) -> f64 {
        let percentile = |percent| vm.tlb_sync.percentile(percent).map_or(f64::NAN, |ns| ns as f64);
        let measured_ns = measured_ns.max(1) as f64;
        match self {
            Self::Work => {
                vm.workloads.iter().map(|workload| workload.computed_ns as f64).sum::<f64>() / measured_ns
            }
            Self::Cpus => vm.run_ns as f64 / measured_ns,
            Self::Ready => vm.wait_ns as f64 / measured_ns / vm.vcpus.max(1) as f64,
            Self::ShootdownP50 => percentile(50.0),
            Self::ShootdownP99 => percentile(99.0),
        }
    }
}

/// A figure of a VM under each policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub vm: String,
    pub figure: Figure,
    /// In the order of the policies.
    pub estimates: Vec<Option<Estimate>>,
    /// The same relative to the first policy, seed by seed.
    pub ratios: Vec<Option<Estimate>>,
}

/// A policy by the name that the user gave it, with what the profile knows of the kernel's own scheduler.
pub fn on_this_host(policy: &str, profile: &Profile) -> String {
    let of_the_kernel = ["eevdf", "beside"].iter().any(|name| policy.starts_with(name));
    match profile.host.base_slice_ns {
        Some(ns) if of_the_kernel && !policy.contains("base_slice") => format!("{policy}+base_slice={ns} ns"),
        _ => policy.to_owned(),
    }
}

/// Runs a scenario under each policy, with so many seeds from 1 on.
pub fn predict(
    scenario: &str,
    policies: &[String],
    profile: &Profile,
    seeds: u64,
    progress: &BatchProgress,
) -> Result<Vec<Row>, WhatIfError> {
    let mut configs: Vec<SimulationConfig> = Vec::new();
    for (index, policy) in policies.iter().enumerate() {
        if policies[..index].contains(policy) {
            let cause = format!("{} is named twice", quoted(policy));
            return Err(ScenarioError { place: Place::whole("--policies"), cause }.into());
        }
        let overrides = Overrides { policy: Some(on_this_host(policy, profile)), ..Overrides::default() };
        let read = parse(FITTED, scenario, &overrides).map_err(|error| {
            blame_profile(microslice_experiments::comparison::blame_policies(error), scenario, policy)
        });
        configs.push(read?.config);
    }
    let jobs: Vec<Job<'_>> =
        configs.iter().flat_map(|config| (1..=seeds).map(move |seed| Job { config, seed })).collect();
    let numbers = run_each(&jobs, progress, |_, report| numbers_of(&report)).map_err(|(index, error)| {
        let policy = policies[index / seeds.max(1) as usize].clone();
        WhatIfError::Run { policy, seed: jobs[index].seed, error }
    })?;
    let names: Vec<&str> =
        configs.first().map_or(Vec::new(), |config| config.vms.iter().map(|vm| vm.name.as_str()).collect());
    Ok(rows_of(&names, &numbers, seeds.max(1) as usize))
}

/// Of each VM, in the order of [`Figure::ALL`].
fn numbers_of(report: &RunReport) -> Vec<[f64; Figure::ALL.len()]> {
    report.vms.iter().map(|vm| Figure::ALL.map(|figure| figure.of(vm, report.measured_ns))).collect()
}

fn rows_of(names: &[&str], runs: &[Vec<[f64; Figure::ALL.len()]>], seeds: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    for (vm, name) in names.iter().enumerate() {
        for (at, figure) in Figure::ALL.into_iter().enumerate() {
            let values: Vec<Vec<f64>> = runs
                .chunks(seeds)
                .map(|of_policy| of_policy.iter().map(|run| run[vm][at]).collect())
                .collect();
            let relative = |own: &Vec<f64>| {
                Estimate::of(&own.iter().zip(&values[0]).map(|(own, first)| own / first).collect::<Vec<_>>())
            };
            let row = Row {
                vm: (*name).to_owned(),
                figure,
                estimates: values.iter().map(|values| Estimate::of(values)).collect(),
                ratios: values.iter().map(relative).collect(),
            };
            if row.estimates.iter().any(Option::is_some) {
                rows.push(row);
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use microslice_metrics::profile::HostProfile;

    #[test]
    fn the_kernels_own_scheduler_has_the_slice_that_the_profile_saw() {
        let host = HostProfile {
            pcpus: 4,
            llc_pcpus: 0,
            smt_threads: 1,
            scheduler: "kernel".into(),
            base_slice_ns: Some(28_000_000),
            sees_interrupts: true,
        };
        let profile = Profile::new(1.0, host, Vec::new());
        assert_eq!(on_this_host("eevdf", &profile), "eevdf+base_slice=28000000 ns");
        assert_eq!(on_this_host("beside:paper", &profile), "beside:paper+base_slice=28000000 ns");
        assert_eq!(on_this_host("eevdf+base_slice=1 ms", &profile), "eevdf+base_slice=1 ms");
        assert_eq!(on_this_host("microslice", &profile), "microslice");
    }

    #[test]
    fn ratios_are_of_the_same_seed() {
        let run = |work: f64| vec![[work, 1.0, 0.5, f64::NAN, f64::NAN]];
        let rows = rows_of(&["vm"], &[run(1.0), run(2.0), run(2.0), run(4.0)], 2);
        assert_eq!(rows.len(), 3, "no shootdowns, no rows of them");
        let mean = |estimate: Option<Estimate>| estimate.map(|estimate| estimate.mean);
        assert_eq!((mean(rows[0].estimates[1]), mean(rows[0].ratios[1])), (Some(3.0), Some(2.0)));
    }
}
