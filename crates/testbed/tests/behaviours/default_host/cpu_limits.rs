//! `cpu.max` of the cgroups that a VM's vCPUs lie in, on real guests: the kernel itself keeps it only where
//! no sched_ext scheduler runs.

use crate::common::alone::{cpus_of_process, spinning};
use crate::common::intervals::{figure, near, over_time};
use crate::common::{
    PATIENCE, assert_alive, count, is_long, on_host, replay, run, scheduler_state, seconds, start_scheduler,
    statistics, statistics_from, stop_scheduler, with_guests,
};
use microslice_testbed::{GuestSpec, Host, Process};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Fifty periods, or more.
fn measured() -> Duration {
    seconds(5, 20)
}

/// The kernel's watchdog looks every five seconds whether a task has waited for ten.
const UNTIL_THE_WATCHDOG: Duration = Duration::from_secs(16);

/// A burst of one period, and what the last turns took beyond.
const TOLERANCE: f64 = 0.05;
/// With `--micro-cpus 1` of four.
const MICRO_PCPU: u32 = 3;
const FLAGS: &str = "--micro-cpus 0 --stats 1";

fn set_limit(host: &Host, cgroup: &str, limit: &str) {
    run(host, &format!("echo '{limit}' > /sys/fs/cgroup/{cgroup}/cpu.max"));
}

fn hog(name: &str, cgroup: &str) -> GuestSpec {
    GuestSpec::new(name).workload("hog,heartbeat").cgroup(cgroup, 100)
}

fn is_kept(limit: f64) -> impl Fn(f64) -> bool {
    near(limit, limit * TOLERANCE)
}

/// The tasks of a cgroup get what is allowed, by the kernel's own count.
fn assert_cgroup_gets(host: &Host, cgroup: &str, limit: f64, what: &str) {
    let read = || {
        let text = run(host, &format!("grep usage_usec /sys/fs/cgroup/{cgroup}/cpu.stat; cat /proc/uptime"));
        let numbers: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        [numbers[0] / 1e6, numbers[1]]
    };
    let before = read();
    let cpus = || {
        let after = read();
        (after[0] - before[0]) / (after[1] - before[1])
    };
    assert_kept(over_time(measured(), cpus, |&cpus| is_kept(limit)(cpus)), limit, what);
}

/// The host task gets what is allowed.
fn assert_task_gets(host: &Host, pid: &str, limit: f64, what: &str) {
    assert_kept(cpus_of_process(host, pid, measured(), is_kept(limit)), limit, what);
}

fn assert_kept(cpus: f64, limit: f64, what: &str) {
    println!("{what}: {cpus:.3} CPUs of {limit}");
    assert!(is_kept(limit)(cpus), "{what}: {cpus:.3} CPUs, allowed are {limit}");
}

#[test]
fn a_vm_gets_what_its_cgroup_allows_and_all_again_when_that_is_taken_back() {
    with_guests(&[hog("a", "limited")], |host, guests| {
        set_limit(host, "limited", "150000 100000");
        let scheduler = start_scheduler(host, &format!("{FLAGS} --record /tmp/limits.rec"));
        let limits_are = |limits: Value| move |report: &Value| report["vms"][0]["cpu_limits"] == limits;
        statistics(&scheduler, limits_are(json!([1.5])), "limit of 1.5 CPUs");
        assert_cgroup_gets(host, "limited", 1.5, "limited to 1.5");
        set_limit(host, "limited", "20000 100000");
        statistics(&scheduler, limits_are(json!([0.2])), "limit of 0.2 CPUs");
        assert_cgroup_gets(host, "limited", 0.2, "limited to 0.2");
        assert_alive(&guests[0], 2);
        let limited = scheduler.lines(0).len();
        set_limit(host, "limited", "max 100000");
        statistics_from(&scheduler, limited, limits_are(json!([])), "no limit");
        let is_free = |cpus: f64| cpus > 3.0;
        let free = figure(&scheduler, measured(), |ran| ran.cpus("a"), is_free);
        assert!(is_free(free), "{free:.2} CPUs without a limit");
        let words = scheduler.stderr();
        for said in ["a: limited to 1.50 CPUs (/sys/fs/cgroup/limited/cpu.max)", "a: not limited any more"] {
            assert!(words.contains(said), "{words}");
        }
        let report = stop_scheduler(host, &scheduler);
        assert!(count(&report["vms"][0]["rested_time_ns"]) > 0, "{report}");
        let replayed = replay(host, "/tmp/limits.rec");
        assert!(count(&replayed["by_kind"]["limit"]) > 100, "{replayed}");
    });
}

#[test]
fn vms_in_one_limited_cgroup_share_what_it_allows() {
    let guests = ["a", "b"].map(|name| hog(name, &format!("tenant/{name}")));
    with_guests(&guests, |host, _| {
        set_limit(host, "tenant", "100000 50000");
        let scheduler = start_scheduler(host, FLAGS);
        let limited = |report: &Value| {
            report["vms"].as_array().into_iter().flatten().any(|vm| vm["cpu_limits"] == json!([2.0]))
        };
        statistics(&scheduler, limited, "limit of 2 CPUs");
        assert_cgroup_gets(host, "tenant", 2.0, "both VMs");
        let is_half = near(0.5, 0.15);
        let part = figure(&scheduler, measured(), |ran| ran.share("a"), &is_half);
        assert!(is_half(part), "{part:.2} of what both had");
        stop_scheduler(host, &scheduler);
    });
}

#[test]
fn each_vcpu_gets_what_its_own_cgroup_allows() {
    with_guests(&[hog("a", "split")], |host, _| {
        // As libvirt does it: a threaded cgroup for each vCPU.
        run(
            host,
            r#"cd /sys/fs/cgroup/split && mkdir vcpu0 vcpu1 vcpu2 vcpu3 rest &&
            for g in vcpu0 vcpu1 vcpu2 vcpu3 rest; do echo threaded > $g/cgroup.type; done &&
            echo +cpu > cgroup.subtree_control &&
            for task in /proc/$(pidof qemu-system-x86_64)/task/*; do
                case "$(cat $task/comm)" in
                "CPU "*) read cpu index < $task/comm; g=vcpu${index%%/*};;
                *) g=rest;;
                esac
                echo ${task##*/} > $g/cgroup.threads
            done &&
            for g in vcpu0 vcpu1 vcpu2 vcpu3; do echo 25000 100000 > $g/cpu.max; done"#,
        );
        let scheduler = start_scheduler(host, FLAGS);
        statistics(&scheduler, |report| report["vms"][0]["vcpu_limit"] == 0.25, "limit of each vCPU");
        assert_cgroup_gets(host, "split", 1.0, "four vCPUs, limited to 0.25 each");
        stop_scheduler(host, &scheduler);
    });
}

#[test]
fn host_tasks_get_what_their_cgroup_allows_niced_or_not() {
    on_host(|host| {
        run(host, "cd /sys/fs/cgroup && echo +cpu > cgroup.subtree_control && mkdir -p service");
        set_limit(host, "service", "40000 100000");
        let scheduler = start_scheduler(host, "--micro-cpus 1 --micro-slice-us 3000");
        for nice in [0, 10] {
            let (task, pid) = spinning(host, 0xf);
            run(host, &format!("renice -n {nice} {pid}; echo {pid} > /sys/fs/cgroup/service/cgroup.procs"));
            assert_task_gets(host, &pid, 0.4, &format!("a host task of nice {nice}"));
            task.signal(libc::SIGKILL).expect("signal");
            task.wait(PATIENCE).expect("end");
        }
        let (task, pid) = spinning(host, 1 << MICRO_PCPU);
        run(host, &format!("echo {pid} > /sys/fs/cgroup/service/cgroup.procs"));
        assert_task_gets(host, &pid, 0.4, "a host task that may run on the micro pCPU only");
        task.signal(libc::SIGKILL).expect("signal");
        task.wait(PATIENCE).expect("end");
        let report = stop_scheduler(host, &scheduler);
        assert!(count(&report["host"]["rested_time_ns"]) > 0, "{report}");
    });
}

/// How long each of a cgroup's tasks has run so far, in nanoseconds.
fn ran_ns(host: &Host, cgroup: &str) -> BTreeMap<u32, u64> {
    let text = run(
        host,
        &format!(
            "for pid in $(cat /sys/fs/cgroup/{cgroup}/cgroup.procs); do \
             read ran rest < /proc/$pid/schedstat; echo $pid $ran; done"
        ),
    );
    let words = text.lines().filter_map(|line| line.split_once(' '));
    words.map(|(pid, ran)| (pid.parse().expect("a pid"), ran.parse().expect("nanoseconds"))).collect()
}

/// As many threads as asked for, about to begin in the cgroup `crowd`, which is frozen until they are all
/// there: those that compute would leave hardly any time to start the next one.
fn frozen_crowd(host: &Host, threads: usize, work: &str) -> Process {
    let crowd = "cd /sys/fs/cgroup && echo +cpu > cgroup.subtree_control && mkdir -p crowd";
    run(host, &format!("{crowd} && echo 1 > crowd/cgroup.freeze"));
    let start = format!(
        "for i in $(seq {threads}); do \
         sh -c 'while :; do {work}; done' & echo $! > /sys/fs/cgroup/crowd/cgroup.procs; done; wait"
    );
    let crowd = host.start(&start).expect("start");
    let start = Instant::now();
    while ran_ns(host, "crowd").len() < threads {
        assert!(start.elapsed() < PATIENCE, "{}", crowd.last_words());
        std::thread::sleep(Duration::from_millis(200));
    }
    crowd
}

fn thaw(host: &Host) {
    run(host, "echo 0 > /sys/fs/cgroup/crowd/cgroup.freeze");
}

/// Since `before`, each of the crowd's threads runs, sooner or later.
fn assert_nobody_stands_still(host: &Host, before: &BTreeMap<u32, u64>) {
    let stand_still = || {
        let now = ran_ns(host, "crowd");
        assert_eq!(now.len(), before.len());
        before.iter().filter(|(pid, ran)| now.get(pid) == Some(ran)).count()
    };
    // Nobody rests for longer than six seconds.
    assert_eq!(over_time(Duration::from_secs(6), stand_still, |&count| count == 0), 0);
}

fn end_crowd(host: &Host, crowd: &Process) {
    set_limit(host, "crowd", "max");
    run(host, "echo 1 > /sys/fs/cgroup/crowd/cgroup.kill");
    crowd.wait(PATIENCE).expect("end");
}

#[test]
fn many_threads_that_share_a_limit_get_no_more_than_few_and_all_of_them_go_on() {
    // Nobody rests for longer than six seconds, so each may take no more than 0.6 s / threads for a turn. An
    // emulated host's timers are up to 14 ms late ("hrtimer: interrupt took ..."). Up to a thousand:
    // crates/policy's property tests.
    let threads = if is_long() { 64 } else { 32 };
    on_host(|host| {
        let crowd = frozen_crowd(host, threads, ":");
        let before = ran_ns(host, "crowd");
        thaw(host);
        // Each has begun: what its start takes in the kernel would be a debt.
        assert_nobody_stands_still(host, &before);
        set_limit(host, "crowd", "10000 100000");
        let scheduler = start_scheduler(host, "--micro-cpus 0");
        std::thread::sleep(Duration::from_secs(3));
        let before = ran_ns(host, "crowd");
        assert_cgroup_gets(host, "crowd", 0.1, &format!("{threads} threads"));
        assert_nobody_stands_still(host, &before);
        assert_eq!(scheduler_state(host), "enabled", "{}", scheduler.last_words());
        end_crowd(host, &crowd);
        stop_scheduler(host, &scheduler);
    });
}

#[test]
fn tasks_that_fork_under_a_limit_never_rest_with_what_forks_of_the_host_wait_for() {
    on_host(|host| {
        let forks = || {
            let start = Instant::now();
            run(host, "for i in $(seq 20); do sh -c true; done");
            start.elapsed()
        };
        // Each of them forks and executes without end, and takes locks for that which every fork takes, too.
        let crowd = frozen_crowd(host, 64, "sh -c :");
        set_limit(host, "crowd", "2000 100000");
        let scheduler = start_scheduler(host, "--micro-cpus 0");
        let alone = forks();
        thaw(host);
        let start = Instant::now();
        let mut slowest = Duration::ZERO;
        while start.elapsed() < seconds(20, 60) {
            slowest = slowest.max(forks());
        }
        println!("twenty forks of the host: {alone:?} alone, {slowest:?} at most beside the crowd");
        // A rest lasts for six seconds, and those that wait for one another's locks rest one after the other.
        assert!(slowest < (10 * alone).max(Duration::from_secs(5)), "a rest held up the host: {slowest:?}");
        assert_eq!(scheduler_state(host), "enabled", "{}", scheduler.last_words());
        end_crowd(host, &crowd);
        stop_scheduler(host, &scheduler);
    });
}

#[test]
fn a_limit_below_what_a_tick_takes_never_brings_the_watchdog() {
    with_guests(&[hog("a", "limited")], |host, guests| {
        let scheduler = start_scheduler(host, "--micro-cpus 1 --micro-slice-us 3000 --stats 1");
        set_limit(host, "limited", "1000 1000000");
        let limited = |report: &Value| report["vms"][0]["cpu_limits"] == json!([0.001]);
        statistics(&scheduler, limited, "limit of 0.001 CPUs");
        let is_hardly_anything = |cpus: f64| cpus < 0.1;
        let cpus = figure(&scheduler, UNTIL_THE_WATCHDOG, |ran| ran.cpus("a"), is_hardly_anything);
        assert_eq!(scheduler_state(host), "enabled", "{}", scheduler.last_words());
        println!("limited to 0.001: {cpus:.4} CPUs");
        assert!(is_hardly_anything(cpus), "{cpus:.3} CPUs");
        // The kernel keeps the limit again from here on, and detaching a program waits until each vCPU has
        // run once.
        set_limit(host, "limited", "max 100000");
        stop_scheduler(host, &scheduler);
        assert!(!guests[0].has_ended(), "{}", guests[0].last_words());
    });
}
