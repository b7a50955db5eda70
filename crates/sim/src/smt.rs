//! Hardware threads of one core: who is alone on its core is faster.
//!
//! Programs' times hold for busy siblings, since that is how a loaded host runs. A pCPU whose siblings are all idle makes
//! `1 / smt_busy_speed` times that progress: in user mode and in the kernel, but not while it spins, whose times are a
//! clock's (`passing.rs`). A sibling that spins is busy.

use crate::config::HostConfig;
use crate::engine::Simulation;
use crate::machine::NONE;
use crate::trace_event::{PcpuId, VcpuId};

/// Speeds are fractions of this: small enough for products with any time, exact for 1.
const ONE_BITS: u32 = 14;
const ONE: u64 = 1 << ONE_BITS;

/// How fast a vCPU is, with a busy sibling and alone.
pub struct Smt {
    speeds: [u64; 2],
    /// Their reciprocals, rounded up: a step isn't over too early.
    slownesses: [u64; 2],
    /// pCPUs with that distance share a core.
    cores: usize,
    /// Whether any of it matters.
    pub matters: bool,
}

impl Smt {
    pub fn new(host: &HostConfig) -> Self {
        let alone = ONE * 1_000 / u64::from(host.smt_busy_speed_permille.clamp(1, 1_000));
        let cores = host.pcpus.div_ceil(host.smt_threads.max(1));
        Self {
            speeds: [ONE, alone],
            slownesses: [ONE, (ONE * ONE).div_ceil(alone)],
            cores,
            matters: cores < host.pcpus && alone > ONE,
        }
    }

    /// Progress within a time.
    #[inline(always)]
    pub fn progress_ns(&self, elapsed_ns: u64, alone: bool) -> u64 {
        (elapsed_ns * self.speeds[usize::from(alone)]) >> ONE_BITS
    }

    /// The time that progress takes.
    #[inline(always)]
    pub fn time_ns(&self, progress_ns: u64, alone: bool) -> u64 {
        (progress_ns * self.slownesses[usize::from(alone)] + ONE - 1) >> ONE_BITS
    }
}

impl Simulation<'_> {
    fn is_alone(&self, pcpu: PcpuId) -> bool {
        let mut threads = (pcpu as usize % self.smt.cores..self.machine.pcpus.len()).step_by(self.smt.cores);
        threads.all(|thread| thread == pcpu as usize || self.machine.pcpus[thread].current == NONE)
    }

    /// `vcpu` gets on this pCPU: it isn't synced yet.
    pub(crate) fn set_speed(&mut self, vcpu: VcpuId, pcpu: PcpuId) {
        if self.smt.matters {
            let alone = self.is_alone(pcpu);
            self.guest[vcpu as usize].set_alone(alone);
        }
    }

    /// This pCPU has become idle, or busy: its siblings' speeds change.
    pub(crate) fn change_siblings_speed(&mut self, pcpu: PcpuId) {
        if !self.smt.matters {
            return;
        }
        for thread in (pcpu as usize % self.smt.cores..self.machine.pcpus.len()).step_by(self.smt.cores) {
            let vcpu = self.machine.pcpus[thread].current;
            if thread == pcpu as usize || vcpu == NONE {
                continue;
            }
            let alone = self.is_alone(thread as PcpuId);
            if self.guest[vcpu as usize].is_alone() != alone {
                self.sync(vcpu);
                self.guest[vcpu as usize].set_alone(alone);
                self.arm(thread as PcpuId);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Overrides, load};

    fn smt(busy_speed_permille: u32) -> Smt {
        let host = load("gmake-swaptions", &Overrides::default()).expect("built in").config.host;
        Smt::new(&HostConfig { smt_busy_speed_permille: busy_speed_permille, ..host })
    }

    #[test]
    fn who_has_a_busy_sibling_is_the_unit_exactly() {
        let smt = smt(500);
        for time in [0, 1, 2, 999, 1_000_003, 140_000_000_000_000] {
            assert_eq!((smt.progress_ns(time, false), smt.time_ns(time, false)), (time, time));
        }
    }

    #[test]
    fn a_step_is_over_after_the_time_that_it_takes_and_at_most_a_little_later() {
        for permille in [100, 333, 625, 999, 1000] {
            let smt = smt(permille);
            for step in [1, 2, 3, 10, 1_234_567, 3_600_000_000_000] {
                let time = smt.time_ns(step, true);
                assert!(smt.progress_ns(time, true) >= step, "{permille} {step}");
                let ideal = step as f64 * f64::from(permille) / 1000.0;
                assert!(time as f64 <= ideal * 1.001 + 2.0, "{permille} {step}: {time}");
            }
        }
    }

    #[test]
    fn without_siblings_or_loss_nothing_matters() {
        assert!(smt(625).matters && !smt(1000).matters);
        let host = load("gmake-swaptions", &Overrides::default()).expect("built in").config.host;
        assert!(!Smt::new(&HostConfig { smt_threads: 1, smt_busy_speed_permille: 625, ..host }).matters);
    }
}
