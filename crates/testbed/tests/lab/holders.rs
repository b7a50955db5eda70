//! Lock holders that no list of functions has: known by the guest's own count.

use crate::{lab, observe, of_vm, report_of, run_beside};
use microslice_testbed::lab::{Lab, LabVm, Running};
use serde_json::Value;
use std::time::{Duration, Instant};

/// A queued lock that is held in a function of no list; and enough in user mode to be believed soon.
const UNLISTED: [&str; 5] = ["load=queued", "vcpus=2", "compute=300000", "hold=100000", "listed=0"];
const BELIEVED: &str = "tells who holds locks";
/// A lock that is handed on in line, by more vCPUs than the machine has CPUs for.
const IN_LINE: [&str; 5] = ["load=ticket", "vcpus=4", "compute=300000", "hold=100000", "listed=0"];

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("a number: {value}"))
}

/// `run --scheduler beside` by these means, for some seconds beside a crowd. What it reports of the VM.
fn beside(lab: &Lab, vm: &LabVm, critical_by: &str, then: impl FnOnce(&Running)) -> Value {
    let daemon = run_beside(lab, &[vm], &["--critical-by", critical_by, "--boost-percent", "5"]);
    then(&daemon);
    std::thread::sleep(Duration::from_secs(3));
    of_vm(&report_of(daemon), vm).clone()
}

#[test]
fn unlisted_holders_are_boosted_by_counter_only() {
    let Some(lab) = lab() else { return };
    let _crowd = lab.start(&["load=compute", "vcpus=4"]).expect("a VM");
    let vm = lab.start(&UNLISTED).expect("a VM");
    let by_symbols = beside(&lab, &vm, "symbols", |_| ());
    assert_eq!(number(&by_symbols["accelerations"]["by_cause"]["holder"]), 0, "{by_symbols}");
    assert_eq!(number(&by_symbols["holders"]["known"]), 0, "nobody reads its count: {by_symbols}");
    let by_counter = beside(&lab, &vm, "counter", |daemon| daemon.wait_for(BELIEVED).expect("belief"));
    let holders = &by_counter["accelerations"]["by_cause_and_class"]["holder"];
    assert!(number(&holders["lock_holder"]) > 0, "{by_counter}");
    let seen = &by_counter["holders"];
    assert!(number(&seen["holding"]) > number(&seen["found_by_symbols"]), "{seen}");
}

#[test]
fn stopped_heirs_are_boosted_where_nobody_holds_anything() {
    let Some(lab) = lab() else { return };
    let _crowd = lab.start(&["load=compute", "vcpus=4"]).expect("a VM");
    let vm = lab.start(&IN_LINE).expect("a VM");
    let by_symbols = beside(&lab, &vm, "symbols", |_| ());
    assert_eq!(number(&by_symbols["accelerations"]["by_cause"]["heir"]), 0, "{by_symbols}");
    let by_counter = beside(&lab, &vm, "counter", |daemon| daemon.wait_for(BELIEVED).expect("belief"));
    let heirs = &by_counter["accelerations"]["by_cause_and_class"]["heir"];
    assert!(number(&heirs["lock_waiter"]) > 0, "{by_counter}");
}

#[test]
fn a_count_that_never_returns_to_zero_is_not_believed() {
    let Some(lab) = lab() else { return };
    let _crowd = lab.start(&["load=compute", "vcpus=4"]).expect("a VM");
    let vm = lab.start(&[&UNLISTED[..], &["lies=1"]].concat()).expect("a VM");
    let not_believed = "preempt_count isn't believed (it isn't as a kernel's): symbols tell who holds locks";
    let report = beside(&lab, &vm, "counter", |daemon| daemon.wait_for(not_believed).expect("disbelief"));
    for cause in ["holder", "heir"] {
        assert_eq!(number(&report["accelerations"]["by_cause"][cause]), 0, "{report}");
    }
    assert_eq!(number(&report["holders"]["known"]), 0, "{report}");
}

#[test]
fn a_guest_that_always_claims_to_hold_has_its_budget() {
    let Some(lab) = lab() else { return };
    let _crowd = lab.start(&["load=compute", "vcpus=2"]).expect("a VM");
    // Enough in user mode to be believed, and never to have held something at 16 stops in a row.
    let claims = ["load=claims", "vcpus=2", "compute=100000", "hold=300000", "listed=0"];
    let vm = lab.start(&claims).expect("a VM");
    let began = Instant::now();
    let daemon = run_beside(&lab, &[&vm], &["--critical-by", "counter"]);
    daemon.wait_for(BELIEVED).expect("belief");
    std::thread::sleep(Duration::from_secs(3));
    let report = of_vm(&report_of(daemon), &vm).clone();
    let pcpus = std::thread::available_parallelism().expect("pCPUs").get() as f64;
    let boosted_ns = number(&report["boosted_ns"]) as f64;
    // One per cent of the host, of this time and a second more; and a slice of each vCPU's that was granted.
    let bound_ns = (began.elapsed().as_nanos() as f64 + 1e9) * 0.01 * pcpus + 2.0 * 1e6;
    assert!(number(&report["accelerations"]["by_cause"]["holder"]) > 0, "{report}");
    assert!(boosted_ns < bound_ns, "boosted for {boosted_ns} ns of {bound_ns}: {report}");
}

#[test]
fn observe_says_who_held_a_lock_by_the_guests_count() {
    let Some(lab) = lab() else { return };
    let _crowd = lab.start(&["load=compute", "vcpus=4"]).expect("a VM");
    let unlisted = lab.start(&UNLISTED).expect("a VM");
    let listed = lab.start(&[&UNLISTED[..4], &["listed=1"]].concat()).expect("a VM");
    let report = observe(&lab, &[&unlisted, &listed], &["--settle", "5s", "--for", "5s"]);
    let missed = &of_vm(&report, &unlisted)["missed_holders"][0]["function"];
    assert_eq!(missed, "hold_without_a_name", "{report}");
    let [unlisted, listed] = [&unlisted, &listed].map(|vm| &of_vm(&report, vm)["holders"]);
    for holders in [unlisted, listed] {
        assert!(number(&holders["known"]) > 0 && number(&holders["holding"]) > 0, "{holders}");
    }
    let share = |holders: &Value| {
        number(&holders["found_by_symbols"]) as f64 / number(&holders["holding"]).max(1) as f64
    };
    assert!(share(unlisted) < 0.2 && share(listed) > 0.6, "{unlisted} {listed}");
}
