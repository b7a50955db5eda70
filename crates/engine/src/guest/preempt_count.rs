//! What a guest's kernel counts in `preempt_count` (include/linux/preempt.h): the word that a host can read
//! to see what a vCPU holds.
//!
//! | where | counted |
//! |---|---|
//! | user mode, system calls, mutexes held | nothing |
//! | a spinlock, held or waited for; a mutex spun for | 1 each |
//! | a shootdown, from its preparation to the last answer | 1 |
//! | a softirq | 0x100 |
//! | an interrupt's handler, with the threads that it wakes | 0x10000 |
//! | the idle loop | 1 |

use crate::guest::{Act, Frame, GuestVcpu, Holder, Then};
use crate::simulation::Simulation;
use crate::text;
use microslice_model::ids::{LockId, VcpuId, VmId};

const SOFTIRQ_OFFSET: u32 = 1 << 8;
const HARDIRQ_OFFSET: u32 = 1 << 16;

impl Simulation<'_> {
    /// Returns the word as it stands now.
    pub(crate) fn preempt_count(&self, vcpu: VcpuId) -> u32 {
        let guest = &self.guest[vcpu];
        let frames = &guest.frames[..=usize::from(guest.depth)];
        let idles = guest.depth == 0 && guest.frames[0].symbol == text::IDLE;
        frames.iter().map(|frame| self.disabled_by(frame)).sum::<u32>()
            + u32::from(guest.wakes_under_lock())
            + u32::from(idles)
            + interrupt_offset(guest)
    }

    /// Returns what a host reads there.
    pub(crate) fn shown_count(&self, vcpu: VcpuId) -> u32 {
        let host = &self.machine.vcpus[vcpu];
        self.vms[host.vm].kernel.shown_count.of(self.preempt_count(vcpu), host.turns.switches)
    }

    /// The host looks at the words of this VM's running vCPUs, if there may be an heir among the others.
    pub(crate) fn note_counts(&mut self, vm: VmId) {
        let host = &self.machine.vms[vm];
        if host.waiting.kinds & self.machine.heir_kinds == 0 {
            return;
        }
        for vcpu in host.first_vcpu.span(host.vcpus) {
            if self.is_running(vcpu) {
                self.machine.vcpus[vcpu].preempt_count = self.shown_count(vcpu);
            }
        }
    }

    /// Returns how often a frame has disabled preemption.
    fn disabled_by(&self, frame: &Frame) -> u32 {
        let waits = matches!(frame.act, Act::SpinLock | Act::HaltLock | Act::Granted);
        let has_spinlock = frame.lock != LockId::NONE && (waits || !self.locks[frame.lock].wait.sleeps());
        let shoots_down = frame.act == Act::SpinAcks
            || frame.act == Act::Timed
                && matches!(frame.then, Then::PrepareShootdown | Then::SendShootdown | Then::ShootdownDone);
        u32::from(has_spinlock) + u32::from(shoots_down)
    }

    /// Whether the words agree with the locks' owners, and are 0 in user mode: for the checker.
    pub(crate) fn counters_add_up(&self) -> Result<(), String> {
        let mut held = vec![0; self.guest.len()];
        for (_, lock) in self.locks.enumerate() {
            if lock.owner != Holder::NONE && !lock.wait.sleeps() {
                held[lock.owner.vcpu().index()] += 1;
            }
        }
        for (vcpu, guest) in self.guest.enumerate() {
            let (count, held) = (self.preempt_count(vcpu), held[vcpu.index()]);
            let in_user_mode = guest.depth == 0 && guest.frames[0].symbol == text::USER;
            if count & 0xff < held || in_user_mode && count != 0 {
                return Err(format!(
                    "vCPU {vcpu} holds {held} spinlocks, and its preempt_count is {count:#x}"
                ));
            }
        }
        Ok(())
    }
}

fn interrupt_offset(guest: &GuestVcpu) -> u32 {
    match (guest.depth, guest.frames[1].then) {
        (0, _) => 0,
        (_, Then::SoftirqDone) => SOFTIRQ_OFFSET,
        _ => HARDIRQ_OFFSET,
    }
}
