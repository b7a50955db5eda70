//! Holders and heirs: who is asked for though nobody has complained of it, by what guests count in their
//! `preempt_count` (`policy/held.h`, `policy/heirs.h`).
//!
//! Problem.   A vCPU that is stopped with a lock is found once a sibling spins for that lock, in vain for a
//!            while. One that was stopped while it waited may be handed the lock, and isn't found at all.
//! Mechanism. A vCPU that is stopped while it holds something is asked for at once. When a waiter spins, or a
//!            vCPU stops, and nobody of the VM holds anything, its stopped waiters are tried one after the
//!            other.
//! Limits.    What others get from a VM is what the schedulers' budgets leave: both kinds of requests are
//!            refused like all others.

use super::micro_pool::Request;
use super::{Core, MicroSliced, siblings_round_from};
use crate::config::HolderRules;
use crate::ids::{IdVec, VcpuId, VmId};
use crate::machine::{HostVcpu, Kind, Machine, VcpuState, WAITING_KINDS};
use microslice_policy::{self as policy, Cause, GuestClass, HeirDecision, HeirObservation, HeirState};

/// A waiter that was asked for, and how long it had run until then.
#[derive(Clone, Copy)]
struct Trial {
    vcpu: VcpuId,
    ran_ns: u64,
}

pub struct Holders {
    rules: HolderRules,
    states: IdVec<VmId, HeirState>,
    trials: IdVec<VmId, Option<Trial>>,
    /// The waiter tried last in each VM.
    tried: IdVec<VmId, VcpuId>,
    /// How many of a vCPU's last stops found it holding something.
    in_a_row: IdVec<VcpuId, u32>,
}

impl Holders {
    pub fn new(rules: &HolderRules, machine: &mut Machine) -> Self {
        machine.critical_by = rules.critical_by;
        machine.heir_kinds = if rules.heirs { heir_kinds() } else { 0 };
        Self {
            rules: rules.clone(),
            states: IdVec::of(HeirState::default(), machine.vms.len()),
            trials: IdVec::of(None, machine.vms.len()),
            tried: machine.vms.iter().map(|vm| vm.first_vcpu).collect(),
            in_a_row: IdVec::of(0, machine.vcpus.len()),
        }
    }

    /// `vcpu` has stopped and could go on: is it asked for at once?
    pub fn asks_for(&mut self, machine: &Machine, vcpu: VcpuId) -> bool {
        let host = &machine.vcpus[vcpu];
        let in_a_row = &mut self.in_a_row[vcpu];
        *in_a_row = policy::holds_in_a_row(*in_a_row, host.held);
        host.preempted
            && policy::holder_is_asked_for(self.rules.critical_by, host.held)
            && !policy::holds_always(*in_a_row)
    }

    /// Somebody of the VM may wait for a lock: the stopped waiter that is tried next. `is_helped`: help is on
    /// its way to that vCPU, or in it.
    pub fn next_heir(
        &mut self,
        machine: &Machine,
        vm: VmId,
        is_helped: impl Fn(VcpuId) -> bool,
    ) -> Option<VcpuId> {
        if machine.vms[vm].waiting.kinds & machine.heir_kinds == 0 {
            return None;
        }
        let mut seen = self.look(machine, vm, is_helped);
        if seen.helped_count == 0
            && let Some(Trial { vcpu, ran_ns }) = self.trials[vm].take()
        {
            let host = &machine.vcpus[vcpu];
            let ran_ns = host.turns.run_ns.saturating_sub(ran_ns);
            seen.trial = policy::heir_trial_of(host.class, ran_ns).into();
        }
        let step = policy::decide_on_heir(&self.states[vm], &seen);
        self.states[vm] = step.state;
        if step.decision != HeirDecision::Try.into() {
            return None;
        }
        let last = self.tried[vm];
        let round = || siblings_round_from(machine, last).chain([last]);
        let waits = |vcpu: &VcpuId| may_be_heir(&machine.vcpus[*vcpu]);
        let is_woken = |vcpu: &VcpuId| {
            let host = &machine.vcpus[*vcpu];
            waits(vcpu) && !host.preempted && !host.yielded
        };
        round().find(is_woken).or_else(|| round().find(waits))
    }

    /// It was asked for.
    pub fn is_tried(&mut self, machine: &Machine, vcpu: VcpuId) {
        let host = &machine.vcpus[vcpu];
        self.trials[host.vm] = Some(Trial { vcpu, ran_ns: host.turns.run_ns });
        self.tried[host.vm] = vcpu;
    }

    fn look(&self, machine: &Machine, vm: VmId, is_helped: impl Fn(VcpuId) -> bool) -> HeirObservation {
        let mut seen = HeirObservation { now_ns: machine.now_ns, ..HeirObservation::default() };
        for vcpu in machine.vms[vm].first_vcpu.span(machine.vms[vm].vcpus) {
            let host = &machine.vcpus[vcpu];
            if is_helped(vcpu) {
                seen.helped_count += 1;
            } else if may_be_heir(host) {
                seen.waiter_count += 1;
            } else if policy::sibling_may_hold(state_of(host), host.preempt_count, host.class) {
                seen.holder_count += 1;
            }
        }
        seen
    }
}

impl<Normal: Core> MicroSliced<Normal> {
    pub(super) fn asks_for_stopped(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        let holds = self.holders.asks_for(machine, vcpu) && !self.pool.is_accelerated(vcpu);
        let vm = machine.vcpus[vcpu].vm;
        let wanted = if holds { Some(vcpu) } else { self.next_heir(machine, vm) };
        let Some(wanted) = wanted else { return };
        let cause = if holds { Cause::Holder } else { Cause::Heir };
        self.pool_size.count_urgent(policy::urgent_event_of_stop(cause), 1);
        if self.pool.count() > 0 {
            self.asks_unasked(machine, wanted, cause);
        }
    }

    /// Somebody of the VM may wait for a lock. Whether a stopped waiter was asked for.
    pub(super) fn tries_heir(&mut self, machine: &mut Machine, vm: VmId) -> bool {
        let heir = self.next_heir(machine, vm);
        heir.is_some_and(|heir| self.asks_unasked(machine, heir, Cause::Heir))
    }

    fn next_heir(&mut self, machine: &Machine, vm: VmId) -> Option<VcpuId> {
        self.holders.next_heir(machine, vm, |vcpu| machine.vcpus[vcpu].requested)
    }

    fn asks_unasked(&mut self, machine: &mut Machine, vcpu: VcpuId, cause: Cause) -> bool {
        let is_granted = self.accelerate(machine, vcpu, cause) == Request::Granted;
        if is_granted && cause == Cause::Heir {
            self.holders.is_tried(machine, vcpu);
        }
        is_granted
    }
}

fn state_of(host: &HostVcpu) -> policy::VcpuState {
    match host.state {
        VcpuState::Blocked => policy::VcpuState::Blocked,
        VcpuState::Running => policy::VcpuState::Running,
        VcpuState::Runnable => policy::VcpuState::Runnable,
    }
}

fn may_be_heir(host: &HostVcpu) -> bool {
    policy::sibling_may_be_heir(state_of(host), host.class)
}

/// The kinds of waiting siblings that may be heirs.
fn heir_kinds() -> u64 {
    let may_be = |kind: &usize| {
        let class = GuestClass::of(Kind::of_number(*kind).class as u32);
        policy::sibling_may_be_heir(policy::VcpuState::Runnable, class)
    };
    (0..WAITING_KINDS).filter(may_be).fold(0, |mask, kind| mask | 1 << kind)
}
