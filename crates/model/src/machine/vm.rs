//! A VM as the host sees it: its weight, and where its vCPUs may run.

use super::promised_answers::Promised;
use super::waiting::Waiting;
use crate::ids::{IdVec, PcpuId, VcpuId};

pub struct HostVm {
    pub first_vcpu: VcpuId,
    pub vcpus: u32,
    pub weight: u32,
    /// The number of the cgroup that its own lies in; `None`: the root.
    pub cgroup: Option<usize>,
    /// pCPU is allowed, by number; empty: all.
    pub affinity: IdVec<PcpuId, bool>,
    pub(super) only_pcpu: Option<PcpuId>,
    /// The one pCPU of each vCPU; empty: they aren't pinned.
    pub pins: Vec<PcpuId>,
    /// Tasks of the host, of which a real scheduler knows that they aren't vCPUs.
    pub are_tasks: bool,
    /// How long its vCPUs may wait: what it asks for itself, and what its scheduler looks to; 0: for ever.
    pub own_max_wait_ns: Option<u64>,
    pub max_wait_ns: u64,
    /// What coordinated scheduling does for it.
    pub knobs: crate::config::VmKnobs,
    pub waiting: Waiting,
    /// What the answers depend on that were promised to its spinning vCPUs.
    pub promised: Promised,
}

impl HostVm {
    /// `affinity`: pCPU is allowed, by number; empty: all. Its vCPUs get their numbers from
    /// [`super::Machine::new`].
    pub fn new(vcpus: u32, weight: u32, mut affinity: Vec<bool>) -> Self {
        if !affinity.contains(&false) {
            affinity.clear();
        }
        let mut allowed =
            (0..).zip(&affinity).filter(|&(_, &allowed)| allowed).map(|(pcpu, _)| PcpuId::new(pcpu));
        let only_pcpu = allowed.next().filter(|_| allowed.next().is_none());
        Self {
            only_pcpu,
            pins: Vec::new(),
            first_vcpu: VcpuId::new(0),
            vcpus,
            weight,
            cgroup: None,
            affinity: affinity.into(),
            are_tasks: false,
            own_max_wait_ns: None,
            max_wait_ns: 0,
            knobs: crate::config::VmKnobs::default(),
            waiting: Waiting::nobody(),
            promised: Promised::NOTHING,
        }
    }

    pub(super) fn pin_of(&self, vcpu: VcpuId) -> PcpuId {
        self.pins[vcpu.since(self.first_vcpu) as usize]
    }

    /// Whether some pCPUs aren't allowed.
    pub fn is_narrow(&self) -> bool {
        !self.pins.is_empty() || !self.affinity.is_empty()
    }

    #[inline]
    pub fn allows(&self, pcpu: PcpuId) -> bool {
        self.affinity.is_empty() || self.affinity[pcpu]
    }
}
