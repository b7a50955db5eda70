//! Queues between VMs and tasks of the host.

use serde::Serialize;

/// A queue that programs of several VMs, and tasks of the host, send to and receive from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChannelConfig {
    pub name: String,
    /// Items that it has room for.
    pub capacity: usize,
}
