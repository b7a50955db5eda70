//! Which pCPUs share a core, a last-level cache or a node, and where a vCPU may run.

use super::Machine;
use crate::bits::Bits;
use crate::config::HostConfig;
use crate::ids::{IdVec, PcpuId, VcpuId};
use std::ops::Range;

impl Machine {
    #[inline]
    pub fn allows(&self, vcpu: VcpuId, pcpu: PcpuId) -> bool {
        let host = &self.vcpus[vcpu];
        if self.never_moves {
            return host.pcpu == pcpu;
        }
        let vm = &self.vms[host.vm];
        vm.allows(pcpu) && (vm.pins.is_empty() || vm.pin_of(vcpu) == pcpu)
    }

    /// Whether it has one pCPU, which is its own.
    #[inline]
    pub fn is_pinned(&self, vcpu: VcpuId) -> bool {
        !self.vms[self.vcpus[vcpu].vm].pins.is_empty()
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
        if vm.pins.is_empty() { vm.only_pcpu } else { Some(vm.pin_of(vcpu)) }
    }

    #[inline]
    pub fn llc_of(&self, pcpu: PcpuId) -> u32 {
        self.places[pcpu].llc
    }

    #[inline]
    pub fn distance(&self, a: PcpuId, b: PcpuId) -> Distance {
        let [a, b] = [self.places[a], self.places[b]];
        match a.llc == b.llc {
            true => Distance::Cache,
            false if a.node == b.node => Distance::Node,
            false => Distance::Host,
        }
    }

    /// The greatest distance that there is.
    #[inline]
    pub fn widest(&self) -> Distance {
        self.widest
    }

    /// pCPUs of a set, from one on: those of its last-level cache first, then of its node, then all others.
    pub fn near_first<'a>(
        &'a self,
        set: &'a Bits<PcpuId>,
        from: PcpuId,
    ) -> impl Iterator<Item = PcpuId> + 'a {
        let at =
            move |distance| set.round_from(from).filter(move |&pcpu| self.distance(pcpu, from) == distance);
        Distance::ALL.into_iter().take_while(|&distance| distance <= self.widest()).flat_map(at)
    }

    /// Those of a pCPU's last-level cache, by number: the own threads of its cores, then the others.
    pub fn pcpus_of_llc(&self, pcpu: PcpuId) -> impl Iterator<Item = Range<u32>> + use<> {
        let (cores, of_llc, end) = (self.cores, self.llc_cores(), self.pcpus.next_id().number());
        let first_core = self.llc_of(pcpu) * of_llc;
        let own = pcpu.number() / cores * cores;
        let firsts =
            std::iter::once(own).chain((0..end).step_by(cores as usize).filter(move |&at| at != own));
        firsts.map(move |at| at + first_core..(at + first_core + of_llc).min(end))
    }

    fn llc_cores(&self) -> u32 {
        let threads = (self.pcpus.next_id().number() / self.cores).max(1);
        (self.llc_pcpus / threads).max(1)
    }

    /// The other threads of a pCPU's core, those behind it first.
    pub fn threads_beside(&self, pcpu: PcpuId) -> impl Iterator<Item = PcpuId> + use<> {
        let (own, end, step) = (pcpu.number(), self.pcpus.next_id().number(), self.cores as usize);
        let behind = (own..end).step_by(step).skip(1);
        behind.chain((own % self.cores..own).step_by(step)).map(PcpuId::new)
    }
}

/// How far a pCPU is from another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// They share a last-level cache.
    Cache,
    /// They share a node.
    Node,
    Host,
}

impl Distance {
    pub const ALL: [Self; 3] = [Self::Cache, Self::Node, Self::Host];
}

/// A pCPU's last-level cache, and its node.
#[derive(Clone, Copy)]
pub(super) struct Place {
    llc: u32,
    node: u32,
}

impl Place {
    /// Returns each pCPU's. Threads of a core share both.
    pub(super) fn all(host: &HostConfig) -> IdVec<PcpuId, Self> {
        let threads = host.smt_threads.max(1);
        let cores = (host.pcpus / threads).max(1);
        let group_of = |core: usize, pcpus: usize| match pcpus {
            0 => 0,
            _ => (core / (pcpus / threads).max(1)) as u32,
        };
        let places = (0..host.pcpus).map(|pcpu| pcpu % cores);
        places
            .map(|core| Self { llc: group_of(core, host.llc_pcpus), node: group_of(core, host.node_pcpus) })
            .collect()
    }

    /// Returns the greatest distance between any two.
    pub(super) fn widest(places: &IdVec<PcpuId, Self>) -> Distance {
        match places.iter().map(|place| (place.node, place.llc)).max() {
            Some((0, 0)) | None => Distance::Cache,
            Some((0, _)) => Distance::Node,
            Some(_) => Distance::Host,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    /// Eight cores of two threads, in caches of two cores and nodes of four.
    fn machine() -> Machine {
        let host = HostConfig { pcpus: 16, llc_pcpus: 4, node_pcpus: 8, smt_threads: 2, ..samples::host() };
        Machine::new(&host, Vec::new())
    }

    #[test]
    fn threads_of_a_core_share_its_cache_and_node() {
        let machine = machine();
        for pcpu in (0..8).map(PcpuId::new) {
            let sibling = pcpu.plus(8);
            assert_eq!(machine.distance(pcpu, sibling), Distance::Cache);
            assert_eq!(machine.llc_of(pcpu), pcpu.number() / 2);
        }
        let from_first = |pcpu| machine.distance(PcpuId::new(0), PcpuId::new(pcpu));
        assert_eq!([1, 9, 2, 10, 3, 4, 12].map(from_first), {
            use Distance::{Cache, Host, Node};
            [Cache, Cache, Node, Node, Node, Host, Host]
        });
        assert_eq!(machine.widest(), Distance::Host);
    }

    #[test]
    fn a_cache_has_all_threads_of_its_cores() {
        let machine = machine();
        let of = |pcpu| machine.pcpus_of_llc(PcpuId::new(pcpu)).collect::<Vec<_>>();
        assert_eq!(of(3), [2..4, 10..12]);
        assert_eq!(of(14), [14..16, 6..8]);
    }
}
