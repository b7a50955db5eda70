//! CFS of Linux 3.2, and what the coordinated scheduling of ASPLOS'13 adds to it, for all VMs or for one.

use microslice_policy::coordinated::{BalanceScheme, UrgentConfig};
use serde::Serialize;

/// CFS of Linux 3.2, a control group per VM.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CfsConfig {
    /// In which each shall run once (`sysctl_sched_latency`), unless too many wait for it.
    pub latency_ns: u64,
    /// Nobody's turn is over sooner (`sysctl_sched_min_granularity`).
    pub min_granularity_ns: u64,
    /// `sysctl_sched_wakeup_granularity`: by how much a woken vCPU must be behind to preempt.
    pub wakeup_granularity_ns: u64,
    pub tick_ns: u64,
    pub coordination: Coordination,
}

/// What coordinated scheduling adds to CFS (ASPLOS'13).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Coordination {
    #[serde(serialize_with = "balance_by_name")]
    pub balance: BalanceScheme,
    pub resched_dp: bool,
    pub tlb_co: bool,
    pub resched_co: ReschedCo,
    /// Early delayed preemption (4.1.1): a vCPU that begins to send an IPI isn't preempted. Of VMs with
    /// `resched_dp`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub early_dp: bool,
    /// At a pause-loop exit the sender of a shootdown doesn't yield where its recipients come urgently (4.3).
    /// Of VMs with `tlb_co`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tlb_spin: bool,
    /// For how long a reschedule IPI makes urgent.
    pub delay_ns: u64,
    pub urgent_slice_ns: u64,
    pub urgent_allowance_ns: u64,
}

/// Whether recipients of reschedule IPIs are urgent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReschedCo {
    Off,
    On,
    /// Where the VM's reschedule IPIs get rarer by it.
    Auto,
}

impl Serialize for ReschedCo {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => serializer.serialize_bool(false),
            Self::On => serializer.serialize_bool(true),
            Self::Auto => serializer.serialize_str("auto"),
        }
    }
}

impl Coordination {
    pub const NONE: Self = Self {
        balance: BalanceScheme::None,
        resched_dp: false,
        tlb_co: false,
        resched_co: ReschedCo::Off,
        early_dp: false,
        tlb_spin: false,
        delay_ns: UrgentConfig::PAPER.delay_ns,
        urgent_slice_ns: UrgentConfig::PAPER.slice_ns,
        urgent_allowance_ns: UrgentConfig::PAPER.allowance_ns,
    };
}

fn balance_by_name<S: serde::Serializer>(balance: &BalanceScheme, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match balance {
        BalanceScheme::None => "none",
        BalanceScheme::Apart => "apart",
        BalanceScheme::LoadConscious => "load-conscious",
    })
}

/// Which schemes of coordinated scheduling a VM has; `None`: those of the policy. Other schedulers have none,
/// whatever is said here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct VmKnobs {
    pub resched_dp: Option<bool>,
    pub tlb_co: Option<bool>,
    pub resched_co: Option<ReschedCo>,
}

impl VmKnobs {
    pub(super) fn say_nothing(&self) -> bool {
        *self == Self::default()
    }
}
