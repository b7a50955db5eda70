//! What `microslice top` reads: counters since the start, of each VM and its vCPUs. Rates are the reader's
//! business.

use super::Reading;
use crate::interface::Vcpu;
use crate::observe::VcpuFigures;
use crate::report::{add_up, names};
use crate::scheduler::VmStats;
use microslice_metrics::Histogram;
use microslice_policy::{Cause, Coded, GuestClass};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Counts by a word of the policy's; those that are 0 are left out.
pub type ByWord = BTreeMap<String, u64>;

/// Of one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct View {
    /// `run`, `beside` or `observe`; empty before the first reading.
    pub source: String,
    /// Since the start.
    pub seconds: f64,
    pub vms: Vec<VmView>,
    /// Of `run` with micro-sliced pCPUs.
    pub pool: Option<PoolView>,
    /// Accelerations by cause, of all VMs, those that are gone included; of `run` and `beside`.
    pub accelerations: Option<ByWord>,
}

/// Micro-sliced pCPUs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PoolView {
    pub size: u32,
    /// Time that they had, ran vCPUs in micro slices, and were lent.
    pub pcpu_ns: u64,
    pub accelerated_ns: u64,
    pub lent_ns: u64,
}

/// A VM.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VmView {
    pub name: String,
    pub pid: u32,
    /// Its guest's kernel, and what else is known of it.
    pub guest: String,
    pub vcpu_count: u32,
    /// Of `run`.
    pub weight: Option<u32>,
    /// Of `run`, lately: received and due.
    pub shares: Option<(f64, f64)>,
    pub ran_ns: u64,
    pub ready_ns: u64,
    pub waits: Waits,
    /// Of `run` and `beside`.
    pub accelerations: Option<u64>,
    /// Turns that the host ended, by what the guest was doing.
    pub preemptions: ByWord,
    pub vcpus: Vec<VcpuView>,
}

/// A vCPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VcpuView {
    pub id: u32,
    pub tid: u32,
    /// Of `observe`; a reader of `run` asks the kernel (`/proc/PID/task/TID/schedstat`).
    pub times: Option<VcpuTimes>,
    /// Of `run`: what it was doing when it was stopped last.
    pub stopped_in: Option<String>,
    /// Of `observe`.
    pub preemptions: ByWord,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VcpuTimes {
    pub ran_ns: u64,
    pub ready_ns: u64,
    pub waits: Waits,
}

/// How often a wait was so long: nanoseconds, rising; the middle of a bucket.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Waits(pub Vec<(u64, u64)>);

impl Waits {
    fn of(histogram: &Histogram) -> Self {
        let middle = |bucket: microslice_metrics::Bucket| (bucket.lower.midpoint(bucket.upper), bucket.count);
        Self(histogram.buckets().map(middle).collect())
    }

    /// Those that came after `before`.
    pub fn since(&self, before: &Self) -> Histogram {
        let before: BTreeMap<u64, u64> = before.0.iter().copied().collect();
        let mut histogram = Histogram::new();
        for (ns, count) in &self.0 {
            histogram.record_many(*ns, count.saturating_sub(before.get(ns).copied().unwrap_or(0)));
        }
        histogram
    }
}

fn by_word<'n>(names: impl Iterator<Item = &'n str>, counts: &[u64]) -> ByWord {
    let some = names.zip(counts).filter(|(_, count)| **count > 0);
    some.map(|(name, count)| (name.to_owned(), *count)).collect()
}

fn guest(kernel: Option<&String>, state: &str) -> String {
    kernel.map_or_else(|| state.to_owned(), |kernel| format!("{kernel}, {state}"))
}

/// Of `run`'s kernel side.
pub(crate) fn vcpu(vcpu: &Vcpu) -> VcpuView {
    let class = vcpu.guest_class.get().map(|class| class.name().to_owned());
    VcpuView { id: vcpu.vcpu_id, tid: vcpu.pid, stopped_in: class, ..VcpuView::default() }
}

fn observed(vcpu: &VcpuFigures) -> VcpuView {
    let waits = Waits::of(&vcpu.waits.histogram());
    VcpuView {
        id: vcpu.id,
        tid: vcpu.tid,
        times: Some(VcpuTimes { ran_ns: vcpu.ran_ns, ready_ns: vcpu.ready_ns, waits }),
        stopped_in: None,
        preemptions: by_word(names::<GuestClass>(), &vcpu.turns_ended),
    }
}

fn counted(stats: &VmStats, accelerations: u64) -> VmView {
    VmView {
        ran_ns: stats.ran_ns,
        ready_ns: stats.waited_ns,
        waits: Waits::of(&Histogram::from_log2_of(1_000, &stats.wait_to_run_us, stats.waited_ns)),
        accelerations: Some(accelerations),
        preemptions: by_word(names::<GuestClass>(), &stats.preemptions),
        ..VmView::default()
    }
}

/// Sums of rows by cause.
fn sums<const N: usize>(rows: &[[u64; N]]) -> Vec<u64> {
    rows.iter().map(|row| add_up(row)).collect()
}

impl View {
    pub fn of(reading: &Reading) -> Self {
        match reading {
            Reading::None => Self::default(),
            Reading::Run(run) => {
                let (report, total) = (&run.report, run.report.total());
                let vms =
                    report.vms.iter().zip(&run.shares).zip(&run.vcpus).map(|((vm, shares), vcpus)| VmView {
                        name: vm.name.clone(),
                        pid: vm.pid,
                        guest: guest(vm.kernel.as_ref(), &vm.state),
                        vcpu_count: vm.vcpu_count,
                        weight: Some(vm.weight),
                        shares: Some(*shares),
                        vcpus: vcpus.clone(),
                        ..counted(&vm.stats, add_up(&sums(&vm.stats.accelerations)))
                    });
                let has_pool = report.scheduler == crate::SchedulerChoice::Microslice;
                Self {
                    source: "run".into(),
                    seconds: report.seconds,
                    vms: vms.collect(),
                    pool: has_pool.then_some(PoolView {
                        size: report.micro_cpus,
                        pcpu_ns: report.micro_pcpu_ns,
                        accelerated_ns: total.micro_ran_ns,
                        lent_ns: total.lent_ran_ns,
                    }),
                    accelerations: Some(by_word(names::<Cause>(), &sums(&total.accelerations))),
                }
            }
            Reading::Beside(report) => {
                let vms = report.vms.iter().map(|vm| VmView {
                    name: vm.name.clone(),
                    pid: vm.pid,
                    guest: guest(vm.kernel.as_ref(), &vm.state),
                    vcpu_count: vm.vcpu_count,
                    ..counted(&vm.stats, add_up(&sums(&vm.boosts.boosts)))
                });
                Self {
                    source: "beside".into(),
                    seconds: report.seconds,
                    vms: vms.collect(),
                    pool: None,
                    accelerations: Some(by_word(names::<Cause>(), &sums(&report.total().1.boosts))),
                }
            }
            Reading::Observe(report) => {
                let present = report.vms.iter().filter(|vm| !vm.is_gone);
                let vms = present.map(|vm| VmView {
                    name: vm.name.clone(),
                    pid: vm.pid,
                    guest: guest(vm.kernel.as_ref(), &vm.state),
                    vcpu_count: vm.figures.vcpus.len() as u32,
                    ran_ns: vm.figures.total(|vcpu| vcpu.ran_ns),
                    ready_ns: vm.figures.total(|vcpu| vcpu.ready_ns),
                    waits: Waits::of(&vm.figures.waits().histogram()),
                    preemptions: by_word(names::<GuestClass>(), &vm.figures.turns_ended()),
                    vcpus: vm.figures.vcpus.iter().map(observed).collect(),
                    ..VmView::default()
                });
                let vms = vms.collect();
                Self { source: "observe".into(), seconds: report.seconds, vms, ..Self::default() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_survives_the_socket_and_has_the_vcpus_of_each_vm() {
        let report = crate::observe::report::tests::report(true);
        let view = View::of(&Reading::Observe(Box::new(report)));
        let read: View = serde_json::from_str(&serde_json::to_string(&view).unwrap()).unwrap();
        assert_eq!(read, view);
        assert_eq!(
            (read.vms[0].ready_ns, read.vms[0].vcpus[0].preemptions["lock_holder"]),
            (140_000_000, 10)
        );
        assert_eq!(View::of(&Reading::None).source, "");
    }

    #[test]
    fn waits_of_an_interval_are_those_that_came_after() {
        let (before, now) = (Waits(vec![(1_000, 2)]), Waits(vec![(1_000, 5), (8_000_000, 1)]));
        let waits = now.since(&before);
        assert_eq!((waits.count(), waits.max()), (4, Some(8_000_000)));
        assert_eq!(before.since(&now).count(), 0, "another VM has the name");
    }
}
