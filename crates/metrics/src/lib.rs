//! Definition, unit and description of every figure, used alike by real and simulated runs; table, JSON,
//! OpenMetrics and HTML.
//!
//! A run (of the BPF scheduler, of the simulator, of the testbed) fills a [`Snapshot`] with values of the
//! [`Figure`]s that [`figures`] defines. The caller picks a renderer: [`table::Table`] for people, [`json`]
//! for scripts, [`openmetrics`] for monitoring, [`html`] for a page. So one name means one thing everywhere,
//! and a table can hold paper, simulator and testbed side by side.

// They panic where nobody reads.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod checksum;
mod estimate;
mod figure;
pub mod figures;
mod histogram;
pub mod html;
pub mod input;
pub mod json;
pub mod openmetrics;
pub mod plot;
pub mod profile;
mod snapshot;
pub mod table;
pub mod trial;

pub use estimate::Estimate;
pub use figure::{Figure, Kind, Unit};
pub use histogram::{Bucket, Histogram};
pub use snapshot::{Entry, Snapshot, UnbalancedSum, Value};

/// A number of things, as a sentence has it: `1 VM`, `2 VMs`.
pub fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
