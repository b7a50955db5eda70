//! A bound on waits, which holds whatever a VM has had and whatever is known of its guest.

use crate::common::{count, observed, print, seconds, start_scheduler, stop_scheduler, sum};
use microslice_testbed::{GuestSpec, Host};
use serde_json::Value;

/// Turns are longer than the bound. Its last parts are longer than what an emulated host is late by: a micro
/// slice of 3 ms took 10 ms on average.
const FLAGS: &str =
    "--micro-cpus 1 --micro-slice-us 3000 --slice-us 300000 --max-wait 200ms --stats 1 --no-guest-memory";

fn measured(host: &Host, flags: &str) -> Value {
    let scheduler = start_scheduler(host, &format!("{FLAGS} {flags}"));
    std::thread::sleep(seconds(6, 30));
    stop_scheduler(host, &scheduler)
}

fn late_per_second(report: &Value) -> f64 {
    count(&report["late_waits"]) as f64 / report["seconds"].as_f64().expect("a time")
}

#[test]
fn whoever_has_waited_for_long_has_a_micro_slice() {
    observed(&["a", "b"].map(|name| GuestSpec::new(name).bare()), |host, guests| {
        let [counted, bounded] = ["--dry-run", ""].map(|flags| measured(host, flags));
        guests.iter().for_each(|guest| assert!(!guest.has_ended(), "{}", guest.last_words()));
        let (before, after) = (late_per_second(&counted), late_per_second(&bounded));
        print(&format!("waits of more than 200 ms: {before:.1} a second without, {after:.1} with"));
        assert_eq!(sum(&counted["accelerations"]["by_cause"]), 0, "{counted}");
        assert!(count(&bounded["accelerations"]["by_cause"]["max_wait"]) > 0, "{bounded}");
        for vm in bounded["vms"].as_array().expect("VMs") {
            assert_eq!(vm["wait_bound_ns"], 200_000_000, "the bound in force: {vm}");
        }
        assert!(before > 5.0, "{before} late waits a second: nothing to bound; {counted}");
        assert!(after < before / 3.0, "{after} late waits a second, {before} without: {bounded}");
    });
}
