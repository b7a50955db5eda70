//! VMs as BPF programs see them.

use crate::bpf::mapped_array::MappedArray;
use crate::interface::{VMS_MAX, Vcpu, Vm};
use microslice_policy::{Belief, Code};

/// A VM as the kernel side sees it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct KernelVm {
    pub slot: u32,
    /// Differs for each VM that ever used the slot.
    pub generation: u32,
    /// The address of its `struct kvm`: the VM, whichever scheduler sees it.
    pub kvm: u64,
    pub pid: u32,
    pub vcpu_count: u32,
    /// Bits `REGISTERS_…` of `bpf/core/intf.h`.
    pub registers: u32,
    /// What is believed of its guest's words, and of which: `count_epoch` of `struct vm`.
    pub belief: (u32, Code<Belief>),
}

impl KernelVm {
    /// Returns the VMs in the map `vms` that have a vCPU.
    pub(crate) fn all_of(vms: &MappedArray) -> Vec<Self> {
        let of_slot = |slot| {
            let vm: Vm = vms.get(slot)?;
            (vm.in_use != 0 && vm.vcpu_count > 0).then_some(Self {
                slot,
                generation: vm.generation,
                kvm: vm.kvm,
                pid: vm.pid,
                vcpu_count: vm.vcpu_count,
                registers: vm.registers,
                belief: (vm.count_epoch, vm.belief.belief),
            })
        };
        (0..VMS_MAX).filter_map(of_slot).collect()
    }

    /// Returns the vCPUs of the VM in `slot`, each with the slot of its own.
    pub(crate) fn vcpus_of(vms: &MappedArray, vcpus: &MappedArray, slot: u32) -> Vec<(u32, Vcpu)> {
        let vm: Vm = vms.get(slot).unwrap_or_default();
        let taken = vm.vcpus.into_iter().filter(|&entry| entry > 0);
        let vcpu = |entry| Some((entry - 1, vcpus.get::<Vcpu>(entry - 1)?));
        taken.filter_map(vcpu).filter(|(_, vcpu)| vcpu.in_use != 0 && vcpu.vm == slot).collect()
    }
}
