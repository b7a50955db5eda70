//! What single operations take on an emulated host and in its guests: the simulator's model of it needs them.
//!
//! Each is the mean of a second in which every CPU computes (`testbed/guest/costs.c`). So an emulated CPU has
//! the part of this machine that it has in any busy phase.

use crate::guest::{GuestSpec, Pv};
use crate::host::Host;
use crate::{Error, Result};
use serde_json::{Value, json};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(240);
/// The kernel-heavy load computes so many iterations between two visits to the kernel
/// (`testbed/guest/loads.c`).
pub const ITERATIONS: f64 = 20_000.0;
/// Of one iteration on hardware: the latencies of a multiplication (3 cycles) and an addition (1), at 2.4
/// GHz.
const HARDWARE_NS_PER_ITERATION: f64 = 4.0 / 2.4;

/// Nanoseconds each.
#[derive(Debug, Clone, PartialEq)]
pub struct OperationCosts {
    pub pcpus: u32,
    /// Of the kernel's own scheduler, as it is set now.
    pub base_slice_ns: u64,
    /// From one task of the host to another, with the pipe that wakes it.
    pub switch_ns: u64,
    /// An exit that KVM answers itself (CPUID).
    pub exit_ns: u64,
    /// The computing of one round of the kernel-heavy load.
    pub compute_ns: u64,
    /// A system call that takes a contended lock once (a futex's), uncontended.
    pub lock_ns: u64,
    /// Mapping, touching, write-protecting and unmapping eight pages that nobody else has seen.
    pub unmap_ns: u64,
    /// A call of one running sibling, and of all the others, answered. Most of the latter waits for pCPUs
    /// that the machine below has stopped: it says how busy that machine is.
    pub call_one_ns: u64,
    pub call_all_ns: u64,
}

/// How many pCPUs the host has, and the slice of its own scheduler.
fn look(host: &Host) -> Result<(u32, String)> {
    let pcpus = host.must_run("grep -c ^processor /proc/cpuinfo", PATIENCE)?;
    let pcpus = pcpus.trim().parse().map_err(|_| Error::file("/proc/cpuinfo", "has no processors"))?;
    let file = "/sys/kernel/debug/sched/base_slice_ns";
    let slice = host.must_run(
        &format!("[ -e {file} ] || mount -t debugfs debugfs /sys/kernel/debug; cat {file}"),
        PATIENCE,
    )?;
    Ok((pcpus, slice))
}

impl OperationCosts {
    /// Measures on a host on which nothing else runs; takes some twenty seconds of an emulated one.
    pub fn measure(host: &Host, guest_kernel: &str, pv: Pv) -> Result<Self> {
        let switches = host.must_run(&format!("exec {} switches", host.workload), PATIENCE)?;
        let (pcpus, slice) = look(host)?;
        let guest =
            host.start_guest(GuestSpec::new("costs").workload("costs").kernel(guest_kernel).pv(pv))?;
        let end = guest.wait_for("\"cost\":\"end\"", 0, PATIENCE);
        let lines: Vec<String> = guest.lines(0).into_iter().map(|line| line.text).chain([switches]).collect();
        guest.stop()?;
        end?;
        Self::of_lines(lines.iter().flat_map(|text| text.lines()), pcpus, slice.trim())
            .map_err(|cause| Error::file("the costs that a guest reported", cause))
    }

    fn of_lines<'l>(
        lines: impl Iterator<Item = &'l str>,
        pcpus: u32,
        slice: &str,
    ) -> std::result::Result<Self, String> {
        let reports: Vec<Value> = lines.filter_map(|line| serde_json::from_str(line).ok()).collect();
        let of = |cost: &str, siblings: &dyn Fn(u64) -> bool| {
            let fits = |report: &&Value| {
                report["cost"] == cost && siblings(report["siblings"].as_u64().unwrap_or(0))
            };
            let ns = reports.iter().find(fits).and_then(|report| report["ns"].as_u64());
            ns.filter(|&ns| ns > 0).ok_or_else(|| format!("nothing of {cost:?}"))
        };
        let any = |cost: &str| of(cost, &|_| true);
        Ok(Self {
            pcpus,
            base_slice_ns: slice.parse().map_err(|_| format!("a slice of {slice:?}"))?,
            switch_ns: any("switch")?,
            exit_ns: any("exit")?,
            compute_ns: any("compute")?,
            lock_ns: any("lock")?,
            unmap_ns: any("unmap")?,
            call_one_ns: of("call", &|siblings| siblings == 1)?,
            call_all_ns: of("call", &|siblings| siblings > 1)?,
        })
    }

    /// How many times slower than hardware of 2.4 GHz the guest computes.
    pub fn slowness(&self) -> f64 {
        self.compute_ns as f64 / (ITERATIONS * HARDWARE_NS_PER_ITERATION)
    }

    pub fn to_json(&self) -> Value {
        json!({
            "pcpus": self.pcpus,
            "base_slice_ns": self.base_slice_ns,
            "switch_ns": self.switch_ns,
            "exit_ns": self.exit_ns,
            "compute_ns": self.compute_ns,
            "lock_ns": self.lock_ns,
            "unmap_ns": self.unmap_ns,
            "call_one_ns": self.call_one_ns,
            "call_all_ns": self.call_all_ns,
            "slowness": self.slowness(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORTS: [&str; 8] = [
        r#"{"ready":"costs"}"#,
        r#"{"cost":"exit","ns":9000}"#,
        r#"{"cost":"compute","ns":1000000}"#,
        r#"{"cost":"lock","ns":20000}"#,
        r#"{"cost":"unmap","ns":400000}"#,
        r#"{"cost":"call","siblings":1,"ns":300000}"#,
        r#"{"cost":"call","siblings":3,"ns":500000}"#,
        r#"{"cost":"switch","ns":60000}"#,
    ];

    #[test]
    fn each_cost_is_taken_from_its_line() {
        let costs = OperationCosts::of_lines(REPORTS.into_iter(), 4, "21000000").expect("complete");
        assert_eq!((costs.switch_ns, costs.call_one_ns, costs.call_all_ns), (60_000, 300_000, 500_000));
        assert!((costs.slowness() - 30.0).abs() < 0.1, "{}", costs.slowness());
    }

    #[test]
    fn a_guest_that_ended_early_is_told_by_what_is_missing() {
        let error = OperationCosts::of_lines(REPORTS[..6].iter().copied(), 4, "21000000");
        assert_eq!(error, Err("nothing of \"switch\"".into()));
    }
}
