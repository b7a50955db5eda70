//! VMs that come and go beside boosts, on Debian's 6.1. Before 6.11 a vCPU is loaded once more to be freed,
//! by the task that frees it.

use super::beside::{DEBIAN_12, LONG_BOOSTS, guests, host_of, is_boosted, start, stop};
use crate::common::{PATIENCE, count, is_long, on_machine, print, reports, run, statistics_from, sum};
use microslice_testbed::{Host, Process};
use serde_json::Value;
use std::collections::BTreeSet;

/// Each with as many vCPUs as pCPUs, which spin in no known kernel.
const SMALL_VMS: usize = 3;

/// All of the host's threads that are real-time at the priority of boosts: fields 40 and 41 are priority and
/// policy. Kernel threads may be.
fn threads_at_the_priority_of_boosts(host: &Host) -> usize {
    let command =
        "cat /proc/[0-9]*/task/*/stat 2>/dev/null | sed 's/.*) //' | awk '$38 == 1 && $39 == 1' | wc -l";
    run(host, command).trim().parse().expect("a number")
}

fn small_vms(host: &Host) -> Process {
    let vms = host.start(&format!("exec vcpus {SMALL_VMS} 4 spin")).expect("start");
    vms.wait_for("ready", 0, PATIENCE).unwrap_or_else(|error| panic!("{error}: {}", vms.last_words()));
    vms
}

fn vms_of(report: &Value) -> &[Value] {
    report["vms"].as_array().expect("VMs")
}

#[test]
fn on_debian_12_vms_that_end_while_they_are_boosted_leave_nothing_behind() {
    on_machine(
        "a host for boosts, 6.1",
        || host_of(DEBIAN_12),
        &[],
        |host, _| {
            let _echo = host.start_echo().expect("the other end of the ping-pong");
            let before = threads_at_the_priority_of_boosts(host);
            // Its own, because it ends them.
            let running = host.start_guests(guests().into()).unwrap_or_else(|error| panic!("{error}"));
            let beside = start(host, LONG_BOOSTS);

            let has = |count: usize| move |report: &Value| vms_of(report).len() == count;
            for _ in 0..if is_long() { 10 } else { 2 } {
                let from = beside.lines(0).len();
                let small = small_vms(host);
                statistics_from(&beside, from, has(2 + SMALL_VMS), "interval with small VMs");
                small.signal(libc::SIGKILL).expect("signal");
                small.wait(PATIENCE).expect("end");
            }
            // Likewise, but its VMM lives on.
            let from = beside.lines(0).len();
            let leaving = host.start("exec vcpus 1 4 leave").expect("start");
            statistics_from(&beside, from, has(3), "interval with a VM that will be closed");
            leaving.wait_for("left", 0, PATIENCE).unwrap_or_else(|error| panic!("{error}"));
            statistics_from(&beside, beside.lines(0).len(), has(2), "interval without it");
            statistics_from(&beside, beside.lines(0).len(), is_boosted, "boost");
            running.into_iter().for_each(|guest| guest.stop().expect("stop"));

            // A VM that comes back does so when it is freed, a moment after its process's end.
            let ended = beside.lines(0).len();
            statistics_from(&beside, ended, has(0), "interval without VMs");
            let empty = beside.lines(0).len();
            statistics_from(&beside, empty + 2, |_| true, "third report from then on");
            let after = reports(&beside, empty);
            let real_time = threads_at_the_priority_of_boosts(host);
            let report = stop(&beside);

            let came_back: BTreeSet<_> = after.iter().flat_map(vms_of).map(Value::to_string).collect();
            assert!(came_back.is_empty(), "listed after their ends: {came_back:?}");
            assert!(vms_of(&report).is_empty(), "{report}");
            assert_eq!(real_time, before, "threads stay real-time: {report}");
            let helper = &report["helper"];
            print(&format!("boosts beside VMs that came and went: {helper}"));
            assert_eq!(helper["boosts"], helper["returns"], "{report}");
            assert_eq!(
                (&report["still_accelerated"], &report["pending_requests"]),
                (&0.into(), &0.into()),
                "{report}"
            );
            let lost = sum(&report["failed_pulls"]);
            assert_eq!(
                count(&report["acceleration_requests"]["total"]),
                count(&report["accelerations"]["total"]) + lost,
                "{report}"
            );
        },
    );
}
