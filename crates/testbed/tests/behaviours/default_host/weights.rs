//! `cpu.weight` of nested cgroups, on real guests.

use crate::common::intervals::{figure, near, over_time};
use crate::common::{PATIENCE, count, on_host, run, seconds, start_scheduler, statistics, stop_scheduler};
use microslice_testbed::{GuestSpec, Host, Process};
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
                let of =
                    |name: &str| vms.iter().find(|vm| vm["name"] == name).map(|vm| count(&vm["vm_weight"]));
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

/// What the tasks of each cgroup have had until now, in us.
fn used_us(host: &Host, cgroups: [&str; 3]) -> [f64; 3] {
    cgroups.map(|cgroup| {
        let text = run(host, &format!("grep usage_usec /sys/fs/cgroup/{cgroup}/cpu.stat"));
        text.trim().rsplit(' ').next().and_then(|word| word.parse().ok()).expect("microseconds")
    })
}

#[test]
fn services_share_by_the_weights_of_their_cgroups_and_leave_vms_what_the_outermost_weights_give_these() {
    on_host(|host| {
        run(
            host,
            "cd /sys/fs/cgroup && echo +cpu > cgroup.subtree_control && mkdir -p machine services && \
             for g in machine services; do echo +cpu > $g/cgroup.subtree_control; done && \
             mkdir -p services/light services/heavy && echo 300 > services/heavy/cpu.weight",
        );
        let hog = GuestSpec::new("a").workload("hog").cgroup("machine/a", 100);
        let guests = host.start_guests(vec![hog]).unwrap_or_else(|error| panic!("{error}"));
        let busy = "for g in light heavy; do for i in 1 2 3 4; do sh -c 'while :; do :; done' & \
                    echo $! > /sys/fs/cgroup/services/$g/cgroup.procs; done; done; wait";
        let busy = host.start(busy).expect("start");
        let scheduler = start_scheduler(host, "--micro-cpus 0 --stats 1 --no-guest-memory");
        // Of the services' time that of the heavy one, and of all time that of the VM.
        let parts = |vms_due: f64| {
            let look = || {
                let before = used_us(host, ["machine", "services/light", "services/heavy"]);
                std::thread::sleep(seconds(6, 30));
                let after = used_us(host, ["machine", "services/light", "services/heavy"]);
                let [vm, light, heavy]: [f64; 3] = std::array::from_fn(|at| after[at] - before[at]);
                [heavy / (light + heavy), vm / (vm + light + heavy)]
            };
            let is_right = move |[heavy, vm]: &[f64; 2]| {
                near(0.75, 2.0 * TOLERANCE)(*heavy) && near(vms_due, 2.0 * TOLERANCE)(*vm)
            };
            let seen = over_time(seconds(2, 5), look, is_right);
            println!(
                "the heavy service has {:.3} of the services' time, the VM {:.3} of all",
                seen[0], seen[1]
            );
            assert!(is_right(&seen), "{seen:.3?}, due were 0.75 and {vms_due}");
        };
        parts(0.5);
        run(host, "echo 300 > /sys/fs/cgroup/machine/cpu.weight");
        parts(0.75);
        run(host, "kill -9 $(cat /sys/fs/cgroup/services/*/cgroup.procs)");
        busy.wait(PATIENCE).expect("end");
        guests.iter().for_each(|guest| assert!(!guest.has_ended(), "{}", guest.last_words()));
        stop_scheduler(host, &scheduler);
    });
}
