//! Queued locks from which newcomers steal.

use super::{Line, SpinsBeforeHalts, contended, interrupted_waits_on, kicks_of};
use crate::common::run;
use microslice_engine::simulate;
use microslice_model::config::*;

/// How many sections are passed through, where the vCPUs of holders and waiters have company.
fn sections(kind: LockKind) -> u64 {
    let mut config = contended(kind, 12);
    (config.host.ple.enabled, config.duration_ns) = (false, 400 * MS);
    run(&config).vms[0].workloads[0].units_done
}

#[test]
fn newcomers_steal_while_the_head_of_the_queue_is_away() {
    let mut line = Line::default();
    simulate(&contended(LockKind::PvQueuedHybrid, 12), &mut line).unwrap();
    assert!(line.out_of_turn * 20 > line.served, "{} of {}", line.out_of_turn, line.served);
    let (strict, hybrid) = (sections(LockKind::PvQueued), sections(LockKind::PvQueuedHybrid));
    assert!(10 * hybrid > 11 * strict, "{hybrid} sections, without stealing {strict}");
}

#[test]
fn nobody_steals_from_a_queue_whose_vcpus_all_run() {
    let mut config = contended(LockKind::PvQueuedHybrid, 12);
    (config.host.pcpus, config.host.smt_threads) = (config.vms[0].vcpus, 1);
    config.vms[0].kernel.pv_spin_ns = S;
    config.vms[0].kernel.tick_hz = 1;
    let mut line = Line::default();
    simulate(&config, &mut line).unwrap();
    assert!(line.served > 100 && line.out_of_turn == 0, "{} of {}", line.out_of_turn, line.served);
}

#[test]
fn a_waiter_behind_one_that_has_halted_halts_early() {
    let halts = |kind| kicks_of(kind, 0, 0).0.halts;
    let (strict, early) = (halts(LockKind::PvQueued), halts(LockKind::PvQueuedHybrid));
    assert!(early > strict, "{early} halts, without looking at the one before {strict}");
}

#[test]
fn a_head_spins_as_long_as_its_kernel_says() {
    let spins: SpinsBeforeHalts = interrupted_waits_on(LockKind::PvQueuedHybrid, false);
    assert!(spins.halts > 20, "{} halts", spins.halts);
    assert!((300 * US..360 * US).contains(&spins.longest_ns), "{} ns", spins.longest_ns);
}
