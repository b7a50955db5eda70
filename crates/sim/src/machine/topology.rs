//! How far from one another pCPUs are, and where a vCPU may run.

use super::Machine;
use crate::ids::{PcpuId, VcpuId};

/// How far from one another two pCPUs are. The model's hosts have no NUMA nodes beside their last-level
/// caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Farness {
    SameCore,
    SameLlc,
    AnotherLlc,
}

impl Farness {
    /// The nearest first.
    pub const ALL: [Self; 3] = [Self::SameCore, Self::SameLlc, Self::AnotherLlc];
}

impl Machine {
    #[inline]
    pub fn allows(&self, vcpu: VcpuId, pcpu: PcpuId) -> bool {
        let host = &self.vcpus[vcpu];
        if self.never_moves {
            return host.pcpu == pcpu;
        }
        let vm = &self.vms[host.vm];
        vm.allows(pcpu) && (vm.pinned_round == 0 || vm.pin_of(vcpu) == pcpu)
    }

    /// The one pCPU that it may run on, if it is one.
    pub fn only_pcpu(&self, vcpu: VcpuId) -> Option<PcpuId> {
        let vm = &self.vms[self.vcpus[vcpu].vm];
        if vm.pinned_round > 0 { Some(vm.pin_of(vcpu)) } else { vm.only_pcpu }
    }

    #[inline]
    pub fn llc_of(&self, pcpu: PcpuId) -> u32 {
        pcpu.number() / self.llc_pcpus
    }

    pub fn farness(&self, a: PcpuId, b: PcpuId) -> Farness {
        if a.number() % self.cores == b.number() % self.cores {
            Farness::SameCore
        } else if self.llc_of(a) == self.llc_of(b) {
            Farness::SameLlc
        } else {
            Farness::AnotherLlc
        }
    }
}
