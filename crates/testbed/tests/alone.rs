//! Whoever has a pCPU to itself: the end of its slice may not stop it, since nobody else wants the pCPU.

mod common;

use common::{PATIENCE, on_host, start_scheduler, stop_scheduler};
use microslice_testbed::{GuestSpec, Host, Process};
use std::time::Duration;

/// Hundreds of slices.
const MEASURED: Duration = Duration::from_secs(8);
/// Of the time that passed. What is missing is the emulated host's own work; a pCPU that went idle at the end of each slice,
/// with its task in its queue, gave 0.02 to 0.05.
const PART_MIN: f64 = 0.8;

/// With `--micro-cpus 1` of four.
const MICRO_PCPU: u32 = 3;
const NORMAL_PCPU: u32 = 1;

/// A process of the host, as its shell finds it.
const VMM: &str = "$(pidof qemu-system-x86_64)";

fn spinning(host: &Host, pcpus: u32) -> (Process, String) {
    let command = format!("exec taskset {pcpus:x} sh -c 'echo pid $$; while :; do :; done'");
    let process = host.start(&command).expect("start");
    let line = process.wait_for("pid ", 0, PATIENCE).unwrap_or_else(|error| panic!("{error}"));
    (process, line.text.trim_start_matches("pid ").to_owned())
}

/// How long the process has run, and the time, both in hundredths of a second.
fn times(host: &Host, pid: &str) -> [f64; 2] {
    let text = host.must_run(&format!("cat /proc/{pid}/stat /proc/uptime"), PATIENCE);
    let text = text.unwrap_or_else(|error| panic!("{error}"));
    let mut lines = text.rsplit_once(") ").expect("a name").1.lines();
    let number = |text: &str| text.parse::<f64>().unwrap_or_else(|error| panic!("{text}: {error}"));
    let stat: Vec<&str> = lines.next().expect("stat").split(' ').collect();
    let uptime = lines.next().expect("uptime").split(' ').next().expect("seconds");
    // Fields 14 and 15 of proc(5), in user and in kernel mode; the first two are the pid and the name.
    [number(stat[11]) + number(stat[12]), number(uptime) * 100.0]
}

fn part_that_it_ran(host: &Host, pid: &str) -> f64 {
    let before = times(host, pid);
    std::thread::sleep(MEASURED);
    let after = times(host, pid);
    (after[0] - before[0]) / (after[1] - before[1])
}

#[test]
fn a_host_task_alone_on_its_pcpu_runs_without_a_pause_wherever_it_may_run() {
    on_host(|host| {
        let scheduler = start_scheduler(host, "--micro-cpus 1 --micro-slice-us 3000");
        for (place, pcpus) in
            [("any pCPU", 0xf), ("a normal pCPU", 1 << NORMAL_PCPU), ("the micro pCPU", 1 << MICRO_PCPU)]
        {
            let (task, pid) = spinning(host, pcpus);
            let part = part_that_it_ran(host, &pid);
            task.signal(libc::SIGKILL).expect("signal");
            task.wait(PATIENCE).expect("end");
            println!("on {place} it ran for {part:.2} of the time");
            assert!(part >= PART_MIN, "on {place} it ran for {part:.2} of the time");
        }
        stop_scheduler(host, &scheduler);
    });
}

/// Gives back 200 MiB when it ends: some hundred milliseconds in do_exit(), where sched_ext asks no scheduler.
const ENDS_SLOWLY: &str = "dd if=/dev/zero of=/dev/null bs=200M count=1";

#[test]
fn a_host_task_ends_as_fast_on_the_micro_pcpu_as_on_a_normal_one() {
    on_host(|host| {
        let scheduler = start_scheduler(host, "--micro-cpus 1 --micro-slice-us 3000");
        // The first run only fetches the program.
        let [_, normal, micro] = [NORMAL_PCPU, NORMAL_PCPU, MICRO_PCPU].map(|pcpu| {
            let mask = 1 << pcpu;
            let script =
                format!("cat /proc/uptime; taskset {mask:x} {ENDS_SLOWLY} 2>/dev/null; cat /proc/uptime");
            let text = host.must_run(&script, PATIENCE).unwrap_or_else(|error| panic!("{error}"));
            let seconds = |line: &str| line.split(' ').next().and_then(|text| text.parse::<f64>().ok());
            let times: Vec<f64> = text.lines().map(|line| seconds(line).expect("uptime")).collect();
            times[1] - times[0]
        });
        println!("{normal:.2} s on a normal pCPU, {micro:.2} s on the micro pCPU");
        assert!(micro < 2.0 * normal, "{normal:.2} s on a normal pCPU, {micro:.2} s on the micro pCPU");
        stop_scheduler(host, &scheduler);
    });
}

#[test]
fn a_vcpu_alone_on_its_pcpu_runs_without_a_pause() {
    on_host(|host| {
        let guest = host.start_guest(GuestSpec::new("alone").workload("hog").vcpus(1));
        let guest = guest.unwrap_or_else(|error| panic!("{error}"));
        for pool in ["--micro-cpus 0", "--micro-cpus 1 --micro-slice-us 3000", "--micro-slice-us 3000"] {
            let scheduler = start_scheduler(host, pool);
            let part = part_that_it_ran(host, VMM);
            println!("with {pool} it ran for {part:.2} of the time");
            assert!(part >= PART_MIN, "with {pool} it ran for {part:.2} of the time");
            stop_scheduler(host, &scheduler);
        }
        guest.stop().expect("stop");
    });
}
