//! What `observe` serves by `--metrics-listen`. VMs that have gone are left out: monitoring keeps them.

use crate::bpf::counters::add_up;
use crate::bpf::hooks::Hooks;
use crate::observe::report::{Report, VmReport};
use crate::observe::{LongestWait, VcpuFigures, VmFigures};
use crate::output::monitoring::{Reading, VcpuTimes, VcpuView, View, VmView, Waits, labels, view};
use crate::output::words::names;
use microslice_metrics::{Snapshot, figures};
use microslice_policy::GuestClass;

impl Reading for Report {
    fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::new();
        let present: Vec<&VmReport> = self.vms.iter().filter(|vm| !vm.is_gone).collect();
        let labels = labels::of_vms(present.iter().map(|vm| (vm.name.as_str(), vm.pid)));
        for (vm, label) in present.iter().zip(&labels) {
            put_vm(&mut snapshot, label, &vm.figures, &self.hooks);
        }
        snapshot.counter(&figures::PROGRAM_RUNS_LEFT_OUT, &[], self.recursion_misses.total());
        snapshot
    }

    fn view(&self) -> View {
        let present = self.vms.iter().filter(|vm| !vm.is_gone);
        let vms = present.map(|vm| VmView {
            name: vm.name.clone(),
            pid: vm.pid,
            guest: view::guest(vm.kernel.as_ref(), &vm.state),
            vcpu_count: vm.figures.vcpus.len() as u32,
            ran_ns: vm.figures.total(|vcpu| vcpu.ran_ns),
            ready_ns: vm.figures.total(|vcpu| vcpu.ready_ns),
            waits: Waits::of(&vm.figures.waits().histogram()),
            preemptions: view::by_word(names::<GuestClass>(), &vm.figures.turns_ended()),
            holding: vm.figures.stops.shown(),
            longest_wait: vm.figures.long_waits.longest().map(LongestWait::view),
            longest_wait_lately: vm.figures.long_waits.lately().as_ref().map(LongestWait::view),
            vcpus: vm.figures.vcpus.iter().map(vcpu_view).collect(),
            ..VmView::default()
        });
        let vms = vms.collect();
        View { source: "observe".into(), seconds: self.seconds, vms, ..View::default() }
    }
}

fn vcpu_view(vcpu: &VcpuFigures) -> VcpuView {
    let waits = Waits::of(&vcpu.waits.histogram());
    VcpuView {
        id: vcpu.id,
        tid: vcpu.tid,
        times: Some(VcpuTimes { ran_ns: vcpu.ran_ns, ready_ns: vcpu.ready_ns, waits }),
        stopped_in: None,
        preemptions: view::by_word(names::<GuestClass>(), &vcpu.turns_ended),
    }
}

fn put_vm(snapshot: &mut Snapshot, vm: &str, seen: &VmFigures, hooks: &Hooks) {
    snapshot.gauge(&figures::VCPUS, &[vm], seen.vcpus.len() as f64);
    snapshot.counter(&figures::CPU_TIME, &[vm], seen.total(|vcpu| vcpu.ran_ns));
    snapshot.counter(&figures::READY_TIME, &[vm], seen.total(|vcpu| vcpu.ready_ns));
    snapshot.counter(&figures::RESTED_TIME, &[vm], seen.rested_ns());
    snapshot.counter(&figures::PAUSED_TIME, &[vm], seen.stalls.paused_ns);
    snapshot.gauge(&figures::SKEW_TIME, &[vm], seen.skew_ns() as f64);
    if seen.vcpus.iter().any(|vcpu| vcpu.steal_ns.is_some()) {
        let steal_ns = seen.total(|vcpu| vcpu.steal_ns.unwrap_or(0));
        snapshot.counter(&figures::STEAL_TIME, &[vm], steal_ns);
    }
    snapshot.histogram(&figures::WAIT_TO_RUN, &[vm], seen.waits().histogram());
    let longest_ns = seen.long_waits.lately().map_or(0, |wait| wait.length_ns);
    snapshot.gauge(&figures::LONGEST_WAIT_LATELY, &[vm], longest_ns as f64);
    if hooks.sees_spins() {
        snapshot.counter(&figures::YIELDS, &[vm, "ple"], add_up(&seen.spins()));
    }
    snapshot.counter(&figures::YIELDS, &[vm, "hlt"], seen.total(|vcpu| vcpu.halts));
    if hooks.sees_exits() {
        snapshot.counter(&figures::LOCK_HALTS, &[vm], seen.total(|vcpu| vcpu.lock_halts));
    }
    for (class, count) in names::<GuestClass>().zip(seen.turns_ended()).filter(|(_, count)| *count > 0) {
        snapshot.counter(&figures::PREEMPTIONS, &[vm, class], count);
    }
    seen.stops.put(snapshot, vm);
    snapshot.counter(&figures::ANSWERS_OWED, &[vm], seen.total(|vcpu| vcpu.turns_ended_owing));
    if hooks.sees_interrupts() {
        snapshot.counter(&figures::IPIS, &[vm], seen.ipis());
        snapshot.counter(&figures::VIRQS, &[vm], seen.virqs());
        snapshot.histogram(&figures::PREEMPTED_SHOOTDOWN_WAIT, &[vm], seen.shootdowns.histogram());
        snapshot.histogram(&figures::INTERRUPT_WAIT, &[vm], seen.sent_interrupt_waits().histogram());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::KvmVendor;
    use crate::observe::long_waits::LongWaitWatch;
    use crate::observe::report::tests::report;
    use crate::observe::seen_in;
    use microslice_metrics::Value;

    #[test]
    fn what_was_seen_of_a_vm_has_its_label() {
        let snapshot = report(true).snapshot();
        assert_eq!(snapshot.get(&figures::READY_TIME, &["<web>"]), Some(&Value::Counter(140_000_000)));
        assert_eq!(snapshot.get(&figures::PREEMPTIONS, &["<web>", "lock_holder"]), Some(&Value::Counter(10)));
        let waits = snapshot.get(&figures::PREEMPTED_SHOOTDOWN_WAIT, &["<web>"]);
        let Some(Value::Histogram(waits)) = waits else { panic!("{waits:?}") };
        assert_eq!((waits.count(), waits.sum()), (212, 106 * 9_000_000), "the sum is the kernel side's");
        assert_eq!(snapshot.of(&figures::STEAL_TIME).count(), 0, "its guest hasn't asked");
    }

    #[test]
    fn the_longest_wait_is_served_while_it_lasts() {
        let mut report = report(true);
        let longest = |report: &Report| {
            let gauge = report.snapshot().get(&figures::LONGEST_WAIT_LATELY, &["<web>"]).cloned();
            let wait = report.view().vms.remove(0).longest_wait_lately;
            (gauge, wait.map(|wait| (wait.length_ns, wait.runner)))
        };
        assert_eq!(longest(&report), (Some(Value::Gauge(0.0)), None));
        report.vms[0].figures.vcpus[0].waiting_ns = 40_000_000;
        LongWaitWatch::of_host().look(seen_in(&mut report.vms), &|_, _| None, 50_000_000);
        assert_eq!(longest(&report), (Some(Value::Gauge(4e7)), Some((40_000_000, "-".into()))));
    }

    #[test]
    fn unseen_figures_and_gone_vms_are_left_out() {
        let mut report = report(true);
        report.hooks = Hooks::choose(KvmVendor::Intel, None, false);
        assert_eq!(report.snapshot().of(&figures::IPIS).count(), 0);
        report.hooks = Hooks::choose(KvmVendor::Other, Some("refused".into()), false);
        assert_eq!(report.snapshot().of(&figures::LOCK_HALTS).count(), 0);
        assert_eq!(report.snapshot().of(&figures::YIELDS).count(), 1, "halts alone");
        report.vms[0].is_gone = true;
        assert_eq!(report.snapshot().of(&figures::CPU_TIME).count(), 0);
    }

    /// What monitoring stores of each VM is bounded, whatever its guest does: docs/how-to/monitor.md says
    /// how.
    #[test]
    fn a_vm_has_a_bounded_number_of_time_series() {
        let mut report = report(true);
        let vcpu = &mut report.vms[0].figures.vcpus[0];
        (vcpu.turns_ended, vcpu.steal_ns) = ([1; 9], Some(1));
        report.vms[0].figures.stops = crate::output::holders::Stops::of_each(1);
        let text = microslice_metrics::openmetrics::of_snapshot(&report.snapshot());
        let lines = text.lines().filter(|line| !line.starts_with('#') && line.contains("vm="));
        assert_eq!(lines.count(), 81);
    }

    #[test]
    fn a_view_survives_the_socket_and_has_vcpus() {
        let view = report(true).view();
        let read: View = serde_json::from_str(&serde_json::to_string(&view).unwrap()).unwrap();
        assert_eq!(read, view);
        assert_eq!(
            (read.vms[0].ready_ns, read.vms[0].vcpus[0].preemptions["lock_holder"]),
            (140_000_000, 10)
        );
        assert_eq!(().view().source, "");
    }
}
