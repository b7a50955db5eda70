//! What a guest had in a phase, over what it has alone in the same boot: the emulator's slowness cancels.

use crate::demo::Phase;

/// Of fewer samples a percentile tells what single ones took: it is missing.
const ENOUGH_FOR_P50: u64 = 10;
const ENOUGH_FOR_P99: u64 = 50;

/// A figure of one guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Figure {
    Cpus,
    WorkPerCpuSecond,
    ShootdownP50,
    ShootdownP99,
    WakeP50,
    WakeP99,
}

impl Figure {
    pub const ALL: [Self; 6] = [
        Self::Cpus,
        Self::WorkPerCpuSecond,
        Self::ShootdownP50,
        Self::ShootdownP99,
        Self::WakeP50,
        Self::WakeP99,
    ];

    /// In JSON.
    pub fn key(self) -> &'static str {
        match self {
            Self::Cpus => "cpus",
            Self::WorkPerCpuSecond => "work_per_cpu_second",
            Self::ShootdownP50 => "shootdown_p50_us",
            Self::ShootdownP99 => "shootdown_p99_us",
            Self::WakeP50 => "wake_p50_us",
            Self::WakeP99 => "wake_p99_us",
        }
    }

    /// Of the guest `name`; `None` where nothing was measured, or too little for a percentile.
    pub fn of(self, phase: &Phase, name: &str) -> Option<f64> {
        let at = phase.vms.iter().position(|(guest, _)| guest == name)?;
        let (vm, cpus) = (&phase.vms[at].1, phase.cpus.get(at).copied().flatten());
        let latency = |kind: &str, percent: f64| {
            let (latency, enough) =
                (vm.latency(kind), if percent > 50.0 { ENOUGH_FOR_P99 } else { ENOUGH_FOR_P50 });
            (latency.count() >= enough).then(|| latency.percentile_us(percent)).flatten()
        };
        match self {
            Self::Cpus => cpus,
            Self::WorkPerCpuSecond => Some(vm.work_rate() / cpus.filter(|cpus| *cpus > 0.0)?),
            Self::ShootdownP50 => latency("shootdown", 50.0),
            Self::ShootdownP99 => latency("shootdown", 99.0),
            Self::WakeP50 => latency("wake", 50.0),
            Self::WakeP99 => latency("wake", 99.0),
        }
    }

    /// The same over what the guest has in `alone`.
    pub fn over_alone(self, phase: &Phase, alone: &Phase, name: &str) -> Option<f64> {
        let (value, alone) = (self.of(phase, name)?, self.of(alone, name)?);
        (alone > 0.0).then(|| value / alone)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::demo::{Round, Scheduler};
    use crate::guest::Pv;
    use crate::measure::Measurement;

    /// Guests mix and hog, which had so many CPUs and did so much work in a second.
    pub(crate) fn phase(scheduler: Scheduler, mix: (f64, u64), hog: (f64, u64)) -> Phase {
        let vm = |name: &str, work: u64| {
            let work = [("worker".to_owned(), work)].into();
            (name.to_owned(), Measurement { windows: 1, seconds: 1.0, work, ..Measurement::default() })
        };
        Phase {
            scheduler,
            round: Round { pv: Pv::Off, pause_exits: false },
            vms: vec![vm("mix", mix.1), vm("hog", hog.1)],
            cpus: vec![Some(mix.0), Some(hog.0)],
            statistics: None,
            profile: None,
            context_switches: 0,
            seconds: 1.0,
        }
    }

    #[test]
    fn work_counts_by_the_processor_time_that_it_took() {
        let alone = phase(Scheduler::Alone, (4.0, 400), (4.0, 4000));
        let shared = phase(Scheduler::Kernel, (2.0, 150), (0.0, 0));
        let over = |figure: Figure, name: &str| figure.over_alone(&shared, &alone, name);
        assert_eq!(over(Figure::WorkPerCpuSecond, "mix"), Some(0.75));
        assert_eq!(over(Figure::Cpus, "mix"), Some(0.5));
        assert_eq!(over(Figure::WorkPerCpuSecond, "hog"), None, "it never ran");
        assert_eq!(over(Figure::ShootdownP50, "mix"), None, "none was measured");
    }

    #[test]
    fn a_percentile_of_few_samples_is_missing() {
        let with = |count: u64| {
            let mut phase = phase(Scheduler::Kernel, (2.0, 1), (2.0, 1));
            let waits = std::iter::repeat_n(1_000_000, count as usize).collect();
            phase.vms[0].1.latency.insert("wake".into(), waits);
            [Figure::WakeP50, Figure::WakeP99].map(|figure| figure.of(&phase, "mix").is_some())
        };
        assert_eq!(with(ENOUGH_FOR_P50 - 1), [false, false]);
        assert_eq!(with(ENOUGH_FOR_P99 - 1), [true, false]);
        assert_eq!(with(ENOUGH_FOR_P99), [true, true]);
    }
}
