//! A run's report as the figures that real and simulated runs share.

use microslice_engine::report::{Holdouts, RunReport, VmReport};
use microslice_metrics::{Histogram, Snapshot, figures};
use microslice_policy::Coded;

/// All figures of a run, in the order of `microslice_metrics::figures`.
pub fn snapshot_of(report: &RunReport) -> Snapshot {
    let mut snapshot = Snapshot::new();
    for vm in &report.vms {
        put_results(&mut snapshot, vm);
    }
    put_shares(&mut snapshot, report);
    put_pool(&mut snapshot, report);
    for vm in &report.vms {
        put_causes(&mut snapshot, vm);
    }
    put_host(&mut snapshot, report);
    snapshot
}

fn put_results(snapshot: &mut Snapshot, vm: &VmReport) {
    for workload in &vm.workloads {
        let labels = [vm.name.as_str(), workload.name.as_str()];
        if let Some(seconds) = workload.execution_time_s {
            snapshot.gauge(&figures::EXECUTION_TIME, &labels, seconds * 1e9);
        }
        snapshot.gauge(&figures::THROUGHPUT, &labels, workload.units_per_s);
    }
    if let Some(network) = &vm.network {
        let labels = [vm.name.as_str(), "nic"];
        snapshot.gauge(&figures::BANDWIDTH, &labels, network.throughput_mbps * 1e6);
        snapshot.gauge(&figures::JITTER, &labels, network.jitter_ms * 1e6);
        snapshot.counter(&figures::PACKETS_DROPPED, &labels, network.dropped);
    }
}

fn put_shares(snapshot: &mut Snapshot, report: &RunReport) {
    let capacity_ns = report.pcpus.guest_ns + report.pcpus.overhead_ns + report.pcpus.idle_ns;
    for vm in &report.vms {
        snapshot.counter(&figures::CPU_TIME, &[&vm.name], vm.run_ns);
        let share = vm.run_ns as f64 / capacity_ns.max(1) as f64;
        snapshot.gauge(&figures::SHARE_RECEIVED, &[&vm.name], share);
        let due = vm.due_ns as f64 / capacity_ns.max(1) as f64;
        snapshot.gauge(&figures::SHARE_DUE, &[&vm.name], due);
    }
    snapshot.gauge(&figures::FAIRNESS_ERROR, &[], report.fairness_error_permille as f64 / 1000.0);
}

fn put_pool(snapshot: &mut Snapshot, report: &RunReport) {
    let pool = &report.pool;
    for (cause, count) in pool.requests().filter(|&(_, count)| count > 0) {
        snapshot.counter(&figures::ACCELERATION_REQUESTS, &[cause.name()], count);
    }
    for (class, cause, count) in pool.accelerations().filter(|&(_, _, count)| count > 0) {
        snapshot.counter(&figures::ACCELERATIONS, &[class.name(), cause.name()], count);
    }
    for (reason, count) in pool.failed_pulls().filter(|&(_, count)| count > 0) {
        snapshot.counter(&figures::FAILED_PULLS, &[reason.name()], count);
    }
    if pool.acceleration_count() > 0 {
        snapshot.counter(&figures::ACCELERATION_RETURNS, &["any"], pool.returns);
        snapshot.gauge(&figures::STILL_ACCELERATED, &[], pool.still_accelerated as f64);
        snapshot.histogram(&figures::MICRO_SLICE, &[], pool.micro_slices.clone());
    }
    for (figure, count) in [
        (&figures::GRACES, pool.graces),
        (&figures::ASKED_AGAIN, pool.asked_again),
        (&figures::HOME_SLICES, pool.home_slices),
        (&figures::CALLED_BACK, pool.called_back),
    ] {
        if count > 0 {
            snapshot.counter(figure, &[], count);
        }
    }
    for (reason, count) in ["directed_yield", "warm_caches"].into_iter().zip(pool.overtakes) {
        if count > 0 {
            snapshot.counter(&figures::OVERTAKES, &[reason], count);
        }
    }
    let sizes = pool.sizes.iter().map(|(time_ns, size)| (*time_ns, f64::from(*size))).collect();
    snapshot.series(&figures::MICRO_POOL_SIZE, &[], sizes);
    // The first entry is the size when measuring began.
    let resizes = pool.sizes.len().saturating_sub(1) as u64;
    if resizes > 0 {
        snapshot.counter(&figures::POOL_RESIZES, &["any"], resizes);
    }
    snapshot.gauge(&figures::MICRO_POOL_MEAN, &[], pool.mean_micro_pcpus);
}

fn put_causes(snapshot: &mut Snapshot, vm: &VmReport) {
    let name = vm.name.as_str();
    for (cause, count) in [("ple", vm.yields.ple), ("ipi_wait", vm.yields.ipi), ("hlt", vm.yields.halt)] {
        snapshot.counter(&figures::YIELDS, &[name, cause], count);
    }
    for (class, count) in &vm.preemptions_by_class {
        snapshot.counter(&figures::PREEMPTIONS, &[name, class.name()], *count);
    }
    for (lock, waits) in vm.lock_waits.iter().filter(|(_, waits)| waits.count() > 0) {
        snapshot.histogram(&figures::LOCK_WAIT, &[name, lock], waits.clone());
    }
    if vm.tlb_sync.count() > 0 {
        snapshot.histogram(&figures::SHOOTDOWN_WAIT, &[name], vm.tlb_sync.clone());
    }
    if let Some(grace) = &vm.grace_periods {
        snapshot.histogram(&figures::GRACE_PERIOD, &[name], grace.lengths.clone());
        let Holdouts { reading, in_user_mode, elsewhere } = grace.holdouts;
        for (place, count) in [("reading", reading), ("user", in_user_mode), ("elsewhere", elsewhere)] {
            snapshot.counter(&figures::GRACE_HOLDOUTS, &[name, place], count);
        }
    }
    if vm.waits.count() > 0 {
        snapshot.histogram(&figures::WAIT_TO_RUN, &[name], vm.waits.clone());
    }
    if vm.wake_waits.count() > 0 {
        snapshot.histogram(&figures::WAKE_WAIT, &[name], vm.wake_waits.clone());
    }
    if let Some(throttled_ns) = vm.throttled_ns {
        snapshot.counter(&figures::THROTTLED_TIME, &[name], throttled_ns);
    }
    if let Some(late_waits) = vm.late_waits {
        snapshot.counter(&figures::LATE_WAITS, &[name], late_waits);
    }
    snapshot.gauge(&figures::SKEW_TIME, &[name], vm.skew_ns as f64);
    let mut longest_waits = Histogram::new();
    vm.longest_waits.iter().for_each(|&wait_ns| longest_waits.record(wait_ns));
    snapshot.histogram(&figures::LONGEST_WAIT, &[name], longest_waits);
    if vm.timer_lateness.count() > 0 {
        snapshot.histogram(&figures::TIMER_LATENESS, &[name], vm.timer_lateness.clone());
    }
    snapshot.counter(&figures::IPIS, &[name], vm.ipis_sent);
    if let Some(network) = &vm.network {
        snapshot.counter(&figures::VIRQS, &[name], network.irq_latency.count());
        snapshot.histogram(&figures::VIRQ_DELAY, &[name], network.irq_latency.clone());
    }
}

fn put_host(snapshot: &mut Snapshot, report: &RunReport) {
    snapshot.histogram(&figures::WAIT_TO_RUN, &["all"], report.wait_to_run.clone());
    let switches = report.vms.iter().map(|vm| vm.context_switches).sum();
    snapshot.counter(&figures::CONTEXT_SWITCHES, &[], switches);
    let pcpus = &report.pcpus;
    for (state, ns) in [("run", pcpus.guest_ns), ("overhead", pcpus.overhead_ns), ("idle", pcpus.idle_ns)] {
        snapshot.counter(&figures::PCPU_TIME, &[state], ns);
    }
    let total_ns = pcpus.guest_ns + pcpus.overhead_ns + pcpus.idle_ns;
    snapshot.counter(&figures::PCPU_TIME_TOTAL, &[], total_ns);
    if let Some(locks) = &report.queue_locks {
        snapshot.counter(&figures::QUEUE_OPERATIONS, &[], locks.operations);
        snapshot.counter(&figures::QUEUE_LOCK_TIME, &["held"], locks.held_ns);
        snapshot.counter(&figures::QUEUE_LOCK_TIME, &["waited"], locks.waited_ns);
        snapshot.gauge(&figures::QUEUE_LOCK_LONGEST_WAIT, &[], locks.longest_wait_ns as f64);
    }
    snapshot.counter(&figures::EVENTS, &[], report.events);
}
