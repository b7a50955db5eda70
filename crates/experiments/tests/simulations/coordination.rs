//! Coordinated scheduling (ASPLOS'13) in whole runs.

use crate::common::run;
use microslice_engine::report::RunReport;
use microslice_experiments::scenario::{Overrides, load};
use microslice_model::config::{Phase, SimulationConfig};

/// Three seconds under a policy, with the checkers on.
fn config_of(scenario: &str, policy: &str) -> SimulationConfig {
    let overrides = Overrides { policy: Some(policy.into()), ..Overrides::default() };
    let mut config = load(scenario, &overrides).expect("built in").config;
    (config.warmup_ns, config.duration_ns, config.check) = (300_000_000, 3_000_000_000, true);
    config
}

fn report_of(scenario: &str, policy: &str) -> RunReport {
    run(&config_of(scenario, policy))
}

/// Its barriers block, and requeue nobody.
fn wakes_all(program: &mut [Phase]) {
    for phase in program {
        match phase {
            Phase::Barrier { requeues, spin_ns, .. } => (*requeues, *spin_ns) = (false, 0),
            Phase::Repeat { body, .. } | Phase::Sometimes { body, .. } => wakes_all(body),
            _ => {}
        }
    }
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
        let mut config = config_of("asplos13-streamcluster", policy);
        for vm in &mut config.vms {
            // One waker wakes all: of who requeues others the lock is given up right behind the only IPI.
            wakes_all(&mut vm.workloads[0].program);
        }
        let vms = run(&config).vms;
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

/// On a host with pause-loop exits (4.3, at its end).
#[test]
fn callers_spin_on_where_their_recipients_come_urgently() {
    let waits_and_work = |policy: &str| {
        let reports = (1..=3).map(|seed| {
            let mut config = config_of("asplos13-vips", policy);
            (config.seed, config.host.ple.enabled) = (seed, true);
            run(&config)
        });
        reports.fold((0.0, 0), |(waits_ns, work), report| {
            let vm = &report.vms[0];
            (waits_ns + vm.tlb_sync.mean().expect("some"), work + vm.workloads[0].units_done)
        })
    };
    let [(short, with), (long, without)] = ["coordinated+tlb_spin=true", "coordinated"].map(waits_and_work);
    assert!(short < long * 0.85, "{short} ns in place of {long}");
    assert!(with * 100 > without * 95, "{with} in place of {without}");
    let alone =
        ["lc-balance+resched_dp=true+tlb_spin=true", "lc-balance+resched_dp=true"].map(waits_and_work);
    assert_eq!(alone[0], alone[1], "without TLB-Co nobody comes urgently");
}
