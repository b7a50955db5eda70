//! `microslice trial`: its verdict, and that nothing is left of it.

use crate::{lab, microslice, real_time_threads};
use microslice_testbed::lab::{Lab, LabVm, Running};
use serde_json::Value;
use std::process::Command;
use std::time::{Duration, Instant};

/// Six rounds of the shortest blocks.
const SHORT: [&str; 8] =
    ["trial", "--no-guest-memory", "--for", "23s", "--block", "300ms", "--settle", "100ms"];

fn two_vms(lab: &Lab) -> [LabVm; 2] {
    let calls = lab.start(&["load=calls", "vcpus=2", "compute=1000"]).expect("a VM");
    [calls, lab.start(&["load=compute", "vcpus=2"]).expect("a VM")]
}

fn trial(lab: &Lab, arguments: &[&str]) -> Command {
    let mut command = microslice(lab, &[], &SHORT);
    command.args(arguments);
    command
}

/// The processes that schedule for a trial.
fn schedulers() -> usize {
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let is_one = |process: &std::fs::DirEntry| {
        std::fs::read(process.path().join("cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains("microslice\0run\0--scheduler\0beside"))
    };
    processes.filter(is_one).count()
}

fn expect_nothing_left(vms: &[LabVm]) {
    let began = Instant::now();
    while schedulers() > 0 || vms.iter().any(|vm| !real_time_threads(vm).is_empty()) {
        assert!(began.elapsed() < Duration::from_secs(20), "{} schedulers are left", schedulers());
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn row<'t>(trial: &'t Value, figure: &str) -> &'t Value {
    let rows = trial["figures"].as_array().expect("figures");
    rows.iter().find(|row| row["figure"] == figure).unwrap_or_else(|| panic!("{trial}"))
}

#[test]
fn a_planted_difference_is_told_and_none_is_not() {
    let Some(lab) = lab() else { return };
    let vms = two_vms(&lab);
    // The pattern doesn't find the shell that looks for it.
    let planted = "requests=grep -zqs -- '^--schedule[r]$' /proc/[0-9]*/cmdline && echo 20 || echo 10";
    let mut command = trial(&lab, &["--json", "--outcome", "nothing=echo 5", "--outcome", planted]);
    let output = command.output().expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let trial: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let requests = row(&trial, "requests");
    assert_eq!(
        (&requests["verdict"], requests["ratio"].as_f64()),
        (&"better".into(), Some(2.0)),
        "{requests}"
    );
    assert_eq!(row(&trial, "nothing")["verdict"], "cannot_tell");
    assert!(row(&trial, "CPUs")["pairs"].as_u64().is_some_and(|pairs| pairs >= 6), "{trial}");
    expect_nothing_left(&vms);
}

#[test]
fn a_trial_that_is_stopped_or_killed_leaves_nothing() {
    let Some(lab) = lab() else { return };
    let vms = two_vms(&lab);
    for (signal, code) in [(libc::SIGINT, 130), (libc::SIGKILL, -libc::SIGKILL)] {
        let running = Running::start(trial(&lab, &[])).expect("it starts");
        let began = Instant::now();
        // Its arms are tried first; then it comes again, to be measured.
        while schedulers() == 0 {
            assert!(began.elapsed() < Duration::from_secs(60), "{:?}", running.lines().last());
            std::thread::sleep(Duration::from_millis(5));
        }
        running.signal(signal);
        let (ended, lines) = running.finish();
        assert_eq!(ended, code, "{lines:?}");
        expect_nothing_left(&vms);
    }
}

#[test]
fn what_cannot_be_tried_is_refused_before_anything_changes() {
    let Some(lab) = lab() else { return };
    let vms = two_vms(&lab);
    for (arguments, part) in [
        (["--arm", "kernel", "--arm", "beside no-such-setting"], "no-such-setting"),
        (["--outcome", "n=echo many", "--seed", "2"], "which is no number"),
        (["--outcome", "n=sleep 100", "--seed", "2"], "took longer than 0.3 s"),
        (["--arm", "kernel", "--arm", "kernel"], "all of them different"),
    ] {
        let output = trial(&lab, &arguments).output().expect("it runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(part) && errors.trim().lines().count() == 1, "{errors}");
    }
    expect_nothing_left(&vms);
}
