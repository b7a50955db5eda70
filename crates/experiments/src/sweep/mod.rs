//! Many runs as data: scenarios x settings x policies x seeds, on one machine or in parts on many
//! (docs/how-to/sweep.md).
//!
//! Mechanism. A run's figures are one line of a journal, written when the run is over. Each process has a
//!            journal of its own. All journals beside one another together say what is left to run. When
//!            nothing is, their lines in the order of the runs are the results: the same bytes whichever
//!            process ran what, and when.
//! Numbering. The seed counts fastest, then the policy, the setting, the scenario: a scenario under a setting
//!            is what `compare` shows.

mod file;
mod journal;
mod summary;

pub use journal::{Journal, Journals, Part, WriteError, ranges};
pub use summary::{FailedRun, Group, are_there, groups};

use crate::batch::{BatchProgress, run_numbered_on};
use crate::figures::snapshot_of;
use crate::scenario::{Changes, NodeValue, ScenarioError, load_named};
use file::Axes;
use fnv::FnvHasher;
use microslice_engine::{SimError, simulate};
use microslice_metrics::checksum::seal;
use microslice_metrics::json::numbers_of_snapshot;
use microslice_model::config::SimulationConfig;
use microslice_model::events::TraceSink;
use serde_json::{Value as Json, json};
use std::fmt::Write;
use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Of everything beside the sweep that figures depend on: see build.rs.
const MODEL: &str = env!("MICROSLICE_MODEL");
/// Of the files of results.
const FORMAT: u64 = 2;

/// A sweep whose every configuration was read once.
#[derive(Debug, Clone)]
pub struct Sweep {
    axes: Axes,
    /// Of each scenario, setting and policy.
    points: Vec<Point>,
    first_line: String,
}

#[derive(Debug, Clone, Copy)]
struct Point {
    /// Of the configuration.
    digest: u64,
    simulated_ns: u64,
}

/// Which run: what its line begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunName<'s> {
    /// From 1.
    pub number: usize,
    pub scenario: &'s str,
    pub setting: &'s str,
    pub policy: &'s str,
    pub seed: u64,
}

/// Why a sweep can't go on.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A file of results, its line (0: none), and what is wrong there.
    #[error("{}{}: {cause}", .path.display(), place_of(*.line))]
    File { path: PathBuf, line: usize, cause: String },
    /// Some runs are nowhere.
    #[error("{0}")]
    Missing(String),
    #[error("stopped")]
    Stopped,
}

fn place_of(line: usize) -> String {
    if line == 0 { String::new() } else { format!(":{line}") }
}

impl SweepError {
    fn of_file(path: &Path, cause: impl ToString) -> Self {
        Self::at_line(path, 0, cause)
    }

    fn at_line(path: &Path, line: usize, cause: impl ToString) -> Self {
        Self::File { path: path.to_owned(), line, cause: cause.to_string() }
    }
}

impl From<SimError> for SweepError {
    /// Whatever else ends a run is its result.
    fn from(_: SimError) -> Self {
        Self::Stopped
    }
}

impl Sweep {
    /// Reads the file, and every scenario under every setting and policy.
    pub fn load(path: &str) -> Result<Self, ScenarioError> {
        let mut sweep = Self { axes: Axes::read(path)?, points: Vec::new(), first_line: String::new() };
        for point in 0..sweep.runs() / sweep.axes.seeds.len() {
            let config = sweep.read(point)?;
            let simulated_ns = config.warmup_ns + config.duration_ns;
            sweep.points.push(Point { digest: digest(&config), simulated_ns });
        }
        sweep.first_line = sweep.describe();
        Ok(sweep)
    }

    pub fn description(&self) -> &str {
        &self.axes.description
    }

    pub fn scenarios(&self) -> Vec<&str> {
        self.axes.scenarios.iter().map(text_of).collect()
    }

    pub fn settings(&self) -> Vec<&str> {
        self.axes.settings.iter().map(|setting| setting.name.as_str()).collect()
    }

    pub fn policies(&self) -> Vec<&str> {
        self.axes.policies.iter().map(text_of).collect()
    }

    pub fn seeds(&self) -> &[u64] {
        &self.axes.seeds
    }

    /// Files of the disk that the sweep itself was read from.
    pub fn files(&self) -> &[PathBuf] {
        &self.axes.files
    }

    pub fn runs(&self) -> usize {
        let axes = &self.axes;
        axes.scenarios.len() * axes.settings.len() * axes.policies.len() * axes.seeds.len()
    }

    /// Which run has that index, from 0.
    pub fn name(&self, run: usize) -> RunName<'_> {
        let axes = &self.axes;
        let (seed, point) = (run % axes.seeds.len(), run / axes.seeds.len());
        let [scenario, setting, policy] = self.place(point);
        RunName {
            number: run + 1,
            scenario: text_of(&axes.scenarios[scenario]),
            setting: &axes.settings[setting].name,
            policy: text_of(&axes.policies[policy]),
            seed: axes.seeds[seed],
        }
    }

    /// Scenario, setting and policy of a point.
    fn place(&self, point: usize) -> [usize; 3] {
        let (policies, settings) = (self.axes.policies.len(), self.axes.settings.len());
        [point / policies / settings, point / policies % settings, point % policies]
    }

    fn read(&self, point: usize) -> Result<SimulationConfig, ScenarioError> {
        let [scenario, setting, policy] = self.place(point);
        let changes = Changes {
            policy: Some(self.axes.policies[policy].clone()),
            seed: None,
            settings: self.axes.settings[setting].changes.clone(),
        };
        let scenario = load_named(self.axes.library.clone(), &self.axes.scenarios[scenario], &changes)?;
        Ok(SimulationConfig { check: self.axes.check, ..scenario.config })
    }

    /// What a file of its results begins with: two sweeps with the same first line have the same results.
    pub fn first_line(&self) -> &str {
        &self.first_line
    }

    fn describe(&self) -> String {
        let mut hasher = FnvHasher::default();
        for point in &self.points {
            hasher.write_u64(point.digest);
        }
        for seed in &self.axes.seeds {
            hasher.write_u64(*seed);
        }
        let names = [self.scenarios(), self.settings(), self.policies()];
        hasher.write(format!("{names:?}").as_bytes());
        let sweep = format!("{:016x}", hasher.finish());
        let line = json!({ "microslice_sweep": FORMAT, "sweep": sweep, "model": MODEL, "runs": self.runs() });
        seal(&line.to_string(), b"")
    }

    /// Runs these (by index), so many at once. `record` has each one's line, in the order in which they end.
    pub fn run(
        &self,
        runs: &[usize],
        threads: usize,
        progress: &BatchProgress,
        record: impl Fn(usize, &str) -> Result<(), SweepError> + Sync,
    ) -> Result<(), SweepError> {
        let simulated_ns = |&run: &usize| self.points[run / self.axes.seeds.len()].simulated_ns;
        let total_ns = runs.iter().map(simulated_ns).sum();
        let failure = Mutex::new(None);
        let done = run_numbered_on(threads, runs.len(), total_ns, progress, |at, sink| {
            let line = self.line(runs[at], sink);
            line.and_then(|line| record(runs[at], &line)).map_err(|error| {
                // Nobody waits for the others: what they are is kept nowhere, or no longer what was asked
                // for.
                progress.stop();
                lock(&failure).get_or_insert(error);
                SweepError::Stopped
            })
        });
        match lock(&failure).take() {
            Some(SweepError::Stopped) | None => done.map(drop).map_err(|(_, error)| error),
            Some(error) => Err(error),
        }
    }

    /// One run's figures, or why it has none: that a workload deadlocks is a result, too.
    fn line(&self, run: usize, sink: &mut dyn TraceSink) -> Result<String, SweepError> {
        let name = self.name(run);
        let mut line = json!({
            "run": name.number,
            "scenario": name.scenario,
            "setting": name.setting,
            "policy": name.policy,
            "seed": name.seed,
        });
        match simulate(&self.seeded(run)?, sink) {
            Ok(report) => line["figures"] = numbers_of_snapshot(&snapshot_of(&report)),
            Err(SimError::Stopped { .. }) => return Err(SweepError::Stopped),
            Err(error) => {
                line["failed"] = Json::from(kind_of(&error));
                line["cause"] = Json::from(error.to_string());
            }
        }
        Ok(seal(&line.to_string(), self.first_line.as_bytes()))
    }

    /// Read anew for each run: all configurations of a large sweep don't fit into memory.
    fn seeded(&self, run: usize) -> Result<SimulationConfig, ScenarioError> {
        let point = run / self.axes.seeds.len();
        let config = self.read(point)?;
        if digest(&config) != self.points[point].digest {
            let place = &self.axes.scenarios[self.place(point)[0]].place;
            let cause = format!("{:?} has changed since this sweep began", self.name(run).scenario);
            return Err(ScenarioError::new(place, cause));
        }
        Ok(SimulationConfig { seed: self.name(run).seed, ..config })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn kind_of(error: &SimError) -> &'static str {
    match error {
        SimError::Config { .. } => "config",
        SimError::Deadlock { .. } => "deadlock",
        SimError::Check { .. } => "check",
        SimError::Panic { .. } => "panic",
        SimError::Stopped { .. } => "stopped",
    }
}

/// Text, as [`Axes::read`] has seen to.
fn text_of(node: &crate::scenario::Node) -> &str {
    match &node.value {
        NodeValue::String(text) => text,
        _ => "",
    }
}

/// Of everything in a configuration but the seed, which each run sets.
fn digest(config: &SimulationConfig) -> u64 {
    struct Digest(FnvHasher);
    impl Write for Digest {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            self.0.write(text.as_bytes());
            Ok(())
        }
    }
    let mut digest = Digest(FnvHasher::default());
    let SimulationConfig {
        seed: _,
        warmup_ns,
        duration_ns,
        host,
        vms,
        cgroups,
        channels,
        scheduler,
        delay,
        guest_times,
        check,
        fold_exits,
    } = config;
    let outside = (cgroups, channels);
    let all = (warmup_ns, duration_ns, host, vms, outside, scheduler, delay, guest_times, check, fold_exits);
    // To write into a hash doesn't fail.
    let _ = write!(digest, "{all:?}");
    digest.0.finish()
}
