//! Faults drawn by a seed: what the specification promises holds through them, and where it can't the
//! campaign says so.

use crate::common::{is_long, on_host, print};
use microslice_testbed::built_binary;
use microslice_testbed::campaign::faults::{Boot, Fault};
use microslice_testbed::campaign::{self, BootReport, Plan, Scheduler};
use std::time::{Duration, Instant};

/// In `make test-long` each kind of fault comes once.
fn plan(scheduler: Scheduler) -> Plan {
    Plan {
        time: Duration::from_secs(3600),
        boots: Some(1),
        faults_per_boot: if is_long() { 13 } else { 2 },
        seed: 1,
        scheduler,
        kernel: "6.18".into(),
        binary: built_binary().expect("the program under test"),
    }
}

/// Does these faults; then `look` at what was seen. A host that emulation lost is no report: the test runs
/// again.
fn campaign(plan: &Plan, boot: &Boot, look: impl Fn(&BootReport)) {
    on_host(|host| {
        let end = Instant::now() + plan.time;
        let report = campaign::run_boot(plan, boot, host, end, &|what| print(what));
        print(&report.to_text(1));
        assert_eq!(report.lost, None);
        look(&report);
    });
}

#[test]
#[ignore = "129 s and more; `make campaign` does the same for as long as one likes: make test-long"]
fn what_is_promised_holds_through_faults_drawn_by_a_seed() {
    let plan = plan(Scheduler::Microslice);
    let boot = Boot { pause_exits: false, ..plan.boots().next().expect("a boot") };
    campaign(&plan, &boot, |report| {
        assert_eq!(report.faults.len(), plan.faults_per_boot);
        assert_eq!(campaign::findings(std::slice::from_ref(report)), 0, "{}", report.to_text(1));
    });
}

/// Before Linux 7.0 nothing leaves others a part of such a pCPU (docs/how-to/replace-the-scheduler.md): the
/// watchdog ends the scheduler.
#[test]
#[ignore = "minutes, to see that the campaign finds what it looks for: make test-long"]
fn a_real_time_task_that_keeps_a_pcpu_for_longer_than_a_task_may_wait_is_a_finding() {
    let fault = Fault::RealTime { pcpu: 1, priority: 50, milliseconds: 40_000 };
    campaign(&plan(Scheduler::Microslice), &Boot { pause_exits: false, faults: vec![fault] }, |report| {
        assert!(campaign::findings(std::slice::from_ref(report)) > 0, "{}", report.to_text(1));
    });
}
