//! A deterministic discrete-event simulator of virtual machines on an overcommitted host, running the
//! project's own `policy/` code next to baselines. See docs/explanation/simulator.md.

// They panic where nobody reads.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod batch;
mod bits;
mod build;
mod check;
mod checks;
pub mod comparison;
pub mod config;
mod engine;
pub mod figures;
mod guest;
pub mod ids;
mod machine;
mod measure;
mod measurements;
mod numbering;
mod observers;
mod passing;
mod prefetch;
mod random;
pub mod regret;
pub mod report;
pub mod reproduction;
mod rows;
pub mod scenario;
mod scheduler;
mod smt;
pub mod sweep;
mod timeline;
pub mod trace;
pub mod trace_event;
pub mod what_if;

use config::SimulationConfig;
use report::RunReport;
use trace_event::TraceSink;

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
    #[error("stopped at {time_ns} ns")]
    Stopped { time_ns: u64 },
}

/// Runs one configuration to its end.
pub fn simulate(config: &SimulationConfig, sink: &mut dyn TraceSink) -> Result<RunReport, SimError> {
    engine::Simulation::new(config, sink)?.run()
}
