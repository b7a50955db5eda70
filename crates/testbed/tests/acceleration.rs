//! Acceleration on real guests: causes, classes, slides, and sums that hold.

mod common;

use common::{
    FLAGS, OTHER_KERNEL, PATIENCE, accelerations_by, assert_only_critical_code, assert_sums_hold, count,
    on_host, start_scheduler, statistics, stop_scheduler, sum,
};
use microslice_testbed::{Guest, GuestSpec, Host, Pv};
use serde_json::Value;
use std::time::Duration;

fn contended_guests(host: &Host, pv: Pv) -> Vec<Guest> {
    host.start_guests(vec![
        GuestSpec::new("a").workload("worker,wake,kallsyms").pv(pv),
        GuestSpec::new("b").workload("hog").pv(pv),
    ])
    .unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn interrupts_to_preempted_vcpus_accelerate_them_and_all_of_them_return() {
    on_host(|host| {
        let guests = contended_guests(host, Pv::Off);
        let scheduler = start_scheduler(host, &format!("{FLAGS} --record /tmp/run.rec"));
        let has_accelerated = |report: &Value| count(&report["accelerations"]["total"]) > 0;
        statistics(&scheduler, has_accelerated, "acceleration");
        std::thread::sleep(Duration::from_secs(10));
        let report = stop_scheduler(host, &scheduler);
        assert_sums_hold(&report);
        let causes = &report["accelerations"]["by_cause"];
        assert!(count(&causes["call_function_ipi"]) + count(&causes["resched_ipi"]) > 0, "{causes}");

        // The slide that was found from outside is the guest's own.
        let text = guests[0].kallsyms("_text").expect("the guest prints its kallsyms");
        let slide = text - 0xffff_ffff_8100_0000;
        let vm = report["vms"].as_array().expect("vms").iter().find(|vm| vm["name"] == "a").expect("vm a");
        assert_eq!(vm["slide"], format!("{slide:#x}"), "{vm}");

        // Somebody was stopped in critical code, and went on for a moment.
        assert!(sum(&report["graces"]) > 0, "{}", report["graces"]);

        // What the kernel decided is what the same C decides natively.
        let replayed = host.must_run("microslice replay --json /tmp/run.rec", PATIENCE).expect("replay");
        let replayed: Value = serde_json::from_str(&replayed).expect("JSON");
        assert_eq!(replayed["differences"], 0, "{replayed}");
        assert!(["interrupt", "classify", "turn"].iter().all(|kind| count(&replayed["by_kind"][*kind]) > 0));
        assert_eq!(report["host"]["records_dropped"], 0);
    });
}

/// The mix, and more threads that take its locks, beside a hog: it has every kind of event that guests have without PAUSE exits.
fn mixed_guests(host: &Host, pv: Pv) -> Vec<Guest> {
    host.start_guests(vec![
        GuestSpec::new("a").workload("worker,mix").network(1).pv(pv),
        GuestSpec::new("b").workload("hog").pv(pv),
    ])
    .unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn reschedule_ipis_call_function_ipis_and_device_interrupts_accelerate_their_recipients() {
    on_host(|host| {
        let _guests = mixed_guests(host, Pv::Off);
        let _echo = host.start_echo().expect("the other end of the ping-pong");
        let scheduler = start_scheduler(host, FLAGS);
        let causes = ["resched_ipi", "call_function_ipi", "virq"];
        statistics(&scheduler, accelerations_by(&causes), "acceleration by each interrupt");
        assert_sums_hold(&stop_scheduler(host, &scheduler));
    });
}

/// Of the micro pCPU's time, the parts in which it ran accelerated vCPUs, and others.
fn micro_pcpu_use(report: &Value) -> [f64; 2] {
    ["micro_cpus_busy", "micro_cpus_lent"].map(|part| report[part].as_f64().expect("a part of its time"))
}

#[test]
fn a_micro_pcpu_runs_other_vcpus_until_somebody_asks_for_it_unless_it_may_not() {
    on_host(|host| {
        let _guests = mixed_guests(host, Pv::Off);
        let _echo = host.start_echo().expect("the other end of the ping-pong");
        let run = |flag: &str| {
            let scheduler = start_scheduler(host, &format!("{FLAGS} {flag}"));
            statistics(&scheduler, accelerations_by(&["call_function_ipi"]), "acceleration");
            std::thread::sleep(Duration::from_secs(10));
            let report = stop_scheduler(host, &scheduler);
            assert_sums_hold(&report);
            report
        };
        // Eight vCPUs on four pCPUs: somebody always waits.
        let lending = run("");
        let [busy, lent] = micro_pcpu_use(&lending);
        assert!(lent > 0.0 && busy + lent > 0.7, "{busy} busy, {lent} lent");
        assert!(count(&lending["called_back"]) > 0, "{lending}");

        let keeping = run("--no-lend");
        assert_eq!((count(&keeping["lent_ran_ns"]), count(&keeping["called_back"])), (0, 0));
    });
}

#[test]
fn while_the_micro_pcpu_is_busy_a_request_has_its_micro_slice_at_home_unless_it_may_not() {
    on_host(|host| {
        let _guests = mixed_guests(host, Pv::Off);
        let _echo = host.start_echo().expect("the other end of the ping-pong");
        let scheduler = start_scheduler(host, &format!("{FLAGS} --record /tmp/home.rec"));
        statistics(&scheduler, |report| report["home_slices"].as_u64() > Some(0), "micro slices at home");
        std::thread::sleep(Duration::from_secs(10));
        let report = stop_scheduler(host, &scheduler);
        assert_sums_hold(&report);
        let (at_home, all) = (count(&report["home_slices"]), count(&report["accelerations"]["total"]));
        eprintln!("{at_home} of {all} micro slices at home");
        assert!(at_home > 0 && at_home < all, "{report}");
        let replayed = host.must_run("microslice replay --json /tmp/home.rec", PATIENCE).expect("replay");
        let replayed: Value = serde_json::from_str(&replayed).expect("JSON");
        assert_eq!(replayed["differences"], 0, "{replayed}");
        assert!(count(&replayed["by_kind"]["home"]) > 0, "{replayed}");

        let scheduler = start_scheduler(host, &format!("{FLAGS} --no-home-slices"));
        statistics(&scheduler, accelerations_by(&["call_function_ipi"]), "acceleration");
        std::thread::sleep(Duration::from_secs(10));
        assert_eq!(stop_scheduler(host, &scheduler)["home_slices"], 0);
    });
}

#[test]
fn paravirtual_yields_and_halts_for_a_lock_accelerate_preempted_siblings() {
    on_host(|host| {
        let _guests = mixed_guests(host, Pv::On);
        let _echo = host.start_echo().expect("the other end of the ping-pong");
        // Otherwise the interrupts that a yield is about mostly come first, and count.
        let scheduler = start_scheduler(host, &format!("{FLAGS} --no-call-function-ipi"));
        statistics(&scheduler, accelerations_by(&["pv_yield", "lock_halt"]), "acceleration by each yield");
        let report = stop_scheduler(host, &scheduler);
        assert_sums_hold(&report);
        assert_only_critical_code(&report, "lock_halt");
    });
}

#[test]
fn symbols_of_another_kernel_accelerate_nothing() {
    on_host(|host| {
        let _guests = contended_guests(host, Pv::Off);
        let other = &host.image(OTHER_KERNEL).expect("another kernel's image").kernel;
        let scheduler = start_scheduler(host, &format!("{FLAGS} --guest a={other} --guest b={other}"));
        std::thread::sleep(Duration::from_secs(15));
        let report = stop_scheduler(host, &scheduler);
        assert_eq!(report["requests"], 0, "{report}");
        assert_eq!(report["accelerations"]["total"], 0);
    });
}

#[test]
fn a_dry_run_decides_and_counts_but_moves_nothing() {
    on_host(|host| {
        let _guests = contended_guests(host, Pv::Off);
        let scheduler = start_scheduler(host, &format!("{FLAGS} --dry-run"));
        let would = |report: &Value| sum(&report["would_accelerate"]) > 0;
        statistics(&scheduler, would, "decision");
        let report = stop_scheduler(host, &scheduler);
        assert!(report["dry_run"] == true && sum(&report["would_accelerate"]) > 0);
        assert_eq!((count(&report["requests"]), count(&report["accelerations"]["total"])), (0, 0));
    });
}

/// `name = count` lines.
fn counts_of(text: &str) -> Vec<(&str, u64)> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(" = "))
        .filter_map(|(name, count)| Some((name, count.trim().parse().ok()?)))
        .collect()
}

#[test]
fn the_verifier_walks_about_as_many_instructions_as_recorded() {
    let recorded = include_str!("../../../bpf/instruction-counts.toml");
    let section = recorded.split("[\"6.18\"]").nth(1).expect("counts of the default host");
    let recorded = counts_of(section.split("\n[").next().expect("a section"));
    on_host(|host| {
        let now =
            host.must_run("microslice run --micro-cpus 1 --instruction-counts", PATIENCE).expect("counts");
        let now = counts_of(&now);
        assert_eq!(
            now.iter().map(|(name, _)| name).collect::<Vec<_>>(),
            recorded.iter().map(|(name, _)| name).collect::<Vec<_>>(),
            "programs came or went: record their counts"
        );
        for ((name, count), (_, before)) in now.iter().zip(&recorded) {
            let most = before + before / 2 + 50;
            assert!(*count <= most, "{name}: {count} instructions, recorded were {before}");
        }
    });
}
