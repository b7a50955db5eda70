//! Operators' reports as scenarios: what was seen on their hosts, and how it has to be. Every run has the
//! checkers on.

use microslice_engine::report::{RunReport, VmReport};
use microslice_engine::simulate;
use microslice_experiments::scenario::{Overrides, parse};
use microslice_model::events::NoTrace;

/// A kind of report.
struct Case {
    name: &'static str,
    /// The host's keys, and the rest of the file.
    host: &'static str,
    vms: &'static str,
    /// The first is what the others are compared with.
    policies: &'static [&'static str],
    /// Says what is wrong; of the report under the first policy, and under another one.
    wrong: fn(&RunReport, &RunReport) -> Option<String>,
}

const ALL: &[&str] = &["eevdf", "microslice:0", "microslice", "beside"];
/// With turns that are as short as the kernel's own.
const SHORT_WAITS: &[&str] = &["eevdf", "microslice+slice=3 ms", "microslice:0+slice=3 ms", "beside"];

const CASES: &[Case] = &[
    Case {
        name: "two vCPUs that are pinned beside a hog on each pCPU spin for each other",
        host: "pcpus = 2",
        vms: r#"
            [[vm]]
            name = "pair"
            vcpus = 2
            pinned = true
            kernel = "linux-modern"
            workloads = [{ name = "share", threads = 2, program = [
                { compute = "exponential 60 us" }, { lock = "dentry", hold = "12 us" }, { progress = 1 },
            ] }]
            [[vm]]
            name = "hog"
            vcpus = 2
            pinned = true
            kernel = "linux-modern"
            workloads = [{ use = "lookbusy", threads = 2 }]
        "#,
        policies: ALL,
        wrong: |before, now| share_off(now, &[0.5, 0.5], 0.02).or_else(|| less_work(before, now, 0.95)),
    },
    Case {
        name: "a VM that builds is pinned to the pCPUs of one that computes",
        host: "pcpus = 4",
        vms: r#"
            [[vm]]
            name = "build"
            vcpus = 4
            vcpupin = [0, 1, 2, 3]
            kernel = "linux-modern"
            workloads = ["gmake"]
            [[vm]]
            name = "hog"
            vcpus = 4
            pinned = true
            kernel = "linux-modern"
            workloads = [{ use = "lookbusy", threads = 4 }]
        "#,
        policies: ALL,
        wrong: |before, now| share_off(now, &[0.5, 0.5], 0.02).or_else(|| less_work(before, now, 0.95)),
    },
    Case {
        name: "each half of a host has a VM that builds and one that computes",
        host: "pcpus = 8\nllc_pcpus = 4",
        vms: r#"
            [[vm]]
            name = "build"
            vcpus = 4
            affinity = [4, 5, 6, 7]
            kernel = "linux-modern"
            workloads = ["gmake"]
            [[vm]]
            name = "hog"
            vcpus = 4
            affinity = [4, 5, 6, 7]
            kernel = "linux-modern"
            workloads = [{ use = "lookbusy", threads = 4 }]
            [[vm]]
            name = "other"
            vcpus = 8
            affinity = [0, 1, 2, 3]
            kernel = "linux-modern"
            workloads = [{ use = "lookbusy", threads = 8 }]
        "#,
        policies: ALL,
        wrong: |before, now| {
            share_off(now, &[0.25, 0.25, 0.5], 0.02).or_else(|| less_work(before, now, 0.95))
        },
    },
    Case {
        name: "a heartbeat comes late beside VMs that compute",
        host: "pcpus = 1",
        vms: r#"
            [[vm]]
            name = "heart"
            vcpus = 1
            kernel = "linux-modern"
            workloads = [{ name = "beats", threads = 1, program = [{ sleep = "10 ms" }, { compute = "200 us" }, { progress = 1 }] }]
            [[vm]]
            name = "hog"
            copies = 6
            vcpus = 1
            kernel = "linux-modern"
            workloads = ["lookbusy"]
        "#,
        policies: ALL,
        wrong: |before, now| {
            if now.vms[0].waits.count() == 0 || before.vms[0].timer_lateness.count() == 0 {
                return Some("a VM's waits and late timers aren't told".to_owned());
            }
            longer(p99_ns(&before.vms[0].timer_lateness), p99_ns(&now.vms[0].timer_lateness), 1.0)
        },
    },
    Case {
        name: "a wide VM beside a narrow one with many threads, weights by size",
        host: "pcpus = 16",
        vms: r#"
            [[vm]]
            name = "wide"
            vcpus = 15
            weight = 1500
            kernel = "linux-modern"
            workloads = [{ use = "lookbusy", threads = 15 }]
            [[vm]]
            name = "narrow"
            vcpus = 4
            weight = 100
            kernel = "linux-modern"
            workloads = [{ use = "lookbusy", threads = 16 }]
        "#,
        policies: SHORT_WAITS,
        wrong: |before, now| {
            let waits = |report: &RunReport| p99_ns(&report.wait_to_run);
            share_off(now, &[15.0 / 16.0, 1.0 / 16.0], 0.01)
                .or_else(|| longer(waits(before), waits(now), 1.25))
        },
    },
    Case {
        name: "a VM of eight vCPUs beside eight small ones, weights by size",
        host: "pcpus = 16",
        vms: r#"
            [[vm]]
            name = "large"
            vcpus = 8
            weight = 800
            kernel = "linux-modern"
            workloads = [{ use = "lookbusy", threads = 8 }]
            [[vm]]
            name = "small"
            copies = 8
            vcpus = 2
            weight = 100
            kernel = "linux-modern"
            workloads = [{ use = "lookbusy", threads = 2 }]
        "#,
        policies: SHORT_WAITS,
        wrong: |before, now| {
            let due = [0.5, 0.0625, 0.0625, 0.0625, 0.0625, 0.0625, 0.0625, 0.0625, 0.0625];
            let waits = |report: &RunReport| p99_ns(&report.wait_to_run);
            share_off(now, &due, 0.01).or_else(|| longer(waits(before), waits(now), 1.25))
        },
    },
    Case {
        name: "a nested guest of many vCPUs calls all of them while it boots",
        host: "pcpus = 6\nple = { enabled = false, window = \"4096 cycles\" }\ncosts = { exit = \"10 us\", ipi_send = \"12 us\", ipi_delivery = \"10 us\" }",
        vms: r#"
            [[vm]]
            name = "nested"
            vcpus = 48
            kernel = { extends = "linux-modern", pv_tlb_flush = false }
            workloads = [{ name = "boot", threads = "per vcpu", address_space = "shared", program = [
                { compute = "exponential 2 ms" }, { sometimes = "10 %", body = [{ shootdown = "2 us" }] }, { progress = 1 },
            ] }]
        "#,
        policies: &["eevdf", "microslice", "microslice:0+slice=3 ms", "beside"],
        wrong: |before, now| {
            let waits = |report: &RunReport| p99_ns(&report.vms[0].tlb_sync);
            longer(waits(before), waits(now), 1.05).or_else(|| less_work(before, now, 1.0))
        },
    },
    Case {
        name: "a VM is held to a limit beside daemons of the host in a slice of their own",
        host: "pcpus = 8",
        vms: r#"
            [[cgroup]]
            name = "machine.slice"
            [[cgroup]]
            name = "system.slice"
            [[vm]]
            name = "limited"
            vcpus = 8
            cgroup = "machine.slice"
            cpu_max = "300000 100000"
            kernel = { extends = "linux-modern", tick = "1000 Hz" }
            workloads = [{ use = "lookbusy", threads = 8 }]
            [[vm]]
            name = "node"
            vcpus = 8
            cgroup = "machine.slice"
            kernel = "linux-modern"
            workloads = [{ use = "lookbusy", threads = 8 }]
            [[task]]
            name = "daemons"
            threads = 8
            cgroup = "system.slice"
            program = [{ sleep = "exponential 8 ms" }, { compute = "exponential 2 ms" }, { progress = 1 }]
        "#,
        policies: ALL,
        wrong: |_, now| {
            let cpus = |vm: &VmReport| vm.run_ns as f64 / now.measured_ns as f64;
            let [limited, node, daemons] = [0, 1, 2].map(|vm: usize| cpus(&now.vms[vm]));
            let holds = (2.7..3.06).contains(&limited) && node > 3.0 && daemons > 0.8;
            (!holds).then(|| format!("{limited}, {node} and {daemons} pCPUs"))
        },
    },
    Case {
        name: "directed yields help file servers that want one lock",
        host: "pcpus = 8",
        vms: r#"
            [[vm]]
            name = "server"
            copies = 2
            vcpus = 8
            kernel = "linux-modern"
            workloads = ["dbench"]
        "#,
        policies: &["eevdf", "eevdf-ipi", "microslice"],
        wrong: |before, now| less_work(before, now, 1.0),
    },
];

/// Refused in one line, each at its place.
const REFUSED: [(&str, &str); 3] = [
    (
        "workloads = [{ name = \"w\", threads = 4, program = [{ compute = \"1 us\" }, { barrier = \"b\", under = \"runqueue\" }] }]",
        "`under`: `runqueue` can't be held; allowed: a lock whose waiters spin, but no runqueue's",
    ),
    (
        "kernel = { extends = \"linux-4.4\", balance = \"capacity\", balance_interval = \"1 ns\" }",
        "`balance_interval`: `1 ns` isn't allowed, only 100 us to 60 min",
    ),
    (
        "kernel = { extends = \"linux-4.4\", balance = \"capacity\", balance_interval = \"1 us\" }",
        "`balance_interval`: `1 us` isn't allowed, only 100 us to 60 min",
    ),
];

fn p99_ns(waits: &microslice_metrics::Histogram) -> f64 {
    waits.percentile(99.0).unwrap_or(0) as f64
}

/// A VM has another part of what all had than what is due to it.
fn share_off(report: &RunReport, due: &[f64], allowed: f64) -> Option<String> {
    let all: u64 = report.vms.iter().map(|vm| vm.run_ns).sum();
    let shares: Vec<f64> = report.vms.iter().map(|vm| vm.run_ns as f64 / all as f64).collect();
    let is_off =
        shares.len() != due.len() || shares.iter().zip(due).any(|(has, due)| (has - due).abs() > allowed);
    is_off.then(|| format!("shares of {shares:?}, due are {due:?}"))
}

/// The first VM did less than so many times what it did before.
fn less_work(before: &RunReport, now: &RunReport, times: f64) -> Option<String> {
    let units = |report: &RunReport| report.vms[0].workloads[0].units_done as f64;
    (units(now) < units(before) * times).then(|| format!("work of {}, it was {}", units(now), units(before)))
}

fn longer(before_ns: f64, now_ns: f64, times: f64) -> Option<String> {
    (now_ns > before_ns * times).then(|| format!("{now_ns} ns, it was {before_ns} ns"))
}

fn run(case: &Case, policy: &str) -> RunReport {
    let text = format!(
        "warmup = \"1 s\"\nduration = \"3 s\"\n[host]\nextends = \"homelab\"\nsmt_threads = 1\n{}\n{}",
        case.host, case.vms
    );
    let overrides = Overrides { policy: Some(policy.to_owned()), ..Overrides::default() };
    let config = parse("mine.toml", &text, &overrides);
    let mut config = config.unwrap_or_else(|error| panic!("{}: {error}", case.name)).config;
    config.check = true;
    simulate(&config, &mut NoTrace).unwrap_or_else(|error| panic!("{}, {policy}: {error}", case.name))
}

#[test]
fn what_operators_reported_is_as_it_has_to_be() {
    let mut all_wrong = Vec::new();
    for case in CASES {
        let before = run(case, case.policies[0]);
        for policy in case.policies {
            let wrong = (case.wrong)(&before, &run(case, policy));
            all_wrong.extend(wrong.map(|wrong| format!("{}: {policy}: {wrong}", case.name)));
        }
    }
    assert!(all_wrong.is_empty(), "{}", all_wrong.join("\n"));
}

#[test]
fn what_scenarios_can_not_say_is_refused_in_one_line() {
    const VM: &str = "kernel = \"linux-4.4\"\nworkloads = [\"lookbusy\"]";
    for (keys, cause) in REFUSED {
        let (key, _) = keys.split_once(' ').expect("a key");
        let others = VM.lines().filter(|line| !line.starts_with(key)).collect::<Vec<_>>().join("\n");
        let text = format!(
            "host = \"homelab\"\nduration = \"20 ms\"\n[[vm]]\nname = \"a\"\nvcpus = 2\n{others}\n{keys}\n"
        );
        let error = parse("mine.toml", &text, &Overrides::default()).expect_err("it is wrong").to_string();
        assert!(error.starts_with("mine.toml:7:") && error.ends_with(cause), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}
