//! The VMX path, on a host that Bochs interprets: one run of the scheduler beside bare vCPUs, in phases, and
//! each test looks at its own.

use crate::common::{assert_sums_hold, count, on_machine, report_of};
use microslice_testbed::{Host, Machine, Process, Testbed};
use serde_json::Value;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Verifying the scheduler alone takes minutes there.
const PATIENCE: Duration = Duration::from_secs(2400);
/// Reports are so many of the host's seconds apart: each is a page on a serial line.
const REPORT_S: u32 = 5;
/// Whole reports of each phase.
const REPORTS: usize = 4;

/// What each phase's reports said, and the last one of all.
struct Seen {
    pauses: Vec<Value>,
    spinning: Vec<Value>,
    halts: Vec<Value>,
    interrupts: Vec<Value>,
    /// Of the VM that has gone, while nobody is there.
    between: Vec<Value>,
    /// KVM's own words for a window of pause loops that grew.
    windows: u64,
    end: Value,
}

fn seen() -> &'static Seen {
    static SEEN: OnceLock<Seen> = OnceLock::new();
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if SEEN.get().is_none() {
        let testbed = || Testbed::new("6.18").expect("a series").machine(Machine::Intel).cpus(2);
        on_machine("an Intel machine", testbed, &[], |host, _| {
            let _ = SEEN.set(look(host));
        });
    }
    SEEN.get().expect("a look that didn't fail has seen something")
}

fn look(host: &Host) -> Seen {
    must(host, "echo 1 > /sys/kernel/tracing/events/kvm/kvm_ple_window_update/enable");
    let flags = format!("--micro-cpus 0 --no-guest-memory --stats {REPORT_S}");
    let scheduler = host.start(&format!("exec microslice run --json {flags}")).expect("start");
    wait_for_reports(&scheduler, 0, 1);
    let pauses = beside(host, &scheduler, "1 4 pauses");
    let windows = must(host, "grep -c 'kvm_ple_window_update.*grow' /sys/kernel/tracing/trace || true");
    let between = reports_of_now(&scheduler);
    let spinning = beside(host, &scheduler, "2 2 spin kernel");
    let halts = beside(host, &scheduler, "1 2");
    let interrupts = beside(host, &scheduler, "1 2 interrupts");
    scheduler.signal(libc::SIGINT).expect("signal");
    let output = scheduler.wait(PATIENCE).expect("end");
    assert_eq!(output.code, 0, "{}", output.stderr);
    let end = report_of(output.stdout.lines().last().expect("statistics")).expect("a report");
    let windows = windows.trim().parse().expect("a number");
    Seen { pauses, spinning, halts, interrupts, between, windows, end }
}

/// What is reported while these vCPUs run. Intervals that they began or ended in aren't among them.
fn beside(host: &Host, scheduler: &Process, vcpus: &str) -> Vec<Value> {
    let vmm = host.start(&format!("exec vcpus {vcpus}")).expect("start");
    vmm.wait_for("ready", 0, PATIENCE).unwrap_or_else(|error| panic!("{error}"));
    let from = scheduler.lines(0).len();
    let reports = wait_for_reports(scheduler, from + 1, REPORTS);
    vmm.signal(libc::SIGKILL).expect("signal");
    vmm.wait(PATIENCE).expect("end");
    reports
}

/// Of an interval in which nothing began or ended.
fn reports_of_now(scheduler: &Process) -> Vec<Value> {
    wait_for_reports(scheduler, scheduler.lines(0).len() + 1, 1)
}

/// So many, from the scheduler's line `from` on.
fn wait_for_reports(scheduler: &Process, from: usize, wanted: usize) -> Vec<Value> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let lines = scheduler.lines(from);
        if lines.len() >= wanted {
            let reports = lines[..wanted].iter().map(|line| report_of(&line.text));
            return reports.collect::<Result<_, _>>().unwrap_or_else(|error| panic!("{error}"));
        }
        let is_hopeless = scheduler.has_ended() || Instant::now() >= deadline;
        assert!(!is_hopeless, "{} reports: {}", lines.len(), scheduler.last_words());
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn must(host: &Host, command: &str) -> String {
    host.must_run(command, PATIENCE).unwrap_or_else(|error| panic!("{error}"))
}

fn sum(reports: &[Value], pointer: &str) -> u64 {
    let figure =
        |report: &Value| count(report.pointer(pointer).unwrap_or_else(|| panic!("no {pointer} in {report}")));
    reports.iter().map(figure).sum()
}

fn vms(report: &Value) -> usize {
    report["vms"].as_array().expect("vms").len()
}

#[test]
#[ignore = "Bochs needs minutes for its boot and for loading a scheduler: make test-long"]
fn on_vmx_vms_are_found_when_they_come_and_forgotten_when_they_go() {
    let seen = seen();
    for (reports, expected) in
        [(&seen.pauses, 1), (&seen.between, 0), (&seen.spinning, 2), (&seen.halts, 1), (&seen.interrupts, 1)]
    {
        assert!(reports.iter().all(|report| vms(report) == expected), "{expected} expected: {reports:?}");
    }
    assert_sums_hold(&seen.end);
}

#[test]
#[ignore = "looks at the same run: make test-long"]
fn on_vmx_pause_loops_exit_after_a_window_that_grows_and_count_as_yields() {
    let seen = seen();
    assert!(seen.windows > 0, "no window grew");
    let yields = |reports: &[Value]| -> u64 {
        let of = |report: &Value| {
            let by_reason = report["yields"]["ple"].as_object().expect("yields by PLE");
            by_reason.values().map(count).sum::<u64>()
        };
        reports.iter().map(of).sum()
    };
    let [pausing, spinning] = [&seen.pauses, &seen.spinning].map(|reports| yields(reports));
    println!("{pausing} yields of four vCPUs that pause, {spinning} of others that don't");
    assert!(pausing > 100 && spinning == 0, "{pausing} and {spinning}");
    assert!(sum(&seen.pauses, "/overtakes/directed_yield") > 0, "{:?}", seen.pauses);
}
