//! Standard output and standard error that nobody reads, or that are full.

use std::fs::{File, OpenOptions};
use std::process::{Command, ExitStatus, Stdio};

fn full() -> Stdio {
    OpenOptions::new().write(true).open("/dev/full").expect("a full device").into()
}

/// A pipe whose reader has gone away.
fn closed() -> Stdio {
    let (_, writer) = std::io::pipe().expect("a pipe");
    writer.into()
}

fn status(arguments: &[&str], stdout: Stdio, stderr: Stdio) -> ExitStatus {
    Command::new(env!("CARGO_BIN_EXE_microslice"))
        .args(arguments)
        .stdout(stdout)
        .stderr(stderr)
        .status()
        .expect("the binary starts")
}

const QUICK: [&str; 6] = ["simulate", "gmake-solo", "--set", "duration=5 ms", "--set", "warmup=0 ms"];

/// A recording without a decision.
fn empty_recording(folder: &tempfile::TempDir) -> String {
    let path = folder.path().join("empty.rec");
    let file = File::create(&path).expect("created");
    microslice_policy::recording::Writer::new(file).and_then(|writer| writer.finish()).expect("written");
    path.display().to_string()
}

#[test]
fn diagnostics_that_nobody_reads_change_no_exit_code() {
    for stderr in [full, closed] {
        assert_eq!(status(&QUICK, Stdio::null(), stderr()).code(), Some(0));
        assert_eq!(status(&["simulate", "no-such"], Stdio::null(), stderr()).code(), Some(2));
        assert_eq!(status(&["no-such"], Stdio::null(), stderr()).code(), Some(2));
    }
}

#[test]
fn a_reader_that_went_away_is_no_failure_and_a_full_device_is_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let (recording, store) = (empty_recording(&folder), folder.path().join("store").display().to_string());
    let commands = [
        &QUICK[..],
        &["replay", &recording],
        &["replay", &recording, "--json"],
        &["symbols", "store", "--store", &store],
    ];
    for command in commands {
        assert_eq!(status(command, closed(), Stdio::null()).code(), Some(0), "{command:?}");
        let output = Command::new(env!("CARGO_BIN_EXE_microslice")).args(command).stdout(full()).output();
        let output = output.expect("the binary starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{command:?}: {said}");
        assert!(
            said.ends_with("microslice: standard output: No space left on device (os error 28)\n"),
            "{said}"
        );
    }
}

#[test]
fn help_and_version_that_could_not_be_printed_are_a_failure() {
    for option in ["--help", "--version", "-V"] {
        assert_eq!(status(&[option], full(), Stdio::null()).code(), Some(1), "{option}");
        assert_eq!(status(&[option], closed(), Stdio::null()).code(), Some(0), "{option}");
        assert_eq!(status(&[option], Stdio::null(), Stdio::null()).code(), Some(0), "{option}");
    }
}
