//! Linux's own scheduler, and boosts beside it.

use super::{Duration, HolderRules};
use serde::Serialize;

/// Linux EEVDF with KVM's directed yield.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EevdfConfig {
    pub base_slice_ns: u64,
    pub tick_ns: u64,
    pub directed_yield: bool,
    /// A cgroup per VM and per vCPU, as libvirt and systemd make them; otherwise all vCPUs are tasks of one
    /// queue.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub groups: bool,
    /// Directed yields know which vCPU was sent an interrupt, and are honoured through the groups (Li's
    /// proposal, version 3).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ipi_aware: bool,
    /// Directed yields go to vCPUs that were woken and wait, too (`vcpu->ready`, virt/kvm/kvm_main.c, Linux
    /// 5.3 on).
    #[serde(skip_serializing_if = "Clone::clone")]
    pub boosts_woken: bool,
}

/// The same with the project's boosts: a needed vCPU's thread is real-time for a micro slice (`microslice run
/// --scheduler beside`).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BesideConfig {
    pub eevdf: EevdfConfig,
    pub micro_slice_ns: u64,
    /// What no value below turns off is as in the paper's text (`microslice_policy::rules`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paper_rules: bool,
    /// Boosts in a row for a vCPU that stops at a bad moment; 0: the paper's rules.
    pub grace: u32,
    /// A call-function IPI boosts its recipient at once, not only when its sender yields.
    pub call_function_ipi: bool,
    /// Of the host, that a VM may have by boosts.
    pub boost_percent: u32,
    /// Of the host, that all VMs may have together.
    pub host_percent: u32,
    /// How long vCPUs may wait for a pCPU, of VMs that say nothing else; 0: for ever.
    #[serde(skip_serializing_if = "is_none")]
    pub max_wait_ns: u64,
    /// For each vCPU that wants to run and that a pCPU has, if that is longer; 0: the bound is as it is.
    #[serde(skip_serializing_if = "is_none")]
    pub max_wait_each_ns: u64,
    /// A vCPU that was woken and has to wait is boosted.
    pub woken: bool,
    /// What boosts brought a VM's group is taken from what it has by weight.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub pay_back: bool,
    #[serde(skip_serializing_if = "HolderRules::are_the_papers")]
    pub holders: HolderRules,
}

/// What it costs to make a waiting thread real-time, and ordinary again.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BoostCosts {
    /// From the helper's call until the thread runs.
    pub latency: Duration,
    /// From the call that takes it back until the next thread runs: its pCPU is idle so long.
    pub give_back_ns: u64,
    /// The helper's own processor time, of a boost from request to return. It handles one after the other.
    pub helper_ns: u64,
}

pub(super) fn is_none(bound_ns: &u64) -> bool {
    *bound_ns == 0
}

impl BoostCosts {
    /// On a busy virtual machine with Linux 6.18: median 24 us, p90 37, p99 59 of 2,900 (a log-normal with
    /// that median and p90 has a p99 of 53); the way back 10 us. The helper's own time is an assumption, the
    /// most that it shall need.
    pub const MEASURED: Self = Self {
        latency: Duration::LogNormal { median_ns: 24_000, sigma_permille: 340 },
        give_back_ns: 10_000,
        helper_ns: 10_000,
    };

    pub(super) fn are_measured(&self) -> bool {
        *self == Self::MEASURED
    }
}
