//! Figures of a VM that `run` serves beside the kernel's own scheduler, too.

use crate::bpf::counters::add_up;
use crate::interface::VmStats;
use crate::output::holders::Stops;
use crate::output::words::names;
use microslice_metrics::{Histogram, Snapshot, figures};
use microslice_policy::{Cause, GuestClass, YieldCause};

/// Histograms of the BPF side have buckets of microseconds.
pub(crate) const US: u64 = 1_000;

/// Puts the figures that `run`, with each scheduler, and `run --scheduler beside` count of a VM.
pub(crate) fn put_vm(snapshot: &mut Snapshot, vm: &str, vcpu_count: u32, stats: &VmStats) {
    snapshot.gauge(&figures::VCPUS, &[vm], f64::from(vcpu_count));
    snapshot.counter(&figures::CPU_TIME, &[vm], stats.ran_ns);
    snapshot.counter(&figures::READY_TIME, &[vm], stats.waited_ns);
    let waits = Histogram::from_log2_of(US, &stats.wait_to_run_us, stats.waited_ns);
    snapshot.histogram(&figures::WAIT_TO_RUN, &[vm], waits);
    for (class, count) in names::<GuestClass>().zip(stats.preemptions).filter(|(_, count)| *count > 0) {
        snapshot.counter(&figures::PREEMPTIONS, &[vm, class], count);
    }
    Stops::of(stats).put(snapshot, vm);
}

/// Puts a VM's yields and interrupts, which hint at the vCPU that it waits for. `coordinated` hears of fewer.
pub(crate) fn put_hints(snapshot: &mut Snapshot, vm: &str, stats: &VmStats) {
    for (cause, by_reason) in names::<YieldCause>().zip(&stats.yields) {
        snapshot.counter(&figures::YIELDS, &[vm, cause], add_up(by_reason));
    }
    snapshot.counter(&figures::IPIS, &[vm], stats.ipis());
    snapshot.counter(&figures::VIRQS, &[vm], stats.virqs());
}

/// Puts requests by cause, and accelerations by class and cause.
pub(crate) fn put_causes<const CLASSES: usize>(
    snapshot: &mut Snapshot,
    requests: &[u64],
    accelerations: &[[u64; CLASSES]],
) {
    let some_cause = || names::<Cause>().enumerate().skip(1);
    for (at, cause) in some_cause() {
        snapshot.counter(&figures::ACCELERATION_REQUESTS, &[cause], requests[at]);
    }
    for (at, cause) in some_cause() {
        let by_class = names::<GuestClass>().zip(accelerations[at]);
        for (class, count) in by_class.filter(|(_, count)| *count > 0) {
            snapshot.counter(&figures::ACCELERATIONS, &[class, cause], count);
        }
    }
}
