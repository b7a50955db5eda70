//! Independent runs on all cores: results in the order of the jobs, whichever finishes first.

use microslice_engine::report::RunReport;
use microslice_engine::simulation::Simulation;
use microslice_engine::{SimError, caught, simulate};
use microslice_model::config::SimulationConfig;
use microslice_model::events::{NoTrace, TraceEvent, TraceNames, TraceSink};
use std::borrow::Cow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How far a batch is, readable while it runs, and the way to stop it.
#[derive(Debug, Default)]
pub struct BatchProgress {
    stop: AtomicBool,
    jobs: AtomicUsize,
    jobs_done: AtomicUsize,
    /// Simulated time of all jobs together, so that long runs weigh more.
    simulated_ns: AtomicU64,
    total_ns: AtomicU64,
}

impl BatchProgress {
    /// Ends all runs at their next progress call; safe in a signal handler.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether the batch was stopped.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// (jobs done, jobs, share of simulated time done from 0 to 1).
    pub fn read(&self) -> (usize, usize, f64) {
        let share = self.simulated_ns.load(Ordering::Relaxed) as f64
            / self.total_ns.load(Ordering::Relaxed).max(1) as f64;
        (self.jobs_done.load(Ordering::Relaxed), self.jobs.load(Ordering::Relaxed), share.min(1.0))
    }

    /// More jobs begin.
    fn begin(&self, jobs: usize, total_ns: u64) {
        self.jobs.fetch_add(jobs, Ordering::Relaxed);
        self.total_ns.fetch_add(total_ns, Ordering::Relaxed);
    }
}

/// Passes a run's progress on, and everything else to the sink inside.
struct ProgressSink<'p> {
    progress: &'p BatchProgress,
    seen_ns: u64,
    /// Whether an earlier job has failed: then nobody needs this one.
    is_beaten: &'p dyn Fn() -> bool,
    inside: &'p mut dyn TraceSink,
}

impl TraceSink for ProgressSink<'_> {
    fn wants_events(&self) -> bool {
        self.inside.wants_events()
    }

    fn begin(&mut self, names: &TraceNames) {
        self.inside.begin(names);
    }

    fn event(&mut self, time_ns: u64, event: &TraceEvent) {
        self.inside.event(time_ns, event);
    }

    fn progress(&mut self, time_ns: u64, end_ns: u64) -> bool {
        self.progress.simulated_ns.fetch_add(time_ns.saturating_sub(self.seen_ns), Ordering::Relaxed);
        self.seen_ns = time_ns;
        self.inside.progress(time_ns, end_ns) && !self.progress.is_stopped() && !(self.is_beaten)()
    }
}

/// Runs one job, its events going to `sink`. The duration is what its events took: to build a simulation
/// takes milliseconds, as long as a simulated second does.
pub fn run_one(
    job: &SimulationConfig,
    progress: &BatchProgress,
    sink: &mut dyn TraceSink,
) -> Result<(RunReport, Duration), SimError> {
    progress.begin(1, job.warmup_ns + job.duration_ns);
    let mut sink = ProgressSink { progress, seen_ns: 0, is_beaten: &|| false, inside: sink };
    caught(|| {
        let mut simulation = Simulation::new(job, &mut sink)?;
        let begun = Instant::now();
        let report = simulation.run()?;
        Ok((report, begun.elapsed()))
    })
}

/// A configuration and the seed to run it with: the jobs of many seeds share one configuration.
#[derive(Debug, Clone, Copy)]
pub struct Job<'c> {
    pub config: &'c SimulationConfig,
    pub seed: u64,
}

impl<'c> Job<'c> {
    /// The configuration with the job's seed.
    fn seeded(&self) -> Cow<'c, SimulationConfig> {
        if self.seed == self.config.seed {
            return Cow::Borrowed(self.config);
        }
        Cow::Owned(SimulationConfig { seed: self.seed, ..self.config.clone() })
    }
}

/// Runs all jobs; the first failing job (in the order of jobs) decides the error, with its index.
pub fn run_all(
    jobs: &[SimulationConfig],
    progress: &BatchProgress,
) -> Result<Vec<RunReport>, (usize, SimError)> {
    let jobs: Vec<Job<'_>> = jobs.iter().map(|config| Job { config, seed: config.seed }).collect();
    run_each(&jobs, progress, |_, report| report)
}

/// The same, keeping of each report what `keep` makes of it, as soon as its job (of that index) is done: all
/// reports of a large batch don't fit into memory.
pub fn run_each<T: Send>(
    jobs: &[Job<'_>],
    progress: &BatchProgress,
    keep: impl Fn(usize, RunReport) -> T + Sync,
) -> Result<Vec<T>, (usize, SimError)> {
    let total_ns = jobs.iter().map(|job| job.config.warmup_ns + job.config.duration_ns).sum();
    let run = |index: usize, sink: &mut dyn TraceSink| {
        simulate(&jobs[index].seeded(), sink).map(|report| keep(index, report))
    };
    run_numbered(jobs.len(), total_ns, progress, run)
}

/// The same for so many jobs, each of which `run` makes when its turn has come: all configurations of a large
/// batch don't fit into memory either. `total_ns`: simulated time of all of them, for the progress.
pub fn run_numbered<T: Send, E: Send + From<SimError>>(
    jobs: usize,
    total_ns: u64,
    progress: &BatchProgress,
    run: impl Fn(usize, &mut dyn TraceSink) -> Result<T, E> + Sync,
) -> Result<Vec<T>, (usize, E)> {
    run_numbered_on(all_cores(), jobs, total_ns, progress, run)
}

/// Those that this process may use.
pub fn all_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The same, with so many of them at once.
pub fn run_numbered_on<T: Send, E: Send + From<SimError>>(
    threads: usize,
    jobs: usize,
    total_ns: u64,
    progress: &BatchProgress,
    run: impl Fn(usize, &mut dyn TraceSink) -> Result<T, E> + Sync,
) -> Result<Vec<T>, (usize, E)> {
    progress.begin(jobs, total_ns);
    let results: Vec<Mutex<Option<Result<T, E>>>> = (0..jobs).map(|_| Mutex::new(None)).collect();
    let (next, first_failed) = (AtomicUsize::new(0), AtomicUsize::new(usize::MAX));
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            // Jobs before the failed one go on: one of them may be the first to fail.
            let is_beaten = || first_failed.load(Ordering::Relaxed) < index;
            if index >= jobs || is_beaten() || progress.is_stopped() {
                return;
            }
            let mut sink = ProgressSink { progress, seen_ns: 0, is_beaten: &is_beaten, inside: &mut NoTrace };
            let result = run(index, &mut sink);
            if result.is_err() {
                first_failed.fetch_min(index, Ordering::Relaxed);
            }
            progress.jobs_done.fetch_add(1, Ordering::Relaxed);
            if let Ok(mut slot) = results[index].lock() {
                *slot = Some(result);
            }
        }
    };
    std::thread::scope(|scope| {
        // Where no more threads can be made, those that there are do the work, if need be this one.
        let begin = |_| std::thread::Builder::new().spawn_scoped(scope, work).is_ok();
        if (0..threads.clamp(1, jobs.max(1))).take_while(|&thread| begin(thread)).count() == 0 {
            work();
        }
    });
    let results = results.into_iter().map(|slot| slot.into_inner().ok().flatten());
    // A job that nobody began comes behind the failed one, or everything was stopped.
    let stopped = || Err(E::from(SimError::Stopped { time_ns: 0 }));
    results
        .enumerate()
        .map(|(index, result)| result.unwrap_or_else(stopped).map_err(|error| (index, error)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Overrides, parse};

    /// A workload whose only thread waits for itself, from that time on.
    fn deadlock_after(time: &str) -> SimulationConfig {
        let text = format!(
            "host = 'xeon-e5645'\nduration = '10 s'\n[[vm]]\nname = 'v'\nvcpus = 1\nkernel = 'linux-4.4'\n\
             workloads = [{{ name = 'w', threads = 1, program = [\
             {{ compute = '{time}' }}, {{ receive = 'q' }}, {{ send = 'q' }}] }}]\n"
        );
        parse("stuck.toml", &text, &Overrides::default()).expect("valid").config
    }

    #[test]
    fn the_first_failing_job_decides_the_error_though_a_later_one_fails_sooner() {
        let jobs = [deadlock_after("5 s"), deadlock_after("1 us"), deadlock_after("1 us")];
        for _ in 0..5 {
            let (index, error) = run_all(&jobs, &BatchProgress::default()).expect_err("all deadlock");
            assert_eq!(index, 0, "{error}");
            assert!(
                matches!(error, SimError::Deadlock { time_ns, .. } if time_ns > 5_000_000_000),
                "{error}"
            );
        }
    }

    #[test]
    fn what_is_kept_of_each_run_comes_in_the_order_of_jobs_with_their_seeds() {
        let config = SimulationConfig { duration_ns: 1_000_000, ..deadlock_after("5 s") };
        let jobs: Vec<Job<'_>> = (1..=20).map(|seed| Job { config: &config, seed }).collect();
        let kept = run_each(&jobs, &BatchProgress::default(), |index, report| (index as u64, report.seed));
        assert_eq!(kept.expect("they run"), (0..20).map(|index| (index, index + 1)).collect::<Vec<_>>());
    }
}
