//! A pCPU that only one task wants: the end of its slice may not stop that task.

use crate::common::alone::{assert_was_alone, part_of_a_task, part_of_process};
use crate::common::{observed, run, start_scheduler, stop_scheduler, with_guests};
use microslice_testbed::{GuestSpec, Host};
use std::sync::OnceLock;

/// With `--micro-cpus 1` of four.
const MICRO_PCPU: u32 = 3;
const NORMAL_PCPU: u32 = 1;

/// How the host's shell finds the only guest.
const VMM: &str = "$(pidof bare-guest)";

/// As many tries on each pCPU, in turn. One alone is a coin's toss: the emulator itself is stopped at times,
/// and the first fetches the program.
const ENDS: usize = 5;

/// Host tasks on a host without guests.
struct Tasks {
    /// Of the time, what a task alone on its pCPU ran, and where it might.
    parts: [(&'static str, f64); 3],
    /// Seconds until a task had ended, on a normal pCPU and on the micro pCPU: the least of [`ENDS`] tries.
    ended: [f64; 2],
}

fn tasks() -> &'static Tasks {
    static TASKS: OnceLock<Tasks> = OnceLock::new();
    TASKS.get_or_init(|| {
        observed(&[], |host, _| {
            let scheduler = start_scheduler(host, "--micro-cpus 1 --micro-slice-us 3000");
            let places =
                [("any pCPU", 0xf), ("a normal pCPU", 1 << NORMAL_PCPU), ("the micro pCPU", 1 << MICRO_PCPU)];
            let parts = places.map(|(place, pcpus)| (place, part_of_a_task(host, pcpus)));
            let mut ended = [f64::INFINITY; 2];
            for _ in 0..ENDS {
                let seconds = [NORMAL_PCPU, MICRO_PCPU].map(|pcpu| seconds_to_end(host, pcpu));
                ended = [ended[0].min(seconds[0]), ended[1].min(seconds[1])];
            }
            stop_scheduler(host, &scheduler);
            Tasks { parts, ended }
        })
    })
}

/// Gives back 200 MiB when it ends: some hundred milliseconds in do_exit(), where sched_ext asks no
/// scheduler.
const ENDS_SLOWLY: &str = "dd if=/dev/zero of=/dev/null bs=200M count=1";

fn seconds_to_end(host: &Host, pcpu: u32) -> f64 {
    let mask = 1 << pcpu;
    let text =
        run(host, &format!("cat /proc/uptime; taskset {mask:x} {ENDS_SLOWLY} 2>/dev/null; cat /proc/uptime"));
    let seconds = |line: &str| line.split(' ').next().and_then(|text| text.parse::<f64>().ok());
    let times: Vec<f64> = text.lines().map(|line| seconds(line).expect("uptime")).collect();
    times[1] - times[0]
}

#[test]
fn a_host_task_alone_on_its_pcpu_runs_without_a_pause_wherever_it_may_run() {
    tasks().parts.iter().for_each(|&(place, part)| assert_was_alone(part, place));
}

#[test]
fn a_host_task_ends_as_fast_on_the_micro_pcpu_as_on_a_normal_one() {
    let [normal, micro] = tasks().ended;
    assert!(micro < 2.0 * normal, "{normal:.2} s on a normal pCPU, {micro:.2} s on the micro pCPU");
}

#[test]
fn a_vcpu_alone_on_its_pcpu_runs_without_a_pause() {
    with_guests(&[GuestSpec::new("alone").vcpus(1).bare()], |host, _| {
        for pool in ["--micro-cpus 0", "--micro-cpus 1 --micro-slice-us 3000", "--micro-slice-us 3000"] {
            let scheduler = start_scheduler(host, pool);
            assert_was_alone(part_of_process(host, VMM), pool);
            stop_scheduler(host, &scheduler);
        }
    });
}
