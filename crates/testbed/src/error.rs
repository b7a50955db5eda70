//! What can go wrong with the testbed, each as one line that says where and why.

use std::path::{Path, PathBuf};

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the testbed could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{}: {cause}", path.display())]
    File { path: PathBuf, cause: String },

    #[error(
        "{program}: cannot be started: {cause}; is it installed? `make setup` installs what the testbed needs"
    )]
    Program { program: String, cause: std::io::Error },

    #[error("{program}: failed ({status}): {output}")]
    Failed { program: String, status: String, output: String },

    #[error("apt sources: {0}")]
    Sources(String),

    #[error("kernel {wanted}: {cause}")]
    Kernel { wanted: String, cause: String },

    /// A boot stage that did not come about in time, or at all.
    #[error("{machine}: stage `{stage}`: {cause}")]
    Stage { machine: String, stage: &'static str, cause: String },

    #[error("{machine}: `{command}`: {cause}")]
    Command { machine: String, command: String, cause: String },

    #[error("the {what} is in use by another process ({holder}); waited {waited_s} s for {lock}")]
    Busy { what: String, holder: String, waited_s: u64, lock: String },
}

impl Error {
    /// An error at `path`.
    pub fn file(path: impl AsRef<Path>, cause: impl std::fmt::Display) -> Self {
        Self::File { path: path.as_ref().to_owned(), cause: cause.to_string() }
    }
}
