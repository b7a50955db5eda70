//! Pause-loop exits on real guests: the yields that the paper is about. A host of its own, as all its guests
//! take them.

use super::beside::{self, BESIDE};
use crate::common::intervals::{Intervals, figure};
use crate::common::{
    FLAGS, accelerations_by, assert_only_critical_code, assert_sums_hold, boosts_by, count, on_machine,
    replay, seconds, start_scheduler, start_scheduler_that_knows, statistics, stop_scheduler,
};
use microslice_testbed::kernels::DEFAULT_GUEST;
use microslice_testbed::{Guest, GuestSpec, Host, Pv, Testbed};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeSet;

/// With a guest of shootdowns, locks and wake-ups beside a hog.
fn on_host_with_pause_exits(test: impl Fn(&Host, &[Guest])) {
    let testbed = || {
        let testbed = Testbed::new("6.18").expect("a series").pause_exits();
        testbed.with_guest_kernels(&[DEFAULT_GUEST]).expect("guest kernels")
    };
    let guest = |name: &str, load: &str| GuestSpec::new(name).workload(load).pv(Pv::Off);
    on_machine("a host with PAUSE exits", testbed, &[guest("a", "worker,wake"), guest("b", "hog")], test);
}

#[test]
fn spinning_for_a_shootdown_or_a_lock_accelerates_the_responder_or_the_holder() {
    on_host_with_pause_exits(|host, _| {
        let scheduler = start_scheduler_that_knows(host, 2, &format!("{FLAGS} --record /tmp/run.rec"));
        statistics(&scheduler, accelerations_by(&["tlb_yield", "lock_yield"]), "acceleration by each yield");
        let report = stop_scheduler(host, &scheduler);
        assert_sums_hold(&report);
        assert_only_critical_code(&report["accelerations"], "lock_yield");

        // A spinner is patient for as long as the clock says.
        let replayed = replay(host, "/tmp/run.rec");
        let [begun, continued, wrong] =
            ["begun", "continued", "wrong"].map(|exits| count(&replayed["waits"][exits]));
        assert!(begun > 0 && continued > 0 && 100 * wrong <= continued, "{replayed}");
    });
}

/// The same by the kernel's own scheduler: KVM's own yield goes ahead there, and the boost comes beside it.
#[test]
fn spinning_for_a_shootdown_or_a_lock_boosts_the_responder_or_the_holder_beside_the_kernels_scheduler() {
    on_host_with_pause_exits(|host, _| {
        let running = beside::start(host, &format!("{BESIDE} --record /tmp/beside.rec"));
        statistics(&running, boosts_by(&["tlb_yield", "lock_yield"]), "boost by each yield");
        let report = beside::stop(&running);
        assert_eq!(report["helper"]["boosts"], report["helper"]["returns"], "{report}");
        assert_only_critical_code(&report["accelerations"], "lock_yield");
        assert!(count(&replay(host, "/tmp/beside.rec")["by_kind"]["yield"]) > 0);
    });
}

#[test]
#[ignore = "130 s for one rate: make test-long"]
fn a_dynamic_pool_that_is_in_use_stays_without_being_emptied_every_second() {
    on_host_with_pause_exits(|host, _| {
        let flags = "--micro-cpus auto --micro-slice-us 3000 --stats 1 --record /tmp/run.rec";
        let scheduler = start_scheduler_that_knows(host, 2, flags);
        let is_used = |report: &Value| count(&report["accelerations"]["total"]) > 0;
        statistics(&scheduler, is_used, "acceleration");
        // By the paper's rule it changes at least twice a second. Here most seconds must do without.
        let changes_of =
            |report: &Value| report["pool_size_history"].as_array().expect("history").len() as u64;
        let changes_a_second = |ran: &Intervals| ran.sum(changes_of) as f64 / ran.seconds();
        let are_few = |changes: f64| changes <= 1.0;
        let changes = figure(&scheduler, seconds(8, 15), changes_a_second, are_few);
        let report = stop_scheduler(host, &scheduler);
        assert_sums_hold(&report);
        assert!(are_few(changes), "{changes:.2} changes a second: {}", report["pool_size_history"]);

        let replayed = replay(host, "/tmp/run.rec");
        assert!(count(&replayed["by_kind"]["pool_size"]) > 10, "{replayed}");

        // Algorithm 1 was shown what was decided. Each step may have missed what just came on one of the
        // other pCPUs.
        let urgent = &replayed["urgent_events"];
        for event in ["ipi", "ple", "irq"] {
            let [shown, decided] = ["shown", "decided"].map(|from| count(&urgent[from][event]));
            assert!(shown.abs_diff(decided) <= 4, "{event}: {replayed}");
        }
        assert!(["ipi", "ple"].iter().any(|event| count(&urgent["shown"][*event]) > 0), "{replayed}");
    });
}

/// Without a micro pool a spinner's yield is all that helps. Those it goes to may not run at the hog's
/// expense.
#[test]
fn a_spinner_yields_to_its_heir_and_the_vcpu_that_ran_there_comes_back_to_its_pcpu() {
    on_host_with_pause_exits(|host, _| {
        let scheduler = start_scheduler(host, "--micro-cpus 0 --stats 1");
        // Reports are of one second each.
        let seen = RefCell::new(BTreeSet::<&str>::new());
        let overtakes = |report: &Value| {
            let reasons = ["directed_yield", "warm_caches"];
            seen.borrow_mut().extend(reasons.iter().filter(|&&why| count(&report["overtakes"][why]) > 0));
            seen.borrow().len() == reasons.len()
        };
        statistics(&scheduler, overtakes, "directed yields and warm caches");
        let is_nearly_its_own = |share: f64| share > 0.4;
        let share = figure(&scheduler, seconds(5, 10), |ran| ran.share("b"), is_nearly_its_own);
        let report = stop_scheduler(host, &scheduler);
        assert_sums_hold(&report);
        assert!(is_nearly_its_own(share), "the hog has {share:.2} of what vCPUs got: {report}");
    });
}
