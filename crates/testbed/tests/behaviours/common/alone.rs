//! A task that has a pCPU to itself isn't stopped there.

use super::intervals::over_time;
use super::{PATIENCE, run, seconds};
use microslice_testbed::{Host, Process};
use std::time::Duration;

/// Two hundred slices, or more.
fn measured() -> Duration {
    seconds(2, 8)
}

/// Of the time that passed. What is missing is the emulated host's own work; a pCPU that went idle at the end
/// of each slice, with its task in its queue, gave 0.11 to 0.13.
const PART_MIN: f64 = 0.8;

/// A host task that computes on the pCPUs of this mask, and its pid.
pub fn spinning(host: &Host, pcpus: u32) -> (Process, String) {
    let command = format!("exec taskset {pcpus:x} sh -c 'echo pid $$; while :; do :; done'");
    let process = host.start(&command).expect("start");
    let line = process.wait_for("pid ", 0, PATIENCE).unwrap_or_else(|error| panic!("{error}"));
    (process, line.text.trim_start_matches("pid ").to_owned())
}

/// How long the process has run, and the time, both in hundredths of a second.
fn times(host: &Host, pid: &str) -> [f64; 2] {
    let text = run(host, &format!("cat /proc/{pid}/stat /proc/uptime"));
    let mut lines = text.rsplit_once(") ").expect("a name").1.lines();
    let number = |text: &str| text.parse::<f64>().unwrap_or_else(|error| panic!("{text}: {error}"));
    let stat: Vec<&str> = lines.next().expect("stat").split(' ').collect();
    let uptime = lines.next().expect("uptime").split(' ').next().expect("seconds");
    // Fields 14 and 15 of proc(5), in user and in kernel mode; the first two are the pid and the name.
    [number(stat[11]) + number(stat[12]), number(uptime) * 100.0]
}

/// How many CPUs the process `pid`, an expression of the host's shell, gets.
pub fn cpus_of_process(host: &Host, pid: &str, time: Duration, is_right: impl Fn(f64) -> bool) -> f64 {
    let before = times(host, pid);
    let cpus = || {
        let after = times(host, pid);
        (after[0] - before[0]) / (after[1] - before[1])
    };
    over_time(time, cpus, |&cpus| is_right(cpus))
}

/// How much of the time the process `pid`, which is to be alone, runs.
pub fn part_of_process(host: &Host, pid: &str) -> f64 {
    cpus_of_process(host, pid, measured(), |part| part >= PART_MIN)
}

/// What ran for this part of the time had a pCPU to itself.
pub fn assert_was_alone(part: f64, place: &str) {
    println!("{place}: it ran for {part:.2} of the time");
    assert!(part >= PART_MIN, "{place}: it ran for {part:.2} of the time");
}

/// How much of the time a task runs on one of the pCPUs of this mask, on a host without guests.
pub fn part_of_a_task(host: &Host, pcpus: u32) -> f64 {
    let (task, pid) = spinning(host, pcpus);
    let part = part_of_process(host, &pid);
    task.signal(libc::SIGKILL).expect("signal");
    task.wait(PATIENCE).expect("end");
    part
}
