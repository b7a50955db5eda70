//! The real host: loads and configures the BPF scheduler, finds VMs, feeds symbols and slides, reads
//! statistics.
//!
//! [`daemon::run`] is the whole life of `microslice run`: refuse ([`preflight`]), load ([`scheduler`]), then
//! once every few milliseconds: read the rings, look for new VMs ([`vms`]), tell the kernel what is known of
//! their code ([`guest_kernels`]), and at each interval print ([`report`]). [`memory_slots`] tells where a
//! VMM has its guest's memory, to the daemon and to `microslice symbols --pid`.

// They panic where nobody reads, and a scheduler must not end because of that.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod beside;
mod capacity;
pub mod cgroups;
pub mod config;
mod config_file;
pub mod coordination;
mod core_scheduling;
pub mod daemon;
pub mod delay_preemption;
pub mod domains;
pub mod error;
pub mod fair_queue;
pub mod guest_kernels;
mod guest_knowledge;
mod guests;
pub mod hint_page;
pub mod interface;
pub mod kernel_reader;
pub mod libvirt;
pub mod limits;
mod mapped_array;
pub mod memory_slots;
mod micro_report;
pub mod monitoring;
mod objects;
pub mod observe;
pub mod pool_history;
pub mod preflight;
pub mod privileges;
pub mod program_costs;
pub mod real_time;
pub mod recorder;
pub mod recursion_misses;
mod refusals;
pub mod refused_kernels;
pub mod report;
pub mod restarts;
pub mod rules;
pub mod scheduler;
pub mod service_weights;
pub mod simple;
pub mod tenant_files;
pub mod topology;
mod tracer;
mod urgent_report;
mod vm_names;
pub mod vm_policy;
pub mod vms;
pub mod weights;

/// A module that libbpf-cargo generated from `bpf/OBJECT.bpf.c`: programs, maps, and the layouts of its
/// headers.
macro_rules! skeleton {
    ($module:ident, $object:literal) => {
        #[allow(
            clippy::all,
            clippy::undocumented_unsafe_blocks,
            unsafe_op_in_unsafe_fn,
            dead_code,
            non_camel_case_types
        )]
        mod $module {
            include!(concat!(env!("OUT_DIR"), "/", $object, ".skel.rs"));
        }
    };
}

skeleton!(microslice_skeleton, "microslice");
skeleton!(coordinated_skeleton, "coordinated");
skeleton!(memory_slots_skeleton, "memory_slots");
skeleton!(beside_skeleton, "beside");
skeleton!(simple_skeleton, "simple");
skeleton!(observe_skeleton, "observe");

pub use config::{HOLD_US_MAX, PoolChoice, SchedulerChoice, Settings};
pub use error::HostError;
pub use tracer::TraceSettings;
