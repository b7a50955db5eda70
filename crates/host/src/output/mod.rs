//! What the modes write and serve alike: monitoring, recordings, traces, counts in words.

pub mod monitoring;
pub(crate) mod recorder;
pub(crate) mod tracer;
pub(crate) mod words;
