//! Acceleration on real guests: causes, classes, slides, and sums that hold.

mod common;

use common::{OTHER_KERNEL, PATIENCE, host, start_scheduler, stop_scheduler};
use microslice_testbed::{Guest, GuestSpec, Host, Process, Pv};
use serde_json::Value;
use std::time::{Duration, Instant};

/// The emulated CPU is 20 to 50 times slower than hardware, and so is what a micro slice must be long enough for.
const FLAGS: &str = "--micro-cpus 1 --micro-slice-us 3000 --stats 1";

fn contended_guests(host: &Host, pv: Pv) -> Vec<Guest> {
    host.start_guests(vec![
        GuestSpec::new("a").workload("worker,wake,kallsyms").pv(pv),
        GuestSpec::new("b").workload("hog").pv(pv),
    ])
    .unwrap_or_else(|error| panic!("{error}"))
}

/// Waits for statistics that are `enough`.
fn statistics(scheduler: &Process, enough: impl Fn(&Value) -> bool, what: &str) {
    let deadline = Instant::now() + PATIENCE;
    let mut last = None;
    let mut from = 0;
    while Instant::now() < deadline {
        let lines = scheduler.lines(from);
        from += lines.len();
        for report in lines.iter().filter_map(|line| serde_json::from_str::<Value>(&line.text).ok()) {
            if enough(&report) {
                return;
            }
            last = Some(report);
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    panic!("no {what} in {from} lines; the last report: {last:?}; it said: {}", scheduler.last_words());
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

fn sum(object: &Value) -> u64 {
    object.as_object().expect("an object of counts").values().map(count).sum()
}

fn assert_sums_hold(report: &Value) {
    let accelerations = count(&report["accelerations"]["total"]);
    assert_eq!(accelerations, sum(&report["accelerations"]["by_cause"]));
    assert_eq!(accelerations, sum(&report["accelerations"]["by_class"]));
    assert_eq!(accelerations, count(&report["returns"]) + count(&report["in_flight"]));
    assert_eq!(count(&report["returns"]), sum(&report["returns_by_outcome"]));
    let requests = count(&report["requests"]);
    assert_eq!(requests, accelerations + sum(&report["failed_pulls"]) + count(&report["pending"]));
    assert!(count(&report["in_flight"]) <= 1, "one micro pCPU holds one vCPU at most");
    assert!(count(&report["pending"]) <= 2, "requests don't pile up");
}

#[test]
fn interrupts_to_preempted_vcpus_accelerate_them_and_all_of_them_return() {
    let host = host();
    let guests = contended_guests(&host, Pv::Off);
    let scheduler = start_scheduler(&host, &format!("{FLAGS} --record /tmp/run.rec"));
    let has_accelerated = |report: &Value| count(&report["accelerations"]["total"]) > 0;
    statistics(&scheduler, has_accelerated, "acceleration");
    std::thread::sleep(Duration::from_secs(10));
    let report = stop_scheduler(&host, &scheduler);
    assert_sums_hold(&report);
    let causes = &report["accelerations"]["by_cause"];
    assert!(count(&causes["call_function_ipi"]) + count(&causes["resched_ipi"]) > 0, "{causes}");

    // The slide that was found from outside is the guest's own.
    let text = guests[0].kallsyms("_text").expect("the guest prints its kallsyms");
    let slide = text - 0xffff_ffff_8100_0000;
    let vm = report["vms"].as_array().expect("vms").iter().find(|vm| vm["name"] == "a").expect("vm a");
    assert_eq!(vm["slide"], format!("{slide:#x}"), "{vm}");

    // What the kernel decided is what the same C decides natively.
    let replayed = host.must_run("microslice replay --json /tmp/run.rec", PATIENCE).expect("replay");
    let replayed: Value = serde_json::from_str(&replayed).expect("JSON");
    assert_eq!(replayed["differences"], 0, "{replayed}");
    assert!(count(&replayed["by_kind"]["interrupt"]) > 0 && count(&replayed["by_kind"]["classify"]) > 0);
    assert_eq!(report["host"]["records_dropped"], 0);
}

#[test]
fn paravirtual_yields_accelerate_preempted_siblings() {
    let host = host();
    let _guests = contended_guests(&host, Pv::On);
    let scheduler = start_scheduler(&host, FLAGS);
    let has_yields = |report: &Value| count(&report["requests_by_cause"]["pv_yield"]) > 0;
    statistics(&scheduler, has_yields, "paravirtual yield");
    let report = stop_scheduler(&host, &scheduler);
    assert_sums_hold(&report);
}

#[test]
fn symbols_of_another_kernel_accelerate_nothing() {
    let host = host();
    let _guests = contended_guests(&host, Pv::Off);
    let other = &host.image(OTHER_KERNEL).expect("another kernel's image").kernel;
    let scheduler = start_scheduler(&host, &format!("{FLAGS} --guest a={other} --guest b={other}"));
    std::thread::sleep(Duration::from_secs(15));
    let report = stop_scheduler(&host, &scheduler);
    assert_eq!(report["requests"], 0, "{report}");
    assert_eq!(report["accelerations"]["total"], 0);
}

#[test]
fn a_dry_run_decides_and_counts_but_moves_nothing() {
    let host = host();
    let _guests = contended_guests(&host, Pv::Off);
    let scheduler = start_scheduler(&host, &format!("{FLAGS} --dry-run"));
    let would = |report: &Value| sum(&report["would_accelerate"]) > 0;
    statistics(&scheduler, would, "decision");
    let report = stop_scheduler(&host, &scheduler);
    assert!(report["dry_run"] == true && sum(&report["would_accelerate"]) > 0);
    assert_eq!((count(&report["requests"]), count(&report["accelerations"]["total"])), (0, 0));
}

/// `name = count` lines.
fn counts_of(text: &str) -> Vec<(&str, u64)> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(" = "))
        .filter_map(|(name, count)| Some((name, count.trim().parse().ok()?)))
        .collect()
}

#[test]
fn the_verifier_walks_about_as_many_instructions_as_recorded() {
    let recorded = include_str!("../../../bpf/instruction-counts.toml");
    let section = recorded.split("[\"6.18\"]").nth(1).expect("counts of the default host");
    let recorded = counts_of(section.split("\n[").next().expect("a section"));
    let host = host();
    let now = host.must_run("microslice run --micro-cpus 1 --instruction-counts", PATIENCE).expect("counts");
    let now = counts_of(&now);
    assert_eq!(
        now.iter().map(|(name, _)| name).collect::<Vec<_>>(),
        recorded.iter().map(|(name, _)| name).collect::<Vec<_>>(),
        "programs came or went: record their counts"
    );
    for ((name, count), (_, before)) in now.iter().zip(&recorded) {
        assert!(*count <= before + before / 2 + 50, "{name}: {count} instructions, recorded were {before}");
    }
}
