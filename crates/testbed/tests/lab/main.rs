//! What `observe` and `run --scheduler beside` promise, on this machine's own KVM at full speed, with the
//! lab's guest (`testbed/lab/`). Skipped, and said so, where KVM can't be opened or BPF can't be loaded.

mod boosts;
mod crowds;
mod deaths;
mod groups;
mod holders;
mod max_wait;
mod pay_back;
mod sights;
mod trials;

use microslice_testbed::lab::{Lab, LabVm, Running};
use microslice_testbed::{built_binary, say};
use serde_json::Value;
use std::process::{Command, Stdio};

/// The lab, for one test alone; `None`: it is skipped.
fn lab() -> Option<Lab> {
    if let Some(why) = Lab::missing() {
        say(format_args!("the lab's tests are skipped: {why}"));
        return None;
    }
    Some(Lab::open().expect("the lab's program"))
}

/// `microslice` with these arguments, and the symbols of these VMs' guest.
fn microslice(lab: &Lab, vms: &[&LabVm], arguments: &[&str]) -> Command {
    let mut command = Command::new(built_binary().expect("built"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for vm in vms {
        command.arg("--guest").arg(format!("{}={}", vm.name(), lab.symbols().display()));
    }
    command
}

/// The report of `microslice observe --json` with these arguments.
fn observe(lab: &Lab, vms: &[&LabVm], arguments: &[&str]) -> Value {
    let mut command = microslice(lab, vms, &["observe", "--json"]);
    let output = command.args(arguments).output().expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}"))
}

/// Starts `run --scheduler beside`, and returns once it knows the slides of these VMs. Where `arguments` name
/// no bound on waits there is none: tests of hints count boosts for hints alone.
fn run_beside(lab: &Lab, vms: &[&LabVm], arguments: &[&str]) -> Running {
    let mut command = microslice(lab, vms, &["run", "--json"]);
    command.args(arguments);
    if !arguments.contains(&"--max-wait") {
        command.args(["--max-wait", "none"]);
    }
    let daemon = Running::start(command).expect("it starts");
    for vm in vms {
        daemon.wait_for(&format!("{}: slide 0x0", vm.name())).expect("its slide");
    }
    daemon
}

/// Ends it, and returns its last report.
fn report_of(daemon: Running) -> Value {
    daemon.signal(libc::SIGINT);
    let (code, lines) = daemon.finish();
    assert_eq!(code, 0, "{lines:?}");
    let last = lines.iter().rev().find(|line| line.starts_with('{')).expect("a report");
    serde_json::from_str(last).expect("JSON")
}

/// What a report says of a VM.
fn of_vm<'r>(report: &'r Value, vm: &LabVm) -> &'r Value {
    let vms = report["vms"].as_array().expect("VMs");
    vms.iter().find(|entry| entry["pid"] == vm.pid()).unwrap_or_else(|| panic!("{report}"))
}

/// Run and waited for a pCPU, of all vCPUs, by the kernel's own account.
fn scheduled(vm: &LabVm) -> (f64, f64) {
    let read = |tid: &u32| {
        let text = std::fs::read_to_string(format!("/proc/{}/task/{tid}/schedstat", vm.pid())).expect("read");
        let mut numbers = text.split_whitespace().map(|number| number.parse::<f64>().expect("a number"));
        (numbers.next().expect("ran"), numbers.next().expect("waited"))
    };
    let all = vm.vcpu_threads();
    all.iter().map(read).fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

/// Those of its vCPUs' threads that aren't ordinary.
fn real_time_threads(vm: &LabVm) -> Vec<u32> {
    // SAFETY: a plain system call.
    let policy = |tid: &u32| unsafe { libc::sched_getscheduler(*tid as libc::pid_t) } & !SCHED_RESET_ON_FORK;
    vm.vcpu_threads().into_iter().filter(|tid| policy(tid) != libc::SCHED_OTHER).collect()
}

const SCHED_RESET_ON_FORK: i32 = 0x4000_0000;
