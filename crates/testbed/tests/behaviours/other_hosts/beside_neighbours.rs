//! Neighbours of boosts keep what the operator gave them: priorities, limits and weights of cgroups.

use super::beside::{BESIDE, DEBIAN_12, is_boosted, on, real_time_guest_threads, start, stop};
use crate::common::{is_long, print, run, seconds, statistics_from};
use microslice_testbed::Host;

/// Boosts as on hardware: a VM has 1 % of the host by them.
const DEFAULT_BUDGET: &str = "exec microslice run --scheduler beside --json --micro-slice-us 3000 --boost-percent 1 --max-wait none --stats 1";
/// Of the four pCPUs, that a VM may have by boosts beyond its limit: 1 %, and a second's worth at once.
const BOOSTED_CPUS: f64 = 0.04;
/// What two short measurements of the same may differ by on an emulated host, of the whole.
const NOISE: f64 = 0.05;

/// A vCPU's thread of the first guest that QEMU names so.
fn thread_of_a_vcpu(host: &Host) -> String {
    let command = "for guest in $(pidof qemu-system-x86_64); do grep -l 'CPU 0/KVM' /proc/$guest/task/*/comm; done | \
                   head -n 1 | cut -d/ -f5";
    run(host, command).trim().to_owned()
}

/// Its real-time priority and its policy, fields 40 and 41.
fn priority_and_policy(host: &Host, thread: &str) -> String {
    run(host, &format!("sed 's/.*) //' /proc/{thread}/stat | cut -d' ' -f38,39")).trim().to_owned()
}

#[test]
#[ignore = "91 s; a policy test holds it: make test-long"]
fn on_debian_12_a_vcpu_that_the_operator_made_real_time_keeps_its_priority_while_others_are_boosted() {
    on(DEBIAN_12, |host, _| {
        let _echo = host.start_echo().expect("the other end of the ping-pong");
        let thread = thread_of_a_vcpu(host);
        let before = priority_and_policy(host, &thread);
        assert_eq!(before, "0 0", "ordinary");
        let beside = start(host, BESIDE);
        run(host, &format!("real-time 5 {thread}"));
        let made = beside.lines(0).len();
        statistics_from(&beside, made, is_boosted, "boost");
        std::thread::sleep(seconds(3, 20));
        let meanwhile = priority_and_policy(host, &thread);
        let report = stop(&beside);
        let at_the_end = priority_and_policy(host, &thread);
        let real_time = real_time_guest_threads(host);
        run(host, &format!("real-time 0 {thread}"));
        assert_eq!((meanwhile.as_str(), at_the_end.as_str()), ("5 1", "5 1"), "{report}");
        assert_eq!(real_time, 1, "and nobody else");
        assert_eq!(report["helper"]["boosts"], report["helper"]["returns"], "{report}");
    });
}

/// How long the cgroups' tasks have run, and the time, in seconds.
fn usage(host: &Host) -> [f64; 3] {
    let files = "/sys/fs/cgroup/boosted-a/cpu.stat /sys/fs/cgroup/boosted-b/cpu.stat";
    let text = run(host, &format!("grep -h usage_usec {files}; cat /proc/uptime"));
    let numbers: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    [numbers[0] / 1e6, numbers[1] / 1e6, numbers[2]]
}

/// How many CPUs each of both guests has.
fn cpus(host: &Host) -> [f64; 2] {
    let before = usage(host);
    std::thread::sleep(seconds(5, 10));
    let after = usage(host);
    [0, 1].map(|at| (after[at] - before[at]) / (after[2] - before[2]))
}

fn median(mut looks: Vec<f64>) -> f64 {
    looks.sort_by(f64::total_cmp);
    looks[looks.len() / 2]
}

#[test]
#[ignore = "52 s; the lab shows both in real time where KVM can be opened: make test-long"]
fn on_debian_12_limits_and_weights_of_cgroups_hold_as_without_boosts() {
    on(DEBIAN_12, |host, _| {
        let _echo = host.start_echo().expect("the other end of the ping-pong");
        run(
            host,
            "cd /sys/fs/cgroup && echo +cpu > cgroup.subtree_control && mkdir -p boosted-a boosted-b
             for guest in $(pidof qemu-system-x86_64); do
                 name=$(tr '\\0' '\\n' < /proc/$guest/cmdline | sed -n 's/^guest=\\([ab]\\),.*/\\1/p')
                 echo $guest > boosted-$name/cgroup.procs
             done
             echo 300 > boosted-b/cpu.weight",
        );
        let limit = |limit: &str| run(host, &format!("echo '{limit}' > /sys/fs/cgroup/boosted-a/cpu.max"));
        let share = |[a, b]: [f64; 2]| a / (a + b);
        limit("50000 100000");
        let [limited, _] = cpus(host);
        // By turns: the machine's own load comes and goes.
        let (mut weighed, mut weighed_beside) = (Vec::new(), Vec::new());
        let beside = loop {
            limit("max 100000");
            weighed.push(share(cpus(host)));
            let beside = start(host, DEFAULT_BUDGET);
            statistics_from(&beside, 0, is_boosted, "boost");
            weighed_beside.push(share(cpus(host)));
            if weighed.len() == if is_long() { 7 } else { 1 } {
                break beside;
            }
            stop(&beside);
        };
        limit("50000 100000");
        let [limited_beside, _] = cpus(host);
        let report = stop(&beside);
        run(
            host,
            "cd /sys/fs/cgroup && for group in boosted-a boosted-b; do
                 for guest in $(cat $group/cgroup.procs); do echo $guest > cgroup.procs; done; rmdir $group
             done",
        );
        print(&format!("shares of {weighed:.3?}, with boosts {weighed_beside:.3?}"));
        let [weighed, weighed_beside] = [median(weighed), median(weighed_beside)];
        print(&format!(
            "a share of {weighed:.3}, with boosts {weighed_beside:.3}; limited to 0.5: {limited:.3} and {limited_beside:.3} CPUs"
        ));
        let a_boosted_cpus = NOISE * 0.5 + 2.0 * BOOSTED_CPUS;
        assert!(limited_beside <= limited.max(0.5) + a_boosted_cpus, "{limited_beside:.3} CPUs: {report}");
        assert!((weighed_beside - weighed).abs() <= NOISE + BOOSTED_CPUS, "{weighed_beside:.3}: {report}");
    });
}
