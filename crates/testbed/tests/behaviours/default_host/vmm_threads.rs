//! What a VM's VMM does beside its vCPUs is its VM's; and VMs that find no place share like those that have
//! one.

use crate::common::intervals::over_time;
use crate::common::promises::{assert_share, is_share, vcpus};
use crate::common::{
    PATIENCE, count, on_host, reports, run, seconds, start_scheduler, statistics, stop_scheduler,
    wait_until_it_says,
};
use microslice_promises::{A_VM_WITHOUT_A_PLACE, A_VMM_THAT_COMPUTES, Kind};
use microslice_testbed::{Host, Process};
use serde_json::Value;
use std::collections::BTreeMap;

/// A process of the smallest VMM; the host has four pCPUs.
fn vmm(host: &Host, vms: u32, vcpus: u32, does: &str) -> Process {
    let vmm = host.start(&format!("exec vcpus {vms} {vcpus} {does}")).expect("start");
    vmm.wait_for("ready", 0, PATIENCE).unwrap_or_else(|error| panic!("{error}: {}", vmm.last_words()));
    vmm
}

fn end(vmm: &Process) {
    vmm.signal(libc::SIGKILL).expect("signal");
    vmm.wait(PATIENCE).expect("end");
}

fn has_vms(expected: usize) -> impl Fn(&Value) -> bool {
    move |report| report["vms"].as_array().is_some_and(|vms| vms.len() == expected)
}

/// What vCPUs and other threads of each VM ran in the intervals that were reported from line `from` on, by
/// its process; and other host tasks.
fn ran_since(scheduler: &Process, from: usize) -> (BTreeMap<u64, [u64; 2]>, u64) {
    let (mut ran, mut others) = (BTreeMap::new(), 0u64);
    for report in reports(scheduler, from) {
        for vm in report["vms"].as_array().expect("vms") {
            let of = ran.entry(count(&vm["pid"])).or_insert([0, 0]);
            of[0] += count(&vm["cpu_time_ns"]);
            of[1] += count(&vm["vmm_time_ns"]);
            others = others.wrapping_sub(count(&vm["vmm_time_ns"]));
        }
        others = others.wrapping_add(count(&report["host"]["others_ran_ns"]));
    }
    (ran, others)
}

#[test]
fn a_vm_whose_vmm_computes_in_threads_of_its_own_gets_no_more_than_its_equal() {
    let row = &A_VMM_THAT_COMPUTES;
    on_host(|host| {
        let scheduler = start_scheduler(host, "--micro-cpus 0 --stats 1 --no-guest-memory");
        let vmms = ["plain", "working"].map(|name| {
            let kind = row.party(name).kind;
            let Kind::Vm { vcpus, vmm_threads } = kind else { panic!("{name} is no VM") };
            let busy = if vmm_threads > 0 { format!("busy={vmm_threads}") } else { String::new() };
            vmm(host, 1, vcpus, &format!("spin {busy}"))
        });
        statistics(&scheduler, has_vms(2), "both VMs");
        let from = scheduler.lines(0).len();
        std::thread::sleep(seconds(12, 30));
        let (ran, others) = ran_since(&scheduler, from);
        vmms.iter().for_each(end);
        stop_scheduler(host, &scheduler);
        let [one, other] = ran.into_values().collect::<Vec<_>>().try_into().expect("two VMs");
        let [working, plain] = if one[1] > other[1] { [one, other] } else { [other, one] };
        let sum = |of: [u64; 2]| (of[0] + of[1]) as f64;
        let part = sum(working) / (sum(working) + sum(plain));
        let threads = working[1] as f64 / sum(working);
        println!("{threads:.2} of the VM's time in its VMM; the host {others} ns");
        assert!(threads > 0.1, "its threads were starved: {threads:.2} of its time");
        assert_share(row, "working", part);
    });
}

/// By how many microseconds a napping thread was woken too late, in the best of its lines from `from` on.
fn least_late(naps: &Process, from: usize) -> u64 {
    let late = |text: &str| text.strip_prefix("late ")?.strip_suffix(" us")?.parse::<u64>().ok();
    naps.lines(from).iter().filter_map(|line| late(&line.text)).min().expect("a line")
}

/// Both are as late as the emulated host is slow, so one is measured by the other.
#[test]
fn a_thread_of_a_vmm_that_is_woken_does_not_wait_for_a_turn() {
    on_host(|host| {
        let scheduler = start_scheduler(host, "--micro-cpus 0 --stats 1 --no-guest-memory --slice-us 300000");
        let vmms = [vmm(host, 1, 4, "spin naps"), vmm(host, 1, 8, "spin")];
        statistics(&scheduler, has_vms(2), "both VMs");
        // A niced host task waits among the vCPUs.
        let niced = host.start("renice -n 1 $$ > /dev/null; exec vcpus naps").expect("start");
        niced
            .wait_for("late ", 0, PATIENCE)
            .unwrap_or_else(|error| panic!("{error}: {}", niced.last_words()));
        let from = [&vmms[0], &niced].map(|naps| naps.lines(0).len());
        std::thread::sleep(seconds(24, 60));
        let [of_vmm, of_niced] =
            [(&vmms[0], from[0]), (&niced, from[1])].map(|(naps, from)| least_late(naps, from));
        vmms.iter().chain([&niced]).for_each(end);
        stop_scheduler(host, &scheduler);
        println!("woken too late by {of_vmm} us, who waits for a turn by {of_niced} us");
        assert!(of_vmm * 2 < of_niced, "{of_vmm} us too late, who waits for a turn {of_niced} us");
    });
}

/// What each process of the smallest VMM ran: its user and system time (`/proc/PID/stat`).
fn ticks(host: &Host) -> BTreeMap<u64, u64> {
    let stats = run(host, "cat $(grep -l '(vcpus)' /proc/[0-9]*/stat)");
    let of = |line: &str| {
        let fields: Vec<u64> = line.split(' ').map(|field| field.parse().unwrap_or(0)).collect();
        (fields[0], fields[13] + fields[14])
    };
    stats.lines().map(of).collect()
}

#[test]
fn a_vm_without_a_place_has_what_others_have_and_a_place_as_soon_as_one_is_free() {
    let row = &A_VM_WITHOUT_A_PLACE;
    on_host(|host| {
        let scheduler = start_scheduler(host, "--micro-cpus 0 --stats 1 --no-guest-memory --vm-places 2");
        let vmms = vmm(host, row.parties.len() as u32, vcpus(row, "without"), "spin");
        statistics(&scheduler, has_vms(2), "two VMs with places");
        let (before, from) = (ticks(host), scheduler.lines(0).len());
        let look = || {
            let (ran, _) = ran_since(&scheduler, from);
            let during = ticks(host).into_iter().map(|(pid, now)| (pid, now - before[&pid]));
            let (with, without): (BTreeMap<_, _>, BTreeMap<_, _>) =
                during.partition(|(pid, _)| ran.contains_key(pid));
            let [with, without] = [with, without].map(|ticks| ticks.values().sum::<u64>() as f64);
            (ran, without / (with + without))
        };
        let (ran, part) = over_time(seconds(12, 30), look, |(_, part)| is_share(row, "without")(*part));
        assert_share(row, "without", part);
        let leaves = *ran.keys().next().expect("a VM");
        run(host, &format!("kill -9 {leaves}"));
        let others_place = |report: &Value| {
            let vms = report["vms"].as_array().expect("vms");
            vms.len() == 2
                && vms.iter().all(|vm| !ran.contains_key(&count(&vm["pid"])) || vm["pid"] != leaves)
                && vms.iter().any(|vm| !ran.contains_key(&count(&vm["pid"])))
        };
        statistics(&scheduler, others_place, "place for who had none");
        end(&vmms);
        let said = scheduler.stderr();
        assert_eq!(said.matches("has no place").count(), 1, "{said}");
        stop_scheduler(host, &scheduler);
    });
}

#[test]
fn one_owner_cannot_take_all_places() {
    on_host(|host| {
        let scheduler = start_scheduler(host, "--micro-cpus 0 --stats 1 --no-guest-memory --vm-places 4");
        let many = vmm(host, 5, 1, "");
        statistics(&scheduler, has_vms(3), "three of four places taken");
        wait_until_it_says(&scheduler, "its owner has as many as one may have");
        // Root's VMs are of the owner that their cgroup is.
        run(host, "mkdir -p /sys/fs/cgroup/another");
        let another =
            host.start("echo $$ > /sys/fs/cgroup/another/cgroup.procs; exec vcpus 1 1").expect("start");
        statistics(&scheduler, has_vms(4), "a place for another owner's");
        [many, another].iter().for_each(end);
        stop_scheduler(host, &scheduler);
    });
}
