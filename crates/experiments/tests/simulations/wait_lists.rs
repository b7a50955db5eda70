//! Locks of the lists of sleepers, readers of semaphores, requeued waiters. Every run here has the checkers
//! on.

use crate::common::{compute, one_vm, run};
use microslice_engine::report::RunReport;
use microslice_engine::simulate;
use microslice_model::config::*;
use microslice_model::events::NoTrace;

/// Each thread computes and then does this, on as many vCPUs, in a kernel whose lists have locks.
fn each_does(phase: Phase, wakes: WakesUp) -> SimulationConfig {
    let mut config = one_vm(vec![compute(50 * US), phase, Phase::Progress { units: 1 }], 12);
    let kernel = &mut config.vms[0].kernel;
    (kernel.wait_lists, kernel.readers) = (Some(wakes), true);
    config
}

fn takes(kind: LockKind, wakes: WakesUp) -> SimulationConfig {
    let hold = Duration::Exponential { mean_ns: 20 * US };
    let mut config = each_does(Phase::Lock { lock: "mmap_sem".into(), hold }, wakes);
    let locks = &mut config.vms[0].kernel.locks;
    locks.iter_mut().find(|lock| lock.name == "mmap_sem").expect("dedup has it").kind = Some(kind);
    config
}

fn units_of(report: &RunReport) -> u64 {
    report.vms[0].workloads[0].units_done
}

#[test]
fn sleepers_for_a_lock_take_that_of_its_list() {
    for kind in [LockKind::Sleeping, LockKind::Mutex] {
        for wakes in [WakesUp::UnderLock, WakesUp::AfterLock] {
            let mut config = takes(kind, wakes);
            // Two threads to a vCPU: spinners for a mutex are rescheduled, and sleep.
            config.vms[0].workloads[0].threads = 24;
            let report = run(&config);
            let held = report.vms[0].lock_acquisitions["mmap_sem.wait_lock"];
            assert!(held > 20 && units_of(&report) > 500, "{kind:?} {wakes:?}: {held}");
        }
    }
}

#[test]
fn ipis_under_a_lists_lock_make_others_spin() {
    let spins_ns = |wakes| {
        let mut config = takes(LockKind::Sleeping, wakes);
        config.host.costs.ipi_send_ns = 50 * US;
        let report = run(&config);
        report.vms[0].lock_waits.get("mmap_sem.wait_lock").map_or(0, |waits| waits.sum())
    };
    let (under, after) = (spins_ns(WakesUp::UnderLock), spins_ns(WakesUp::AfterLock));
    assert!(under > 10 * after.max(1), "{under} and {after} ns");
}

#[test]
fn readers_hold_a_semaphore_together_and_writers_alone() {
    let hold = Duration::Constant { ns: 200 * US };
    let read = Phase::Read { lock: "mmap_sem".into(), hold };
    let write = Phase::Lock { lock: "mmap_sem".into(), hold };
    let units = |phase| units_of(&run(&each_does(phase, WakesUp::UnderLock)));
    let (readers, writers) = (units(read), units(write));
    assert!(readers > 4 * writers, "{readers} and {writers}");
}

#[test]
fn a_writer_gets_its_turn_among_readers() {
    let mut config = each_does(
        Phase::Read { lock: "mmap_sem".into(), hold: Duration::Constant { ns: 200 * US } },
        WakesUp::UnderLock,
    );
    let mut writer = config.vms[0].workloads[0].clone();
    let hold = Duration::Constant { ns: 10 * US };
    (writer.name, writer.threads) = ("writer".into(), 1);
    writer.program[1] = Phase::Lock { lock: "mmap_sem".into(), hold };
    config.vms[0].workloads.push(writer);
    let report = run(&config);
    assert!(report.vms[0].workloads[1].units_done > 50, "{}", report.vms[0].workloads[1].units_done);
}

#[test]
fn a_kernel_without_readers_takes_nothing_for_a_page_fault() {
    let mut config = each_does(
        Phase::Read { lock: "mmap_sem".into(), hold: Duration::Constant { ns: 200 * US } },
        WakesUp::UnderLock,
    );
    config.vms[0].kernel.readers = false;
    let report = run(&config);
    assert_eq!(report.vms[0].lock_acquisitions.get("mmap_sem").copied().unwrap_or(0), 0);
}

#[test]
fn readers_without_locks_of_lists_are_refused() {
    let mut config = takes(LockKind::Sleeping, WakesUp::UnderLock);
    config.vms[0].kernel.wait_lists = None;
    let error = simulate(&config, &mut NoTrace).unwrap_err().to_string();
    assert!(error.contains("readers need lists of sleepers that have locks"), "{error}");
}

#[test]
fn one_icr_write_calls_up_to_eight_vcpus() {
    let shot = |flat_ipi, vcpus| {
        let prepare = Duration::Constant { ns: 500 };
        let mut config = each_does(Phase::Shootdown { prepare, under: None }, WakesUp::UnderLock);
        (config.vms[0].vcpus, config.vms[0].workloads[0].threads) = (vcpus, vcpus);
        config.vms[0].kernel.flat_ipi = flat_ipi;
        config.host.costs.ipi_send_ns = 20 * US;
        units_of(&run(&config))
    };
    assert!(shot(true, 8) > shot(false, 8) * 5 / 4);
    assert_eq!(shot(true, 9), shot(false, 9));
}

/// Threads that meet at a barrier under the lock of a futex's queue.
fn meets(requeues: bool, spin_ns: u64) -> RunReport {
    let under = Some("page_reclaim".into());
    let barrier = Phase::Barrier { name: "all".into(), count: 0, under, spin_ns, requeues };
    let mut config = each_does(barrier, WakesUp::UnderLock);
    config.host.costs.ipi_send_ns = 20 * US;
    run(&config)
}

#[test]
fn who_is_requeued_is_woken_by_the_one_before() {
    for spin_ns in [0, 5 * US] {
        let (together, one_by_one) = (meets(false, spin_ns), meets(true, spin_ns));
        let units = [&together, &one_by_one].map(units_of);
        assert!(units.into_iter().all(|units| units > 12 * 20), "{spin_ns} ns: {units:?}");
        let longest = |report: &RunReport| report.vms[0].lock_waits["page_reclaim"].max();
        assert!(longest(&one_by_one) < longest(&together), "{spin_ns} ns: the lock is held for one wake-up");
    }
}
