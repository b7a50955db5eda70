//! Hardware threads of one core: who has it to itself is faster.
//!
//! Programs' times hold for busy siblings, since that is how a loaded host runs. A pCPU whose siblings are all idle makes
//! `1 / smt_busy_speed` times that progress: in user mode and in the kernel, but not while it spins, whose times are a
//! clock's (`passing.rs`). Beside a sibling that spins it is something between: PAUSE, and the exits that it leads to, leave
//! most of a core to the other thread (`smt_spin_speed`).

use crate::config::HostConfig;
use crate::engine::Simulation;
use crate::guest::Act;
use crate::machine::NONE;
use crate::trace_event::{PcpuId, VcpuId};

/// Speeds are fractions of this: small enough for products with any time, exact for 1.
const ONE_BITS: u32 = 14;
const ONE: u64 = 1 << ONE_BITS;

/// What the other hardware threads of a core do; of several, the one that takes most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Siblings {
    Busy,
    Spin,
    Idle,
}

impl Siblings {
    pub const ALL: [Self; 3] = [Self::Busy, Self::Spin, Self::Idle];
}

/// How fast a vCPU is, by what its pCPU's siblings do.
pub struct Smt {
    speeds: [u64; 3],
    /// Their reciprocals, rounded up: a step isn't over too early.
    slownesses: [u64; 3],
    /// The other pCPUs of each one's core.
    siblings: Vec<Box<[PcpuId]>>,
    /// Whether any of it matters.
    pub matters: bool,
    /// pCPUs whose vCPU spins.
    spins: Vec<bool>,
}

impl Smt {
    pub fn new(host: &HostConfig) -> Self {
        let (busy, spin) = (host.smt_busy_speed_permille.clamp(1, 1_000), host.smt_spin_speed_permille);
        let [busy, spin] = [busy, spin.clamp(busy, 1_000)].map(u64::from);
        let speeds = [ONE, ONE * spin / busy, ONE * 1_000 / busy];
        let cores = host.pcpus.div_ceil(host.smt_threads.max(1));
        Self {
            speeds,
            slownesses: speeds.map(|speed| (ONE * ONE).div_ceil(speed)),
            siblings: (0..host.pcpus)
                .map(|pcpu| {
                    let threads = (pcpu % cores..host.pcpus).step_by(cores);
                    threads.filter(|&thread| thread != pcpu).map(|thread| thread as PcpuId).collect()
                })
                .collect(),
            matters: cores < host.pcpus && speeds != [ONE; 3],
            spins: vec![false; host.pcpus],
        }
    }

    /// Progress within a time.
    #[inline(always)]
    pub fn progress_ns(&self, elapsed_ns: u64, siblings: Siblings) -> u64 {
        (elapsed_ns * self.speeds[siblings as usize]) >> ONE_BITS
    }

    /// The time that progress takes.
    #[inline(always)]
    pub fn time_ns(&self, progress_ns: u64, siblings: Siblings) -> u64 {
        (progress_ns * self.slownesses[siblings as usize] + ONE - 1) >> ONE_BITS
    }
}

impl Simulation<'_> {
    fn siblings_of(&self, pcpu: PcpuId) -> Siblings {
        let does = |&thread: &PcpuId| match self.machine.pcpus[thread as usize].current {
            NONE => Siblings::Idle,
            _ if self.smt.spins[thread as usize] => Siblings::Spin,
            _ => Siblings::Busy,
        };
        self.smt.siblings[pcpu as usize].iter().map(does).min().unwrap_or(Siblings::Idle)
    }

    /// `vcpu` gets on this pCPU: it isn't synced yet.
    pub(crate) fn set_speed(&mut self, vcpu: VcpuId, pcpu: PcpuId) {
        if self.smt.matters {
            let siblings = self.siblings_of(pcpu);
            self.guest[vcpu as usize].set_siblings(siblings);
        }
    }

    /// What this pCPU does next is known.
    #[inline(always)]
    pub(crate) fn note_spinning(&mut self, pcpu: PcpuId, spins: bool) {
        if self.smt.matters && self.smt.spins[pcpu as usize] != spins {
            self.smt.spins[pcpu as usize] = spins;
            self.change_siblings_speed(pcpu);
        }
    }

    /// This pCPU has become idle or busy, or begins or ends to spin: its siblings' speeds change.
    #[inline(never)]
    pub(crate) fn change_siblings_speed(&mut self, pcpu: PcpuId) {
        if !self.smt.matters {
            return;
        }
        for index in 0..self.smt.siblings[pcpu as usize].len() {
            let thread = self.smt.siblings[pcpu as usize][index];
            let vcpu = self.machine.pcpus[thread as usize].current;
            if vcpu == NONE {
                continue;
            }
            let siblings = self.siblings_of(thread);
            let guest = &mut self.guest[vcpu as usize];
            let before = guest.siblings();
            // Otherwise its speed matters when it works again.
            if (siblings != before) & (guest.frame().act == Act::Timed) {
                self.sync_timed(vcpu);
            }
            let guest = &mut self.guest[vcpu as usize];
            guest.set_siblings(siblings);
            // Who gets slower finds at its event that the step isn't over yet.
            if (siblings > before) & (guest.frame().act == Act::Timed) {
                self.arm(thread);
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
        let speeds = (busy_speed_permille, busy_speed_permille.midpoint(1_000));
        Smt::new(&HostConfig { smt_busy_speed_permille: speeds.0, smt_spin_speed_permille: speeds.1, ..host })
    }

    #[test]
    fn who_has_a_busy_sibling_is_the_unit_exactly() {
        let smt = smt(500);
        for time in [0, 1, 2, 999, 1_000_003, 140_000_000_000_000] {
            assert_eq!(
                (smt.progress_ns(time, Siblings::Busy), smt.time_ns(time, Siblings::Busy)),
                (time, time)
            );
        }
    }

    #[test]
    fn a_step_is_over_after_the_time_that_it_takes_and_at_most_a_little_later() {
        for permille in [100, 333, 625, 999, 1000] {
            let smt = smt(permille);
            for step in [1, 2, 3, 10, 1_234_567, 3_600_000_000_000] {
                let time = smt.time_ns(step, Siblings::Idle);
                assert!(smt.progress_ns(time, Siblings::Idle) >= step, "{permille} {step}");
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

    #[test]
    fn beside_a_spinning_sibling_it_is_faster_than_beside_a_busy_one_and_slower_than_alone() {
        let smt = smt(620);
        let [busy, spin, idle] = Siblings::ALL.map(|siblings| smt.progress_ns(1_000_000, siblings));
        assert!(busy < spin && spin < idle, "{busy} {spin} {idle}");
    }
}
