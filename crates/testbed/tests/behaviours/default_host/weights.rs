//! `cpu.weight` of nested cgroups, on real guests.

use crate::common::intervals::{figure, near};
use crate::common::{count, on_host, run, seconds, start_scheduler, statistics, stop_scheduler};
use microslice_testbed::{GuestSpec, Process};
use serde_json::Value;

const TOLERANCE: f64 = 0.05;

/// What the VM called `name` gets of all that VMs get from now on.
fn part_of(scheduler: &Process, name: &str, due: f64) -> f64 {
    figure(scheduler, seconds(6, 30), |ran| ran.share(name), near(due, TOLERANCE))
}

#[test]
fn a_slice_of_two_vms_has_as_much_as_a_slice_of_one_and_weights_of_slices_change_while_running() {
    on_host(|host| {
        run(
            host,
            "cd /sys/fs/cgroup && echo +cpu > cgroup.subtree_control && mkdir -p one two && \
             for g in one two; do echo +cpu > $g/cgroup.subtree_control; done",
        );
        // By each one's own weight alone the first would have a third.
        let hog = |name: &str, cgroup: &str| GuestSpec::new(name).workload("hog").cgroup(cgroup, 100);
        let guests = host.start_guests(vec![hog("a", "one/a"), hog("b", "two/b"), hog("c", "two/c")]);
        let guests = guests.unwrap_or_else(|error| panic!("{error}"));
        let scheduler = start_scheduler(host, "--micro-cpus 0 --stats 1 --no-guest-memory");
        let weights_are = |expected: [u64; 3]| {
            move |report: &Value| {
                let vms = report["vms"].as_array().expect("vms");
                let of = |name: &str| vms.iter().find(|vm| vm["name"] == name).map(|vm| count(&vm["weight"]));
                ["a", "b", "c"].map(of) == expected.map(Some)
            }
        };
        statistics(&scheduler, weights_are([150, 75, 75]), "weights of equal slices");
        let half = part_of(&scheduler, "a", 0.5);
        run(host, "echo 300 > /sys/fs/cgroup/one/cpu.weight");
        statistics(&scheduler, weights_are([225, 38, 38]), "weights of slices of 3 to 1");
        let three_quarters = part_of(&scheduler, "a", 0.75);
        println!(
            "{half:.3} of the time beside an equal slice, {three_quarters:.3} beside a third of its weight"
        );
        guests.iter().for_each(|guest| assert!(!guest.has_ended(), "{}", guest.last_words()));
        stop_scheduler(host, &scheduler);
        assert!(near(0.5, TOLERANCE)(half), "{half:.3}, due was 1/2");
        assert!(near(0.75, TOLERANCE)(three_quarters), "{three_quarters:.3}, due was 3/4");
    });
}
