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

/// A stream of 10,000 packets a second from outside, of which a task of the host carries each in so long;
/// beside so many tasks that always run, on two pCPUs.
fn carried(copy_us: u64, jobs: usize) -> String {
    let mut text = format!(
        r#"
        host = {{ extends = "homelab", pcpus = 2, smt_threads = 1 }}
        warmup = "200 ms"
        duration = "1 s"
        [[channel]]
        name = "tap"
        capacity = 500
        [[channel]]
        name = "ring"
        [[vm]]
        name = "guest"
        vcpus = 1
        kernel = "linux-modern"
        workloads = [{{ name = "reader", threads = 1, program = [{{ network_receive = 1 }}, {{ progress = 1 }}] }}]
        nic = {{ extends = "iperf-udp", worker = {{ from = "tap", to = "ring" }}, ring_packets = 64, udp = {{ rate = "80 Mbit/s", packet = "1000 B" }} }}
        [[task]]
        name = "vhost"
        program = [{{ receive = "tap" }}, {{ compute = "{copy_us} us" }}, {{ send = "ring" }}, {{ progress = 1 }}]
    "#
    );
    if jobs > 0 {
        text += &format!(
            "[[task]]\nname = \"jobs\"\nthreads = {jobs}\nweight = 2560\nprogram = [{{ compute = \"1 ms\" }}, {{ progress = 1 }}]\n"
        );
    }
    text
}

#[test]
fn packets_that_a_worker_carries_arrive_at_its_rate() {
    for policy in policies(1).iter().filter(|policy| !policy.starts_with("micro-xen")) {
        let [fast, slow] = [20, 200].map(|copy_us| run(&carried(copy_us, 0), policy));
        let (all, few) = (done(&fast, 0), done(&slow, 0));
        assert!((9_900..10_100).contains(&all), "{policy}: {all}");
        // 200 us for each, and what a task loses to switches and caches.
        assert!((4_000..5_010).contains(&few), "{policy}: {few}");
        assert!(done(&slow, 1).abs_diff(few) <= 70, "{policy}: {few} of {}", done(&slow, 1));
        let dropped = [&fast, &slow].map(|report| report.vms[0].network.as_ref().unwrap().dropped);
        assert!(dropped[0] == 0 && dropped[1] > 4_000, "{policy}: {dropped:?}");
    }
}

#[test]
fn packets_wait_for_a_worker_that_shares_its_pcpu() {
    for policy in ["eevdf", "microslice:0"] {
        let [alone, crowded] = [0, 12].map(|jobs| done(&run(&carried(60, jobs), policy), 0));
        assert!(alone > 9_900 && crowded * 2 < alone, "{policy}: {crowded}, alone {alone}");
    }
}

#[test]
fn a_worker_may_take_more_packets_at_once_than_wait() {
    let one = "{ receive = \"tap\" }, { compute = \"20 us\" }, { send = \"ring\" }";
    let batch = "{ repeat = 8, body = [{ receive = \"tap\" }, { compute = \"20 us\" }] }, \
                 { repeat = 8, body = [{ send = \"ring\" }] }";
    let text = carried(20, 0).replace(one, batch).replace("capacity = 500", "capacity = 4");
    assert!(text.contains("repeat = 8"));
    let all = done(&run(&text, "eevdf"), 0);
    assert!((9_900..10_100).contains(&all), "{all}");
}

#[test]
fn a_nic_shares_its_channels_with_nobody() {
    let refused = |from: &str, to: &str| {
        read(&carried(20, 0).replace(from, to), "eevdf").expect_err("wrong").to_string()
    };
    let error = refused("to = \"ring\"", "to = \"gone\"");
    assert!(error.ends_with("`to`: there is no [[channel]] `gone`"), "{error}");
    let error = refused("from = \"tap\"", "from = 1");
    assert!(error.ends_with("`from` is text, not a whole number"), "{error}");
    let error = refused("from = \"tap\"", "from = \"ring\"");
    assert!(error.ends_with("`from` and `to` are two channels"), "{error}");
    let error = refused("{ send = \"ring\" }", "{ send = \"tap\" }");
    assert!(error.ends_with("channel `tap`: the NIC of VM `guest` shares its ends with nobody"), "{error}");
    let error = refused("{ send = \"ring\" }", "{ sometimes = \"50 %\", body = [{ send = \"ring\" }] }");
    let unequal = "channel `ring`: the task sends other than it receives of the NIC's packets";
    assert!(error.ends_with(unequal), "{error}");
    let error = refused("vcpus = 1", "vcpus = 1\ncopies = 2");
    assert!(error.ends_with("channel `tap`: the NIC of VM `guest-1` shares its ends with nobody"), "{error}");
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
