//! Time balloons (`guest/balloon`): Figure 9 of VM'04. Ten threads on two vCPUs, one of which is given 30 %
//! of its pCPU for a while.

use crate::common::alone::spinning;
use crate::common::{PATIENCE, count, run, with_guests};
use microslice_testbed::{Guest, GuestSpec, Host, Process};
use serde_json::Value;
use std::time::{Duration, Instant};

const THREADS: u64 = 10;
/// The VM's weight of 100 is shared by its two vCPUs, 50 each: beside this one a vCPU is given 30 %.
const SLOWING_WEIGHT: u32 = 117;
/// Reports come every 200 ms: two seconds.
const REPORTS: usize = 10;

/// So many threads fewer are on the slow vCPU with balloons than without.
const MOVED_MIN: f64 = 1.0;
/// Balloons come when so much was taken of the slow vCPU: until then it is seen what the guest does without
/// them.
const WITHOUT_BALLOONS_S: u32 = 5;

struct Report {
    slow: u64,
    balloons: Option<u64>,
    share: u64,
}

fn reports(guest: &Guest, from: usize) -> Vec<Report> {
    let lines = guest.lines(from).into_iter().filter(|line| line.text.contains("\"crowd\""));
    let values = lines.map(|line| serde_json::from_str::<Value>(&line.text).expect("JSON"));
    let report = |value: Value| {
        assert_eq!(count(&value["crowd"][0]) + count(&value["crowd"][1]), THREADS, "{value}");
        // Before the module is there, there are no numbers of it.
        let balloons = value["balloons"].get(0).map(count);
        let share = value["shares"].get(0).map_or(0, count);
        Report { slow: count(&value["crowd"][0]), balloons, share }
    };
    values.map(report).collect()
}

/// Waits until the reports of the last two seconds are right.
fn wait_for(guest: &Guest, from: usize, what: &str, is_right: impl Fn(&[Report]) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let seen = reports(guest, from);
        if let Some(last) = seen.len().checked_sub(REPORTS).map(|first| &seen[first..]) {
            let mean = |of: fn(&Report) -> u64| last.iter().map(of).sum::<u64>() as f64 / REPORTS as f64;
            let figures = format!(
                "{what}: {:.1} of ten threads, {:.1} balloons, {:.0} of 1000",
                threads(last),
                mean(|report| report.balloons.unwrap_or(0)),
                mean(|report| report.share)
            );
            if is_right(last) {
                println!("{figures}");
                return;
            }
            assert!(Instant::now() < deadline, "{figures}");
        }
        assert!(!guest.has_ended(), "{}", guest.last_words());
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// On the first vCPU, on average.
fn threads(reports: &[Report]) -> f64 {
    reports.iter().map(|report| report.slow).sum::<u64>() as f64 / reports.len() as f64
}

/// Likewise, until balloons came.
fn threads_without(guest: &Guest, from: usize) -> f64 {
    let mut seen = reports(guest, from);
    seen.retain(|report| report.balloons.is_none());
    assert!(!seen.is_empty(), "balloons came at once");
    threads(&seen)
}

fn is_even(reports: &[Report]) -> bool {
    (4.0..=6.0).contains(&threads(reports))
}

/// Each vCPU has a pCPU of its own.
fn pin_vcpus(host: &Host) {
    run(
        host,
        "for task in /proc/$(pidof qemu-system-x86_64)/task/*; do case $(cat $task/comm) in \
         'CPU 0/KVM') taskset -p 1 ${task##*/} ;; 'CPU 1/KVM') taskset -p 2 ${task##*/} ;; esac; done",
    );
}

/// One that takes 70 % of the first vCPU's pCPU.
fn start_another(host: &Host) -> Process {
    let (other, pid) = spinning(host, 1);
    run(
        host,
        &format!(
            "cd /sys/fs/cgroup && echo +cpu > cgroup.subtree_control; mkdir -p slowing && cd slowing && \
             echo {SLOWING_WEIGHT} > cpu.weight && echo {pid} > cgroup.procs"
        ),
    );
    other
}

#[test]
fn balloons_move_threads_away_from_a_slow_vcpu_and_let_them_come_back() {
    let workload = format!("crowd:{THREADS},balloons:{WITHOUT_BALLOONS_S}");
    let guest = GuestSpec::new("crowd").vcpus(2).own_cgroup().workload(&workload);
    with_guests(&[guest], |host, guests| {
        let guest = &guests[0];
        pin_vcpus(host);
        wait_for(guest, guest.lines(0).len(), "alone", is_even);
        let other = start_another(host);
        let from = guest.lines(0).len();
        wait_for(guest, from, "with balloons", |last| {
            // By the shares it were 2.3 of ten with them, and 5 without.
            last[0].balloons.is_some() && threads(last) <= threads_without(guest, from) - MOVED_MIN
        });
        println!("without balloons: {:.1} of ten threads", threads_without(guest, from));
        other.signal(libc::SIGKILL).expect("signal");
        other.wait(PATIENCE).expect("end");
        wait_for(guest, guest.lines(0).len(), "alone again", is_even);
    });
}
