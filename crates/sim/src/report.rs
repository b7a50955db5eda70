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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_locks: Option<QueueLockTimes>,
    /// Where turns end in windows (VM'04, 3.3).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delays: Option<DelayReport>,
}

/// Turns that end in windows around their end, by the names that `microslice run` has for them. Put off are
/// those that ended safe, by force and otherwise, and those that are just now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct DelayReport {
    /// Preemptions that were put off, because the vCPU wasn't safe.
    pub put_off: u64,
    /// Those of them that ended where it was safe, and by force.
    pub ended_safe: u64,
    pub ended_forced: u64,
    /// The vCPU gave its pCPU up by itself, or a micro slice came.
    pub ended_otherwise: u64,
    /// Turns that ended in their window; what those of them had beyond their due end that ended behind it,
    /// and what the others were short of.
    pub turns: u64,
    pub beyond_ns: u64,
    pub short_ns: u64,
    /// The host's looks that found a put-off vCPU not safe yet; none where it is told.
    pub looks: u64,
    /// Further turns that ended early, because their guest had overdrawn.
    pub penalised: u64,
}

impl DelayReport {
    pub(crate) fn count_turn(&mut self, due_ns: u64, ended_ns: u64, penalised: bool) {
        if penalised {
            self.penalised += 1;
        } else {
            self.turns += 1;
            self.beyond_ns += ended_ns.saturating_sub(due_ns);
            self.short_ns += due_ns.saturating_sub(ended_ns);
        }
    }

    pub(crate) fn count_end(&mut self, forced: bool, was_put_off: bool) {
        self.ended_safe += u64::from(was_put_off && !forced);
        self.ended_forced += u64::from(was_put_off && forced);
    }
}

/// What queues' locks cost: part of the pCPUs' overhead, but for what pCPUs that idle next had time for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct QueueLockTimes {
    pub operations: u64,
    pub held_ns: u64,
    /// Until its holder let go.
    pub waited_ns: u64,
    pub longest_wait_ns: u64,
}

impl std::ops::AddAssign for QueueLockTimes {
    fn add_assign(&mut self, other: Self) {
        self.operations += other.operations;
        self.held_ns += other.held_ns;
        self.waited_ns += other.waited_ns;
        self.longest_wait_ns = self.longest_wait_ns.max(other.longest_wait_ns);
    }
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
    /// Of the time that all VMs ran, what this one's weight entitles it to, limited by what it asked for.
    pub due_ns: u64,
    /// Runnable but not running, over all vCPUs.
    pub wait_ns: u64,
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
    /// From a thread's wake-up until it runs.
    pub wake_waits: Histogram,
    pub ipis_sent: u64,
    /// Those of them that call functions, as shootdowns do.
    pub call_function_ipis: u64,
    /// How much longer its programs took because they found the caches cold, over all vCPUs.
    pub refill_ns: u64,
    /// Preemptions of vCPUs that held a spinlock, by its name.
    pub holder_preemptions: BTreeMap<String, u64>,
    /// At barriers at which threads spin before they sleep; nothing where there are none.
    #[serde(skip_serializing_if = "BarrierWaits::is_empty")]
    pub barrier_waits: BarrierWaits,
    pub ipis_handled: u64,
    pub context_switches: u64,
    /// Preemptions by the class of the instruction pointer at that moment.
    pub preemptions_by_class: BTreeMap<GuestClass, u64>,
    pub network: Option<NetworkReport>,
    /// If the scenario asks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_times: Option<GuestTimes>,
    /// If its scheduler balances threads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub balance: Vec<BalanceSample>,
}

/// How long a guest holds spinlocks, and is where it may hold some: wall-clock time (VM'04, Tables 1 and 2,
/// Figures 7 and 8).
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BalanceSample {
    pub time_ns: u64,
    pub threads: Vec<u64>,
    pub balloons: Vec<u64>,
    /// What it was given of its pCPU, in 1/1000.
    pub shares: Vec<u64>,
    pub run_ns: Vec<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct BarrierWaits {
    pub arrival_spun: u64,
    pub arrival_slept: u64,
    pub departure_spun: u64,
    pub departure_slept: u64,
}

impl BarrierWaits {
    pub(crate) fn count(&mut self, departure: bool, slept: bool) {
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

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What Lockstat in a guest without an invariant TSC, as the paper's are, makes of contended acquisitions of
/// spinlocks: it reads `local_clock`, which goes on for one tick at the most while interrupts are off
/// (kernel/sched/clock.c, `sched_clock_local`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LockstatWaits {
    pub count: u64,
    pub total_ns: u64,
}

impl LockstatWaits {
    /// A wait for which the clock stood still isn't counted (`lock_acquired`).
    pub(crate) fn record(&mut self, waited_ns: u64) {
        self.count += u64::from(waited_ns > 0);
        self.total_ns += waited_ns;
    }

    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.total_ns as f64 / self.count as f64)
    }
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
    /// Decisions to accelerate, which the fields below count: each is an acceleration or a failed pull.
    pub(crate) accelerations: [ByCause; GuestClass::ALL.len()],
    pub(crate) failed_pulls: [ByCause; FailedPull::ALL.len()],
    /// Of those accelerations; a vCPU that was in the micro pool before measuring began isn't counted.
    pub returns: u64,
    /// And those that are still there at the end.
    pub still_accelerated: u64,
    /// How long accelerated vCPUs ran before they returned.
    pub micro_slices: Histogram,
    /// Micro slices that ended with the interrupt unhandled or still in critical code.
    pub slice_ended_unfinished: u64,
    /// Turns of the normal pool made longer by a micro slice.
    pub graces: u64,
    /// Passes for siblings that had found no room.
    pub asked_again: u64,
    /// Micro slices on pCPUs of the normal pool.
    pub home_slices: u64,
    /// vCPUs of the normal pool that lost a micro pCPU which was lent to them.
    pub called_back: u64,
    /// Turns that began before those of vCPUs that had waited longer: by a directed yield, for warm caches.
    pub overtakes: [u64; 2],
}

/// Why a decision to accelerate a vCPU came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailedPull {
    /// Every micro pCPU had one queued already.
    QueueFull,
    /// It ran, or was blocked, before it could be pulled.
    LeftQueue,
    /// Its VM has had more than that of the first that waits.
    VmAhead,
    /// Its VM, or all VMs together and it most, have used up what they may have by boosts.
    OverBudget,
    /// It may run on one pCPU only, which the operator chose for it.
    Pinned,
}

impl FailedPull {
    /// In order, so that `ALL[reason as usize]` is `reason`.
    pub const ALL: [Self; 5] =
        [Self::QueueFull, Self::LeftQueue, Self::VmAhead, Self::OverBudget, Self::Pinned];

    pub fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "no_room",
            Self::LeftQueue => "overtaken",
            Self::VmAhead => "vm_ahead",
            Self::OverBudget => "over_budget",
            Self::Pinned => "pinned",
        }
    }
}

/// Counts of decisions, by what led to them: an array, since prototype passes make millions of them a second.
type ByCause = [u64; AccelerationCause::ALL.len()];

impl PoolReport {
    /// Counts a request that became an acceleration.
    pub fn count_acceleration(&mut self, class: GuestClass, cause: AccelerationCause) {
        self.accelerations[class as usize][cause as usize] += 1;
    }

    /// Counts requests that came to nothing.
    pub fn count_failed_pulls(&mut self, cause: AccelerationCause, reason: FailedPull, count: u32) {
        self.failed_pulls[reason as usize][cause as usize] += u64::from(count);
    }

    /// Decisions to accelerate, by what led to them.
    pub fn requests(&self) -> impl Iterator<Item = (AccelerationCause, u64)> {
        let all = || self.accelerations.iter().chain(&self.failed_pulls);
        AccelerationCause::ALL.into_iter().map(move |cause| (cause, all().map(|by| by[cause as usize]).sum()))
    }

    pub fn accelerations(&self) -> impl Iterator<Item = (GuestClass, AccelerationCause, u64)> {
        GuestClass::ALL.into_iter().flat_map(move |class| {
            AccelerationCause::ALL
                .into_iter()
                .map(move |cause| (class, cause, self.accelerations[class as usize][cause as usize]))
        })
    }

    pub fn failed_pulls(&self) -> impl Iterator<Item = (FailedPull, u64)> {
        FailedPull::ALL.into_iter().map(|reason| (reason, self.failed_pulls[reason as usize].iter().sum()))
    }

    /// All accelerations.
    pub fn acceleration_count(&self) -> u64 {
        self.accelerations().map(|(_, _, count)| count).sum()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_by_a_number_is_named_by_it() {
        assert!(AccelerationCause::ALL.iter().enumerate().all(|(number, cause)| *cause as usize == number));
        assert!(GuestClass::ALL.iter().enumerate().all(|(number, class)| *class as usize == number));
        assert!(FailedPull::ALL.iter().enumerate().all(|(number, reason)| *reason as usize == number));
    }

    #[test]
    fn a_request_is_an_acceleration_or_a_failed_pull() {
        let mut pool = PoolReport::default();
        pool.count_acceleration(GuestClass::LockHolder, AccelerationCause::LockYield);
        pool.count_failed_pulls(AccelerationCause::LockYield, FailedPull::QueueFull, 3);
        pool.count_failed_pulls(AccelerationCause::Virq, FailedPull::LeftQueue, 1);
        let requests: Vec<_> = pool.requests().filter(|&(_, count)| count > 0).collect();
        assert_eq!(requests, [(AccelerationCause::LockYield, 4), (AccelerationCause::Virq, 1)]);
        assert_eq!(pool.acceleration_count(), 1);
        assert_eq!(
            pool.failed_pulls().map(|(reason, count)| (reason.name(), count)).collect::<Vec<_>>(),
            [("no_room", 3), ("overtaken", 1), ("vm_ahead", 0), ("over_budget", 0), ("pinned", 0)]
        );
    }
}
