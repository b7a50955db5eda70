//! What each slot of the timeline is for, and whose tick is next.

use microslice_model::ids::{PcpuId, ThreadId, VmId};

/// Numbers of the timeline's slots.
pub struct Slots {
    /// pCPUs' own slots come first, from 0. The host's ticks have one: they go round the pCPUs (`HostTicks`).
    pub ticks: u32,
    pub threads: u32,
    pub nics: u32,
    pub host_timer: u32,
    pub progress: u32,
    pub warmup: u32,
    limits: u32,
    pub count: u32,
}

impl Slots {
    pub fn new(pcpus: usize, threads: usize, vms: usize, limits: usize) -> Self {
        let (pcpus, threads, vms) = (pcpus as u32, threads as u32, vms as u32);
        let nics = pcpus + 1 + threads;
        let host_timer = nics + vms;
        Self {
            ticks: pcpus,
            threads: pcpus + 1,
            nics,
            host_timer,
            progress: host_timer + 1,
            warmup: host_timer + 2,
            limits: host_timer + 3,
            count: host_timer + 3 + limits as u32,
        }
    }

    /// Of a sleeping thread.
    #[inline]
    pub fn thread(&self, thread: ThreadId) -> u32 {
        self.threads + thread.number()
    }

    /// Of a VM's `cpu.max`.
    pub fn limit(&self, limit: usize) -> u32 {
        self.limits + limit as u32
    }

    /// The other way round.
    pub fn limit_of(&self, slot: u32) -> Option<usize> {
        slot.checked_sub(self.limits).map(|limit| limit as usize)
    }

    pub fn nic(&self, vm: VmId) -> u32 {
        self.nics + vm.number()
    }
}

/// Whose tick is the host's next one: each pCPU's comes once a period, spread over it.
pub struct HostTicks {
    pcpus: u32,
    next: u32,
    periods: u64,
}

impl HostTicks {
    pub fn new(pcpus: usize) -> Self {
        Self { pcpus: pcpus as u32, next: 0, periods: 1 }
    }

    pub(super) fn next_ns(&self, period_ns: u64) -> u64 {
        period_ns * self.periods + period_ns * u64::from(self.next) / u64::from(self.pcpus)
    }

    pub(super) fn take(&mut self) -> PcpuId {
        let pcpu = PcpuId::new(self.next);
        self.next += 1;
        if self.next == self.pcpus {
            (self.next, self.periods) = (0, self.periods + 1);
        }
        pcpu
    }
}
