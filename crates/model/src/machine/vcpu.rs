//! A vCPU as the host sees it.

use super::waiting::Kind;
use crate::ids::{PcpuId, VmId};
use microslice_policy::{GuestClass, Held, InterruptKind};

/// An interrupt's bit in [`HostVcpu::pending_interrupts`].
pub const fn interrupt_bit(kind: InterruptKind) -> u8 {
    1 << kind as u8
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VcpuState {
    Blocked,
    Runnable,
    Running,
}

/// What is left of a vCPU in the caches of the pCPU that it ran on last.
pub struct Warmth {
    /// `NONE`: it has never run.
    pub left_pcpu: PcpuId,
    /// Per mille of the host's worst case that cold caches cost what runs on it now.
    pub sensitivity: u32,
    /// Busy time of that pCPU when it left it.
    pub left_busy_ns: u64,
}

/// Time and switches of a vCPU since the warm-up.
#[derive(Clone, Copy, Default)]
pub struct Turns {
    pub run_ns: u64,
    pub wait_ns: u64,
    pub switches: u64,
}

/// What the host keeps of a vCPU, in two cache lines. `state`, `preempted`, `yielded`, `requested`, `class`
/// and `owes_answer` are for reading: [`super::Machine`] changes them, because it counts waiting vCPUs.
#[repr(align(64))]
pub struct HostVcpu {
    pub vm: VmId,
    pub state: VcpuState,
    /// Where it runs, or ran last. While it waits: what the scheduler writes, such as whose queue it is in.
    pub pcpu: PcpuId,
    /// Since when it is in `state`.
    pub since_ns: u64,
    /// Runnable because the host took its pCPU away.
    pub preempted: bool,
    /// Runnable because it gave its pCPU up itself.
    pub yielded: bool,
    /// The scheduler has moved it to where it runs soon: it doesn't wait for help.
    pub requested: bool,
    /// Class of the instruction pointer where it stopped or yields.
    pub class: GuestClass,
    pub interrupts_enabled: bool,
    /// What it held where it stopped or yields, and its guest's word, if the host reads these.
    pub held: Held,
    pub preempt_count: u32,
    /// Interrupts that its guest hasn't taken, but for its own tick: one bit a kind ([`interrupt_bit`]).
    pub pending_interrupts: u8,
    /// A call-function interrupt has come that its guest hasn't handled: it waits in the local APIC, or in
    /// its handler.
    pub owes_answer: bool,
    /// Its kernel holds a spinlock, as far as that matters to the scheduler.
    pub holds_spinlock: bool,
    /// Its guest has said: not now, for so long; 0: it hasn't.
    pub hint_ns: u32,
    pub warmth: Warmth,
    pub turns: Turns,
}

const _: () = assert!(size_of::<HostVcpu>() == 128, "two cache lines");

impl HostVcpu {
    /// Returns one that has never run, and begins there.
    pub(super) fn new(vm: VmId, pcpu: PcpuId) -> Self {
        Self {
            vm,
            state: VcpuState::Blocked,
            pcpu,
            since_ns: 0,
            preempted: false,
            yielded: false,
            requested: false,
            class: GuestClass::Idle,
            held: Held::Unknown,
            preempt_count: 0,
            interrupts_enabled: true,
            pending_interrupts: 0,
            owes_answer: false,
            holds_spinlock: false,
            hint_ns: 0,
            warmth: Warmth { left_pcpu: PcpuId::NONE, sensitivity: 0, left_busy_ns: 0 },
            turns: Turns::default(),
        }
    }

    /// Whether KVM might yield to it: it waits, but not because it was preempted in user mode with no
    /// interrupt to take. `if_woken`: also where it was woken (`vcpu->ready`, Linux 5.3 on).
    pub(super) fn is_boostable(&self, if_woken: bool) -> bool {
        let in_kernel = self.class != GuestClass::User || self.pending_interrupts != 0;
        let is_ready = if_woken || self.preempted || self.yielded;
        self.state == VcpuState::Runnable && is_ready && (!self.preempted || in_kernel)
    }

    /// Its bit of [`Waiting::kinds`] while it waits.
    #[inline]
    pub fn kind(&self) -> Kind {
        let &Self { preempted, yielded, owes_answer, .. } = self;
        Kind { class: self.class as usize, preempted, yielded, owes_answer }
    }
}
