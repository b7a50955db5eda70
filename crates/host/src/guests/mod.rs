//! VMs and what is known of their guests: names, policies, kernels, slides, hint pages.

pub(crate) mod count_words;
pub(crate) mod counting;
pub(crate) mod counts;
mod fair_queue;
pub mod guest_kernels;
mod guest_knowledge;
pub(crate) mod hint_page;
pub(crate) mod hint_pages;
pub(crate) mod kernel_reader;
pub mod libvirt;
pub(crate) mod lines;
pub(crate) mod list;
pub mod memory_slots;
pub(crate) mod pinned;
pub(crate) mod resched_co;
pub(crate) mod running;
mod tenant_files;
mod vm_names;
pub mod vms;
