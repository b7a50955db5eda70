//! Equal pause-loop exits are taken as one event: nothing else about a run may change by that.

mod common;

use common::{SCENARIOS, compute, is_the_same_run, one_by_one, one_vm, policies, run, scenario};
use microslice_sim::config::*;

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
fn most_pause_loop_exits_are_folded_where_the_answer_depends_on_nothing_that_changes() {
    for (name, policy) in
        [("gmake-swaptions", "credit"), ("gmake-swaptions", "micro"), ("exim-swaptions", "micro:1")]
    {
        let config = scenario(name, policy, 400 * MS);
        let (folded, single) = (run(&config).events, one_by_one(&config).events);
        assert!(single > 2 * folded, "{name} under {policy}: {folded} events, one by one {single}");
    }
}

/// A scenario's scheduler and host for one VM's program.
fn under(policy: &str, program: Vec<Phase>, threads: usize) -> SimulationConfig {
    let mut config = one_vm(program, threads);
    config.scheduler = scenario("dedup-swaptions", policy, 0).scheduler;
    config
}

/// All times are multiples of 100 ns, so that exits often fall on the very nanosecond in which their answer changes: then only
/// the order of the queue's slots tells which of them are still asked about.
#[test]
fn an_exit_in_the_nanosecond_of_the_change_is_asked_about_as_it_would_have_been() {
    let coarse = |ns| Phase::Compute { duration: Duration::Constant { ns } };
    let prepare = Duration::Constant { ns: 500 };
    let hold = Duration::Constant { ns: 3_000 };
    let program = vec![
        coarse(4_000),
        Phase::Lock { lock: "mmap_sem".into(), hold },
        coarse(2_000),
        Phase::Shootdown { prepare, under: None },
        Phase::Progress { units: 1 },
    ];
    for policy in policies(1) {
        for seed in 0..8 {
            let mut config = under(&policy, program.clone(), 8);
            config.seed = seed;
            config.host.pcpus = 4;
            config.vms[0].vcpus = 8;
            (config.host.ple.window_ns, config.host.ple.gap_ns) = (1_700, 100);
            assert!(is_the_same_run(&run(&config), &one_by_one(&config)), "{policy}, seed {seed}");
        }
    }
}

/// Holds of several milliseconds: Algorithm 1 looks while everybody spins as promised.
#[test]
fn the_pool_is_sized_by_all_exits_those_that_were_not_asked_about_too() {
    let hold = Duration::Exponential { mean_ns: 5 * MS };
    let program =
        vec![compute(20 * MS), Phase::Lock { lock: "mmap_sem".into(), hold }, Phase::Progress { units: 1 }];
    for policy in ["micro", "micro-xen"] {
        for seed in 0..40 {
            let mut config = under(policy, program.clone(), 2);
            config.seed = seed;
            config.vms[0].kernel.locks.iter_mut().for_each(|lock| lock.kind = Some(LockKind::Ticket));
            config.duration_ns = 200 * MS;
            assert!(is_the_same_run(&run(&config), &one_by_one(&config)), "{policy}, seed {seed}");
        }
    }
}
