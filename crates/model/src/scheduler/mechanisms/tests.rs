//! What a spinner's pass does, and what the prototype's does in its place. `asked_again.rs` has the tests of
//! what is asked for again.

use super::passes::{PassCounts, siblings_round_from};
use super::xen_prototype::siblings_from_first;
use super::*;
use crate::config::{HostConfig, NormalPoolKind, PleConfig};
use crate::machine::{HostVm, PauseWindows};
use crate::samples;
pub use crate::scheduler::credit::Credit;
use policy::GuestClass;

/// The real scheduler's normal pool.
pub type FairShare = crate::scheduler::core::FairShare<KvmHost>;

/// vCPUs of one VM on two pCPUs, the second of them micro-sliced: the first spins for a shootdown on pCPU 0,
/// a millisecond after it came there, so that the rate limit lets it yield; the others wait for that pCPU.
pub const SPINNER: VcpuId = VcpuId::new(0);
pub const SIBLINGS: [VcpuId; 2] = [VcpuId::new(1), VcpuId::new(2)];

pub fn spinning_for_a_shootdown() -> (MicroSliced<Credit>, Machine) {
    spinning_among(SIBLINGS.len() as u32)
}

/// Likewise, with more siblings.
pub fn spinning_among(siblings: u32) -> (MicroSliced<Credit>, Machine) {
    let parameters = samples::micro();
    let vm = HostVm::new(1 + siblings, 256, Vec::new());
    let mut machine = Machine::new(&HostConfig { pcpus: 2, llc_pcpus: 2, ..samples::host() }, vec![vm]);
    let NormalPoolKind::Credit(normal) = parameters.normal.clone() else { panic!("credit") };
    let mut micro = MicroSliced::new(parameters, Credit::new(normal, &machine), false, &mut machine);
    micro.timer(&mut machine);
    machine.wakes(SPINNER);
    machine.runs(SPINNER);
    machine.set_class(SPINNER, GuestClass::TlbShootdown);
    machine.pcpus[PcpuId::new(0)].current = SPINNER;
    micro.normal.set_idle(PcpuId::new(0), false);
    for sibling in machine.vcpus.ids().skip(1) {
        machine.wakes(sibling);
        machine.runs(sibling);
        machine.stops(sibling, false);
        machine.set_class(sibling, GuestClass::User);
        micro.normal.put_back(&mut machine, sibling);
    }
    machine.now_ns = 2_000_000;
    (micro, machine)
}

/// The real scheduler on so many pCPUs, the last of them micro-sliced; all vCPUs of these VMs have woken, one
/// after the other.
pub fn all_woken(
    pcpus: usize,
    vms: &[u32],
    change: impl FnOnce(&mut MicroSlicedConfig),
) -> (MicroSliced<FairShare>, Machine) {
    let mut parameters = samples::microslice();
    change(&mut parameters);
    let vms = vms.iter().map(|&vcpus| HostVm::new(vcpus, 256, Vec::new())).collect();
    let mut machine = Machine::new(&HostConfig { pcpus, llc_pcpus: pcpus, ..samples::host() }, vms);
    let NormalPoolKind::FairShare(normal) = &parameters.normal else { panic!("fair share") };
    let normal = FairShare::new(normal, &machine);
    let mut micro = MicroSliced::new(parameters, normal, false, &mut machine);
    micro.timer(&mut machine);
    look(&mut micro, &mut machine);
    for vcpu in machine.vcpus.ids() {
        machine.wakes(vcpu);
        micro.wake(&mut machine, vcpu);
        look(&mut micro, &mut machine);
    }
    (micro, machine)
}

/// All pCPUs that were asked to choose do.
pub fn look(micro: &mut MicroSliced<FairShare>, machine: &mut Machine) {
    while let Some(pcpu) = machine.next_schedule() {
        choose(micro, machine, pcpu, StopReason::Preempted);
    }
}

/// The vCPU that runs there stops for that reason.
pub fn choose(
    micro: &mut MicroSliced<FairShare>,
    machine: &mut Machine,
    pcpu: PcpuId,
    reason: StopReason,
) -> Option<Pick> {
    let stopped = machine.current(pcpu).map(|vcpu| (vcpu, reason));
    let pick = micro.schedule(machine, pcpu, stopped);
    let picked = pick.map(|pick| pick.vcpu);
    let ran = stopped.map(|(vcpu, _)| vcpu);
    if ran != picked {
        ran.inspect(|&vcpu| machine.stops(vcpu, false));
        picked.inspect(|&vcpu| machine.runs(vcpu));
    }
    machine.pcpus[pcpu].current = picked.unwrap_or(VcpuId::NONE);
    machine.pcpus[pcpu].slice_end_ns = pick.map_or(u64::MAX, |pick| pick.slice_end_ns);
    pick
}

fn becomes_the_prototypes(micro: &mut MicroSliced<Credit>, machine: &Machine) {
    micro.prototype = Some(XenPrototype::new(machine));
    micro.answers = Answers::new(&micro.rules, false);
    micro.answers.set_pool_size(micro.pool.count());
}

fn keeps_spinning(micro: &mut MicroSliced<Credit>, machine: &mut Machine) -> bool {
    micro.yields(machine, SPINNER, PcpuId::new(0), YieldCause::Ple) != YieldAnswer::Yield
}

#[test]
fn a_responder_that_owes_an_answer_is_requested_and_one_that_gave_it_is_not() {
    let (mut micro, mut machine) = spinning_for_a_shootdown();
    machine.set_owes_answer(SIBLINGS[1], true);
    assert!(keeps_spinning(&mut micro, &mut machine));
    let requested = SIBLINGS.map(|sibling| machine.vcpus[sibling].requested);
    assert_eq!(requested, [false, true]);
}

#[test]
fn patience_runs_out_where_the_pause_loop_window_outgrew_it() {
    for (windows, keeps_at_last) in [(1, true), (2, false)] {
        let (mut micro, mut machine) = spinning_for_a_shootdown();
        let ple = PleConfig { window_grow: windows, ..PleConfig::CONSTANT };
        machine.pause_windows = PauseWindows::new(&ple, machine.vcpus.len());
        machine.set_class(SPINNER, GuestClass::LockWaiter);
        assert!(keeps_spinning(&mut micro, &mut machine), "nobody was preempted in critical code");
        if machine.pause_windows.grow() {
            machine.pause_windows.set(SPINNER, 3_000_000);
        }
        // Beyond the patience of 1 ms. In a window that doesn't grow so late an exit is of another wait.
        machine.now_ns += 3_000_000;
        assert_eq!(keeps_spinning(&mut micro, &mut machine), keeps_at_last, "factor {windows}");
    }
}

#[test]
fn when_all_have_answered_nobody_is_requested() {
    let (mut micro, mut machine) = spinning_for_a_shootdown();
    assert!(keeps_spinning(&mut micro, &mut machine), "its patience lasts");
    assert_eq!(machine.pool.acceleration_count(), 0);
}

#[test]
fn a_pass_that_finds_no_room_does_what_one_does_that_looks_at_all() {
    let scopes = [PassScope::OneCritical, PassScope::AllPreempted, PassScope::AllOwing];
    let classes = [GuestClass::User, GuestClass::LockHolder, GuestClass::TlbShootdown];
    let mut any = false;
    for (scope, class, owes) in
        scopes.iter().flat_map(|scope| classes.map(|class| (*scope, class))).flat_map(|(scope, class)| {
            [[false, false], [true, false], [false, true], [true, true]].map(|owes| (scope, class, owes))
        })
    {
        let run = |pass: fn(&mut MicroSliced<Credit>, &mut Machine, PassScope) -> PassCounts| {
            let (mut micro, mut machine) = spinning_for_a_shootdown();
            machine.set_class(SIBLINGS[1], class);
            SIBLINGS.into_iter().zip(owes).for_each(|(sibling, owes)| machine.set_owes_answer(sibling, owes));
            micro.pool.set_next_on(PcpuId::new(1), Some(VcpuId::NONE));
            let found = [(); 2].map(|()| pass(&mut micro, &mut machine, scope));
            (found, micro.asked_again.all_turned_away(), machine.pool)
        };
        let found = run(|micro, machine, scope| micro.pass(machine, SPINNER, scope, Cause::TlbYield));
        let looked_for = run(|micro, machine, scope| {
            let siblings = siblings_round_from(machine, SPINNER);
            micro.visit(machine, siblings, scope, Cause::TlbYield)
        });
        assert_eq!(found, looked_for, "{scope:?} {class:?} {owes:?}");
        any |= found.1.0.iter().any(Option::is_some);
    }
    assert!(any, "some sibling is turned away");
}

#[test]
fn in_the_prototype_a_pass_ends_at_the_first_sibling_without_room() {
    let failed = |pass: fn(&mut MicroSliced<Credit>, &mut Machine)| {
        let (mut micro, mut machine) = spinning_for_a_shootdown();
        becomes_the_prototypes(&mut micro, &machine);
        micro.pool.set_next_on(PcpuId::new(1), Some(VcpuId::NONE));
        pass(&mut micro, &mut machine);
        machine.pool
    };
    let found = failed(|micro, machine| {
        micro.pass_in_prototype(machine, SPINNER, PassScope::AllPreempted, Cause::TlbYield);
    });
    let looked_for = failed(|micro, machine| {
        let siblings = siblings_from_first(machine, SPINNER);
        micro.visit_in_prototype(machine, siblings, PassScope::AllPreempted, Cause::TlbYield);
    });
    assert_eq!(found, looked_for);
    assert_eq!(found.requests().map(|(_, count)| count).sum::<u64>(), 1, "of two who wait");
}

#[test]
fn while_a_sibling_runs_and_is_about_to_answer_the_spinner_goes_on() {
    let (mut micro, mut machine) = spinning_for_a_shootdown();
    machine.set_owes_answer(SIBLINGS[0], true);
    machine.runs(SIBLINGS[0]);
    assert!(keeps_spinning(&mut micro, &mut machine));
    assert_eq!(machine.pool.acceleration_count(), 0);
}

#[test]
fn the_prototype_asks_for_siblings_that_have_answered() {
    let (mut micro, mut machine) = spinning_for_a_shootdown();
    becomes_the_prototypes(&mut micro, &machine);
    assert!(keeps_spinning(&mut micro, &mut machine));
    let requested = SIBLINGS.map(|sibling| machine.vcpus[sibling].requested);
    assert_eq!(requested, [true, false], "there is room for one");
}

/// In the prototype, the first sibling runs on the micro pCPU; what was decided about it.
fn prototype_with_a_sibling_on_the_micro_pcpu() -> (MicroSliced<Credit>, Machine, Pick) {
    let (mut micro, mut machine) = spinning_for_a_shootdown();
    becomes_the_prototypes(&mut micro, &machine);
    micro.accelerate(&mut machine, SIBLINGS[0], Cause::TlbYield);
    let pick = micro.schedule(&mut machine, PcpuId::new(1), None).expect("it is requested");
    machine.runs(pick.vcpu);
    machine.pcpus[PcpuId::new(1)].current = pick.vcpu;
    machine.pcpus[PcpuId::new(1)].slice_end_ns = pick.slice_end_ns;
    (micro, machine, pick)
}

#[test]
fn in_the_prototype_a_spinner_on_a_micro_pcpu_goes_back_only_if_another_waits_there() {
    let (mut micro, mut machine, pick) = prototype_with_a_sibling_on_the_micro_pcpu();
    machine.now_ns += 50_000;
    let answer = micro.yields(&mut machine, pick.vcpu, PcpuId::new(1), YieldCause::Ple);
    assert_eq!(answer, YieldAnswer::KeepSpinning { until_ns: machine.now_ns });
    assert_eq!(machine.pcpus[PcpuId::new(1)].slice_end_ns, pick.slice_end_ns + 50_000, "a slice more");
    micro.accelerate(&mut machine, SIBLINGS[1], Cause::TlbYield);
    assert_eq!(micro.yields(&mut machine, pick.vcpu, PcpuId::new(1), YieldCause::Ple), YieldAnswer::Yield);
}

#[test]
fn the_prototype_takes_blocked_siblings_along_and_the_first_to_wake_gets_a_micro_slice() {
    let (mut micro, mut machine) = spinning_for_a_shootdown();
    becomes_the_prototypes(&mut micro, &machine);
    for sibling in SIBLINGS {
        assert!(micro.normal.take_out(&machine, sibling));
        machine.runs(sibling);
        machine.blocks(sibling);
    }
    assert!(keeps_spinning(&mut micro, &mut machine));
    assert_eq!(machine.pool.acceleration_count(), 0, "they still sleep");
    for sibling in SIBLINGS {
        machine.wakes(sibling);
        micro.wake(&mut machine, sibling);
    }
    assert_eq!(micro.pool.next_on(PcpuId::new(1)), Some(SIBLINGS[0]));
    assert!(!micro.pool.is_accelerated(SIBLINGS[1]), "one waits for a micro pCPU, not two");
    assert!(micro.normal.take_out(&machine, SIBLINGS[1]), "it waits in the normal pool");
}

#[test]
fn the_vm_that_a_full_micro_pool_turned_away_is_that_of_the_blocked_sibling() {
    let (mut micro, machine) = all_woken(2, &[2, 1], |config| {
        (config.mechanics, config.home_slices) = (Mechanics::XenPrototype, false);
    });
    let [first, second] = [1, 2].map(VcpuId::new);
    micro.pool.set_next_on(PcpuId::new(1), Some(first));
    assert!(!micro.take_along(&machine, second, Cause::TlbYield), "there is no room");
    assert_eq!(micro.asked_again.turned_away_from(PcpuId::new(1)), Some(machine.vcpus[second].vm));
}

#[test]
fn in_the_prototype_a_vcpu_that_blocks_on_a_micro_pcpu_wakes_there() {
    for (prototype, wakes_there) in [(true, true), (false, false)] {
        let (mut micro, mut machine, pick) = prototype_with_a_sibling_on_the_micro_pcpu();
        if !prototype {
            micro.prototype = None;
        }
        machine.now_ns += 50_000;
        machine.blocks(pick.vcpu);
        micro.schedule(&mut machine, PcpuId::new(1), Some((pick.vcpu, StopReason::Hlt)));
        machine.pcpus[PcpuId::new(1)].current = VcpuId::NONE;
        machine.wakes(pick.vcpu);
        micro.wake(&mut machine, pick.vcpu);
        assert_eq!(micro.pool.is_member(pick.vcpu, PcpuId::new(1)), wakes_there, "prototype: {prototype}");
    }
}

#[test]
fn a_tick_ends_the_boost_of_a_vcpu_in_its_micro_slice_as_of_all() {
    let (mut micro, mut machine) = spinning_for_a_shootdown();
    let [woken, _] = SIBLINGS;
    assert!(micro.normal.take_out(&machine, woken));
    machine.runs(woken);
    machine.blocks(woken);
    machine.wakes(woken);
    micro.wake(&mut machine, woken);
    micro.accelerate(&mut machine, woken, Cause::TlbYield);
    let pick = micro.schedule(&mut machine, PcpuId::new(1), None).expect("it is requested");
    assert_eq!(pick.vcpu, woken);
    machine.runs(woken);
    machine.pcpus[PcpuId::new(1)].current = woken;
    assert!(micro.normal.is_boosted(woken));
    micro.tick(&mut machine, PcpuId::new(1));
    assert!(!micro.normal.is_boosted(woken));
}
