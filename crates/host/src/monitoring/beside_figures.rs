//! A report of `run --beside` as the figures that real and simulated runs share: a boost is an acceleration.

use super::{labels, run_figures};
use crate::beside::report::{Report, failed_pulls};
use crate::interface::BoostStats;
use crate::report::{add_up, names};
use microslice_metrics::{Histogram, Snapshot, figures};
use microslice_policy::MicroSliceOutcome;

pub(super) fn of(report: &Report) -> Snapshot {
    let mut snapshot = Snapshot::new();
    let labels = labels::of_vms(report.vms.iter().map(|vm| (vm.name.as_str(), vm.pid)));
    for (vm, label) in report.vms.iter().zip(&labels) {
        run_figures::put_vm(&mut snapshot, label, vm.vcpu_count, &vm.stats);
        run_figures::put_hints(&mut snapshot, label, &vm.stats);
    }
    put_boosts(&mut snapshot, &report.total().1);
    snapshot.counter(&figures::PROGRAM_RUNS_LEFT_OUT, &[], report.recursion_misses.total());
    snapshot
}

fn put_boosts(snapshot: &mut Snapshot, total: &BoostStats) {
    run_figures::put_causes(snapshot, &total.requests, &total.boosts);
    for (reason, count) in failed_pulls(total) {
        snapshot.counter(&figures::FAILED_PULLS, &[reason], count);
    }
    let boosts: u64 = total.boosts.iter().map(|row| add_up(row)).sum();
    let lost = add_up(&total.refusals) + add_up(&total.missed);
    let pending = add_up(&total.requests).saturating_sub(boosts + lost);
    snapshot.gauge(&figures::PENDING_REQUESTS, &[], pending as f64);
    for (reason, count) in names::<MicroSliceOutcome>().zip(total.ends) {
        snapshot.counter(&figures::ACCELERATION_RETURNS, &[reason], count);
    }
    snapshot.gauge(&figures::STILL_ACCELERATED, &[], boosts.saturating_sub(add_up(&total.ends)) as f64);
    snapshot.histogram(
        &figures::MICRO_SLICE,
        &[],
        Histogram::from_log2_of(run_figures::US, &total.slice_us, total.ran_ns),
    );
}
