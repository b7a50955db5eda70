//! Reports as the daemons make them, with something in every figure, which grows.

use microslice_host::beside::report as beside;
use microslice_host::bpf::hooks::Hooks;
use microslice_host::bpf::recursion_misses::RecursionMisses;
use microslice_host::interface::{
    AccelerationReturn, BoostStats, HostStats, LongWait, Overtake, RequestFailure, VmStats, WaitStats,
};
use microslice_host::machine::cgroups::CpuLimits;
use microslice_host::observe::{HelperTimes, LongWaits, Stalls, VcpuFigures, VmFigures, report as observe};
use microslice_host::output::holders::Stops;
use microslice_host::output::monitoring::Reading;
use microslice_host::run::RunReading;
use microslice_host::run::report::{Report, VmReport};
use microslice_host::settings::SchedulerChoice;
use microslice_policy::{BoostDecision, Cause, Coded, GuestClass, Held, InterruptKind, YieldCause};
use serde_json::Value;
use std::sync::Arc;
use zerocopy::FromZeros;

const S: u64 = 1_000_000_000;

/// After so many seconds: two VMs, one of which waits.
fn run_report(seconds: u64) -> Report {
    let vm = |name: &str, factor: u64| {
        let mut stats = VmStats::new_zeroed();
        let grown = seconds * factor;
        stats.ran_ns = grown * S;
        stats.vmm_ran_ns = grown * S / 10;
        stats.waited_ns = grown * S / 4;
        stats.rested_ns = grown * S / 8;
        stats.micro_ran_ns = grown * S / 16;
        stats.lent_ran_ns = grown * S / 16;
        stats.requests[Cause::TlbYield as usize] = grown * 10;
        stats.accelerations[Cause::TlbYield as usize][GuestClass::TlbShootdown as usize] = grown * 6;
        stats.failures[RequestFailure::NoRoom as usize] = grown * 3;
        stats.returns[AccelerationReturn::Served as usize] = grown * 5;
        stats.overtakes[Overtake::WarmCaches as usize] = grown;
        stats.yields[YieldCause::Ple as usize][0] = grown * 100;
        stats.preemptions[GuestClass::LockHolder as usize] = grown * 7;
        stats.stops[Held::Preemption as usize][GuestClass::LockHolder as usize] = grown * 7;
        stats.interrupts[InterruptKind::IpiReschedule as usize][0] = grown * 50;
        stats.interrupts[InterruptKind::Virq as usize][0] = grown * 20;
        (stats.wait_to_run_us[12], stats.wait_to_run_us[3]) = (grown * 5, grown * 40);
        stats.micro_slice_us[6] = grown * 6;
        VmReport {
            name: name.into(),
            uuid: None,
            pid: 1,
            vcpu_count: 4,
            weight: 100,
            cpu_limits: CpuLimits::default(),
            kernel: None,
            slide: None,
            state: String::new(),
            bound_ns: Some(10_000_000),
            stats,
        }
    };
    Report {
        scheduler: SchedulerChoice::Microslice,
        is_final: true,
        dry_run: false,
        seconds: seconds as f64,
        micro_cpus: 1,
        vms: vec![vm("web", 3), vm("a \"quoted\" \\ name", 1)],
        gone: VmStats::new_zeroed(),
        host: HostStats::new_zeroed(),
        restarts: 1,
        pool_size_history: Vec::new(),
        micro_pcpu_ns: seconds * S,
        exit: None,
        recursion_misses: [("kick".to_owned(), seconds)].into_iter().collect(),
        programs: None,
    }
}

fn beside_report(seconds: u64) -> beside::Report {
    let of_run = run_report(seconds);
    let mut boosts = BoostStats::new_zeroed();
    boosts.requests[Cause::TlbYield as usize] = seconds * 10;
    boosts.boosts[Cause::TlbYield as usize][GuestClass::TlbShootdown as usize] = seconds * 6;
    boosts.refusals[BoostDecision::OverBudget as usize] = seconds * 3;
    boosts.ends[0] = seconds * 5;
    boosts.slice_us[6] = seconds * 6;
    let vm = |vm: VmReport| beside::VmBoosts {
        name: vm.name,
        uuid: None,
        pid: vm.pid,
        generation: 1,
        vcpu_count: vm.vcpu_count,
        kernel: None,
        slide: None,
        state: String::new(),
        stats: vm.stats,
        boosts,
        bound_ns: Some(10_000_000),
    };
    beside::Report {
        is_final: true,
        dry_run: false,
        seconds: of_run.seconds,
        vms: of_run.vms.into_iter().map(vm).collect(),
        gone: (VmStats::new_zeroed(), BoostStats::new_zeroed()),
        helped: beside::Helped::default(),
        watchers_replaced: 0,
        hooks: Hooks::default(),
        recursion_misses: RecursionMisses::default(),
        paid_back: None,
    }
}

pub fn observe_report(seconds: u64) -> observe::Report {
    let mut waits = WaitStats::new_zeroed();
    (waits.counts[40], waits.total_ns, waits.max_ns) = (seconds * 30, seconds * S / 8, 4_000_000);
    let counts = |of: &[(GuestClass, u64)]| {
        let mut counts = [0; GuestClass::ALL.len()];
        of.iter().for_each(|&(class, count)| counts[class as usize] = count);
        counts
    };
    let vcpu = |id: u32| VcpuFigures {
        id,
        tid: 4242 + id,
        observed_ns: seconds * S,
        ran_ns: seconds * S / 2,
        ready_ns: seconds * S / 8,
        waiting_ns: 0,
        waits,
        longest: LongWait::new_zeroed(),
        turns_ended: counts(&[(GuestClass::User, seconds * 9), (GuestClass::TlbShootdown, seconds * 2)]),
        turns_ended_owing: seconds,
        spins: counts(&[(GuestClass::LockWaiter, seconds * 12)]),
        halts: seconds * 4,
        lock_halts: seconds,
        directed_yields: 0,
        steal_ns: Some(seconds * S / 9),
    };
    let figures = VmFigures {
        stops: Stops::default(),
        vcpus: vec![vcpu(0), vcpu(1)],
        interrupts: [seconds * 11; InterruptKind::ALL.len()],
        interrupt_waits: [waits; InterruptKind::ALL.len()],
        shootdowns: waits,
        stalls: Stalls { throttled_ns: seconds * S / 16, ..Stalls::default() },
        long_waits: LongWaits::default(),
        helpers: HelperTimes::default(),
    };
    let vm = observe::VmReport {
        name: "db-server".into(),
        uuid: None,
        pid: 7,
        slot: 0,
        generation: 1,
        kernel: None,
        state: "no kernel found".into(),
        has_classes: true,
        is_gone: false,
        weight: 100,
        affinity: vec![],
        missed: Vec::new(),
        figures,
    };
    observe::Report {
        is_final: false,
        seconds: seconds as f64,
        vms: vec![vm],
        hooks: Hooks::default(),
        recursion_misses: RecursionMisses::default(),
        programs: None,
        host: None,
        nodes: Vec::new(),
    }
}

/// What a mode knows, as it is served and as it is printed.
pub struct Known {
    pub served: Arc<dyn Reading>,
    pub printed: Value,
}

/// Returns what each mode knows: `run`, `observe`, `run` with its other scheduler, and `run --scheduler
/// beside`.
pub fn readings(seconds: u64) -> [Known; 4] {
    let run = |scheduler| {
        let report = Report { scheduler, ..run_report(seconds) };
        let (shares, vcpus) = (vec![(0.75, 0.7), (0.25, 0.3)], vec![Vec::new(); 2]);
        Known { printed: report.to_json(), served: Arc::new(RunReading { report, shares, vcpus }) }
    };
    let (observed, boosted) = (observe_report(seconds), beside_report(seconds));
    [
        run(SchedulerChoice::Microslice),
        Known { printed: observed.to_json(), served: Arc::new(observed) },
        run(SchedulerChoice::Coordinated),
        Known { printed: boosted.to_json(), served: Arc::new(boosted) },
    ]
}
