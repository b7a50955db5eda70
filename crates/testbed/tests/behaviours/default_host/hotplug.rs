//! pCPUs that come and go under our scheduler. sched_ext ends every scheduler then, and asks for it again.

use crate::common::{
    PATIENCE, assert_alive, count, is_long, on_host, run, scheduler_state, start_scheduler, statistics,
    stop_scheduler, with_guests,
};
use microslice_testbed::{GuestSpec, Host};
use serde_json::Value;
use std::time::{Duration, Instant};

const LAST_PCPU: &str = "/sys/devices/system/cpu/cpu3/online";

fn set_online(host: &Host, online: u32) {
    run(host, &format!("echo {online} > {LAST_PCPU}"));
}

fn wait_until_enabled(host: &Host, what: &str) {
    let deadline = Instant::now() + PATIENCE;
    while scheduler_state(host) != "enabled" {
        assert!(Instant::now() < deadline, "{what}: {}", scheduler_state(host));
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Each restart takes some five seconds here.
#[test]
fn a_pcpu_that_goes_and_comes_again_and_again_ends_nothing_and_no_guest_is_read_again() {
    let rounds: u32 = if is_long() { 20 } else { 2 };
    with_guests(&[GuestSpec::new("a").workload("hog,heartbeat")], |host, guests| {
        let scheduler = start_scheduler(host, "--micro-cpus 1 --micro-slice-us 3000 --stats 1");
        let is_known = |report: &Value| report["vms"][0]["slide"].is_string();
        statistics(&scheduler, is_known, "slide");
        let kernels_read = || scheduler.stderr().matches("a: pid ").count();
        let before = kernels_read();
        for round in 1..=rounds {
            for online in [0, 1] {
                set_online(host, online);
                wait_until_enabled(host, &format!("round {round}, online {online}"));
            }
            assert!(!scheduler.has_ended(), "round {round}: {}", scheduler.last_words());
        }
        statistics(&scheduler, is_known, "slide after the last restart");
        assert_alive(&guests[0], 2);
        assert_eq!(kernels_read(), before, "a kernel was read again: {}", scheduler.last_words());
        let report = stop_scheduler(host, &scheduler);
        println!("{} restarts in {} s", report["restarts"], report["seconds"]);
        assert!(count(&report["restarts"]) >= u64::from(rounds), "{report}");
        assert_eq!(report["vms"].as_array().map(Vec::len), Some(1), "{report}");
    });
}

/// CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_SYS_NICE, CAP_SYSLOG, CAP_PERFMON, CAP_BPF.
const KEPT: u64 = 1 << 2 | 1 << 19 | 1 << 21 | 1 << 23 | 1 << 34 | 1 << 38 | 1 << 39;

#[test]
fn the_daemon_keeps_seven_capabilities_and_they_are_enough_to_read_guests_and_to_start_again() {
    with_guests(&[GuestSpec::new("a").workload("hog,heartbeat")], |host, _| {
        let scheduler = start_scheduler(host, "--micro-cpus 1 --micro-slice-us 3000 --stats 1");
        // By now both threads are there.
        statistics(&scheduler, |report| report["vms"][0]["slide"].is_string(), "slide");
        let threads = "for t in /proc/$(pidof microslice)/task/*; do
            if [ $(cat $t/comm) = kernel-reader ] || [ ${t##*/} = $(pidof microslice) ]; then grep CapPrm $t/status; fi
        done";
        let said = run(host, threads);
        let kept: Vec<u64> = said
            .lines()
            .map(|line| u64::from_str_radix(line.trim_start_matches("CapPrm:").trim(), 16).expect("a mask"))
            .collect();
        assert_eq!(kept, [KEPT; 2], "{said}");
        set_online(host, 0);
        wait_until_enabled(host, "offline");
        statistics(&scheduler, |report| report["vms"][0]["slide"].is_string(), "slide");
        set_online(host, 1);
        wait_until_enabled(host, "online");
        stop_scheduler(host, &scheduler);
    });
}

#[test]
fn a_pcpu_that_is_lost_while_the_scheduler_starts_brings_another_start() {
    on_host(|host| {
        let toggling = host
            .start(&format!("for n in $(seq 15); do echo 0 > {LAST_PCPU}; echo 1 > {LAST_PCPU}; done"))
            .expect("start");
        let scheduler = start_scheduler(host, "--micro-cpus 2 --micro-cpus-limit 2 --stats 1");
        assert_eq!(toggling.wait(PATIENCE).expect("end").code, 0);
        wait_until_enabled(host, "after the last change");
        assert!(!scheduler.has_ended(), "{}", scheduler.last_words());
        stop_scheduler(host, &scheduler);
    });
}
