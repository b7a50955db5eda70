//! Coordinated scheduling (ASPLOS'13) in whole runs.

use crate::common::run;
use microslice_engine::report::RunReport;
use microslice_experiments::scenario::{Overrides, load};

/// Three seconds under a policy, with the checkers on.
fn report_of(scenario: &str, policy: &str) -> RunReport {
    let overrides = Overrides { policy: Some(policy.into()), ..Overrides::default() };
    let mut config = load(scenario, &overrides).expect("built in").config;
    (config.warmup_ns, config.duration_ns, config.check) = (300_000_000, 3_000_000_000, true);
    run(&config)
}

#[test]
fn a_responder_that_answers_a_shootdown_urgently_lets_its_initiator_go_on_and_shares_stay() {
    let [with, without] =
        ["coordinated", "coordinated+tlb_co=false"].map(|policy| report_of("asplos13-dedup", policy));
    let [short, long] = [&with, &without].map(|report| report.vms[0].tlb_sync.mean().expect("some"));
    assert!(short < long / 2.0, "{short} ns in place of {long}");
    assert!(with.vms[0].workloads[0].units_done > without.vms[0].workloads[0].units_done);
    for (with, without) in with.vms.iter().zip(&without.vms) {
        let change = with.run_ns as f64 / without.run_ns as f64;
        assert!((change - 1.0).abs() < 0.05, "{}: {change:.3} of its time", with.name);
    }
}

#[test]
fn the_sender_of_a_reschedule_ipi_is_not_preempted_with_the_lock_that_it_holds() {
    let preempted = |policy: &str| -> u64 {
        let vms = report_of("asplos13-streamcluster", policy).vms;
        vms.iter().filter_map(|vm| vm.holder_preemptions.get("futex")).sum()
    };
    let (with, without) = (preempted("lc-balance+resched_dp=true"), preempted("lc-balance"));
    assert!(with * 2 < without, "{with} in place of {without}");
}

#[test]
fn without_its_knobs_coordinated_scheduling_is_load_conscious_balance() {
    let [off, balance] = ["coordinated+resched_dp=false+tlb_co=false", "lc-balance"]
        .map(|policy| report_of("asplos13-vips", policy));
    assert_eq!(off, balance);
}
