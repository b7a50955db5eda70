//! Boosts beside the kernel's own scheduler, on stock hosts: Debian 12 has no sched_ext, others have. What
//! overcommit costs is seen on the same hosts, which are booted once for both (`observe.rs`).

use super::monitoring::prometheus_takes_what_is_served;
use super::observe::{
    a_profile_holds_what_was_seen, limited_and_paused_vms_are_told_apart, switches_are_traced,
    users_without_rights_are_refused, what_overcommit_costs_is_seen,
};
use crate::common::{
    PATIENCE, assert_alive, assert_few_runs_were_left_out, boosts_by, count, hints, on_machine, refusal,
    replay, report_of, reports, run, seconds, stand_still, statistics, statistics_from, sum,
    wait_until_it_knows,
};
use microslice_testbed::kernels::DEFAULT_GUEST;
use microslice_testbed::{Guest, GuestSpec, Host, Process, Testbed};
use serde_json::Value;
use std::time::{Duration, Instant};

/// The emulated CPU is slow: a boost must be long enough for a guest to do anything in it.
pub(super) const BESIDE: &str =
    "exec microslice run --scheduler beside --json --micro-slice-us 3000 --boost-percent 20 --stats 1";
/// Long boosts, so that a kill finds some under way.
pub(super) const LONG_BOOSTS: &str =
    "exec microslice run --scheduler beside --json --micro-slice-us 30000 --boost-percent 50 --stats 1";

/// One of 30 ms uses up three quarters of what 1 % of four pCPUs are for a second.
const LITTLE_BUDGET: &str = "exec microslice run --scheduler beside --json --micro-slice-us 30000 --boost-percent 1 \
                             --max-wait none --stats 1";
pub(super) const DEBIAN_12: &str = "6.1";
/// What guests with paravirtual helpers ask by. That a lock's holder is stopped in critical code while a
/// waiter has halted is rare.
const CAUSES: [&str; 5] = ["pv_yield", "resched_ipi", "call_function_ipi", "virq", "woken"];

pub(super) fn host_of(series: &str) -> Testbed {
    Testbed::new(series).and_then(|testbed| testbed.with_guest_kernels(&[DEFAULT_GUEST])).expect("kernels")
}

/// Runs `test` beside Debian's kernel of this series, with [`guests`].
pub(super) fn on(series: &str, test: impl Fn(&Host, &[Guest])) {
    on_machine(&format!("a host for boosts, {series}"), || host_of(series), &guests(), test);
}

pub(super) fn guests() -> [GuestSpec; 2] {
    [
        GuestSpec::new("a").workload("worker,mix,shootdown,heartbeat").network(1),
        GuestSpec::new("b").workload("hog,heartbeat"),
    ]
}

/// In charge of boosts. Guests stand still until it is, and while it reads their kernel: beside busy ones
/// either takes minutes.
pub(super) fn start(host: &Host, command: &str) -> Process {
    let image = &host.image(DEFAULT_GUEST).expect("the guests' image").kernel;
    let still = stand_still(host);
    let process = host.start(&format!("{command} --guest a={image} --guest b={image}")).expect("start");
    statistics(&process, |_| true, "report");
    drop(still);
    wait_until_it_knows(host, 2, &process);
    process
}

pub(super) fn is_boosted(report: &Value) -> bool {
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

pub(super) fn stop(process: &Process) -> Value {
    process.signal(libc::SIGINT).expect("signal");
    let output = process.wait(PATIENCE).expect("end");
    assert_eq!(output.code, 0, "{}", output.stderr);
    report_of(output.stdout.lines().last().expect("statistics")).unwrap_or_else(|error| panic!("{error}"))
}

/// Threads of guests that a boost has left as they were not before: the 41st field is the policy, 1 is
/// SCHED_FIFO.
pub(super) fn real_time_guest_threads(host: &Host) -> usize {
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

/// Preempted vCPUs are boosted for each cause, all boosts are taken back, and each decision comes out the
/// same natively.
fn preempted_vcpus_are_boosted(host: &Host, guests: &[Guest]) {
    let _echo = host.start_echo().expect("the other end of the ping-pong");
    let beside = start(host, &format!("{BESIDE} --record /tmp/beside.rec"));
    statistics(&beside, boosts_by(&CAUSES), "boost by each cause");
    std::thread::sleep(seconds(5, 30));
    guests.iter().for_each(|guest| assert_alive(guest, 2));
    // With a watcher or without, the daemon takes all back at its end.
    kill_watcher(host, &beside);
    let report = stop(&beside);
    let helper = &report["helper"];
    assert!(count(&helper["boosts"]) > 0, "{report}");
    assert_eq!(helper["boosts"], helper["returns"], "{report}");
    let lost = sum(&report["failed_pulls"]) + count(&report["pending_requests"]);
    assert_eq!(
        count(&report["acceleration_requests"]["total"]),
        count(&report["accelerations"]["total"]) + lost,
        "{report}"
    );
    assert_eq!(real_time_guest_threads(host), 0);
    // A request wakes the helper, which preempts the very program that made it: it is real-time.
    assert_few_runs_were_left_out(&report, hints(&report), 20);
    let by_kind = &replay(host, "/tmp/beside.rec")["by_kind"];
    for kind in ["classify", "yield", "sibling", "interrupt", "micro_slice", "boost"] {
        assert!(count(&by_kind[kind]) > 0, "no decision of kind {kind}: {by_kind}");
    }
}

#[test]
fn on_6_18_preempted_vcpus_are_boosted_and_all_boosts_are_taken_back() {
    on("6.18", preempted_vcpus_are_boosted);
}

#[test]
#[ignore = "the same as on 6.1 and 6.18: make test-long"]
fn on_the_newest_good_7_2_preempted_vcpus_are_boosted_and_all_boosts_are_taken_back() {
    on("7.2", preempted_vcpus_are_boosted);
}

#[test]
#[ignore = "the same as on 6.1 and 6.18: make test-long"]
fn on_6_12_preempted_vcpus_are_boosted_and_all_boosts_are_taken_back() {
    on("6.12", preempted_vcpus_are_boosted);
}

#[test]
fn on_debian_12_preempted_vcpus_are_boosted_and_all_boosts_are_taken_back() {
    on(DEBIAN_12, preempted_vcpus_are_boosted);
}

/// Each thread of the guests may run on one pCPU only, by turns, or on all of them.
fn pin_guests(host: &Host, to_one: bool) {
    let mask = if to_one { "$((1 << at % 4))" } else { "f" };
    run(
        host,
        &format!(
            "at=0; for guest in $(pidof qemu-system-x86_64); do for task in /proc/$guest/task/*; do
                at=$((at + 1)); taskset -p {mask} ${{task##*/}} >/dev/null
            done; done"
        ),
    );
}

#[test]
#[ignore = "41 s; the lab shows it where KVM can be opened: make test-long"]
fn on_debian_12_vcpus_that_the_operator_pins_are_not_boosted_any_more() {
    on(DEBIAN_12, |host, _| {
        let _echo = host.start_echo().expect("the other end of the ping-pong");
        let beside = start(host, &format!("{BESIDE} --max-wait none"));
        statistics(&beside, is_boosted, "boost");
        pin_guests(host, true);
        let is_refused = |report: &Value| count(&report["failed_pulls"]["pinned"]) > 0;
        statistics(&beside, is_refused, "refusal of a pinned vCPU");
        let pinned = beside.lines(0).len();
        std::thread::sleep(seconds(5, 30));
        let while_pinned = reports(&beside, pinned);
        pin_guests(host, false);
        assert!(!while_pinned.is_empty());
        for report in while_pinned {
            assert_eq!(report["helper"]["boosts"], 0, "{report}");
        }
        stop(&beside);
    });
}

#[test]
#[ignore = "31 s; the lab shows it in real time where KVM can be opened: make test-long"]
fn on_debian_12_a_vm_that_asks_all_the_time_runs_boosted_for_no_longer_than_its_budget() {
    on(DEBIAN_12, |host, _| {
        let _echo = host.start_echo().expect("the other end of the ping-pong");
        let beside = start(host, LITTLE_BUDGET);
        let is_refused = |report: &Value| count(&report["failed_pulls"]["over_budget"]) > 0;
        statistics(&beside, is_refused, "refusal beyond the budget");
        std::thread::sleep(seconds(5, 30));
        let report = stop(&beside);
        // 1 % of four pCPUs, and what a second gives at once.
        let allowed_ns = (report["seconds"].as_f64().expect("seconds") + 1.0) * 1e9 * 4.0 / 100.0;
        for vm in report["vms"].as_array().expect("VMs") {
            // Four vCPUs may have been granted a boost before the first was charged. The histogram has the
            // middle of a power of two.
            let longest_ns = vm["micro_slice_us"]["max"].as_f64().unwrap_or(0.0) * 1000.0 * 4.0 / 3.0;
            let boosted_ns = vm["boosted_ns"].as_f64().expect("a time");
            assert!(boosted_ns <= allowed_ns + 4.0 * longest_ns, "{allowed_ns} ns are allowed: {vm}");
        }
    });
}

#[test]
#[ignore = "77 s; the lab shows both where KVM can be opened: make test-long"]
fn on_debian_12_a_user_without_rights_or_a_second_daemon_is_refused_in_one_line() {
    on(DEBIAN_12, |host, _| {
        let user = "grep -qs ^nobody: /etc/passwd || echo 'nobody:x:65534:65534::/:/bin/sh' >> /etc/passwd; \
                    exec su -s /bin/sh nobody -c 'microslice run --scheduler beside'";
        let line = refusal(host, user);
        assert!(
            line.contains("CAP_SYS_ADMIN, CAP_SYS_NICE, CAP_PERFMON, CAP_BPF missing: run it as root"),
            "{line}"
        );
        // All capabilities, but of a user namespace: the kernel makes nobody real-time for them.
        let line = refusal(host, "exec unshare -r microslice run --scheduler beside");
        assert!(line.contains("no thread can be made real-time here"), "{line}");

        // It is no fallback, but named.
        let line = refusal(host, "microslice run --scheduler microslice");
        assert!(
            line.contains("no sched_ext") && line.contains("`microslice run --scheduler beside` needs none"),
            "{line}"
        );

        let first = host.start(&format!("{BESIDE} --dry-run")).expect("start");
        statistics(&first, |_| true, "report");
        let line = refusal(host, "microslice run");
        assert!(line.contains("another `microslice run --scheduler beside` runs here"), "{line}");
        stop(&first);
        assert_eq!(real_time_guest_threads(host), 0);
    });
}

#[test]
#[ignore = "100 s; the lab shows it in real time where KVM can be opened: make test-long"]
fn on_debian_12_whichever_of_the_two_processes_is_killed_no_thread_stays_real_time() {
    on(DEBIAN_12, |host, guests| {
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

#[test]
#[ignore = "170 s; tests of the program hold names, dashboard and rules: make test-long"]
fn on_6_18_prometheus_scrapes_run_and_observe_and_every_query_of_the_dashboard_has_an_answer() {
    on("6.18", |host, _| prometheus_takes_what_is_served(host));
}

#[test]
#[ignore = "117 s; failed once beside the other lane, and why was lost: make test-long"]
fn on_6_18_a_profile_holds_what_was_seen_and_a_model_is_fitted_to_it() {
    on("6.18", |host, _| a_profile_holds_what_was_seen(host));
}

#[test]
fn on_6_18_what_overcommit_costs_is_seen() {
    on("6.18", |host, _| what_overcommit_costs_is_seen(host));
}

#[test]
#[ignore = "61 s; 6.1 and 6.18 stand for what lies between them: make test-long"]
fn on_6_12_what_overcommit_costs_is_seen() {
    on("6.12", |host, _| what_overcommit_costs_is_seen(host));
}

#[test]
fn on_6_18_limited_and_paused_vms_are_told_apart() {
    on("6.18", limited_and_paused_vms_are_told_apart);
}

#[test]
#[ignore = "the same as on 6.18, without cpu.stat.local, which a unit test leaves out, too: make test-long"]
fn on_debian_12_limited_and_paused_vms_are_told_apart() {
    on(DEBIAN_12, limited_and_paused_vms_are_told_apart);
}

#[test]
#[ignore = "115 s; `run` traces by the same code: make test-long"]
fn on_debian_12_a_trace_shows_what_ran_where() {
    on(DEBIAN_12, |host, _| switches_are_traced(host));
}

#[test]
#[ignore = "138 s; the same on 6.18 stands for it, refusals for rights: make test-long"]
fn on_debian_12_what_overcommit_costs_is_seen_and_a_user_without_rights_is_refused() {
    on(DEBIAN_12, |host, _| {
        what_overcommit_costs_is_seen(host);
        users_without_rights_are_refused(host);
    });
}
