//! The real host: loads and configures the BPF scheduler, finds VMs, feeds symbols and slides, reads
//! statistics.
//!
//! Each folder uses only the folders before it: [`machine`], [`shares`], [`settings`], [`bpf`], [`guests`],
//! [`output`], and then the modes [`run`], [`beside`] and [`observe`], which don't use each other. Last is
//! [`trial`], which observes while the others run. `scripts/check-layering.sh` holds this order.
//!
//! [`run::run`] is the whole life of `microslice run`. It refuses ([`machine`]) or loads ([`run`]). Once
//! every few milliseconds it reads the rings, looks for new VMs ([`guests`]), and tells the kernel what is
//! known of their code. At each interval it prints ([`run::report`]). [`guests::memory_slots`] tells where a
//! VMM has its guest's memory, to the daemon and to `microslice symbols --pid`.

// They panic where nobody reads, and a scheduler must not end because of that.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod error;
pub mod interface;

pub mod beside;
pub mod bpf;
pub mod guests;
pub mod machine;
pub mod observe;
pub mod output;
pub mod run;
pub mod settings;
mod shares;
pub mod trial;

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
skeleton!(function_probe_skeleton, "function_probe");
skeleton!(posted_interrupts_skeleton, "posted_interrupts");
skeleton!(beside_skeleton, "beside");
skeleton!(simple_skeleton, "simple");
skeleton!(observe_skeleton, "observe");

pub use error::HostError;
