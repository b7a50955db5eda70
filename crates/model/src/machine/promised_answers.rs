//! Answers that hold for later pause-loop exits too, as long as what they depend on stays as it is.

use super::{HostVm, Machine, VcpuState};
use crate::ids::{PcpuId, VcpuId, VmId};

/// What a scheduler's answer to a vCPU's pause-loop exits depends on, if it promises the same one to those
/// that follow ([`Machine::promise`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Promised {
    /// Nobody of these kinds waits ([`Waiting::kinds`]).
    pub without_kinds: u64,
    /// As many siblings are requested, and as many are about to answer, as now.
    pub helped: bool,
}

impl Promised {
    pub(super) const NOTHING: Self = Self { without_kinds: 0, helped: false };
}

impl Machine {
    /// This running vCPU's pause-loop exits are answered the same, as long as that stays as it is.
    pub fn promise(&mut self, vcpu: VcpuId, depends_on: Promised) {
        let vm = self.vcpus[vcpu].vm;
        debug_assert_eq!(self.vms[vm].waiting.kinds & depends_on.without_kinds, 0);
        let promised = &mut self.vms[vm].promised;
        promised.without_kinds |= depends_on.without_kinds;
        promised.helped |= depends_on.helped;
        self.promised.set(vcpu, true);
    }

    /// The waiting vCPUs of a VM have changed, and `helped_before` was [`Waiting::helped`].
    #[inline]
    pub(super) fn break_promises(&mut self, vm: VmId, helped_before: (u32, u32)) {
        let HostVm { waiting, promised, .. } = &self.vms[vm];
        let helped_changed = promised.helped & (waiting.helped() != helped_before);
        if (waiting.kinds & promised.without_kinds != 0) | helped_changed {
            self.break_all_promises(vm);
        }
    }

    /// The next pause-loop exits of this VM's vCPUs must be looked at.
    #[inline(never)]
    pub fn break_all_promises(&mut self, vm: VmId) {
        let HostVm { first_vcpu, vcpus, promised, .. } = &mut self.vms[vm];
        let (mut from, end) = (*first_vcpu, first_vcpu.plus(*vcpus));
        *promised = Promised::NOTHING;
        while let Some(vcpu) = self.promised.find_between(from, end) {
            self.promised.set(vcpu, false);
            let host = &self.vcpus[vcpu];
            if host.state == VcpuState::Running {
                self.answers_changed(host.pcpu);
            }
            from = vcpu.plus(1);
        }
    }

    /// The next pause-loop exit on this pCPU must be looked at: its answer may have changed.
    #[inline]
    pub fn answers_changed(&mut self, pcpu: PcpuId) {
        if self.pcpus[pcpu].current != VcpuId::NONE {
            self.unbatch.push(pcpu);
        }
    }
}
