//! The modelled host, without time: its configuration, pCPUs and vCPUs, and the schedulers that decide for
//! them. Some schedulers run the project's own `policy/` code, the others are baselines.

// A library that prints would write into its caller's output.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod bits;
pub mod checker;
pub mod config;
pub mod counters;
pub mod events;
pub mod ids;
pub mod machine;
pub mod random;
pub mod samples;
pub mod scheduler;
pub mod smt;
