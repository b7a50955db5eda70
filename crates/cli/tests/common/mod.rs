//! What tests of `microslice sweep` share.

use std::process::Output;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_microslice");

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
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
