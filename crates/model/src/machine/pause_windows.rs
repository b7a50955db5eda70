//! KVM's pause-loop windows: for how long a vCPU may spin before it exits.
//!
//! Problem.   A short window costs exits. In a long one a vCPU spins for a holder that doesn't run.
//! Mechanism. The window is multiplied at each exit, up to a limit (`grow_ple_window`, which `handle_pause`
//!            and `pause_interception` call). It begins anew when its vCPU gets on a pCPU again
//!            (`shrink_ple_window` in `vmx_vcpu_load` and `svm_vcpu_load`). Linux 6.12.
//! Limits.    `ple_window_shrink` is 0, its default: back to the base at once.

use crate::config::PleConfig;
use crate::ids::{IdVec, VcpuId};

pub struct PauseWindows {
    base_ns: u64,
    factor: u64,
    max_ns: u64,
    /// Of each vCPU; empty where they never grow.
    of: IdVec<VcpuId, u64>,
}

impl PauseWindows {
    pub fn new(config: &PleConfig, vcpus: usize) -> Self {
        let grows = config.enabled && config.window_grow > 1 && config.window_max_ns > config.window_ns;
        Self {
            base_ns: config.window_ns,
            factor: config.window_grow.into(),
            max_ns: config.window_max_ns,
            of: IdVec::of(config.window_ns, if grows { vcpus } else { 0 }),
        }
    }

    /// Returns whether windows grow at all.
    #[inline]
    pub fn grow(&self) -> bool {
        !self.of.is_empty()
    }

    /// Returns the window that a vCPU spins in, or exits from.
    #[inline]
    pub fn of(&self, vcpu: VcpuId) -> u64 {
        if self.grow() { self.of[vcpu] } else { self.base_ns }
    }

    /// Returns by how much a vCPU's window has grown since it got on its pCPU.
    pub fn grown_ns(&self, vcpu: VcpuId) -> u64 {
        self.of(vcpu) - self.base_ns
    }

    /// Returns the window after an exit from this one.
    pub fn after(&self, window_ns: u64) -> u64 {
        window_ns.saturating_mul(self.factor).min(self.max_ns)
    }

    /// An exit from a vCPU's window is over; where windows grow.
    pub fn set(&mut self, vcpu: VcpuId, window_ns: u64) {
        self.of[vcpu] = window_ns;
    }

    /// A vCPU gets on a pCPU.
    pub fn begin_anew(&mut self, vcpu: VcpuId) {
        if self.grow() {
            self.of[vcpu] = self.base_ns;
        }
    }
}
