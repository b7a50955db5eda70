//! Boosts beside EEVDF: what they bring, which vCPUs they never touch, and that they are taken back. Every
//! run has the checkers on.

use crate::common::{run, scenario};
use microslice_engine::report::RunReport;
use microslice_experiments::scenario::{Overrides, parse};
use microslice_model::config::*;
use microslice_model::counters::FailedPull;
use microslice_policy::Cause;

fn failed(report: &RunReport, reason: FailedPull) -> u64 {
    report.pool.failed_pulls().find(|(other, _)| *other == reason).map_or(0, |(_, count)| count)
}

fn beside(config: &mut SimulationConfig) -> &mut BesideConfig {
    let SchedulerKind::Beside(beside) = &mut config.scheduler else { panic!("beside") };
    beside
}

#[test]
fn boosts_are_returns_and_shorten_shootdowns() {
    let eevdf = run(&scenario("dedup-swaptions", "eevdf", 500 * MS));
    for policy in ["beside", "beside:paper"] {
        let report = run(&scenario("dedup-swaptions", policy, 500 * MS));
        let pool = &report.pool;
        assert!(pool.acceleration_count() > 100, "{policy}: {}", pool.acceleration_count());
        assert_eq!(pool.acceleration_count(), pool.returns + pool.still_accelerated, "{policy}");
        let mean = |report: &RunReport| report.vms[0].tlb_sync.mean().expect("shootdowns");
        assert!(mean(&report) < mean(&eevdf), "{policy}: {} {}", mean(&report), mean(&eevdf));
    }
}

#[test]
fn without_overcommit_nobody_is_boosted_and_nothing_changes() {
    let eevdf = run(&scenario("dedup-solo", "eevdf", 200 * MS));
    let mut report = run(&scenario("dedup-solo", "beside", 200 * MS));
    assert_eq!(report.pool.acceleration_count(), 0);
    assert_eq!(report.vms[0].late_waits.take(), Some(0));
    assert_eq!(report.vms, eevdf.vms);
}

#[test]
fn a_vcpu_that_may_run_on_one_pcpu_only_is_never_boosted() {
    let mut config = scenario("iperf-tcp-mixed", "beside", 200 * MS);
    config.vms.iter_mut().for_each(|vm| vm.affinity = vec![0]);
    let report = run(&config);
    assert_eq!(report.pool.acceleration_count(), 0);
    assert!(failed(&report, FailedPull::Pinned) > 0);
}

#[test]
fn a_guest_that_asks_all_the_time_has_no_more_than_its_budget() {
    // Shootdowns without end, beside hogs.
    let mut config = scenario("dedup-swaptions", "beside", 4 * S);
    let flush = Phase::Shootdown { prepare: Duration::Constant { ns: 500 }, under: None };
    config.vms[0].workloads[0].program =
        vec![crate::common::compute(50 * US), flush, Phase::Progress { units: 1 }];
    config.vms[0].workloads[0].shared_address_space = true;
    config.host.boosts.latency = Duration::Constant { ns: 5 * US };
    let report = run(&config);
    assert!(failed(&report, FailedPull::OverBudget) > 0, "the checker has an eye on what it gets");
    let boosted_ns = report.pool.micro_slices.sum() as u64;
    let host_ns = config.host.pcpus as u64 * (report.measured_ns + S + 50 * MS);
    assert!(boosted_ns * 100 <= host_ns + 100 * 24 * 100 * US, "{boosted_ns} of {host_ns}");
    assert!(
        boosted_ns * 200 > config.host.pcpus as u64 * report.measured_ns,
        "it uses what it may: {boosted_ns}"
    );
}

/// A VM that sleeps beside two that compute, on four pCPUs.
const SLEEPER: &str = r#"
    host = { extends = "xeon-e5645", pcpus = 4, llc_pcpus = 0, smt_threads = 1 }
    warmup = "500 ms"
    duration = "1500 ms"

    [[vm]]
    name = "sleeps"
    vcpus = 4
    kernel = "linux-modern"

    [[vm.workloads]]
    name = "sleeps"
    threads = "per vcpu"
    program = [{ compute = "200 us" }, { sleep = "1 ms" }, { progress = 1 }]

    [[vm]]
    name = "computes"
    vcpus = 4
    kernel = "linux-modern"
    workloads = ["swaptions"]

    [[vm]]
    name = "computes-too"
    vcpus = 4
    kernel = "linux-modern"
    workloads = ["swaptions"]
"#;

#[test]
fn a_woken_vcpu_that_has_to_wait_is_boosted() {
    let wake_wait = |policy: &str| {
        let overrides = Overrides { policy: Some(policy.to_owned()), ..Overrides::default() };
        let mut config = parse("sleeper.toml", SLEEPER, &overrides).expect("a scenario").config;
        config.check = true;
        let report = run(&config);
        let woken = report.pool.accelerations().filter(|(_, cause, _)| *cause == Cause::Woken);
        (report.vms[0].wake_waits.mean().expect("wake-ups"), woken.map(|(.., count)| count).sum::<u64>())
    };
    let (without, none) = wake_wait("beside+woken=false");
    let (with, some) = wake_wait("beside");
    assert_eq!((none, wake_wait("beside:paper").1), (0, 0));
    assert!(some > 100 && with * 4.0 < without * 3.0, "{with} ns with {some} boosts, {without} ns without");
}

#[test]
fn a_slow_helper_misses_those_that_the_kernel_runs_meanwhile() {
    let mut config = scenario("dedup-swaptions", "beside", 300 * MS);
    config.host.boosts.latency = Duration::Constant { ns: 20 * MS };
    let report = run(&config);
    assert!(failed(&report, FailedPull::LeftQueue) > 0);
}

#[test]
fn what_boosts_cost_is_taken_from_the_host() {
    let mut config = scenario("dedup-swaptions", "beside", 300 * MS);
    let cheap = run(&config);
    (config.host.boosts.give_back_ns, config.host.boosts.helper_ns) = (MS, MS);
    let dear = run(&config);
    assert!(dear.pcpus.overhead_ns > cheap.pcpus.overhead_ns);
}

#[test]
fn the_papers_rules_have_no_grace_and_no_boosts_by_calls() {
    let mut config = scenario("dedup-swaptions", "beside:paper", MS);
    let paper = beside(&mut config).clone();
    assert_eq!((paper.grace, paper.call_function_ipi), (0, false));
    let ours = beside(&mut scenario("dedup-swaptions", "beside", MS)).clone();
    assert!(ours.grace > 0 && ours.call_function_ipi);
    assert_eq!((paper.max_wait_ns, ours.max_wait_ns, ours.max_wait_each_ns), (0, 10 * MS, 5 * MS));
    assert_eq!((ours.boost_percent, ours.host_percent), (1, 5));
}

/// A VM's part of what all had, in thousandths.
fn share_of(report: &RunReport, vm: usize) -> u64 {
    report.vms[vm].run_ns * 1000 / report.vms.iter().map(|vm| vm.run_ns).sum::<u64>()
}

#[test]
fn what_boosts_brought_is_paid_back() {
    let share = |policy: &str| share_of(&run(&scenario("lab", policy, 10 * S)), 1);
    let without = share("eevdf");
    // With bounds on waits 315 are left of 297 (docs/lab/beside.md).
    let beside = "beside+max_wait=none+boost_percent=10 %";
    let (boosted, paid) = (share(beside), share(&format!("{beside}+pay_back=true")));
    assert!(boosted > without + 50, "{without} without boosts, {boosted} with");
    assert!(paid.abs_diff(without) <= 15, "{without} without boosts, {paid} paid back");
}
