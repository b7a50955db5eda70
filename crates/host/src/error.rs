//! Why the scheduler did not start, or stopped. Each `Display` is one line.

/// A failure: one that the operator can mend ([`HostError::Refused`]), or one that came up under way.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A host, flag or file that this scheduler can't work with; nothing was loaded.
    #[error("{0}")]
    Refused(String),
    /// The kernel did not take the programs.
    #[error("the kernel refused the BPF programs: {0} (its log, `dmesg`, and `-v` may say more)")]
    Load(String),
    /// The kernel ejected the scheduler; guests run on under the kernel's own.
    #[error("the kernel stopped the scheduler: {0}; guests go on under the kernel's own scheduler")]
    Ejected(String),
    /// Reading or writing failed while running.
    #[error("{0}")]
    Broken(String),
}

impl HostError {
    pub fn refused(cause: impl std::fmt::Display) -> Self {
        Self::Refused(cause.to_string())
    }

    pub fn broken(cause: impl std::fmt::Display) -> Self {
        Self::Broken(cause.to_string())
    }

    /// Was it the input, so that exit code 2 is due?
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(_))
    }
}
