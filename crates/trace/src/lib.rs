//! Traces that Perfetto opens, of the simulated host and of the real one: the same tracks, slices and
//! instants, by one writer.
//!
//! [`HostTrace`] is told what runs where from when on; the messages of Perfetto's format are in [`messages`].

// They panic where nobody reads.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod host_trace;
pub mod messages;

pub use host_trace::{Arrows, Category, HostTrace, Pcpu, Turn, Vcpu, Vm};
pub use messages::{Note, number, pointer, text};
