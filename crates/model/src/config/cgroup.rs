//! Cgroups around those of VMs: weights and limits at levels above them.

use super::CpuMax;
use serde::Serialize;

/// A cgroup that VMs, tasks of the host or other such cgroups lie in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CgroupConfig {
    pub name: String,
    /// Among its siblings, in the unit of VMs' weights.
    pub weight: u32,
    /// The number of the cgroup that it lies in, which is lower than its own; `None`: it lies in the root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<usize>,
    /// Of all that lies in it, together; `None`: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_max: Option<CpuMax>,
}

/// Returns the numbers of a cgroup and of those around it, the innermost first.
pub fn cgroups_around(
    cgroups: &[CgroupConfig],
    innermost: Option<usize>,
) -> impl Iterator<Item = usize> + use<'_> {
    std::iter::successors(innermost, |&at| cgroups[at].parent)
}
