//! Our scheduler on every stock host kernel that can run it, and refused where it can't.

use crate::common::alone::{assert_was_alone, part_of_a_task};
use crate::common::{
    PATIENCE, assert_alive, assert_few_runs_were_left_out, count, on_machine, print, run, runs_of_observers,
    start_scheduler, statistics, stop_scheduler, sum,
};
use microslice_testbed::cache::Cache;
use microslice_testbed::kernels::{self, Rule};
use microslice_testbed::{Error, GuestSpec, Host, Testbed};
use serde_json::Value;

/// What the kernel answers to a task that asks for a core-scheduling cookie, and for the one that it has.
fn answers_to_core_scheduling(host: &Host) -> String {
    run(host, "cookie")
}

/// Loads, denies core scheduling, schedules a task that is alone, then a guest of four vCPUs beside a hog,
/// which then is limited, counts, unloads.
fn smoke(series: &str) {
    let rule = Rule::host(series).expect("a series");
    let cache = Cache::locate().unwrap_or_else(|error| panic!("{error}"));
    if let Err(error @ Error::Kernel { .. }) = kernels::obtain(&cache, &rule) {
        // Debian keeps only some versions; what the archive doesn't have can't be tested, and is said aloud.
        print(&format!("SKIPPED: host kernel {series}: {error}"));
        return;
    }
    on_machine(series, || Testbed::new(series).expect("a series"), &[], |host, _| schedule_two_guests(host));
}

fn schedule_two_guests(host: &Host) {
    // Debian's kernels have no core scheduling, and say so. Being loaded shows, as it is denied before they
    // look.
    let not_there = "create: Invalid argument\nget: Invalid argument\n";
    assert_eq!(answers_to_core_scheduling(host), not_there);
    let scheduler = start_scheduler(host, "--micro-cpus 1 --micro-slice-us 3000 --stats 1 --program-costs");
    assert_eq!(answers_to_core_scheduling(host), "create: No such device\nget: Invalid argument\n");
    assert_was_alone(part_of_a_task(host, 0xf), "any pCPU");
    let guests = host.start_guests(vec![
        GuestSpec::new("a").workload("shootdown,heartbeat"),
        GuestSpec::new("b").bare().cgroup("limited", 100),
    ]);
    let guests =
        guests.unwrap_or_else(|error| panic!("{error}; the scheduler said: {}", scheduler.last_words()));
    guests.iter().for_each(|guest| assert_alive(guest, 10));
    host.must_run("echo 100000 100000 > /sys/fs/cgroup/limited/cpu.max", PATIENCE).expect("a limit");
    let rests = |report: &Value| {
        report["vms"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|vm| vm["name"] == "b" && count(&vm["rested_time_ns"]) > 0)
    };
    statistics(&scheduler, rests, "rest of a VM that has used up its limit");
    guests.iter().for_each(|guest| assert_alive(guest, 5));
    let total = stop_scheduler(host, &scheduler);
    assert!(total["preemptions"]["total"].as_u64() > Some(0), "{total}");
    assert_few_runs_were_left_out(&total, runs_of_observers(&total), 100);
    assert_eq!(answers_to_core_scheduling(host), not_there);
    guests.iter().for_each(|guest| assert_alive(guest, 2));
    coordinate(host);
    guests.iter().for_each(|guest| assert_alive(guest, 2));
}

/// The other scheduler loads there, too, sees IPIs, and accounts for urgent vCPUs.
fn coordinate(host: &Host) {
    let scheduler = start_scheduler(
        host,
        "--scheduler coordinated --urgent-slice-us 3000 --preemption-delay-us 3000 --stats 1 --program-costs",
    );
    let has_urgent = |report: &Value| count(&report["became_urgent"]) > 0;
    statistics(&scheduler, has_urgent, "urgent vCPU");
    let total = stop_scheduler(host, &scheduler);
    let became = count(&total["became_urgent"]);
    assert_eq!(became, sum(&total["urgent_ends"]) + count(&total["urgent_now"]), "{total}");
    // The end of an interrupt may kick its own pCPU, which then preempts the very program that saw it.
    assert_few_runs_were_left_out(&total, runs_of_observers(&total), 20);
}

#[test]
#[ignore = "153 s; the default 6.18 and 7.2 stand for it, kvm_types for its layouts: make test-long"]
fn it_runs_on_6_16() {
    smoke("6.16");
}

#[test]
#[ignore = "78 s; 6.18 and 7.2 stand for what lies between them: make test-long"]
fn it_runs_on_7_0() {
    smoke("7.0");
}

#[test]
fn it_runs_on_the_newest_good_7_2() {
    smoke("7.2");
}

#[test]
fn a_kernel_whose_btf_is_broken_for_sched_ext_is_refused_with_that_reason() {
    let rule = Rule::broken_host("7.2").expect("a series");
    let testbed = || Testbed::with_kernel(rule.clone()).expect("a rule");
    on_machine("7.2 with broken BTF", testbed, &[], |host, _| {
        let output = host.run("microslice run --scheduler microslice", PATIENCE).expect("run");
        assert_eq!(output.code, 2, "{}", output.stderr);
        assert!(
            output.stderr.contains("BTF") && output.stderr.contains("scx_bpf_kick_cpu"),
            "{}",
            output.stderr
        );
        assert_eq!(output.stderr.lines().count(), 1, "one line: {}", output.stderr);
    });
}
