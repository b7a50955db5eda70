//! `cpu.max` of the cgroups that a VM's vCPUs lie in, on real guests: the kernel itself keeps it only where
//! no sched_ext scheduler runs.

use crate::common::alone::{cpus_of_process, spinning};
use crate::common::intervals::{figure, over_time};
use crate::common::promises::{assert_share, guest, nice, share_from_now, vcpus};
use crate::common::{
    PATIENCE, assert_alive, count, is_long, on_host, replay, run, scheduler_state, seconds, start_scheduler,
    statistics, statistics_from, stop_scheduler, take_the_machine, with_guests,
};
use microslice_promises::{
    A_LIMIT_BELOW_A_TICK, A_LIMITED_CROWD, A_LIMITED_CROWD_THAT_FORKS, A_LIMITED_TASK,
    A_LIMITED_TASK_ON_THE_MICRO_PCPU, A_NICED_LIMITED_TASK, A_VM_LIMITED_TO_A_FIFTH,
    A_VM_LIMITED_TO_ONE_AND_A_HALF, EACH_VCPU_LIMITED, Limit, Promise, SHARES_OF_A_LIMITED_CGROUP,
    VMS_IN_ONE_LIMITED_CGROUP,
};
use microslice_testbed::{GuestSpec, Host, Process};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Fifty periods, or more.
fn measured() -> Duration {
    seconds(5, 20)
}

/// The kernel's watchdog looks every five seconds.
const UNTIL_THE_WATCHDOG_LOOKS: Duration = Duration::from_secs(6);

const FLAGS: &str = "--micro-cpus 0 --stats 1";

fn set_limit(host: &Host, cgroup: &str, limit: &str) {
    run(host, &format!("echo '{limit}' > /sys/fs/cgroup/{cgroup}/cpu.max"));
}

fn hog(row: &Promise, name: &str, cgroup: &str) -> GuestSpec {
    guest(row, name).cgroup(cgroup, 100)
}

fn limit_of(row: &Promise, name: &str) -> Limit {
    row.party(name).limit.expect("a limit")
}

/// What the party's limit allows.
fn is_allowed(row: &Promise, name: &str) -> impl Fn(f64) -> bool + Clone {
    row.testbed.is_kept(row.cpus(name))
}

/// The tasks of a cgroup get what the limit of `name` allows, by the kernel's own count.
fn assert_cgroup_gets(host: &Host, cgroup: &str, row: &Promise, name: &str) {
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
    let is_allowed = is_allowed(row, name);
    assert_allowed(over_time(measured(), cpus, |&cpus| is_allowed(cpus)), row, name);
}

/// The host task gets what is allowed.
fn assert_task_gets(host: &Host, pid: &str, row: &Promise) {
    assert_allowed(cpus_of_process(host, pid, measured(), is_allowed(row, "task")), row, "task");
}

fn assert_allowed(cpus: f64, row: &Promise, name: &str) {
    let limit = row.cpus(name);
    println!("{}: {cpus:.3} CPUs of {limit}", row.name);
    assert!(is_allowed(row, name)(cpus), "{}: {cpus:.3} CPUs, allowed are {limit}", row.name);
}

#[test]
fn a_vm_gets_what_its_cgroup_allows_and_all_again_when_that_is_taken_back() {
    let [much, little] = [&A_VM_LIMITED_TO_ONE_AND_A_HALF, &A_VM_LIMITED_TO_A_FIFTH];
    with_guests(&[hog(much, "a", "limited")], |host, guests| {
        set_limit(host, "limited", &limit_of(much, "a").text());
        let scheduler = start_scheduler(host, &format!("{FLAGS} --record /tmp/limits.rec"));
        let limits_are = |limits: Value| move |report: &Value| report["vms"][0]["cpu_limits"] == limits;
        statistics(&scheduler, limits_are(json!([much.cpus("a")])), "first limit");
        assert_cgroup_gets(host, "limited", much, "a");
        set_limit(host, "limited", &limit_of(little, "a").text());
        statistics(&scheduler, limits_are(json!([little.cpus("a")])), "second limit");
        assert_cgroup_gets(host, "limited", little, "a");
        assert_alive(&guests[0], 2);
        let limited = scheduler.lines(0).len();
        set_limit(host, "limited", "max 100000");
        statistics_from(&scheduler, limited, limits_are(json!([])), "no limit");
        let never_rests = |rested: f64| rested == 0.0;
        statistics_from(&scheduler, limited, |report| report["vms"][0]["rested_time_ns"] == 0, "no rest");
        let rested = figure(&scheduler, measured(), |ran| ran.rested("a"), never_rests);
        assert!(never_rests(rested), "its vCPUs rested in {rested:.3} of the time without a limit");
        // The daemon that records takes up to a CPU and a half of an emulated host.
        let is_free = |cpus: f64| cpus > 2.0;
        let free = figure(&scheduler, measured(), |ran| ran.cpus("a"), is_free);
        println!("without a limit: {free:.2} CPUs, {rested} rested");
        assert!(is_free(free), "{free:.2} CPUs without a limit");
        let words = scheduler.stderr();
        let limited = format!("a: limited to {:.2} CPUs (/sys/fs/cgroup/limited/cpu.max)", much.cpus("a"));
        for said in [limited.as_str(), "a: not limited any more"] {
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
    let row = &VMS_IN_ONE_LIMITED_CGROUP;
    let guests = ["a", "b"].map(|name| hog(row, name, &format!("tenant/{name}")));
    with_guests(&guests, |host, _| {
        set_limit(host, "tenant", &row.limit.expect("a limit").text());
        let scheduler = start_scheduler(host, FLAGS);
        let limited = |report: &Value| {
            report["vms"]
                .as_array()
                .into_iter()
                .flatten()
                .any(|vm| vm["cpu_limits"] == json!([row.cpus("a")]))
        };
        statistics(&scheduler, limited, "limit of both VMs");
        assert_cgroup_gets(host, "tenant", row, "a");
        let part = share_from_now(&scheduler, &SHARES_OF_A_LIMITED_CGROUP, "a", measured());
        assert_share(&SHARES_OF_A_LIMITED_CGROUP, "a", part);
        stop_scheduler(host, &scheduler);
    });
}

#[test]
#[ignore = "32 s; limits of a VM and of a cgroup above it go the same way: make test-long"]
fn each_vcpu_gets_what_its_own_cgroup_allows() {
    let row = &EACH_VCPU_LIMITED;
    with_guests(&[hog(row, "a", "split").workload("hog")], |host, _| {
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
            done"#,
        );
        let limit = limit_of(row, "a");
        (0..vcpus(row, "a")).for_each(|vcpu| set_limit(host, &format!("split/vcpu{vcpu}"), &limit.text()));
        let scheduler = start_scheduler(host, FLAGS);
        statistics(&scheduler, |report| report["vms"][0]["vcpu_limit"] == limit.cpus(), "limit of each vCPU");
        assert_cgroup_gets(host, "split", row, "a");
        stop_scheduler(host, &scheduler);
    });
}

#[test]
fn host_tasks_get_what_their_cgroup_allows_niced_or_not() {
    on_host(|host| {
        run(host, "cd /sys/fs/cgroup && echo +cpu > cgroup.subtree_control && mkdir -p service");
        set_limit(host, "service", &limit_of(&A_LIMITED_TASK, "task").text());
        let scheduler = start_scheduler(host, "--micro-cpus 1 --micro-slice-us 3000");
        for row in [&A_LIMITED_TASK, &A_NICED_LIMITED_TASK] {
            let (task, pid) = spinning(host, 0xf);
            let nice = nice(row, "task");
            run(host, &format!("renice -n {nice} {pid}; echo {pid} > /sys/fs/cgroup/service/cgroup.procs"));
            assert_task_gets(host, &pid, row);
            task.signal(libc::SIGKILL).expect("signal");
            task.wait(PATIENCE).expect("end");
        }
        // The last one of four is it.
        let row = &A_LIMITED_TASK_ON_THE_MICRO_PCPU;
        let (task, pid) = spinning(host, row.party("task").pcpu_mask());
        run(host, &format!("echo {pid} > /sys/fs/cgroup/service/cgroup.procs"));
        assert_task_gets(host, &pid, row);
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
#[ignore = "needs the machine to itself, which stops the other lane: make test-long"]
fn many_threads_that_share_a_limit_get_no_more_than_few_and_all_of_them_go_on() {
    let _machine = take_the_machine();
    // Nobody rests for longer than six seconds, so each may take no more than 0.6 s / threads for a turn. An
    // emulated host's timers are up to 14 ms late ("hrtimer: interrupt took ..."). Up to a thousand:
    // crates/policy's property tests.
    let row = &A_LIMITED_CROWD;
    let threads = row.party("crowd").threads() as usize * if is_long() { 2 } else { 1 };
    on_host(|host| {
        let crowd = frozen_crowd(host, threads, ":");
        let before = ran_ns(host, "crowd");
        thaw(host);
        // Each has begun: what its start takes in the kernel would be a debt.
        assert_nobody_stands_still(host, &before);
        set_limit(host, "crowd", &limit_of(row, "crowd").text());
        let scheduler = start_scheduler(host, "--micro-cpus 0");
        std::thread::sleep(Duration::from_secs(3));
        let before = ran_ns(host, "crowd");
        assert_cgroup_gets(host, "crowd", row, "crowd");
        assert_nobody_stands_still(host, &before);
        assert_eq!(scheduler_state(host), "enabled", "{}", scheduler.last_words());
        end_crowd(host, &crowd);
        stop_scheduler(host, &scheduler);
    });
}

#[test]
#[ignore = "needs the machine to itself, which stops the other lane: make test-long"]
fn tasks_that_fork_under_a_limit_never_rest_with_what_forks_of_the_host_wait_for() {
    let _machine = take_the_machine();
    let row = &A_LIMITED_CROWD_THAT_FORKS;
    on_host(|host| {
        let forks = || {
            let start = Instant::now();
            run(host, "for i in $(seq 20); do sh -c true; done");
            start.elapsed()
        };
        // Each of them forks and executes without end, and takes locks for that which every fork takes, too.
        let crowd = frozen_crowd(host, row.party("crowd").threads() as usize, "sh -c :");
        set_limit(host, "crowd", &limit_of(row, "crowd").text());
        let scheduler = start_scheduler(host, "--micro-cpus 0");
        let alone = forks();
        thaw(host);
        let start = Instant::now();
        let mut slowest = Duration::ZERO;
        while start.elapsed() < seconds(20, 60) {
            slowest = slowest.max(forks());
        }
        println!("twenty forks of the host: {alone:?} alone, {slowest:?} at most beside the crowd");
        let longest_wait = row.longest_wait.expect("a wait");
        assert!(slowest < (10 * alone).max(longest_wait), "a rest held up the host: {slowest:?}");
        assert_eq!(scheduler_state(host), "enabled", "{}", scheduler.last_words());
        end_crowd(host, &crowd);
        stop_scheduler(host, &scheduler);
    });
}

/// A tenth of a CPU, in periods so long that a rest can't be overlooked.
const LONG_RESTS: &str = "100000 1000000";
/// Half of a period is the shortest of those rests.
const SHORTER_THAN_A_REST: Duration = Duration::from_millis(400);

#[test]
fn a_vcpu_never_rests_with_its_vmms_memory_locked() {
    let _machine = take_the_machine();
    on_host(|host| {
        let vmm = host.start("exec vcpus 1 4 spin faults").expect("start");
        vmm.wait_for("ready", 0, PATIENCE).expect("vCPUs");
        run(
            host,
            r#"cd /sys/fs/cgroup && echo +cpu > cgroup.subtree_control && mkdir -p faults && cd faults &&
            for pid in $(pidof vcpus); do echo $pid > cgroup.procs; done && mkdir vcpus rest &&
            for g in vcpus rest; do echo threaded > $g/cgroup.type; done && echo +cpu > cgroup.subtree_control &&
            for pid in $(pidof vcpus); do for task in /proc/$pid/task/*; do
                case "$(cat $task/comm)" in vcpu) g=vcpus;; *) g=rest;; esac
                echo ${task##*/} > $g/cgroup.threads
            done; done"#,
        );
        set_limit(host, "faults/vcpus", LONG_RESTS);
        let scheduler = start_scheduler(host, FLAGS);
        statistics(&scheduler, |report| count(&report["vms"][0]["rested_time_ns"]) > 0, "a rest");
        let from = vmm.lines(0).len();
        std::thread::sleep(seconds(30, 60));
        let waited = |text: &str| text.strip_prefix("waited ")?.strip_suffix(" us")?.parse::<u64>().ok();
        let waits = vmm.lines(from).iter().filter_map(|line| waited(&line.text)).collect::<Vec<_>>();
        println!("waits for the memory's lock, us: {waits:?}");
        assert!(waits.len() > 5, "{waits:?}");
        let longest = Duration::from_micros(waits.into_iter().max().unwrap_or(0));
        assert!(longest < SHORTER_THAN_A_REST, "a rest held up its VMM: {longest:?}");
        let report = stop_scheduler(host, &scheduler);
        let rested_ns = count(&report["vms"][0]["rested_time_ns"]);
        assert!(rested_ns > 5_000_000_000, "they rested for {rested_ns} ns only: {report}");
        vmm.signal(libc::SIGKILL).expect("signal");
        vmm.wait(PATIENCE).expect("end");
    });
}

#[test]
fn a_limit_below_what_a_tick_takes_never_brings_the_watchdog() {
    let row = &A_LIMIT_BELOW_A_TICK;
    with_guests(&[hog(row, "a", "limited")], |host, guests| {
        let scheduler = start_scheduler(host, "--micro-cpus 1 --micro-slice-us 3000 --stats 1");
        set_limit(host, "limited", &limit_of(row, "a").text());
        let limited = |report: &Value| report["vms"][0]["cpu_limits"] == json!([row.cpus("a")]);
        statistics(&scheduler, limited, "limit below a tick");
        let is_hardly_anything = is_allowed(row, "a");
        let time = row.longest_wait.expect("a wait") + UNTIL_THE_WATCHDOG_LOOKS;
        let cpus = figure(&scheduler, time, |ran| ran.cpus("a"), &is_hardly_anything);
        assert_eq!(scheduler_state(host), "enabled", "{}", scheduler.last_words());
        println!("limited to {}: {cpus:.4} CPUs", row.cpus("a"));
        assert!(is_hardly_anything(cpus), "{cpus:.3} CPUs");
        // The kernel keeps the limit again from here on, and detaching a program waits until each vCPU has
        // run once.
        set_limit(host, "limited", "max 100000");
        stop_scheduler(host, &scheduler);
        assert!(!guests[0].has_ended(), "{}", guests[0].last_words());
    });
}
