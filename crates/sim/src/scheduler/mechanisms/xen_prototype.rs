//! What the authors' Xen prototype does that no other host does: blocked siblings, and spinners on micro-sliced pCPUs. The table
//! in `mod.rs` has all of its rules.

use super::MicroSliced;
use crate::ids::{PcpuId, VcpuId, VmId};
use crate::machine::Machine;
use crate::scheduler::{Core, YieldAnswer};
use microslice_policy::{Cause, PassScope};

impl<Normal: Core> MicroSliced<Normal> {
    /// The prototype's passes for shootdowns don't ask whether a sibling runs, waits or is blocked: a blocked one belongs to
    /// a micro pCPU from then on, as does one that blocks there. When it wakes it gets a micro slice, if it has the place to
    /// itself. Returns false if there is no micro pCPU with room, which ends the pass.
    pub(super) fn take_along(&mut self, machine: &Machine, vcpu: VcpuId, cause: Cause) -> bool {
        let at = self.members[vcpu].blocked_at;
        if at != PcpuId::NONE && self.is_micro_pcpu(at) {
            return true;
        }
        let vm = machine.vcpus[vcpu].vm;
        let Some(pcpu) = self.place(machine, vcpu) else {
            self.has_unclaimed[vm] = true;
            return false;
        };
        let member = &mut self.members[vcpu];
        (member.blocked_at, member.cause) = (pcpu, cause);
        true
    }

    /// Somebody of the VM may be blocked that belongs to no micro pCPU: a pass has to look for whom it takes along.
    pub(super) fn note_unclaimed(&mut self, machine: &mut Machine, vm: VmId) {
        let before = std::mem::replace(&mut self.has_unclaimed[vm], true);
        if self.prototype && !before {
            machine.break_all_promises(vm);
        }
    }

    /// Whether a pass may find blocked siblings that it takes along.
    pub(super) fn takes_along(&self, vm: VmId, scope: PassScope) -> bool {
        self.prototype && scope == PassScope::AllPreempted && self.has_unclaimed[vm]
    }

    /// In the prototype who spins on a micro-sliced pCPU yields as under plain Xen: the credit scheduler chooses it again, for
    /// a slice more, while nobody else waits there.
    pub(super) fn spins_on(&self, machine: &mut Machine, micro_pcpu: PcpuId) -> YieldAnswer {
        if self.waiting[micro_pcpu].is_some() {
            return YieldAnswer::Yield;
        }
        machine.pcpus[micro_pcpu].slice_end_ns = machine.now_ns + self.config.micro_slice_ns;
        YieldAnswer::KeepSpinning { until_ns: machine.now_ns }
    }

    /// The micro pCPU that a vCPU belonged to while it was blocked, if nobody waits for it.
    pub(super) fn wakes_at(&mut self, vcpu: VcpuId) -> Option<PcpuId> {
        let at = std::mem::replace(&mut self.members[vcpu].blocked_at, PcpuId::NONE);
        (at != PcpuId::NONE && self.is_micro_pcpu(at) && self.waiting[at].is_none()).then_some(at)
    }
}
