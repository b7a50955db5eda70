//! VMs as BPF programs see them.

use crate::bpf::mapped_array::MappedArray;
use crate::interface::{VMS_MAX, Vm};

/// A VM as the kernel side sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
            })
        };
        (0..VMS_MAX).filter_map(of_slot).collect()
    }
}
