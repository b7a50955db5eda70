//! What users feel of waits: operations' own times, and waits for a pCPU by their length.
//!
//! The plain percentile of waits isn't among them: a policy that makes a thousand short waits out of one long
//! one would look better by it.

use microslice_engine::report::VmReport;
use microslice_metrics::Histogram;

/// A kind of wait, each judged by the 99th percentile of a VM's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeltWait {
    /// From a thread's wake-up, or from when its timer was due, until it runs.
    WakeUp,
    /// From a shootdown's first interrupt until its last answer.
    Shootdown,
    /// Acquisitions of locks; those that nobody contends wait for nothing.
    Lock,
    /// Waits for a pCPU by their length: 99 % of all waiting is in waits that are no longer.
    Ready,
    /// The longest wait for a pCPU of each second; here the longest of all.
    Longest,
}

/// In the order of tables.
pub const FELT_WAITS: [FeltWait; 5] =
    [FeltWait::WakeUp, FeltWait::Shootdown, FeltWait::Lock, FeltWait::Ready, FeltWait::Longest];

/// Fewer have no 99th percentile worth the name.
const SAMPLES_MIN: u64 = 100;

impl FeltWait {
    /// Its name in tables and in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::WakeUp => "wake-up",
            Self::Shootdown => "shootdown",
            Self::Lock => "lock",
            Self::Ready => "ready",
            Self::Longest => "longest",
        }
    }

    fn ns(self, vm: &VmReport) -> Option<u64> {
        let p99 = |waits: &Histogram| waits.percentile(99.0).filter(|_| waits.count() >= SAMPLES_MIN);
        match self {
            Self::WakeUp => p99(&vm.wake_waits),
            Self::Shootdown => p99(&vm.tlb_sync),
            Self::Lock => p99(&acquisitions(vm)),
            Self::Ready => p99(&vm.waits.by_length()),
            Self::Longest => vm.longest_waits.iter().max().copied(),
        }
    }
}

/// All of a VM's locks.
fn acquisitions(vm: &VmReport) -> Histogram {
    let mut all = Histogram::new();
    vm.lock_waits.values().for_each(|waits| all.merge(waits));
    let taken: u64 = vm.lock_acquisitions.values().sum();
    all.record_many(0, taken.saturating_sub(all.count()));
    all
}

/// A VM's felt waits, in ns; `None` where there were too few of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FeltTimes([Option<f64>; FELT_WAITS.len()]);

impl FeltTimes {
    /// Returns those that a run measured.
    pub fn of(vm: &VmReport) -> Self {
        Self(FELT_WAITS.map(|wait| wait.ns(vm).map(|ns| ns as f64)))
    }

    /// Returns that of one kind.
    pub fn ns(&self, wait: FeltWait) -> Option<f64> {
        self.0[wait as usize]
    }

    #[cfg(test)]
    pub fn all(ns: f64) -> Self {
        Self([Some(ns); FELT_WAITS.len()])
    }
}
