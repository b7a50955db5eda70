//! Lock holders that no list of functions has, on unmodified guests: known by the guest kernel's own count.

use crate::common::{
    FLAGS, assert_sums_hold, count, observed, replay, seconds, start_scheduler_that_knows, statistics,
    stop_scheduler,
};
use microslice_testbed::{GuestSpec, Pv};
use serde_json::Value;

/// Threads that take spinlocks of the kernel, most of them in functions that are called without any, too.
fn lockers() -> [GuestSpec; 2] {
    [GuestSpec::new("a").workload("worker,mix,lock").pv(Pv::Off), GuestSpec::new("b").bare()]
}

fn of_lockers(report: &Value) -> &Value {
    let vms = report["vms"].as_array().expect("VMs");
    vms.iter().find(|vm| vm["name"] == "a").expect("vm a")
}

#[test]
fn unlisted_holders_run_at_once_by_counter_alone() {
    observed(&lockers(), |host, _| {
        let flags = format!("{FLAGS} --critical-by counter --record /tmp/run.rec");
        let scheduler = start_scheduler_that_knows(host, 1, &flags);
        let holder_ran = |report: &Value| {
            count(&report["accelerations"]["by_cause_and_class"]["holder"]["lock_holder"]) > 0
        };
        statistics(&scheduler, holder_ran, "acceleration of a holder");
        std::thread::sleep(seconds(5, 20));
        let report = stop_scheduler(host, &scheduler);
        assert_sums_hold(&report);
        let said = scheduler.stderr();
        let is_believed =
            |line: &str| line.contains("a: preempt_count of ") && line.contains("tells who holds");
        assert!(said.lines().any(is_believed), "{said}");
        let holders = &of_lockers(&report)["holders"];
        eprintln!("by counter: {holders}");
        assert!(count(&holders["holding"]) > count(&holders["found_by_symbols"]), "{holders}");
        assert!(count(&replay(host, "/tmp/run.rec")["by_kind"]["held"]) > 0);

        let scheduler = start_scheduler_that_knows(host, 1, FLAGS);
        std::thread::sleep(seconds(5, 20));
        let report = stop_scheduler(host, &scheduler);
        assert_eq!(report["acceleration_requests"]["by_cause"]["holder"], 0, "{report}");
        assert_eq!(of_lockers(&report)["holders"]["known"], 0, "nobody reads its count");
    });
}
