//! Independent runs on all cores: results in the order of the jobs, whichever finishes first.

use crate::config::SimulationConfig;
use crate::engine::Simulation;
use crate::report::RunReport;
use crate::trace_event::{NoTrace, TraceEvent, TraceNames, TraceSink};
use crate::{SimError, simulate};
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

    /// Whether somebody stopped the batch.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// (jobs done, jobs, share of simulated time done from 0 to 1).
    pub fn read(&self) -> (usize, usize, f64) {
        let share = self.simulated_ns.load(Ordering::Relaxed) as f64
            / self.total_ns.load(Ordering::Relaxed).max(1) as f64;
        (self.jobs_done.load(Ordering::Relaxed), self.jobs.load(Ordering::Relaxed), share.min(1.0))
    }

    fn begin(&self, jobs: &[SimulationConfig]) {
        self.jobs.store(jobs.len(), Ordering::Relaxed);
        self.total_ns.store(jobs.iter().map(|job| job.warmup_ns + job.duration_ns).sum(), Ordering::Relaxed);
    }
}

/// Passes a run's progress on, and everything else to the sink inside.
struct ProgressSink<'p> {
    progress: &'p BatchProgress,
    seen_ns: u64,
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
        self.inside.progress(time_ns, end_ns) && !self.progress.is_stopped()
    }
}

/// Runs one job, its events going to `sink`. The duration is what its events took: to build a simulation takes milliseconds,
/// as long as a simulated second does.
pub fn run_one(
    job: &SimulationConfig,
    progress: &BatchProgress,
    sink: &mut dyn TraceSink,
) -> Result<(RunReport, Duration), SimError> {
    progress.begin(std::slice::from_ref(job));
    let mut sink = ProgressSink { progress, seen_ns: 0, inside: sink };
    let mut simulation = Simulation::new(job, &mut sink)?;
    let begun = Instant::now();
    let report = simulation.run()?;
    Ok((report, begun.elapsed()))
}

/// Runs all jobs; the first failing job (in the order of jobs) decides the error, with its index.
pub fn run_all(
    jobs: &[SimulationConfig],
    progress: &BatchProgress,
) -> Result<Vec<RunReport>, (usize, SimError)> {
    progress.begin(jobs);
    let results: Vec<Mutex<Option<Result<RunReport, SimError>>>> =
        jobs.iter().map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(index) else { return };
            let result = simulate(job, &mut ProgressSink { progress, seen_ns: 0, inside: &mut NoTrace });
            if result.is_err() {
                progress.stop();
            }
            progress.jobs_done.fetch_add(1, Ordering::Relaxed);
            if let Ok(mut slot) = results[index].lock() {
                *slot = Some(result);
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(jobs.len());
    std::thread::scope(|scope| {
        (0..threads).for_each(|_| drop(scope.spawn(work)));
    });
    let mut reports = Vec::with_capacity(jobs.len());
    let mut stopped = None;
    for (index, slot) in results.into_iter().enumerate() {
        match slot.into_inner().ok().flatten() {
            Some(Ok(report)) => reports.push(report),
            // A run that was stopped because another one failed isn't the cause.
            Some(Err(error @ SimError::Stopped { .. })) => stopped = stopped.or(Some((index, error))),
            Some(Err(error)) => return Err((index, error)),
            None => stopped = stopped.or(Some((index, SimError::Stopped { time_ns: 0 }))),
        }
    }
    stopped.map_or(Ok(reports), Err)
}
