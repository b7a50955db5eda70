//! Queues by domain, on a host of two last-level caches with two pCPUs each.

use crate::common::alone::spinning;
use crate::common::intervals::{Intervals, figure, vms_part};
use crate::common::promises::{assert_share, guest, is_share, share_from_now, weight_flags};
use crate::common::{
    PATIENCE, assert_alive, count, on_machine, run, scheduler_state, seconds, stand_still, start_scheduler,
    statistics_from, stop_scheduler, wait_for_state,
};
use microslice_promises::{TASKS_BESIDE_A_VM, UNEVEN_HOGS};
use microslice_testbed::{Guest, GuestSpec, Host, Process, Testbed};
use serde_json::Value;

const PCPUS: f64 = 4.0;

fn on_host_of_two_caches(specs: &[GuestSpec], test: impl Fn(&Host, &[Guest])) {
    let testbed = || Testbed::new("6.18").expect("a series").sockets(2);
    on_machine("a host of two caches", testbed, specs, test);
}

/// Each of the first one's vCPUs is due two thirds of a pCPU.
fn uneven_hogs() -> [GuestSpec; 2] {
    ["a", "b"].map(|name| guest(&UNEVEN_HOGS, name))
}

fn assert_shares_hold(host: &Host, flags: &str, moves: bool) {
    let flags = format!("{flags} --stats 1 --no-guest-memory {}", weight_flags(&UNEVEN_HOGS));
    let scheduler = start_scheduler(host, &flags);
    let part = share_from_now(&scheduler, &UNEVEN_HOGS, "a", seconds(8, 30));
    let busy = |ran: &Intervals| (ran.vms_ran_ns() + ran.others_ran_ns()) / 1e9 / ran.seconds() / PCPUS;
    // One of four that idles makes it three quarters.
    let is_nearly_all = |part: f64| part > 0.85;
    let busy = figure(&scheduler, seconds(2, 10), busy, is_nearly_all);
    let report = stop_scheduler(host, &scheduler);
    let taken = &report["host"]["taken_from_domains"];
    println!("{flags}: pCPUs busy {busy:.3}, taken from other domains {taken}");
    assert_share(&UNEVEN_HOGS, "a", part);
    assert!(is_nearly_all(busy), "pCPUs were busy {busy} of the time: {report}");
    assert_eq!(count(&taken["idle"]) + count(&taken["balance"]) > 0, moves, "{report}");
}

#[test]
fn shares_hold_and_no_pcpu_idles_whatever_a_domain_is() {
    on_host_of_two_caches(&uneven_hogs(), |host, guests| {
        for (domain, moves) in [("pcpu", true), ("llc", true), ("host", false)] {
            assert_shares_hold(host, &format!("--micro-cpus 0 --queue-domain {domain}"), moves);
        }
        guests.iter().for_each(|guest| assert!(!guest.has_ended(), "{}", guest.last_words()));
    });
}

#[test]
#[ignore = "125 s; the default scheduler has the same queues: make test-long"]
fn shares_hold_and_no_pcpu_idles_under_the_scheduler_coordinated_too() {
    on_host_of_two_caches(&uneven_hogs(), |host, guests| {
        for domain in ["pcpu", "llc"] {
            assert_shares_hold(host, &format!("--scheduler coordinated --queue-domain {domain}"), true);
        }
        guests.iter().for_each(|guest| assert!(!guest.has_ended(), "{}", guest.last_words()));
    });
}

/// How long processes have run, in ticks.
fn ran(host: &Host, pids: &[String]) -> Vec<u64> {
    let text = run(host, &format!("for p in {}; do cut -d' ' -f14,15 /proc/$p/stat; done", pids.join(" ")));
    let sum = |line: &str| line.split(' ').map(|ticks| ticks.parse::<u64>().expect("ticks")).sum();
    text.lines().map(sum).collect()
}

/// Where nobody else fetched them the VM had 0.70, with half of that cache's pCPUs and all of the other's.
#[test]
fn host_tasks_of_one_cache_run_on_the_other_too() {
    const TASKS: u32 = 12;
    let row = &TASKS_BESIDE_A_VM;
    on_host_of_two_caches(&[guest(row, "a").bare()], |host, _| {
        let scheduler = start_scheduler(host, "--micro-cpus 0 --stats 1 --no-guest-memory");
        let (tasks, pids): (Vec<Process>, Vec<String>) = (0..TASKS).map(|_| spinning(host, 0x3)).unzip();
        pids.iter().for_each(|pid| drop(run(host, &format!("taskset -p f {pid}"))));
        let is_of_both = |part: f64| is_share(row, "a")(part) && part < 0.62;
        let before = ran(host, &pids);
        let part = vms_part(&scheduler, seconds(6, 30), is_of_both);
        let had: Vec<u64> =
            ran(host, &pids).iter().zip(before).map(|(after, before)| after - before).collect();
        println!("ticks of each task: {had:?}");
        tasks.iter().for_each(|task| task.signal(libc::SIGKILL).expect("signal"));
        stop_scheduler(host, &scheduler);
        assert_share(row, "a", part);
        assert!(is_of_both(part), "the other cache's pCPUs fetch none: {part}");
        let [least, most] = [had.iter().min(), had.iter().max()].map(|ticks| *ticks.expect("tasks"));
        assert!(most < 2 * least, "they fetch a few only: {had:?}");
    });
}

#[test]
#[ignore = "75 s; hotplug runs on the default domains: make test-long"]
fn a_domain_that_loses_its_last_pcpu_leaves_nobody_behind() {
    on_host_of_two_caches(&[GuestSpec::new("a").bare()], |host, guests| {
        let scheduler = start_scheduler(host, "--micro-cpus 0 --stats 1 --no-guest-memory");
        // They are all of one cache.
        let set_online = |online: u32| {
            // Beside guests that run a restart takes emulation minutes.
            let _still = stand_still(host);
            for cpu in [2, 3] {
                run(host, &format!("echo {online} > /sys/devices/system/cpu/cpu{cpu}/online"));
            }
            wait_for_state(host, "enabled", &scheduler);
        };
        set_online(0);
        let all_wait = |report: &Value| count(&report["vms"][0]["cpu_time_ns"]) > 500_000_000;
        statistics_from(&scheduler, scheduler.lines(0).len(), all_wait, "VM that runs on what is left");
        set_online(1);
        assert_alive(&guests[0], 2);
        assert!(!scheduler.has_ended(), "{}", scheduler.last_words());
        let report = stop_scheduler(host, &scheduler);
        assert!(count(&report["scheduler_restarts"]) >= 2, "{report}");
    });
}

/// What `microslice run` says on standard error while it is loaded.
fn first_lines(host: &Host, flags: &str) -> String {
    let scheduler = start_scheduler(host, flags);
    stop_scheduler(host, &scheduler);
    scheduler.stderr()
}

#[test]
fn a_domain_that_the_host_has_not_is_refused_and_the_others_are_told() {
    on_host_of_two_caches(&[], |host, _| {
        for (flags, line) in [
            ("--scheduler microslice", "vCPUs wait by llc, in 2 domains"),
            ("--queue-domain pcpu --scheduler coordinated", "vCPUs wait by pcpu, in 4 domains"),
        ] {
            let said = first_lines(host, flags);
            assert!(said.contains(line), "{flags}: {said}");
        }
        // A virtual machine, for one, may show no caches.
        let caches = "/sys/devices/system/cpu/cpu1/cache";
        run(host, &format!("mount -t tmpfs none {caches}"));
        for (flags, cause) in [
            (
                "--scheduler microslice --queue-domain llc",
                "--queue-domain llc: this host doesn't show its last-level caches",
            ),
            ("--queue-domain node", "node"),
        ] {
            let output = host.run(&format!("microslice run {flags}"), PATIENCE).expect("run");
            assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{output:?}");
            assert_eq!(output.stderr.lines().count(), 1, "one line: {output:?}");
            assert!(output.stderr.contains(cause), "{output:?}");
            assert_eq!(scheduler_state(host), "disabled");
        }
        let said = first_lines(host, "");
        run(host, &format!("umount {caches}"));
        assert!(!said.contains("domains") && said.contains("all vCPUs wait in one queue"), "{said}");
    });
}
