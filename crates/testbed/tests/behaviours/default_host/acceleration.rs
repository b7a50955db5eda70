//! Acceleration on real guests: causes, classes, slides, and sums that hold.

use crate::common::intervals::{Intervals, figure};
use crate::common::{
    FLAGS, OTHER_KERNEL, PATIENCE, Trace, accelerations_by, assert_sums_hold, count, observed, on_host,
    print, replay, run, scheduler_state, seconds, start_scheduler, start_scheduler_that_knows, statistics,
    stop_scheduler, sum, wait_until_it_says, with_guests,
};
use microslice_testbed::{GuestSpec, Pv};
use serde_json::Value;
use std::sync::OnceLock;

/// The mix, and more threads that take its locks, beside a hog: it has every kind of event that guests have
/// without PAUSE exits.
fn mixed_guests(pv: Pv) -> [GuestSpec; 2] {
    let hog = GuestSpec::new("b");
    // Halts for a lock are rare beside vCPUs that never stop by themselves.
    let hog = if pv == Pv::On { hog.workload("hog") } else { hog.bare() };
    [GuestSpec::new("a").workload("kallsyms,worker,mix").network(1).pv(pv), hog]
}

/// A while of acceleration.
struct Accelerated {
    report: Value,
    replayed: Value,
    /// The guest's own word for where its kernel lies.
    text: u64,
    /// The kernel's counters of sched_ext, just before the end.
    events: String,
    /// The part of its time in which the micro pCPU ran vCPUs, once guests were busy.
    micro_pcpu_used: f64,
}

/// Until each of these interrupts has accelerated a vCPU, and one had a micro slice at home; and for a while
/// from then on.
fn accelerated() -> &'static Accelerated {
    static ACCELERATED: OnceLock<Accelerated> = OnceLock::new();
    ACCELERATED.get_or_init(|| {
        observed(&mixed_guests(Pv::Off), |host, guests| {
            let _echo = host.start_echo().expect("the other end of the ping-pong");
            let scheduler = start_scheduler_that_knows(host, 1, &format!("{FLAGS} --record /tmp/run.rec"));
            let causes = accelerations_by(&["resched_ipi", "call_function_ipi", "virq"]);
            statistics(&scheduler, causes, "acceleration by each interrupt");
            let at_home = |report: &Value| report["home_slices"].as_u64() > Some(0);
            statistics(&scheduler, at_home, "micro slices at home");
            statistics(&scheduler, |report| sum(&report["graces"]) > 0, "grace");
            statistics(
                &scheduler,
                |report| count(&report["called_back"]) > 0,
                "lent micro pCPU that is called back",
            );
            // Before its loads begin.
            let printed = guests[0].wait_for("\"kallsyms\"", 0, PATIENCE);
            printed.expect("the guest prints its kallsyms");
            let micro_pcpu_used =
                figure(&scheduler, seconds(5, 20), part_of_micro_pcpu, |part| part > USED_BY_LENDING);
            let events = run(host, "cat /sys/kernel/sched_ext/root/events");
            let report = stop_scheduler(host, &scheduler);
            assert_sums_hold(&report);
            let text = guests[0].kallsyms("_text").expect("the guest prints its kallsyms");
            Accelerated { report, replayed: replay(host, "/tmp/run.rec"), text, events, micro_pcpu_used }
        })
    })
}

/// The same by the paper's rules, which give neither micro pCPUs nor those of the normal pool away.
fn kept_to_itself() -> &'static Value {
    static KEPT: OnceLock<Value> = OnceLock::new();
    KEPT.get_or_init(|| {
        observed(&mixed_guests(Pv::Off), |host, _| {
            let _echo = host.start_echo().expect("the other end of the ping-pong");
            let scheduler = start_scheduler_that_knows(host, 1, &format!("{FLAGS} --rules paper"));
            statistics(&scheduler, accelerations_by(&["resched_ipi"]), "acceleration");
            std::thread::sleep(seconds(5, 20));
            let report = stop_scheduler(host, &scheduler);
            assert_sums_hold(&report);
            report
        })
    })
}

#[test]
fn interrupts_to_preempted_vcpus_accelerate_them_and_all_of_them_return() {
    let Accelerated { report, replayed, text, .. } = accelerated();
    let causes = &report["accelerations"]["by_cause"];
    assert!(count(&causes["call_function_ipi"]) + count(&causes["resched_ipi"]) > 0, "{causes}");

    // The slide that was found from outside is the guest's own.
    let slide = text - 0xffff_ffff_8100_0000;
    let vm = report["vms"].as_array().expect("vms").iter().find(|vm| vm["name"] == "a").expect("vm a");
    assert_eq!(vm["slide"], format!("{slide:#x}"), "{vm}");

    // A vCPU was stopped in critical code, and went on for a moment.
    assert!(sum(&report["graces"]) > 0, "{}", report["graces"]);

    // What the kernel decided is what the same C decides natively.
    assert!(["interrupt", "classify", "turn"].iter().all(|kind| count(&replayed["by_kind"][*kind]) > 0));
    assert_eq!(report["host"]["records_dropped"], 0);
}

#[test]
fn reschedule_ipis_call_function_ipis_and_device_interrupts_accelerate_their_recipients() {
    let causes = &accelerated().report["accelerations"]["by_cause"];
    for cause in ["resched_ipi", "call_function_ipi", "virq"] {
        assert!(count(&causes[cause]) > 0, "{cause}: {causes}");
    }
}

#[test]
fn without_exits_interrupts_are_found_by_looks() {
    with_guests(&mixed_guests(Pv::Off), |host, _| {
        let _echo = host.start_echo().expect("the other end of the ping-pong");
        let scheduler = start_scheduler_that_knows(host, 1, &format!("{FLAGS} --interrupts-by-looks"));
        let by_each = accelerations_by(&["resched_ipi", "call_function_ipi", "virq"]);
        statistics(&scheduler, by_each, "acceleration by each interrupt");
        let report = stop_scheduler(host, &scheduler);
        assert_sums_hold(&report);
        assert!(count(&report["host"]["interrupts_found"]) > 0, "{report}");
    });
}

/// Interrupted inside a BPF program, which may not move: 622 of them in 45 s passed the queues by where the
/// kernel wasn't asked for them.
#[test]
fn tasks_that_may_not_move_come_to_the_queues_like_all_others() {
    let events = &accelerated().events;
    let passed_by = events.lines().find_map(|line| line.strip_prefix("SCX_EV_ENQ_SKIP_MIGRATION_DISABLED "));
    assert_eq!(passed_by.map(str::trim), Some("0"), "{events}");
}

/// Without lending a quarter is used.
const USED_BY_LENDING: f64 = 0.6;

/// The part of its time in which the one micro pCPU ran vCPUs, accelerated ones and others.
fn part_of_micro_pcpu(ran: &Intervals) -> f64 {
    let part = |report: &Value, use_of: &str| report[use_of].as_f64().expect("a part of its time");
    ran.mean(|report| part(report, "micro_pool_busy") + part(report, "micro_pool_lent"))
}

#[test]
fn a_micro_pcpu_runs_other_vcpus_until_a_request_comes_unless_it_may_not() {
    // Eight vCPUs on four pCPUs: one always waits.
    let Accelerated { report: lending, micro_pcpu_used, .. } = accelerated();
    assert!(count(&lending["micro_pool_use_ns"]["lent"]) > 0, "{lending}");
    assert!(*micro_pcpu_used > USED_BY_LENDING, "{micro_pcpu_used} used");
    assert!(count(&lending["called_back"]) > 0, "{lending}");

    let keeping = kept_to_itself();
    assert_eq!((count(&keeping["micro_pool_use_ns"]["lent"]), count(&keeping["called_back"])), (0, 0));
}

#[test]
fn while_the_micro_pcpu_is_busy_a_request_has_its_micro_slice_at_home_unless_it_may_not() {
    let Accelerated { report, replayed, .. } = accelerated();
    let (at_home, all) = (count(&report["home_slices"]), count(&report["accelerations"]["total"]));
    eprintln!("{at_home} of {all} micro slices at home");
    assert!(at_home > 0 && at_home < all, "{report}");
    assert!(count(&replayed["by_kind"]["home"]) > 0, "{replayed}");
    let keeping = kept_to_itself();
    assert_eq!((count(&keeping["home_slices"]), sum(&keeping["graces"])), (0, 0));
    assert_eq!(count(&keeping["accelerations"]["by_cause"]["call_function_ipi"]), 0, "{keeping}");
}

/// Halts for a lock are a hint by the project's rules, where grace makes preempted holders rare: none came in
/// five minutes. Policy and simulator hold them.
#[test]
fn paravirtual_yields_accelerate_preempted_siblings() {
    with_guests(&mixed_guests(Pv::On), |host, _| {
        let _echo = host.start_echo().expect("the other end of the ping-pong");
        // By the project's rules the interrupts that a yield is about mostly come first, and count.
        let scheduler = start_scheduler_that_knows(host, 2, &format!("{FLAGS} --rules paper"));
        statistics(&scheduler, accelerations_by(&["pv_yield"]), "acceleration by a yield");
        let report = stop_scheduler(host, &scheduler);
        assert_sums_hold(&report);
        // By the paper's a halt is no hint.
        let requests = &report["acceleration_requests"]["by_cause"];
        assert_eq!((count(&requests["lock_halt"]), count(&requests["lock_kick"])), (0, 0), "{requests}");
    });
}

#[test]
#[ignore = "62 s; tests of slides hold that another kernel is recognised: make test-long"]
fn another_kernels_symbols_accelerate_nothing() {
    with_guests(&mixed_guests(Pv::Off), |host, _| {
        let other = &host.image(OTHER_KERNEL).expect("another kernel's image").kernel;
        let flags = format!("{FLAGS} --guest a={other}");
        let scheduler = start_scheduler_that_knows(host, 1, &flags);
        std::thread::sleep(seconds(8, 15));
        let report = stop_scheduler(host, &scheduler);
        assert_eq!(report["acceleration_requests"]["total"], 0, "{report}");
        assert_eq!(report["accelerations"]["total"], 0);
    });
}

#[test]
#[ignore = "68 s for one branch, which is where nothing is moved: make test-long"]
fn a_dry_run_decides_and_counts_but_moves_nothing() {
    with_guests(&mixed_guests(Pv::Off), |host, _| {
        let scheduler = start_scheduler_that_knows(host, 1, &format!("{FLAGS} --dry-run"));
        let would = |report: &Value| sum(&report["would_accelerate"]) > 0;
        statistics(&scheduler, would, "decision");
        let report = stop_scheduler(host, &scheduler);
        assert!(report["dry_run"] == true && sum(&report["would_accelerate"]) > 0);
        assert_eq!(
            (count(&report["acceleration_requests"]["total"]), count(&report["accelerations"]["total"])),
            (0, 0)
        );
    });
}

#[test]
#[ignore = "107 s; the trace on a full disk takes the same way: make test-long"]
fn a_trace_shows_what_ran_where_and_micro_slices_on_the_micro_pcpu() {
    with_guests(&mixed_guests(Pv::Off), |host, _| {
        let _echo = host.start_echo().expect("the other end of the ping-pong");
        // Nobody has a micro slice elsewhere then.
        let flags = format!("{FLAGS} --rules paper --trace /tmp/run.pftrace --trace-for 1h --trace-size 64");
        let scheduler = start_scheduler_that_knows(host, 1, &flags);
        statistics(&scheduler, accelerations_by(&["resched_ipi"]), "acceleration");
        std::thread::sleep(seconds(2, 10));
        let report = stop_scheduler(host, &scheduler);
        let said = scheduler.stderr();
        let line =
            said.lines().find(|line| line.contains("/tmp/run.pftrace: traced")).expect("what was traced");
        crate::common::print(line);
        let trace = Trace::take(host, "/tmp/run.pftrace");
        for vm in ["a", "b"] {
            assert!(trace.vcpus_that_ran(vm) >= 2, "VM {vm}: {line}");
        }
        let micro = trace.rows(
            "select track.name as pcpu, count(*) > 0 as seen from slice join track on slice.track_id = track.id
             where track.name glob 'pCPU *' and slice.category = 'acceleration' and dur > 0 group by 1",
        );
        assert_eq!(micro.len(), 1, "micro slices are on the micro pCPU: {micro:?}; {report}");
        let accelerated = trace.rows(
            "select distinct 'pCPU ' || extract_arg(arg_set_id, 'debug.pcpu') as pcpu, 1 as seen from slice
             where name = 'accelerated'",
        );
        assert_eq!(accelerated, micro);
        for what in ["requested", "returned to normal pool", "preempted", "hlt", "runnable"] {
            let count = trace.number(&format!("select count(*) from slice where name = '{what}'"));
            assert!(count > 0, "{what}");
        }
        let host_tasks = "select count(*) from slice where extract_arg(arg_set_id, 'debug.tid') > 0";
        assert!(trace.number(host_tasks) > 0);
    });
}

#[test]
fn a_trace_on_a_full_disk_ends_there_and_scheduling_goes_on() {
    on_host(|host| {
        run(host, "mkdir -p /tmp/small && mount -t tmpfs -o size=256k tmpfs /tmp/small");
        let flags = format!("{FLAGS} --trace /tmp/small/run.pftrace --trace-for 1h");
        let scheduler = start_scheduler(host, &flags);
        let busy = [(); 3].map(|()| host.start("while true; do true & wait; done").expect("many switches"));
        wait_until_it_says(&scheduler, "the trace ends here");
        drop(busy);
        assert_eq!(scheduler_state(host), "enabled");
        scheduler.signal(libc::SIGINT).expect("signal");
        let output = scheduler.wait(PATIENCE).expect("end");
        assert_eq!(output.code, 1, "{}", output.stderr);
        let of_trace = |line: &&str| line.contains("/tmp/small/run.pftrace");
        let said: Vec<_> = output.stderr.lines().filter(of_trace).collect();
        assert!(said[0].contains("No space left on device"), "{said:?}");
        assert!(said.len() == 2 && said[1].contains("the trace is incomplete"), "{said:?}");
        run(host, "cp /tmp/small/run.pftrace /tmp/; umount /tmp/small");
        Trace::take(host, "/tmp/run.pftrace");
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
    let recorded = include_str!("../../../../../bpf/instruction-counts.toml");
    on_host(|host| {
        for (section, command) in [
            ("[\"6.18\"]", "run --scheduler microslice"),
            ("[coordinated.\"6.18\"]", "run --scheduler coordinated"),
            ("[beside.\"6.18\"]", "run --scheduler beside"),
            ("[observe.\"6.18\"]", "observe"),
        ] {
            let section = recorded.split(section).nth(1).expect("counts of the default host");
            let recorded = counts_of(section.split("\n[").next().expect("a section"));
            let now = run(host, &format!("microslice {command} --instruction-counts"));
            print(&format!("{command}:\n{now}"));
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
        }
    });
}
