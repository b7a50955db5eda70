//! What a run measured, over its measured time (warm-up excluded).

use crate::trace_event::{AccelerationCause, GuestClass};
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunReport {
    pub seed: u64,
    pub measured_ns: u64,
    /// Events that the engine processed, warm-up included. A batch of equal pause-loop exits is one event.
    pub events: u64,
    /// Pause-loop exits that were folded into batches (exactly; see docs/simulator.md).
    pub batched_exits: u64,
    pub vms: Vec<VmReport>,
    pub pcpus: PcpuTimes,
    pub pool: PoolReport,
    /// Largest difference between a VM's share of CPU time and the share due to it, in 1/1000 of the host
    /// (what a VM didn't ask for isn't due to it).
    pub fairness_error_permille: u64,
    /// Runnable until running.
    pub wait_to_run: Histogram,
}

/// Where the pCPUs' time went; adds up to elapsed x pCPUs.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PcpuTimes {
    pub guest_ns: u64,
    pub overhead_ns: u64,
    pub idle_ns: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VmReport {
    pub name: String,
    pub vcpus: usize,
    pub run_ns: u64,
    /// Runnable but not running, over all vCPUs.
    pub wait_ns: u64,
    /// Guest time in pause loops.
    pub spin_ns: u64,
    /// Share of the VM's run time with the instruction pointer waiting in smp_call_function_many.
    pub shootdown_spin_ns: u64,
    pub workloads: Vec<WorkloadReport>,
    pub yields: Yields,
    /// By lock name: contended acquisitions only, as lockstat counts.
    pub lock_waits: BTreeMap<String, Histogram>,
    pub lock_acquisitions: BTreeMap<String, u64>,
    pub tlb_sync: Histogram,
    pub ipis_sent: u64,
    pub ipis_handled: u64,
    pub context_switches: u64,
    /// Preemptions by the class of the instruction pointer at that moment.
    pub preemptions_by_class: BTreeMap<GuestClass, u64>,
    pub network: Option<NetworkReport>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkloadReport {
    pub name: String,
    pub unit: String,
    pub units_done: u64,
    pub units_per_s: f64,
    /// `run_units` at this rate; None without `run_units` or progress.
    pub execution_time_s: Option<f64>,
}

/// Yields by cause, as Figure 7 splits them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Yields {
    /// Pause-loop exits while spinning on a lock.
    pub ple: u64,
    /// Pause-loop exits and PV yields while waiting for acknowledgements of IPIs.
    pub ipi: u64,
    /// Halts, idle or in a PV lock.
    pub halt: u64,
}

impl Yields {
    pub fn total(&self) -> u64 {
        self.ple + self.ipi + self.halt
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PoolReport {
    /// (time since the start, micro pCPUs), one entry per change.
    pub sizes: Vec<(u64, u32)>,
    /// Time-weighted mean over the measured time.
    pub mean_micro_pcpus: f64,
    pub accelerations_by_cause: BTreeMap<AccelerationCause, u64>,
    pub accelerations_by_class: BTreeMap<GuestClass, u64>,
    pub returns: u64,
    /// Requests refused because every micro pCPU had one queued already.
    pub refused_queue_full: u64,
    /// Micro slices that ended with the interrupt unhandled or still in critical code.
    pub slice_ended_unfinished: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct NetworkReport {
    pub throughput_mbps: f64,
    /// RFC 3550 jitter, mean over the run.
    pub jitter_ms: f64,
    pub packets: u64,
    pub dropped: u64,
    /// Raised until the handler began.
    pub irq_latency: Histogram,
}

/// Logarithmic buckets (eight per power of two, so percentiles are within 9 %), exact count, sum, min and max. Nanoseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Histogram {
    pub count: u64,
    pub sum_ns: u64,
    pub min_ns: u64,
    pub max_ns: u64,
    #[serde(skip)]
    buckets: Vec<u64>,
}

const SUB_BITS: u32 = 3;
const BUCKETS: usize = 64 << SUB_BITS;

impl Default for Histogram {
    fn default() -> Self {
        Self { count: 0, sum_ns: 0, min_ns: 0, max_ns: 0, buckets: Vec::new() }
    }
}

impl Histogram {
    pub fn record(&mut self, value_ns: u64) {
        if self.buckets.is_empty() {
            self.buckets = vec![0; BUCKETS];
        }
        self.min_ns = if self.count == 0 { value_ns } else { self.min_ns.min(value_ns) };
        self.max_ns = self.max_ns.max(value_ns);
        self.count += 1;
        self.sum_ns += value_ns;
        self.buckets[bucket_of(value_ns)] += 1;
    }

    pub fn mean_ns(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum_ns as f64 / self.count as f64 }
    }

    /// Upper edge of the bucket that holds this share of the values, never above the maximum; 0 when empty.
    pub fn percentile_ns(&self, percent: f64) -> u64 {
        let rank = (self.count as f64 * percent / 100.0).ceil() as u64;
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank.max(1) {
                return upper_edge(index).min(self.max_ns);
            }
        }
        self.max_ns
    }
}

fn bucket_of(value: u64) -> usize {
    if value < 1 << SUB_BITS {
        return value as usize;
    }
    let exponent = 63 - value.leading_zeros();
    let sub = (value >> (exponent - SUB_BITS)) & ((1 << SUB_BITS) - 1);
    (((exponent - SUB_BITS + 1) as usize) << SUB_BITS) + sub as usize
}

fn upper_edge(index: usize) -> u64 {
    if index < 1 << SUB_BITS {
        return index as u64;
    }
    let exponent = (index >> SUB_BITS) as u32 - 1 + SUB_BITS;
    let sub = (index & ((1 << SUB_BITS) - 1)) as u64;
    ((1 << SUB_BITS) + sub + 1).saturating_mul(1 << (exponent - SUB_BITS)).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_within_its_bucket_of_the_true_value() {
        let mut histogram = Histogram::default();
        (1..=10_000).for_each(|value| histogram.record(value * 100));
        for percent in [1.0, 50.0, 99.0] {
            let exact = percent * 10_000.0;
            let found = histogram.percentile_ns(percent) as f64;
            assert!((exact..=exact * 1.13).contains(&found), "p{percent}: {found} for {exact}");
        }
    }

    #[test]
    fn buckets_cover_every_value_in_order() {
        let mut last = 0;
        for value in (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) | (1 << bit >> 1)]) {
            let bucket = bucket_of(value);
            assert!(bucket < BUCKETS && value <= upper_edge(bucket), "{value}");
            if value > 0 {
                assert!(bucket >= last || value < 2, "{value}");
            }
            last = last.max(bucket);
        }
    }
}
