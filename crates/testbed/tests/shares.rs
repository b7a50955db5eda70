//! The normal pool's proportional share among VMs, on real guests.

mod common;

use common::alone::spinning;
use common::{PATIENCE, count, on_host, scheduler_state, start_scheduler, stop_scheduler};
use microslice_testbed::{Guest, GuestSpec, Host, Process, Pv};
use serde_json::Value;
use std::io::Write;
use std::time::Duration;

/// Issue and specification: within 5 % of what is due.
const TOLERANCE: f64 = 0.05;
/// Some hundred slices per pCPU: long enough for shares, which hold over seconds.
const MEASURED: Duration = Duration::from_secs(30);
const TRIES: u32 = 3;

fn hogs(host: &Host, weights: [u32; 2]) -> Vec<Guest> {
    let specs = ["a", "b"].into_iter().zip(weights).map(|(name, weight)| {
        GuestSpec::new(name).workload("hog").cgroup(&format!("shares-{name}-{weight}"), weight)
    });
    host.start_guests(specs.collect()).unwrap_or_else(|error| panic!("{error}"))
}

/// Two hogs of four vCPUs on four pCPUs for a while; what the first got of what both got.
fn first_hogs_part(host: &Host, weights: [u32; 2]) -> f64 {
    for tries in 1..=TRIES {
        let guests = hogs(host, weights);
        let scheduler = start_scheduler(host, "--micro-cpus 0");
        std::thread::sleep(MEASURED);
        let report = stop_scheduler(host, &scheduler);
        // Emulated SVM stops a guest now and then (docs/testbed.md): what is left then isn't two hogs.
        match guests.iter().find(|guest| guest.has_ended() || guest.is_silent()) {
            Some(guest) => {
                let words = guest.last_words();
                let name = guest.name();
                writeln!(std::io::stderr(), "guest {name} stopped, try {tries} of {TRIES}: {words}")
                    .expect("stderr");
            }
            None => return part_of_first(&report),
        }
    }
    panic!("a guest stopped in each of {TRIES} tries");
}

fn part_of_first(report: &Value) -> f64 {
    let share = |name: &str| {
        let vms = report["vms"].as_array().expect("vms");
        let vm = vms.iter().find(|vm| vm["name"] == name).unwrap_or_else(|| panic!("no VM {name}: {report}"));
        vm["share_received"].as_f64().expect("a share")
    };
    share("a") / (share("a") + share("b"))
}

#[test]
fn hogs_of_equal_weight_get_equal_shares() {
    on_host(|host| {
        let part = first_hogs_part(host, [100, 100]);
        assert!((part - 0.5).abs() <= 0.5 * TOLERANCE, "{part} of the pCPUs' time, due was 1/2");
    });
}

#[test]
fn a_hog_of_twice_the_weight_gets_twice_the_share() {
    on_host(|host| {
        let part = first_hogs_part(host, [200, 100]);
        assert!((part - 2.0 / 3.0).abs() <= 2.0 / 3.0 * TOLERANCE, "{part} of the pCPUs' time, due was 2/3");
    });
}

/// Where one pCPU is more contended than the others nobody there keeps up with the pool's clock. By it, who sleeps came back
/// behind who never does: it had 0.01 of this pCPU.
#[test]
fn who_sleeps_briefly_has_half_of_the_pcpu_that_it_is_pinned_to_with_a_hog() {
    on_host(|host| {
        let one = |name: &str, load: &str| GuestSpec::new(name).workload(load).vcpus(1).pinned(0x1);
        let others = GuestSpec::new("others").workload("hog").vcpus(6).pinned(0xe);
        let guests = host.start_guests(vec![one("a", "dozer"), one("b", "hog"), others]);
        let guests = guests.unwrap_or_else(|error| panic!("{error}"));
        let scheduler = start_scheduler(host, "--micro-cpus 0");
        std::thread::sleep(MEASURED);
        let report = stop_scheduler(host, &scheduler);
        guests.iter().for_each(|guest| assert!(!guest.has_ended(), "{}", guest.last_words()));
        let part = part_of_first(&report);
        println!("{part:.2} of the pCPU for who sleeps");
        assert!((0.4..0.6).contains(&part), "{part}: {report}");
    });
}

/// A light guest of many shootdowns asks for micro slices all the time. (Emulated, it asks too seldom to gain much: it had 0.129 of the
/// host without the rule, 0.107 with it. What the rule is worth: crates/sim/tests/shares.rs.)
#[test]
fn a_vm_that_has_had_more_than_its_share_is_refused_micro_slices() {
    on_host(|host| {
        let guests = host.start_guests(vec![
            GuestSpec::new("a").workload("storm:7").vcpus(8).pv(Pv::Off),
            GuestSpec::new("b").workload("hog"),
        ]);
        let guests = guests.unwrap_or_else(|error| panic!("{error}"));
        let weights = "--weight a=100 --weight b=900";
        let scheduler = start_scheduler(
            host,
            &format!("--micro-cpus 2 --micro-cpus-limit 2 --micro-slice-us 3000 --slice-us 30000 {weights}"),
        );
        std::thread::sleep(MEASURED * 2);
        let report = stop_scheduler(host, &scheduler);
        guests.iter().for_each(|guest| assert!(!guest.has_ended(), "{}", guest.last_words()));
        let part = part_of_first(&report);
        let refused = count(&report["failed_pulls"]["vm_ahead"]);
        println!("{part:.3} of the pCPUs for who asks, {refused} requests refused");
        assert!(refused > 0 && part < 0.2, "{part}, due was 1/10: {report}");
    });
}

#[test]
fn the_lightest_vm_beside_the_heaviest_waits_but_never_so_long_that_the_kernel_ends_the_scheduler() {
    on_host(|host| {
        // By flags: cgroups of such weights would starve everything else of the host, too, before and after our scheduler.
        let guests = hogs(host, [100, 100]);
        let weights = "--weight a=10000 --weight b=1";
        let scheduler = start_scheduler(host, &format!("--micro-cpus 0 --slice-us 100000 {weights}"));
        std::thread::sleep(MEASURED);
        guests
            .iter()
            .for_each(|guest| assert!(!guest.has_ended(), "{}: {}", guest.name(), guest.last_words()));
        assert_eq!(scheduler_state(host), "enabled", "{}", scheduler.last_words());
        let report = stop_scheduler(host, &scheduler);
        assert!(report["host"]["starving_served"].as_u64() > Some(0), "{}", report["host"]);
        assert!(part_of_first(&report) > 0.8, "{report}");
    });
}

/// What a hog of four vCPUs gets of four pCPUs' time, beside as many host tasks of this nice value.
fn hogs_part_beside_host_tasks(host: &Host, nice: u32) -> f64 {
    let guest =
        host.start_guest(GuestSpec::new("a").workload("hog")).unwrap_or_else(|error| panic!("{error}"));
    let niced = |(task, pid): (Process, String)| {
        host.must_run(&format!("renice -n {nice} {pid}"), PATIENCE).unwrap_or_else(|error| panic!("{error}"));
        task
    };
    let tasks: Vec<Process> = (0..4).map(|_| niced(spinning(host, 0xf))).collect();
    let scheduler = start_scheduler(host, "--micro-cpus 0");
    std::thread::sleep(MEASURED);
    let report = stop_scheduler(host, &scheduler);
    tasks.iter().for_each(|task| task.signal(libc::SIGKILL).expect("signal"));
    assert!(!guest.has_ended(), "{}", guest.last_words());
    guest.stop().expect("stop");
    let [vms, others] = [&report["ran_ns"], &report["host"]["others_ran_ns"]].map(count);
    vms as f64 / (vms + others) as f64
}

#[test]
fn niced_host_tasks_leave_nearly_all_of_the_pcpus_to_the_vms_and_others_about_half() {
    on_host(|host| {
        let beside_niced = hogs_part_beside_host_tasks(host, 19);
        let beside_others = hogs_part_beside_host_tasks(host, 0);
        println!("{beside_niced:.2} beside niced tasks, {beside_others:.2} beside others");
        // What the host itself does, some 8 %, counts as host tasks' time, too. (0.60 when niced tasks went first, too.)
        assert!(beside_niced > 0.72, "{beside_niced:.2} beside niced tasks");
        assert!((0.4..0.7).contains(&beside_others), "{beside_others:.2} beside others");
    });
}

/// What each VM ran for in the intervals that the scheduler reports during [`MEASURED`].
fn ran_meanwhile(scheduler: &Process, names: [&str; 2]) -> [u64; 2] {
    let from = scheduler.lines(0).len();
    std::thread::sleep(MEASURED);
    let lines = scheduler.lines(from);
    let reports: Vec<Value> = lines.iter().filter_map(|line| serde_json::from_str(&line.text).ok()).collect();
    let vms = || reports.iter().flat_map(|report| report["vms"].as_array().expect("vms"));
    names.map(|name| vms().filter(|vm| vm["name"] == name).map(|vm| count(&vm["ran_ns"])).sum())
}

#[test]
fn what_ran_while_pcpus_were_free_is_neither_owed_nor_saved_up() {
    on_host(|host| {
        // Three vCPUs and a niced task have a pCPU each, so that the task's clock, a hundred times as fast, runs away.
        let hog = |name: &str| GuestSpec::new(name).workload("hog");
        let early = host.start_guest(hog("early").vcpus(3)).unwrap_or_else(|error| panic!("{error}"));
        let scheduler = start_scheduler(host, "--micro-cpus 0 --stats 1 --no-guest-memory");
        let (task, pid) = spinning(host, 0xf);
        host.must_run(&format!("renice -n 19 {pid}"), PATIENCE).unwrap_or_else(|error| panic!("{error}"));
        std::thread::sleep(MEASURED);
        let late = host.start_guest(hog("late")).unwrap_or_else(|error| panic!("{error}"));
        let [early_ran, late_ran] = ran_meanwhile(&scheduler, ["early", "late"]);
        task.signal(libc::SIGKILL).expect("signal");
        for guest in [&early, &late] {
            assert!(!guest.has_ended(), "{}: {}", guest.name(), guest.last_words());
        }
        stop_scheduler(host, &scheduler);
        let part = early_ran as f64 / (early_ran + late_ran) as f64;
        println!("the VM that was there first got {part:.2}");
        // Due is half. It got 0.63 when its clock stood far behind.
        assert!((part - 0.5).abs() < 0.08, "the VM that was there first got {part:.2}");
    });
}
