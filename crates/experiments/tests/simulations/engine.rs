//! What a run promises, whatever is simulated. Every run here has the checkers on.

mod barriers;
mod hardware;
mod prototype;

use crate::common::{SCENARIOS, compute, one_vm, policies, run, scenario, with_rules};
use microslice_engine::report::RunReport;
use microslice_engine::{SimError, simulate};
use microslice_experiments::figures::snapshot_of;
use microslice_model::config::*;
use microslice_model::events::{NoTrace, TraceEvent, TraceSink};
use proptest::prelude::*;

#[derive(Default)]
struct Recorder(Vec<(u64, TraceEvent)>);

impl TraceSink for Recorder {
    fn event(&mut self, time_ns: u64, event: &TraceEvent) {
        self.0.push((time_ns, *event));
    }
}

#[test]
fn every_scenario_keeps_every_invariant_under_every_scheduler() {
    for name in SCENARIOS {
        for policy in policies(2) {
            let report = run(&scenario(name, &policy, 150 * MS));
            for workload in report.vms.iter().flat_map(|vm| &vm.workloads) {
                assert!(workload.units_done > 0, "{name} under {policy}: {} did nothing", workload.name);
            }
            let broken = snapshot_of(&report).unbalanced_sums();
            assert!(broken.is_empty(), "{name} under {policy}: {broken:?}");
        }
    }
}

#[test]
fn accelerations_add_up_whenever_measuring_begins() {
    for warmup_us in (0..40).map(|step| 20_000 + 37 * step) {
        let mut config = scenario("dedup-swaptions", "micro-xen:3", 2 * MS);
        config.warmup_ns = warmup_us * US;
        let snapshot = snapshot_of(&run(&config));
        assert!(snapshot.unbalanced_sums().is_empty(), "{warmup_us} us: {:?}", snapshot.unbalanced_sums());
    }
}

#[test]
fn a_vcpu_that_waits_when_measuring_begins_waits_from_then_on() {
    let mut config = scenario("spec-cpu-swaptions", "credit", 35 * MS);
    config.warmup_ns = 100 * MS;
    let longest_ns = run(&config).wait_to_run.max().expect("somebody waited");
    assert!(longest_ns <= config.duration_ns, "{longest_ns} ns");
}

/// Two VMs on two pCPUs and a micro-sliced one: the first is always in critical code, the second never.
fn always_critical(grace: u32, seed: u64) -> RunReport {
    let hold = Duration::Exponential { mean_ns: 300 * US };
    let work = |phase| vec![phase, Phase::Progress { units: 1 }];
    let mut config = one_vm(work(Phase::Lock { lock: "own".into(), hold }), 2);
    config.scheduler = scenario("dedup-swaptions", "micro:1", 0).scheduler;
    with_rules(&mut config, grace, true, 0);
    (config.seed, config.duration_ns, config.host.pcpus, config.vms[0].vcpus) = (seed, 2 * S, 3, 2);
    config.host.smt_threads = 1;
    // A lock for each thread, so that nobody ever waits for one.
    config.vms[0].kernel.locks.push(LockConfig {
        name: "own".into(),
        kind: Some(LockKind::Queued),
        irqs_off: false,
        instances: 64,
        symbol: "get_page_from_freelist".into(),
    });
    let mut other = config.vms[0].clone();
    other.name = "other".into();
    other.workloads[0].program = work(compute(300 * US));
    config.vms.push(other);
    run(&config)
}

#[test]
fn a_vcpu_that_is_always_in_critical_code_pays_for_its_grace() {
    for grace in [0, 10, 100] {
        let report = always_critical(grace, 1);
        let share = report.vms[0].run_ns as f64 / report.vms[1].run_ns as f64;
        // The credit scheduler's shares differ by as much over two seconds without any grace.
        assert!(share < 1.15, "grace {grace}: {share}");
        assert_eq!(report.pool.graces > 0, grace > 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    /// Two wait for two pCPUs: by the credits, nobody does so for more than a few slices of 30 ms.
    #[test]
    fn whatever_the_grace_of_the_others_nobody_waits_much_longer(grace in 0u32..=100, seed: u64) {
        let longest_ns = always_critical(grace, seed).wait_to_run.max().unwrap_or(0);
        prop_assert!(longest_ns < 150 * MS + u64::from(grace) * 100 * US, "{} ns", longest_ns);
    }
}

/// How many pCPUs the dynamic pool had on average with these parameters: (second_looks,
/// grow_when_busy_percent). Without patience, by which a lock's convoy is noticed in any look.
fn mean_pool_size(name: &str, (looks, percent): (u32, u32)) -> f64 {
    let sizes = (1..=4).map(|seed| {
        let mut config = scenario(name, "micro", 3000 * MS);
        config.seed = seed;
        let SchedulerKind::MicroSliced(micro) = &mut config.scheduler else { panic!("micro") };
        let PoolSize::Auto { second_looks, grow_when_busy_percent, .. } = &mut micro.pool else {
            panic!("auto")
        };
        (*second_looks, *grow_when_busy_percent) = (looks, percent);
        micro.patience_ns = 0;
        run(&config).pool.mean_micro_pcpus
    });
    sizes.sum::<f64>() / 4.0
}

#[test]
fn a_pool_that_has_dissolved_a_convoy_isnt_given_up_for_an_epoch() {
    let (with, without) =
        (mean_pool_size("exim-swaptions", (5, 0)), mean_pool_size("exim-swaptions", (0, 0)));
    assert!(with > without + 0.05, "{with} micro-sliced pCPUs with second looks, {without} without");
}

#[test]
fn a_stream_that_waits_for_its_turns_keeps_its_micro_sliced_pcpu() {
    let (with, without) =
        (mean_pool_size("iperf-tcp-mixed", (5, 0)), mean_pool_size("iperf-tcp-mixed", (0, 0)));
    assert!(with > 0.9 && without < 0.8, "{with} micro-sliced pCPUs with second looks, {without} without");
}

#[test]
fn micro_sliced_pcpus_that_are_idle_get_no_company() {
    let (busy_only, always) =
        (mean_pool_size("vips-swaptions", (5, 75)), mean_pool_size("vips-swaptions", (5, 0)));
    assert!(
        (0.9..1.1).contains(&busy_only) && always > 1.5,
        "{busy_only} micro-sliced pCPUs, {always} by the paper's rule"
    );
}

#[test]
fn requests_that_are_turned_away_are_made_again_and_turns_go_on_unless_the_rules_are_the_papers() {
    for (grace, expected) in [(0, false), (10, true)] {
        let mut config = scenario("dedup-swaptions", "micro:1", 300 * MS);
        with_rules(&mut config, grace, true, 0);
        let pool = run(&config).pool;
        assert_eq!((pool.graces > 0, pool.asked_again > 0), (expected, expected), "grace {grace}");
    }
    let pool = run(&scenario("dedup-swaptions", "micro-xen:1", 300 * MS)).pool;
    assert_eq!((pool.graces, pool.asked_again), (0, 0));
}

/// VMs of eight vCPUs that send shootdowns all the time, beside one of four vCPUs that computes, on four
/// pCPUs, two of them micro-sliced. Rounds that each of the former made.
fn storms(policy: &str, vms: usize, grace: u32, seed: u64) -> Vec<u64> {
    let prepare = Duration::Constant { ns: 500 };
    let round =
        vec![compute(20 * US), Phase::Shootdown { prepare, under: None }, Phase::Progress { units: 1 }];
    let mut config = one_vm(round, 8);
    config.scheduler = scenario("dedup-swaptions", policy, 0).scheduler;
    with_rules(&mut config, grace, true, 0);
    (config.seed, config.duration_ns) = (seed, 300 * MS);
    (config.host.pcpus, config.host.llc_pcpus, config.host.smt_threads) = (4, 4, 1);
    config.vms[0].vcpus = 8;
    let vm = |number| VmConfig { name: format!("vm{number}"), ..config.vms[0].clone() };
    config.vms = (0..=vms).map(vm).collect();
    let other = &mut config.vms[vms];
    (other.vcpus, other.workloads[0].threads) = (4, 4);
    other.workloads[0].program = vec![compute(MS)];
    run(&config).vms[..vms].iter().map(|vm| vm.workloads[0].units_done).collect()
}

#[test]
fn where_all_send_shootdowns_those_that_wait_themselves_do_not_keep_out_responders() {
    for seed in 1..=3 {
        let (with_grace, without) = (storms("micro:2", 1, 10, seed)[0], storms("micro:2", 1, 0, seed)[0]);
        assert!(4 * with_grace >= 3 * without, "{with_grace} rounds with grace, {without} without");
    }
}

#[test]
fn where_all_send_shootdowns_a_vm_does_not_keep_the_other_ones_out() {
    for (policy, seed) in
        ["micro:2", "microslice:2"].into_iter().flat_map(|policy| (1..=3).map(move |seed| (policy, seed)))
    {
        let rounds = storms(policy, 2, 10, seed);
        let (least, most) = (rounds[0].min(rounds[1]), rounds[0].max(rounds[1]));
        assert!(2 * least >= most, "{policy}: {rounds:?}");
    }
}

#[test]
fn watching_a_run_changes_nothing() {
    let mut config = scenario("exim-swaptions", "micro:1", 100 * MS);
    let watched = simulate(&config, &mut Recorder::default()).unwrap();
    config.check = false;
    assert_eq!(watched, simulate(&config, &mut NoTrace).unwrap());
}

#[test]
fn two_equal_vms_share_the_host_equally_and_weights_shift_it() {
    let mut config = scenario("spec-cpu-swaptions", "credit", 3 * S);
    let share = |report: &RunReport| report.vms[0].run_ns as f64 / report.vms[1].run_ns as f64;
    let equal = share(&run(&config));
    assert!((0.95..1.05).contains(&equal), "1:1 became {equal}");
    config.vms[0].weight = 512;
    let double = share(&run(&config));
    assert!((1.9..2.1).contains(&double), "2:1 became {double}");
}

#[test]
fn accelerated_vcpus_return() {
    let report = run(&scenario("dedup-swaptions", "micro:2", 300 * MS));
    let (accelerated, returned) = (report.pool.acceleration_count(), report.pool.returns);
    assert!(accelerated > 100, "only {accelerated} accelerations");
    // In flight at either end of the measured time: at most one running and one queued per micro pCPU.
    assert!(accelerated.abs_diff(returned) <= 4, "{accelerated} accelerations, {returned} returns");
}

#[test]
fn a_micro_slice_shortens_the_wait_for_an_interrupt_on_a_busy_vcpu() {
    let jitter_ms = |policy| {
        let mut config = scenario("iperf-udp-mixed", policy, 2 * S);
        config.warmup_ns = 500 * MS;
        let report = run(&config);
        report.vms[0].network.as_ref().unwrap().jitter_ms
    };
    let (baseline, micro) = (jitter_ms("credit"), jitter_ms("micro:1"));
    assert!(baseline > 5.0 && micro < 0.1, "jitter {baseline} ms became {micro} ms");
}

#[test]
fn a_deadlock_is_reported_with_what_each_thread_waits_for() {
    let config = one_vm(
        vec![
            compute(10 * US),
            Phase::Barrier { name: "all".into(), count: 5, under: None, spin_ns: 0, requeues: false },
            compute(US),
        ],
        4,
    );
    let error = simulate(&config, &mut NoTrace).unwrap_err();
    assert!(matches!(error, SimError::Deadlock { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("target/dedup#3 waits at barrier all (4 of 5 arrived)"), "{text}");
}

#[test]
fn a_receiver_without_a_sender_is_a_deadlock_too() {
    let config = one_vm(vec![compute(US), Phase::Receive { queue: "jobs".into() }], 2);
    let text = simulate(&config, &mut NoTrace).unwrap_err().to_string();
    assert!(text.contains("waits for an item in queue jobs"), "{text}");
}

#[test]
fn nonsense_is_refused_with_its_place() {
    let refused = |change: fn(&mut SimulationConfig)| {
        let mut config = one_vm(vec![compute(US)], 1);
        change(&mut config);
        match simulate(&config, &mut NoTrace) {
            Err(error @ SimError::Config { .. }) => error.to_string(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(|c| c.host.pcpus = 0), "host: pcpus is 0; it must be 1 to 32768");
    assert!(refused(|c| c.vms[0].vcpus = 0).starts_with("vm target: it has no vCPUs"));
    assert!(refused(|c| c.vms[0].affinity = vec![99]).contains("affinity names pCPU 99; there are 12"));
    assert!(
        refused(|c| c.vms[0].workloads[0].program = vec![Phase::Progress { units: 1 }])
            .contains("never takes time")
    );
    assert!(refused(|c| c.vms.clear()).contains("no VMs"));
}

/// A vCPU that wakes another can lose its pCPU to it in the midst of what it does, and then has nothing more
/// to do.
#[test]
fn a_waker_that_loses_its_pcpu_to_the_woken_vcpu_halts_only_when_it_runs_again() {
    let prepare = Duration::Constant { ns: 500 };
    let program = vec![
        Phase::Lock { lock: "mmap_sem".into(), hold: Duration::Exponential { mean_ns: 5_600 } },
        Phase::Spawn,
        Phase::Shootdown { prepare, under: None },
        Phase::Shootdown { prepare, under: Some("mmap_sem".into()) },
        compute(5 * US),
    ];
    let mut config = one_vm(program, 3);
    let short = scenario("dedup-swaptions", "credit-0.1ms", 0).scheduler;
    (config.scheduler, config.host.pcpus, config.vms[0].vcpus) = (short, 3, 3);
    config.host.smt_threads = 1;
    let vm = |number| VmConfig { name: format!("vm{number}"), ..config.vms[0].clone() };
    config.vms = (0..3).map(vm).collect();
    for seed in 0..20 {
        config.seed = seed;
        run(&config);
    }
}

/// The events of a run, with its checkers or without.
fn events_of(config: &SimulationConfig, check: bool) -> Vec<(u64, TraceEvent)> {
    let mut recorder = Recorder::default();
    simulate(&SimulationConfig { check, ..config.clone() }, &mut recorder).unwrap();
    recorder.0
}

#[test]
fn a_trace_is_the_same_with_and_without_checkers_and_has_what_the_end_brings() {
    let mut ended_with_events = 0;
    for policy in ["credit", "microslice"] {
        for duration_ms in 1..=20 {
            let mut config = scenario("exim-swaptions", policy, duration_ms * MS);
            config.warmup_ns = 5 * MS;
            let (checked, unchecked) = (events_of(&config, true), events_of(&config, false));
            assert!(checked == unchecked, "{policy}, {duration_ms} ms");
            let last_ns = unchecked.last().map(|(time_ns, _)| *time_ns);
            ended_with_events += u32::from(last_ns == Some(config.warmup_ns + config.duration_ns));
        }
    }
    assert!(ended_with_events > 0, "the end brought nothing: this shows nothing");
}

/// The head of a queue may not run on the idle pCPU, while one behind it may.
#[test]
fn credit_leaves_no_pcpu_idle_beside_a_vcpu_that_waits_behind_one_that_may_not_run_there() {
    let mut config = one_vm(vec![Phase::Compute { duration: Duration::Constant { ns: 100 * MS } }], 4);
    (config.warmup_ns, config.duration_ns) = (0, 500 * MS);
    (config.host.pcpus, config.host.llc_pcpus, config.host.smt_threads) = (3, 3, 1);
    (config.vms[0].vcpus, config.vms[0].affinity) = (4, vec![0, 2]);
    let mut second = config.vms[0].clone();
    (second.name, second.vcpus, second.affinity) = ("second".to_owned(), 3, vec![0, 1, 2]);
    second.workloads[0].threads = 3;
    second.workloads[0].program = vec![
        Phase::Compute { duration: Duration::Constant { ns: 20 * MS } },
        Phase::Sleep { duration: Duration::Constant { ns: 100 * MS } },
    ];
    config.vms.push(second);
    for policy in ["credit", "credit-1ms", "micro:0", "micro-xen:0"] {
        config.scheduler = scenario("dedup-swaptions", policy, 0).scheduler;
        for seed in 1..20 {
            config.seed = seed;
            run(&config);
        }
    }
}

#[test]
fn shares_due_add_up_to_what_ran_and_changes_of_the_pool_are_counted() {
    let mut config = scenario("exim-swaptions", "micro", 1_500 * MS);
    config.warmup_ns = 1_500 * MS;
    let report = run(&config);
    let (ran_ns, due_ns) = report.vms.iter().fold((0, 0), |sum, vm| (sum.0 + vm.run_ns, sum.1 + vm.due_ns));
    assert!(ran_ns.abs_diff(due_ns) <= report.vms.len() as u64, "{ran_ns} ns ran, {due_ns} ns due");
    assert!(report.pool.sizes.len() > 1, "the pool never changed: this shows nothing");
    let snapshot = snapshot_of(&report);
    let ids: Vec<&str> = snapshot.entries().iter().map(|entry| entry.figure.id).collect();
    assert!(ids.contains(&"share_due") && ids.contains(&"pool_resizes"), "{ids:?}");
}
