//! What `run` serves by `--metrics-listen`. Figures of VMs that are gone are in the host's sums only.

use crate::bpf::counters::add_up;
use crate::interface::{AccelerationReturn, Overtake, RequestFailure, VmStats};
use crate::output::monitoring::vm_figures::{US, put_causes, put_hints, put_vm};
use crate::output::monitoring::{PoolView, Reading, VcpuView, View, VmView, labels, view};
use crate::output::words::names;
use crate::run::report::Report;
use crate::settings::SchedulerChoice;
use crate::shares::due::fairness_error;
use microslice_metrics::{Histogram, Snapshot, figures};
use microslice_policy::Cause;

/// The state of `run` at one moment.
#[derive(Debug)]
pub struct RunReading {
    pub report: Report,
    /// The share that each VM of the report received lately, and the share that was due to it.
    pub shares: Vec<(f64, f64)>,
    /// The vCPUs of each VM of the report.
    pub vcpus: Vec<Vec<VcpuView>>,
}

impl Reading for RunReading {
    fn snapshot(&self) -> Snapshot {
        figures_of(&self.report, &self.shares)
    }

    fn view(&self) -> View {
        let (report, total) = (&self.report, self.report.total());
        let vms = report.vms.iter().zip(&self.shares).zip(&self.vcpus).map(|((vm, shares), vcpus)| VmView {
            name: vm.name.clone(),
            pid: vm.pid,
            guest: view::guest(vm.kernel.as_ref(), &vm.state),
            vcpu_count: vm.vcpu_count,
            weight: Some(vm.weight),
            shares: Some(*shares),
            vcpus: vcpus.clone(),
            bound_ns: vm.bound_ns,
            ..view::counted(&vm.stats, add_up(&view::sums(&vm.stats.accelerations)))
        });
        let has_pool = report.scheduler == SchedulerChoice::Microslice;
        View {
            source: "run".into(),
            seconds: report.seconds,
            vms: vms.collect(),
            pool: has_pool.then_some(PoolView {
                size: report.micro_cpus,
                pcpu_ns: report.micro_pcpu_ns,
                accelerated_ns: total.micro_ran_ns,
                lent_ns: total.lent_ran_ns,
            }),
            accelerations: Some(view::by_word(names::<Cause>(), &view::sums(&total.accelerations))),
        }
    }
}

/// Returns the figures of a report. `shares` are those of [`RunReading`].
fn figures_of(report: &Report, shares: &[(f64, f64)]) -> Snapshot {
    let mut snapshot = Snapshot::new();
    let labels = labels::of_vms(report.vms.iter().map(|vm| (vm.name.as_str(), vm.pid)));
    for ((vm, label), (received, due)) in report.vms.iter().zip(&labels).zip(shares) {
        put_vm(&mut snapshot, label, vm.vcpu_count, &vm.stats);
        snapshot.counter(&figures::VMM_TIME, &[label], vm.stats.vmm_ran_ns);
        snapshot.counter(&figures::RESTED_TIME, &[label], vm.stats.rested_ns);
        match report.scheduler {
            SchedulerChoice::Microslice => {
                put_hints(&mut snapshot, label, &vm.stats);
                snapshot.counter(&figures::LATE_WAITS, &[label], vm.stats.late_waits);
                if let Some(bound_ns) = vm.bound_ns {
                    snapshot.gauge(&figures::WAIT_BOUND, &[label], bound_ns as f64);
                }
            }
            SchedulerChoice::Coordinated => {
                snapshot.counter(&figures::IPIS, &[label], vm.stats.urgent_ipis());
            }
        }
        snapshot.gauge(&figures::VM_WEIGHT, &[label], f64::from(vm.weight));
        snapshot.gauge(&figures::SHARE_RECEIVED, &[label], *received);
        snapshot.gauge(&figures::SHARE_DUE, &[label], *due);
    }
    snapshot.gauge(&figures::FAIRNESS_ERROR, &[], fairness_error(shares));
    if report.scheduler == SchedulerChoice::Microslice {
        put_accelerations(&mut snapshot, &report.total());
        put_pool(&mut snapshot, report);
    }
    snapshot.counter(&figures::SCHEDULER_RESTARTS, &[], report.restarts);
    snapshot.counter(&figures::PROGRAM_RUNS_LEFT_OUT, &[], report.recursion_misses.total());
    snapshot
}

/// Puts requests, and what became of them.
fn put_accelerations(snapshot: &mut Snapshot, total: &VmStats) {
    put_causes(snapshot, &total.requests, &total.accelerations);
    for (reason, count) in names::<RequestFailure>().zip(total.failures) {
        snapshot.counter(&figures::FAILED_PULLS, &[reason], count);
    }
    let accelerations: u64 = total.accelerations.iter().map(|row| add_up(row)).sum();
    let (requests, failed) = (add_up(&total.requests), add_up(&total.failures));
    let pending = requests.saturating_sub(accelerations + failed);
    snapshot.gauge(&figures::PENDING_REQUESTS, &[], pending as f64);
    for (reason, count) in names::<AccelerationReturn>().zip(total.returns) {
        snapshot.counter(&figures::ACCELERATION_RETURNS, &[reason], count);
    }
    let in_flight = accelerations.saturating_sub(add_up(&total.returns));
    snapshot.gauge(&figures::STILL_ACCELERATED, &[], in_flight as f64);
    snapshot.counter(&figures::GRACES, &[], add_up(&total.graces));
    snapshot.counter(&figures::ASKED_AGAIN, &[], total.asked_again);
    snapshot.counter(&figures::HOME_SLICES, &[], total.home_slices);
    snapshot.counter(&figures::CALLED_BACK, &[], total.called_back);
    for (reason, count) in names::<Overtake>().zip(total.overtakes) {
        snapshot.counter(&figures::OVERTAKES, &[reason], count);
    }
    let slices = Histogram::from_log2_of(US, &total.micro_slice_us, total.micro_ran_ns);
    snapshot.histogram(&figures::MICRO_SLICE, &[], slices);
}

/// Micro-sliced pCPUs, and what they did.
fn put_pool(snapshot: &mut Snapshot, report: &Report) {
    let total = report.total();
    let now_ns = (report.seconds * 1e9) as u64;
    snapshot.series(&figures::MICRO_POOL_SIZE, &[], vec![(now_ns, f64::from(report.micro_cpus))]);
    snapshot.gauge(&figures::MICRO_POOL_MEAN, &[], report.mean_micro_cpus());
    snapshot.counter(&figures::MICRO_POOL_TIME, &[], report.micro_pcpu_ns);
    snapshot.counter(&figures::MICRO_POOL_USE, &["accelerated"], total.micro_ran_ns);
    snapshot.counter(&figures::MICRO_POOL_USE, &["lent"], total.lent_ran_ns);
    snapshot.counter(&figures::POOL_RESIZES, &["any"], report.host.pool_resizes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::report::tests::{report, vm};
    use microslice_metrics::Value;
    use microslice_policy::GuestClass;
    use microslice_policy::InterruptKind;

    fn one() -> Report {
        let mut one = vm("a", 100, 3_000_000_000, 1_000_000_000);
        one.stats.requests[Cause::TlbYield as usize] = 5;
        one.stats.accelerations[Cause::TlbYield as usize][GuestClass::LockHolder as usize] = 3;
        one.stats.failures[RequestFailure::NoRoom as usize] = 1;
        one.stats.returns[AccelerationReturn::Served as usize] = 2;
        one.stats.wait_to_run_us[3] = 4;
        one.stats.interrupts[InterruptKind::IpiReschedule as usize][0] = 7;
        report(vec![one])
    }

    #[test]
    fn sums_that_must_hold_hold() {
        let snapshot = figures_of(&one(), &[(1.0, 0.75)]);
        assert_eq!(snapshot.unbalanced_sums(), []);
        assert_eq!(snapshot.total(&figures::ACCELERATION_REQUESTS), 5.0);
        assert_eq!(snapshot.total(&figures::PENDING_REQUESTS), 1.0);
        assert_eq!(snapshot.total(&figures::STILL_ACCELERATED), 1.0);
    }

    #[test]
    fn figures_have_the_vms_label_and_nanoseconds() {
        let snapshot = figures_of(&one(), &[(1.0, 0.75)]);
        assert_eq!(snapshot.get(&figures::CPU_TIME, &["a"]), Some(&Value::Counter(3_000_000_000)));
        assert_eq!(snapshot.get(&figures::READY_TIME, &["a"]), Some(&Value::Counter(1_000_000_000)));
        assert_eq!(snapshot.get(&figures::IPIS, &["a"]), Some(&Value::Counter(7)));
        assert_eq!(snapshot.get(&figures::WAIT_BOUND, &["a"]), Some(&Value::Gauge(25_000_000.0)));
        assert_eq!(snapshot.get(&figures::FAIRNESS_ERROR, &[]), Some(&Value::Gauge(0.25)));
        let Some(Value::Histogram(waits)) = snapshot.get(&figures::WAIT_TO_RUN, &["a"]) else { panic!() };
        assert_eq!((waits.count(), waits.sum(), waits.max()), (4, 1_000_000_000, Some(12_000)));
    }

    #[test]
    fn without_a_micro_pool_its_figures_are_absent() {
        let coordinated = Report { scheduler: SchedulerChoice::Coordinated, ..one() };
        let snapshot = figures_of(&coordinated, &[(1.0, 1.0)]);
        assert_eq!(snapshot.of(&figures::MICRO_POOL_SIZE).count(), 0);
        assert_eq!(snapshot.of(&figures::CPU_TIME).count(), 1);
    }

    /// What monitoring stores of each VM is bounded, whatever its guest does.
    #[test]
    fn a_vm_has_a_bounded_number_of_time_series() {
        let lines = |vms: usize| {
            let mut stats = VmStats::default();
            let words =
                <[u64] as zerocopy::FromBytes>::mut_from_bytes(zerocopy::IntoBytes::as_mut_bytes(&mut stats));
            words.expect("whole words").fill(1);
            let all = (0..vms)
                .map(|at| crate::run::report::VmReport { stats, ..vm(&format!("vm{at}"), 100, 1, 1) });
            let report = report(all.collect());
            let text =
                microslice_metrics::openmetrics::of_snapshot(&figures_of(&report, &vec![(0.0, 0.0); vms]));
            text.lines().filter(|line| !line.starts_with('#')).count()
        };
        assert_eq!(lines(12) - lines(2), 10 * SERIES_OF_A_VM);
        assert_eq!(lines(2) - 2 * SERIES_OF_A_VM, SERIES_OF_THE_HOST);
    }

    /// As docs/how-to/monitor.md says.
    const SERIES_OF_A_VM: usize = 50;
    const SERIES_OF_THE_HOST: usize = 166;
}
