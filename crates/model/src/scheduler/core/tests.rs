//! Which vCPU is next, and where, by the rules of the real scheduler's normal pool.

use super::turns::STARVING_AFTER_NS;
use super::*;
use crate::config::HostConfig;
use crate::machine::HostVm;
use crate::samples;
use crate::scheduler::mechanisms::KvmHost;
use crate::scheduler::{Core, YieldAnswer};
use microslice_policy::{QueueDomain, YieldCause};

const MS: u64 = 1_000_000;
const SLICE_NS: u64 = 30 * MS;

/// A host with VMs of so many vCPUs, all blocked.
fn host(pcpus: usize, vms: &[u32]) -> (FairShare<KvmHost>, Machine) {
    let vms = vms.iter().map(|&vcpus| HostVm::new(vcpus, 256, Vec::new())).collect();
    host_of(pcpus, pcpus, FairSharePool::DOMAIN, vms)
}

fn host_of(
    pcpus: usize,
    llc_pcpus: usize,
    domain: QueueDomain,
    vms: Vec<HostVm>,
) -> (FairShare<KvmHost>, Machine) {
    let host = HostConfig { pcpus, llc_pcpus, smt_threads: 1, ..samples::host() };
    let machine = Machine::new(&host, vms);
    (FairShare::new(&FairSharePool { slice_ns: SLICE_NS, tick_ns: 4 * MS, domain }, &machine), machine)
}

fn wake(pool: &mut FairShare<KvmHost>, machine: &mut Machine, vcpu: VcpuId) {
    machine.wakes(vcpu);
    pool.wake(machine, vcpu);
}

/// What the pCPU does when it is asked to look, or its vCPU stops for that reason.
fn next_on(
    pool: &mut FairShare<KvmHost>,
    machine: &mut Machine,
    pcpu: PcpuId,
    reason: StopReason,
) -> Option<VcpuId> {
    let stopped = machine.current(pcpu).map(|vcpu| (vcpu, reason));
    if let Some((vcpu, reason)) = stopped {
        machine.stops(vcpu, reason != StopReason::Preempted);
    }
    let next = pool.schedule(machine, pcpu, stopped).map(|pick| pick.vcpu);
    machine.pcpus[pcpu].current = next.unwrap_or(VcpuId::NONE);
    next.inspect(|&vcpu| machine.runs(vcpu))
}

fn asked_to_look(machine: &mut Machine) -> Vec<PcpuId> {
    let mut pcpus: Vec<_> = std::iter::from_fn(|| machine.next_schedule()).collect();
    pcpus.sort_unstable();
    pcpus
}

/// All of them wake, and the pCPUs get the first ones.
fn all_run(pool: &mut FairShare<KvmHost>, machine: &mut Machine) {
    machine.vcpus.ids().for_each(|vcpu| wake(pool, machine, vcpu));
    for pcpu in asked_to_look(machine) {
        next_on(pool, machine, pcpu, StopReason::Preempted);
    }
}

#[test]
fn a_woken_vcpu_goes_to_the_idle_pcpu_that_it_ran_on_last() {
    let (mut pool, mut machine) = host(4, &[1]);
    machine.vcpus[VcpuId::new(0)].pcpu = PcpuId::new(2);
    wake(&mut pool, &mut machine, VcpuId::new(0));
    assert_eq!(asked_to_look(&mut machine), [PcpuId::new(2)]);
    assert_eq!(next_on(&mut pool, &mut machine, PcpuId::new(2), StopReason::Preempted), Some(VcpuId::new(0)));
}

#[test]
fn two_that_wake_at_once_go_to_two_idle_pcpus() {
    let (mut pool, mut machine) = host(2, &[2]);
    machine.vcpus[VcpuId::new(1)].pcpu = PcpuId::new(0);
    (0..2).for_each(|vcpu| wake(&mut pool, &mut machine, VcpuId::new(vcpu)));
    assert_eq!(asked_to_look(&mut machine), [0, 1].map(PcpuId::new));
}

/// One of two sleepers wakes beside one that computes, on one pCPU; which pCPUs look at their queues because
/// of it.
fn woken_beside(was_woken_itself: bool) -> Vec<PcpuId> {
    let (mut pool, mut machine) = host(1, &[1, 1]);
    wake(&mut pool, &mut machine, VcpuId::new(0));
    asked_to_look(&mut machine);
    next_on(&mut pool, &mut machine, PcpuId::new(0), StopReason::Preempted);
    if !was_woken_itself {
        machine.now_ns = SLICE_NS;
        next_on(&mut pool, &mut machine, PcpuId::new(0), StopReason::Preempted);
    }
    wake(&mut pool, &mut machine, VcpuId::new(1));
    asked_to_look(&mut machine)
}

#[test]
fn a_woken_vcpu_within_its_share_preempts_those_that_were_not_woken_themselves() {
    assert_eq!(woken_beside(false), [PcpuId::new(0)]);
    assert!(woken_beside(true).is_empty());
}

#[test]
fn a_woken_vcpu_looks_at_the_next_pcpus_too_for_one_that_gives_way() {
    // All but one of six pCPUs run a vCPU that was woken itself; which one looks at its queue because of one
    // that ran on 5 last.
    let preempted = |gives_way: u32| {
        let (mut pool, mut machine) = host(6, &[1; 7]);
        (0..6).for_each(|vcpu| wake(&mut pool, &mut machine, VcpuId::new(vcpu)));
        for pcpu in asked_to_look(&mut machine) {
            next_on(&mut pool, &mut machine, pcpu, StopReason::Preempted);
        }
        pool.turns[PcpuId::new(gives_way)].was_woken = false;
        machine.vcpus[VcpuId::new(6)].pcpu = PcpuId::new(5);
        wake(&mut pool, &mut machine, VcpuId::new(6));
        asked_to_look(&mut machine)
    };
    assert_eq!([5, 0, 2].map(preempted), [5, 0, 2].map(|pcpu| vec![PcpuId::new(pcpu)]));
    assert!(preempted(3).is_empty(), "that is too far");
}

#[test]
fn turns_end_at_ticks() {
    let (mut pool, mut machine) = host(1, &[1]);
    all_run(&mut pool, &mut machine);
    // It was boosted: a third of a slice.
    for (now_ns, ends) in [(8 * MS, false), (12 * MS, true)] {
        machine.now_ns = now_ns;
        pool.tick(&mut machine, PcpuId::new(0));
        assert_eq!(asked_to_look(&mut machine) == [PcpuId::new(0)], ends, "{now_ns}");
    }
}

#[test]
fn a_vcpu_that_is_alone_goes_on_and_owes_nothing_for_it() {
    let (mut pool, mut machine) = host(1, &[1, 1]);
    wake(&mut pool, &mut machine, VcpuId::new(0));
    next_on(&mut pool, &mut machine, PcpuId::new(0), StopReason::Preempted);
    machine.now_ns = 10 * SLICE_NS;
    assert_eq!(next_on(&mut pool, &mut machine, PcpuId::new(0), StopReason::Preempted), Some(VcpuId::new(0)));
    assert_eq!(pool.accounts[VcpuId::new(0)].vtime_ns, pool.clocks.of(PcpuId::new(0), false).vcpu_ns);
}

/// vCPU 0 has run a slice on pCPU 0, where 3 ran before, 2 waits for so long; which is next?
fn after_a_slice(ahead_by: u64, waited_ns: u64) -> Option<VcpuId> {
    let (mut pool, mut machine) = host(2, &[1, 1, 1, 1]);
    all_run(&mut pool, &mut machine);
    machine.now_ns = SLICE_NS - waited_ns;
    for waits in [2, 3] {
        assert!(pool.take_out(&machine, VcpuId::new(waits)));
        machine.vcpus[VcpuId::new(waits)].pcpu = PcpuId::new(1);
        pool.put_ordered(&machine, VcpuId::new(waits));
    }
    machine.now_ns = SLICE_NS;
    assert!(pool.take_out(&machine, VcpuId::new(3)));
    machine.vcpus[VcpuId::new(3)].pcpu = PcpuId::new(0);
    pool.accounts[VcpuId::new(3)].vtime_ns += ahead_by;
    pool.put_ordered(&machine, VcpuId::new(3));
    next_on(&mut pool, &mut machine, PcpuId::new(0), StopReason::Preempted)
}

#[test]
fn the_vcpu_that_ran_here_last_goes_first_if_it_is_at_most_a_slice_ahead_and_nobody_waits_for_long() {
    assert_eq!(after_a_slice(SLICE_NS, 0), Some(VcpuId::new(3)));
    assert_eq!(after_a_slice(SLICE_NS + 1, 0), Some(VcpuId::new(2)));
    assert_eq!(after_a_slice(SLICE_NS, SLICE_NS / 10), Some(VcpuId::new(2)));
}

/// vCPU 0 spins on the only pCPU, its sibling 1 is so far ahead of vCPU 2, which waits longest; which is
/// next?
fn after_a_yield(ahead_by: u64) -> Option<VcpuId> {
    let (mut pool, mut machine) = host(1, &[2, 1]);
    all_run(&mut pool, &mut machine);
    pool.accounts[VcpuId::new(1)].vtime_ns += ahead_by;
    for waits in [1, 2] {
        assert!(pool.take_out(&machine, VcpuId::new(waits)));
        pool.put_ordered(&machine, VcpuId::new(waits));
    }
    machine.now_ns = MS;
    assert_eq!(
        pool.yields(&mut machine, VcpuId::new(0), PcpuId::new(0), YieldCause::Ple),
        YieldAnswer::Yield
    );
    next_on(&mut pool, &mut machine, PcpuId::new(0), StopReason::Ple)
}

#[test]
fn a_yield_gives_the_pcpu_to_the_sibling_that_may_be_waited_for_if_clocks_let_it() {
    // Of two active vCPUs each has half of the VM's weight.
    assert_eq!(after_a_yield(2 * SLICE_NS), Some(VcpuId::new(1)));
    assert_eq!(after_a_yield(2 * SLICE_NS + 1), Some(VcpuId::new(2)));
}

#[test]
fn without_a_sibling_that_waits_the_spinner_goes_on() {
    let (mut pool, mut machine) = host(1, &[1, 1]);
    all_run(&mut pool, &mut machine);
    let goes_on = YieldAnswer::KeepSpinning { until_ns: 0 };
    assert_eq!(pool.yields(&mut machine, VcpuId::new(0), PcpuId::new(0), YieldCause::Ple), goes_on);
}

#[test]
fn a_requested_vcpu_is_taken_out_of_whichever_queue_it_waits_in() {
    let (mut pool, mut machine) = host(1, &[1, 1]);
    all_run(&mut pool, &mut machine);
    assert!(!pool.take_out(&machine, VcpuId::new(0)), "it runs");
    assert!(pool.take_out(&machine, VcpuId::new(1)));
    assert!(!pool.take_out(&machine, VcpuId::new(1)));
    pool.put_first(&mut machine, VcpuId::new(1));
    assert!(pool.take_out(&machine, VcpuId::new(1)));
}

#[test]
fn a_vcpu_that_waited_for_two_seconds_goes_before_those_with_earlier_clocks() {
    let (mut pool, mut machine) = host(1, &[1, 1, 1]);
    all_run(&mut pool, &mut machine);
    for waits in [1, 2] {
        if pool.accounts[VcpuId::new(waits)].place != Place::Nowhere {
            assert!(pool.take_out(&machine, VcpuId::new(waits)));
        }
    }
    pool.accounts[VcpuId::new(2)].vtime_ns += 100 * SLICE_NS;
    pool.put_ordered(&machine, VcpuId::new(2));
    machine.now_ns = STARVING_AFTER_NS + 1;
    pool.put_ordered(&machine, VcpuId::new(1));
    pool.timer(&mut machine);
    assert_eq!(next_on(&mut pool, &mut machine, PcpuId::new(0), StopReason::Preempted), Some(VcpuId::new(2)));
}

/// Four pCPUs, two to a last-level cache and each with its own queues. They run vCPUs 0 to 3; the others wait
/// where they are told.
fn pcpus_with_queues_of_their_own(waiting: &[u32]) -> (FairShare<KvmHost>, Machine) {
    let vms = (0..4 + waiting.len()).map(|_| HostVm::new(1, 256, Vec::new())).collect();
    let (mut pool, mut machine) = host_of(4, 2, QueueDomain::Pcpu, vms);
    (0..4).for_each(|vcpu| wake(&mut pool, &mut machine, VcpuId::new(vcpu)));
    for pcpu in asked_to_look(&mut machine) {
        next_on(&mut pool, &mut machine, pcpu, StopReason::Preempted);
    }
    for (vcpu, &home) in (4..).map(VcpuId::new).zip(waiting) {
        (machine.vcpus[vcpu].pcpu, pool.accounts[vcpu].home) = (PcpuId::new(home), PcpuId::new(home));
        machine.wakes(vcpu);
        pool.put_back(&mut machine, vcpu);
    }
    (pool, machine)
}

/// What the first pCPU runs once its vCPU has blocked.
fn next_after_a_halt(pool: &mut FairShare<KvmHost>, machine: &mut Machine) -> Option<VcpuId> {
    let first = PcpuId::new(0);
    let ran = machine.current(first).expect("somebody");
    machine.blocks(ran);
    pool.schedule(machine, first, Some((ran, StopReason::Hlt))).map(|pick| pick.vcpu)
}

#[test]
fn a_pcpu_with_nothing_to_run_takes_a_vcpu_that_waits_in_the_nearest_domain() {
    for (waiting, next) in [(&[2, 1][..], Some(5)), (&[3, 2], Some(5)), (&[0, 1], Some(4)), (&[], None)] {
        let (mut pool, mut machine) = pcpus_with_queues_of_their_own(waiting);
        let next = next.map(VcpuId::new);
        assert_eq!(next_after_a_halt(&mut pool, &mut machine), next, "{waiting:?}");
    }
}

#[test]
fn a_pcpu_that_has_a_vcpu_to_run_takes_another_only_if_that_one_is_a_slice_further_behind() {
    for (ran_ns, next) in [(SLICE_NS / 2, 0), (2 * SLICE_NS, 4)] {
        let (mut pool, mut machine) = pcpus_with_queues_of_their_own(&[3]);
        machine.now_ns = ran_ns;
        let chosen = next_on(&mut pool, &mut machine, PcpuId::new(0), StopReason::SliceExpired);
        assert_eq!(chosen, Some(VcpuId::new(next)), "it ran for {ran_ns}");
    }
}

#[test]
fn a_woken_vcpu_that_preempts_elsewhere_waits_where_the_preempted_pcpu_looks() {
    let (mut pool, mut machine) = pcpus_with_queues_of_their_own(&[0]);
    let (woken, elsewhere) = (VcpuId::new(4), PcpuId::new(3));
    assert!(pool.take_out(&machine, woken));
    pool.turns[elsewhere].was_woken = false;
    machine.blocks(woken);
    wake(&mut pool, &mut machine, woken);
    assert_eq!(asked_to_look(&mut machine), [elsewhere]);
    assert_eq!(next_on(&mut pool, &mut machine, elsewhere, StopReason::Preempted), Some(woken));
}

#[test]
fn a_vcpu_that_may_run_on_one_pcpu_only_has_that_ones_queue_and_no_other_pcpu_looks_there() {
    for domain in [QueueDomain::Pcpu, QueueDomain::Llc, QueueDomain::Host] {
        let vms = [vec![true, false], vec![]].map(|affinity| HostVm::new(2, 256, affinity));
        let (mut pool, mut machine) = host_of(2, 2, domain, vms.into());
        for vcpu in machine.vcpus.ids() {
            machine.wakes(vcpu);
            pool.put_back(&mut machine, vcpu);
        }
        let line = |pcpu| pool.in_line(&machine, PcpuId::new(pcpu)).map(|waiter| waiter.vcpu.number());
        let lines = [0, 1].map(|pcpu| line(pcpu).collect::<Vec<_>>());
        let due = if domain == QueueDomain::Pcpu {
            [vec![0, 1, 2], vec![3]]
        } else {
            [vec![0, 1, 2, 3], vec![2, 3]]
        };
        assert_eq!(lines, due, "{domain:?}");
    }
}
