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
        [("gmake-swaptions", "credit"), ("exim-swaptions", "micro"), ("exim-swaptions", "micro:1")]
    {
        let config = scenario(name, policy, 400 * MS);
        let report = run(&config);
        let exits: u64 = report.vms.iter().map(|vm| vm.yields.total()).sum();
        let folded = report.batched_exits;
        assert!(2 * folded > exits, "{name} under {policy}: {folded} of {exits}");
    }
}

/// In few runs of this length an exit falls on the nanosecond of a change in such a way that it matters. These were found among
/// 540: in the first two the exit is asked about behind the change, in the last one it was before. If the model changes, look for others.
#[test]
fn an_exit_in_the_nanosecond_of_a_change_is_asked_about_as_it_would_have_been() {
    for (name, policy, seed) in [
        ("gmake-swaptions", "micro:3", 26),
        ("gmake-swaptions", "micro:2", 52),
        ("exim-swaptions", "micro:1", 36),
    ] {
        let mut config = SimulationConfig { seed, ..scenario(name, policy, 300 * MS) };
        // They were found without.
        let SchedulerKind::MicroSliced(micro) = &mut config.scheduler else { panic!("{policy}") };
        micro.patience_ns = 0;
        assert!(is_the_same_run(&run(&config), &one_by_one(&config)), "{name} under {policy}, seed {seed}");
    }
}

/// Locks are held for milliseconds, and no tick of guest or host looks at who spins: only Algorithm 1 does.
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
