//! What a run measured, over its measured time (warm-up excluded).

use microslice_metrics::Histogram;
use microslice_model::counters::{DelayReport, PoolReport, QueueLockTimes};
use microslice_policy::GuestClass;
use std::collections::BTreeMap;

#[derive(Debug, Clone, PartialEq)]
pub struct RunReport {
    pub seed: u64,
    pub measured_ns: u64,
    /// Events that the engine processed, warm-up included. A batch of equal pause-loop exits is one event.
    pub events: u64,
    /// Pause-loop exits that were folded into batches (exactly; see docs/explanation/simulator.md).
    pub batched_exits: u64,
    pub vms: Vec<VmReport>,
    pub pcpus: PcpuTimes,
    pub pool: PoolReport,
    /// Largest difference between a VM's share of CPU time and the share due to it, in 1/1000 of the host.
    /// What a VM didn't ask for isn't due to it.
    pub fairness_error_permille: u64,
    /// Runnable until running; of a vCPU that waits when measuring begins, from then on.
    pub wait_to_run: Histogram,
    /// Of the real scheduler's queues, where the host names what their locks cost.
    pub queue_locks: Option<QueueLockTimes>,
    /// Where turns end in windows (VM'04, 3.3).
    pub delays: Option<DelayReport>,
}

/// Where the pCPUs' time went; adds up to elapsed x pCPUs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PcpuTimes {
    pub guest_ns: u64,
    pub overhead_ns: u64,
    pub idle_ns: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct VmReport {
    pub name: String,
    pub vcpus: usize,
    pub run_ns: u64,
    /// Of the time that all VMs ran, what this one's weight entitles it to, limited by what it asked for.
    pub due_ns: u64,
    /// Runnable but not running, over all vCPUs.
    pub wait_ns: u64,
    /// By how much longer the vCPU that has waited most has waited than the one that has waited least.
    pub skew_ns: u64,
    /// Guest time in pause loops.
    pub spin_ns: u64,
    /// Part of `run_ns` with the instruction pointer waiting in smp_call_function_many, its pause-loop exits
    /// included.
    pub shootdown_spin_ns: u64,
    pub workloads: Vec<WorkloadReport>,
    pub yields: Yields,
    /// By lock name: contended acquisitions only, as lockstat counts.
    pub lock_waits: BTreeMap<String, Histogram>,
    pub lock_acquisitions: BTreeMap<String, u64>,
    /// The waits for spinlocks as the guest itself sees them.
    pub lockstat_waits: BTreeMap<String, LockstatWaits>,
    pub tlb_sync: Histogram,
    /// Of RCU, if its programs wait for any.
    pub grace_periods: Option<GraceReport>,
    /// For how long vCPUs rested because of `cpu.max`, all together; `None`: it has none.
    pub throttled_ns: Option<u64>,
    /// From runnable until running, as [`RunReport::wait_to_run`].
    pub waits: Histogram,
    /// From a thread's wake-up, of one that slept from when its timer was due, until it runs.
    pub wake_waits: Histogram,
    /// Waits for a pCPU that were longer than its bound; `None`: it has none.
    pub late_waits: Option<u64>,
    /// The longest wait of a vCPU for a pCPU in each second, in ns.
    pub longest_waits: Vec<u64>,
    /// From when a sleeping thread's timer was due, or its I/O done, until it runs.
    pub timer_lateness: Histogram,
    pub ipis_sent: u64,
    /// Those of them that call functions, as shootdowns do.
    pub call_function_ipis: u64,
    /// How much longer its programs took because they found the caches cold, over all vCPUs.
    pub refill_ns: u64,
    /// Preemptions of vCPUs that held a spinlock, by its name.
    pub holder_preemptions: BTreeMap<String, u64>,
    /// At barriers at which threads spin before they sleep; nothing where there are none.
    pub barrier_waits: BarrierWaits,
    pub ipis_handled: u64,
    pub context_switches: u64,
    /// Preemptions by the class of the instruction pointer at that moment.
    pub preemptions_by_class: BTreeMap<GuestClass, u64>,
    pub network: Option<NetworkReport>,
    /// If the scenario asks for it.
    pub guest_times: Option<GuestTimes>,
    /// If its scheduler balances threads.
    pub balance: Vec<BalanceSample>,
}

/// How long a guest holds spinlocks, and is where it may hold some: wall-clock time (VM'04, Tables 1 and 2,
/// Figures 7 and 8).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GuestTimes {
    pub lock_holds: Histogram,
    /// Sums of those holds, and waits, that took longer than a millisecond, over all vCPUs.
    pub extended_holds_ns: u64,
    pub extended_waits_ns: u64,
    /// From leaving user mode, or a halt, until the next one.
    pub unsafe_times: Histogram,
    /// Of the squares of these, in ms^2: what their deviation needs.
    pub unsafe_squares_ms2: f64,
    pub safe_ns: u64,
}

impl GuestTimes {
    /// Standard deviation of the unsafe times, in ms.
    pub fn unsafe_deviation_ms(&self) -> f64 {
        let count = self.unsafe_times.count() as f64;
        let mean_ms = self.unsafe_times.sum() as f64 / count / 1e6;
        (self.unsafe_squares_ms2 / count - mean_ms * mean_ms).max(0.0).sqrt()
    }
}

/// What a guest's scheduler found when it polled its vCPUs: of each of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BalanceSample {
    pub time_ns: u64,
    pub threads: Vec<u64>,
    pub balloons: Vec<u64>,
    /// What it was given of its pCPU, in 1/1000.
    pub shares: Vec<u64>,
    pub run_ns: Vec<u64>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct WorkloadReport {
    pub name: String,
    pub units_done: u64,
    /// Its work in user mode, without what cold caches cost.
    pub computed_ns: u64,
    pub units_per_s: f64,
    /// `run_units` at this rate; None without `run_units` or progress.
    pub execution_time_s: Option<f64>,
    /// `run_time` of the configuration: the length of a run that ends by the clock.
    pub run_time_s: Option<f64>,
}

/// Waits at barriers at which threads spin before they sleep, by where they were and how they ended
/// (ASPLOS'13, Figure 10b).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BarrierWaits {
    pub arrival_spun: u64,
    pub arrival_slept: u64,
    pub departure_spun: u64,
    pub departure_slept: u64,
}

impl BarrierWaits {
    pub fn count(&mut self, departure: bool, slept: bool) {
        *match (departure, slept) {
            (false, false) => &mut self.arrival_spun,
            (false, true) => &mut self.arrival_slept,
            (true, false) => &mut self.departure_spun,
            (true, true) => &mut self.departure_slept,
        } += 1;
    }

    pub fn slept(&self) -> u64 {
        self.arrival_slept + self.departure_slept
    }

    pub fn at_departure(&self) -> u64 {
        self.departure_spun + self.departure_slept
    }
}

/// What Lockstat in a guest without an invariant TSC, as the paper's are, makes of contended acquisitions of
/// spinlocks: it reads `local_clock`, which goes on for one tick at the most while interrupts are off
/// (kernel/sched/clock.c, `sched_clock_local`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LockstatWaits {
    pub count: u64,
    pub total_ns: u64,
}

impl LockstatWaits {
    /// A wait for which the clock stood still isn't counted (`lock_acquired`).
    pub fn record(&mut self, waited_ns: u64) {
        self.count += u64::from(waited_ns > 0);
        self.total_ns += waited_ns;
    }

    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.total_ns as f64 / self.count as f64)
    }
}

/// Grace periods of RCU.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GraceReport {
    /// From the begin of each until its end.
    pub lengths: Histogram,
    pub holdouts: Holdouts,
}

/// vCPUs without a pCPU that a grace period still waited for when a writer looked, by where they had been
/// stopped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Holdouts {
    /// In a read section.
    pub reading: u64,
    pub in_user_mode: u64,
    pub elsewhere: u64,
}

/// Yields by cause, as Figure 7 splits them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
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

#[derive(Debug, Clone, Default, PartialEq)]
pub struct NetworkReport {
    pub throughput_mbps: f64,
    /// RFC 3550 jitter, mean over the run.
    pub jitter_ms: f64,
    pub packets: u64,
    pub dropped: u64,
    /// Raised until the handler began.
    pub irq_latency: Histogram,
}
