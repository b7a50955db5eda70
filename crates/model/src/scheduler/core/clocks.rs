//! Clocks that vCPUs' and VMs' own clocks are compared with: those of the one furthest ahead.
//!
//! Problem.   One clock for the whole host is wrong for a vCPU that may run on some pCPUs only. Where these
//!            are more contended than others no vCPU keeps up with it. A sleeper comes back with hardly any
//!            lag, behind those that never sleep.
//! Mechanism. Each pCPU has clocks, too: of the vCPUs that began turns there. A vCPU that may run anywhere
//!            goes by the pool's. Any other goes by those of the pCPU where it ran last (`clocks_of` of
//!            `bpf/core/clocks.bpf.h`).

use crate::ids::{IdVec, PcpuId};
use microslice_policy as policy;

/// Clocks wrap in `policy/`; the queue that they order here doesn't, so they begin far from zero.
pub const FIRST_CLOCK_NS: u64 = 1 << 62;

/// Of the vCPU, and of the VM, that is furthest ahead of those that were chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Furthest {
    pub vcpu_ns: u64,
    pub vm_ns: u64,
}

impl Furthest {
    const AT_START: Self = Self { vcpu_ns: FIRST_CLOCK_NS, vm_ns: FIRST_CLOCK_NS };

    fn advance(&mut self, vcpu_ns: u64, vm_ns: u64) {
        self.vcpu_ns = later(self.vcpu_ns, vcpu_ns);
        self.vm_ns = later(self.vm_ns, vm_ns);
    }
}

fn later(a: u64, b: u64) -> u64 {
    if policy::vtime_before(a, b) { b } else { a }
}

pub struct Clocks {
    pool: Furthest,
    pcpus: IdVec<PcpuId, Furthest>,
}

impl Clocks {
    pub fn new(pcpus: usize) -> Self {
        Self { pool: Furthest::AT_START, pcpus: IdVec::of(Furthest::AT_START, pcpus) }
    }

    /// A turn of the normal pool begins.
    pub fn advance(&mut self, pcpu: PcpuId, vcpu_ns: u64, vm_ns: u64) {
        self.pool.advance(vcpu_ns, vm_ns);
        self.pcpus[pcpu].advance(vcpu_ns, vm_ns);
    }

    /// What a vCPU goes by that ran on this pCPU last, and may run there and on some others only, or
    /// anywhere.
    pub fn of(&self, pcpu: PcpuId, is_narrow: bool) -> Furthest {
        if is_narrow { self.pcpus[pcpu] } else { self.pool }
    }
}
