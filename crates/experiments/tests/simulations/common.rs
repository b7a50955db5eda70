//! Runs that the simulator's tests share: built-in scenarios and programs of one VM. Every run has the
//! checkers on.

use microslice_engine::report::RunReport;
use microslice_engine::simulate;
use microslice_experiments::scenario::{Overrides, load, policy_names};
use microslice_model::config::*;
use microslice_model::events::NoTrace;

/// Every policy that is built in, those of a static size with this one.
pub fn policies(micro_pcpus: usize) -> Vec<String> {
    policy_names().iter().map(|name| name.replace(":N", &format!(":{micro_pcpus}"))).collect()
}

pub const SCENARIOS: [&str; 10] = [
    "gmake-swaptions",
    "exim-swaptions",
    "memclone-swaptions",
    "dedup-swaptions",
    "vips-swaptions",
    "psearchy-swaptions",
    "blackscholes-swaptions",
    "spec-cpu-swaptions",
    "iperf-tcp-mixed",
    "iperf-udp-mixed",
];

pub fn scenario(name: &str, policy: &str, duration_ns: u64) -> SimulationConfig {
    let overrides = Overrides { policy: Some(policy.into()), seed: Some(7), settings: Vec::new() };
    let mut config = load(name, &overrides).expect("a built-in scenario").config;
    config.warmup_ns = 50 * MS;
    config.duration_ns = duration_ns;
    config.check = true;
    config
}

pub fn run(config: &SimulationConfig) -> RunReport {
    simulate(config, &mut NoTrace).unwrap_or_else(|error| panic!("{error}"))
}

/// The same run, with a scheduler that is asked about every pause-loop exit.
pub fn one_by_one(config: &SimulationConfig) -> RunReport {
    run(&SimulationConfig { fold_exits: false, ..config.clone() })
}

/// But for the number of events, which is what folding is about.
pub fn is_the_same_run(folded: &RunReport, one_by_one: &RunReport) -> bool {
    let RunReport { events, batched_exits, .. } = *folded;
    *folded == RunReport { events, batched_exits, ..one_by_one.clone() }
}

/// By what holders are known; the prototype knows functions only.
pub fn with_holders(config: &mut SimulationConfig, rules: HolderRules) {
    match &mut config.scheduler {
        SchedulerKind::MicroSliced(micro) if micro.mechanics == Mechanics::Paper => micro.holders = rules,
        SchedulerKind::Beside(beside) => beside.holders = rules,
        _ => {}
    }
}

pub fn compute(mean_ns: u64) -> Phase {
    Phase::Compute { duration: Duration::Exponential { mean_ns } }
}

pub fn one_vm(program: Vec<Phase>, threads: usize) -> SimulationConfig {
    let mut config = scenario("dedup-swaptions", "credit", 100 * MS);
    config.vms.truncate(1);
    config.vms[0].workloads.truncate(1);
    config.vms[0].workloads[0].threads = threads;
    config.vms[0].workloads[0].program = program;
    config
}

/// The real scheduler's parameters; the prototype has none of them.
pub fn with_rules(config: &mut SimulationConfig, grace: u32, call_function_ipi: bool, patience_ns: u64) {
    if let SchedulerKind::MicroSliced(micro) = &mut config.scheduler
        && micro.mechanics == Mechanics::Paper
    {
        (micro.grace, micro.call_function_ipi, micro.patience_ns) = (grace, call_function_ipi, patience_ns);
    }
}
