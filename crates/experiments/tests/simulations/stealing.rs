//! A guest whose vCPUs take their threads from one list (Linux 2.4), with and without a module (VM'04, 4.2).

use crate::common::{compute, run};
use microslice_engine::report::RunReport;
use microslice_experiments::scenario::{Overrides, load};
use microslice_model::config::{Duration, MS, Phase, SimulationConfig, US};

fn configured(balloons: bool, plans: bool, seed: u64) -> SimulationConfig {
    let settings = [("balloons", balloons), ("plans", plans)];
    let settings = settings.map(|(key, value)| (format!("vm.a.kernel.{key}"), value.to_string())).to_vec();
    let overrides = Overrides { policy: None, seed: Some(seed), settings };
    let mut config = load("vm04-stealing", &overrides).expect("a built-in scenario").config;
    (config.duration_ns, config.check) = (8_000 * MS, true);
    config
}

fn ten_processes(balloons: bool, plans: bool, seed: u64) -> RunReport {
    run(&configured(balloons, plans, seed))
}

/// What the process with least work has done, by that with most.
fn evenness(report: &RunReport) -> f64 {
    let work = || report.vms[0].workloads.iter().map(|workload| workload.units_per_s);
    work().fold(f64::INFINITY, f64::min) / work().fold(0.0, f64::max)
}

#[test]
fn balloons_and_plans_together_make_processes_shares_alike() {
    for seed in 1..=3 {
        let both = evenness(&ten_processes(true, true, seed));
        assert!(both > 0.7, "seed {seed}: {both:.2}");
    }
    let neither = evenness(&ten_processes(false, false, 2));
    assert!(neither < 0.4, "{neither:.2}");
}

#[test]
fn a_list_of_threads_loses_no_time() {
    for (balloons, plans) in [(false, false), (true, false), (false, true), (true, true)] {
        let report = ten_processes(balloons, plans, 1);
        // One pCPU and three tenths of another.
        let share = report.vms[0].run_ns as f64 / report.measured_ns as f64;
        assert!((1.25..1.35).contains(&share), "{balloons} {plans}: {share:.2}");
    }
}

#[test]
fn no_vcpu_sleeps_on_threads_that_a_plan_gave_it() {
    for (balloons, plans) in [(true, false), (false, true), (true, true)] {
        let mut config = configured(balloons, plans, 1);
        let balance = config.vms[0].kernel.balance.as_mut().expect("it steals");
        balance.interval_ns = 3 * MS;
        for workload in &mut config.vms[0].workloads {
            let sleep = Phase::Sleep { duration: Duration::Exponential { mean_ns: 12 * MS } };
            workload.program = vec![compute(900 * US), sleep, Phase::Progress { units: 1 }];
        }
        // The checkers look.
        let done: u64 = run(&config).vms[0].workloads.iter().map(|workload| workload.units_done).sum();
        assert!(done > 3_000, "{balloons} {plans}: {done}");
    }
}
