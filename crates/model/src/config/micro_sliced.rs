//! The project's scheduler: its micro pool, and how the host applies what the policy decides.

use super::{HolderRules, NormalPoolKind};
use serde::Serialize;

/// The project's scheduler, through `policy/`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MicroSlicedConfig {
    pub normal: NormalPoolKind,
    pub micro_slice_ns: u64,
    pub pool: PoolSize,
    pub mechanics: Mechanics,
    /// What no value below turns off is as in the paper's text (`microslice_policy::rules`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paper_rules: bool,
    /// Micro slices in a row for a vCPU that stops at a bad moment; 0: the paper's rules.
    pub grace: u32,
    /// A call-function IPI accelerates its recipient at once, not only when its sender yields.
    pub call_function_ipi: bool,
    /// For how long a waiter keeps its pCPU though the host finds no sibling to help; 0: the paper's rules.
    pub patience_ns: u64,
    /// Micro-sliced pCPUs that nobody asks for run vCPUs of the normal pool.
    pub lends: bool,
    /// Where no micro-sliced pCPU serves a request at once, one of the normal pool does.
    pub home_slices: bool,
    /// As [`super::BesideConfig::max_wait_ns`].
    #[serde(skip_serializing_if = "super::eevdf::is_none")]
    pub max_wait_ns: u64,
    #[serde(skip_serializing_if = "super::eevdf::is_none")]
    pub max_wait_each_ns: u64,
    #[serde(skip_serializing_if = "HolderRules::are_the_papers")]
    pub holders: HolderRules,
}

/// How the host does what the policy decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Mechanics {
    /// As the paper's text says: one micro slice, then back to the end of the normal queue.
    Paper,
    /// As the authors' Xen prototype does, on which the paper's numbers were measured (see
    /// `scheduler/mechanisms/mod.rs`).
    XenPrototype,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum PoolSize {
    Static {
        pcpus: usize,
    },
    /// Algorithm 1.
    Auto {
        limit: usize,
        profile_interval_ns: u64,
        epoch_interval_ns: u64,
        /// In a row, until a quiet profile phase is believed; the paper: 0.
        second_looks: u32,
        /// How busy the micro-sliced pCPUs must have been for one more to be tried; the paper: 0.
        grow_when_busy_percent: u32,
    },
}
