//! What `run --scheduler beside` serves by `--metrics-listen`: a boost is an acceleration.

use crate::beside::report::{Report, failed_pulls};
use crate::bpf::counters::add_up;
use crate::interface::BoostStats;
use crate::output::monitoring::vm_figures::{US, put_causes, put_hints, put_vm};
use crate::output::monitoring::{Reading, View, VmView, labels, view};
use crate::output::words::names;
use microslice_metrics::{Histogram, Snapshot, figures};
use microslice_policy::{Cause, MicroSliceOutcome};

impl Reading for Report {
    fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::new();
        let labels = labels::of_vms(self.vms.iter().map(|vm| (vm.name.as_str(), vm.pid)));
        for (vm, label) in self.vms.iter().zip(&labels) {
            put_vm(&mut snapshot, label, vm.vcpu_count, &vm.stats);
            put_hints(&mut snapshot, label, &vm.stats);
            snapshot.counter(&figures::LATE_WAITS, &[label], vm.boosts.late_waits);
            if let Some(bound_ns) = vm.bound_ns {
                snapshot.gauge(&figures::WAIT_BOUND, &[label], bound_ns as f64);
            }
        }
        put_boosts(&mut snapshot, &self.total().1);
        snapshot.counter(&figures::PROGRAM_RUNS_LEFT_OUT, &[], self.recursion_misses.total());
        snapshot
    }

    fn view(&self) -> View {
        let vms = self.vms.iter().map(|vm| VmView {
            name: vm.name.clone(),
            pid: vm.pid,
            guest: view::guest(vm.kernel.as_ref(), &vm.state),
            vcpu_count: vm.vcpu_count,
            bound_ns: vm.bound_ns,
            ..view::counted(&vm.stats, add_up(&view::sums(&vm.boosts.boosts)))
        });
        View {
            source: "beside".into(),
            seconds: self.seconds,
            vms: vms.collect(),
            pool: None,
            accelerations: Some(view::by_word(names::<Cause>(), &view::sums(&self.total().1.boosts))),
        }
    }
}

fn put_boosts(snapshot: &mut Snapshot, total: &BoostStats) {
    put_causes(snapshot, &total.requests, &total.boosts);
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
        Histogram::from_log2_of(US, &total.slice_us, total.ran_ns),
    );
}
