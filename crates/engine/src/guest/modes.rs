//! Where a guest may hold spinlocks, and for how long it does (VM'04): what a host that delays preemptions is
//! told of it, and what is measured where the scenario asks for it.

use crate::guest::Act;
use crate::simulation::Simulation;
use crate::text;
use microslice_model::events::StopReason;
use microslice_model::ids::{PcpuId, VcpuId};
use microslice_model::machine::VcpuState;

/// Since when a vCPU has been safe, or unsafe.
#[derive(Clone, Copy, Default)]
pub struct Mode {
    pub is_unsafe: bool,
    pub since_ns: u64,
}

impl Simulation<'_> {
    /// A vCPU may have changed from user mode or a halt to the kernel, or back.
    #[cold]
    pub(crate) fn note_mode(&mut self, vcpu: VcpuId) {
        let now_ns = self.machine.now_ns;
        let guest = &self.guest[vcpu];
        let in_user_mode = guest.depth == 0 && matches!(guest.frames[0].symbol, text::USER | text::IDLE);
        let host = &self.machine.vcpus[vcpu];
        let is_unsafe = !in_user_mode && host.state != VcpuState::Blocked;
        let mode = &mut self.modes[vcpu];
        if mode.is_unsafe == is_unsafe {
            return;
        }
        let lasted_ns = now_ns - mode.since_ns.max(self.measured.since_ns()).min(now_ns);
        self.measured.mode_lasted(host.vm, mode.is_unsafe, lasted_ns);
        *mode = Mode { is_unsafe, since_ns: now_ns };
    }

    /// The active frame has a spinlock from now on.
    #[cold]
    pub(crate) fn note_hold(&mut self, vcpu: VcpuId) {
        let guest = &mut self.guest[vcpu];
        // It waits no longer: since then it holds.
        guest.waits_since_ns[usize::from(guest.depth)] = self.machine.now_ns;
    }

    /// It gives it up.
    #[cold]
    pub(crate) fn note_release(&mut self, vcpu: VcpuId) {
        let guest = &self.guest[vcpu];
        let since_ns = guest.waits_since_ns[usize::from(guest.depth)];
        let held_ns = self.machine.now_ns - since_ns.min(self.machine.now_ns);
        self.measured.lock_held(self.machine.vcpus[vcpu].vm, held_ns);
    }

    /// What of the locks that it holds matters to the scheduler.
    #[cold]
    pub(crate) fn note_locks(&mut self, vcpu: VcpuId) {
        let holds = self.held_spinlock(vcpu).is_some();
        // The hint comes before the lock (VM'04, 3.1).
        let hints = holds || self.guest[vcpu].frames[0].act == Act::SpinLock;
        let by_program_ns = self.said_by_program(vcpu);
        let host = &mut self.machine.vcpus[vcpu];
        host.holds_spinlock = holds;
        let by_kernel_ns = if hints { self.vms[host.vm].kernel.preemption_hint_ns } else { 0 };
        host.hint_ns = by_kernel_ns.max(by_program_ns);
    }

    /// It may be safe to preempt the vCPU that runs there, now that it has begun something else.
    #[cold]
    pub(crate) fn tell_change(&mut self, pcpu: PcpuId, vcpu: VcpuId) {
        if self.times_guests {
            self.note_mode(vcpu);
        }
        if self.machine.pcpus[pcpu].tells_changes && !self.machine.wants_schedule(pcpu) {
            self.request_stop(pcpu, StopReason::SliceExpired);
        }
    }
}
