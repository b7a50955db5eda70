//! Every time and count of scenarios, at both ends of its range: each ends with a result or with one line.

use microslice_engine::{SimError, simulate};
use microslice_experiments::scenario::{Overrides, parse};
use microslice_model::events::NoTrace;

const SCENARIO: &str = r#"
    host = { extends = "xeon-e5645", pcpus = 2, llc_pcpus = 0, costs = { kick = "1 us", halt = "1 us" } }
    warmup = "0 ms"
    duration = "2 ms"
    [[vm]]
    name = "one"
    vcpus = 2
    kernel = { extends = "linux-4.4", balance = "capacity", lock_kind = "spin-yield" }
    nic = "iperf-tcp"
    workloads = [{ name = "all", threads = 3, lock = [{ name = "own", symbol = "release_pages" }], program = [
        { compute = "exponential 10 us" }, { lock = "own", hold = "2 us" },
        { barrier = "all", under = "dentry", spin = "10 us" },
        { sleep = "uniform 1 us to 9 us" }, { kernel = "1 us", symbol = "release_pages" }, { shootdown = "1 us" },
        { send = "q", capacity = 3 }, { receive = "q" }, { spawn = 2 }, { yield_thread = 2 }, { progress = 1 },
        { repeat = 2, body = [{ compute = "1 us" }] }, { sometimes = "5 %", body = [{ sleep = "1 us" }] },
    ] }, { name = "reads", threads = 1, program = [{ network_receive = 2 }] }]
    [[vm]]
    name = "other"
    vcpus = 2
    kernel = "linux-modern"
    nic = "iperf-udp"
    workloads = ["lookbusy", { name = "reads", threads = 1, program = [{ network_receive = 2 }] }]
"#;

/// Paths of times and counts that every policy has.
const PATHS: [&str; 56] = [
    "duration",
    "warmup",
    "seed",
    "host.pcpus",
    "host.llc_pcpus",
    "host.smt_threads",
    "host.costs.context_switch",
    "host.costs.exit",
    "host.costs.ipi_send",
    "host.costs.ipi_delivery",
    "host.costs.interrupt_entry",
    "host.costs.cache_refill_max",
    "host.costs.cache_displace",
    "host.costs.llc_migration",
    "host.costs.kick",
    "host.costs.halt",
    "host.ple.window",
    "host.ple.window_grow",
    "host.kvm.yield_to",
    "host.kvm.halt_poll_ns",
    "host.kvm.icr_write",
    "vm.one.vcpus",
    "vm.one.copies",
    "vm.one.weight",
    "vm.one.kernel.pv_spin",
    "vm.one.kernel.yield_spin",
    "vm.one.kernel.balance_interval",
    "vm.one.kernel.preemption_hint",
    "vm.one.kernel.user_hint",
    "vm.one.kernel.thread_slice",
    "vm.one.kernel.call_function_handler",
    "vm.one.kernel.reschedule_handler",
    "vm.one.kernel.tick_handler",
    "vm.one.kernel.thread_switch",
    "vm.one.nic.vcpu",
    "vm.one.nic.irq_handler",
    "vm.one.nic.softirq_per_packet",
    "vm.one.nic.reader_per_packet",
    "vm.one.nic.ring_packets",
    "vm.one.nic.tcp.round_trip",
    "vm.one.workloads.all.threads",
    "vm.one.workloads.all.pin",
    "vm.one.workloads.all.run_units",
    "vm.one.workloads.all.run_time",
    "vm.one.workloads.all.lock.own.instances",
    "vm.one.workloads.all.program.0.compute",
    "vm.one.workloads.all.program.1.hold",
    "vm.one.workloads.all.program.2.spin",
    "vm.one.workloads.all.program.2.count",
    "vm.one.workloads.all.program.3.sleep",
    "vm.one.workloads.all.program.6.capacity",
    "vm.one.workloads.all.program.8.spawn",
    "vm.one.workloads.all.program.9.yield_thread",
    "vm.one.workloads.all.program.10.progress",
    "vm.one.workloads.all.program.11.repeat",
    "vm.one.workloads.reads.program.0.network_receive",
];

/// Policies, and their own times and counts.
const POLICIES: [(&str, &[&str]); 8] = [
    ("credit", &["slice", "tick", "ratelimit"]),
    ("stride", &["slice"]),
    ("stride+delay_preemption=100 us", &["delay_safe_points", "delay_history"]),
    ("lottery", &["slice", "tick"]),
    ("eevdf", &["base_slice", "tick"]),
    ("beside", &["base_slice", "tick", "micro_slice", "grace"]),
    (
        "coordinated",
        &[
            "latency",
            "min_granularity",
            "wakeup_granularity",
            "tick",
            "delay",
            "urgent_slice",
            "urgent_allowance",
        ],
    ),
    (
        "microslice",
        &[
            "slice",
            "tick",
            "micro_slice",
            "profile_interval",
            "epoch_interval",
            "second_looks",
            "grace",
            "patience",
            "pool_limit",
        ],
    ),
];

/// Runs the scenario with one value, for some milliseconds if it says no other time; `Err` is why it wasn't
/// read.
fn run(policy: &str, path: &str, value: &str) -> Result<(), String> {
    let settings = vec![(path.to_owned(), value.to_owned())];
    let overrides = Overrides { policy: Some(policy.to_owned()), settings, seed: None };
    let mut config = parse("ends.toml", SCENARIO, &overrides).map_err(|error| error.to_string())?.config;
    let vcpus: usize = config.vms.iter().map(|vm| vm.vcpus).sum();
    (config.warmup_ns, config.duration_ns) = (0, config.duration_ns.min(2_000_000));
    config.check = vcpus < 1_000;
    match simulate(&config, &mut NoTrace) {
        Ok(_) | Err(SimError::Deadlock { .. }) => Ok(()),
        Err(error) => panic!("{policy}, {path} = {value}: {error}"),
    }
}

/// Returns the ends of a range, from the error of a value beyond it.
fn ends(policy: &str, path: &str) -> [String; 2] {
    let errors = ["-1", "-1 ns", "61 min"].map(|value| run(policy, path, value).err().unwrap_or_default());
    let range = |error: &String| {
        let range = error.split("only ").nth(1).or(error.split("whole number from ").nth(1))?;
        let (low, high) = range.split(", not ").next()?.split_once(" to ")?;
        Some([low.to_owned(), high.to_owned()])
    };
    errors.iter().find_map(range).unwrap_or_else(|| panic!("{path}: no range in {errors:?}"))
}

#[test]
fn values_at_the_ends_of_their_ranges_end_with_results() {
    let of_all = PATHS.iter().map(|path| ("credit", (*path).to_owned()));
    let own = |(policy, keys): &(&'static str, &'static [&str])| {
        keys.iter().map(|key| (*policy, format!("policy.{key}"))).collect::<Vec<_>>()
    };
    for (policy, path) in of_all.chain(POLICIES.iter().flat_map(own)) {
        // A value that doesn't go with the others is one line, too.
        ends(policy, &path).into_iter().for_each(|end| drop(run(policy, &path, &end)));
    }
}
