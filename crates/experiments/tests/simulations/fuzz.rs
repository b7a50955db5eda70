//! Scenarios at random: none breaks an invariant, and folding pause-loop exits changes none.

use crate::common::{compute, is_the_same_run, one_by_one, policies, scenario, with_holders, with_rules};
use microslice_engine::simulate;
use microslice_model::config::*;
use microslice_model::events::NoTrace;
use microslice_policy::{Coded, CriticalBy, DelayUnsafe, QueueDomain};
use proptest::prelude::*;

fn lock_kind() -> impl Strategy<Value = LockKind> {
    prop::sample::select(&LockKind::ALL[..])
}

fn phase() -> impl Strategy<Value = Phase> {
    let time = 200u64..300_000;
    prop_oneof![
        time.clone().prop_map(compute),
        time.clone().prop_map(|mean_ns| Phase::Lock {
            lock: "a".into(),
            hold: Duration::Exponential { mean_ns: mean_ns / 20 + 1 }
        }),
        time.clone().prop_map(|mean_ns| Phase::Lock {
            lock: "b".into(),
            hold: Duration::Exponential { mean_ns: mean_ns / 20 + 1 }
        }),
        Just(Phase::Shootdown { prepare: Duration::Constant { ns: 500 }, under: None }),
        time.prop_map(|ns| Phase::Sleep { duration: Duration::Constant { ns } }),
        Just(Phase::Spawn),
        Just(Phase::YieldThread),
        Just(Phase::Barrier { name: "b".into(), count: 0, under: None, spin_ns: 0, requeues: false }),
        (1u64..4, 1_000u64..50_000)
            .prop_map(|(count, mean_ns)| Phase::Repeat { count, body: vec![compute(mean_ns)] }),
    ]
}

prop_compose! {
    fn fuzzed()(
        seed: u64,
        pcpus in 1usize..6,
        vcpus in 1usize..6,
        threads in 1usize..9,
        kinds in (lock_kind(), lock_kind(), prop::bool::ANY),
        program in prop::collection::vec(phase(), 1..8),
        policy: prop::sample::Index,
        vm_count in 1usize..4,
        weight in 1u32..2000,
        (ple, smt, window_grow, kvm) in (prop::bool::ANY, prop::bool::ANY, 1u32..4, prop::bool::ANY),
        rules in (0u32..20, prop::bool::ANY, 0u64..3 * MS),
        interrupts in prop::sample::select(vec![
            InterruptMode::Software, InterruptMode::Apicv, InterruptMode::Avic, InterruptMode::Ipiv,
        ]),
    ) -> SimulationConfig {
        let mut policies = policies(1);
        policies.retain(|policy| pcpus >= 4 || !policy.starts_with("micro"));
        let policy = policy.get(&policies);
        let mut config = scenario("dedup-swaptions", policy, 30 * MS);
        config.seed = seed;
        config.warmup_ns = 10 * MS;
        config.host.pcpus = pcpus;
        config.host.smt_threads = if pcpus.is_multiple_of(2) { 2 } else { 1 };
        with_rules(&mut config, rules.0, rules.1, rules.2);
        (config.host.ple.enabled, config.host.ple.window_grow) = (ple, window_grow);
        let of_kvm =
            KvmConfig { halt_poll_ns: 200 * US, interrupts, icr_write_ns: 100, ..microslice_model::samples::kvm() };
        config.host.kvm = Some(of_kvm).filter(|_| kvm && !config.scheduler.is_xen_prototype());
        config.host.smt_busy_speed_permille = if smt { 620 } else { 1000 };
        config.vms.truncate(1);
        let vm = &mut config.vms[0];
        vm.vcpus = vcpus;
        vm.kernel.locks = [("a", kinds.0), ("b", kinds.1)].map(|(name, kind)| LockConfig {
            name: name.into(),
            kind: Some(kind),
            irqs_off: kinds.2 && !kind.sleeps(),
            instances: 1,
            symbol: "get_page_from_freelist".into(),
        }).to_vec();
        let workload = &mut vm.workloads[0];
        workload.threads = threads;
        workload.program = program;
        if kinds.1.sleeps() {
            let prepare = Duration::Constant { ns: 500 };
            workload.program.push(Phase::Shootdown { prepare, under: Some("b".into()) });
        }
        workload.program.push(compute(5_000));
        workload.program.push(Phase::Progress { units: 1 });
        config.vms = (0..vm_count).map(|at| VmConfig {
            name: format!("vm{at}"),
            weight: if at == 0 { weight } else { 256 },
            ..config.vms[0].clone()
        }).collect();
        config
    }
}

/// Turns of this length; of CFS they are a part of its latency.
fn with_slice(scheduler: &mut SchedulerKind, slice_ns: u64) {
    match scheduler {
        SchedulerKind::Credit(credit) => credit.slice_ns = slice_ns,
        SchedulerKind::MicroSliced(micro) => match &mut micro.normal {
            NormalPoolKind::Credit(credit) => credit.slice_ns = slice_ns,
            NormalPoolKind::FairShare(pool) => pool.slice_ns = slice_ns,
        },
        SchedulerKind::Eevdf(eevdf) => eevdf.base_slice_ns = slice_ns,
        SchedulerKind::Beside(beside) => beside.eevdf.base_slice_ns = slice_ns,
        SchedulerKind::Cfs(cfs) => (cfs.latency_ns, cfs.min_granularity_ns) = (4 * slice_ns, slice_ns),
        SchedulerKind::Lottery(pool) => pool.slice_ns = slice_ns,
        SchedulerKind::Stride(stride) => stride.slice_ns = slice_ns,
    }
}

/// Two programs that a queue of this size connects.
fn pipeline(capacity: usize) -> [(&'static str, Vec<Phase>); 2] {
    let queue = || "jobs".to_owned();
    let send = Phase::Send { queue: queue(), capacity };
    [
        ("senders", vec![compute(20 * US), send, Phase::Progress { units: 1 }]),
        (
            "receivers",
            vec![Phase::Receive { queue: queue() }, compute(15 * US), Phase::Progress { units: 1 }],
        ),
    ]
}

fn readers() -> (&'static str, Vec<Phase>) {
    ("readers", vec![Phase::NetworkReceive, compute(10 * US), Phase::Progress { units: 1 }])
}

/// Now and then a lock, and kernel code outside of it.
fn system_call(ppm: u32) -> Phase {
    let hold = Duration::Exponential { mean_ns: 3 * US };
    let duration = Duration::LogNormal { median_ns: 2 * US, sigma_permille: 900 };
    let kernel = Phase::Kernel { duration, symbol: "handle_mm_fault".into() };
    Phase::Sometimes { ppm, body: vec![Phase::Lock { lock: "a".into(), hold }, kernel] }
}

fn nic() -> impl Strategy<Value = NicConfig> {
    let tcp = (10_000_000u64..1_000_000_000).prop_map(|link_bits_per_s| Stream::Tcp {
        link_bits_per_s,
        window_bytes: 64 << 10,
        packet_bytes: 1448,
        round_trip_ns: 100 * US,
    });
    let udp = (100_000u64..500_000_000).prop_map(|bits_per_s| Stream::Udp { bits_per_s, packet_bytes: 1470 });
    (prop_oneof![tcp, udp], 1usize..300).prop_map(|(stream, ring_packets)| NicConfig {
        vcpu: 0,
        stream,
        irq_handler_ns: 2 * US,
        softirq_per_packet_ns: 300,
        reader_per_packet_ns: 300,
        ring_packets,
        worker: None,
    })
}

fn features() -> impl Strategy<Value = (ThreadScheduler, KernelFeatures)> {
    any::<[bool; 6]>().prop_map(|[eevdf, steal_time, mutex_handoff, pv_ipi, ttwu_queue, lazy_tlb]| {
        let scheduler = if eevdf { ThreadScheduler::Eevdf } else { ThreadScheduler::Fifo };
        (scheduler, KernelFeatures { steal_time, mutex_handoff, pv_ipi, ttwu_queue, lazy_tlb })
    })
}

prop_compose! {
    /// The same with networks, pipelines and affinities.
    fn furnished()(
        config in fuzzed(),
        modern in prop::option::of(features()),
        affinities in prop::collection::vec(0u32..32, 3),
        nic in prop::option::of(nic()),
        capacity in prop::option::of(1usize..20),
        ppm in 0u32..=1_000_000,
        instances in 1usize..5,
        threads in 1usize..4,
    ) -> SimulationConfig {
        let mut config = config;
        for vm in &mut config.vms {
            if let Some((scheduler, features)) = modern {
                (vm.kernel.symbols, vm.kernel.pv_tlb_flush) = (SymbolTable::LinuxModern, true);
                (vm.kernel.thread_scheduler, vm.kernel.features) = (scheduler, features);
            }
            vm.kernel.locks.iter_mut().for_each(|lock| lock.instances = instances);
            let add = |vm: &mut VmConfig, (name, program): (&str, Vec<Phase>)| {
                let first = vm.workloads[0].clone();
                vm.workloads.push(WorkloadConfig { name: name.into(), threads, program, ..first });
            };
            vm.workloads[0].program.insert(0, system_call(ppm));
            if let Some(nic) = &nic {
                vm.nic = Some(nic.clone());
                add(vm, readers());
            }
            if let Some(capacity) = capacity {
                pipeline(capacity).into_iter().for_each(|workload| add(vm, workload));
            }
        }
        // pCPU 0 is never micro-sliced.
        let pcpus = 0..config.host.pcpus;
        for (vm, affinity) in config.vms.iter_mut().zip(affinities) {
            vm.affinity = pcpus.clone().filter(|pcpu| *pcpu == 0 || affinity >> pcpu & 1 == 1).collect();
        }
        config
    }
}

fn balance() -> impl Strategy<Value = BalanceConfig> {
    let rules = prop_oneof![
        Just((BalanceRule::Capacity, false, false)),
        Just((BalanceRule::QueueLength, false, false)),
        Just((BalanceRule::QueueLength, true, false)),
        (any::<bool>(), any::<bool>()).prop_map(|(balloons, plans)| (
            BalanceRule::WorkStealing,
            balloons,
            plans
        )),
    ];
    (rules, 100 * US..250 * MS).prop_map(|((rule, balloons, plans), interval_ns)| BalanceConfig {
        rule,
        interval_ns,
        balloons,
        plans,
    })
}

prop_compose! {
    /// The same on larger hosts, whose VMs differ: in places for a micro pool, caches, cores, widths and
    /// weights.
    fn wide()(
        config in furnished(),
        (pcpus, caches, threads) in (6usize..20, 1usize..4, 1usize..4),
        vms in prop::collection::vec((1usize..20, 1u32..10_000), 3),
        pool in prop::option::of(0usize..5),
        (lends, home_slices) in (prop::bool::ANY, prop::bool::ANY),
        domain in prop::sample::select(QueueDomain::ALL),
        slice_ns in prop::option::of(prop_oneof![US..=200 * US, MS..=30 * MS]),
        pins in prop::collection::vec((prop::option::weighted(0.2, 0usize..20), prop::bool::weighted(0.2)), 3),
        balance in prop::option::of(balance()),
        limits in prop::collection::vec(prop::option::weighted(0.3, (MS..=100 * MS, MS..=50 * MS)), 3),
    ) -> SimulationConfig {
        let mut config = config;
        for (vm, limit) in config.vms.iter_mut().zip(limits) {
            vm.cpu_max = limit.map(|(quota_ns, period_ns)| CpuMax { quota_ns, period_ns });
        }
        if let Some(slice_ns) = slice_ns {
            with_slice(&mut config.scheduler, slice_ns);
        }
        config.host.llc_pcpus = pcpus.div_ceil(caches * threads) * threads;
        let pcpus = config.host.llc_pcpus * caches;
        (config.host.pcpus, config.host.smt_threads) = (pcpus, threads);
        for (vm, (vcpus, weight)) in config.vms.iter_mut().zip(vms) {
            (vm.vcpus, vm.weight) = (vcpus, weight);
        }
        for (vm, (thread, pinned)) in config.vms.iter_mut().zip(pins) {
            vm.workloads[0].pinned_vcpu = thread.map(|thread| thread % vm.vcpus);
            vm.kernel.balance = balance.clone();
            if pinned {
                (vm.pins, vm.affinity) = ((0..vm.vcpus).map(|vcpu| vcpu % pcpus).collect(), Vec::new());
            }
        }
        if let SchedulerKind::MicroSliced(micro) = &mut config.scheduler {
            if let Some(pcpus) = pool {
                micro.pool = PoolSize::Static { pcpus };
            }
            if let (Mechanics::Paper, NormalPoolKind::FairShare(normal)) = (micro.mechanics, &mut micro.normal) {
                (micro.lends, micro.home_slices) = (lends, home_slices);
                normal.domain = domain;
            }
        }
        config
    }
}

prop_compose! {
    /// The same, with turns that end in windows.
    fn delayed()(
        config in wide(),
        window_ns in US..2 * MS,
        (history, look) in (1u32..=16, 0u64..4),
        unsafe_where in prop::sample::select(DelayUnsafe::ALL),
        (kinds, kick_ns, halt_ns) in (prop::collection::vec(lock_kind(), 2), 0u64..5 * US, 0u64..20 * US),
        (hint_ns, safe_point_ns) in (0u32..2_000_000, prop::option::of(5 * US..50 * US)),
        (listed_percent, shown_count) in (0u8..=100, prop::sample::select(&ShownCount::WORDS[..])),
        holders in holders(),
    ) -> SimulationConfig {
        let mut config = config;
        if config.scheduler.shortest_turn_ns() < DelayPreemptionConfig::TURN_MIN_NS {
            with_slice(&mut config.scheduler, DelayPreemptionConfig::TURN_MIN_NS);
        }
        let window_ns = window_ns.min(config.scheduler.shortest_turn_ns());
        config.delay = Some(DelayPreemptionConfig {
            window_ns,
            history,
            unsafe_where,
            look_ns: if look == 0 { 0 } else { (window_ns * look / 10).max(US).min(window_ns) },
            safe_point_ns,
        });
        config.vms[0].kernel.preemption_hint_ns = hint_ns;
        config.vms[0].kernel.listed_holds_percent = listed_percent;
        config.vms[0].kernel.shown_count = shown_count.1;
        with_holders(&mut config, holders);
        (config.host.costs.kick_ns, config.host.costs.halt_ns) = (kick_ns, halt_ns);
        for (lock, kind) in config.vms[0].kernel.locks.iter_mut().zip(kinds) {
            // What is held around a shootdown stays a lock that sleeps.
            if !lock.kind.is_some_and(LockKind::sleeps) && !kind.sleeps() {
                lock.kind = Some(kind);
            }
        }
        config
    }
}

/// By what holders are known, and whether heirs are looked for.
fn holders() -> impl Strategy<Value = HolderRules> {
    (prop::sample::select(CriticalBy::ALL), any::<bool>()).prop_map(|(critical_by, heirs)| HolderRules {
        critical_by,
        heirs: heirs && critical_by != CriticalBy::Symbols,
    })
}

prop_compose! {
    /// The same as `furnished`, on a host that reads counters.
    fn counted()(config in furnished(), listed_percent in 0u8..=100, holders in holders()) -> SimulationConfig {
        let mut config = config;
        config.vms.iter_mut().for_each(|vm| vm.kernel.listed_holds_percent = listed_percent);
        with_holders(&mut config, holders);
        config
    }
}

/// Runs it under the checkers, with and without folding.
fn keeps_every_invariant(config: &SimulationConfig) -> Result<(), TestCaseError> {
    let report = simulate(config, &mut NoTrace).map_err(|error| TestCaseError::fail(error.to_string()))?;
    let busy = report.pcpus.guest_ns + report.pcpus.overhead_ns + report.pcpus.idle_ns;
    prop_assert_eq!(busy, report.measured_ns * config.host.pcpus as u64);
    prop_assert!(is_the_same_run(&report, &one_by_one(config)), "folding changes something");
    Ok(())
}

proptest! {
    // As many as PROPTEST_CASES says, if that is more.
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(300)))]

    #[test]
    fn no_fuzzed_scenario_breaks_an_invariant(config in fuzzed()) {
        keeps_every_invariant(&config)?;
    }

    #[test]
    fn no_fuzzed_scenario_with_networks_pipelines_and_affinities_breaks_an_invariant(config in furnished()) {
        keeps_every_invariant(&config)?;
    }

    #[test]
    fn no_fuzzed_scenario_with_turns_that_end_in_windows_breaks_an_invariant(config in delayed()) {
        keeps_every_invariant(&config)?;
    }

    #[test]
    fn no_fuzzed_scenario_on_a_host_that_reads_counters_breaks_an_invariant(config in counted()) {
        keeps_every_invariant(&config)?;
    }

    #[test]
    fn no_fuzzed_scenario_of_a_wide_host_with_unequal_vms_breaks_an_invariant(config in wide()) {
        keeps_every_invariant(&config)?;
    }
}
