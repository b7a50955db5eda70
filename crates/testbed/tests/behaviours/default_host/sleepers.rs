//! How long a sleeper waits when it is woken, beside hogs: with our scheduler and with the kernel's own, by
//! turns in one boot.

use crate::common::{print, seconds, start_scheduler_that_knows, stop_scheduler, with_guests};
use microslice_testbed::measure::Measurement;
use microslice_testbed::{Guest, GuestSpec, Host};
use std::time::{Duration, Instant};

/// Of a phase.
fn measured() -> Duration {
    seconds(10, 30)
}

/// The guests' queues have settled, and the windows that began while guests stood still are over.
const SETTLE: Duration = Duration::from_secs(3);

/// A round is a phase with the kernel's own scheduler, and one with ours. Two, and while these aren't right
/// more: emulation stops now and then.
const ROUNDS: std::ops::RangeInclusive<usize> = 2..=4;

/// Percentiles of the kernel's own phases say by how much phases differ that differ in nothing. Two that came
/// out alike say little: this much is always allowed. A bucket of the histogram is an eighth.
const DIFFER_AT_LEAST: f64 = 1.25;

/// However much they differ, twice as long is longer.
const DIFFER_AT_MOST: f64 = 2.0;

/// Of fewer wake-ups the 99th percentile is that of two or three.
const WAKE_UPS_MIN: u64 = 300;

/// One sleeps; two are as wide as the host and compute. Each has a cgroup of its own, as libvirt gives it
/// one.
fn guests() -> [GuestSpec; 3] {
    let hog = |name: &str| GuestSpec::new(name).bare().own_cgroup();
    [GuestSpec::new("sleeper").workload("sleeper").own_cgroup(), hog("a"), hog("b")]
}

/// The 99th percentile of how much too late its threads are woken from now on, in us.
fn p99_us(sleeper: &Guest, whose: &str) -> f64 {
    std::thread::sleep(SETTLE);
    let from = Instant::now();
    std::thread::sleep(measured());
    let latency = Measurement::of(sleeper, from, Instant::now()).latency("wake");
    let wake_ups = latency.count();
    assert!(
        wake_ups >= WAKE_UPS_MIN,
        "{whose}: it was woken {wake_ups} times; it said: {}",
        sleeper.last_words()
    );
    let late = |percent: f64| latency.percentile_us(percent).expect("wake-ups");
    print(&format!("{whose}: {wake_ups} wake-ups, p50 {:.0} us late, p99 {:.0} us", late(50.0), late(99.0)));
    late(99.0)
}

fn with_ours(host: &Host, sleeper: &Guest) -> f64 {
    // Its defaults, but for a slow host's micro slice.
    let scheduler = start_scheduler_that_knows(host, 1, "--micro-slice-us 3000 --stats 1");
    let p99 = p99_us(sleeper, "ours");
    stop_scheduler(host, &scheduler);
    p99
}

/// 99th percentiles, a phase each.
#[derive(Default)]
struct Phases {
    kernel: Vec<f64>,
    ours: Vec<f64>,
}

impl Phases {
    /// How many times as long as with the kernel's own scheduler the woken wait with ours: geometric means.
    fn ratio(&self) -> f64 {
        let mean = |phases: &[f64]| phases.iter().map(|p99| p99.ln()).sum::<f64>() / phases.len() as f64;
        (mean(&self.ours) - mean(&self.kernel)).exp()
    }

    /// By how much the kernel's own phases differ, within bounds.
    fn allowed(&self) -> f64 {
        let least = self.kernel.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.kernel.iter().copied().fold(0.0, f64::max);
        (most / least).clamp(DIFFER_AT_LEAST, DIFFER_AT_MOST)
    }
}

#[test]
#[ignore = "152 s, four phases by turns: make test-long"]
fn a_sleeper_beside_hogs_waits_no_longer_than_with_the_kernels_own_scheduler() {
    with_guests(&guests(), |host, guests| {
        let sleeper = &guests[0];
        let mut phases = Phases::default();
        for round in 1..=*ROUNDS.end() {
            phases.kernel.push(p99_us(sleeper, "the kernel's own"));
            phases.ours.push(with_ours(host, sleeper));
            if round >= *ROUNDS.start() && phases.ratio() <= phases.allowed() {
                break;
            }
        }
        let (ratio, allowed) = (phases.ratio(), phases.allowed());
        print(&format!("p99 of ours is {ratio:.2} times that of the kernel's own; {allowed:.2} is allowed"));
        assert!(
            ratio <= allowed,
            "{ratio:.2} times, {allowed:.2} allowed; in us, ours: {:.0?}, the kernel's own: {:.0?}",
            phases.ours,
            phases.kernel
        );
    });
}
