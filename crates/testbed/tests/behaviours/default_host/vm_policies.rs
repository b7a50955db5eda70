//! What libvirt's metadata say of a VM, while it runs. The file is put there as libvirt writes it
//! (`crates/host/tests/system/libvirt.rs` has libvirt write it).

use crate::common::{
    FLAGS, PATIENCE, accelerations_by, count, reports, run, start_scheduler_that_knows, statistics,
    statistics_from, stop_scheduler, wait_until_it_says, with_guests,
};
use microslice_testbed::{GuestSpec, Host, Process, Pv};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Of one second each. Without the change 654 accelerations were seen in them.
const REPORTS: usize = 10;

const UUID: &str = "4dea22b3-1d52-d8f3-2516-782e98ab3fa0";
const NAMESPACE: &str = "https://github.com/microslice/microslice/libvirt/1";

/// The state of domain `name`, which is that QEMU's, with these attributes in its metadata: in place of the
/// file before.
fn say(host: &Host, name: &str, attributes: &str) {
    let file = format!("/run/libvirt/qemu/{name}.xml");
    let pid = format!(
        "for pid in $(pidof qemu-system-x86_64); do grep -q guest={name}, /proc/$pid/cmdline && echo $pid; done; true"
    );
    let pid = run(host, &pid);
    let text = format!(
        "<domstatus state='running' reason='booted' pid='{}'><domain type='kvm' id='1'><name>{name}</name>\
         <uuid>{UUID}</uuid><metadata><ms:vm xmlns:ms='{NAMESPACE}' {attributes}/></metadata></domain></domstatus>\n",
        pid.trim()
    );
    run(host, "mkdir -p /run/libvirt/qemu");
    host.write_file(&format!("{file}.new"), text.as_bytes()).expect("written");
    run(host, &format!("chmod 600 {file}.new && mv {file}.new {file}"));
}

fn vm<'r>(report: &'r Value, name: &str) -> Option<&'r Value> {
    report["vms"].as_array()?.iter().find(|vm| vm["name"] == name)
}

fn accelerations(report: &Value, name: &str) -> u64 {
    vm(report, name).map_or(0, |vm| count(&vm["accelerations"]["total"]))
}

/// Accelerations of VM `a` in so many reports from line `from` on.
fn accelerated_in(scheduler: &Process, from: usize, count: usize) -> u64 {
    let deadline = Instant::now() + PATIENCE;
    while scheduler.lines(from).len() < count {
        assert!(!scheduler.has_ended() && Instant::now() < deadline, "it said: {}", scheduler.last_words());
        std::thread::sleep(Duration::from_millis(100));
    }
    reports(scheduler, from).iter().take(count).map(|report| accelerations(report, "a")).sum()
}

#[test]
#[ignore = "67 s; tests of the daemon hold what metadata say: make test-long"]
fn a_domains_metadata_give_it_weight_and_acceleration_and_a_change_of_them_holds_while_it_runs() {
    let guests =
        [GuestSpec::new("a").workload("worker,mix").network(1).pv(Pv::Off), GuestSpec::new("b").bare()];
    with_guests(&guests, |host, _| {
        let _echo = host.start_echo().expect("the other end of the ping-pong");
        say(host, "a", "weight='300'");
        let scheduler = start_scheduler_that_knows(host, 1, FLAGS);
        let weighs = |expected: u64| {
            move |report: &Value| vm(report, "a").is_some_and(|vm| count(&vm["vm_weight"]) == expected)
        };
        statistics(&scheduler, weighs(150), "three times the weight of the other one");
        statistics(
            &scheduler,
            |report| vm(report, "a").is_some_and(|vm| vm["uuid"] == UUID),
            "libvirt's UUID",
        );
        statistics(&scheduler, accelerations_by(&["call_function_ipi"]), "acceleration");

        let busy = accelerated_in(&scheduler, scheduler.lines(0).len(), REPORTS);
        let before = scheduler.lines(0).len();
        say(host, "a", "accelerate='false'");
        wait_until_it_says(&scheduler, "a: its libvirt metadata say: accelerate false");
        statistics_from(&scheduler, before, weighs(100), "equal weights");
        // What was under way may end in the report that has begun.
        let quiet = accelerated_in(&scheduler, scheduler.lines(0).len() + 2, REPORTS);

        let before = scheduler.lines(0).len();
        say(host, "a", "weight='many'");
        wait_until_it_says(&scheduler, "weight \"many\": must be 1 to 10000: none of its metadata holds");
        let is_accelerated = |report: &Value| accelerations(report, "a") > 0;
        statistics_from(&scheduler, before, is_accelerated, "acceleration by the defaults");
        stop_scheduler(host, &scheduler);
        println!("accelerations in {REPORTS} s: {busy}, and {quiet} once it wasn't to be accelerated");
        assert_eq!(quiet, 0, "beside {busy} before");
        run(host, "rm -r /run/libvirt");
    });
}
