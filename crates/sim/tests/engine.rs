//! What a run promises, whatever is simulated. Every run here has the checkers on.

mod common;

use common::{SCENARIOS, compute, one_vm, policies, run, scenario, with_rules};
use microslice_sim::config::*;
use microslice_sim::figures::snapshot_of;
use microslice_sim::ids::{PcpuId, VcpuId};
use microslice_sim::report::RunReport;
use microslice_sim::trace_event::{
    AccelerationCause, GuestClass, IpiKind, NoTrace, StopReason, TraceEvent, TraceSink,
};
use microslice_sim::{SimError, simulate};
use proptest::prelude::*;
use std::collections::BTreeSet;

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
fn who_waits_when_measuring_begins_waits_from_then_on() {
    let mut config = scenario("spec-cpu-swaptions", "credit", 35 * MS);
    config.warmup_ns = 100 * MS;
    let longest_ns = run(&config).wait_to_run.max().expect("somebody waited");
    assert!(longest_ns <= config.duration_ns, "{longest_ns} ns");
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_seed_another_one() {
    let trace = |seed| {
        let mut config = scenario("dedup-swaptions", "micro:2", 100 * MS);
        config.seed = seed;
        let mut recorder = Recorder::default();
        simulate(&config, &mut recorder).unwrap();
        recorder.0
    };
    let first = trace(1);
    assert!(first.len() > 1000, "only {} events", first.len());
    assert!(first == trace(1));
    assert!(first != trace(2));
}

/// By the paper's rules, so that the host's mechanics are the only difference between `micro` and `micro-xen`.
fn trace(name: &str, policy: &str) -> Vec<(u64, TraceEvent)> {
    trace_for(300 * MS, name, policy)
}

fn trace_for(duration_ns: u64, name: &str, policy: &str) -> Vec<(u64, TraceEvent)> {
    let mut recorder = Recorder::default();
    let mut config = scenario(name, policy, duration_ns);
    with_rules(&mut config, 0, false, 0);
    simulate(&config, &mut recorder).unwrap_or_else(|error| panic!("{error}"));
    recorder.0
}

/// pCPU 11 is the micro pool of `micro:1` and `micro-xen:1`.
const MICRO_PCPU: PcpuId = PcpuId::new(11);

#[test]
fn in_the_prototype_who_waits_for_a_shootdown_never_yields() {
    let yields = |policy| {
        let gives_up = |event: &TraceEvent| matches!(event, TraceEvent::Stopping { reason: StopReason::IpiWait, pcpu, .. } if *pcpu != MICRO_PCPU);
        // Where yields count, they are rare all the same: Xen's rate limit delays most until the wait is over.
        let trace = trace_for(1000 * MS, "dedup-swaptions", policy);
        trace.iter().filter(|(_, event)| gives_up(event)).count()
    };
    assert_eq!(yields("micro-xen:1"), 0);
    assert!(yields("micro:1") > 0);
}

#[test]
fn in_the_prototype_who_spins_for_a_lock_never_yields() {
    let yields = |policy| {
        let gives_up = |event: &TraceEvent| matches!(event, TraceEvent::Stopping { reason: StopReason::Ple, pcpu, .. } if *pcpu != MICRO_PCPU);
        trace("exim-swaptions", policy).iter().filter(|(_, event)| gives_up(event)).count()
    };
    assert_eq!(yields("micro-xen:1"), 0);
    assert!(yields("micro:1") > 0);
}

#[test]
fn in_the_prototype_a_pass_begins_with_the_first_vcpu() {
    let share_of_first_half = |policy| {
        let (mut first, mut all) = (0, 0);
        for (_, event) in trace("dedup-swaptions", policy) {
            if let TraceEvent::Accelerated { vcpu, .. } = event {
                first += u32::from(vcpu < VcpuId::new(6));
                all += 1;
            }
        }
        f64::from(first) / f64::from(all)
    };
    assert!(share_of_first_half("micro-xen:1") > 0.65, "{}", share_of_first_half("micro-xen:1"));
    assert!((0.35..0.65).contains(&share_of_first_half("micro:1")), "{}", share_of_first_half("micro:1"));
}

#[test]
fn in_the_prototype_a_spinner_leaves_the_micro_pool() {
    let leaves = |event: &TraceEvent| {
        matches!(event, TraceEvent::Stopping { reason: StopReason::Ple, pcpu: MICRO_PCPU, .. })
    };
    assert!(trace("dedup-swaptions", "micro-xen:1").iter().any(|(_, event)| leaves(event)));
}

/// Accelerations for a shootdown of vCPUs that have answered and were stopped elsewhere than in critical code.
fn needless_accelerations(policy: &str) -> usize {
    let mut owes = BTreeSet::new();
    let mut needless = 0;
    for (_, event) in trace("dedup-swaptions", policy) {
        match event {
            TraceEvent::IpiSent { to, kind: IpiKind::CallFunction, .. } => {
                owes.insert(to);
            }
            TraceEvent::IpiHandled { vcpu, kind: IpiKind::CallFunction } => {
                owes.remove(&vcpu);
            }
            TraceEvent::Accelerated { vcpu, cause: AccelerationCause::TlbYield, class, .. } => {
                let critical = [GuestClass::TlbShootdown, GuestClass::ReschedIpi, GuestClass::LockHolder];
                needless += usize::from(!owes.contains(&vcpu) && !critical.contains(&class));
            }
            _ => {}
        }
    }
    needless
}

#[test]
fn who_has_answered_a_shootdown_is_not_accelerated_for_it_but_in_the_prototype() {
    assert_eq!(needless_accelerations("micro:1"), 0);
    assert!(needless_accelerations("micro-xen:1") > 100);
}

/// Two VMs on two pCPUs and a micro-sliced one: the first is always in critical code, the second never.
fn always_critical(grace: u32, seed: u64) -> RunReport {
    let hold = Duration::Exponential { mean_ns: 300 * US };
    let work = |phase| vec![phase, Phase::Progress { units: 1 }];
    let mut config = one_vm(work(Phase::Lock { lock: "own".into(), hold }), 2);
    config.scheduler = scenario("dedup-swaptions", "micro:1", 0).scheduler;
    with_rules(&mut config, grace, true, 0);
    (config.seed, config.duration_ns, config.host.pcpus, config.vms[0].vcpus) = (seed, 2 * S, 3, 2);
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
fn who_is_always_in_critical_code_pays_for_its_grace() {
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

/// How many pCPUs the dynamic pool had on average with these parameters: (second_looks, grow_when_busy_percent). Without patience,
/// by which a lock's convoy is noticed in any look.
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
fn who_is_turned_away_is_asked_for_again_and_turns_go_on_unless_the_rules_are_the_papers() {
    for (grace, expected) in [(0, false), (10, true)] {
        let mut config = scenario("dedup-swaptions", "micro:1", 300 * MS);
        with_rules(&mut config, grace, true, 0);
        let pool = run(&config).pool;
        assert_eq!((pool.graces > 0, pool.asked_again > 0), (expected, expected), "grace {grace}");
    }
    let pool = run(&scenario("dedup-swaptions", "micro-xen:1", 300 * MS)).pool;
    assert_eq!((pool.graces, pool.asked_again), (0, 0));
}

/// VMs of eight vCPUs that send shootdowns all the time, beside one of four vCPUs that computes, on four pCPUs, two of them
/// micro-sliced. Rounds that each of the former made.
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
fn where_all_send_shootdowns_those_that_wait_themselves_do_not_keep_out_who_owes_an_answer() {
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
    // pCPUs 0 and 2 share a core, 1 and 3 do. Whoever shares one with the VM under test waits for a lock for two thirds of
    // the time, and holds it for one.
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
fn who_comes_back_to_cold_caches_works_less_for_a_while() {
    // Two VMs take turns of a millisecond: half of what the caches hold is displaced, which costs 75 us of each turn.
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
fn who_moves_to_another_last_level_cache_works_less_than_who_stays_within_one() {
    // Three VMs on two pCPUs go to and fro.
    let work = |llc_pcpus, llc_migration_ns, sensitivity_permille| {
        let mut config = one_vm(vec![compute(20 * US), Phase::Progress { units: 1 }], 1);
        (config.host.pcpus, config.host.smt_threads, config.host.llc_pcpus) = (2, 1, llc_pcpus);
        (config.host.costs.llc_migration_ns, config.duration_ns) = (llc_migration_ns, 2 * S);
        config.vms[0].vcpus = 1;
        config.vms[0].workloads[0].cache_sensitive_permille = sensitivity_permille;
        for name in ["second", "third"] {
            config.vms.push(VmConfig { name: name.into(), ..config.vms[0].clone() });
        }
        run(&config).vms.iter().map(|vm| vm.workloads[0].units_done).sum::<u64>() as f64
    };
    let near = work(2, 5 * MS, 1000);
    let (far, insensitive) = (work(1, 5 * MS, 1000) / near, work(1, 5 * MS, 0) / near);
    assert!((0.8..0.98).contains(&far), "{far}");
    assert!((0.99..1.01).contains(&insensitive), "{insensitive}");
    assert_eq!(work(1, 0, 1000), near);
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
fn a_deadlock_is_reported_with_who_waits_for_what() {
    let config = one_vm(
        vec![
            compute(10 * US),
            Phase::Barrier { name: "all".into(), count: 5, under: None, spin_ns: 0 },
            compute(US),
        ],
        4,
    );
    let error = simulate(&config, &mut NoTrace).unwrap_err();
    assert!(matches!(error, SimError::Deadlock { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("target/dedup#3 waits at barrier all (4 of 5 arrived)"), "{text}");
}

/// Four threads that meet under a futex's queue lock, on as many vCPUs.
fn meets_under(under: &str) -> SimulationConfig {
    let barrier = Phase::Barrier { name: "all".into(), count: 0, under: Some(under.into()), spin_ns: 0 };
    one_vm(vec![compute(100 * US), barrier, Phase::Progress { units: 1 }], 4)
}

#[test]
fn who_wakes_the_others_at_a_barrier_holds_its_lock_until_all_are_awake() {
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

/// The same, but who waits spins first.
fn spins_for(spin_ns: u64) -> SimulationConfig {
    let mut config = meets_under("page_reclaim");
    let Phase::Barrier { spin_ns: spin, .. } = &mut config.vms[0].workloads[0].program[1] else { panic!() };
    *spin = spin_ns;
    config
}

#[test]
fn who_spins_at_a_barrier_for_long_enough_never_sleeps() {
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
fn who_has_spun_in_vain_at_a_barrier_sleeps_and_is_woken() {
    let mut config = spins_for(10 * US);
    // One of them has a vCPU with another program that takes its turns.
    let late = config.vms[0].workloads[0].clone();
    config.vms[0].workloads.push(microslice_sim::config::WorkloadConfig {
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
    assert!(error.contains("who spins sleeps under a lock then"), "{error}");
}

#[test]
fn a_barrier_under_a_lock_that_sleeps_is_refused() {
    let mut config = meets_under("page_reclaim");
    config.vms[0].kernel.locks[0].kind = Some(LockKind::Sleeping);
    config.vms[0].kernel.locks[0].irqs_off = false;
    let error = simulate(&config, &mut NoTrace).unwrap_err().to_string();
    assert!(error.contains("a barrier can't wake under \"page_reclaim\""), "{error}");
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

/// Whoever wakes another vCPU can lose its pCPU to it in the midst of what it does, and then has nothing more to do.
#[test]
fn who_loses_its_pcpu_to_whom_it_woke_halts_only_when_it_runs_again() {
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

/// At the head of a queue may be who may not run where it is idle, and behind it who may.
#[test]
fn credit_leaves_no_pcpu_idle_beside_who_waits_behind_one_that_may_not_run_there() {
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
fn caches_that_are_displaced_in_no_time_are_as_cold_as_those_displaced_in_one_ns() {
    let run_with = |cache_displace_ns| {
        let mut config = scenario("dedup-swaptions", "credit", 50 * MS);
        config.host.costs.cache_displace_ns = cache_displace_ns;
        run(&config)
    };
    assert!(run_with(0) == run_with(1));
    assert!(run_with(0) != run_with(2 * MS));
}
