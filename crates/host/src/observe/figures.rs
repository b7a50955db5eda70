//! What was seen of a vCPU and of a VM: the arithmetic of waits and of intervals.

use crate::bpf::counters::{Counters, add_up, difference, sum};
use crate::interface::{LongWait, ObservedVcpu, Vcpu, WAIT_BUCKETS, WaitStats};
use crate::observe::helpers::HelperTimes;
use crate::observe::long_waits::LongWaits;
use crate::observe::stalls::Stalls;
use crate::output::holders::Stops;
use microslice_metrics::Histogram;
use microslice_policy::{Coded, GuestClass, InterruptKind, VcpuState};

/// Nanoseconds of a wait's unit in `struct wait_stats`.
const UNIT_NS: u64 = 1024;
const CLASSES: usize = GuestClass::ALL.len();
const KINDS: usize = InterruptKind::ALL.len();

impl Counters for WaitStats {}

/// The shortest wait of a bucket, in nanoseconds: the inverse of `wait_bucket()` in `bpf/observe.bpf.c`.
fn bucket_start_ns(bucket: u64) -> u64 {
    if bucket < 4 { bucket * UNIT_NS } else { ((4 + bucket % 4) << (bucket / 4 - 1)) * UNIT_NS }
}

impl WaitStats {
    /// How many waits are over.
    pub fn count(&self) -> u64 {
        add_up(&self.counts)
    }

    /// In nanoseconds. Each wait is put at the middle of its bucket, so a percentile is off by an eighth; sum
    /// and longest are exact.
    pub fn histogram(&self) -> Histogram {
        let mut histogram = Histogram::new();
        for (bucket, &count) in (0..).zip(&self.counts) {
            let (start, end) = (bucket_start_ns(bucket), bucket_start_ns(bucket + 1));
            histogram.record_many((start.midpoint(end)).min(self.max_ns), count);
        }
        histogram.with_exact(self.total_ns, self.max_ns)
    }

    /// `None` without waits.
    pub fn percentile_ns(&self, percent: f64) -> Option<u64> {
        self.histogram().percentile(percent)
    }

    /// Returns the waits that came after `before`. The longest is exact if it is the longest of all; else it
    /// is the end of its bucket.
    fn since(&self, before: &Self) -> Self {
        let mut interval = difference(self, before);
        let highest = interval.counts.iter().rposition(|&count| count > 0);
        interval.max_ns = highest.map_or(0, |bucket| bucket_start_ns(bucket as u64 + 1).min(self.max_ns));
        interval
    }

    /// Both together.
    pub(crate) fn plus(&self, other: &Self) -> Self {
        Self { max_ns: self.max_ns.max(other.max_ns), ..sum(self, other) }
    }
}

/// Figures of one vCPU, from its first turn that was seen.
#[derive(Debug, Clone)]
pub struct VcpuFigures {
    /// As its VMM numbers it.
    pub id: u32,
    /// Its thread.
    pub tid: u32,
    pub observed_ns: u64,
    /// Both with what is under way.
    pub ran_ns: u64,
    pub ready_ns: u64,
    /// For how long it waits now.
    pub waiting_ns: u64,
    /// Waits that are over; the longest may still be under way.
    pub waits: WaitStats,
    /// The longest of those that are over, since the look before.
    pub longest: LongWait,
    pub turns_ended: [u64; CLASSES],
    pub turns_ended_owing: u64,
    pub spins: [u64; CLASSES],
    pub halts: u64,
    pub lock_halts: u64,
    pub directed_yields: u64,
    /// Steal time that KVM has told the guest; `None` if the guest hasn't asked.
    pub steal_ns: Option<u64>,
}

impl VcpuFigures {
    /// At `now_ns` of the monotonic clock.
    pub fn of(core: &Vcpu, seen: &ObservedVcpu, now_ns: u64) -> Self {
        let under_way_ns = now_ns.saturating_sub(seen.since_ns);
        let of_state = |state| if core.state.get() == Some(state) { under_way_ns } else { 0 };
        let waiting_ns = of_state(VcpuState::Runnable);
        let waits = WaitStats { max_ns: seen.ready.max_ns.max(waiting_ns), ..seen.ready };
        Self {
            id: core.vcpu_id,
            tid: core.pid,
            observed_ns: now_ns.saturating_sub(seen.joined_at_ns),
            ran_ns: seen.ran_ns + of_state(VcpuState::Running),
            ready_ns: seen.ready.total_ns + waiting_ns,
            waiting_ns,
            waits,
            longest: seen.longest,
            turns_ended: seen.turns_ended,
            turns_ended_owing: seen.turns_ended_owing,
            spins: seen.spins,
            halts: seen.halts,
            lock_halts: seen.lock_halts,
            directed_yields: seen.directed_yields,
            steal_ns: (seen.steal_is_told != 0).then(|| seen.steal_ns.saturating_sub(seen.steal_before_ns)),
        }
    }

    /// How much of the time it wanted to run and had no pCPU, in per cent.
    pub fn ready_percent(&self) -> f64 {
        percent(self.ready_ns, self.observed_ns)
    }

    fn since(&self, before: &Self) -> Self {
        let less = u64::saturating_sub;
        let over = self.waits.since(&before.waits);
        Self {
            id: self.id,
            tid: self.tid,
            observed_ns: less(self.observed_ns, before.observed_ns),
            ran_ns: less(self.ran_ns, before.ran_ns),
            ready_ns: less(self.ready_ns, before.ready_ns),
            waiting_ns: self.waiting_ns,
            waits: WaitStats { max_ns: over.max_ns.max(self.waiting_ns), ..over },
            longest: self.longest,
            turns_ended: each(&self.turns_ended, &before.turns_ended),
            turns_ended_owing: less(self.turns_ended_owing, before.turns_ended_owing),
            spins: each(&self.spins, &before.spins),
            halts: less(self.halts, before.halts),
            lock_halts: less(self.lock_halts, before.lock_halts),
            directed_yields: less(self.directed_yields, before.directed_yields),
            steal_ns: self.steal_ns.map(|steal| less(steal, before.steal_ns.unwrap_or(0))),
        }
    }
}

fn each<const N: usize>(now: &[u64; N], before: &[u64; N]) -> [u64; N] {
    std::array::from_fn(|at| now[at].saturating_sub(before[at]))
}

/// 0 where nothing was seen.
fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 * 100.0 }
}

/// Figures of one VM.
#[derive(Debug, Clone)]
pub struct VmFigures {
    pub vcpus: Vec<VcpuFigures>,
    /// By what was held.
    pub stops: Stops,
    /// On their way to one of its vCPUs, by `enum interrupt_kind`.
    pub interrupts: [u64; KINDS],
    pub interrupt_waits: [WaitStats; KINDS],
    pub shootdowns: WaitStats,
    /// Its waits that aren't for other tasks.
    pub stalls: Stalls,
    pub long_waits: LongWaits,
    /// CPU time that it takes beside its vCPUs.
    pub helpers: HelperTimes,
}

impl VmFigures {
    /// Adds up a figure of all its vCPUs.
    pub fn total(&self, of: impl Fn(&VcpuFigures) -> u64) -> u64 {
        self.vcpus.iter().map(of).sum()
    }

    /// Reschedule and call-function interrupts between its vCPUs.
    pub fn ipis(&self) -> u64 {
        [InterruptKind::IpiReschedule, InterruptKind::IpiCallFunction]
            .map(|kind| self.interrupts[kind as usize])
            .iter()
            .sum()
    }

    /// Device interrupts to its vCPUs.
    pub fn virqs(&self) -> u64 {
        self.interrupts[InterruptKind::Virq as usize]
    }

    /// The mean of its vCPUs, each by the time that it was seen.
    pub fn ready_percent(&self) -> f64 {
        percent(self.total(|vcpu| vcpu.ready_ns), self.total(|vcpu| vcpu.observed_ns))
    }

    /// Returns the part of the time ready that `cpu.max` took, in nanoseconds.
    pub fn rested_ns(&self) -> u64 {
        self.stalls.throttled_ns.min(self.total(|vcpu| vcpu.ready_ns))
    }

    /// Returns [`Self::rested_ns`] in per cent, as [`Self::ready_percent`].
    pub fn rested_percent(&self) -> f64 {
        percent(self.rested_ns(), self.total(|vcpu| vcpu.observed_ns))
    }

    /// Returns how much of the time its VMM kept it from running, in per cent.
    pub fn paused_percent(&self) -> f64 {
        percent(self.stalls.paused_ns, self.seen_ns()).min(100.0)
    }

    /// Returns for how long it was seen, in nanoseconds: whichever of its vCPUs longest.
    pub fn seen_ns(&self) -> u64 {
        self.vcpus.iter().map(|vcpu| vcpu.observed_ns).max().unwrap_or(0)
    }

    /// Returns by how much its vCPUs' waits differ: the longest sum less the shortest, in nanoseconds. ESX
    /// bounds this, and shows what that costs as co-stop.
    pub fn skew_ns(&self) -> u64 {
        let ready = || self.vcpus.iter().map(|vcpu| vcpu.ready_ns);
        ready().max().unwrap_or(0) - ready().min().unwrap_or(0)
    }

    /// Returns [`Self::skew_ns`] in per cent of the time that its vCPUs were seen, of whichever longest.
    pub fn skew_percent(&self) -> f64 {
        percent(self.skew_ns(), self.seen_ns())
    }

    /// The mean of the steal time that its guest was told. `None` if none of its vCPUs has asked.
    pub fn steal_percent(&self) -> Option<f64> {
        let told = self.vcpus.iter().filter_map(|vcpu| Some((vcpu.steal_ns?, vcpu.observed_ns)));
        let (steal, observed) = told.reduce(|a, b| (a.0 + b.0, a.1 + b.1))?;
        Some(percent(steal, observed))
    }

    pub fn waits(&self) -> WaitStats {
        add_waits(self.vcpus.iter().map(|vcpu| &vcpu.waits))
    }

    /// Turns that the host ended, by what the guest was doing.
    pub fn turns_ended(&self) -> [u64; CLASSES] {
        std::array::from_fn(|class| self.total(|vcpu| vcpu.turns_ended[class]))
    }

    pub fn spins(&self) -> [u64; CLASSES] {
        std::array::from_fn(|class| self.total(|vcpu| vcpu.spins[class]))
    }

    /// Returns the waits of all kinds of interrupts but the vCPUs' own timers.
    pub fn sent_interrupt_waits(&self) -> WaitStats {
        let others = (0..KINDS).filter(|&kind| kind != InterruptKind::Timer as usize);
        add_waits(others.map(|kind| &self.interrupt_waits[kind]))
    }

    /// Returns the figures since `before`, which are the same VM's.
    pub fn since(&self, before: &Self) -> Self {
        let vcpus = self.vcpus.iter().map(|vcpu| {
            let same = before.vcpus.iter().find(|old| (old.id, old.tid) == (vcpu.id, vcpu.tid));
            // One that has another place by now has begun anew.
            let same = same.filter(|old| old.observed_ns <= vcpu.observed_ns);
            same.map_or_else(|| vcpu.clone(), |old| vcpu.since(old))
        });
        Self {
            vcpus: vcpus.collect(),
            stops: self.stops.since(&before.stops),
            interrupts: each(&self.interrupts, &before.interrupts),
            interrupt_waits: std::array::from_fn(|kind| {
                self.interrupt_waits[kind].since(&before.interrupt_waits[kind])
            }),
            shootdowns: self.shootdowns.since(&before.shootdowns),
            stalls: self.stalls.since(&before.stalls),
            long_waits: self.long_waits.since(&before.long_waits),
            helpers: self.helpers.since(&before.helpers),
        }
    }
}

fn add_waits<'w>(all: impl Iterator<Item = &'w WaitStats>) -> WaitStats {
    const NONE: WaitStats = WaitStats { total_ns: 0, max_ns: 0, counts: [0; WAIT_BUCKETS as usize] };
    all.fold(NONE, |sum, waits| sum.plus(waits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    fn waits(of: &[(usize, u64)], total_ns: u64, max_ns: u64) -> WaitStats {
        let mut waits = WaitStats { total_ns, max_ns, ..WaitStats::new_zeroed() };
        of.iter().for_each(|&(bucket, count)| waits.counts[bucket] = count);
        waits
    }

    fn vcpu(state: VcpuState, seen: &ObservedVcpu, now_ns: u64) -> VcpuFigures {
        let core = Vcpu { state: state.into(), pid: 7, ..Vcpu::new_zeroed() };
        VcpuFigures::of(&core, seen, now_ns)
    }

    #[test]
    fn buckets_follow_each_other_four_to_an_octave() {
        let starts: Vec<u64> = (0..14).map(|bucket| bucket_start_ns(bucket) / UNIT_NS).collect();
        assert_eq!(starts, [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20]);
        for bucket in 4..u64::from(WAIT_BUCKETS) {
            let (start, end) = (bucket_start_ns(bucket), bucket_start_ns(bucket + 1));
            assert!(start < end && (end - start) * 4 <= start, "{bucket}");
        }
    }

    #[test]
    fn no_percentile_is_longer_than_the_longest_wait() {
        let some = waits(&[(4, 99), (40, 1)], 500_000, 2_700_000);
        assert_eq!(some.count(), 100);
        assert!(some.percentile_ns(50.0).is_some_and(|ns| (4096..5120).contains(&ns)));
        assert!(some.percentile_ns(100.0).is_some_and(|ns| ns <= 2_700_000));
        assert_eq!(waits(&[], 0, 0).percentile_ns(99.0), None);
    }

    #[test]
    fn an_intervals_longest_wait_is_bounded_twice() {
        let before = waits(&[(40, 1)], 3_000_000, 3_000_000);
        let later = waits(&[(4, 2), (40, 1)], 3_009_000, 3_000_000).since(&before);
        assert_eq!((later.count(), later.total_ns, later.max_ns), (2, 9_000, 5 * UNIT_NS));
        let longest = waits(&[(40, 2)], 6_100_000, 3_100_000).since(&before);
        assert_eq!(longest.max_ns, 3_100_000.min(bucket_start_ns(41)));
        assert_eq!(before.since(&before).max_ns, 0);
    }

    #[test]
    fn what_is_under_way_counts_by_what_the_vcpu_does() {
        let seen = ObservedVcpu {
            joined_at_ns: 1_000,
            since_ns: 9_000,
            ran_ns: 3_000,
            ready: waits(&[(2, 2)], 5_000, 2_500),
            ..ObservedVcpu::new_zeroed()
        };
        let waiting = vcpu(VcpuState::Runnable, &seen, 13_000);
        assert_eq!((waiting.ran_ns, waiting.ready_ns, waiting.observed_ns), (3_000, 9_000, 12_000));
        assert_eq!((waiting.ready_percent(), waiting.waits.max_ns), (75.0, 4_000));
        let running = vcpu(VcpuState::Running, &seen, 13_000);
        assert_eq!((running.ran_ns, running.ready_ns, running.waits.max_ns), (7_000, 5_000, 2_500));
        assert_eq!(waiting.since(&waiting).waits.max_ns, 4_000, "it waits still");
        let asleep = vcpu(VcpuState::Blocked, &seen, 13_000);
        assert_eq!((asleep.ran_ns, asleep.ready_ns), (3_000, 5_000));
    }

    #[test]
    fn skew_is_the_most_less_the_least_waited() {
        let waited = |ready_ns| {
            let seen = ObservedVcpu { ready: waits(&[(2, 1)], ready_ns, 0), ..ObservedVcpu::new_zeroed() };
            vcpu(VcpuState::Blocked, &seen, 10_000)
        };
        let of = |vcpus: Vec<VcpuFigures>| VmFigures {
            vcpus,
            stops: Stops::default(),
            interrupts: [0; KINDS],
            interrupt_waits: [waits(&[], 0, 0); KINDS],
            shootdowns: waits(&[], 0, 0),
            stalls: Stalls::default(),
            long_waits: LongWaits::default(),
            helpers: HelperTimes::default(),
        };
        let apart = of(vec![waited(2_000), waited(500), waited(1_000)]);
        assert_eq!((apart.skew_ns(), apart.skew_percent()), (1_500, 15.0));
        assert_eq!((of(vec![waited(2_000)]).skew_ns(), of(vec![]).skew_percent()), (0, 0.0));
    }

    #[test]
    fn steal_counts_from_the_first_turn_if_asked_for() {
        let told = ObservedVcpu {
            steal_is_told: 1,
            steal_before_ns: 100,
            steal_ns: 350,
            ..ObservedVcpu::new_zeroed()
        };
        assert_eq!(vcpu(VcpuState::Blocked, &told, 0).steal_ns, Some(250));
        assert_eq!(vcpu(VcpuState::Blocked, &ObservedVcpu::new_zeroed(), 0).steal_ns, None);
    }

    #[test]
    fn an_interval_has_all_of_a_new_vcpu() {
        let figures = |ran_ns, now_ns| {
            let seen = ObservedVcpu { ran_ns, since_ns: now_ns, ..ObservedVcpu::new_zeroed() };
            VmFigures {
                vcpus: vec![vcpu(VcpuState::Blocked, &seen, now_ns)],
                stops: Stops::default(),
                interrupts: [3; KINDS],
                interrupt_waits: [waits(&[], 0, 0); KINDS],
                shootdowns: waits(&[], 0, 0),
                stalls: Stalls::default(),
                long_waits: LongWaits::default(),
                helpers: HelperTimes::default(),
            }
        };
        let later = figures(900, 5_000).since(&figures(400, 2_000));
        assert_eq!((later.vcpus[0].ran_ns, later.vcpus[0].observed_ns, later.interrupts[0]), (500, 3_000, 0));
        assert_eq!(figures(900, 1_000).since(&figures(400, 2_000)).vcpus[0].ran_ns, 900);
    }
}
