//! Studies: the reproduction of papers, the regret of policies on random scenarios, and predictions of what
//! another scheduler would bring to a host that was observed.

// A library that prints would write into its caller's output.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod regret;
pub mod reproduction;
pub mod what_if;
