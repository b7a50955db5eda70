//! The VMX path, on a host that Bochs interprets: one run of the scheduler beside bare vCPUs, in phases, and
//! each test looks at its own.

use crate::common::{assert_sums_hold, count, on_machine, report_of};
use microslice_testbed::{Host, Machine, Process, Testbed};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Verifying the scheduler alone takes minutes there.
const PATIENCE: Duration = Duration::from_secs(2400);
/// Reports are so many of the host's seconds apart: each is a page on a serial line.
const REPORT_S: u32 = 5;
/// Whole reports of each phase.
const REPORTS: usize = 3;
/// What began or ended isn't in the report of that interval only, but perhaps in the next one, too.
const UNSETTLED: usize = 2;
/// Two equals' parts of both, together.
const PART_OFF_MAX: f64 = 0.03;

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
    let trace = "/sys/kernel/tracing";
    let event = format!("{trace}/events/kvm/kvm_ple_window_update/enable");
    // There are ten thousands of them: to read all would take a minute of the host's.
    must(host, &format!("echo 64 > {trace}/buffer_size_kb; echo 1 > {event}"));
    let flags = format!("--micro-cpus 0 --no-guest-memory --stats {REPORT_S}");
    let scheduler = host.start(&format!("exec microslice run --json {flags}")).expect("start");
    wait_for_reports(&scheduler, 0, 1);
    let pauses = beside(host, &scheduler, "1 4 pauses");
    let windows =
        must(host, &format!("echo 0 > {event}; grep -c 'window_update.*growed' {trace}/trace || true"));
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

/// What is reported while these vCPUs run, and no others.
fn beside(host: &Host, scheduler: &Process, vcpus: &str) -> Vec<Value> {
    let vmm = host.start(&format!("exec vcpus {vcpus}")).expect("start");
    vmm.wait_for("ready", 0, PATIENCE).unwrap_or_else(|error| panic!("{error}"));
    let reports = wait_for_reports(scheduler, scheduler.lines(0).len() + UNSETTLED, REPORTS);
    vmm.signal(libc::SIGKILL).expect("signal");
    vmm.wait(PATIENCE).expect("end");
    reports
}

/// Of an interval in which nothing began or ended.
fn reports_of_now(scheduler: &Process) -> Vec<Value> {
    wait_for_reports(scheduler, scheduler.lines(0).len() + UNSETTLED, 1)
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

/// All figures at or below `pointer`, of all reports.
fn sum(reports: &[Value], pointer: &str) -> u64 {
    fn all_of(value: &Value) -> u64 {
        value.as_object().map_or_else(|| count(value), |parts| parts.values().map(all_of).sum())
    }
    let figures = |report: &Value| all_of(report.pointer(pointer).unwrap_or_else(|| panic!("no {pointer}")));
    reports.iter().map(figures).sum()
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
    let [pausing, spinning] = [&seen.pauses, &seen.spinning].map(|reports| sum(reports, "/yields/ple"));
    let overtakes = sum(&seen.pauses, "/overtakes/directed_yield");
    println!("{pausing} yields of vCPUs that pause, {spinning} of others; {overtakes} overtakes");
    assert!(seen.windows > 0, "no window grew");
    assert!(pausing > 1000 && spinning == 0 && overtakes > 0, "{:?}", seen.pauses);
}

#[test]
#[ignore = "looks at the same run: make test-long"]
fn on_vmx_halts_count_as_yields_of_idle_vcpus() {
    let seen = seen();
    let [halts, idle] = ["/yields/hlt", "/yields/hlt/idle"].map(|which| sum(&seen.halts, which));
    assert!(halts > 0 && halts == idle, "{:?}", seen.halts);
    assert_eq!(sum(&seen.spinning, "/yields/hlt"), 0);
}

/// The upper half of the address space is a kernel's, and nobody knows which: no class.
#[test]
#[ignore = "looks at the same run: make test-long"]
fn on_vmx_the_instruction_pointer_of_a_preempted_vcpu_is_where_its_code_lies() {
    let seen = seen();
    for (reports, class) in [(&seen.pauses, "user"), (&seen.spinning, "unknown"), (&seen.interrupts, "user")]
    {
        let [all, there] = [String::new(), format!("/{class}")]
            .map(|part| sum(reports, &format!("/preemptions/by_class{part}")));
        println!("{there} of {all} preemptions in {class} code");
        assert!(all > 0 && all == there, "{class}: {reports:?}");
    }
}

#[test]
#[ignore = "looks at the same run: make test-long"]
fn on_vmx_interrupts_of_a_guests_own_are_seen() {
    let seen = seen();
    let [sent, other] = [&seen.interrupts, &seen.spinning].map(|reports| sum(reports, "/interrupts"));
    println!("{sent} interrupts of a guest that sends some without end, {other} of one that doesn't");
    assert!(sent > 1000 && other == 0, "{:?}", seen.interrupts);
}

#[test]
#[ignore = "looks at the same run: make test-long"]
fn on_vmx_two_equal_vms_have_equal_shares() {
    let mut ran = BTreeMap::<&str, u64>::new();
    for vm in seen().spinning.iter().flat_map(|report| report["vms"].as_array().expect("vms")) {
        *ran.entry(vm["name"].as_str().expect("a name")).or_default() += count(&vm["cpu_time_ns"]);
    }
    let all: u64 = ran.values().sum();
    let parts: Vec<f64> = ran.values().map(|&one| one as f64 / all as f64).collect();
    println!("parts of what both ran: {parts:.3?}");
    assert!(parts.len() == 2 && parts.iter().all(|part| (part - 0.5).abs() <= PART_OFF_MAX), "{parts:?}");
}
