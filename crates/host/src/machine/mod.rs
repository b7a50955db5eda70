//! The machine that this runs on: its pCPUs and cgroups, and whether it may be scheduled at all.

mod capacity;
pub mod cautions;
pub(crate) mod cgroup_names;
pub mod cgroups;
pub(crate) mod clock;
pub(crate) mod core_scheduling;
pub mod cpu_list;
pub mod domains;
pub(crate) mod kvm_modes;
pub(crate) mod preflight;
pub mod privileges;
pub(crate) mod proc;
pub(crate) mod real_time;
mod refused_kernels;
pub mod survey;
pub(crate) mod topology;
