//! Hardware threads of one core: one that has it to itself is faster.
//!
//! Programs' times hold for busy siblings, since that is how a loaded host runs. A pCPU whose siblings are
//! all idle makes `1 / smt_busy_speed` times that progress: in user mode and in the kernel, but not while it
//! spins, whose times are a clock's (`passing.rs`). Beside a sibling that spins it is something between:
//! PAUSE, and the exits that it leads to, leave most of a core to the other thread (`smt_spin_speed`).

use crate::config::HostConfig;
use crate::ids::{IdVec, PcpuId};

use std::hint::select_unpredictable;

/// Speeds are fractions of this: small enough for products with any time, exact for 1.
const ONE_BITS: u32 = 14;
const ONE: u64 = 1 << ONE_BITS;
const SPEEDS: usize = 4;

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
    /// By what the siblings do; four, so that two bits need no check.
    speeds: [u64; SPEEDS],
    /// Their reciprocals, rounded up: a step isn't over too early.
    slownesses: [u64; SPEEDS],
    cores: u32,
    /// Whether a core has two threads, as nearly all have: then there is one sibling, or none.
    pairs: bool,
    /// Whether any of it matters.
    matters: bool,
    /// What each pCPU does, in a byte: one for its sibling, which is far away, to read. Bits of `BUSY` and
    /// `SPINS`.
    does: IdVec<PcpuId, u8>,
}

/// Its vCPU spins, or did when it last had one.
const SPINS: u8 = 1;
const BUSY: u8 = 2;
/// By these bits.
const DOES: [Siblings; 4] = [Siblings::Idle, Siblings::Idle, Siblings::Busy, Siblings::Spin];

impl Smt {
    pub fn new(host: &HostConfig) -> Self {
        let (busy, spin) = (host.smt_busy_speed_permille.clamp(1, 1_000), host.smt_spin_speed_permille);
        let [busy, spin] = [busy, spin.clamp(busy, 1_000)].map(u64::from);
        let alone = ONE * 1_000 / busy;
        let speeds = [ONE, ONE * spin / busy, alone, alone];
        let cores = host.pcpus.div_ceil(host.smt_threads.max(1));
        Self {
            speeds,
            slownesses: speeds.map(|speed| (ONE * ONE).div_ceil(speed)),
            cores: cores as u32,
            matters: cores < host.pcpus && speeds != [ONE; SPEEDS],
            pairs: host.pcpus <= 2 * cores,
            does: IdVec::of(0, host.pcpus),
        }
    }

    /// The first of the pCPUs of a core; each other one is `cores` behind the one before.
    #[inline]
    fn first_of_core(&self, pcpu: PcpuId) -> PcpuId {
        let mut first = pcpu.number();
        while first >= self.cores {
            first -= self.cores;
        }
        PcpuId::new(first)
    }

    /// The other thread of a core of two; no pCPU's number if there is none.
    #[inline]
    fn partner(&self, pcpu: PcpuId) -> PcpuId {
        let (own, cores) = (pcpu.number(), self.cores);
        PcpuId::new(select_unpredictable(own < cores, own + cores, own.wrapping_sub(cores)))
    }

    #[inline]
    fn does(&self, pcpu: PcpuId) -> Siblings {
        DOES[usize::from(self.does[pcpu]) % DOES.len()]
    }

    #[inline]
    pub fn siblings_do(&self, pcpu: PcpuId) -> Siblings {
        if self.pairs {
            let partner = self.partner(pcpu);
            return if partner.index() < self.does.len() { self.does(partner) } else { Siblings::Idle };
        }
        self.siblings_of_many_do(pcpu)
    }

    #[cold]
    fn siblings_of_many_do(&self, pcpu: PcpuId) -> Siblings {
        let others = self.threads_of_core(pcpu).filter(|&thread| thread != pcpu);
        others.map(|thread| self.does(thread)).min().unwrap_or(Siblings::Idle)
    }

    /// A vCPU gets on this pCPU. What its siblings do, if it matters.
    #[inline]
    pub fn occupy(&mut self, pcpu: PcpuId) -> Option<Siblings> {
        self.matters.then(|| {
            self.does[pcpu] |= BUSY;
            self.siblings_do(pcpu)
        })
    }

    /// What this pCPU does next is known. Returns whether its siblings' speeds change by it.
    #[inline(always)]
    pub fn note_spinning(&mut self, pcpu: PcpuId, spins: bool) -> bool {
        if !self.matters {
            return false;
        }
        let does = &mut self.does[pcpu];
        let changes = (*does & SPINS != 0) != spins;
        if changes {
            *does ^= SPINS;
        }
        changes
    }

    /// This pCPU is idle from now on, or not. Returns whether that may matter to its siblings.
    #[inline]
    pub fn note_idle(&mut self, pcpu: PcpuId, is_idle: bool) -> bool {
        if self.matters {
            let does = &mut self.does[pcpu];
            *does = *does & !BUSY | select_unpredictable(is_idle, 0, BUSY);
        }
        self.matters
    }

    /// Its sibling, on a host where none has more; no pCPU's number if it has none.
    #[inline]
    pub fn only_sibling(&self, pcpu: PcpuId) -> Option<PcpuId> {
        self.pairs.then(|| self.partner(pcpu))
    }

    /// All threads of its core.
    pub fn threads_of_core(&self, pcpu: PcpuId) -> impl Iterator<Item = PcpuId> + use<> {
        self.first_of_core(pcpu).until(self.does.next_id()).step_by(self.cores as usize)
    }

    /// Progress within a time.
    #[inline(always)]
    pub fn progress_ns(&self, elapsed_ns: u64, speed: usize) -> u64 {
        (elapsed_ns * self.speeds[speed % SPEEDS]) >> ONE_BITS
    }

    /// The time that progress takes.
    #[inline(always)]
    pub fn time_ns(&self, progress_ns: u64, speed: usize) -> u64 {
        (progress_ns * self.slownesses[speed % SPEEDS] + ONE - 1) >> ONE_BITS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    fn smt(busy_speed_permille: u32) -> Smt {
        let speeds = (busy_speed_permille, busy_speed_permille.midpoint(1_000));
        Smt::new(&HostConfig {
            smt_busy_speed_permille: speeds.0,
            smt_spin_speed_permille: speeds.1,
            ..samples::host()
        })
    }

    #[test]
    fn a_thread_with_a_busy_sibling_is_the_unit_exactly() {
        let smt = smt(500);
        for time in [0, 1, 2, 999, 1_000_003, 140_000_000_000_000] {
            assert_eq!(
                (smt.progress_ns(time, Siblings::Busy as usize), smt.time_ns(time, Siblings::Busy as usize)),
                (time, time)
            );
        }
    }

    #[test]
    fn a_step_is_over_after_the_time_that_it_takes_and_at_most_a_little_later() {
        for permille in [100, 333, 625, 999, 1000] {
            let smt = smt(permille);
            for step in [1, 2, 3, 10, 1_234_567, 3_600_000_000_000] {
                let time = smt.time_ns(step, Siblings::Idle as usize);
                assert!(smt.progress_ns(time, Siblings::Idle as usize) >= step, "{permille} {step}");
                let ideal = step as f64 * f64::from(permille) / 1000.0;
                assert!(time as f64 <= ideal * 1.001 + 2.0, "{permille} {step}: {time}");
            }
        }
    }

    #[test]
    fn without_siblings_or_loss_nothing_matters() {
        assert!(smt(625).matters && !smt(1000).matters);
        assert!(
            !Smt::new(&HostConfig { smt_threads: 1, smt_busy_speed_permille: 625, ..samples::host() })
                .matters
        );
    }

    #[test]
    fn beside_a_spinning_sibling_it_is_faster_than_beside_a_busy_one_and_slower_than_alone() {
        let smt = smt(620);
        let [busy, spin, idle] = Siblings::ALL.map(|siblings| smt.progress_ns(1_000_000, siblings as usize));
        assert!(busy < spin && spin < idle, "{busy} {spin} {idle}");
    }
}
