//! What the testbed's tests share: one boot per file, and one test at a time on it.
#![allow(dead_code)] // each test file uses its part

pub mod alone;

use microslice_testbed::kernels::DEFAULT_GUEST;
use microslice_testbed::{Guest, Host, Process, Testbed, built_binary, console};
use serde_json::Value;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

pub const PATIENCE: Duration = Duration::from_secs(120);
/// Until something rare is seen: four runs that waited for both paravirtual causes took 48 to 106 s.
const RARE: Duration = Duration::from_secs(360);

/// The emulated CPU is 20 to 50 times slower than hardware, and so is what a micro slice must be long enough for.
pub const FLAGS: &str = "--micro-cpus 1 --micro-slice-us 3000 --stats 1";

/// A kernel that no guest of these tests runs, though the host has its image.
pub const OTHER_KERNEL: &str = "6.1-cloud";

/// The default host with the built binary; booted once per test file, and held by one test at a time.
fn host() -> MutexGuard<'static, Host> {
    static HOST: OnceLock<Mutex<Host>> = OnceLock::new();
    let host = HOST.get_or_init(|| {
        let testbed = Testbed::new("6.18").expect("a series");
        let testbed = testbed.with_guest_kernels(&[DEFAULT_GUEST, OTHER_KERNEL]).expect("guest kernels");
        Mutex::new(boot(testbed))
    });
    hold(host)
}

/// A file's host, for one test.
pub fn hold(host: &'static Mutex<Host>) -> MutexGuard<'static, Host> {
    host.lock().unwrap_or_else(|after_failure| {
        host.clear_poison();
        let mut host = after_failure.into_inner();
        // The test before failed. It isn't this one's fault if that was the host's end.
        if !host.answers() {
            boot_again(&mut host);
        }
        host
    })
}

const TRIES: u32 = 3;
/// The end of a guest reaches the harness well within this.
const NEWS: Duration = Duration::from_secs(2);

/// Runs `test` on the file's host.
pub fn on_host(test: impl Fn(&Host)) {
    let mut host = host();
    unless_a_machine_is_lost(&mut host, test);
}

/// Runs `test`, and again on a fresh host if it failed while one of its guests ended by itself, a CPU of its host stood
/// still, the host met a breakpoint that nobody set, or stopped answering: emulation ends a machine now and then
/// (docs/testbed.md). All is printed. A failure among living machines is a failure, and so is one whose host complained of
/// anything else.
pub fn unless_a_machine_is_lost(host: &mut Host, test: impl Fn(&Host)) {
    for tries in 1.. {
        let guests_before = host.lost_guests();
        let Err(failure) = catch_unwind(AssertUnwindSafe(|| test(host))) else { return };
        let loss = loss(host, guests_before);
        print(&format!(
            "{}; {}",
            loss.unwrap_or("the test failed, and not because of emulation"),
            host.account()
        ));
        let Some(loss) = loss.filter(|_| tries < TRIES) else { resume_unwind(failure) };
        print(&format!("{loss}: the test runs again on a fresh host ({tries} of {TRIES} tries used)"));
        boot_again(host);
    }
}

/// What emulation may have taken away, if it did.
fn loss(host: &Host, guests_before: u32) -> Option<&'static str> {
    let console = host.console();
    let loss = if !host.answers() {
        "the host doesn't answer any more"
    } else if console::tells_of_a_stall(&console) {
        "a CPU of the host stood still"
    } else if console::tells_of_a_stale_breakpoint(&console) {
        "the host met a breakpoint that nobody set"
    } else if host.lost_guests() != guests_before {
        "a guest was lost"
    } else {
        return None;
    };
    console::may_be_emulations_end(&console).then_some(loss)
}

/// Not by eprintln!, which a test that then passes doesn't show.
fn print(what: &str) {
    writeln!(std::io::stderr(), "{what}").expect("stderr");
}

fn boot_again(host: &mut Host) {
    host.boot_again().unwrap_or_else(|error| panic!("{error}"));
}

pub fn boot(testbed: Testbed) -> Host {
    let binary = built_binary().expect("the program under test");
    testbed.with_binary(binary).boot().unwrap_or_else(|error| panic!("{error}"))
}

/// Our scheduler, in charge.
pub fn start_scheduler(host: &Host, flags: &str) -> Process {
    let process = host.start(&format!("exec microslice run --json {flags}")).expect("start");
    wait_for_state(host, "enabled", &process);
    process
}

pub fn wait_for_state(host: &Host, state: &str, process: &Process) {
    let deadline = Instant::now() + PATIENCE;
    while scheduler_state(host) != state {
        let hopeless = state == "enabled" && process.has_ended();
        if hopeless || Instant::now() >= deadline {
            std::thread::sleep(NEWS);
            panic!("sched_ext isn't {state}; the scheduler said: {}", process.last_words());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

pub fn scheduler_state(host: &Host) -> String {
    host.must_run("cat /sys/kernel/sched_ext/state", PATIENCE).expect("sched_ext").trim().to_owned()
}

/// Ends it with Ctrl-C; returns its final statistics.
pub fn stop_scheduler(host: &Host, process: &Process) -> Value {
    process.signal(libc::SIGINT).expect("signal");
    let output = process.wait(PATIENCE).expect("end");
    assert_eq!(output.code, 0, "{}", output.stderr);
    wait_for_state(host, "disabled", process);
    report_of(output.stdout.lines().last().expect("statistics")).unwrap_or_else(|error| panic!("{error}"))
}

/// A report. One of many VMs has hundreds of KiB: what is around an error is shown.
pub fn report_of(line: &str) -> Result<Value, String> {
    serde_json::from_str(line).map_err(|error| {
        let at = error.column().min(line.len());
        let around = &line.as_bytes()[at.saturating_sub(200)..(at + 100).min(line.len())];
        format!("{error}, of {} bytes: {}", line.len(), String::from_utf8_lossy(around))
    })
}

/// The guest's heart beats on: it has moved by `beats` within the patience.
pub fn assert_alive(guest: &Guest, beats: u64) {
    let before = guest.heartbeat().unwrap_or(0);
    let deadline = Instant::now() + PATIENCE;
    while guest.heartbeat().unwrap_or(0) < before + beats {
        assert!(!guest.has_ended(), "guest {} ended: {}", guest.name(), guest.last_words());
        assert!(Instant::now() < deadline, "guest {}: no heartbeat since {before}", guest.name());
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Waits for statistics that are `enough`.
pub fn statistics(scheduler: &Process, enough: impl Fn(&Value) -> bool, what: &str) {
    let deadline = Instant::now() + RARE;
    let mut last = None;
    let mut from = 0;
    while Instant::now() < deadline {
        let is_the_last_look = scheduler.has_ended();
        let lines = scheduler.lines(from);
        from += lines.len();
        for report in lines.iter().filter_map(|line| serde_json::from_str::<Value>(&line.text).ok()) {
            if enough(&report) {
                return;
            }
            last = Some(report);
        }
        if is_the_last_look {
            std::thread::sleep(NEWS);
            break;
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    panic!("no {what} in {from} lines; the last report: {last:?}; it said: {}", scheduler.last_words());
}

pub fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

pub fn sum(object: &Value) -> u64 {
    object.as_object().expect("an object of counts").values().map(count).sum()
}

pub fn assert_sums_hold(report: &Value) {
    let accelerations = count(&report["accelerations"]["total"]);
    assert_eq!(accelerations, sum(&report["accelerations"]["by_cause"]));
    assert_eq!(accelerations, sum(&report["accelerations"]["by_class"]));
    assert_eq!(accelerations, count(&report["returns"]) + count(&report["in_flight"]));
    assert_eq!(count(&report["returns"]), sum(&report["returns_by_outcome"]));
    let requests = count(&report["requests"]);
    assert_eq!(requests, accelerations + sum(&report["failed_pulls"]) + count(&report["pending"]));
    // Of four pCPUs: one micro slice runs on each at most, and one request waits there.
    assert!(count(&report["in_flight"]) <= 4, "a pCPU runs one vCPU at most");
    assert!(count(&report["pending"]) <= 5, "requests don't pile up");
}

/// Are there accelerations by each of these causes?
pub fn accelerations_by(causes: &[&str]) -> impl Fn(&Value) -> bool {
    let causes: Vec<String> = causes.iter().map(|cause| (*cause).to_owned()).collect();
    let seen = std::cell::RefCell::new(std::collections::BTreeSet::new());
    move |report| {
        // Reports are of one second each; a cause may be rare.
        let by_cause = &report["accelerations"]["by_cause"];
        seen.borrow_mut().extend(causes.iter().filter(|cause| count(&by_cause[cause.as_str()]) > 0).cloned());
        seen.borrow().len() == causes.len()
    }
}

/// A lock's waiter needs its holder: only siblings in critical code are accelerated for it.
pub fn assert_only_critical_code(report: &Value, cause: &str) {
    let by_class = &report["accelerations"]["by_cause_and_class"][cause];
    for class in ["user", "kernel_other", "idle", "unknown"] {
        assert_eq!(by_class[class].as_u64().unwrap_or(0), 0, "{cause}: {by_class}");
    }
}
