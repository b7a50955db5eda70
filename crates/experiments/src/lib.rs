//! Experiments with simulated hosts: scenario files, batches of runs on all cores, comparisons of policies,
//! and sweeps over parameters.

// A library that prints would write into its caller's output.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod batch;
pub mod comparison;
pub mod figures;
mod rows;
pub mod scenario;
pub mod sweep;
