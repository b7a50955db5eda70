//! Time balloons (`guest/balloon`): Figure 9 of VM'04. Ten threads on two vCPUs, one of which is given 30 % of its pCPU for a while.

use crate::common::alone::spinning;
use crate::common::{PATIENCE, count, run, with_guests};
use microslice_testbed::{Guest, GuestSpec, Host};
use serde_json::Value;
use std::time::{Duration, Instant};

const THREADS: u64 = 10;
/// The VM's weight of 100 is shared by its two vCPUs, 50 each: beside this one a vCPU is given 30 %.
const SLOWING_WEIGHT: u32 = 117;
/// Reports come every 200 ms: two seconds.
const REPORTS: usize = 10;

struct Report {
    slow: u64,
    balloons: u64,
    share: u64,
}

fn reports(guest: &Guest, from: usize) -> Vec<Report> {
    let lines = guest.lines(from).into_iter().filter(|line| line.text.contains("\"crowd\""));
    let values = lines.map(|line| serde_json::from_str::<Value>(&line.text).expect("JSON"));
    let report = |value: Value| {
        assert_eq!(count(&value["crowd"][0]) + count(&value["crowd"][1]), THREADS, "{value}");
        let of_slow = |name: &str| count(&value[name][0]);
        Report { slow: of_slow("crowd"), balloons: of_slow("balloons"), share: of_slow("shares") }
    };
    values.map(report).collect()
}

/// Waits until over two seconds the mean number of threads on the first vCPU is right, and returns it.
fn wait_for_threads(guest: &Guest, what: &str, is_right: impl Fn(f64) -> bool) -> f64 {
    let deadline = Instant::now() + PATIENCE;
    let from = guest.lines(0).len();
    loop {
        let seen = reports(guest, from);
        if let Some(last) = seen.len().checked_sub(REPORTS).map(|first| &seen[first..]) {
            let mean = |of: fn(&Report) -> u64| last.iter().map(of).sum::<u64>() as f64 / REPORTS as f64;
            let threads = mean(|report| report.slow);
            let figures = format!(
                "{what}: {threads:.1} of ten threads, {:.1} balloons, {:.0} of 1000",
                mean(|report| report.balloons),
                mean(|report| report.share)
            );
            if is_right(threads) {
                println!("{figures}");
                return threads;
            }
            assert!(Instant::now() < deadline, "{figures}");
        }
        assert!(!guest.has_ended(), "{}", guest.last_words());
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Each vCPU has a pCPU of its own.
fn pin_vcpus(host: &Host) {
    run(
        host,
        "for task in /proc/$(pidof qemu-system-x86_64)/task/*; do case $(cat $task/comm) in \
         'CPU 0/KVM') taskset -p 1 ${task##*/} ;; 'CPU 1/KVM') taskset -p 2 ${task##*/} ;; esac; done",
    );
}

#[test]
fn balloons_move_threads_away_from_a_slow_vcpu_and_let_them_come_back() {
    let guest = GuestSpec::new("crowd").vcpus(2).own_cgroup().workload("crowd:10,balloons");
    with_guests(&[guest], |host, guests| {
        pin_vcpus(host);
        let even = |threads: f64| (4.0..=6.0).contains(&threads);
        wait_for_threads(&guests[0], "before", even);
        let (other, pid) = spinning(host, 1);
        run(
            host,
            &format!(
                "echo +cpu > /sys/fs/cgroup/cgroup.subtree_control; mkdir -p /sys/fs/cgroup/slowing && cd /sys/fs/cgroup/slowing && \
                 echo {SLOWING_WEIGHT} > cpu.weight && echo {pid} > cgroup.procs"
            ),
        );
        // By the shares it were 2.3 of ten.
        wait_for_threads(&guests[0], "beside another", |threads| threads <= 3.5);
        other.signal(libc::SIGKILL).expect("signal");
        other.wait(PATIENCE).expect("end");
        wait_for_threads(&guests[0], "afterwards", even);
    });
}
