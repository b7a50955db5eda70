//! What the modes write and serve alike: monitoring, recordings, traces, counts in words, holders.

pub mod holders;
pub mod monitoring;
pub(crate) mod recorder;
pub(crate) mod tracer;
pub(crate) mod words;
