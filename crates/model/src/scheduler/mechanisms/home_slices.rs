//! Micro slices at home: where no micro pCPU would serve a request at once, a pCPU of the normal pool does,
//! if what runs there gives way. `policy/accelerate.h` (`decide_on_home`) says to which; on a real host:
//! `bpf/mechanisms/serving/home_slices.bpf.h`.
//!
//! Problem.   A micro pool is small, and far from warm caches: of eleven siblings that owe an answer ten wait
//!            for those before them.
//! Mechanism. The pCPU where the vCPU ran last in the normal pool, or one of the next three, runs it for a
//!            micro slice. The interrupted vCPU waits like any other meanwhile. Then it has what is left of
//!            its turn, before all but the boosted.
//! Limits.    Never from a sibling, nor from a VM that has had less. An interrupted vCPU runs for a micro
//!            slice at least.

use super::*;
use microslice_policy::{HomeDecision, HomeObservation};

/// How many pCPUs are looked at: `PREEMPT_LOOK_MAX` of `bpf/core/idle.bpf.h`.
const LOOK_MAX: usize = 4;

pub(super) struct HomeSlices {
    /// When a micro slice at home last ended on each pCPU.
    disturbed_at_ns: IdVec<PcpuId, u64>,
}

impl HomeSlices {
    pub fn new(machine: &Machine) -> Self {
        Self { disturbed_at_ns: IdVec::of(0, machine.pcpus.len()) }
    }
}

impl<Normal: Core> MicroSliced<Normal> {
    /// A pCPU of the normal pool that would serve it at once.
    pub(super) fn home_for(&self, machine: &Machine, vcpu: VcpuId) -> Option<PcpuId> {
        if self.rules.home_slices == 0 {
            return None;
        }
        let near = machine.pcpus.round_from(machine.vcpus[vcpu].pcpu).take(LOOK_MAX);
        let takes_it = |&pcpu: &PcpuId| {
            let seen = self.look_at_home(machine, vcpu, pcpu);
            policy::decide_on_home(&self.rules, &seen) == HomeDecision::Queue
        };
        near.filter(|&pcpu| !self.pool.has(pcpu)).find(takes_it)
    }

    /// A pCPU of the normal pool for one whose VM's bound asks: also from a sibling, whatever their VM has
    /// had, and wherever it may run.
    pub(super) fn home_for_bound(&self, machine: &Machine, vcpu: VcpuId) -> Option<PcpuId> {
        let rules = AccelerateConfig { home_slices: 1, ..self.rules };
        let takes_it = |&pcpu: &PcpuId| {
            let seen = self.look_at_home(machine, vcpu, pcpu);
            let seen = HomeObservation { vm_is_ahead: 0, is_sibling: 0, ..seen };
            policy::decide_on_home(&rules, &seen) == HomeDecision::Queue
        };
        let near = machine.pcpus.round_from(machine.vcpus[vcpu].pcpu);
        near.filter(|&pcpu| !self.pool.has(pcpu)).find(takes_it)
    }

    fn look_at_home(&self, machine: &Machine, vcpu: VcpuId, pcpu: PcpuId) -> HomeObservation {
        let on = machine.current(pcpu).filter(|_| self.normal.runs_ordinary_turn(machine, pcpu));
        let is_sibling = |on: VcpuId| machine.vcpus[on].vm == machine.vcpus[vcpu].vm;
        let undisturbed_ns = machine.now_ns - self.home_slices.disturbed_at_ns[pcpu];
        HomeObservation {
            affinity_allows: u32::from(machine.allows(vcpu, pcpu)),
            queued_count: u32::from(self.pool.next_on(pcpu).is_some()),
            gives_way: u32::from(on.is_some()),
            is_sibling: u32::from(on.is_some_and(is_sibling)),
            vm_is_ahead: u32::from(on.is_some_and(|on| self.normal.is_of_vm_ahead(vcpu, on))),
            disturbed: u32::from(undisturbed_ns < self.pool.slice_ns()),
        }
    }

    /// A pCPU of the normal pool chooses: a micro slice that it was asked for, or a turn.
    pub(super) fn first_at_home(
        &mut self,
        machine: &mut Machine,
        pcpu: PcpuId,
        stopped: Option<Stopped>,
    ) -> First {
        let ended = stopped.filter(|&(vcpu, _)| self.pool.is_member(vcpu, pcpu));
        if let Some((vcpu, _)) = ended {
            self.account(machine, vcpu);
            self.home_slices.disturbed_at_ns[pcpu] = machine.now_ns;
            self.end_micro_slice(machine, vcpu, pcpu);
        }
        let stopped = stopped.filter(|_| ended.is_none());
        if self.pool.next_on(pcpu).is_none() {
            return First::Core(stopped);
        }
        if let Some((vcpu, reason)) = stopped {
            if let Some(pick) = self.finishes_first(machine, vcpu, pcpu, reason) {
                return First::Mechanisms(Some(pick));
            }
            self.makes_room(machine, vcpu, pcpu, reason);
        }
        let Some(vcpu) = self.pool.take_next(pcpu) else { return First::Core(None) };
        machine.pool.home_slices += 1;
        First::Mechanisms(Some(self.begin_micro_slice(machine, pcpu, vcpu)))
    }

    /// The vCPU that ran there goes to the normal pool's queues: for the micro slice, or because it has
    /// blocked or yielded at this very moment.
    fn makes_room(&mut self, machine: &mut Machine, vcpu: VcpuId, pcpu: PcpuId, reason: StopReason) {
        let blocks = machine.vcpus[vcpu].state == VcpuState::Blocked;
        if !blocks && !matches!(reason, StopReason::Ple | StopReason::IpiWait) {
            self.normal.interrupt_turn(machine, vcpu, pcpu);
        }
        self.account(machine, vcpu);
        if !blocks {
            self.normal.put_back(machine, vcpu);
            self.normal.tickle(machine, vcpu);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{FairShare, all_woken, choose, look};
    use super::*;
    use policy::GuestClass;

    const HOME: PcpuId = PcpuId::new(0);
    const MICRO: PcpuId = PcpuId::new(1);
    /// Of another VM than the others.
    const STRANGER: VcpuId = VcpuId::new(0);
    const MS: u64 = 1_000_000;

    /// On a host of two pCPUs, the second of them micro-sliced. A stranger's turn has lasted for a
    /// millisecond of ten on the first, the second has just begun a micro slice. The last siblings, which ran
    /// on the first one before, wait.
    fn busy_host(home_slices: bool) -> (MicroSliced<FairShare>, Machine, [VcpuId; 2]) {
        host_that(|config| config.home_slices = home_slices)
    }

    fn host_that(
        change: impl FnOnce(&mut MicroSlicedConfig),
    ) -> (MicroSliced<FairShare>, Machine, [VcpuId; 2]) {
        let (mut micro, mut machine) = all_woken(2, &[1, 3], change);
        let is_ready = |micro: &MicroSliced<FairShare>, machine: &Machine| {
            machine.current(HOME) == Some(STRANGER) && micro.normal.runs_ordinary_turn(machine, HOME)
        };
        for _ in 0..20 {
            if is_ready(&micro, &machine) {
                break;
            }
            machine.now_ns += 10 * MS;
            for pcpu in [HOME, MICRO] {
                choose(&mut micro, &mut machine, pcpu, StopReason::SliceExpired);
            }
            look(&mut micro, &mut machine);
        }
        assert!(is_ready(&micro, &machine), "the stranger has a turn that it wasn't woken for");
        machine.now_ns += MS;
        let waits = |machine: &Machine| {
            VcpuId::new(1).span(3).filter(|&vcpu| machine.vcpus[vcpu].state == VcpuState::Runnable).collect()
        };
        let first: Vec<VcpuId> = waits(&machine);
        assert_eq!(micro.accelerate(&mut machine, first[0], Cause::TlbYield), Request::Granted);
        look(&mut micro, &mut machine);
        assert_eq!(on(&machine), [Some(STRANGER), Some(first[0])], "a free micro pCPU comes first");
        let others: Vec<VcpuId> = waits(&machine);
        others.iter().for_each(|&vcpu| machine.vcpus[vcpu].pcpu = HOME);
        (micro, machine, others.try_into().expect("two"))
    }

    fn on(machine: &Machine) -> [Option<VcpuId>; 2] {
        [HOME, MICRO].map(|pcpu| machine.current(pcpu))
    }

    /// The vCPU that runs at home after a request for that one.
    fn at_home_after(micro: &mut MicroSliced<FairShare>, machine: &mut Machine, vcpu: VcpuId) -> VcpuId {
        micro.accelerate(machine, vcpu, Cause::TlbYield);
        look(micro, machine);
        machine.current(HOME).expect("somebody")
    }

    #[test]
    fn while_the_micro_pcpu_is_busy_a_request_is_served_where_the_vcpu_ran_last() {
        let (mut micro, mut machine, [sibling, _]) = busy_host(true);
        assert_eq!(at_home_after(&mut micro, &mut machine, sibling), sibling);
        assert_eq!(machine.pcpus[HOME].slice_end_ns, machine.now_ns + MS / 10);
        assert_eq!(machine.pool.home_slices, 1);
        let (mut micro, mut machine, [sibling, _]) = busy_host(false);
        assert_eq!(at_home_after(&mut micro, &mut machine, sibling), STRANGER, "in the paper it waits");
        assert_eq!(micro.pool.next_on(MICRO), Some(sibling));
    }

    #[test]
    fn a_request_is_served_at_home_at_once_where_nothing_is_lent_too() {
        let (mut micro, mut machine, [sibling, _]) = host_that(|config| config.lends = false);
        assert_eq!(at_home_after(&mut micro, &mut machine, sibling), sibling);
    }

    #[test]
    fn an_interrupted_turn_has_what_is_left_of_it_afterwards() {
        let (mut micro, mut machine, [sibling, _]) = busy_host(true);
        at_home_after(&mut micro, &mut machine, sibling);
        machine.now_ns += MS / 10;
        let pick = choose(&mut micro, &mut machine, HOME, StopReason::SliceExpired);
        assert_eq!(pick.map(|pick| pick.vcpu), Some(STRANGER));
        // It had one millisecond of ten, and turns end at ticks.
        let ends_after = |micro: &mut MicroSliced<FairShare>, machine: &mut Machine, ns: u64| {
            machine.now_ns += ns;
            micro.tick(machine, HOME);
            machine.next_schedule() == Some(HOME)
        };
        assert!(!ends_after(&mut micro, &mut machine, 8 * MS));
        assert!(ends_after(&mut micro, &mut machine, MS));
    }

    #[test]
    fn a_micro_slice_at_home_is_not_cut_short_and_ends() {
        let (mut micro, mut machine, [sibling, _]) = busy_host(true);
        at_home_after(&mut micro, &mut machine, sibling);
        machine.now_ns += MS / 20;
        let pick = choose(&mut micro, &mut machine, HOME, StopReason::Preempted);
        let goes_on = Pick { vcpu: sibling, slice_end_ns: machine.now_ns + MS / 20 };
        assert_eq!(pick, Some(goes_on));
        machine.now_ns += MS / 20;
        choose(&mut micro, &mut machine, HOME, StopReason::SliceExpired);
        assert!(micro.normal.take_out(&machine, sibling), "it waits in the normal pool");
    }

    #[test]
    fn a_turn_that_was_interrupted_just_now_is_left_alone() {
        let (mut micro, mut machine, [sibling, other]) = busy_host(true);
        at_home_after(&mut micro, &mut machine, sibling);
        machine.now_ns += MS / 10;
        choose(&mut micro, &mut machine, HOME, StopReason::SliceExpired);
        micro.pool.set_next_on(MICRO, None);
        assert_eq!(micro.home_for(&machine, other), None);
        machine.now_ns += MS / 10;
        assert_eq!(micro.home_for(&machine, other), Some(HOME));
    }

    #[test]
    fn a_turn_that_is_not_over_gives_way_in_critical_code_too_and_goes_on_afterwards() {
        let (mut micro, mut machine, [sibling, _]) = busy_host(true);
        machine.set_class(STRANGER, GuestClass::LockHolder);
        assert_eq!(at_home_after(&mut micro, &mut machine, sibling), sibling);
        assert_eq!(machine.pool.graces, 0);
        machine.now_ns += MS / 10;
        let pick = choose(&mut micro, &mut machine, HOME, StopReason::SliceExpired);
        assert_eq!(pick.map(|pick| pick.vcpu), Some(STRANGER));
    }
}
