//! VMs that come and go by hundreds.

use crate::{lab, microslice, of_vm, report_of, run_beside};
use microslice_testbed::lab::{Lab, Running};

const ROUNDS: usize = 8;
const VMS: usize = 16;

/// So many VMs, each until the last of its round has come.
fn churn(lab: &Lab) {
    for _ in 0..ROUNDS {
        let starts = (0..VMS).map(|_| lab.start(&["load=sleep", "vcpus=2", "sleep-us=5000"]).expect("a VM"));
        drop(starts.collect::<Vec<_>>());
    }
}

#[test]
fn hundreds_of_vms_come_and_go_before_the_observer() {
    let Some(lab) = lab() else { return };
    let mut command = microslice(&lab, &[], &["observe", "--json"]);
    command.arg("--no-guest-memory");
    let observer = Running::start(command).expect("it starts");
    observer.wait_for("no VM has run here yet").expect("it looks");
    churn(&lab);
    let last = lab.start(&["load=compute", "vcpus=2"]).expect("a VM");
    std::thread::sleep(std::time::Duration::from_secs(1));
    let report = report_of(observer);
    let vms = report["vms"].as_array().expect("VMs");
    let seen = vms.iter().filter(|vm| vm["gone"] == true).count();
    // One that was there for less than a look is in no table.
    assert!(seen > ROUNDS * VMS / 2, "{seen} of {} that went", ROUNDS * VMS);
    assert_eq!(of_vm(&report, &last)["vcpus"].as_array().expect("vCPUs").len(), 2);
}

#[test]
fn boosts_go_on_while_vms_come_and_go() {
    let Some(lab) = lab() else { return };
    let vm = lab.start(&["load=calls", "vcpus=2", "compute=20000"]).expect("a VM");
    let daemon = run_beside(&lab, &[&vm], &["--no-guest-memory"]);
    churn(&lab);
    let report = report_of(daemon);
    assert_eq!(report["helper"]["boosts"], report["helper"]["returns"], "{}", report["helper"]);
    assert!(report["helper"]["boosts"].as_u64().expect("a count") > 0, "{}", report["helper"]);
}
