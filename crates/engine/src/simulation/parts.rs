//! What a simulation has of each VM and each workload.

use crate::guest::{balance::Balancing, network::Nic, rcu::GracePeriods};
use microslice_model::config::{KernelFeatures, ShownCount, WakesUp};
use microslice_model::ids::{BarrierId, LockId, QueueId, ThreadId, VcpuId, VmId, WorkloadId};

/// What a guest kernel does with time, from its configuration.
pub struct KernelTimes {
    pub tick_ns: u64,
    pub thread_slice_ns: u64,
    /// Wall time of spinning, exits included, before a paravirtual waiter halts.
    pub pv_spin_ns: u64,
    /// Likewise, before the waiter of a yield lock yields.
    pub yield_spin_ns: u64,
    pub call_function_ns: u64,
    pub reschedule_ns: u64,
    pub tick_handler_ns: u64,
    pub switch_ns: u64,
    pub is_eevdf: bool,
    pub features: KernelFeatures,
    pub pv_tlb_flush: bool,
    pub pv_ipi_yield: bool,
    /// For how long a vCPU that takes a spinlock says that it isn't to be preempted; 0: it says nothing.
    pub preemption_hint_ns: u32,
    /// When wakers give up the lock of a list of sleepers; `None`: lists have none.
    pub wait_lists: Option<WakesUp>,
    /// One write to the ICR calls all recipients of a shootdown.
    pub flat_ipi: bool,
    /// Share of the holds of its locks that are in the locks' own functions; the others are in none that a
    /// list has.
    pub listed_percent: u8,
    pub shown_count: ShownCount,
}

pub struct Vm {
    pub first_vcpu: VcpuId,
    pub vcpus: u32,
    /// They are threads of the host.
    pub are_tasks: bool,
    pub text: usize,
    pub kernel: KernelTimes,
    /// Lock of each vCPU's runqueue, the first of them, and of all the VM's locks.
    pub runqueue_lock: LockId,
    pub first_queue: QueueId,
    pub first_barrier: BarrierId,
    pub first_user_lock: u32,
    /// Ready threads in all queues.
    pub ready_threads: u32,
    pub nic: Option<Nic>,
    /// If its scheduler balances threads, beyond what wakes and idles.
    pub balancing: Option<Balancing>,
    /// If its programs wait for any.
    pub grace_periods: Option<Box<GracePeriods>>,
    pub first_thread: ThreadId,
    pub threads: u32,
}

impl Vm {
    /// That of the runqueue of one of its vCPUs.
    #[inline]
    pub fn runqueue_lock_of(&self, vcpu: VcpuId) -> LockId {
        self.runqueue_lock.plus(vcpu.since(self.first_vcpu))
    }
}

pub struct Workload {
    pub vm: VmId,
    pub shared_address_space: bool,
    /// The first workload of its process, which stands for the address space.
    pub address_space: WorkloadId,
    pub cache_permille: u32,
    pub units_done: u64,
    /// User-mode work, with all of the steps that were begun: what is left of them is subtracted in the end.
    pub computed_ns: u64,
}
