//! Pause-loop exits on real guests: the yields that the paper is about. A host of its own, as all its guests take them.

mod common;

use common::{
    FLAGS, accelerations_by, assert_only_critical_code, assert_sums_hold, boot, start_scheduler, statistics,
    stop_scheduler, unless_a_machine_is_lost,
};
use microslice_testbed::kernels::DEFAULT_GUEST;
use microslice_testbed::{GuestSpec, Host, Pv, Testbed};

#[test]
fn spinning_for_a_shootdown_or_a_lock_accelerates_who_is_waited_for() {
    let testbed = Testbed::new("6.18").expect("a series").pause_exits();
    let mut host = boot(testbed.with_guest_kernels(&[DEFAULT_GUEST]).expect("guest kernels"));
    unless_a_machine_is_lost(&mut host, spin);
}

fn spin(host: &Host) {
    let specs = vec![
        GuestSpec::new("a").workload("worker,wake").pv(Pv::Off),
        GuestSpec::new("b").workload("hog").pv(Pv::Off),
    ];
    let _guests = host.start_guests(specs).unwrap_or_else(|error| panic!("{error}"));
    let scheduler = start_scheduler(host, FLAGS);
    statistics(&scheduler, accelerations_by(&["tlb_yield", "lock_yield"]), "acceleration by each yield");
    let report = stop_scheduler(host, &scheduler);
    assert_sums_hold(&report);
    assert_only_critical_code(&report, "lock_yield");
}
