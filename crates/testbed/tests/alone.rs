//! Whoever has a pCPU to itself: the end of its slice may not stop it, since nobody else wants the pCPU.

mod common;

use common::alone::{assert_a_task_runs_without_a_pause, assert_runs_without_a_pause};
use common::{PATIENCE, on_host, start_scheduler, stop_scheduler};
use microslice_testbed::GuestSpec;

/// With `--micro-cpus 1` of four.
const MICRO_PCPU: u32 = 3;
const NORMAL_PCPU: u32 = 1;

/// How the host's shell finds the only guest.
const VMM: &str = "$(pidof qemu-system-x86_64)";

#[test]
fn a_host_task_alone_on_its_pcpu_runs_without_a_pause_wherever_it_may_run() {
    on_host(|host| {
        let scheduler = start_scheduler(host, "--micro-cpus 1 --micro-slice-us 3000");
        for (place, pcpus) in
            [("any pCPU", 0xf), ("a normal pCPU", 1 << NORMAL_PCPU), ("the micro pCPU", 1 << MICRO_PCPU)]
        {
            assert_a_task_runs_without_a_pause(host, pcpus, place);
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
            assert_runs_without_a_pause(host, VMM, pool);
            stop_scheduler(host, &scheduler);
        }
        guest.stop().expect("stop");
    });
}
