//! What the normal pool keeps of a VM: its weight, and how much it has had.

use super::clocks::FIRST_CLOCK_NS;
use crate::ids::{IdVec, VmId};
use crate::machine::HostVm;
use microslice_policy as policy;
use microslice_policy::VmSize;

/// The weight of a VM that names none, here and in cgroups (`cpu.weight`).
const SCENARIO_WEIGHT: u64 = 256;
const CGROUP_WEIGHT: u64 = policy::WEIGHT_DEFAULT as u64;
const CGROUP_WEIGHT_MAX: u64 = policy::WEIGHT_MAX as u64;

pub struct VmShare {
    /// As `cpu.weight` of a cgroup.
    pub weight: u32,
    /// vCPUs that aren't blocked.
    pub active_vcpus: u32,
    pub vcpus: u32,
    /// The VM's clock: of all that its vCPUs ran, wherever.
    pub vtime_ns: u64,
    /// That of the VM that was furthest ahead when one of its vCPUs began to run, or to wait.
    pub first_vm_ns: u64,
}

impl VmShare {
    pub fn all(vms: &IdVec<VmId, HostVm>) -> IdVec<VmId, Self> {
        vms.iter().zip(cgroup_weights(vms)).map(|(vm, weight)| Self::new(vm, weight)).collect()
    }

    pub fn size(&self) -> VmSize {
        VmSize { weight: self.weight, vcpu_count: self.vcpus }
    }

    fn new(vm: &HostVm, weight: u32) -> Self {
        Self {
            weight,
            active_vcpus: 0,
            vcpus: vm.vcpus,
            vtime_ns: FIRST_CLOCK_NS,
            first_vm_ns: FIRST_CLOCK_NS,
        }
    }
}

/// Scenarios' weights as cgroups'. Only their ratios count: where these would be lost in rounding, or beyond
/// what cgroups know, the heaviest VM has the greatest weight that there is.
fn cgroup_weights(vms: &IdVec<VmId, HostVm>) -> impl Iterator<Item = u32> {
    let scaled = |vm: &HostVm| u64::from(vm.weight) * CGROUP_WEIGHT;
    let fits =
        |vm: &HostVm| scaled(vm) % SCENARIO_WEIGHT == 0 && scaled(vm) / SCENARIO_WEIGHT <= CGROUP_WEIGHT_MAX;
    let heaviest = vms.iter().map(|vm| u64::from(vm.weight)).max().unwrap_or(1).max(1);
    let (times, by) =
        if vms.iter().all(fits) { (CGROUP_WEIGHT, SCENARIO_WEIGHT) } else { (CGROUP_WEIGHT_MAX, heaviest) };
    vms.iter().map(move |vm| ((u64::from(vm.weight) * times + by / 2) / by).max(1) as u32)
}
