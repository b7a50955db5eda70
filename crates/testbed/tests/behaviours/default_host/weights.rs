//! `cpu.weight` of nested cgroups, on real guests.

use crate::common::intervals::over_time;
use crate::common::promises::{assert_share, guest, share_from_now};
use crate::common::{PATIENCE, count, on_host, run, seconds, start_scheduler, statistics, stop_scheduler};
use microslice_promises::{
    A_SLICE_OF_THRICE_THE_WEIGHT, A_SLICE_OF_TWO_VMS, Promise, SERVICES_BESIDE_A_HEAVY_VM,
    SERVICES_BESIDE_A_VM,
};
use microslice_testbed::Host;
use serde_json::Value;

#[test]
#[ignore = "66 s; unit tests hold nine layouts of cgroups: make test-long"]
fn a_slice_of_two_vms_has_as_much_as_a_slice_of_one_and_weights_of_slices_change_while_running() {
    on_host(|host| {
        run(
            host,
            "cd /sys/fs/cgroup && echo +cpu > cgroup.subtree_control && mkdir -p one two && \
             for g in one two; do echo +cpu > $g/cgroup.subtree_control; done",
        );
        // By each one's own weight alone the first would have a third.
        let hog = |name: &str, cgroup: &str| guest(&A_SLICE_OF_TWO_VMS, name).cgroup(cgroup, 100);
        let guests = host.start_guests(vec![hog("a", "one/a"), hog("b", "two/b"), hog("c", "two/c")]);
        let guests = guests.unwrap_or_else(|error| panic!("{error}"));
        let scheduler = start_scheduler(host, "--micro-cpus 0 --stats 1 --no-guest-memory");
        // What the slices' weights amount to.
        let weights_are_of = |row: &Promise| {
            let expected: Vec<_> = row.weights_of_100().into_iter().map(Some).collect();
            move |report: &Value| {
                let vms = report["vms"].as_array().expect("vms");
                let of =
                    |name: &str| vms.iter().find(|vm| vm["name"] == name).map(|vm| count(&vm["vm_weight"]));
                ["a", "b", "c"].map(of)[..] == expected
            }
        };
        let share_under = |row: &Promise, what: &str| {
            statistics(&scheduler, weights_are_of(row), what);
            share_from_now(&scheduler, row, "a", seconds(6, 30))
        };
        let half = share_under(&A_SLICE_OF_TWO_VMS, "weights of equal slices");
        run(host, "echo 300 > /sys/fs/cgroup/one/cpu.weight");
        let three_quarters = share_under(&A_SLICE_OF_THRICE_THE_WEIGHT, "weights of slices of 3 to 1");
        guests.iter().for_each(|guest| assert!(!guest.has_ended(), "{}", guest.last_words()));
        stop_scheduler(host, &scheduler);
        assert_share(&A_SLICE_OF_TWO_VMS, "a", half);
        assert_share(&A_SLICE_OF_THRICE_THE_WEIGHT, "a", three_quarters);
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
        let hog = guest(&SERVICES_BESIDE_A_VM, "a").cgroup("machine/a", 100);
        let guests = host.start_guests(vec![hog]).unwrap_or_else(|error| panic!("{error}"));
        let busy = "for g in light heavy; do for i in 1 2 3 4; do sh -c 'while :; do :; done' & \
                    echo $! > /sys/fs/cgroup/services/$g/cgroup.procs; done; done; wait";
        let busy = host.start(busy).expect("start");
        let scheduler = start_scheduler(host, "--micro-cpus 0 --stats 1 --no-guest-memory");
        // Of the services' time that of the heavy one, and of all time that of the VM.
        let assert_parts = |row: &Promise| {
            let look = || {
                let before = used_us(host, ["machine", "services/light", "services/heavy"]);
                std::thread::sleep(seconds(6, 30));
                let after = used_us(host, ["machine", "services/light", "services/heavy"]);
                let [vm, light, heavy]: [f64; 3] = std::array::from_fn(|at| after[at] - before[at]);
                [heavy / (light + heavy), vm / (vm + light + heavy)]
            };
            let due = [row.share_among("heavy", &["light", "heavy"]), row.share("a")];
            let [is_heavys, is_vms] = due.map(|due| row.testbed.is_kept(due));
            let is_right = move |[heavy, vm]: &[f64; 2]| is_heavys(*heavy) && is_vms(*vm);
            let seen = over_time(seconds(2, 5), look, &is_right);
            println!(
                "the heavy service has {:.3} of the services' time, the VM {:.3} of all",
                seen[0], seen[1]
            );
            assert!(is_right(&seen), "{seen:.3?}, due were {due:?}");
        };
        assert_parts(&SERVICES_BESIDE_A_VM);
        run(host, "echo 300 > /sys/fs/cgroup/machine/cpu.weight");
        assert_parts(&SERVICES_BESIDE_A_HEAVY_VM);
        run(host, "kill -9 $(cat /sys/fs/cgroup/services/*/cgroup.procs)");
        busy.wait(PATIENCE).expect("end");
        guests.iter().for_each(|guest| assert!(!guest.has_ended(), "{}", guest.last_words()));
        stop_scheduler(host, &scheduler);
    });
}
