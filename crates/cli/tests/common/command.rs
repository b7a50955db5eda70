//! The program, and files of a test's own.

use std::path::PathBuf;
use std::process::{Command, Output};

pub fn microslice(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_microslice")).args(arguments).output().expect("the binary starts")
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Exit code 2, nothing on standard output, one line on standard error.
pub fn refuse(arguments: &[&str]) -> String {
    let output = microslice(arguments);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    assert_eq!(error.lines().count(), 1, "{error}");
    error
}

pub struct Files(tempfile::TempDir);

impl Files {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, content: &str) -> String {
        std::fs::write(self.path(name), content).expect("written");
        self.name(name)
    }

    pub fn name(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }
}
