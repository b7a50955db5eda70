//! The scheduler `coordinated` on real guests: each scheme acts for its cause, urgency ends, shares hold.

use crate::common::intervals::{Intervals, figure, near};
use crate::common::{
    OTHER_KERNEL, PATIENCE, assert_alive, count, observed, on_host, replay, scheduler_state, seconds,
    start_scheduler, statistics, stop_scheduler, sum,
};
use microslice_testbed::{GuestSpec, Pv};
use serde_json::Value;
use std::sync::OnceLock;

/// Emulated: an urgent slice must be long enough to enter the guest, and so must the delay.
const FLAGS: &str = "--scheduler coordinated --urgent-slice-us 3000 --preemption-delay-us 3000 --stats 1";

/// One VM has no scheme, another one all of them, by the configuration file; of the third one Resched-Co is
/// tried.
const KNOBS: &str = "resched-co = \"auto\"\\n[vm.calm]\\nresched-dp = false\\ntlb-co = false\\nresched-co = false\\n[vm.both]\\nresched-co = true\\n";

struct Coordinated {
    report: Value,
    /// By how much each one's share differed from what was due, by name.
    share_errors: [(&'static str, f64); 2],
    replayed: Value,
}

/// Of what vCPUs get.
const SHARE_TOLERANCE: f64 = 0.05;

fn vm<'r>(report: &'r Value, name: &str) -> &'r Value {
    let vms = report["vms"].as_array().expect("vms");
    vms.iter().find(|vm| vm["name"] == name).unwrap_or_else(|| panic!("no VM {name}: {report}"))
}

/// Has the guest that has all schemes any of what `count` says?
fn of_both(count: impl Fn(&Value) -> Option<u64>) -> impl Fn(&Value) -> bool {
    move |report| {
        let mut vms = report["vms"].as_array().into_iter().flatten();
        vms.any(|vm| vm["name"] == "both" && count(vm) > Some(0))
    }
}

/// Two guests with the same load, each with schemes of its own, beside a hog, all with the same weight. The
/// kernel that is named for one of them isn't the one that it runs: no symbol of it is of use.
fn coordinated() -> &'static Coordinated {
    static COORDINATED: OnceLock<Coordinated> = OnceLock::new();
    COORDINATED.get_or_init(|| {
        let mix = |name: &str| GuestSpec::new(name).workload("shootdown,wake,heartbeat").pv(Pv::Off);
        let guests = [mix("calm"), mix("both"), GuestSpec::new("hog").bare()];
        observed(&guests, |host, guests| {
            host.must_run(&format!("printf '{KNOBS}' > /tmp/knobs.toml"), PATIENCE).expect("a file");
            let other = &host.image(OTHER_KERNEL).expect("another kernel's image").kernel;
            let flags = format!("{FLAGS} --record /tmp/urgent.rec --no-guest-memory --config /tmp/knobs.toml --guest both={other}");
            let scheduler = start_scheduler(host, &flags);
            for (group, what) in [
                ("urgent_requests", "resched_dp"),
                ("urgent_requests", "tlb_co"),
                ("urgent_requests", "resched_co"),
                ("urgent_decisions", "preempts"),
                ("urgent_ends", "acknowledged"),
                ("urgent_ends", "time_used"),
            ] {
                statistics(&scheduler, of_both(|vm| vm[group][what].as_u64()), what);
            }
            statistics(&scheduler, of_both(|vm| vm["urgent_protections"].as_u64()), "urgent_protections");
            let share_errors = ["both", "hog"].map(|name| {
                let error = |ran: &Intervals| ran.share(name) - ran.share_due(name);
                (name, figure(&scheduler, seconds(5, 15), error, near(0.0, SHARE_TOLERANCE)))
            });
            guests.iter().for_each(|guest| assert_alive(guest, 2));
            let report = stop_scheduler(host, &scheduler);
            Coordinated { report, share_errors, replayed: replay(host, "/tmp/urgent.rec") }
        })
    })
}

#[test]
fn each_scheme_acts_for_its_cause_and_only_where_its_knob_is_on() {
    let report = &coordinated().report;
    let requests = |name: &str, scheme: &str| count(&vm(report, name)["urgent_requests"][scheme]);
    let ipis = |name: &str, kind: &str| count(&vm(report, name)["ipis"][kind]);
    for (scheme, kind) in
        [("resched_dp", "ipi_reschedule"), ("tlb_co", "ipi_call_function"), ("resched_co", "ipi_reschedule")]
    {
        assert!(ipis("calm", kind) > 0 && requests("calm", scheme) == 0, "{kind}: {report}");
        let asked = requests("both", scheme);
        assert!(asked > 0 && asked <= ipis("both", kind), "{scheme}: {report}");
    }
    assert_eq!(count(&vm(report, "calm")["became_urgent"]), 0, "{report}");
    assert_eq!(count(&vm(report, "calm")["urgent_slices"]), 0, "{report}");
}

#[test]
fn urgent_vcpus_run_acknowledge_and_leave() {
    let both = vm(&coordinated().report, "both");
    assert!(count(&both["urgent_slices"]) > 0 && count(&both["urgent_decisions"]["preempts"]) > 0, "{both}");
    assert!(count(&both["urgent_protections"]) > 0, "{both}");
    let ends = &both["urgent_ends"];
    assert!(count(&ends["acknowledged"]) > 0 && count(&ends["time_used"]) > 0, "{both}");
    // Four vCPUs can be urgent when all is read; all others have left.
    assert!(count(&both["urgent_now"]) <= 4, "{both}");
    assert_eq!(count(&both["became_urgent"]), sum(ends) + count(&both["urgent_now"]), "{both}");
}

#[test]
#[ignore = "80 s; policy tests hold what an unknown class decides: make test-long"]
fn a_guest_without_symbols_is_coordinated() {
    let both = vm(&coordinated().report, "both");
    assert_eq!(both["slide"], Value::Null, "{both}");
    assert!(count(&both["urgent_decisions"]["preempts"]) > 0, "{both}");
}

/// Its acknowledgement is an exit of the guest, just before the guest does what it was called for.
#[test]
#[ignore = "166 s for one ratio; policy tests hold how long urgency lasts: make test-long"]
fn a_responder_that_has_acknowledged_a_call_answers_it_before_it_is_preempted() {
    let guests = [GuestSpec::new("called").workload("mix").pv(Pv::Off), GuestSpec::new("hog").bare()];
    observed(&guests, |host, _| {
        let scheduler = start_scheduler(host, &format!("{FLAGS} --urgent-answer-us 3000"));
        statistics(&scheduler, |report| vm(report, "called")["slide"].is_string(), "slide");
        let preempted_of_acknowledged = |seen: &Intervals| {
            let preempted =
                seen.sum(|report| count(&vm(report, "called")["preemptions"]["by_class"]["irq_handler"]));
            match seen.sum(|report| count(&vm(report, "called")["urgent_ends"]["acknowledged"])) {
                0 => f64::INFINITY,
                acknowledged => preempted as f64 / acknowledged as f64,
            }
        };
        let found = figure(&scheduler, seconds(10, 30), preempted_of_acknowledged, |it| it < 0.25);
        let report = stop_scheduler(host, &scheduler);
        assert!(found < 0.25, "{found:.2} preemptions in handlers for each acknowledgement: {report}");
    });
}

/// Urgent vCPUs borrow, and pay back: a guest that sends IPIs without end has no more than its share.
#[test]
fn shares_hold_beside_a_guest_that_sends_ipis_without_end() {
    let Coordinated { report, share_errors, .. } = coordinated();
    for (name, error) in share_errors {
        assert!(near(0.0, SHARE_TOLERANCE)(*error), "{name}: {error:+.3} beside what was due: {report}");
    }
}

#[test]
fn which_vcpu_an_ipi_makes_urgent_and_which_goes_first_is_decided_again_natively_bit_for_bit() {
    let replayed = &coordinated().replayed;
    for kind in ["ipi", "urgent", "urgent_turn", "candidate"] {
        assert!(count(&replayed["by_kind"][kind]) > 0, "{kind}: {replayed}");
    }
}

#[test]
fn what_a_scheduler_does_not_have_is_refused_and_nothing_is_loaded() {
    on_host(|host| {
        for (flags, cause) in [
            (
                "--scheduler coordinated --micro-cpus 1",
                "--micro-cpus is a setting of --scheduler microslice; here it is coordinated",
            ),
            ("--tlb-co on", "--tlb-co is a setting of --scheduler coordinated; here it is beside"),
            ("--scheduler fifo", "invalid value 'fifo' for '--scheduler <NAME>'"),
        ] {
            let output = host.run(&format!("microslice run {flags}"), PATIENCE).expect("run");
            assert_eq!(output.code, 2, "{output:?}");
            assert!(output.stderr.contains(cause) && output.stderr.lines().count() == 1, "{output:?}");
            assert_eq!(scheduler_state(host), "disabled");
        }
    });
}
