//! Delayed preemption (VM'04, section 3), a mechanism around any scheduler.

use microslice_policy::{Coded, DelayConfig, DelayUnsafe};
use serde::Serialize;

/// Turns end in a window around their end.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DelayPreemptionConfig {
    pub window_ns: u64,
    /// The window's begin slides with the mean of so many offsets.
    pub history: u32,
    #[serde(serialize_with = "by_name")]
    pub unsafe_where: DelayUnsafe,
    /// Between two looks in the window; 0: the host is told of each change.
    pub look_ns: u64,
    /// A vCPU that was preempted by force is interrupted in its next window, after so long. The handler gives
    /// the pCPU up where no lock is held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub safe_point_ns: Option<u64>,
}

impl DelayPreemptionConfig {
    /// For less nobody is put on a pCPU by a window: the switch takes longer.
    pub const TURN_MIN_NS: u64 = 10_000;

    /// As the policy takes it.
    pub fn rules(&self) -> DelayConfig {
        let &Self { window_ns, look_ns, history, unsafe_where, .. } = self;
        DelayConfig { window_ns, look_ns, history, unsafe_where: unsafe_where.into() }
    }
}

fn by_name<S: serde::Serializer>(unsafe_where: &DelayUnsafe, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(unsafe_where.name())
}
