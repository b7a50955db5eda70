//! What `crates/host` reads of a real system: libvirt, KVM's memory slots, systemd, stock kernels.

mod guest_kernel_memory;
mod libvirt;
mod memory_slots;
mod service;
mod vm_slots;
