//! The host: its topology, and what its work costs.

use super::{BoostCosts, KvmConfig, PleConfig};
use serde::Serialize;

/// The physical machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HostConfig {
    pub pcpus: usize,
    /// pCPUs that share a last-level cache: all threads of cores with consecutive numbers. 0: all of them.
    pub llc_pcpus: usize,
    /// pCPUs of a NUMA node; likewise.
    #[serde(skip_serializing_if = "is_no_count")]
    pub node_pcpus: usize,
    /// Hardware threads per core. 1: no SMT. As Linux numbers them: the first threads of all cores, then the
    /// second ones.
    pub smt_threads: usize,
    /// Speed of a hardware thread while an SMT sibling is busy, in 1/1000 of its speed alone. Programs' times
    /// hold for busy siblings.
    pub smt_busy_speed_permille: u32,
    /// The same while the sibling only spins: from `smt_busy_speed_permille` to 1000.
    pub smt_spin_speed_permille: u32,
    pub costs: CostModel,
    /// `None`: locks of the scheduler's queues cost nothing beside `costs.context_switch_ns`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_locks: Option<QueueLockCosts>,
    /// What boosts of threads to real-time cost (`scheduler/beside.rs`).
    #[serde(skip_serializing_if = "BoostCosts::are_measured")]
    pub boosts: BoostCosts,
    pub ple: PleConfig,
    #[serde(skip_serializing_if = "Preempt::is_full")]
    pub preempt: Preempt,
    /// What KVM itself does, beyond what every hypervisor does; `None`: nothing of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kvm: Option<KvmConfig>,
}

/// When a fair task gives way to another one (`preempt=`, `kernel/sched/core.c`, Linux 6.13).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub enum Preempt {
    /// At once: its pCPU is interrupted. As to vCPUs `none` and `voluntary` do the same.
    #[default]
    Full,
    /// When its vCPU leaves the guest next, at the next tick at the latest (`resched_curr_lazy`).
    Lazy,
}

impl Preempt {
    fn is_full(&self) -> bool {
        *self == Self::Full
    }
}

impl HostConfig {
    /// Returns the key of what doesn't go together in its topology, and why: threads make up cores, cores
    /// caches, and caches nodes, all of one size.
    pub fn misfit(&self) -> Option<(&'static str, String)> {
        let Self { pcpus, llc_pcpus, node_pcpus, smt_threads, .. } = *self;
        let of_host = |pcpus: usize| if pcpus == 0 { self.pcpus } else { pcpus };
        let levels = [
            ("smt_threads", smt_threads, "threads of a core", "pcpus", pcpus),
            ("llc_pcpus", smt_threads, "threads of a core", "llc_pcpus", of_host(llc_pcpus)),
            ("llc_pcpus", of_host(llc_pcpus), "pCPUs of a cache", "pcpus", pcpus),
            ("node_pcpus", of_host(llc_pcpus), "pCPUs of a cache", "node_pcpus", of_host(node_pcpus)),
            ("node_pcpus", of_host(node_pcpus), "pCPUs of a node", "pcpus", pcpus),
        ];
        let (key, part, of, whole_key, whole) =
            levels.into_iter().find(|&(_, part, _, _, whole)| !whole.is_multiple_of(part))?;
        Some((key, format!("the {part} {of} don't divide `{whole_key}`, {whole}")))
    }
}

/// What an operation on a queue of the real scheduler costs beside a switch
/// (`scheduler/core/queue_locks.rs`).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QueueLockCosts {
    /// How long the lock is held if all that it protects is in the pCPU's own caches.
    pub hold_ns: u64,
    /// A cache line comes from another pCPU of the same last-level cache.
    pub line_near_ns: u64,
    /// Likewise, of another one.
    pub line_far_ns: u64,
}

/// What the host's own work costs. All overhead is accounted to the pCPU, none of it to the guest's progress.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CostModel {
    /// Save and restore of a vCPU's state, scheduler included.
    pub context_switch_ns: u64,
    /// An exit to the hypervisor and back into the same vCPU.
    pub exit_ns: u64,
    /// What sending one IPI costs the sender, per target: the exit of an ICR write or of a hypercall.
    pub ipi_send_ns: u64,
    /// From the moment an IPI is sent until a running target begins its handler.
    pub ipi_delivery_ns: u64,
    /// Likewise, of every other interrupt: timers, ticks, devices.
    pub interrupt_entry_ns: u64,
    /// Longest extra time a vCPU needs after others ran on its pCPU, because it finds the caches cold.
    pub cache_refill_max_ns: u64,
    /// How long others must run until the caches hold nothing of this vCPU (the cost grows linearly until
    /// then).
    pub cache_displace_ns: u64,
    /// Extra refill when the vCPU comes back on a pCPU of another LLC.
    pub llc_migration_ns: u64,
    /// Likewise, of another node; on top of that.
    #[serde(skip_serializing_if = "is_zero")]
    pub node_migration_ns: u64,
    /// What it costs the holder of a paravirtual lock to kick a halted waiter: a hypercall.
    #[serde(skip_serializing_if = "is_zero")]
    pub kick_ns: u64,
    /// What a halt costs beside the switch: its exit, the idle pCPU's way out of its sleep, and the entry.
    /// The woken vCPU pays.
    #[serde(skip_serializing_if = "is_zero")]
    pub halt_ns: u64,
    /// What each waiter that spins adds to the hand-over of a ticket lock: a cache line's transfer.
    #[serde(skip_serializing_if = "is_zero")]
    pub waiter_line_ns: u64,
}

fn is_no_count(count: &usize) -> bool {
    *count == 0
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
