//! No thread stays real-time, whoever is killed.

use crate::{lab, real_time_threads, report_of, run_beside};
use microslice_testbed::lab::{Lab, LabVm, Running};
use std::time::{Duration, Instant};

/// A VM that is boosted hundreds of times a second, and another that it waits for.
fn boosted(lab: &Lab) -> (LabVm, LabVm) {
    let crowd = lab.start(&["load=compute", "vcpus=4"]).expect("a VM");
    (lab.start(&["load=calls", "vcpus=2", "compute=1000"]).expect("a VM"), crowd)
}

/// The watcher that this daemon has started.
pub fn watcher_of(daemon: &Running) -> u32 {
    let path = format!("/proc/{0}/task/{0}/children", daemon.pid());
    let children = std::fs::read_to_string(path).expect("its children");
    children.split_whitespace().next().and_then(|pid| pid.parse().ok()).expect("a watcher")
}

pub fn kill(pid: u32) {
    // SAFETY: a plain system call.
    unsafe { libc::kill(pid as libc::pid_t, libc::SIGKILL) };
}

/// Until none of its threads is real-time.
fn expect_ordinary(vm: &LabVm) {
    let began = Instant::now();
    while !real_time_threads(vm).is_empty() {
        assert!(began.elapsed() < Duration::from_secs(10), "real-time still: {:?}", real_time_threads(vm));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn boosts_are_all_taken_back_at_the_end() {
    let Some(lab) = lab() else { return };
    let (vm, _crowd) = boosted(&lab);
    let daemon = run_beside(&lab, &[&vm], &[]);
    std::thread::sleep(Duration::from_secs(2));
    let report = report_of(daemon);
    let helper = &report["helper"];
    assert!(helper["boosts"].as_u64().expect("a count") > 20, "{helper}");
    assert_eq!(helper["boosts"], helper["returns"], "{helper}");
    assert!(real_time_threads(&vm).is_empty());
}

#[test]
fn boosts_of_a_killed_daemon_are_taken_back() {
    let Some(lab) = lab() else { return };
    let (vm, _crowd) = boosted(&lab);
    for pause_ms in [0, 3, 11, 40, 170] {
        let daemon = run_beside(&lab, &[&vm], &[]);
        std::thread::sleep(Duration::from_millis(pause_ms));
        kill(daemon.pid());
        let (code, _) = daemon.finish();
        assert_eq!(code, -libc::SIGKILL);
        expect_ordinary(&vm);
    }
}

#[test]
fn a_killed_watcher_is_replaced() {
    let Some(lab) = lab() else { return };
    let (vm, _crowd) = boosted(&lab);
    let daemon = run_beside(&lab, &[&vm], &[]);
    kill(watcher_of(&daemon));
    daemon.wait_for("the watcher of boosts was dead: another one watches").expect("the line");
    let report = report_of(daemon);
    assert_eq!(report["helper"]["watchers_replaced"], 1);
    assert_eq!(report["helper"]["boosts"], report["helper"]["returns"]);
    assert!(real_time_threads(&vm).is_empty());
}

#[test]
fn the_next_start_gives_back_what_two_deaths_left() {
    let Some(lab) = lab() else { return };
    let (vm, _crowd) = boosted(&lab);
    for pause_ms in [1, 7, 30] {
        let daemon = run_beside(&lab, &[&vm], &[]);
        let watcher = watcher_of(&daemon);
        std::thread::sleep(Duration::from_millis(pause_ms));
        kill(watcher);
        kill(daemon.pid());
        daemon.finish();
        report_of(run_beside(&lab, &[&vm], &[]));
        assert!(real_time_threads(&vm).is_empty());
    }
}

#[test]
fn vmms_that_end_during_a_boost_leave_the_daemon_well() {
    let Some(lab) = lab() else { return };
    let crowd = lab.start(&["load=compute", "vcpus=2"]).expect("a VM");
    let calls = || lab.start(&["load=calls", "vcpus=2", "compute=1000"]).expect("a VM");
    let vms = [calls(), calls(), calls()];
    let daemon = run_beside(&lab, &vms.each_ref(), &["--boost-percent", "5"]);
    for (vm, pause_ms) in vms.into_iter().zip([500, 7, 60]) {
        std::thread::sleep(Duration::from_millis(pause_ms));
        drop(vm);
    }
    let report = report_of(daemon);
    let helper = &report["helper"];
    assert!(helper["boosts"].as_u64().expect("a count") > 0, "{helper}");
    assert_eq!(helper["boosts"], helper["returns"], "{helper}");
    assert!(real_time_threads(&crowd).is_empty());
}
