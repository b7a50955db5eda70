//! Bounds on waits: no vCPU waits longer, beside whom it may be.

use crate::boosts::pin;
use crate::{lab, of_vm, report_of, run_beside};
use microslice_testbed::lab::{Lab, LabVm};
use serde_json::Value;
use std::time::Duration;

/// What a run with a bound of 10 ms has seen in so many seconds.
fn bounded(lab: &Lab, vms: &[&LabVm], seconds: u64, arguments: &[&str]) -> Value {
    let arguments = [&["--max-wait", "10ms"], arguments].concat();
    let daemon = run_beside(lab, vms, &arguments);
    std::thread::sleep(Duration::from_secs(seconds));
    report_of(daemon)
}

fn late_per_second(report: &Value) -> f64 {
    report["late_waits"].as_f64().expect("a count") / report["seconds"].as_f64().expect("a time")
}

#[test]
fn bounded_waits_end_in_time() {
    let Some(lab) = lab() else { return };
    let vms: Vec<LabVm> = (0..6).map(|_| lab.start(&["load=compute", "vcpus=2"]).expect("a VM")).collect();
    let all: Vec<&LabVm> = vms.iter().collect();
    let without = bounded(&lab, &all, 4, &["--dry-run"]);
    let with = bounded(&lab, &all, 4, &[]);
    let asked = with["accelerations"]["by_cause"]["max_wait"]["total"]
        .as_u64()
        .or_else(|| with["accelerations"]["by_cause"]["max_wait"].as_u64());
    assert!(asked > Some(50), "{}", with["accelerations"]);
    let (before, after) = (late_per_second(&without), late_per_second(&with));
    assert!(before > 20.0, "{before} late waits a second: nothing to bound");
    let helper = &with["helper"];
    assert!(after < before / 5.0, "late waits a second: {before} without boosts, {after} with: {helper}");
    microslice_testbed::say(format!(
        "waits of more than 10 ms: {before:.0} a second without, {after:.1} with"
    ));
}

#[test]
fn a_vm_has_a_bound_of_its_own() {
    let Some(lab) = lab() else { return };
    let vms: Vec<LabVm> = (0..6).map(|_| lab.start(&["load=compute", "vcpus=2"]).expect("a VM")).collect();
    let all: Vec<&LabVm> = vms.iter().collect();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("bounds.toml");
    std::fs::write(&file, format!("[vm.\"{}\"]\nmax-wait = \"10ms\"\n", vms[0].name())).expect("a file");
    let daemon = run_beside(&lab, &all, &["--config", file.to_str().expect("a path")]);
    std::thread::sleep(Duration::from_secs(3));
    let report = report_of(daemon);
    let asked =
        |vm: &LabVm| of_vm(&report, vm)["accelerations"]["by_cause"]["max_wait"].as_u64().expect("a count");
    assert!(asked(&vms[0]) > 20, "{report}");
    vms[1..].iter().for_each(|vm| assert_eq!(asked(vm), 0, "{report}"));
}

#[test]
fn pinned_vcpus_are_bounded_too() {
    let Some(lab) = lab() else { return };
    let vms: Vec<LabVm> = (0..5).map(|_| lab.start(&["load=compute", "vcpus=2"]).expect("a VM")).collect();
    for vm in &vms {
        vm.vcpu_threads().into_iter().enumerate().for_each(|(pcpu, tid)| pin(tid, pcpu));
    }
    let all: Vec<&LabVm> = vms.iter().collect();
    let report = bounded(&lab, &all, 2, &[]);
    let vm = of_vm(&report, &vms[0]);
    assert!(vm["accelerations"]["by_cause"]["max_wait"].as_u64() > Some(5), "{report}");
    // Whoever was only woken is refused.
    assert_eq!(vm["failed_pulls"]["pinned"], vm["acceleration_requests"]["by_cause"]["woken"], "{report}");
}
