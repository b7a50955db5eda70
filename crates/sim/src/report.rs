//! What a run measured, over its measured time (warm-up excluded).

use crate::trace_event::{AccelerationCause, GuestClass};
pub use microslice_metrics::Histogram;
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
    /// Part of `run_ns` with the instruction pointer waiting in smp_call_function_many, its pause-loop exits included.
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
    /// `run_time` of the configuration: the length of a run that ends by the clock.
    pub run_time_s: Option<f64>,
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
    /// Decisions to accelerate, by what led to them; each ends in `accelerations` or in `failed_pulls`.
    pub requests: BTreeMap<AccelerationCause, u64>,
    pub accelerations: BTreeMap<GuestClass, BTreeMap<AccelerationCause, u64>>,
    /// Requests that came to nothing, by reason ("queue_full": every micro pCPU had one queued already).
    pub failed_pulls: BTreeMap<&'static str, u64>,
    pub returns: u64,
    /// How long accelerated vCPUs ran before they returned.
    pub micro_slices: Histogram,
    /// Micro slices that ended with the interrupt unhandled or still in critical code.
    pub slice_ended_unfinished: u64,
    /// Turns of the normal pool made longer by a micro slice.
    pub graces: u64,
    /// Passes for siblings that had found no room.
    pub asked_again: u64,
}

impl PoolReport {
    /// Counts a request that became an acceleration.
    pub fn count_acceleration(&mut self, class: GuestClass, cause: AccelerationCause) {
        *self.requests.entry(cause).or_default() += 1;
        *self.accelerations.entry(class).or_default().entry(cause).or_default() += 1;
    }

    /// Counts a request that came to nothing.
    pub fn count_failed_pull(&mut self, cause: AccelerationCause, reason: &'static str) {
        self.count_failed_pulls(cause, reason, 1);
    }

    /// So many at once.
    pub fn count_failed_pulls(&mut self, cause: AccelerationCause, reason: &'static str, count: u32) {
        *self.requests.entry(cause).or_default() += u64::from(count);
        *self.failed_pulls.entry(reason).or_default() += u64::from(count);
    }

    /// All accelerations.
    pub fn acceleration_count(&self) -> u64 {
        self.accelerations.values().flat_map(BTreeMap::values).sum()
    }
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
