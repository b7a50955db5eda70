//! The testbed: an emulated sched_ext host that runs real, unmodified KVM guests on a machine without virtualization.
//!
//! ```text
//! L0  this machine: cargo test, microslice demo
//! └─ L1  QEMU's TCG emulates an AMD machine with SVM; it runs a stock Debian kernel and our scheduler   (`Host`)
//!    └─ L2  unmodified Debian kernels as KVM guests of L1, with workloads that measure themselves       (`Guest`)
//! ```
//!
//! Everything that runs there is a stock Debian package, chosen by rule ([`kernels`]), checked against Debian's
//! archive keys and kept in a cache ([`cache`]). Time inside is dilated 20 to 50 times and not deterministic: the
//! testbed shows function, counts and coarse ratios within one boot.

mod btf_check;
pub mod cache;
mod error;
pub mod kernels;
pub mod packages;

pub use error::{Error, Result};

/// Tells whoever waits at a terminal what is going on. Standard output belongs to results.
pub fn say(what: impl std::fmt::Display) {
    eprintln!("testbed: {what}");
}
