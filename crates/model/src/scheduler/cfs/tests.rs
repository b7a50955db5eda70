use super::*;
use crate::config::{Coordination, ReschedCo, VmKnobs};
use crate::samples;

/// A host with VMs of so many vCPUs, all of which wait on the pCPUs that are named, in the order of their
/// numbers.
fn host(pcpus: usize, vms: &[u32], on: &[u32]) -> (Cfs, Machine) {
    let host = crate::config::HostConfig { pcpus, llc_pcpus: 0, ..samples::host() };
    let vms = vms.iter().map(|&vcpus| crate::machine::HostVm::new(vcpus, 256, Vec::new()));
    let mut machine = Machine::new(&host, vms.collect());
    machine.watched = false;
    machine.tracing = true;
    let mut cfs = Cfs::new(samples::cfs(), &mut machine);
    for (vcpu, &pcpu) in on.iter().enumerate() {
        let (vcpu, pcpu) = (VcpuId::from_index(vcpu), PcpuId::new(pcpu));
        machine.vcpus[vcpu].pcpu = pcpu;
        machine.wakes(vcpu);
        cfs.enqueue(0, pcpu, vcpu, true);
    }
    (cfs, machine)
}

fn run(cfs: &mut Cfs, machine: &mut Machine, pcpu: u32) -> VcpuId {
    let pcpu = PcpuId::new(pcpu);
    let stopped = machine.current(pcpu).map(|vcpu| (vcpu, StopReason::Preempted));
    if let Some((vcpu, _)) = stopped {
        machine.stops(vcpu, false);
        machine.pcpus[pcpu].current = VcpuId::NONE;
    }
    let vcpu = cfs.schedule(machine, pcpu, stopped).expect("somebody waits").vcpu;
    machine.runs(vcpu);
    machine.pcpus[pcpu].current = vcpu;
    vcpu
}

#[test]
fn two_groups_take_turns_of_half_the_latency_whatever_their_numbers_of_vcpus() {
    let (mut cfs, mut machine) = host(1, &[3, 1], &[0, 0, 0, 0]);
    let mut had_ns = [0u64; 2];
    let pcpu = PcpuId::new(0);
    for tick in 1..=2_000u64 {
        let vcpu = run(&mut cfs, &mut machine, 0);
        machine.now_ns = tick * 4_000_000;
        had_ns[machine.vcpus[vcpu].vm.index()] += 4_000_000;
        cfs.tick(&mut machine, pcpu);
    }
    let share = had_ns[0] as f64 / (had_ns[0] + had_ns[1]) as f64;
    assert!((share - 0.5).abs() < 0.02, "{share}");
}

#[test]
fn a_turn_is_over_once_its_part_of_the_latency_is() {
    let (mut cfs, mut machine) = host(1, &[1, 1], &[0, 0]);
    let pcpu = PcpuId::new(0);
    run(&mut cfs, &mut machine, 0);
    let is_over = |cfs: &mut Cfs, ms: u64| {
        cfs.charge(ms * 1_000_000, pcpu);
        cfs.turn_is_over(ms * 1_000_000, pcpu, true)
    };
    assert!(!is_over(&mut cfs, 12));
    assert!(is_over(&mut cfs, 13), "24 ms by two");
}

#[test]
fn a_sleeper_is_half_a_latency_behind_at_the_most_and_preempts() {
    let (mut cfs, mut machine) = host(1, &[1, 1], &[0]);
    let [runs, sleeper] = [VcpuId::new(0), VcpuId::new(1)];
    assert_eq!(run(&mut cfs, &mut machine, 0), runs);
    machine.now_ns = 1_000_000_000;
    machine.vcpus[sleeper].pcpu = PcpuId::new(0);
    machine.wakes(sleeper);
    cfs.wake(&mut machine, sleeper);
    let [own, other] = [1, 0].map(|vm| cfs.groups.of(PcpuId::new(0), VmId::new(vm)).vruntime_ns);
    assert_eq!(other - own, 12_000_000);
    assert_eq!(machine.next_schedule(), Some(PcpuId::new(0)));
}

#[test]
fn a_woken_vcpu_goes_to_its_wakers_pcpu_where_that_has_no_more_load() {
    let (mut cfs, mut machine) = host(2, &[2, 1, 1], &[]);
    let [waker, woken] = [VcpuId::new(0), VcpuId::new(1)];
    for (vcpu, pcpu) in [(0, 0), (2, 1), (3, 1)] {
        let (vcpu, pcpu) = (VcpuId::new(vcpu), PcpuId::new(pcpu));
        machine.vcpus[vcpu].pcpu = pcpu;
        machine.wakes(vcpu);
        cfs.enqueue(0, pcpu, vcpu, true);
    }
    run(&mut cfs, &mut machine, 0);
    run(&mut cfs, &mut machine, 1);
    machine.vcpus[woken].pcpu = PcpuId::new(1);
    assert_eq!(cfs.select_pcpu(&machine, woken, None), PcpuId::new(1), "a timer's interrupt");
    assert_eq!(cfs.select_pcpu(&machine, woken, Some(PcpuId::new(0))), PcpuId::new(0));
    machine.wakes(woken);
    cfs.ipi(&mut machine, waker, woken, IpiKind::Reschedule);
    cfs.wake(&mut machine, woken);
    assert_eq!(machine.vcpus[woken].pcpu, PcpuId::new(0), "stacked behind its sibling");
}

#[test]
fn a_pcpu_that_runs_out_takes_a_waiting_vcpu_unless_its_caches_are_hot() {
    let (mut cfs, mut machine) = host(2, &[1, 1], &[0, 0]);
    let first = run(&mut cfs, &mut machine, 0);
    machine.now_ns = 1_000_000;
    let second = run(&mut cfs, &mut machine, 0);
    assert_ne!(first, second, "it has the least runtime");
    assert_eq!(cfs.schedule(&mut machine, PcpuId::new(1), None), None, "who ran until now is hot");
    machine.now_ns = 2_000_000;
    assert_eq!(run(&mut cfs, &mut machine, 1), first);
}

#[test]
fn a_directed_yield_goes_to_a_waiting_sibling_and_passes_over_the_spinner() {
    let (mut cfs, mut machine) = host(1, &[3], &[0, 0, 0]);
    let spinner = run(&mut cfs, &mut machine, 0);
    machine.now_ns = 100_000;
    let pcpu = PcpuId::new(0);
    assert_eq!(cfs.yields(&mut machine, spinner, pcpu, YieldCause::Ple), YieldAnswer::Yield);
    let target = run(&mut cfs, &mut machine, 0);
    assert_ne!(target, spinner);
    assert_eq!(cfs.last_boosted[VmId::new(0)], target);
    machine.now_ns = 200_000;
    assert_eq!(cfs.yields(&mut machine, target, pcpu, YieldCause::Ple), YieldAnswer::Yield);
    assert_ne!(run(&mut cfs, &mut machine, 0), target, "round all siblings");
}

#[test]
fn an_urgent_vcpu_goes_before_others_in_its_line_and_runs_for_an_urgent_slice() {
    let (mut cfs, mut machine) = host(1, &[1, 2], &[0, 0, 0]);
    cfs.urgent = Urgent::new(&Coordination { tlb_co: true, ..Coordination::NONE }, &machine);
    let [sender, first, second] = [0, 1, 2].map(VcpuId::new);
    assert_eq!(run(&mut cfs, &mut machine, 0), sender);
    for recipient in [second, first] {
        cfs.ipi(&mut machine, sender, recipient, IpiKind::CallFunction);
    }
    assert_eq!(machine.next_schedule(), Some(PcpuId::new(0)), "it goes before who isn't urgent");
    assert_eq!(run(&mut cfs, &mut machine, 0), second);
    machine.now_ns = 499_000;
    assert_eq!(run(&mut cfs, &mut machine, 0), second, "its slice is protected");
    machine.now_ns = 500_000;
    assert_eq!(run(&mut cfs, &mut machine, 0), first, "round robin");
    cfs.acknowledged(&machine, first, false);
    machine.now_ns = 600_000;
    assert_eq!(run(&mut cfs, &mut machine, 0), second, "who has answered isn't urgent any longer");
}

/// A vCPU on the first of two pCPUs sends a shootdown to a sibling that waits. That one is so far ahead of
/// the VM there. What does the caller's pause-loop exit do so long after that?
fn exit_of_caller(tlb_spin: bool, waits_on: u32, ahead_ns: u64, spun_ns: u64) -> YieldAnswer {
    let (mut cfs, mut machine) = host(2, &[2, 1, 1], &[0, waits_on, 1]);
    let coordination = Coordination { tlb_co: true, tlb_spin, ..Coordination::NONE };
    cfs.urgent = Urgent::new(&coordination, &machine);
    let [caller, called, other] = [0, 1, 2].map(VcpuId::new);
    assert_eq!(run(&mut cfs, &mut machine, 0), caller);
    if waits_on == 1 {
        cfs.groups.of_mut(PcpuId::new(1), VmId::new(0)).vruntime_ns += ahead_ns + 1;
    }
    assert_eq!(run(&mut cfs, &mut machine, 1), other);
    cfs.ipi(&mut machine, caller, called, IpiKind::CallFunction);
    machine.now_ns += spun_ns;
    cfs.yields(&mut machine, caller, PcpuId::new(0), YieldCause::Ple)
}

#[test]
fn a_caller_spins_where_its_recipient_comes_urgently() {
    let keeps = |answer| matches!(answer, YieldAnswer::KeepSpinning { .. });
    assert!(keeps(exit_of_caller(true, 1, 0, 2_000)));
    assert!(!keeps(exit_of_caller(false, 1, 0, 2_000)), "KVM yields at each exit");
    assert!(!keeps(exit_of_caller(true, 1, 20_000_000, 2_000)), "its recipient is refused");
    assert!(!keeps(exit_of_caller(true, 0, 0, 2_000)), "its recipient needs this pCPU");
    assert!(!keeps(exit_of_caller(true, 1, 0, 500_000)), "an urgent slice later");
}

/// Two siblings are called by a third vCPU, which runs; then a mistake happens. What does the checker say
/// about the next one?
fn checked_after(mistake: impl Fn(&mut Cfs)) -> Result<(), String> {
    let (mut cfs, mut machine) = host(1, &[1, 2], &[0, 0, 0]);
    let coordination = Coordination { tlb_co: true, ..Coordination::NONE };
    cfs.urgent = Urgent::new(&coordination, &machine);
    let kind = crate::config::SchedulerKind::Cfs(CfsConfig { coordination, ..cfs.config.clone() });
    let mut checker = crate::checker::Checker::new(1, 3, 0, &kind, None);
    let [sender, first, second] = [0, 1, 2].map(VcpuId::new);
    assert_eq!(run(&mut cfs, &mut machine, 0), sender);
    for recipient in [first, second] {
        cfs.ipi(&mut machine, sender, recipient, IpiKind::CallFunction);
    }
    mistake(&mut cfs);
    run(&mut cfs, &mut machine, 0);
    machine.trace.iter().try_for_each(|event| checker.observe(machine.now_ns, event))
}

#[test]
fn a_scheduler_that_breaks_the_order_of_its_urgent_queue_is_found() {
    assert_eq!(checked_after(|_| ()), Ok(()));
    let error = checked_after(|cfs| cfs.urgent.lines[PcpuId::new(0)].swap(0, 1));
    assert_eq!(error, Err("vCPU 2 goes before vCPU 1, which came sooner".to_owned()));
}

#[test]
fn a_scheduler_that_exceeds_or_withholds_the_urgent_allowance_is_found() {
    let runs_ahead = |cfs: &mut Cfs, ns: u64| {
        cfs.groups.of_mut(PcpuId::new(0), VmId::new(1)).vruntime_ns += ns;
    };
    let far_ahead = |cfs: &mut Cfs| {
        runs_ahead(cfs, 20_000_000);
        cfs.urgent.config.allowance_ns = 30_000_000;
    };
    let error = checked_after(far_ahead).expect_err("18 ms are allowed");
    assert!(error.contains("vCPU 1 goes first though it is 20000000 ns ahead"), "{error}");
    let near = |cfs: &mut Cfs| {
        runs_ahead(cfs, 5_000_000);
        cfs.urgent.config.allowance_ns = 1_000_000;
    };
    let error = checked_after(near).expect_err("18 ms are allowed");
    assert!(error.contains("vCPU 1 is refused though it is only 5000000 ns ahead"), "{error}");
}

#[test]
fn an_urgent_vcpu_that_is_moved_stands_in_the_other_line() {
    let (mut cfs, mut machine) = host(2, &[1, 2], &[0, 0, 0]);
    cfs.urgent = Urgent::new(&Coordination { tlb_co: true, ..Coordination::NONE }, &machine);
    let [sender, recipient] = [0, 1].map(VcpuId::new);
    assert_eq!(run(&mut cfs, &mut machine, 0), sender);
    cfs.ipi(&mut machine, sender, recipient, IpiKind::CallFunction);
    let [from, to] = [0, 1].map(PcpuId::new);
    cfs.move_waiting(&mut machine, recipient, from, to);
    assert!(cfs.urgent.lines[from].is_empty());
    assert_eq!(cfs.urgent.lines[to], [recipient]);
}

#[test]
fn a_vms_knobs_go_before_those_of_the_policy() {
    let (cfs, mut machine) = host(1, &[1, 1], &[]);
    machine.vms[VmId::new(1)].knobs =
        VmKnobs { resched_dp: Some(false), tlb_co: None, resched_co: Some(ReschedCo::On) };
    let of_all = Coordination { resched_dp: true, tlb_co: true, ..cfs.config.coordination };
    let knobs = knobs::Knobs::new(&of_all, &machine);
    let schemes = [0, 1].map(|vm| knobs.schemes_of(VmId::new(vm)));
    use microslice_policy::coordinated::{RESCHED_CO, RESCHED_DP, TLB_CO};
    assert_eq!(schemes, [RESCHED_DP | TLB_CO, TLB_CO | RESCHED_CO]);
}

#[test]
fn coscheduling_by_reschedule_ipis_is_tried_and_kept_where_they_get_rarer() {
    let (cfs, machine) = host(1, &[1, 1], &[]);
    let of_all = Coordination { resched_co: ReschedCo::Auto, ..cfs.config.coordination };
    let mut knobs = knobs::Knobs::new(&of_all, &machine);
    let [friendly, indifferent] = [0, 1].map(VmId::new);
    use microslice_policy::coordinated::RESCHED_CO;
    for tick in 1..=200 {
        for vm in [friendly, indifferent] {
            let is_on = knobs.schemes_of(vm) & RESCHED_CO != 0;
            let ipis = if is_on && vm == friendly { 5 } else { 10 };
            (0..ipis).for_each(|_| knobs.count_resched_ipi(vm));
            knobs.ran(vm, 4_000_000);
        }
        knobs.look(tick * 4_000_000);
    }
    assert_ne!(knobs.schemes_of(friendly) & RESCHED_CO, 0);
    assert_eq!(knobs.schemes_of(indifferent) & RESCHED_CO, 0);
}
