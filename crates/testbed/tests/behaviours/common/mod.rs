//! What the testbed's tests share.

pub mod alone;
pub mod intervals;
pub mod lanes;
pub mod promises;
pub mod stage;
pub mod traces;

use microslice_testbed::{Guest, Host, Process, Standstill};
use serde_json::Value;
pub use stage::{OTHER_KERNEL, observed, on_host, on_machine, print, run, take_the_machine, with_guests};
use std::time::{Duration, Instant};
pub use traces::Trace;

pub const PATIENCE: Duration = Duration::from_secs(120);
/// Until something rare is seen: four runs that waited for both paravirtual causes took 48 to 106 s.
const RARE: Duration = Duration::from_secs(360);

/// The emulated CPU is 20 to 50 times slower than hardware, and so is what a micro slice must be long enough
/// for.
pub const FLAGS: &str = "--micro-cpus 1 --micro-slice-us 3000 --stats 1";

/// Whether more is measured than a working day has time for: `make test-long`.
pub fn is_long() -> bool {
    std::env::var_os("MICROSLICE_TEST_LONG").is_some()
}

/// How long is measured: in `make test`, and in `make test-long`.
pub fn seconds(short: u64, long: u64) -> Duration {
    Duration::from_secs(if is_long() { long } else { short })
}

/// Guests don't run until it is dropped.
pub fn stand_still(host: &Host) -> Standstill<'_> {
    Standstill::of_guests(host).unwrap_or_else(|error| panic!("{error}"))
}

/// Our scheduler `microslice`, or the one that the flags name, in charge. Guests stand still until it is: the
/// kernel verifies it for seconds of emulation, and beside them for twice as many. (That it loads beside
/// guests that run: `hotplug`.)
pub fn start_scheduler(host: &Host, flags: &str) -> Process {
    let _still = stand_still(host);
    let began = Instant::now();
    let scheduler = if flags.contains("--scheduler") { "" } else { "--scheduler microslice" };
    let process = host.start(&format!("exec microslice run {scheduler} --json {flags}")).expect("start");
    wait_for_state(host, "enabled", &process);
    eprintln!("in charge after {:.1} s", began.elapsed().as_secs_f64());
    process
}

/// Likewise, and it has read the kernels of that many guests. It has to report every second.
pub fn start_scheduler_that_knows(host: &Host, guests: usize, flags: &str) -> Process {
    let scheduler = start_scheduler(host, flags);
    wait_until_it_knows(host, guests, &scheduler);
    scheduler
}

/// To read a kernel beside busy guests takes emulation minutes: they stand still meanwhile, but for the
/// moment in which they are seen.
pub fn wait_until_it_knows(host: &Host, guests: usize, process: &Process) {
    let vms = |report: &Value| report["vms"].as_array().cloned().unwrap_or_default();
    statistics(process, |report| vms(report).len() >= guests, "all guests");
    let _still = stand_still(host);
    let are_known =
        |report: &Value| vms(report).iter().filter(|vm| vm["kernel"].is_string()).count() == guests;
    statistics(process, are_known, "all guests' kernels");
}

/// The end of a process reaches the harness well within this.
const NEWS: Duration = Duration::from_secs(2);

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

/// Runs a command that this host must refuse: one line that says why, exit code 2.
pub fn refusal(host: &Host, command: &str) -> String {
    let output = host.run(command, PATIENCE).expect("run");
    assert_eq!(output.code, 2, "{output:?}");
    assert_eq!(output.stderr.lines().count(), 1, "one line: {output:?}");
    assert_eq!(output.stdout, "", "nothing was scheduled");
    output.stderr
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
    statistics_from(scheduler, 0, enough, what);
}

/// Likewise, from its line `from` on.
pub fn statistics_from(scheduler: &Process, from: usize, enough: impl Fn(&Value) -> bool, what: &str) {
    let (began, deadline) = (Instant::now(), Instant::now() + RARE);
    let mut last = None;
    let mut from = from;
    while Instant::now() < deadline {
        let is_the_last_look = scheduler.has_ended();
        let lines = scheduler.lines(from);
        from += lines.len();
        for report in lines.iter().filter_map(|line| serde_json::from_str::<Value>(&line.text).ok()) {
            if enough(&report) {
                eprintln!("{what}: after {:.1} s", began.elapsed().as_secs_f64());
                return;
            }
            last = Some(report);
        }
        if is_the_last_look {
            std::thread::sleep(NEWS);
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("no {what} in {from} lines; the last report: {last:?}; it said: {}", scheduler.last_words());
}

/// Waits until it has said so on its standard error.
pub fn wait_until_it_says(process: &Process, text: &str) {
    let deadline = Instant::now() + PATIENCE;
    while !process.stderr().contains(text) {
        assert!(Instant::now() < deadline, "`{text}` wasn't said, but: {}", process.stderr());
        std::thread::sleep(Duration::from_millis(200));
    }
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
    assert_eq!(
        accelerations,
        count(&report["acceleration_returns"]["total"]) + count(&report["still_accelerated"])
    );
    let returns = &report["acceleration_returns"];
    assert_eq!(count(&returns["total"]), sum(&returns["by_reason"]));
    let requests = count(&report["acceleration_requests"]["total"]);
    assert_eq!(requests, accelerations + sum(&report["failed_pulls"]) + count(&report["pending_requests"]));
    // Of four pCPUs: one micro slice runs on each at most, and one request waits there.
    assert!(count(&report["still_accelerated"]) <= 4, "a pCPU runs one vCPU at most");
    assert!(count(&report["pending_requests"]) <= 5, "requests don't pile up");
}

/// How many hints a report counts: yields and interrupts, by cause and by what came of them.
pub fn hints(report: &Value) -> u64 {
    let of = |causes: &Value| causes.as_object().expect("causes").values().map(sum).sum::<u64>();
    of(&report["yields"]) + of(&report["interrupts"])
}

/// How often programs that see KVM's events ran, by a report with `--program-costs`.
pub fn runs_of_observers(report: &Value) -> u64 {
    let programs = report["programs"].as_array().expect("programs").iter();
    let name = |program: &Value| program["program"].as_str().expect("a name").to_owned();
    programs.filter(|program| name(program).starts_with("on_")).map(|program| count(&program["runs"])).sum()
}

/// The kernel has left out next to no run of a program: at most one beside `one_in` that it did run.
pub fn assert_few_runs_were_left_out(report: &Value, runs: u64, one_in: u64) {
    let left_out = count(&report["program_runs_left_out"]["total"]);
    let by_program = &report["program_runs_left_out"]["by_program"];
    assert_eq!(left_out, sum(by_program));
    print(&format!("{left_out} runs left out beside {runs}: {by_program}"));
    assert!(runs > 0 && left_out <= runs / one_in, "{left_out} runs left out beside {runs}: {report}");
}

/// Are there accelerations by each of these causes?
pub fn accelerations_by(causes: &[&str]) -> impl Fn(&Value) -> bool {
    counted_by("accelerations", causes)
}

/// Are there boosts by each of these causes?
pub fn boosts_by(causes: &[&str]) -> impl Fn(&Value) -> bool {
    accelerations_by(causes)
}

fn counted_by(what: &'static str, causes: &[&str]) -> impl Fn(&Value) -> bool {
    let causes: Vec<String> = causes.iter().map(|cause| (*cause).to_owned()).collect();
    let seen = std::cell::RefCell::new(std::collections::BTreeSet::new());
    move |report| {
        // Reports are of one second each; a cause may be rare.
        let by_cause = &report[what]["by_cause"];
        seen.borrow_mut().extend(causes.iter().filter(|cause| count(&by_cause[cause.as_str()]) > 0).cloned());
        seen.borrow().len() == causes.len()
    }
}

/// A lock's waiter needs its holder: only siblings in critical code are accelerated for it.
pub fn assert_only_critical_code(accelerated: &Value, cause: &str) {
    let by_class = &accelerated["by_cause_and_class"][cause];
    for class in ["user", "kernel_other", "idle", "unknown"] {
        assert_eq!(by_class[class].as_u64().unwrap_or(0), 0, "{cause}: {by_class}");
    }
}

/// What a recording says. The same C decided the same, in the kernel and natively.
pub fn replay(host: &Host, recording: &str) -> Value {
    let replayed = run(host, &format!("microslice replay --json {recording} && rm {recording}"));
    let replayed: Value = serde_json::from_str(&replayed).expect("JSON");
    assert_eq!(replayed["differences"], 0, "{replayed}");
    replayed
}

/// What it has reported from its line `from` on.
pub fn reports(scheduler: &Process, from: usize) -> Vec<Value> {
    scheduler.lines(from).iter().filter_map(|line| serde_json::from_str(&line.text).ok()).collect()
}
