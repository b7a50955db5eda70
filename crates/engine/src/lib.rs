//! The engine: a deterministic discrete-event simulation of a host and its guests. It moves time, runs the
//! guests' programs, asks the host's scheduler, checks invariants, and measures. See
//! docs/explanation/simulator.md.

// A library that prints would write into its caller's output.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod build;
mod cpu_limits;
mod guest;
mod halt_polling;
mod longest_waits;
mod measurements;
mod observers;
mod panics;
mod passing;
mod pause_loops;
mod prefetch;
pub mod report;
mod reporting;
pub mod simulation;
pub mod text;
mod timeline;
pub mod trace;

use microslice_model::config::SimulationConfig;
use microslice_model::events::TraceSink;
pub use panics::caught;
use report::RunReport;

/// Why a run could not start or finish.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// The configuration makes no sense: where, and why.
    #[error("{place}: {cause}")]
    Config { place: String, cause: String },
    /// Nothing will ever happen again, yet threads wait: which waits for which.
    #[error("deadlock at {time_ns} ns: {chain}")]
    Deadlock { time_ns: u64, chain: String },
    /// An invariant was broken: a bug of the simulator or of the scheduler under test.
    #[error("check failed at {time_ns} ns: {what}")]
    Check { time_ns: u64, what: String },
    /// The run ended in the middle of something: where, and what was said.
    #[error("a bug of the simulator: {cause}")]
    Panic { cause: String },
    #[error("stopped at {time_ns} ns")]
    Stopped { time_ns: u64 },
}

/// Runs one configuration to its end.
pub fn simulate(config: &SimulationConfig, sink: &mut dyn TraceSink) -> Result<RunReport, SimError> {
    caught(|| simulation::Simulation::new(config, sink)?.run())
}
