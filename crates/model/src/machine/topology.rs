//! Which pCPUs share caches or a core, and where a vCPU may run. The model's hosts have no NUMA nodes beside
//! their last-level caches.

use super::Machine;
use crate::ids::{PcpuId, VcpuId};
use std::ops::Range;

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

    /// Whether it may run wherever another one may.
    pub fn allows_all_of(&self, vcpu: VcpuId, other: VcpuId) -> bool {
        let is_narrow = |vcpu: VcpuId| self.never_moves || self.vms[self.vcpus[vcpu].vm].is_narrow();
        let allows = |pcpu| self.allows(vcpu, pcpu) || !self.allows(other, pcpu);
        !is_narrow(vcpu) || (is_narrow(other) && self.pcpus.ids().all(allows))
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

    /// Those of a pCPU's last-level cache, by number.
    pub fn pcpus_of_llc(&self, pcpu: PcpuId) -> Range<u32> {
        let first = self.llc_of(pcpu) * self.llc_pcpus;
        first..(first + self.llc_pcpus).min(self.pcpus.next_id().number())
    }

    /// The other threads of a pCPU's core, those behind it first.
    pub fn threads_beside(&self, pcpu: PcpuId) -> impl Iterator<Item = PcpuId> + use<> {
        let (own, end, step) = (pcpu.number(), self.pcpus.next_id().number(), self.cores as usize);
        let behind = (own..end).step_by(step).skip(1);
        behind.chain((own % self.cores..own).step_by(step)).map(PcpuId::new)
    }

    /// Whether they share a core or a last-level cache.
    pub fn are_near(&self, a: PcpuId, b: PcpuId) -> bool {
        a.number() % self.cores == b.number() % self.cores || self.llc_of(a) == self.llc_of(b)
    }
}
