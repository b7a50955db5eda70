//! Guest kernels: images, memory and symbols, from blobs made here and from stock packages.

mod blobs;
mod carried_kernels;
mod catalogue;
mod check_snapshot;
mod common;
mod critical_on_real_kernels;
#[cfg(feature = "debuginfod")]
mod debuginfod;
mod fuzz_corpus;
mod kallsyms_layouts;
mod memory;
mod real_kernels;
mod sources;
