//! What `observe` sees is what the kernel and the guest say.

use crate::{lab, microslice, observe, of_vm, report_of, run_beside, scheduled};
use microslice_testbed::lab::Running;
use serde_json::Value;
use std::time::{Duration, Instant};

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("a number: {value}"))
}

#[test]
fn ready_time_is_the_kernels_own_run_delay() {
    let Some(lab) = lab() else { return };
    let _crowd = lab.start(&["load=compute", "vcpus=4"]).expect("a VM");
    let vm = lab.start(&["load=compute", "vcpus=2"]).expect("a VM");
    let before = scheduled(&vm);
    let report = observe(&lab, &[], &["--for", "3s"]);
    let after = scheduled(&vm);
    let seen = of_vm(&report, &vm);
    let share = |ran: f64, waited: f64| waited / (ran + waited);
    let by_kernel = share(after.0 - before.0, after.1 - before.1);
    let by_us = share(number(&seen["cpu_time_ns"]), number(&seen["ready_time_ns"]));
    assert!((by_kernel - by_us).abs() < 0.05, "ready: {by_us:.3} of the time, by the kernel {by_kernel:.3}");
}

#[test]
fn locks_are_seen_in_listed_functions_only() {
    let Some(lab) = lab() else { return };
    let _crowd = lab.start(&["load=compute", "vcpus=4"]).expect("a VM");
    let held = ["load=ticket", "vcpus=1", "compute=2000", "hold=60000"];
    let listed = lab.start(&held).expect("a VM");
    let unlisted = lab.start(&[&held[..], &["listed=0"]].concat()).expect("a VM");
    let report = observe(&lab, &[&listed, &unlisted], &["--settle", "2s", "--for", "3s"]);
    let part = |vm| {
        let preemptions = &of_vm(&report, vm)["preemptions"];
        number(&preemptions["by_class"]["lock_holder"]) / number(&preemptions["total"]).max(1.0)
    };
    assert!(part(&listed) > 0.6, "{report}");
    assert!(part(&unlisted) < 0.2, "{report}");
}

#[test]
fn calls_and_what_they_wait_for_are_seen() {
    let Some(lab) = lab() else { return };
    let _crowd = lab.start(&["load=compute", "vcpus=4"]).expect("a VM");
    let vm = lab.start(&["load=calls", "vcpus=2", "window-ms=100"]).expect("a VM");
    let from = Instant::now();
    let report = observe(&lab, &[], &["--for", "3s"]);
    let measured = vm.measured(from, Instant::now());
    let (seen, calls) = (of_vm(&report, &vm), measured.latency("shootdown").count() as f64);
    // The observer counts for a part of that time: it loads first.
    let ipis = number(&seen["ipis"]);
    assert!(ipis > 0.0 && ipis < 1.2 * calls + 100.0, "{ipis} interrupts for {calls} calls");
    assert!(number(&seen["preempted_shootdown_wait_ns"]["count"]) > 0.0, "{seen}");
    assert!(number(&seen["answers_owed"]) > 0.0, "{seen}");
}

#[test]
fn sleepers_halts_are_seen_and_their_timers() {
    let Some(lab) = lab() else { return };
    let _crowd = lab.start(&["load=compute", "vcpus=2"]).expect("a VM");
    let vm = lab.start(&["load=sleep", "vcpus=2", "sleep-us=3000", "window-ms=100"]).expect("a VM");
    let from = Instant::now();
    let report = observe(&lab, &[], &["--for", "2s"]);
    let sleeps = vm.measured(from, Instant::now()).latency("wake").count() as f64;
    let halts = number(&of_vm(&report, &vm)["halts"]);
    assert!(halts > 0.2 * sleeps && halts < 1.2 * sleeps + 50.0, "{halts} halts of {sleeps} sleeps");
}

#[test]
fn top_shows_who_ran_during_the_longest_wait() {
    let Some(lab) = lab() else { return };
    let crowd = lab.start(&["load=compute", "vcpus=4"]).expect("a VM");
    let vm = lab.start(&["load=compute", "vcpus=2"]).expect("a VM");
    let folder = tempfile::tempdir().expect("a folder");
    let address = format!("unix:{}", folder.path().join("socket").display());
    let observer = ["observe", "--json", "--interval", "1", "--metrics-listen", &address];
    let observer = Running::start(microslice(&lab, &[], &observer)).expect("it starts");
    let view = || {
        let output =
            microslice(&lab, &[], &["top", "--json", "--connect", &address]).output().expect("it runs");
        serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
    };
    for second in 0.. {
        let view: Value = view();
        let vms = view["vms"].as_array().into_iter().flatten();
        let mut waits = vms.filter(|seen| seen["pid"] == vm.pid()).map(|seen| &seen["longest_wait_lately"]);
        if waits.any(|wait| wait["runner"] == crowd.name().as_str() && number(&wait["ran_ns"]) > 0.0) {
            break;
        }
        assert!(second < 30, "{view}");
        std::thread::sleep(Duration::from_secs(1));
    }
    report_of(observer);
}

#[test]
fn what_this_hosts_kvm_does_not_show_is_named() {
    let Some(lab) = lab() else { return };
    let report = observe(&lab, &[], &["--for", "200ms", "--tracepoints"]);
    let hooks = &report["hooks"];
    assert_eq!(hooks["traces_functions"], false);
    assert_eq!(hooks["unseen"].as_array().expect("a list").is_empty(), hooks["kvm"] != "other", "{hooks}");
}

#[test]
fn without_rights_one_line_says_which_are_missing() {
    let Some(_lab) = lab() else { return };
    let binary = microslice_testbed::built_binary().expect("built");
    for mode in [&["observe", "--for", "1s"][..], &["run"]] {
        // The capabilities are asked for first: a path that others may not enter would hide that.
        let mut command = std::process::Command::new("setpriv");
        command.args(["--bounding-set=-all", "--inh-caps=-all"]).arg(&binary).args(mode);
        let output = command.output().expect("setpriv, of util-linux");
        let line = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), line.lines().count()), (Some(2), 1), "{line}");
        assert!(line.contains("CAP_SYS_ADMIN") && line.contains("missing: run it as root"), "{line}");
    }
}

#[test]
fn a_second_daemon_is_refused_in_one_line() {
    let Some(lab) = lab() else { return };
    let vm = lab.start(&["load=calls", "vcpus=2"]).expect("a VM");
    let first = run_beside(&lab, &[&vm], &[]);
    let second = microslice(&lab, &[], &["run"]).output().expect("it runs");
    let line = String::from_utf8_lossy(&second.stderr);
    assert_eq!((second.status.code(), line.lines().count()), (Some(2), 1), "{line}");
    assert!(line.contains("another `microslice run --scheduler beside` runs here"), "{line}");
    report_of(first);
}

#[test]
fn without_kvm_the_labs_vmm_ends_with_one_line() {
    let Some(lab) = lab() else { return };
    let output = lab.run_as_nobody().expect("it runs");
    let line = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), line.lines().count()), (Some(2), 1), "{line}");
    assert!(line.contains("/dev/kvm: Permission denied"), "{line}");
}
