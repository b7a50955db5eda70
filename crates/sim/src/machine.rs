//! The host as its scheduler sees it: pCPUs, vCPUs and their states, VMs. Nothing of the guest but an address.

use crate::config::HostConfig;
use crate::report::PoolReport;
use crate::trace_event::{PcpuId, TraceEvent, VcpuId, VmId};
use microslice_policy::GuestClass;

pub const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VcpuState {
    Blocked,
    Runnable,
    Running,
}

pub struct Pcpu {
    /// Running vCPU, or `NONE`.
    pub current: VcpuId,
    pub slice_end_ns: u64,
    /// Since when `current` (or idleness) has lasted.
    pub since_ns: u64,
    /// Sum of the time vCPUs ran here: the difference tells how cold a vCPU's caches are.
    pub busy_ns: u64,
    pub idle_ns: u64,
    resched_pending: bool,
}

/// What the host keeps of a vCPU.
pub struct HostVcpu {
    pub vm: VmId,
    pub state: VcpuState,
    /// Where it runs or ran last.
    pub pcpu: PcpuId,
    /// Since when it is in `state`.
    pub since_ns: u64,
    /// Runnable because the host took its pCPU away.
    pub preempted: bool,
    /// Runnable because it gave its pCPU up itself.
    pub yielded: bool,
    /// Class of the instruction pointer where it stopped or yields.
    pub class: GuestClass,
    pub interrupts_enabled: bool,
    pub interrupt_pending: bool,
}

pub struct HostVm {
    pub first_vcpu: VcpuId,
    pub vcpus: u32,
    pub weight: u32,
    /// pCPU is allowed, by number; empty: all.
    pub affinity: Vec<bool>,
}

pub struct Machine {
    pub now_ns: u64,
    pub pcpus: Vec<Pcpu>,
    pub vcpus: Vec<HostVcpu>,
    pub vms: Vec<HostVm>,
    pub pool: PoolReport,
    pub llc_pcpus: usize,
    pub tracing: bool,
    pub trace: Vec<TraceEvent>,
    resched: Vec<PcpuId>,
    /// pCPUs whose batch of equal pause-loop exits must end now, because an answer could change.
    pub(crate) unbatch: Vec<PcpuId>,
}

impl Machine {
    pub fn new(host: &HostConfig, mut vms: Vec<HostVm>) -> Self {
        let pcpus = (0..host.pcpus)
            .map(|_| Pcpu {
                current: NONE,
                slice_end_ns: u64::MAX,
                since_ns: 0,
                busy_ns: 0,
                idle_ns: 0,
                resched_pending: false,
            })
            .collect();
        let mut vcpus = Vec::new();
        for (vm, config) in vms.iter_mut().enumerate() {
            config.first_vcpu = vcpus.len() as VcpuId;
            for index in 0..config.vcpus {
                vcpus.push(HostVcpu {
                    vm: vm as VmId,
                    state: VcpuState::Blocked,
                    pcpu: (0..host.pcpus as u32)
                        .cycle()
                        .skip(index as usize % host.pcpus)
                        .take(host.pcpus)
                        .find(|&pcpu| config.allows(pcpu))
                        .unwrap_or(0),
                    since_ns: 0,
                    preempted: false,
                    yielded: false,
                    class: GuestClass::Idle,
                    interrupts_enabled: true,
                    interrupt_pending: false,
                });
            }
        }
        Self {
            now_ns: 0,
            pcpus,
            vcpus,
            vms,
            pool: PoolReport::default(),
            llc_pcpus: if host.llc_pcpus == 0 { host.pcpus } else { host.llc_pcpus },
            tracing: false,
            trace: Vec::new(),
            resched: Vec::new(),
            unbatch: Vec::new(),
        }
    }

    #[inline]
    pub fn emit(&mut self, event: TraceEvent) {
        if self.tracing {
            self.trace.push(event);
        }
    }

    /// Asks for a scheduling decision on this pCPU as soon as the present event is dealt with.
    pub fn request_schedule(&mut self, pcpu: PcpuId) {
        let flag = &mut self.pcpus[pcpu as usize].resched_pending;
        if !*flag {
            *flag = true;
            self.resched.push(pcpu);
        }
    }

    #[inline]
    pub(crate) fn next_schedule(&mut self) -> Option<PcpuId> {
        let pcpu = self.resched.pop()?;
        self.pcpus[pcpu as usize].resched_pending = false;
        Some(pcpu)
    }

    /// The next pause-loop exit on this pCPU must be looked at: its answer may have changed.
    #[inline]
    pub fn answers_changed(&mut self, pcpu: PcpuId) {
        if self.pcpus[pcpu as usize].current != NONE {
            self.unbatch.push(pcpu);
        }
    }

    #[inline]
    pub fn current(&self, pcpu: PcpuId) -> Option<VcpuId> {
        Some(self.pcpus[pcpu as usize].current).filter(|&vcpu| vcpu != NONE)
    }

    #[inline]
    pub fn is_idle(&self, pcpu: PcpuId) -> bool {
        self.pcpus[pcpu as usize].current == NONE
    }

    #[inline]
    pub fn allows(&self, vcpu: VcpuId, pcpu: PcpuId) -> bool {
        self.vms[self.vcpus[vcpu as usize].vm as usize].allows(pcpu)
    }

    pub fn llc_of(&self, pcpu: PcpuId) -> usize {
        pcpu as usize / self.llc_pcpus
    }
}

impl HostVm {
    #[inline]
    pub fn allows(&self, pcpu: PcpuId) -> bool {
        self.affinity.is_empty() || self.affinity[pcpu as usize]
    }
}
