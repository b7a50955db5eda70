//! Equal pause-loop exits are taken as one event: nothing else about a run may change by that.

use crate::common::{SCENARIOS, compute, is_the_same_run, one_by_one, one_vm, policies, run, scenario};
use microslice_experiments::scenario::{Overrides, parse};
use microslice_model::config::*;

#[test]
fn folding_equal_pause_loop_exits_changes_nothing() {
    for name in SCENARIOS {
        for policy in policies(1) {
            let config = scenario(name, &policy, 100 * MS);
            assert!(is_the_same_run(&run(&config), &one_by_one(&config)), "{name} under {policy}");
        }
    }
}

#[test]
fn folding_changes_nothing_where_pause_loop_windows_grow_either() {
    for name in ["exim-swaptions", "dedup-swaptions"] {
        for (policy, window_max_ns) in policies(1).iter().zip([u64::MAX, 400 * US].into_iter().cycle()) {
            let mut config = scenario(name, policy, 100 * MS);
            (config.host.ple.window_grow, config.host.ple.window_max_ns) = (2, window_max_ns);
            config.host.kvm = (name == "exim-swaptions" && !config.scheduler.is_xen_prototype())
                .then_some(KvmConfig { halt_poll_ns: 200 * US, ..microslice_model::samples::kvm() });
            assert!(is_the_same_run(&run(&config), &one_by_one(&config)), "{name} under {policy}");
        }
    }
}

#[test]
fn most_pause_loop_exits_are_folded_where_the_answer_depends_on_nothing_that_changes() {
    for (name, policy) in
        [("gmake-swaptions", "credit"), ("exim-swaptions", "micro"), ("exim-swaptions", "micro:1")]
    {
        let config = scenario(name, policy, 400 * MS);
        let report = run(&config);
        let exits: u64 = report.vms.iter().map(|vm| vm.yields.total()).sum();
        let folded = report.batched_exits;
        assert!(2 * folded > exits, "{name} under {policy}: {folded} of {exits}");
    }
}

/// Locks are held for milliseconds, and no tick of guest or host looks at spinners: only Algorithm 1 does.
#[test]
fn the_pool_is_sized_by_all_exits_those_that_were_not_asked_about_too() {
    let hold = Duration::Exponential { mean_ns: 5 * MS };
    let prepare = Duration::Constant { ns: 500 };
    let program = vec![
        compute(MS),
        Phase::Lock { lock: "pagevec".into(), hold },
        Phase::Shootdown { prepare, under: None },
        Phase::Progress { units: 1 },
    ];
    for seed in 0..5 {
        let mut config = one_vm(program.clone(), 6);
        config.seed = seed;
        config.scheduler = scenario("dedup-swaptions", "micro", 0).scheduler;
        let SchedulerKind::MicroSliced(micro) = &mut config.scheduler else { panic!("micro") };
        let NormalPoolKind::Credit(normal) = &mut micro.normal else { panic!("credit") };
        normal.tick_ns = 10_000 * MS;
        micro.pool = PoolSize::Auto {
            limit: 3,
            profile_interval_ns: 2 * MS,
            epoch_interval_ns: 2 * MS,
            second_looks: 0,
            grow_when_busy_percent: 0,
        };
        let kernel = &mut config.vms[0].kernel;
        kernel.tick_hz = 1;
        for lock in &mut kernel.locks {
            (lock.kind, lock.instances) = (Some(LockKind::Ticket), 1);
        }
        assert!(is_the_same_run(&run(&config), &one_by_one(&config)), "seed {seed}");
    }
}

/// Under plain Xen an answer holds for as long as the rate limit does. Algorithm 1 looks behind its end, but
/// before the next exit.
#[test]
fn the_pool_is_sized_by_exits_whose_answer_holds_no_longer_too() {
    let text = r#"
        warmup = "36 ms"
        duration = "80 ms"
        host = { extends = "xeon-e5645", pcpus = 5, smt_threads = 1, ple = { window = "20 us" }, costs = { exit = "500 ns", ipi_send = "1 ns", ipi_delivery = "300 us", cache_refill_max = "1 ns", cache_displace = "100 us", llc_migration = "20 us" } }
        [[vm]]
        name = "v0"
        vcpus = 8
        affinity = [0, 2]
        kernel = { extends = "linux-modern", reschedule_handler = "300 us" }
        workloads = [{ name = "w0", threads = "per vcpu", program = [{ repeat = 6, body = [{ compute = "1839 ns" }] }] },
          { name = "w1", threads = "per vcpu", program = [
                { compute = "mix 130071 ns with 2 % of 2601420 ns" }, { repeat = 8, body = [{ spawn = 1 }] }, { compute = "mix 21117 ns with 2 % of 422340 ns" }, { compute = "102480 ns" }, { sleep = "lognormal 97891 ns sigma 0.8" }, { compute = "5 us" }] }]
        [[vm]]
        name = "v1"
        vcpus = 4
        affinity = [0]
        kernel = { extends = "linux-modern" }
        workloads = [{ name = "w0", threads = "per vcpu", program = [{ spawn = 1 }] },
          { name = "snd", threads = 4, program = [{ compute = "20 us" }, { send = "jobs", capacity = 1 }] },
          { name = "rcv", threads = 4, program = [{ receive = "jobs" }, { compute = "exponential 40 us" }] }]
        [[vm]]
        name = "v2"
        vcpus = 12
        kernel = { extends = "linux-4.4" }
        workloads = ["swaptions",
          { name = "snd", threads = 4, program = [{ compute = "20 us" }, { send = "jobs", capacity = 1 }] },
          { name = "rcv", threads = 4, program = [{ receive = "jobs" }, { compute = "15 us" }] }]
        [[vm]]
        name = "v3"
        vcpus = 16
        kernel = { extends = "linux-modern" }
        nic = "iperf-tcp"
        workloads = [{ name = "readers", threads = 1, program = [{ network_receive = 1 }] },
          { name = "w0", threads = 12, program = [{ shootdown = "exponential 8563 ns" }, { barrier = "bar0" }] }]
    "#;
    for seed in [942_530_709, 1, 2, 3] {
        let overrides =
            Overrides { policy: Some("micro-xen".into()), seed: Some(seed), ..Overrides::default() };
        let mut config = parse("mine.toml", text, &overrides).expect("a scenario").config;
        config.check = true;
        assert!(is_the_same_run(&run(&config), &one_by_one(&config)), "seed {seed}");
    }
}
