//! What BPF programs cost: how often each ran, and for how long, as the kernel counts it.

use crate::HostError;
use libbpf_rs::{Object, Program, libbpf_sys};
use serde_json::{Value, json};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// While this lives the kernel measures every BPF program: two clock reads each run, so it isn't on by
/// default.
pub struct Measuring(#[allow(dead_code)] OwnedFd);

impl Measuring {
    /// # Errors
    /// No rights.
    pub fn start() -> Result<Self, HostError> {
        // SAFETY: a plain system call.
        let descriptor = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
        if descriptor < 0 {
            let cause = std::io::Error::from_raw_os_error(-descriptor);
            return Err(HostError::broken(format!("BPF statistics: {cause}")));
        }
        // SAFETY: the kernel just made it for us, and nobody else has it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(descriptor) }))
    }
}

/// `[{"program", "instructions", "runs", "ns"}]`: instructions as verified, runs and time since loading while
/// measured.
pub fn of_object(object: &Object) -> Value {
    let mut costs: Vec<_> = object
        .progs()
        .filter_map(|program| {
            let info = program_info(&program)?;
            let name = program.name().to_string_lossy().into_owned();
            Some((name, info.verified_insns, info.run_cnt, info.run_time_ns))
        })
        .collect();
    costs.sort();
    let object = |(program, instructions, runs, ns)| json!({"program": program, "instructions": instructions, "runs": runs, "ns": ns});
    costs.into_iter().map(object).collect()
}

/// Name and verified instructions of each loaded program: what `bpf/instruction-counts.toml` records.
pub fn instructions_of(object: &Object) -> Vec<(String, u32)> {
    let mut counts: Vec<_> = object
        .progs()
        .filter_map(|program| {
            let info = program_info(&program)?;
            Some((program.name().to_string_lossy().into_owned(), info.verified_insns))
        })
        .collect();
    counts.sort();
    counts
}

/// Asks the kernel about a loaded program; `None` if it isn't loaded.
pub fn program_info(program: &Program<'_>) -> Option<libbpf_sys::bpf_prog_info> {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut length = size_of_val(&info) as u32;
    // SAFETY: the kernel writes at most `length` bytes to `info`, which is that long and plain data.
    let result = unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(program.as_fd().as_raw_fd(), &raw mut info, &raw mut length)
    };
    (result == 0).then_some(info)
}
