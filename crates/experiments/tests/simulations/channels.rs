//! Channels between VMs and tasks of the host: streams, and a disk. Every run has the checkers on.

use crate::common::policies;
use microslice_engine::report::RunReport;
use microslice_engine::simulate;
use microslice_experiments::scenario::{Overrides, ScenarioError, parse};
use microslice_model::config::SimulationConfig;
use microslice_model::events::NoTrace;

fn read(text: &str, policy: &str) -> Result<SimulationConfig, ScenarioError> {
    let overrides = Overrides { policy: Some(policy.to_owned()), ..Overrides::default() };
    Ok(parse("mine.toml", text, &overrides)?.config)
}

fn run(text: &str, policy: &str) -> RunReport {
    let mut config = read(text, policy).unwrap_or_else(|error| panic!("{error}"));
    config.check = true;
    simulate(&config, &mut NoTrace).unwrap_or_else(|error| panic!("{policy}: {error}"))
}

fn done(report: &RunReport, vm: usize) -> u64 {
    report.vms[vm].workloads[0].units_done
}

/// A VM sends packets to another one by a worker of the host, which copies each; beside so many tasks that
/// always run, on three pCPUs.
fn stream(jobs: usize) -> String {
    let mut text = r#"
        host = { extends = "homelab", pcpus = 3, smt_threads = 1 }
        warmup = "200 ms"
        duration = "1 s"
        [[channel]]
        name = "tx"
        [[channel]]
        name = "rx"
        capacity = 64
        [[vm]]
        name = "sender"
        vcpus = 1
        kernel = "linux-modern"
        workloads = [{ name = "send", threads = 1, program = [{ compute = "8 us" }, { send = "tx" }, { progress = 1 }] }]
        [[vm]]
        name = "receiver"
        vcpus = 1
        kernel = "linux-modern"
        workloads = [{ name = "receive", threads = 1, program = [{ receive = "rx" }, { compute = "5 us" }, { progress = 1 }] }]
        [[task]]
        name = "vhost"
        program = [{ receive = "tx" }, { compute = "10 us" }, { send = "rx" }, { progress = 1 }]
    "#
    .to_owned();
    if jobs > 0 {
        text += &format!(
            "[[task]]\nname = \"jobs\"\nthreads = {jobs}\nprogram = [{{ compute = \"1 ms\" }}, {{ progress = 1 }}]\n"
        );
    }
    text
}

#[test]
fn a_stream_is_as_fast_as_its_slowest_part() {
    for policy in policies(1).iter().filter(|policy| !policy.starts_with("micro-xen")) {
        let report = run(&stream(0), policy);
        let [sent, received, copied] = [0, 1, 2].map(|vm| done(&report, vm));
        // The worker takes 10 us for each, and caches, exits and interrupts a part of it.
        assert!((60_000..100_100).contains(&copied), "{policy}: {copied}");
        // What was on its way when measuring began, or is so at the end.
        assert!(
            sent.abs_diff(copied) <= 257 && received.abs_diff(copied) <= 66,
            "{policy}: {sent}, {copied}, {received}"
        );
    }
}

#[test]
fn a_worker_of_the_host_needs_a_pcpu_too() {
    for policy in ["eevdf", "microslice:0"] {
        let [alone, crowded] = [0, 12].map(|jobs| done(&run(&stream(jobs), policy), 1));
        assert!(crowded * 5 < alone * 4, "{policy}: {crowded}, alone {alone}");
    }
}

/// Threads that read from a disk which serves so many requests at once, for 80 us each.
fn disk(depth: usize) -> String {
    format!(
        r#"
        host = {{ extends = "homelab", pcpus = 4, smt_threads = 1 }}
        warmup = "200 ms"
        duration = "1 s"
        [[channel]]
        name = "requests"
        [[channel]]
        name = "completions"
        [[vm]]
        name = "database"
        vcpus = 4
        kernel = "linux-modern"
        workloads = [{{ name = "query", threads = 8, program = [
            {{ compute = "5 us" }}, {{ send = "requests" }}, {{ receive = "completions" }}, {{ progress = 1 }},
        ] }}]
        [[task]]
        name = "iothread"
        threads = {depth}
        program = [{{ receive = "requests" }}, {{ compute = "2 us" }}, {{ sleep = "80 us" }}, {{ send = "completions" }}, {{ progress = 1 }}]
        "#
    )
}

#[test]
fn a_disk_serves_as_many_requests_as_it_has_room() {
    for policy in ["eevdf", "beside", "microslice"] {
        let [one, four] = [1, 4].map(|depth| done(&run(&disk(depth), policy), 0));
        assert!((9_000..12_300).contains(&one), "{policy}: {one}");
        assert!(four > one * 7 / 2 && four < one * 9 / 2, "{policy}: {four}, with one at a time {one}");
    }
}

#[test]
fn what_comes_from_outside_is_told_as_late() {
    let report = run(&disk(4), "eevdf");
    assert!(report.vms[0].timer_lateness.count() > 10_000, "{:?}", report.vms[0].timer_lateness);
}

#[test]
fn channels_without_both_ends_are_refused() {
    let refused =
        |from: &str, to: &str| read(&disk(1).replace(from, to), "eevdf").expect_err("wrong").to_string();
    let error = refused("{ send = \"completions\" }, ", "");
    assert!(error.ends_with("channel `completions`: nobody sends to it"), "{error}");
    let error = refused("{ receive = \"requests\" }, ", "");
    assert!(error.ends_with("channel `requests`: nobody receives from it"), "{error}");
    let error = refused("{ send = \"requests\" }", "{ send = \"requests\", capacity = 4 }");
    assert!(error.ends_with("channel `requests` says its capacity itself"), "{error}");
    let error = refused("name = \"requests\"", "name = \"completions\"");
    assert!(error.contains("a second channel `completions`"), "{error}");
    let error = refused("{ receive = \"requests\" }, ", "{ receive = \"other\" }, ");
    assert!(error.contains("send and receive of a channel only"), "{error}");
}
