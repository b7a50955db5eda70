use super::*;
use crate::config::{CreditConfig, FairSharePool, HostConfig, StrideConfig};
use crate::events::StopReason;
use crate::machine::HostVm;
use crate::samples;
use microslice_policy::{Cause, GuestClass};

const SLICE_NS: u64 = 30_000_000;
const MICRO_SLICE_NS: u64 = 100;

fn checker(grace: GraceLimits) -> Checker {
    let credit = CreditConfig {
        slice_ns: SLICE_NS,
        tick_ns: 10_000_000,
        ratelimit_ns: 0,
        boost: true,
        ratelimit_yields: true,
    };
    let micro_slice = MicroSlice { slice_ns: MICRO_SLICE_NS, spinning_renews: false };
    Checker { grace, micro_slice, ..Checker::new(2, 2, 1, &SchedulerKind::Credit(credit), None) }
}

/// What the checker says about the last of these events; the ones before are in order.
fn verdict(events: &[TraceEvent]) -> String {
    let mut checker = checker(GraceLimits { max: 2, slice_ns: 5 });
    let (last, first) = events.split_last().expect("an event");
    // One a nanosecond.
    let mut time_ns = 0..;
    let mut observe = |event| checker.observe(time_ns.next().expect("endless"), event);
    first.iter().for_each(|event| observe(event).expect("in order"));
    observe(last).expect_err("out of order")
}

const RUNS: TraceEvent = TraceEvent::Running { vcpu: VcpuId::new(0), pcpu: PcpuId::new(0), micro: false };
const IPI: TraceEvent =
    TraceEvent::IpiSent { from: VcpuId::new(0), to: VcpuId::new(1), kind: IpiKind::Reschedule };
const HANDLED: TraceEvent = TraceEvent::IpiHandled { vcpu: VcpuId::new(1), kind: IpiKind::Reschedule };
const ACCELERATED: TraceEvent = TraceEvent::Accelerated {
    vcpu: VcpuId::new(0),
    pcpu: PcpuId::new(1),
    cause: Cause::LockYield,
    class: GuestClass::LockHolder,
};

#[test]
fn a_vcpu_on_two_pcpus_is_found() {
    let again = TraceEvent::Running { vcpu: VcpuId::new(0), pcpu: PcpuId::new(1), micro: false };
    assert_eq!(verdict(&[RUNS, again]), "vCPU 0 runs on pCPU 1 and on pCPU 0");
}

#[test]
fn two_vcpus_on_a_pcpu_are_found() {
    let other = TraceEvent::Running { vcpu: VcpuId::new(1), pcpu: PcpuId::new(0), micro: false };
    assert_eq!(verdict(&[RUNS, other]), "pCPU 0 runs vCPU 1 and vCPU 0");
}

#[test]
fn two_holders_of_a_lock_are_found() {
    let takes = |vcpu| TraceEvent::LockAcquired { vcpu, lock: LockId::new(0), waited_ns: 0 };
    assert_eq!(
        verdict(&[takes(VcpuId::new(0)), takes(VcpuId::new(1))]),
        "vCPU 1 takes lock 0 that vCPU 0 holds"
    );
}

#[test]
fn a_duplicated_and_an_invented_ipi_are_found() {
    assert_eq!(verdict(&[IPI, HANDLED, HANDLED]), "vCPU 1 handles one Reschedule IPI of 0 pending ones");
    assert_eq!(verdict(&[IPI, IPI, HANDLED]), "vCPU 1 handles one Reschedule IPI of 2 pending ones");
}

#[test]
fn a_vcpu_in_the_micro_pool_without_acceleration_is_found() {
    let micro = TraceEvent::Running { vcpu: VcpuId::new(0), pcpu: PcpuId::new(1), micro: true };
    assert!(verdict(&[micro]).contains("(micro: true)"));
}

#[test]
fn an_accelerated_vcpu_that_runs_elsewhere_or_returns_twice_is_found() {
    assert!(verdict(&[ACCELERATED, RUNS]).contains("(micro: false)"));
    let returned = TraceEvent::ReturnedToNormalPool { vcpu: VcpuId::new(0), pcpu: PcpuId::new(0) };
    assert!(verdict(&[ACCELERATED, returned, returned]).contains("wasn't in"));
}

const GOES_ON: TraceEvent = TraceEvent::TurnGoesOn { vcpu: VcpuId::new(0), pcpu: PcpuId::new(0) };
const ENDED: TraceEvent = TraceEvent::TurnEnded { vcpu: VcpuId::new(0), pcpu: PcpuId::new(0) };
const RETURNED: TraceEvent = TraceEvent::ReturnedToNormalPool { vcpu: VcpuId::new(0), pcpu: PcpuId::new(0) };
const MICRO: TraceEvent = TraceEvent::Running { vcpu: VcpuId::new(0), pcpu: PcpuId::new(1), micro: true };

#[test]
fn a_turn_that_goes_on_more_often_than_grace_allows_is_found() {
    let error = verdict(&[RUNS, GOES_ON, GOES_ON, ENDED, GOES_ON, GOES_ON, GOES_ON]);
    assert_eq!(error, "vCPU 0's turn is made longer 3 times in a row, where 2 are allowed");
}

#[test]
fn a_turn_that_goes_on_for_longer_than_a_micro_slice_is_found() {
    let others = [IPI, HANDLED, IPI, HANDLED, IPI, HANDLED];
    let error = verdict(&[&[RUNS, GOES_ON][..], &others, &[ENDED]].concat());
    assert_eq!(error, "vCPU 0's turn went on for 2 ns longer than a micro slice");
}

#[test]
fn a_micro_slice_renewed_more_often_than_grace_allows_is_found() {
    let again = [RETURNED, ACCELERATED];
    let error = verdict(&[&[ACCELERATED, MICRO][..], &again, &again, &again].concat());
    assert_eq!(error, "vCPU 0 gets 3 micro slices more in a row than it was requested for");
}

#[test]
fn a_vcpu_that_stays_accelerated_for_longer_than_a_micro_slice_is_found() {
    let late_ns = 7 + MICRO_SLICE_NS + 1;
    let error = Err("vCPU 0 runs accelerated for 101 ns, where 100 are allowed".to_owned());
    let running = || {
        let mut checker = checker(GraceLimits::default());
        checker.observe(0, &ACCELERATED).expect("in order");
        checker.observe(7, &MICRO).expect("in order, however long it waited");
        checker
    };
    assert_eq!(running().observe(late_ns, &RETURNED), error);
    assert_eq!(running().observe(late_ns - 1, &RETURNED), Ok(()));
    // Nothing happens any more: it is found all the same.
    let mut machine =
        Machine::new(&HostConfig { pcpus: 2, ..samples::host() }, vec![HostVm::new(2, 256, Vec::new())]);
    machine.now_ns = late_ns;
    assert_eq!(running().check_host(&machine, |_| true), error);
}

#[test]
fn in_the_prototype_a_spinner_may_stay_until_a_micro_slice_after_its_last_exit() {
    let exit = TraceEvent::PauseLoopExits { vcpu: VcpuId::new(0), count: 1 };
    for renews in [false, true] {
        let mut checker = checker(GraceLimits::default());
        checker.micro_slice.spinning_renews = renews;
        for (time_ns, event) in [(0, ACCELERATED), (0, MICRO), (MICRO_SLICE_NS, exit)] {
            checker.observe(time_ns, &event).expect("in order");
        }
        assert_eq!(checker.observe(2 * MICRO_SLICE_NS, &RETURNED).is_ok(), renews);
    }
}

#[test]
fn two_vcpus_that_wait_for_one_micro_pcpu_are_found() {
    let mut checker = checker(GraceLimits::default());
    let other = TraceEvent::Accelerated {
        vcpu: VcpuId::new(1),
        pcpu: PcpuId::new(1),
        cause: Cause::LockYield,
        class: GuestClass::LockHolder,
    };
    [ACCELERATED, other].iter().for_each(|event| checker.observe(0, event).expect("in order"));
    assert_eq!(checker.settled().unwrap_err(), "vCPU 1 and another one wait for micro pCPU 1");
    checker.observe(0, &MICRO).expect("it runs");
    assert_eq!(checker.settled(), Ok(()));
}

#[test]
fn a_pick_of_a_blocked_vcpu_is_found() {
    let mut checker = checker(GraceLimits::default());
    checker.picked(VcpuId::new(0), PcpuId::new(1), VcpuState::Runnable);
    assert_eq!(checker.settled(), Ok(()));
    checker.picked(VcpuId::new(1), PcpuId::new(0), VcpuState::Blocked);
    assert_eq!(checker.settled().unwrap_err(), "vCPU 1 is picked for pCPU 0, but is blocked");
}

/// What the checker says when both vCPUs of a VM with this weight, beside four of another one with 1,000,
/// have waited for so long.
fn verdict_on_waiting(scheduler: &SchedulerKind, weight: u32, waited_ns: u64) -> Result<(), String> {
    let vms = vec![HostVm::new(2, weight, Vec::new()), HostVm::new(4, 1_000, Vec::new())];
    let mut machine = Machine::new(&HostConfig { pcpus: 2, ..samples::host() }, vms);
    (0..2).for_each(|vcpu| machine.wakes(VcpuId::new(vcpu)));
    machine.now_ns = waited_ns;
    Checker::new(2, 6, 1, scheduler, None).check_host(&machine, |_| true)
}

#[test]
fn a_vcpu_may_wait_as_turns_and_weights_explain() {
    let ms = 1_000_000;
    let stride = || SchedulerKind::Stride(StrideConfig { slice_ns: ms });
    let credit = || SchedulerKind::Credit(CreditConfig { slice_ns: ms, ..samples::credit() });
    let lottery =
        || SchedulerKind::Lottery(FairSharePool { slice_ns: ms, tick_ns: ms, ..samples::fair_share() });
    for (scheduler, weight, allowed_ns) in [
        // Six of equal weight have a turn each in a round, and four rounds may be missed.
        (stride(), 1_000, 4 * 6 * ms),
        // Two of weight 100 beside four of weight 1,000: 42 turns.
        (stride(), 100, 4 * 42 * ms),
        // An accounting of credits takes 30 ms, however short turns are.
        (credit(), 1_000, 4 * 6 * 30 * ms),
        // Two VMs of equal weight, and a vCPU of one of them. Turns end at ticks, and draws may be lost.
        (lottery(), 1_000, 40 * 4 * 2 * ms),
    ] {
        assert_eq!(verdict_on_waiting(&scheduler, weight, allowed_ns), Ok(()), "{scheduler:?}");
        let waited_ns = allowed_ns + 1;
        let starves =
            format!("vCPU 0 starves: runnable for {waited_ns} ns, where {allowed_ns} ns are explained");
        assert_eq!(verdict_on_waiting(&scheduler, weight, waited_ns), Err(starves));
    }
}

#[test]
fn a_stop_of_what_does_not_run_is_found() {
    let stop = TraceEvent::Stopping {
        vcpu: VcpuId::new(0),
        pcpu: PcpuId::new(1),
        reason: StopReason::Hlt,
        ip: 0,
        symbol: crate::ids::SymbolId::new(0),
    };
    assert_eq!(verdict(&[RUNS, stop]), "vCPU 0 stops on pCPU 1 where it doesn't run");
}
