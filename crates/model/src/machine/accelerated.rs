//! Which vCPUs are in the micro pool, counted from when measuring begins.

use super::Machine;
use crate::ids::VcpuId;

impl Machine {
    /// The vCPUs in the micro pool.
    pub(super) fn accelerated(&self) -> impl Iterator<Item = VcpuId> {
        self.vcpus.enumerate().filter(|(_, host)| host.requested).map(|(vcpu, _)| vcpu)
    }

    pub fn count_still_accelerated(&self) -> u64 {
        self.accelerated().filter(|vcpu| !self.accelerated_before.contains(vcpu)).count() as u64
    }

    /// It leaves the micro pool.
    pub fn count_return(&mut self, vcpu: VcpuId) {
        match self.accelerated_before.iter().position(|&before| before == vcpu) {
            Some(at) => _ = self.accelerated_before.swap_remove(at),
            None => self.pool.returns += 1,
        }
    }
}
