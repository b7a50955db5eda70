//! Boosts beside the kernel's own scheduler, on a stock host that has no sched_ext.

use crate::common::{
    PATIENCE, Standstill, assert_alive, assert_few_runs_were_left_out, count, hints, on_machine, report_of,
    run, seconds, statistics, statistics_from, sum, wait_until_it_knows,
};
use microslice_testbed::kernels::DEFAULT_GUEST;
use microslice_testbed::{GuestSpec, Host, Process, Testbed};
use serde_json::Value;
use std::time::{Duration, Instant};

/// The emulated CPU is slow: a boost must be long enough for a guest to do anything in it.
const BESIDE: &str = "exec microslice run --beside --json --micro-slice-us 3000 --boost-percent 20 --stats 1";
/// Long boosts, so that a kill finds some under way.
const LONG_BOOSTS: &str =
    "exec microslice run --beside --json --micro-slice-us 30000 --boost-percent 50 --stats 1";

fn debian_12() -> Testbed {
    Testbed::new("6.1").and_then(|testbed| testbed.with_guest_kernels(&[DEFAULT_GUEST])).expect("kernels")
}

fn guests() -> [GuestSpec; 2] {
    [
        GuestSpec::new("a").workload("worker,mix,shootdown,heartbeat").network(1),
        GuestSpec::new("b").workload("hog,heartbeat"),
    ]
}

/// In charge of boosts. Guests stand still until it is, and while it reads their kernel: beside busy ones either takes minutes.
fn start(host: &Host, command: &str) -> Process {
    let image = &host.image(DEFAULT_GUEST).expect("the guests' image").kernel;
    let still = Standstill::of_guests(host);
    let process = host.start(&format!("{command} --guest a={image} --guest b={image}")).expect("start");
    statistics(&process, |_| true, "report");
    drop(still);
    wait_until_it_knows(host, 2, &process);
    process
}

fn is_boosted(report: &Value) -> bool {
    count(&report["helper"]["boosts"]) > 0
}

/// Kills the watcher, and waits for another one in its place.
fn kill_watcher(host: &Host, beside: &Process) {
    // Not this shell, whose command line has these words, too.
    run(
        host,
        "for process in /proc/[0-9]*; do
            if grep -q 'watch[-]boosts' $process/cmdline 2>/dev/null; then kill -9 ${process##*/}; fi
        done",
    );
    let replaced = |report: &Value| report["helper"]["watchers_replaced"] == 1;
    statistics(beside, replaced, "watcher in place of the dead one");
}

fn stop(process: &Process) -> Value {
    process.signal(libc::SIGINT).expect("signal");
    let output = process.wait(PATIENCE).expect("end");
    assert_eq!(output.code, 0, "{}", output.stderr);
    report_of(output.stdout.lines().last().expect("statistics")).unwrap_or_else(|error| panic!("{error}"))
}

/// Threads of guests that a boost has left as they were not before: the 41st field is the policy, 1 is SCHED_FIFO.
fn real_time_guest_threads(host: &Host) -> usize {
    let command = "for guest in $(pidof qemu-system-x86_64); do cat /proc/$guest/task/*/stat; done | sed 's/.*) //' | \
                   awk '$39 == 1' | wc -l";
    run(host, command).trim().parse().expect("a number")
}

fn wait_until_none_is_real_time(host: &Host) {
    let deadline = Instant::now() + PATIENCE;
    while real_time_guest_threads(host) > 0 {
        assert!(Instant::now() < deadline, "threads stay real-time");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn on_debian_12_preempted_vcpus_are_boosted_and_all_boosts_are_taken_back() {
    on_machine("Debian 12", debian_12, &guests(), |host, guests| {
        let _echo = host.start_echo().expect("the other end of the ping-pong");
        let beside = start(host, BESIDE);
        let boosted = |report: &Value| count(&report["boosts"]["total"]) > 0;
        statistics(&beside, boosted, "boost");
        std::thread::sleep(seconds(5, 30));
        guests.iter().for_each(|guest| assert_alive(guest, 2));
        // Whoever watches, the daemon takes all back at its end.
        kill_watcher(host, &beside);
        let report = stop(&beside);
        let helper = &report["helper"];
        assert!(count(&helper["boosts"]) > 0, "{report}");
        assert_eq!(helper["boosts"], helper["returns"], "{report}");
        let lost = sum(&report["refusals"]) + sum(&report["missed"]) + count(&report["pending"]);
        assert_eq!(count(&report["requests"]), count(&report["boosts"]["total"]) + lost, "{report}");
        assert_eq!(real_time_guest_threads(host), 0);
        assert_few_runs_were_left_out(&report, hints(&report), 100);
    });
}

#[test]
fn whoever_of_the_two_processes_is_killed_no_thread_stays_real_time() {
    on_machine("Debian 12", debian_12, &guests(), |host, guests| {
        let _echo = host.start_echo().expect("the other end of the ping-pong");
        // First the watcher, in whose place another one comes, then the daemon: that one takes all back.
        let beside = start(host, LONG_BOOSTS);
        kill_watcher(host, &beside);
        statistics_from(&beside, beside.lines(0).len(), is_boosted, "boost");
        beside.signal(libc::SIGKILL).expect("signal");
        wait_until_none_is_real_time(host);

        // Both: the next start.
        let beside = start(host, LONG_BOOSTS);
        statistics(&beside, is_boosted, "boost");
        run(host, "kill -9 $(pidof microslice)");
        let _ = beside.wait(PATIENCE);
        let next = start(host, &format!("{BESIDE} --dry-run"));
        assert_eq!(real_time_guest_threads(host), 0);
        stop(&next);
        guests.iter().for_each(|guest| assert_alive(guest, 2));
    });
}
