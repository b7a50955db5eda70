//! What the whole promises, on real kernels with real guests. One program, so that behaviours share boots:
//! each has its own name and verdict all the same.
//!
//! Tests run in the order of their names, one at a time on one emulated host. So those of one host stand
//! together, and within a module those that share guests: a host is booted, and guests are, when a test wants
//! others than are there.

mod common;

/// On a stock 6.18 with four pCPUs.
mod default_host {
    mod acceleration;
    mod alone;
    mod campaign;
    mod coordinated;
    mod cpu_limits;
    mod guest_balloons;
    mod guest_locks;
    mod harness;
    mod holders;
    mod hotplug;
    mod lifecycle;
    mod max_wait;
    mod shares;
    mod sleepers;
    mod symbols;
    mod trials;
    mod vm_policies;
    mod vmm_threads;
    mod weights;
    mod windows;
}

/// On hosts of other kernels, or that are set up otherwise.
mod other_hosts {
    mod beside;
    mod beside_neighbours;
    mod beside_vms;
    mod guest_kernels;
    mod host_kernels;
    mod intel;
    mod kvm_types;
    mod monitoring;
    mod observe;
    mod package;
    mod pause_exits;
    mod queue_domains;
    mod refusals;
}
