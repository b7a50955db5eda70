//! Barriers at which threads sleep, or spin first.

use crate::common::{compute, one_vm, run};
use microslice_engine::simulate;
use microslice_model::config::*;
use microslice_model::events::NoTrace;

/// Four threads that meet under a futex's queue lock, on as many vCPUs.
fn meets_under(under: &str) -> SimulationConfig {
    let under = Some(under.into());
    let barrier = Phase::Barrier { name: "all".into(), count: 0, under, spin_ns: 0, requeues: false };
    one_vm(vec![compute(100 * US), barrier, Phase::Progress { units: 1 }], 4)
}

#[test]
fn the_waker_of_the_others_at_a_barrier_holds_its_lock_until_all_are_awake() {
    let mut config = meets_under("page_reclaim");
    config.host.costs.ipi_send_ns = 50 * US;
    let vm = &run(&config).vms[0];
    let rounds = vm.workloads[0].units_done / 4;
    assert!(rounds > 100, "{rounds}");
    let acquired = vm.lock_acquisitions["page_reclaim"];
    assert!(acquired.abs_diff(rounds * 4) <= 4, "all take it once a round: {acquired} in {rounds} rounds");
    // Three wake-ups of 50 us under the lock, and the next steps: rounds can't be shorter.
    assert!(vm.run_ns / rounds > 250 * US);
}

/// The same, but a waiter spins first.
fn spins_for(spin_ns: u64) -> SimulationConfig {
    let mut config = meets_under("page_reclaim");
    let Phase::Barrier { spin_ns: spin, .. } = &mut config.vms[0].workloads[0].program[1] else { panic!() };
    *spin = spin_ns;
    config
}

#[test]
fn a_thread_that_spins_at_a_barrier_for_long_enough_never_sleeps() {
    // A hundred times as long as they compute.
    let vm = &run(&spins_for(10 * MS)).vms[0];
    let rounds = vm.workloads[0].units_done / 4;
    assert!(rounds > 100, "{rounds}");
    let waits = vm.barrier_waits;
    assert_eq!(waits.slept(), 0, "{waits:?}");
    assert!(waits.departure_spun * 20 < waits.arrival_spun, "who spins leaves at once: {waits:?}");
    assert!(waits.arrival_spun.abs_diff(rounds * 3) <= 4, "all but the last: {waits:?} in {rounds} rounds");
    assert_eq!(vm.ipis_sent, 0);
}

#[test]
fn a_thread_that_has_spun_in_vain_at_a_barrier_sleeps_and_is_woken() {
    let mut config = spins_for(10 * US);
    // One of them has a vCPU with another program that takes its turns.
    let late = config.vms[0].workloads[0].clone();
    config.vms[0].workloads.push(microslice_model::config::WorkloadConfig {
        name: "hog".into(),
        threads: 1,
        pinned_vcpu: Some(0),
        program: vec![compute(100 * US)],
        ..late
    });
    let vm = &run(&config).vms[0];
    assert!(vm.workloads[0].units_done > 20, "{:?}", vm.workloads[0]);
    let waits = vm.barrier_waits;
    assert!(waits.arrival_slept > waits.arrival_spun, "{waits:?}");
    assert!(vm.ipis_sent > 0);
}

#[test]
fn a_barrier_whose_waiters_spin_needs_a_lock_to_sleep_under() {
    let mut config = spins_for(10 * US);
    let Phase::Barrier { under, .. } = &mut config.vms[0].workloads[0].program[1] else { panic!() };
    *under = None;
    let error = simulate(&config, &mut NoTrace).unwrap_err().to_string();
    assert!(error.contains("a spinner sleeps under a lock then"), "{error}");
}

#[test]
fn a_barrier_under_a_lock_that_sleeps_is_refused() {
    let mut config = meets_under("page_reclaim");
    config.vms[0].kernel.locks[0].kind = Some(LockKind::Sleeping);
    config.vms[0].kernel.locks[0].irqs_off = false;
    let error = simulate(&config, &mut NoTrace).unwrap_err().to_string();
    assert!(error.contains("a barrier can't wake under \"page_reclaim\""), "{error}");
}
