//! The testbed: an emulated sched_ext host that runs real, unmodified KVM guests on a machine without
//! virtualization.
//!
//! ```text
//! L0  this machine: cargo test, microslice demo
//! └─ L1  QEMU's TCG emulates an AMD machine with SVM, or Bochs an Intel machine with VMX; it runs a stock
//!    │   Debian kernel and our scheduler                                                  (`Host`)
//!    └─ L2  unmodified Debian kernels as KVM guests of L1; workloads measure themselves    (`Guest`)
//! ```
//!
//! Everything that runs there is a stock Debian package, chosen by rule ([`kernels`]), checked against
//! Debian's archive keys and kept in a cache ([`cache`]). Time inside is dilated 20 to 50 times and not
//! deterministic: the testbed shows function, counts and coarse ratios within one boot.

// They panic where nobody reads.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod btf_check;
pub mod cache;
pub mod campaign;
mod children;
pub mod console;
pub mod costs;
pub mod demo;
pub mod demo_report;
pub mod emulator;
mod error;
mod guest;
pub mod guest_modules;
mod host;
mod host_symbols;
mod initramfs;
pub mod installation;
pub mod kernels;
pub mod lab;
mod link;
mod loss;
pub mod machine;
pub mod measure;
mod memory_file;
mod modules;
mod monitor;
pub mod operation_costs;
pub mod packages;
pub mod peers;
pub mod prometheus;
pub mod relative;
mod standstill;
mod testbed;
pub mod trace_processor;
pub mod trial;
pub mod workload;

pub use btf_check::vmlinux_of;
pub use error::{Error, Result};
pub use guest::{Guest, GuestSpec, Pv};
pub use host::{GuestImage, Host, built_binary};
pub use link::{Line, Output, Process};
pub use machine::Machine;
pub use standstill::Standstill;
pub use testbed::Testbed;

/// Runs commands inside the emulated host (`testbed/host/agent.c`).
const AGENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent"));
/// What guests run, and what answers their pings on the host (`testbed/guest/`).
const WORKLOAD: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/workload"));
/// A VMM for hundreds of VMs (`testbed/vmm/`).
const VCPUS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/vcpus"));
/// A VMM with a guest of its own (`testbed/lab/`).
const LAB: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/lab"));
/// Asks for a core-scheduling cookie (`testbed/cookie/`).
const COOKIE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cookie"));
/// Faults that a shell can't make (`testbed/faults/`).
const FAULTS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/faults"));
/// Makes a thread real-time (`testbed/real_time/`).
const REAL_TIME: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/real-time"));

/// Tells a user that waits at a terminal what is going on. Standard output belongs to results.
pub fn say(what: impl std::fmt::Display) {
    use std::io::Write;
    // Nobody there to read it is no reason to end.
    let _ = writeln!(std::io::stderr(), "testbed: {what}");
}

/// Says why a command has failed, in one line, and returns its exit code.
pub fn exit_code(result: std::result::Result<(), Box<dyn std::error::Error>>) -> std::process::ExitCode {
    match result {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            say(error);
            std::process::ExitCode::from(2)
        }
    }
}
