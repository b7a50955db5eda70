//! What KVM and its processor do: pause-loop exits, directed yields, halt polling, interrupts.

use serde::Serialize;

/// Pause-loop exiting.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PleConfig {
    pub enabled: bool,
    /// Spinning time after which a pause loop exits.
    pub window_ns: u64,
    /// What the window is multiplied by at each exit (`ple_window_grow`); 1: it stays as it is.
    #[serde(skip_serializing_if = "is_one")]
    pub window_grow: u32,
    /// The longest window (`ple_window_max`).
    #[serde(skip_serializing_if = "is_endless")]
    pub window_max_ns: u64,
}

impl PleConfig {
    /// A window that stays as it is, of 4,096 cycles of 2.4 GHz.
    pub const CONSTANT: Self =
        Self { enabled: true, window_ns: 1_707, window_grow: 1, window_max_ns: u64::MAX };
}

/// KVM's own mechanics (`virt/kvm/kvm_main.c`, Linux 6.12).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KvmConfig {
    /// What a directed yield costs the yielder, which locks two runqueues, whatever comes of it.
    pub yield_to_ns: u64,
    /// What a pause-loop exit, with its yield, takes longer at times: from nothing to so much, all alike.
    #[serde(skip_serializing_if = "is_zero")]
    pub exit_jitter_ns: u64,
    /// For how long a halted vCPU keeps its pCPU, at most (`halt_poll_ns`); 0: not at all.
    pub halt_poll_ns: u64,
    pub interrupts: InterruptMode,
    /// Devices post their interrupts, and the host hears of none to a vCPU that waits.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub devices_post: bool,
    /// What an IPI costs its sender that doesn't exit for it, per target: a write to the ICR in the guest.
    pub icr_write_ns: u64,
}

/// Which IPIs exit in their sender, and so what the host sees of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum InterruptMode {
    /// `enable_apicv=0`, `avic=0`: every one.
    Software,
    /// Posted interrupts: every one. A running recipient doesn't exit.
    Apicv,
    /// AVIC: those to a recipient that doesn't run (`avic_incomplete_ipi_interception`).
    Avic,
    /// `enable_ipiv=1`: none. One to a preempted recipient waits in its posted-interrupt descriptor, and
    /// nobody is told (`vmx_vcpu_pi_put` sets SN). One to a recipient that has halted wakes it.
    Ipiv,
}

impl InterruptMode {
    /// Returns whether an IPI exits in its sender.
    pub fn exits(self, recipient_runs: bool) -> bool {
        match self {
            Self::Software | Self::Apicv => true,
            Self::Avic => !recipient_runs,
            Self::Ipiv => false,
        }
    }
}

impl KvmConfig {
    /// Whether interrupts may wait for a vCPU without an exit that tells of them.
    pub fn hides_interrupts(&self) -> bool {
        self.devices_post || self.interrupts == InterruptMode::Ipiv
    }

    /// `KVM_HALT_POLL_NS_DEFAULT` (`arch/x86/include/asm/kvm_host.h`).
    pub const HALT_POLL_NS: u64 = 200_000;
}

fn is_one(number: &u32) -> bool {
    *number == 1
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_endless(time_ns: &u64) -> bool {
    *time_ns == u64::MAX
}
