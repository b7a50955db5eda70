//! Everything that a run depends on: host, virtual machines, guest kernels, workloads, scheduler, seed.
//!
//! Times are integer nanoseconds. The values and their sources are in `scenarios/`;
//! `docs/explanation/reproduction.md` lists which were fitted.

mod cgroup;
mod channel;
mod coordination;
mod delay;
mod eevdf;
mod holders;
mod host;
mod kernel;
mod kvm;
mod locks;
mod micro_sliced;
mod network;

pub use cgroup::{CgroupConfig, cgroups_around};
pub use channel::ChannelConfig;
pub use coordination::{CfsConfig, Coordination, ReschedCo, VmKnobs};
pub use delay::DelayPreemptionConfig;
pub use eevdf::{BesideConfig, BoostCosts, EevdfConfig};
pub use holders::{HolderRules, ShownCount};
pub use host::{CostModel, HostConfig, Preempt, QueueLockCosts};
pub use kernel::{
    BalanceConfig, BalanceRule, GuestKernelConfig, KernelFeatures, LockConfig, RCU_NODE, RUNQUEUE,
    SymbolTable, ThreadScheduler, WakesUp,
};
pub use kvm::{InterruptMode, KvmConfig, PleConfig};
pub use locks::{Halting, Handover, LockKind, LockRules, Patience, SpinFunction, Wait};
pub use micro_sliced::{Mechanics, MicroSlicedConfig, PoolSize};
pub use network::{NicConfig, NicWorker, Stream};

use crate::random::mean_ns;
use microslice_policy::{Coded, QueueDomain};
use serde::Serialize;

pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;
pub const S: u64 = 1_000_000_000;

/// One run. The same value gives a byte-identical trace.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SimulationConfig {
    pub seed: u64,
    /// Simulated before measuring starts: caches, credits and queues reach their steady state.
    pub warmup_ns: u64,
    /// Simulated time that is measured.
    pub duration_ns: u64,
    pub host: HostConfig,
    pub vms: Vec<VmConfig>,
    /// Around those of VMs; each one's parent stands before it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cgroups: Vec<CgroupConfig>,
    /// What programs of several VMs have in common; names of these mean no VM's own queue.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<ChannelConfig>,
    pub scheduler: SchedulerKind,
    /// Turns end in windows around their end, where that is safe; `None`: when they are over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<DelayPreemptionConfig>,
    /// Verify the invariants of `checker.rs`: a run takes 1.3 to 1.4 times as long.
    pub check: bool,
    /// Reports how long guests hold spinlocks and are in the kernel.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub guest_times: bool,
    /// Takes pause-loop exits of which the scheduler says that they are answered the same as one event.
    /// Without it nothing but the number of events is different.
    #[serde(skip)]
    pub fold_exits: bool,
}

/// A virtual machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VmConfig {
    pub name: String,
    pub vcpus: usize,
    /// It is no VM: its vCPUs are threads of the host. Nothing accelerates them, and their sleeps cost no
    /// exits.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub are_tasks: bool,
    /// Proportional share, 256 is the default as in Xen.
    pub weight: u32,
    /// The number of the cgroup that its own lies in; `None`: the root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<usize>,
    /// pCPUs its vCPUs may run on; empty: all. (A micro pool may accelerate beyond it, as the paper's
    /// prototype does.)
    pub affinity: Vec<usize>,
    /// The one pCPU of each vCPU; empty: its vCPUs aren't pinned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pins: Vec<usize>,
    /// `None`: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_max: Option<CpuMax>,
    /// How long its vCPUs may wait for a pCPU, where the scheduler looks to that; `None`: as the scheduler
    /// says; 0: for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_wait_ns: Option<u64>,
    pub kernel: GuestKernelConfig,
    pub workloads: Vec<WorkloadConfig>,
    pub nic: Option<NicConfig>,
    #[serde(skip_serializing_if = "VmKnobs::say_nothing")]
    pub knobs: VmKnobs,
}

/// `cpu.max` of a VM's cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CpuMax {
    /// So long its vCPUs run in each period at the most, all together.
    pub quota_ns: u64,
    pub period_ns: u64,
}

/// Threads of one program in a VM.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkloadConfig {
    pub name: String,
    pub threads: usize,
    /// All threads start on this vCPU and stay; None: spread round-robin, wake-up placement may move them.
    pub pinned_vcpu: Option<usize>,
    /// Threads share one address space (shootdowns reach all vCPUs that run it).
    pub shared_address_space: bool,
    /// Its threads share the address space of the VM's other workloads of the same process.
    pub process: Option<String>,
    pub program: Vec<Phase>,
    /// Work of one whole run, in `Progress` units: turns a rate into an execution time. 0: rate only.
    pub run_units: u64,
    /// Length of a run that ends by the clock, whatever was done by then. 0: `run_units` says when it ends.
    pub run_time_ns: u64,
    /// Unit of progress, for people ("messages", "compilations").
    pub unit: String,
    /// Scales the cache-refill cost: 0 for tiny or streaming working sets, 1000 for the full cost.
    pub cache_sensitive_permille: u32,
}

/// A step of a program. Programs repeat for ever.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub enum Phase {
    /// User-mode work.
    Compute {
        duration: Duration,
    },
    /// Kernel-mode work outside any lock, in `symbol`.
    Kernel {
        duration: Duration,
        symbol: String,
    },
    /// Kernel-mode work in `symbol` within an RCU read section.
    ReadRcu {
        duration: Duration,
        symbol: String,
    },
    /// Sleep until a grace period of RCU is over that begins from now on (`synchronize_rcu`).
    Synchronize,
    /// A spinlock of the workload's own, in user mode. `hint_ns`: for so long its holder says to the host
    /// that it isn't to be preempted, where the kernel has a device for that; 0: it says nothing.
    UserLock {
        name: String,
        hold: Duration,
        hint_ns: u32,
    },
    /// Acquire, hold, release.
    Lock {
        lock: String,
        hold: Duration,
    },
    /// A page fault: holds a sleeping lock for reading, if the kernel has readers. Else it isn't there.
    Read {
        lock: String,
        hold: Duration,
    },
    /// Remote TLB shootdown: IPI to every vCPU that runs this address space, spin until all acknowledged.
    /// `under` names a sleeping lock that is held all the while (munmap holds the address space's semaphore
    /// for writing).
    Shootdown {
        prepare: Duration,
        under: Option<String>,
    },
    /// The same, while a sleeping lock is held, for reading (madvise) or not (mprotect), if the kernel has
    /// readers.
    GuardedShootdown {
        prepare: Duration,
        lock: String,
        reads: bool,
    },
    /// Wait until `count` threads of this workload arrived; 0: all threads. `under` names a spinning lock
    /// that is taken to wait and to wake, and held until all are woken: that of the futex's queue
    /// (futex_wait, futex_wake in kernel/futex.c).
    Barrier {
        name: String,
        count: usize,
        #[serde(skip_serializing_if = "Option::is_none")]
        under: Option<String>,
        /// A waiter spins in user mode for so long before it sleeps, as at the barriers of PARSEC itself; 0:
        /// it doesn't. Needs `under`.
        #[serde(skip_serializing_if = "is_zero")]
        spin_ns: u64,
        /// It is made of a mutex and a condition variable, where the kernel's lists have locks. The last to
        /// come wakes one and requeues the others (`futex_requeue`). Each wakes the next when it unlocks.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        requeues: bool,
    },
    /// Block; the timer or device wakes the thread.
    Sleep {
        duration: Duration,
    },
    /// Put an item in a bounded queue, waking one receiver; blocks while full. `capacity` is 0 if another
    /// phase says it, or none.
    Send {
        queue: String,
        capacity: usize,
    },
    /// Take an item; blocks while empty.
    Receive {
        queue: String,
    },
    /// Block until the NIC has data for this VM, consume it.
    NetworkReceive,
    /// Create a short-lived child or exec: runqueue lock plus a wake-up on the idlest vCPU.
    Spawn,
    /// Count finished work.
    Progress {
        units: u64,
    },
    Repeat {
        count: u64,
        body: Vec<Phase>,
    },
    /// Run `body` with this probability in 1/1,000,000.
    Sometimes {
        ppm: u32,
        body: Vec<Phase>,
    },
    /// sched_yield of the guest thread.
    YieldThread,
}

/// How deep phases that repeat others may be nested.
pub const LOOP_DEPTH: usize = 4;

impl Phase {
    /// Returns whether a pass over the phase surely takes time, so that a program can't loop within one
    /// instant.
    pub fn takes_time(&self) -> bool {
        match self {
            Self::Compute { duration }
            | Self::Kernel { duration, .. }
            | Self::ReadRcu { duration, .. }
            | Self::Sleep { duration } => mean_ns(*duration) >= 1.0,
            Self::Lock { hold, .. } | Self::UserLock { hold, .. } => mean_ns(*hold) >= 1.0,
            Self::Shootdown { prepare, .. } | Self::GuardedShootdown { prepare, .. } => {
                mean_ns(*prepare) >= 1.0
            }
            Self::NetworkReceive | Self::Spawn | Self::Synchronize => true,
            Self::Repeat { count, body } => *count > 0 && body.iter().any(Self::takes_time),
            _ => false,
        }
    }
}

/// A distribution of times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Duration {
    Constant {
        ns: u64,
    },
    Uniform {
        min_ns: u64,
        max_ns: u64,
    },
    Exponential {
        mean_ns: u64,
    },
    /// `sigma_permille` / 1000 is the standard deviation of the logarithm.
    LogNormal {
        median_ns: u64,
        sigma_permille: u32,
    },
    /// A share of `tail_permille` / 1000 takes `tail_ns` on average (exponential), the rest `body_ns`
    /// (exponential).
    TwoPoint {
        body_ns: u64,
        tail_ns: u64,
        tail_permille: u32,
    },
}

/// What decides on the host.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub enum SchedulerKind {
    Credit(CreditConfig),
    MicroSliced(MicroSlicedConfig),
    Eevdf(EevdfConfig),
    /// EEVDF, and boosts beside it.
    Beside(BesideConfig),
    Cfs(CfsConfig),
    /// Over the real scheduler's core.
    Lottery(FairSharePool),
    /// Per pCPU, as in VM'04.
    Stride(StrideConfig),
}

/// Stride scheduling per pCPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StrideConfig {
    pub slice_ns: u64,
}

impl NormalPoolKind {
    /// The slice of a normal turn.
    pub fn slice_ns(&self) -> u64 {
        match self {
            Self::Credit(credit) => credit.slice_ns,
            Self::FairShare(pool) => pool.slice_ns,
        }
    }

    /// For how long nobody is switched away from.
    pub fn ratelimit_ns(&self) -> u64 {
        match self {
            Self::Credit(credit) => credit.ratelimit_ns,
            Self::FairShare(_) => 0,
        }
    }
}

impl SchedulerKind {
    /// How long a turn lasts, or a little longer, while others wait.
    pub fn turn_ns(&self) -> u64 {
        match self {
            Self::Credit(credit) => credit.slice_ns,
            Self::MicroSliced(config) => match &config.normal {
                NormalPoolKind::Credit(credit) => credit.slice_ns,
                NormalPoolKind::FairShare(pool) => pool.slice_ns + pool.tick_ns,
            },
            Self::Eevdf(eevdf) | Self::Beside(BesideConfig { eevdf, .. }) => {
                eevdf.base_slice_ns + eevdf.tick_ns
            }
            Self::Cfs(cfs) => cfs.latency_ns + cfs.tick_ns,
            Self::Lottery(pool) => pool.slice_ns + pool.tick_ns,
            Self::Stride(stride) => stride.slice_ns,
        }
    }

    /// Returns how long the shortest turn is that ends because it is over.
    pub fn shortest_turn_ns(&self) -> u64 {
        match self {
            Self::Credit(credit) => credit.slice_ns,
            Self::MicroSliced(config) => config.normal.slice_ns(),
            Self::Eevdf(eevdf) | Self::Beside(BesideConfig { eevdf, .. }) => eevdf.base_slice_ns,
            Self::Cfs(cfs) => cfs.min_granularity_ns,
            Self::Lottery(pool) => pool.slice_ns,
            Self::Stride(stride) => stride.slice_ns,
        }
    }

    /// Returns whether a weight is that of the whole VM, not of each of its vCPUs.
    pub fn shares_by_vm(&self) -> bool {
        match self {
            Self::MicroSliced(config) => matches!(config.normal, NormalPoolKind::FairShare(_)),
            Self::Eevdf(eevdf) | Self::Beside(BesideConfig { eevdf, .. }) => eevdf.groups,
            Self::Cfs(_) | Self::Lottery(_) => true,
            Self::Credit(_) | Self::Stride(_) => false,
        }
    }

    /// Returns whether micro pCPUs that nobody asks for run vCPUs of the normal pool.
    pub fn lends(&self) -> bool {
        matches!(self, Self::MicroSliced(config) if config.lends)
    }

    /// Returns the length of a turn, if limits are kept by `policy/cpu_limit.h`; `None`: by the kernel.
    pub fn keeps_limits_by_turns(&self) -> Option<u64> {
        match self {
            Self::MicroSliced(MicroSlicedConfig { normal: NormalPoolKind::FairShare(pool), .. })
            | Self::Lottery(pool) => Some(pool.slice_ns),
            _ => None,
        }
    }

    /// Returns whether it knows cgroups around those of VMs.
    pub fn knows_cgroups(&self) -> bool {
        self.shares_by_vm() && !matches!(self, Self::Cfs(_))
    }

    /// Returns whether it is what the paper's authors built in Xen.
    pub fn is_xen_prototype(&self) -> bool {
        matches!(self, Self::MicroSliced(config) if config.mechanics == Mechanics::XenPrototype)
    }

    /// How many pCPUs may be micro-sliced at a time: the host's last ones of those that nobody is pinned to.
    pub fn most_micro_pcpus(&self) -> usize {
        match self {
            Self::MicroSliced(MicroSlicedConfig { pool: PoolSize::Static { pcpus }, .. }) => *pcpus,
            Self::MicroSliced(MicroSlicedConfig { pool: PoolSize::Auto { limit, .. }, .. }) => *limit,
            _ => 0,
        }
    }
}

/// Xen 4.7's credit scheduler.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CreditConfig {
    pub slice_ns: u64,
    pub tick_ns: u64,
    /// A vCPU that ran for less isn't preempted or rescheduled, yields included (`sched_ratelimit_us`).
    pub ratelimit_ns: u64,
    /// Wake-ups of vCPUs within their share preempt (BOOST).
    pub boost: bool,
    /// The rate limit holds for yields too (Xen 4.7; 4.8 and the paper's prototype exempt them).
    pub ratelimit_yields: bool,
}

/// How the pCPUs that aren't micro-sliced are shared.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum NormalPoolKind {
    /// The credit scheduler, as in the paper's prototype.
    Credit(CreditConfig),
    /// The real scheduler's, on sched_ext.
    FairShare(FairSharePool),
}

/// `policy/fair_share.h` on sched_ext's queues.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FairSharePool {
    /// A boost is a third of it (`microslice run --slice-us`).
    pub slice_ns: u64,
    /// Of the host's kernel: turns end at ticks.
    pub tick_ns: u64,
    /// Which pCPUs share queues.
    #[serde(serialize_with = "domain_by_name", skip_serializing_if = "is_default_domain")]
    pub domain: QueueDomain,
}

impl FairSharePool {
    /// `microslice run --queue-domain`'s default.
    pub const DOMAIN: QueueDomain = QueueDomain::Llc;
}

fn is_default_domain(domain: &QueueDomain) -> bool {
    *domain == FairSharePool::DOMAIN
}

fn domain_by_name<S: serde::Serializer>(domain: &QueueDomain, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(domain.name())
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
