//! What the normal pool keeps of a VM: its weight, and how much it has had; what cgroups around VMs give it.

use super::clocks::FIRST_CLOCK_NS;
use crate::config::cgroups_around;
use crate::ids::{IdVec, VmId};
use crate::machine::{HostVm, Machine, VcpuState};
use microslice_policy as policy;
use microslice_policy::VmSize;
use microslice_policy::weights::{Place, Weighed, weights};
use std::path::PathBuf;

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

    /// Likewise, of a host that may have cgroups around VMs, which all want to run so far.
    pub fn all_of(machine: &Machine, cgroups: &Cgroups) -> IdVec<VmId, Self> {
        let mut all = Self::all(&machine.vms);
        cgroups.weigh(|_| true, &mut all);
        all
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

/// Cgroups around VMs: once a second each VM's weight becomes what the hierarchy gives it, by which VMs want
/// to run (`crates/host/src/run/shares.rs`).
pub struct Cgroups {
    /// Of each VM; empty: there are none.
    places: IdVec<VmId, Place>,
    /// What each one had wanted at the look before.
    wanted_ns: IdVec<VmId, u64>,
    next_ns: u64,
}

impl Cgroups {
    /// `LOOK_WHO_WANTS_TO_RUN`.
    const INTERVAL_NS: u64 = 1_000_000_000;
    /// A VM that wanted less time of an interval didn't want to run.
    const AT_LEAST_NS: u64 = Self::INTERVAL_NS / 100;

    pub fn new(machine: &Machine) -> Self {
        let around = |vm: &HostVm| {
            let mut levels: Vec<usize> = cgroups_around(&machine.cgroups, vm.cgroup).collect();
            levels.reverse();
            levels
        };
        let mut folder = PathBuf::new();
        let place = |(vm, host): (VmId, &HostVm)| {
            folder.clear();
            let levels = around(host).into_iter().map(|at| &machine.cgroups[at]);
            let levels = levels.map(|cgroup| (cgroup.name.clone(), cgroup.weight));
            let own = (format!("vm {vm}"), host.weight);
            let cgroups = levels.chain([own]).map(|(name, weight)| {
                folder.push(name);
                (folder.clone(), weight)
            });
            Place { cgroups: cgroups.collect(), given: None }
        };
        let has_any = !machine.cgroups.is_empty();
        Self {
            places: if has_any { machine.vms.enumerate().map(place).collect() } else { IdVec::new() },
            wanted_ns: IdVec::of(0, machine.vms.len()),
            next_ns: if has_any { Self::INTERVAL_NS } else { u64::MAX },
        }
    }

    pub fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Sets the VMs' weights, by whether each wants to run.
    fn weigh(&self, is_active: impl Fn(VmId) -> bool, vms: &mut IdVec<VmId, VmShare>) {
        let weighed: Vec<Weighed<'_>> =
            self.places.enumerate().map(|(vm, place)| Weighed { place, is_active: is_active(vm) }).collect();
        for (share, weight) in vms.iter_mut().zip(weights(&weighed)) {
            share.weight = weight;
        }
    }

    /// Looks which VMs want to run, if that is due.
    pub fn look(&mut self, machine: &Machine, vms: &mut IdVec<VmId, VmShare>) {
        if machine.now_ns < self.next_ns {
            return;
        }
        self.next_ns += Self::INTERVAL_NS;
        let mut is_active = IdVec::of(false, machine.vms.len());
        for vm in machine.vms.ids() {
            let wanted_ns = wanted_ns(machine, vm);
            let before_ns = std::mem::replace(&mut self.wanted_ns[vm], wanted_ns);
            // Measuring may have begun since.
            is_active[vm] = wanted_ns.checked_sub(before_ns).unwrap_or(wanted_ns) >= Self::AT_LEAST_NS;
        }
        self.weigh(|vm| is_active[vm], vms);
    }
}

/// For how long a VM's vCPUs have run, or waited to, since measuring began.
fn wanted_ns(machine: &Machine, vm: VmId) -> u64 {
    let HostVm { first_vcpu, vcpus, .. } = &machine.vms[vm];
    let of_vcpu = |vcpu| {
        let host = &machine.vcpus[vcpu];
        let lasts_ns = if host.state == VcpuState::Blocked { 0 } else { machine.now_ns - host.since_ns };
        host.turns.run_ns + host.turns.wait_ns + lasts_ns
    };
    first_vcpu.span(*vcpus).map(of_vcpu).sum()
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
