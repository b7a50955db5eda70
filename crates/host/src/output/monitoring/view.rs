//! What `microslice top` reads: counters since the start, of each VM and its vCPUs. Rates are the reader's
//! business.

use crate::bpf::counters::add_up;
use crate::interface::{Vcpu, VmStats};
use crate::output::holders::Stops;
use crate::output::words::names;
use microslice_metrics::Histogram;
use microslice_policy::{Coded, GuestClass};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Counts by a word of the policy's; those that are 0 are left out.
pub type ByWord = BTreeMap<String, u64>;

/// The host at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct View {
    /// `run`, `beside` or `observe`; empty before the first reading.
    pub source: String,
    /// Since the start.
    pub seconds: f64,
    pub vms: Vec<VmView>,
    /// The micro pool; only `run` has one, with micro-sliced pCPUs.
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
    /// Its weight; only `run` knows it.
    pub weight: Option<u32>,
    /// The shares that it received lately and was due; only `run` knows them.
    pub shares: Option<(f64, f64)>,
    pub ran_ns: u64,
    pub ready_ns: u64,
    pub waits: Waits,
    /// For how long its vCPUs may wait now, in nanoseconds, where waits are bounded.
    pub bound_ns: Option<u64>,
    /// Its accelerations, under `run` and `beside`.
    pub accelerations: Option<u64>,
    /// Turns that the host ended, by what the guest was doing.
    pub preemptions: ByWord,
    /// Those that held something by the guest's own count, and those of them that symbols find; `None` where
    /// that isn't known.
    pub holding: Option<(u64, u64)>,
    /// The longest wait of its vCPUs since the start, and of the last minute, if one was of 1 ms; only
    /// `observe` knows them.
    pub longest_wait: Option<LongWaitView>,
    pub longest_wait_lately: Option<LongWaitView>,
    pub vcpus: Vec<VcpuView>,
}

/// A long wait for a pCPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LongWaitView {
    pub length_ns: u64,
    /// The date and the time of day when it began.
    pub began: String,
    /// Who had the pCPU most of the time meanwhile, and for how long; `-` and 0 where that isn't known.
    pub runner: String,
    pub ran_ns: u64,
}

/// A vCPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VcpuView {
    pub id: u32,
    pub tid: u32,
    /// Its times, by `observe`. A reader of `run` asks the kernel (`/proc/PID/task/TID/schedstat`).
    pub times: Option<VcpuTimes>,
    /// The class of its code when it was stopped last, by `run`.
    pub stopped_in: Option<String>,
    /// Turns that the host ended, by class, by `observe`.
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
    pub(crate) fn of(histogram: &Histogram) -> Self {
        let middle = |bucket: microslice_metrics::Bucket| (bucket.lower.midpoint(bucket.upper), bucket.count);
        Self(histogram.buckets().map(middle).collect())
    }

    /// Returns the waits that came after `before`.
    pub fn since(&self, before: &Self) -> Histogram {
        let before: BTreeMap<u64, u64> = before.0.iter().copied().collect();
        let mut histogram = Histogram::new();
        for (ns, count) in &self.0 {
            histogram.record_many(*ns, count.saturating_sub(before.get(ns).copied().unwrap_or(0)));
        }
        histogram
    }
}

/// Returns the counts that are not 0, by name.
pub(crate) fn by_word<'n>(names: impl Iterator<Item = &'n str>, counts: &[u64]) -> ByWord {
    let some = names.zip(counts).filter(|(_, count)| **count > 0);
    some.map(|(name, count)| (name.to_owned(), *count)).collect()
}

/// Describes a guest by its kernel, if that is known, and its state.
pub(crate) fn guest(kernel: Option<&String>, state: &str) -> String {
    kernel.map_or_else(|| state.to_owned(), |kernel| format!("{kernel}, {state}"))
}

/// Returns what `run` shows of a vCPU.
pub(crate) fn vcpu(vcpu: &Vcpu) -> VcpuView {
    let class = vcpu.guest_class.get().map(|class| class.name().to_owned());
    VcpuView { id: vcpu.vcpu_id, tid: vcpu.pid, stopped_in: class, ..VcpuView::default() }
}

/// Returns what `run` and `beside` count of a VM alike.
pub(crate) fn counted(stats: &VmStats, accelerations: u64) -> VmView {
    VmView {
        ran_ns: stats.ran_ns,
        ready_ns: stats.waited_ns,
        waits: Waits::of(&Histogram::from_log2_of(1_000, &stats.wait_to_run_us, stats.waited_ns)),
        accelerations: Some(accelerations),
        preemptions: by_word(names::<GuestClass>(), &stats.preemptions),
        holding: Stops::of(stats).shown(),
        ..VmView::default()
    }
}

/// Returns the sums of rows by cause.
pub(crate) fn sums<const N: usize>(rows: &[[u64; N]]) -> Vec<u64> {
    rows.iter().map(|row| add_up(row)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_of_an_interval_are_those_that_came_after() {
        let (before, now) = (Waits(vec![(1_000, 2)]), Waits(vec![(1_000, 5), (8_000_000, 1)]));
        let waits = now.since(&before);
        assert_eq!((waits.count(), waits.max()), (4, Some(8_000_000)));
        assert_eq!(before.since(&now).count(), 0, "another VM has the name");
    }
}
