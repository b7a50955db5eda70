//! A report of `observe` as the figures that real and simulated runs share. VMs that have gone are left out:
//! monitoring keeps them.

use super::labels;
use crate::observe::VmFigures;
use crate::observe::report::{Report, VmReport};
use crate::report::{add_up, names};
use microslice_metrics::{Snapshot, figures};
use microslice_policy::GuestClass;

pub(super) fn of(report: &Report) -> Snapshot {
    let mut snapshot = Snapshot::new();
    let present: Vec<&VmReport> = report.vms.iter().filter(|vm| !vm.is_gone).collect();
    let labels = labels::of_vms(present.iter().map(|vm| (vm.name.as_str(), vm.pid)));
    for (vm, label) in present.iter().zip(&labels) {
        put_vm(&mut snapshot, label, &vm.figures, report.sees_interrupts);
    }
    snapshot.counter(&figures::PROGRAM_RUNS_LEFT_OUT, &[], report.recursion_misses.total());
    snapshot
}

fn put_vm(snapshot: &mut Snapshot, vm: &str, seen: &VmFigures, sees_interrupts: bool) {
    snapshot.gauge(&figures::VCPUS, &[vm], seen.vcpus.len() as f64);
    snapshot.counter(&figures::CPU_TIME, &[vm], seen.total(|vcpu| vcpu.ran_ns));
    snapshot.counter(&figures::READY_TIME, &[vm], seen.total(|vcpu| vcpu.ready_ns));
    if seen.vcpus.iter().any(|vcpu| vcpu.steal_ns.is_some()) {
        let steal_ns = seen.total(|vcpu| vcpu.steal_ns.unwrap_or(0));
        snapshot.counter(&figures::STEAL_TIME, &[vm], steal_ns);
    }
    snapshot.histogram(&figures::WAIT_TO_RUN, &[vm], seen.waits().histogram());
    snapshot.counter(&figures::YIELDS, &[vm, "ple"], add_up(&seen.spins()));
    snapshot.counter(&figures::YIELDS, &[vm, "hlt"], seen.total(|vcpu| vcpu.halts));
    snapshot.counter(&figures::LOCK_HALTS, &[vm], seen.total(|vcpu| vcpu.lock_halts));
    for (class, count) in names::<GuestClass>().zip(seen.turns_ended()).filter(|(_, count)| *count > 0) {
        snapshot.counter(&figures::PREEMPTIONS, &[vm, class], count);
    }
    snapshot.counter(&figures::ANSWERS_OWED, &[vm], seen.total(|vcpu| vcpu.turns_ended_owing));
    if sees_interrupts {
        snapshot.counter(&figures::IPIS, &[vm], seen.ipis());
        snapshot.counter(&figures::VIRQS, &[vm], seen.virqs());
        snapshot.histogram(&figures::PREEMPTED_SHOOTDOWN_WAIT, &[vm], seen.shootdowns.histogram());
        snapshot.histogram(&figures::INTERRUPT_WAIT, &[vm], seen.sent_interrupt_waits().histogram());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::report::tests::report;
    use microslice_metrics::Value;

    #[test]
    fn what_was_seen_of_a_vm_has_its_label() {
        let snapshot = of(&report(true));
        assert_eq!(snapshot.get(&figures::READY_TIME, &["<web>"]), Some(&Value::Counter(140_000_000)));
        assert_eq!(snapshot.get(&figures::PREEMPTIONS, &["<web>", "lock_holder"]), Some(&Value::Counter(10)));
        let waits = snapshot.get(&figures::PREEMPTED_SHOOTDOWN_WAIT, &["<web>"]);
        let Some(Value::Histogram(waits)) = waits else { panic!("{waits:?}") };
        assert_eq!((waits.count(), waits.sum()), (212, 106 * 9_000_000), "the sum is the kernel side's");
        assert_eq!(snapshot.of(&figures::STEAL_TIME).count(), 0, "its guest hasn't asked");
    }

    #[test]
    fn what_this_kernel_does_not_show_and_vms_that_have_gone_are_left_out() {
        let mut report = report(true);
        report.sees_interrupts = false;
        assert_eq!(of(&report).of(&figures::IPIS).count(), 0);
        report.vms[0].is_gone = true;
        assert_eq!(of(&report).of(&figures::CPU_TIME).count(), 0);
    }

    /// What monitoring stores of each VM is bounded, whatever its guest does: docs/how-to/monitor.md says
    /// how.
    #[test]
    fn a_vm_has_a_bounded_number_of_time_series() {
        let mut report = report(true);
        let vcpu = &mut report.vms[0].figures.vcpus[0];
        (vcpu.turns_ended, vcpu.steal_ns) = ([1; 9], Some(1));
        let text = microslice_metrics::openmetrics::of_snapshot(&of(&report));
        let lines = text.lines().filter(|line| !line.starts_with('#') && line.contains("vm="));
        assert_eq!(lines.count(), 67);
    }
}
