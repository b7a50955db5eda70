//! What the credit scheduler does at single moments.

use super::*;
use crate::machine::HostVm;
use crate::samples;

const MS: u64 = 1_000_000;
/// The vCPUs of two VMs with one each.
const SPINNER: VcpuId = VcpuId::new(0);
const OTHER: VcpuId = VcpuId::new(1);

/// A host with so many VMs of one vCPU each.
fn host(pcpus: usize, vms: usize) -> (Credit, Machine) {
    let host = crate::config::HostConfig { pcpus, llc_pcpus: pcpus, ..samples::host() };
    let vms = (0..vms).map(|_| HostVm::new(1, 256, Vec::new())).collect();
    let machine = Machine::new(&host, vms);
    (Credit::new(samples::credit(), &machine), machine)
}

/// The spinner runs on the only pCPU since time 0, the other one waits there with that priority.
fn two_on_one_pcpu(other: Priority) -> (Credit, Machine) {
    let (mut credit, mut machine) = host(1, 2);
    machine.vcpus[OTHER].state = VcpuState::Runnable;
    credit.accounts[OTHER].priority = other;
    credit.put_back(&mut machine, OTHER);
    machine.vcpus[SPINNER].state = VcpuState::Running;
    machine.pcpus[PcpuId::new(0)].current = SPINNER;
    machine.pcpus[PcpuId::new(0)].slice_end_ns = 30 * MS;
    credit.set_idle(PcpuId::new(0), false);
    (credit, machine)
}

#[test]
fn a_yield_within_the_rate_limit_takes_effect_when_the_limit_ends() {
    let (mut credit, mut machine) = two_on_one_pcpu(Priority::Over);
    machine.now_ns = MS / 10;
    let answer = credit.yields(&mut machine, SPINNER, PcpuId::new(0), YieldCause::Ple);
    assert_eq!(answer, YieldAnswer::KeepSpinning { until_ns: MS });
    assert_eq!(machine.pcpus[PcpuId::new(0)].slice_end_ns, MS);
    machine.now_ns = MS;
    let pick = credit.schedule(&mut machine, PcpuId::new(0), Some((SPINNER, StopReason::SliceExpired)));
    assert_eq!(pick.map(|pick| pick.vcpu), Some(OTHER), "behind one of lower priority");
}

/// No vCPU waits, and the spinner was promised to go on: pCPUs to ask again once one waits on the other pCPU.
fn asked_again(spinner: Priority) -> Vec<PcpuId> {
    let (mut credit, mut machine) = host(2, 3);
    for (pcpu, vcpu) in [(PcpuId::new(0), SPINNER), (PcpuId::new(1), OTHER)] {
        machine.vcpus[vcpu].state = VcpuState::Running;
        machine.pcpus[pcpu].current = vcpu;
        credit.set_idle(pcpu, false);
    }
    credit.accounts[SPINNER].priority = spinner;
    machine.now_ns = 2 * MS;
    let answer = credit.yields(&mut machine, SPINNER, PcpuId::new(0), YieldCause::Ple);
    assert!(matches!(answer, YieldAnswer::KeepSpinning { .. }), "nobody waits: {answer:?}");
    let woken = VcpuId::new(2);
    machine.vcpus[woken].state = VcpuState::Runnable;
    machine.vcpus[woken].pcpu = PcpuId::new(1);
    credit.put_back(&mut machine, woken);
    machine.unbatch.sort_unstable();
    machine.unbatch
}

#[test]
fn a_spinner_beyond_its_credits_is_asked_again_as_soon_as_a_vcpu_waits_anywhere() {
    assert_eq!(
        asked_again(Priority::Over),
        [0, 1].map(PcpuId::new),
        "its pCPU would take who waits on the other one"
    );
    assert_eq!(asked_again(Priority::Under), [PcpuId::new(1)], "it goes on whoever waits elsewhere");
}

#[test]
fn where_yields_are_exempt_from_the_rate_limit_they_take_effect_at_once() {
    let (mut credit, mut machine) = two_on_one_pcpu(Priority::Over);
    credit.config.ratelimit_yields = false;
    machine.now_ns = MS / 10;
    assert_eq!(credit.yields(&mut machine, SPINNER, PcpuId::new(0), YieldCause::Ple), YieldAnswer::Yield);
    let pick = credit.schedule(&mut machine, PcpuId::new(0), Some((SPINNER, StopReason::Ple)));
    assert_eq!(pick.map(|pick| pick.vcpu), Some(OTHER));
}

#[test]
fn without_a_yield_the_one_within_its_credits_runs_on() {
    let (mut credit, mut machine) = two_on_one_pcpu(Priority::Over);
    machine.now_ns = 30 * MS;
    let pick = credit.schedule(&mut machine, PcpuId::new(0), Some((SPINNER, StopReason::SliceExpired)));
    assert_eq!(pick.map(|pick| pick.vcpu), Some(SPINNER));
}

#[test]
fn a_forgiven_vcpu_runs_before_those_without_credits_but_is_not_boosted() {
    let (mut credit, mut machine) = two_on_one_pcpu(Priority::Over);
    assert!(credit.take_out(&machine, OTHER));
    credit.forgive(OTHER);
    credit.put_back(&mut machine, OTHER);
    credit.tickle(&mut machine, OTHER);
    assert_eq!(machine.next_schedule(), None, "the one that runs is within its credits, too");
    credit.accounts[SPINNER].priority = Priority::Over;
    credit.tickle(&mut machine, OTHER);
    assert_eq!(machine.next_schedule(), Some(PcpuId::new(0)));
}

#[test]
fn nobody_earns_more_than_a_pcpu_and_nothing_is_lost_while_another_can_earn_it() {
    for (pcpus, earned) in
        [(1, [37_500, 75_000, 187_500]), (2, [100_000, 200_000, 300_000]), (4, [300_000; 3])]
    {
        let (mut credit, mut machine) = host(pcpus, 3);
        machine.vms.iter_mut().zip([128, 256, 640]).for_each(|(vm, weight)| vm.weight = weight);
        credit.accounts.iter_mut().for_each(|account| account.active = true);
        credit.account(&machine);
        let credits: Vec<i64> = credit.accounts.iter().map(|account| account.credit).collect();
        assert_eq!(credits, earned, "{pcpus} pCPUs");
    }
}

#[test]
fn credits_are_those_of_the_usable_pcpus_or_of_all() {
    for (all_pcpus_earn, earned) in [(false, 0), (true, CREDITS_PER_PERIOD * SCALE / 2)] {
        let (mut credit, machine) = two_on_one_pcpu(Priority::Under);
        credit.set_usable(PcpuId::new(0), false);
        credit.all_pcpus_earn = all_pcpus_earn;
        credit.accounts.iter_mut().for_each(|account| account.active = true);
        credit.account(&machine);
        assert_eq!(credit.accounts[OTHER].credit, earned, "all: {all_pcpus_earn}");
    }
}

#[test]
fn a_vcpu_that_yielded_is_offered_to_an_idle_pcpu_at_the_next_tick() {
    let (mut credit, mut machine) = host(2, 2);
    machine.vcpus[OTHER].state = VcpuState::Runnable;
    machine.vcpus[OTHER].pcpu = PcpuId::new(0);
    credit.put_back(&mut machine, OTHER);
    machine.vcpus[SPINNER].state = VcpuState::Running;
    credit.set_idle(PcpuId::new(0), false);
    machine.now_ns = 2 * MS;
    let picked =
        credit.schedule(&mut machine, PcpuId::new(0), Some((SPINNER, StopReason::Ple))).map(|pick| pick.vcpu);
    assert_eq!(picked, Some(OTHER));
    machine.vcpus[SPINNER].state = VcpuState::Runnable;
    machine.pcpus[PcpuId::new(0)].current = OTHER;
    assert_eq!(machine.next_schedule(), None, "a yield tells no idle pCPU");
    credit.tick(&mut machine, PcpuId::new(0));
    assert_eq!(machine.next_schedule(), Some(PcpuId::new(1)));
    assert_eq!(credit.schedule(&mut machine, PcpuId::new(1), None).map(|pick| pick.vcpu), Some(SPINNER));
    credit.tick(&mut machine, PcpuId::new(0));
    assert_eq!(machine.next_schedule(), None, "nobody waits any more");
}
