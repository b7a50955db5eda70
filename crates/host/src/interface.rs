//! What the BPF programs and the daemon share, generated from `bpf/core/intf.h` (`crates/border`).

pub use generated::*;

#[allow(clippy::all, clippy::undocumented_unsafe_blocks, dead_code, unused_imports, non_camel_case_types)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/border.rs"));
}
