//! Where a trace goes, and how long and large it may become (`--trace`).

use crate::HostError;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where a trace goes, and how long it may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceSettings {
    pub path: PathBuf,
    pub length: Duration,
    /// The most bytes of the file.
    pub bytes: u64,
}

impl TraceSettings {
    pub const DEFAULT_LENGTH: Duration = Duration::from_secs(10);
    pub const DEFAULT_MIB: u32 = 100;
    pub const MIB_MAX: u32 = 4096;

    pub fn new(path: &Path, length: Option<Duration>, mib: Option<u32>) -> Self {
        Self {
            path: path.to_owned(),
            length: length.unwrap_or(Self::DEFAULT_LENGTH),
            bytes: u64::from(mib.unwrap_or(Self::DEFAULT_MIB)) << 20,
        }
    }

    /// Why a command fails at its end, though it went on when the trace could not.
    pub(crate) fn is_incomplete(&self) -> HostError {
        HostError::broken(format!("{}: the trace is incomplete", self.path.display()))
    }
}
