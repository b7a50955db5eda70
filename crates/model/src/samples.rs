//! A host and schedulers with ordinary parameters, for tests that need some but whose verdict doesn't depend
//! on a scenario.

use crate::config::{
    BesideConfig, BoostCosts, CfsConfig, Coordination, CostModel, CreditConfig, Duration, EevdfConfig,
    FairSharePool, GuestKernelConfig, HolderRules, HostConfig, InterruptMode, KernelFeatures, KvmConfig,
    LockKind, MS, Mechanics, MicroSlicedConfig, NormalPoolKind, Phase, PleConfig, PoolSize, Preempt,
    ReschedCo, SchedulerKind, ShownCount, SimulationConfig, SymbolTable, ThreadScheduler, US, VmConfig,
    VmKnobs, WorkloadConfig,
};

use microslice_policy::coordinated::BalanceScheme;

/// Twelve hardware threads of six cores, with Xen's costs.
pub fn host() -> HostConfig {
    HostConfig {
        pcpus: 12,
        llc_pcpus: 0,
        node_pcpus: 0,
        smt_threads: 2,
        smt_busy_speed_permille: 700,
        smt_spin_speed_permille: 850,
        costs: CostModel {
            context_switch_ns: 2 * US,
            exit_ns: 500,
            ipi_send_ns: 3_200,
            ipi_delivery_ns: 2 * US,
            interrupt_entry_ns: 2 * US,
            cache_refill_max_ns: 150 * US,
            cache_displace_ns: 2 * MS,
            llc_migration_ns: 0,
            node_migration_ns: 0,
            kick_ns: 0,
            halt_ns: 0,
            waiter_line_ns: 0,
        },
        queue_locks: None,
        boosts: BoostCosts {
            latency: Duration::LogNormal { median_ns: 24 * US, sigma_permille: 340 },
            give_back_ns: 10 * US,
            helper_ns: 10 * US,
        },
        preempt: Preempt::Full,
        ple: PleConfig::CONSTANT,
        kvm: None,
    }
}

/// KVM without halt polling, on a processor whose IPIs all exit.
pub fn kvm() -> KvmConfig {
    KvmConfig {
        yield_to_ns: 400,
        exit_jitter_ns: 0,
        halt_poll_ns: 0,
        interrupts: InterruptMode::Software,
        devices_post: false,
        icr_write_ns: 0,
    }
}

pub fn credit() -> CreditConfig {
    CreditConfig {
        slice_ns: 30 * MS,
        tick_ns: 10 * MS,
        ratelimit_ns: MS,
        boost: true,
        ratelimit_yields: true,
    }
}

pub fn fair_share() -> FairSharePool {
    FairSharePool { slice_ns: 10 * MS, tick_ns: 4 * MS, domain: FairSharePool::DOMAIN }
}

/// One micro pCPU beside a normal pool of the credit scheduler, after the paper.
pub fn micro() -> MicroSlicedConfig {
    MicroSlicedConfig {
        normal: NormalPoolKind::Credit(credit()),
        micro_slice_ns: 100 * US,
        pool: PoolSize::Static { pcpus: 1 },
        mechanics: Mechanics::Paper,
        paper_rules: false,
        grace: 10,
        call_function_ipi: true,
        patience_ns: MS,
        lends: false,
        home_slices: false,
        max_wait_ns: 0,
        max_wait_each_ns: 0,
        holders: HolderRules::PAPER,
    }
}

/// The project's scheduler with one micro pCPU.
pub fn microslice() -> MicroSlicedConfig {
    MicroSlicedConfig {
        normal: NormalPoolKind::FairShare(fair_share()),
        lends: true,
        home_slices: true,
        ..micro()
    }
}

/// EEVDF without groups.
pub fn eevdf_flat() -> EevdfConfig {
    EevdfConfig {
        base_slice_ns: 3 * MS,
        tick_ns: 4 * MS,
        directed_yield: true,
        groups: false,
        ipi_aware: false,
        boosts_woken: true,
    }
}

/// EEVDF with a group per VM.
pub fn eevdf() -> EevdfConfig {
    EevdfConfig { base_slice_ns: 2_800 * US, groups: true, ..eevdf_flat() }
}

pub fn beside() -> BesideConfig {
    BesideConfig {
        eevdf: eevdf_flat(),
        micro_slice_ns: 100 * US,
        paper_rules: false,
        grace: 10,
        call_function_ipi: true,
        boost_percent: 1,
        host_percent: 5,
        max_wait_ns: 0,
        max_wait_each_ns: 0,
        woken: false,
        pay_back: false,
        holders: HolderRules::PAPER,
    }
}

/// CFS without coordinated scheduling.
pub fn cfs() -> CfsConfig {
    CfsConfig {
        latency_ns: 24 * MS,
        min_granularity_ns: 3 * MS,
        wakeup_granularity_ns: 4 * MS,
        tick_ns: 4 * MS,
        coordination: Coordination {
            balance: BalanceScheme::None,
            resched_dp: false,
            tlb_co: false,
            resched_co: ReschedCo::Off,
            early_dp: false,
            tlb_spin: false,
            delay_ns: 500 * US,
            urgent_slice_ns: 500 * US,
            urgent_allowance_ns: 18 * MS,
        },
    }
}

/// A run of 100 ms, with the checkers on: two VMs of two vCPUs on two pCPUs, whose programs only compute.
pub fn simulation(scheduler: SchedulerKind) -> SimulationConfig {
    SimulationConfig {
        seed: 1,
        warmup_ns: 50 * MS,
        duration_ns: 100 * MS,
        host: HostConfig { pcpus: 2, smt_threads: 1, ..host() },
        vms: ["target", "other"].map(vm).into(),
        cgroups: Vec::new(),
        channels: Vec::new(),
        scheduler,
        delay: None,
        check: true,
        guest_times: false,
        fold_exits: true,
    }
}

fn vm(name: &str) -> VmConfig {
    VmConfig {
        name: name.into(),
        vcpus: 2,
        weight: 256,
        cgroup: None,
        affinity: Vec::new(),
        are_tasks: false,
        pins: Vec::new(),
        cpu_max: None,
        max_wait_ns: None,
        kernel: kernel(),
        workloads: vec![workload()],
        nic: None,
        knobs: VmKnobs::default(),
    }
}

/// Linux 4.4 with paravirtual locks.
fn kernel() -> GuestKernelConfig {
    GuestKernelConfig {
        symbols: SymbolTable::Linux44,
        lock_kind: LockKind::PvTicket,
        pv_spin_ns: 300 * US,
        yield_spin_ns: GuestKernelConfig::YIELD_SPIN_NS,
        balance: None,
        tick_hz: 250,
        thread_scheduler: ThreadScheduler::Fifo,
        features: KernelFeatures::default(),
        thread_slice_ns: 6 * MS,
        pv_tlb_flush: false,
        pv_ipi_yield: false,
        wait_lists: None,
        readers: false,
        flat_ipi: false,
        listed_holds_percent: 100,
        shown_count: ShownCount::Honest,
        preemption_hint_ns: 0,
        user_hint_ns: 0,
        call_function_handler_ns: US,
        reschedule_handler_ns: US,
        tick_handler_ns: 2 * US,
        thread_switch_ns: US,
        locks: Vec::new(),
    }
}

/// Two threads that compute.
fn workload() -> WorkloadConfig {
    WorkloadConfig {
        name: "compute".into(),
        threads: 2,
        pinned_vcpu: None,
        shared_address_space: true,
        process: None,
        program: vec![
            Phase::Compute { duration: Duration::Exponential { mean_ns: 100 * US } },
            Phase::Progress { units: 1 },
        ],
        run_units: 0,
        run_time_ns: 0,
        unit: "steps".into(),
        cache_sensitive_permille: 1_000,
    }
}
