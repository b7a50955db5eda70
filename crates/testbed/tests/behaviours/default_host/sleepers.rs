//! How long who sleeps waits when it is woken, beside hogs: with our scheduler and with the kernel's own, turn about in one boot.

use crate::common::{print, seconds, start_scheduler_that_knows, stop_scheduler, with_guests};
use microslice_testbed::measure::Measurement;
use microslice_testbed::{Guest, GuestSpec, Host};
use std::time::{Duration, Instant};

/// Of a phase, without loading.
fn measured() -> Duration {
    seconds(8, 30)
}

/// Phases of each of both.
const PHASES: usize = 3;
/// How many times as long as in another boot the kernel's own 99th percentile was, at the most.
const BOOTS_DIFFER: f64 = 1.5;
/// The guests' queues have settled.
const SETTLE: Duration = Duration::from_secs(2);

/// One sleeps; two are as wide as the host and compute. Each has a cgroup of its own, as libvirt gives it one.
fn guests() -> [GuestSpec; 3] {
    let hog = |name: &str| GuestSpec::new(name).workload("hog").own_cgroup();
    [GuestSpec::new("sleeper").workload("sleeper").own_cgroup(), hog("a"), hog("b")]
}

/// The 99th percentile of how much too late its threads are woken from now on, in us.
fn p99_us(sleeper: &Guest) -> f64 {
    std::thread::sleep(SETTLE);
    let from = Instant::now();
    std::thread::sleep(measured());
    let latency = Measurement::of(sleeper, from, Instant::now()).latency("wake");
    latency.percentile_us(99.0).unwrap_or_else(|| panic!("it was never woken: {}", sleeper.last_words()))
}

fn with_ours(host: &Host, sleeper: &Guest) -> f64 {
    let scheduler = start_scheduler_that_knows(host, 3, "--micro-slice-us 3000 --stats 1");
    let p99 = p99_us(sleeper);
    stop_scheduler(host, &scheduler);
    p99
}

#[test]
fn who_sleeps_beside_hogs_waits_no_longer_than_with_the_kernels_own_scheduler() {
    with_guests(&guests(), |host, guests| {
        let sleeper = &guests[0];
        let mut phases: Vec<[f64; 2]> =
            (0..PHASES).map(|_| [p99_us(sleeper), with_ours(host, sleeper)]).collect();
        print(&format!("99th percentiles of lateness in us, the kernel's own and ours: {phases:.0?}"));
        let mut median_of = |which: usize| {
            phases.sort_by(|a, b| a[which].total_cmp(&b[which]));
            phases[PHASES / 2][which]
        };
        let [kernel, ours] = [median_of(0), median_of(1)];
        assert!(
            ours <= kernel * BOOTS_DIFFER,
            "medians: {ours:.0} us, and {kernel:.0} with the kernel's own"
        );
    });
}
