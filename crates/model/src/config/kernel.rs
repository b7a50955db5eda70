//! A guest's kernel: what it does with locks, threads and interrupts.

use super::{LockKind, ShownCount, US};
use serde::Serialize;

/// The guest's operating system.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GuestKernelConfig {
    pub symbols: SymbolTable,
    /// Kind of the locks that don't say otherwise.
    pub lock_kind: LockKind,
    /// PV locks: spinning time before the waiter halts (SPIN_THRESHOLD = 2^15 iterations).
    pub pv_spin_ns: u64,
    /// Lock kind `spin-yield`: spinning time before the waiter yields its turn.
    #[serde(skip_serializing_if = "is_usual_yield_spin")]
    pub yield_spin_ns: u64,
    /// How threads are balanced over vCPUs, beyond what wakes and idles; `None`: not at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balance: Option<BalanceConfig>,
    pub tick_hz: u32,
    /// Time slice of guest threads that share a vCPU; under EEVDF that of a guest of one vCPU
    /// (`normalized_sysctl_sched_base_slice`).
    pub thread_slice_ns: u64,
    #[serde(skip_serializing_if = "ThreadScheduler::is_fifo")]
    pub thread_scheduler: ThreadScheduler,
    #[serde(skip_serializing_if = "KernelFeatures::are_none")]
    pub features: KernelFeatures,
    /// PV TLB flush: vCPUs that KVM reports preempted are flushed on entry instead of by IPI
    /// (`kvm_flush_tlb_multi`, arch/x86/kernel/kvm.c).
    pub pv_tlb_flush: bool,
    /// The kernel yields by hypercall after an IPI to a vCPU that it knows preempted
    /// (xen_smp_send_call_function_ipi, kvm_smp_send_call_func_ipi).
    pub pv_ipi_yield: bool,
    /// The guest helps (VM'04, 3.1): while it holds a spinlock it asks not to be preempted, for so long. 0:
    /// it doesn't.
    #[serde(skip_serializing_if = "is_none")]
    pub preemption_hint_ns: u32,
    /// Its programs may say so, too, for so long at the most (`user_limit_us` of guest/hints/
    /// microslice_hints.c). 0: it has no device for that.
    #[serde(skip_serializing_if = "is_none")]
    pub user_hint_ns: u32,
    /// Whether lists of sleepers have locks, and how long wakers hold them; `None`: lists have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_lists: Option<WakesUp>,
    /// Sleeping locks are taken for reading, too, by page faults and by some shootdowns. Elsewhere the former
    /// aren't there, and the latter are under no lock.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub readers: bool,
    /// One write to the ICR calls up to eight vCPUs (`flat_send_IPI_mask`, arch/x86/kernel/apic/
    /// apic_flat_64.c, Linux 3.2).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub flat_ipi: bool,
    /// Share of the holds of locks that are in the locks' own functions (`LockConfig::symbol`). The others
    /// are in none that a list has. A host by whose list all are critical sees these holders, and no others.
    #[serde(skip_serializing_if = "is_all")]
    pub listed_holds_percent: u8,
    /// What the guest shows a host that reads its preemption counter: a guest may lie.
    #[serde(skip_serializing_if = "ShownCount::is_honest")]
    pub shown_count: ShownCount,
    /// Handler of a TLB-flush or other call-function IPI.
    pub call_function_handler_ns: u64,
    /// Handler of a reschedule IPI.
    pub reschedule_handler_ns: u64,
    pub tick_handler_ns: u64,
    /// Switch between two guest threads, or from idle.
    pub thread_switch_ns: u64,
    pub locks: Vec<LockConfig>,
}

impl GuestKernelConfig {
    /// Longer than 98 % of all holds (VM'04, 5.2).
    pub const YIELD_SPIN_NS: u64 = 20 * US;
    /// What programs may say at the most (`USER_LIMIT_MAX_US`, guest/hints/microslice_hints.c).
    pub const USER_HINT_MAX_NS: u64 = 1_000 * US;
}

/// How a guest balances its threads (VM'04, section 4).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BalanceConfig {
    pub rule: BalanceRule,
    /// Between two looks of a vCPU, and two polls of what vCPUs were given.
    pub interval_ns: u64,
    /// Slower vCPUs have balloon threads.
    pub balloons: bool,
    /// The module sets which vCPU each thread prefers, by what vCPUs are given. Of `WorkStealing`.
    pub plans: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum BalanceRule {
    /// Linux's O(1) scheduler.
    QueueLength,
    /// By queue length and what the vCPU is given of its pCPU: Linux of today.
    Capacity,
    /// Each vCPU takes the best of one central list: Linux 2.4.
    WorkStealing,
}

/// Which symbol table gives instruction pointers their meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum SymbolTable {
    /// Linux 4.4, the paper's guests.
    Linux44,
    /// A kernel of today (6.12 to 7.x).
    LinuxModern,
}

const _: () = {
    let mut number = 0;
    while number < SymbolTable::ALL.len() {
        assert!(SymbolTable::ALL[number] as usize == number, "a table's text is found by its number");
        number += 1;
    }
};

impl SymbolTable {
    /// All that scenarios may name, in order, so that `ALL[table]` is `table`.
    pub const ALL: [Self; 2] = [Self::Linux44, Self::LinuxModern];

    /// What scenarios call it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Linux44 => "linux-4.4",
            Self::LinuxModern => "linux-modern",
        }
    }

    /// Its functions, in the form of a `System.map`.
    pub fn map(self) -> &'static str {
        match self {
            Self::Linux44 => include_str!("../../tables/linux-4.4.map"),
            Self::LinuxModern => include_str!("../../tables/linux-modern.map"),
        }
    }
}

/// A named kernel lock.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LockConfig {
    pub name: String,
    pub kind: Option<LockKind>,
    /// Interrupts stay off while it is waited for and held.
    pub irqs_off: bool,
    /// How many instances there are (e.g. one per vCPU or hash bucket); each use picks one at random.
    pub instances: usize,
    /// Function that holds it: where the instruction pointer is inside the critical section.
    pub symbol: String,
}

/// The name of the lock of each vCPU's runqueue. It is always there, one per vCPU; a configured lock of this
/// name says its kind.
pub const RUNQUEUE: &str = "runqueue";

/// The name of the lock under which a vCPU reports to a grace period, with interrupts off (`rnp->lock`,
/// kernel/rcu/tree.h). A kernel that doesn't configure it has none.
pub const RCU_NODE: &str = "rcu_node";

/// What kernels of today do, and those of the papers don't.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct KernelFeatures {
    /// KVM tells it which vCPUs were preempted, and what was stolen (`KVM_FEATURE_STEAL_TIME`). Spinners for
    /// mutexes stop (`owner_on_cpu`, include/linux/sched.h; `osq_lock`; from 4.10 on), preempted vCPUs aren't
    /// idle ones (`available_idle_cpu`, kernel/sched/core.c), and its scheduler doesn't count what was stolen
    /// (`update_rq_clock_task`). PV sched yield looks at it (`kvm_smp_send_call_func_ipi`, Linux 6.12). From
    /// 5.19 on a host reports those only that an interrupt of its own has stopped, neither halted nor
    /// yielding ones (`at_instruction_boundary`, `kvm_steal_time_set_preempted`, arch/x86/kvm/x86.c).
    pub steal_time: bool,
    /// A sleeper for a mutex that was woken in vain gets it at the next release (`MUTEX_FLAG_HANDOFF`,
    /// kernel/locking/mutex.c, from 4.10 on).
    pub mutex_handoff: bool,
    /// A call of several vCPUs is one hypercall (`kvm_send_ipi_mask`, arch/x86/kernel/kvm.c, from 4.19 on).
    pub pv_ipi: bool,
    /// A thread that wakes on an idle vCPU is queued there by a call-function IPI, without that one's
    /// runqueue lock (`ttwu_queue_wakelist`, kernel/sched/core.c, Linux 6.12: `!cpu_rq(cpu)->nr_running`).
    pub ttwu_queue: bool,
    /// Idle vCPUs aren't told of a shootdown: they flush when they leave the idle loop (`tlb_is_not_lazy`,
    /// arch/x86/mm/tlb.c, from 4.20 on).
    pub lazy_tlb: bool,
}

impl KernelFeatures {
    fn are_none(&self) -> bool {
        *self == Self::default()
    }
}

/// When a waker gives up the lock of the list from which it takes sleepers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum WakesUp {
    /// Behind all wake-ups, whose IPIs are sent under it (`futex_wake`, `__rwsem_do_wake`, Linux 3.2).
    UnderLock,
    /// Before them: it only gathers whom to wake (`wake_up_q`: futexes from 4.2 on, mutexes from 4.6,
    /// semaphores from 4.8).
    AfterLock,
}

impl WakesUp {
    /// What scenarios call it.
    pub const WORDS: [(&str, Self); 2] = [("under-lock", Self::UnderLock), ("after-lock", Self::AfterLock)];
}

/// How a guest shares a vCPU among its threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum ThreadScheduler {
    /// In turn; a thread that wakes goes first if the running one has run for a while.
    Fifo,
    /// `guest/eevdf.rs`.
    Eevdf,
}

impl ThreadScheduler {
    fn is_fifo(&self) -> bool {
        *self == Self::Fifo
    }
}

fn is_usual_yield_spin(ns: &u64) -> bool {
    *ns == GuestKernelConfig::YIELD_SPIN_NS
}

fn is_all(percent: &u8) -> bool {
    *percent == 100
}

fn is_none(number: &u32) -> bool {
    *number == 0
}
