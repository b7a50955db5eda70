//! The program, and files of a test's own.

use std::path::PathBuf;
use std::process::{Child, Command, Output};
use std::time::Duration;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_microslice");

pub fn microslice(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(arguments).output().expect("the binary starts")
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

/// Standard error without progress, which a slow machine sees more of.
pub fn complaint(output: &Output) -> String {
    let text = text(&output.stderr);
    let is_progress = |line: &&str| {
        ["reading ", "sweeping ", "submitting", "waiting "].iter().any(|what| line.starts_with(what))
    };
    text.lines().filter(|line| !is_progress(line)).map(|line| format!("{line}\n")).collect()
}

/// Exit code 2, nothing on standard output, one line on standard error.
pub fn refusal(output: &Output) -> String {
    let error = complaint(output);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(output.stdout.is_empty() && error.lines().count() == 1, "{error}");
    error
}

/// Until it has a handler for SIGINT, which it sets before it opens anything.
pub fn await_handler(child: &mut Child) {
    loop {
        assert_eq!(child.try_wait().expect("its state"), None, "it ended by itself");
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).expect("its status");
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("signals");
        if u64::from_str_radix(caught.trim(), 16).expect("a mask") & 2 != 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
