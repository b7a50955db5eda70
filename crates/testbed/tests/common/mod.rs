//! What the testbed's tests share: one boot per file, and one test at a time on it.
#![allow(dead_code)] // each test file uses its part

use microslice_testbed::kernels::DEFAULT_GUEST;
use microslice_testbed::{Guest, Host, Process, Testbed, built_binary};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

pub const PATIENCE: Duration = Duration::from_secs(120);

/// A kernel that no guest of these tests runs, though the host has its image.
pub const OTHER_KERNEL: &str = "6.1-cloud";

/// The default host with the built binary; booted once per test file, and held by one test at a time.
pub fn host() -> MutexGuard<'static, Host> {
    static HOST: OnceLock<Mutex<Host>> = OnceLock::new();
    let host = HOST.get_or_init(|| {
        let testbed = Testbed::new("6.18").expect("a series");
        let testbed = testbed.with_guest_kernels(&[DEFAULT_GUEST, OTHER_KERNEL]).expect("guest kernels");
        Mutex::new(boot(testbed))
    });
    host.lock().unwrap_or_else(PoisonError::into_inner)
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
        assert!(
            Instant::now() < deadline,
            "sched_ext isn't {state}; the scheduler said: {}",
            process.last_words()
        );
        std::thread::sleep(Duration::from_millis(200));
    }
}

pub fn scheduler_state(host: &Host) -> String {
    host.must_run("cat /sys/kernel/sched_ext/state", PATIENCE).expect("sched_ext").trim().to_owned()
}

/// Ends it with Ctrl-C; returns its final statistics.
pub fn stop_scheduler(host: &Host, process: &Process) -> serde_json::Value {
    process.signal(libc::SIGINT).expect("signal");
    let output = process.wait(PATIENCE).expect("end");
    assert_eq!(output.code, 0, "{}", output.stderr);
    wait_for_state(host, "disabled", process);
    serde_json::from_str(output.stdout.lines().last().expect("statistics")).expect("JSON")
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
