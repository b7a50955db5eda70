//! What hardware threads and caches do to a program's speed.

use crate::common::{compute, one_vm, run, scenario};
use microslice_model::config::*;

/// 12 pCPUs, of which each shares a core with the one six further.
#[test]
fn a_hardware_thread_whose_sibling_idles_is_faster() {
    let work = |threads, busy_speed_permille| {
        let mut config = one_vm(vec![compute(100 * US), Phase::Progress { units: 1 }], threads);
        (config.host.smt_threads, config.host.smt_busy_speed_permille) = (2, busy_speed_permille);
        config.vms[0].vcpus = threads;
        config.duration_ns = S;
        run(&config).vms[0].workloads[0].units_done as f64
    };
    for (threads, gain) in [(6, 2.0), (9, 1.0 + 3.0 / 9.0), (12, 1.0)] {
        let gained = work(threads, 500) / work(threads, 1000);
        assert!((gain - 0.05..gain + 0.05).contains(&gained), "{threads}: {gained}");
    }
}

#[test]
fn beside_a_sibling_that_spins_for_a_lock_a_hardware_thread_is_faster_than_beside_a_busy_one() {
    // pCPUs 0 and 2 share a core, 1 and 3 do. A vCPU that shares one with the VM under test waits for a lock
    // for two thirds of the time, and holds it for one.
    let done = |spin_speed_permille| {
        let mut config = one_vm(vec![compute(100 * US), Phase::Progress { units: 1 }], 1);
        (config.host.pcpus, config.host.smt_threads, config.vms[0].vcpus) = (4, 2, 1);
        (config.host.smt_busy_speed_permille, config.host.smt_spin_speed_permille) =
            (500, spin_speed_permille);
        config.host.ple.enabled = false;
        config.duration_ns = S;
        let hold = Duration::Constant { ns: 100 * US };
        let mut other = config.vms[0].clone();
        (other.name, other.vcpus, other.workloads[0].threads) = ("other".into(), 3, 3);
        other.kernel.lock_kind = LockKind::Queued;
        other.workloads[0].program =
            vec![Phase::Lock { lock: "dentry".into(), hold }, Phase::Progress { units: 1 }];
        config.vms.push(other);
        run(&config).vms[0].workloads[0].units_done as f64
    };
    let gained = done(1_000) / done(500);
    assert!((1.3..2.0).contains(&gained), "{gained}");
}

#[test]
fn a_vcpu_that_comes_back_to_cold_caches_works_less_for_a_while() {
    // Two VMs take turns of a millisecond: half of what the caches hold is displaced, which costs 75 us of
    // each turn.
    let work = |refill_ns, sensitivity_permille| {
        let mut config = one_vm(vec![compute(20 * US), Phase::Progress { units: 1 }], 1);
        config.scheduler = scenario("dedup-swaptions", "credit-1ms", 0).scheduler;
        (config.host.pcpus, config.host.smt_threads, config.vms[0].vcpus) = (1, 1, 1);
        (config.host.costs.cache_refill_max_ns, config.duration_ns) = (refill_ns, S);
        config.vms[0].workloads[0].cache_sensitive_permille = sensitivity_permille;
        config.vms.push(VmConfig { name: "other".into(), ..config.vms[0].clone() });
        run(&config).vms.iter().map(|vm| vm.workloads[0].units_done).sum::<u64>() as f64
    };
    let warm = work(0, 1000);
    let (cold, insensitive) = (work(150 * US, 1000) / warm, work(150 * US, 0) / warm);
    assert!((0.90..0.95).contains(&cold), "{cold}");
    assert!((0.99..1.01).contains(&insensitive), "{insensitive}");
}

#[test]
fn a_vcpu_that_changes_cache_or_node_works_less() {
    // Three VMs on two pCPUs go to and fro.
    let work_on = |llc_pcpus, node_pcpus, llc_migration_ns, sensitivity_permille| {
        let mut config = one_vm(vec![compute(20 * US), Phase::Progress { units: 1 }], 1);
        (config.host.pcpus, config.host.smt_threads, config.host.llc_pcpus) = (2, 1, llc_pcpus);
        (config.host.costs.llc_migration_ns, config.duration_ns) = (llc_migration_ns, 2 * S);
        (config.host.node_pcpus, config.host.costs.node_migration_ns) = (node_pcpus, 5 * MS);
        config.vms[0].vcpus = 1;
        config.vms[0].workloads[0].cache_sensitive_permille = sensitivity_permille;
        for name in ["second", "third"] {
            config.vms.push(VmConfig { name: name.into(), ..config.vms[0].clone() });
        }
        run(&config).vms.iter().map(|vm| vm.workloads[0].units_done).sum::<u64>() as f64
    };
    let work = |llc_pcpus, llc_ns, sensitivity| work_on(llc_pcpus, 0, llc_ns, sensitivity);
    let near = work(2, 5 * MS, 1000);
    let (far, insensitive) = (work(1, 5 * MS, 1000) / near, work(1, 5 * MS, 0) / near);
    let farther = work_on(1, 1, 5 * MS, 1000) / near;
    assert!((0.8..0.98).contains(&far) && farther < far - 0.01, "{far}, {farther}");
    assert!((0.99..1.01).contains(&insensitive), "{insensitive}");
    assert_eq!([work(1, 0, 1000), work_on(1, 2, 0, 1000)], [near; 2]);
}

#[test]
fn caches_that_are_displaced_in_no_time_are_as_cold_as_those_displaced_in_one_ns() {
    let run_with = |cache_displace_ns| {
        let mut config = scenario("dedup-swaptions", "credit", 50 * MS);
        config.host.costs.cache_displace_ns = cache_displace_ns;
        run(&config)
    };
    assert!(run_with(0) == run_with(1));
    assert!(run_with(0) != run_with(2 * MS));
}

#[test]
fn a_tick_takes_the_entry_of_an_interrupt_and_not_the_delivery_of_an_ipi() {
    // 250 ticks a second, of 2 ms each if they came as IPIs do.
    let work = |interrupt_entry_ns| {
        let mut config = one_vm(vec![compute(100 * US), Phase::Progress { units: 1 }], 1);
        let costs = &mut config.host.costs;
        (costs.ipi_delivery_ns, costs.interrupt_entry_ns) = (2 * MS, interrupt_entry_ns);
        (config.host.smt_threads, config.duration_ns) = (1, S);
        run(&config).vms[0].workloads[0].units_done as f64
    };
    let slowed = work(2 * MS) / work(1);
    assert!((0.45..0.55).contains(&slowed), "{slowed}");
}
