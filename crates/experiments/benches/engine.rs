//! Speed of the engine, as ratios inside one run and as events per second of processor time (`cargo bench`).
//!
//! Events are what the engine took from its queue. Pause-loop exits that it folded into one event are shown
//! apart, never counted as events.

use microslice_engine::simulate;
use microslice_experiments::scenario::{Overrides, load};
use microslice_model::config::SimulationConfig;
use microslice_model::events::NoTrace;

const ROUNDS: usize = 7;
/// Long enough that building a simulation doesn't show.
const MEASURED_NS: u64 = 20_000_000_000;
const TARGET_EVENTS_PER_S: f64 = 20e6;
const TARGET_SCALE_RATIO: f64 = 1.5;
const TARGET_IDLE_VCPU_BYTES: u64 = 1024;

fn scenario(name: &str, policy: &str) -> SimulationConfig {
    let overrides = Overrides { policy: Some(policy.into()), seed: Some(1), settings: Vec::new() };
    let mut config = load(name, &overrides).expect("a built-in scenario").config;
    config.duration_ns = MEASURED_NS;
    config
}

/// Best of a few rounds.
struct Measured {
    events: u64,
    folded_exits: u64,
    switches: u64,
    seconds: f64,
}

impl Measured {
    fn event_ns(&self) -> f64 {
        self.seconds * 1e9 / self.events as f64
    }

    fn switches_per_event(&self) -> f64 {
        self.switches as f64 / self.events as f64
    }
}

/// The rounds take turns, so that a machine that is slow for a while is so for all of them.
fn measure<const COUNT: usize>(configs: &[SimulationConfig; COUNT]) -> [Measured; COUNT] {
    let mut best = configs.each_ref().map(measure_once);
    for _ in 1..ROUNDS {
        for (best, config) in best.iter_mut().zip(configs) {
            let round = measure_once(config);
            if round.seconds < best.seconds {
                *best = round;
            }
        }
    }
    best
}

fn measure_once(config: &SimulationConfig) -> Measured {
    let start = processor_seconds();
    let report = simulate(config, &mut NoTrace).expect("the scenario runs");
    Measured {
        events: report.events,
        folded_exits: report.batched_exits,
        switches: report.vms.iter().map(|vm| vm.context_switches).sum(),
        seconds: processor_seconds() - start,
    }
}

/// Time this thread has had on a processor: what other work on the machine doesn't take, only slow down.
fn processor_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec that may be written.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(failed, 0, "Linux has that clock");
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The scenario's VMs, again and again until there are that many vCPUs, on a larger host.
fn scaled(config: &SimulationConfig, pcpus: usize, vcpus: usize) -> SimulationConfig {
    let mut large = config.clone();
    let per_copy: usize = config.vms.iter().map(|vm| vm.vcpus).sum();
    large.host.pcpus = pcpus;
    large.vms = (0..vcpus.div_ceil(per_copy))
        .flat_map(|copy| {
            config.vms.iter().map(move |vm| {
                let mut vm = vm.clone();
                vm.name = format!("{}-{copy}", vm.name);
                vm
            })
        })
        .collect();
    // As many events per pCPU and simulated time, about. Building thousands of vCPUs takes as long as some
    // 200,000 events and isn't what an event costs: the more there are to build, the longer the run.
    let times_longer = if pcpus > config.host.pcpus { 4 } else { 1 };
    large.warmup_ns = 60_000_000;
    large.duration_ns = MEASURED_NS * times_longer * config.host.pcpus as u64 / pcpus as u64;
    large
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    status.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

fn main() {
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    println!("seed 1, best of {ROUNDS} rounds, one core");
    for (name, policy) in [
        ("gmake-swaptions", "micro:1"),
        ("gmake-swaptions", "microslice:1"),
        ("gmake-swaptions", "credit"),
        ("gmake-swaptions", "eevdf-flat"),
        ("dedup-swaptions", "micro:2"),
    ] {
        let [measured] = measure(&[scenario(name, policy)]);
        println!(
            "{name:18} {policy:8} {:6.1} M events/s ({} events, {} folded exits, {:.0} ns per event)",
            1e3 / measured.event_ns(),
            measured.events,
            measured.folded_exits,
            measured.event_ns()
        );
    }
    println!("target: {:.0} M events/s on gmake-swaptions", TARGET_EVENTS_PER_S / 1e6);

    for policy in ["micro:1", "microslice:1", "credit", "eevdf-flat"] {
        let base = scenario("gmake-swaptions", policy);
        let sizes = [(12, 24), (12, 48), (1024, 4096)];
        let [small, equally_loaded, large] =
            measure(&sizes.map(|(pcpus, vcpus)| scaled(&base, pcpus, vcpus)));
        println!(
            "scale, {policy}: {:.1} ns per event at 12/24, {:.1} at 1024/4096: ratio {:.2} (target {TARGET_SCALE_RATIO})",
            small.event_ns(),
            large.event_ns(),
            large.event_ns() / small.event_ns()
        );
        println!(
            "scale, {policy}, with four vCPUs per pCPU on both: {:.1} ns per event at 12/48: ratio {:.2}",
            equally_loaded.event_ns(),
            large.event_ns() / equally_loaded.event_ns()
        );
        println!(
            "scale, {policy}, switches of vCPUs per event: {:.3} at 12/24, {:.3} at 12/48, {:.3} at 1024/4096",
            small.switches_per_event(),
            equally_loaded.switches_per_event(),
            large.switches_per_event()
        );
    }

    let mut idle = scenario("spec-cpu-swaptions", "micro:1");
    idle.vms.truncate(1);
    idle.vms[0].workloads[0].threads = 1;
    idle.warmup_ns = 0;
    idle.duration_ns = 1_000_000;
    let resident = |vcpus: usize| {
        let mut config = idle.clone();
        config.vms[0].vcpus = vcpus;
        let mut sink = AtEnd(0);
        simulate(&config, &mut sink).expect("idle vCPUs run");
        sink.0
    };
    let (few, many) = (resident(1_000), resident(500_000));
    let per_vcpu = many.saturating_sub(few) / 499_000;
    println!("memory: {per_vcpu} bytes per idle vCPU (target below {TARGET_IDLE_VCPU_BYTES})");
}

/// Looks at the process's memory while the simulation still exists.
struct AtEnd(u64);

impl microslice_model::events::TraceSink for AtEnd {
    fn wants_events(&self) -> bool {
        false
    }
    fn event(&mut self, _time_ns: u64, _event: &microslice_model::events::TraceEvent) {}
    fn progress(&mut self, _time_ns: u64, _end_ns: u64) -> bool {
        self.0 = resident_bytes();
        true
    }
}
