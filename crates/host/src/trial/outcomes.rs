//! Outcomes: the figures of a block, of each VM and of all of them.

use crate::interface::WaitStats;
use crate::observe::VmFigures;
use crate::observe::report::{Report, VmReport};
use crate::shares::due::shares_of;
use microslice_metrics::Unit;
use microslice_policy::{GuestClass, InterruptKind};
use std::collections::BTreeMap;

/// What several VMs have together goes by this name; no VM is called so.
pub const ALL_VMS: &str = "(all VMs)";

/// A figure by which arms are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Instructions retired in the guest's user mode in a second, or [`Outcome::UserTime`] where they can't
    /// be counted.
    Work,
    /// CPUs that its vCPUs had in the guest's user mode: by where they were when the host stopped them.
    UserTime,
    Cpus,
    /// Received of what was due by weight.
    Share,
    Ready,
    /// Waits for a pCPU.
    WaitP50,
    WaitP99,
    /// Half of the time that was waited was in waits longer than this.
    FeltWait,
    /// Interrupts to a vCPU, until it runs.
    InterruptP99,
    ShootdownP99,
    Spins,
    /// Stops while something was held.
    HoldersStopped,
    /// By how much siblings' waits differ, in a second.
    Skew,
}

/// Which way is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    Less,
    More,
    /// Neither: it is to be said, and not to be judged.
    Neither,
}

impl Outcome {
    pub const ALL: [Self; 13] = [
        Self::Work,
        Self::UserTime,
        Self::Cpus,
        Self::Share,
        Self::Ready,
        Self::WaitP50,
        Self::WaitP99,
        Self::FeltWait,
        Self::InterruptP99,
        Self::ShootdownP99,
        Self::Spins,
        Self::HoldersStopped,
        Self::Skew,
    ];

    /// Returns the name by which reports and `--require` know it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Work => "work",
            Self::UserTime => "user time",
            Self::Cpus => "CPUs",
            Self::Share => "share of due",
            Self::Ready => "ready",
            Self::WaitP50 => "wait p50",
            Self::WaitP99 => "wait p99",
            Self::FeltWait => "felt wait",
            Self::InterruptP99 => "interrupt p99",
            Self::ShootdownP99 => "shootdown p99",
            Self::Spins => "spins",
            Self::HoldersStopped => "holders stopped",
            Self::Skew => "skew",
        }
    }

    /// More work isn't better by itself: who spins in user mode retires instructions, too.
    pub const fn better(self) -> Better {
        match self {
            Self::Work | Self::UserTime | Self::Cpus | Self::Share => Better::Neither,
            _ => Better::Less,
        }
    }

    /// Writes a value of it with its unit.
    pub fn show(self, value: f64) -> String {
        match self {
            Self::Work => format!("{:.3} G/s", value / 1e9),
            Self::UserTime | Self::Cpus | Self::Share => format!("{value:.2}"),
            Self::Ready => format!("{value:.1} %"),
            Self::Spins | Self::HoldersStopped => format!("{value:.1}/s"),
            Self::Skew => format!("{:.1} ms/s", value / 1e6),
            _ => Unit::Nanoseconds.show(value),
        }
    }

    fn of(self, vm: &VmReport, seconds: f64) -> Option<f64> {
        let figures = &vm.figures;
        let ran = figures.total(|vcpu| vcpu.ran_ns) as f64 / 1e9 / seconds;
        // Half a count more, so that a block without any has a ratio, too.
        let rate = |count: u64| (count as f64 + 0.5) / seconds;
        let p = |waits: WaitStats, percent: f64| {
            enough(&waits, percent)?.percentile_ns(percent).map(|ns| ns as f64)
        };
        match self {
            Self::Work | Self::Share => None,
            Self::UserTime => user_part(figures).map(|part| part * ran),
            Self::Cpus => Some(ran),
            Self::Ready => Some(figures.ready_percent()),
            Self::WaitP50 => p(figures.waits(), 50.0),
            Self::WaitP99 => p(figures.waits(), 99.0),
            Self::FeltWait => felt_wait_ns(&figures.waits()),
            Self::InterruptP99 => p(interrupt_waits(figures), 99.0),
            Self::ShootdownP99 => p(figures.shootdowns, 99.0),
            Self::Spins => Some(rate(figures.spins().iter().sum())),
            Self::HoldersStopped => holders_stopped(vm).map(rate),
            Self::Skew => Some(figures.skew_ns() as f64 / seconds),
        }
    }
}

/// A percentile of fewer waits is what single ones took.
fn enough(waits: &WaitStats, percent: f64) -> Option<&WaitStats> {
    (waits.count() as f64 * (100.0 - percent) >= 100.0).then_some(waits)
}

/// Of the turns that the host ended: these are spread over what a vCPU does. `None`: there were too few.
fn user_part(figures: &VmFigures) -> Option<f64> {
    const ENOUGH: u64 = 20;
    let ended = figures.turns_ended();
    let all: u64 = ended.iter().sum();
    (all >= ENOUGH).then(|| ended[GuestClass::User as usize] as f64 / all as f64)
}

/// The median of waits, each by its length.
fn felt_wait_ns(waits: &WaitStats) -> Option<f64> {
    let buckets: Vec<(f64, f64)> = waits
        .histogram()
        .buckets()
        .map(|bucket| {
            let middle = bucket.lower.midpoint(bucket.upper) as f64;
            (middle, middle * bucket.count as f64)
        })
        .collect();
    let half = buckets.iter().map(|(_, time)| time).sum::<f64>() / 2.0;
    let mut below = 0.0;
    let felt = buckets.iter().find(|(_, time)| {
        below += time;
        below >= half
    });
    felt.map(|(middle, _)| *middle).filter(|_| half > 0.0)
}

/// All kinds, also the vCPU's own timer.
fn interrupt_waits(figures: &VmFigures) -> WaitStats {
    let timers = figures.interrupt_waits[InterruptKind::Timer as usize];
    figures.sent_interrupt_waits().plus(&timers)
}

/// By its own count where that is known, else by its symbols.
fn holders_stopped(vm: &VmReport) -> Option<u64> {
    let by_class = || vm.figures.turns_ended()[GuestClass::LockHolder as usize];
    match vm.figures.stops.known() {
        0 => vm.has_classes.then(by_class),
        _ => Some(vm.figures.stops.holding()),
    }
}

/// What a VM had in a block.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Had {
    pub figures: BTreeMap<Outcome, f64>,
    /// The longest wait of its vCPUs.
    pub longest_wait_ns: u64,
}

/// Returns the figures of a block's VMs by name, and of all of them together. `instructions` are those of a
/// VM in that time.
pub fn of_block(seen: &Report, instructions: &BTreeMap<String, u64>) -> BTreeMap<String, Had> {
    let vms: Vec<&VmReport> =
        seen.vms.iter().filter(|vm| !vm.is_gone && !vm.figures.vcpus.is_empty()).collect();
    let sum = |vm: &VmReport, of: fn(&crate::observe::VcpuFigures) -> u64| vm.figures.total(of);
    let shares: Vec<_> = vms
        .iter()
        .map(|vm| (f64::from(vm.weight), sum(vm, |vcpu| vcpu.ran_ns), sum(vm, |vcpu| vcpu.ready_ns)))
        .collect();
    let shares = shares_of(&shares);
    let mut all: BTreeMap<String, Had> = BTreeMap::new();
    for (vm, (received, due)) in vms.iter().zip(shares) {
        let mut figures: BTreeMap<Outcome, f64> = Outcome::ALL
            .into_iter()
            .filter_map(|outcome| Some((outcome, outcome.of(vm, seen.seconds)?)))
            .collect();
        if due > 0.0 {
            figures.insert(Outcome::Share, received / due);
        }
        if let Some(count) = instructions.get(&vm.name) {
            figures.insert(Outcome::Work, *count as f64 / seen.seconds);
        }
        let longest_wait_ns = vm.figures.waits().max_ns;
        // Two may have the same name.
        let name =
            if all.contains_key(&vm.name) { format!("{} ({})", vm.name, vm.pid) } else { vm.name.clone() };
        all.insert(name, Had { figures, longest_wait_ns });
    }
    if all.len() > 1 {
        let together = together(&all);
        all.insert(ALL_VMS.to_owned(), together);
    }
    all
}

/// What can be added up: work and time.
fn together(vms: &BTreeMap<String, Had>) -> Had {
    let mut sum = Had::default();
    for outcome in [Outcome::Work, Outcome::UserTime, Outcome::Cpus, Outcome::Spins] {
        let values: Option<Vec<f64>> = vms.values().map(|vm| vm.figures.get(&outcome).copied()).collect();
        if let Some(values) = values.filter(|values| !values.is_empty()) {
            sum.figures.insert(outcome, values.iter().sum());
        }
    }
    sum.longest_wait_ns = vms.values().map(|vm| vm.longest_wait_ns).max().unwrap_or(0);
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn a_felt_wait_is_where_half_of_the_time_was_waited() {
        let mut waits = WaitStats::new_zeroed();
        // A thousand of some 10 us, and one of some 64 ms: nearly all of the time.
        (waits.counts[9], waits.counts[60]) = (1000, 1);
        (waits.total_ns, waits.max_ns) = (80_000_000, 70_000_000);
        let felt = felt_wait_ns(&waits).expect("waits");
        assert!(felt > 10_000_000.0, "{felt}");
        assert_eq!(felt_wait_ns(&WaitStats::new_zeroed()), None);
    }

    #[test]
    fn a_percentile_of_few_waits_is_missing() {
        let mut waits = WaitStats::new_zeroed();
        waits.counts[9] = 99;
        assert!(enough(&waits, 99.0).is_none() && enough(&waits, 50.0).is_some());
    }

    #[test]
    fn names_are_all_different() {
        let names: std::collections::BTreeSet<_> = Outcome::ALL.map(Outcome::name).into();
        assert_eq!(names.len(), Outcome::ALL.len());
    }
}
