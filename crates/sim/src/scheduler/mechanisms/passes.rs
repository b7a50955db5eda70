//! A pass over the siblings of a vCPU that waits: whom of them the policy asks for, and whether the waiter goes on spinning.

use super::answers::ShortCut;
use super::{MicroSliced, Request};
use crate::ids::{PcpuId, VcpuId};
use crate::machine::{Machine, VcpuState};
use crate::report::FailedPull;
use crate::scheduler::Core;
use microslice_policy as policy;
use microslice_policy::{Cause, PassScope, SiblingDecision, SpinnerDecision, SpinnerObservation, YieldCause};

/// What a pass has found.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct PassCounts {
    /// Siblings that were requested, now or before, or are about to answer.
    pub helped: u32,
    /// Those for whom the micro pool had no room.
    pub crowded: u32,
    /// Those whose VM has had more than its share.
    pub refused: u32,
}

/// Siblings that were requested before, or are about to answer. The spinner itself runs, in either pool, and isn't one.
fn helped_already(machine: &Machine, vcpu: VcpuId, short_cut: &ShortCut) -> u32 {
    let host = &machine.vcpus[vcpu];
    let waiting = &machine.vms[host.vm].waiting;
    let requested = waiting.requested - u32::from(host.requested);
    let answering = waiting.answering - u32::from(!host.requested & host.owes_answer);
    requested + if short_cut.answering_help { answering } else { 0 }
}

/// In the order of a pass; the prototype's begins with the VM's first vCPU.
pub(super) fn siblings_round_from(
    machine: &Machine,
    vcpu: VcpuId,
    prototype: bool,
) -> impl Iterator<Item = VcpuId> + use<> {
    let vm = &machine.vms[machine.vcpus[vcpu].vm];
    let (first, count) = (vm.first_vcpu, vm.vcpus);
    // From the next one round, without a division: passes are what runs most.
    let start = if prototype { first } else { vcpu.plus(1) };
    start.until(first.plus(count)).chain(first.until(start)).filter(move |&sibling| sibling != vcpu)
}

impl<Normal: Core> MicroSliced<Normal> {
    /// What a pass would return, if it would find nobody to request. Most passes don't, and looking at each sibling at
    /// every pause-loop exit was the greatest cost of a run.
    #[inline]
    pub(super) fn pass_without_request(
        &self,
        machine: &Machine,
        vcpu: VcpuId,
        scope: PassScope,
    ) -> Option<PassCounts> {
        let host = &machine.vcpus[vcpu];
        let waiting = &machine.vms[host.vm].waiting;
        let short_cut = self.short_cuts[scope as usize].as_ref()?;
        if waiting.kinds & short_cut.kinds_that_matter != 0 || self.takes_along(host.vm, scope) {
            return None;
        }
        Some(PassCounts { helped: helped_already(machine, vcpu, short_cut), ..PassCounts::default() })
    }

    /// A pass over the siblings of a vCPU that yields.
    pub(super) fn pass(
        &mut self,
        machine: &mut Machine,
        vcpu: VcpuId,
        scope: PassScope,
        cause: Cause,
    ) -> PassCounts {
        if let Some(found) = self.pass_without_room(machine, vcpu, scope) {
            self.turn_away(machine, vcpu, scope, cause, found.crowded);
            return found;
        }
        let vm = machine.vcpus[vcpu].vm;
        if self.takes_along(vm, scope) {
            // Unless there isn't room for all.
            self.has_unclaimed[vm] = false;
        }
        let siblings = siblings_round_from(machine, vcpu, self.prototype);
        self.visit(machine, siblings, scope, cause)
    }

    /// What a pass would return, if no micro pCPU has room: nobody needs to be looked at for that. In wide VMs, and in the
    /// prototype, where the first one without room ends the pass, this is what most passes are.
    fn pass_without_room(&self, machine: &Machine, vcpu: VcpuId, scope: PassScope) -> Option<PassCounts> {
        let short_cut = self.short_cuts[scope as usize].as_ref().filter(|of| of.each_is_requested)?;
        if self.rules.home_slices != 0 {
            return None;
        }
        let has_room = |pcpu: PcpuId| self.has_room(self.waiting[pcpu].is_some());
        if self.micro_pcpus().any(has_room) {
            return None;
        }
        let waiting = &machine.vms[machine.vcpus[vcpu].vm].waiting;
        let crowded = waiting.count(short_cut.kinds_that_matter);
        debug_assert_eq!(
            self.wanted(machine, vcpu, scope).count(),
            crowded as usize,
            "the short cut is exact"
        );
        let crowded = if self.prototype { crowded.min(1) } else { crowded };
        Some(PassCounts { helped: helped_already(machine, vcpu, short_cut), crowded, refused: 0 })
    }

    /// Of the siblings so many were asked for in vain.
    fn turn_away(&mut self, machine: &mut Machine, vcpu: VcpuId, scope: PassScope, cause: Cause, count: u32) {
        let vm = machine.vcpus[vcpu].vm;
        if count == 0 {
            return;
        }
        let first_micro = self.first_micro();
        self.turned_away.from_mut(first_micro).fill(Some(vm));
        if self.first_turned_away[vm].is_none() {
            let first = self.wanted(machine, vcpu, scope).next();
            self.first_turned_away[vm] = first;
        }
        machine.pool.count_failed_pulls(cause.into(), FailedPull::QueueFull, count);
    }

    /// Whom a pass would ask for, if each of its requests found no room.
    fn wanted(&self, machine: &Machine, vcpu: VcpuId, scope: PassScope) -> impl Iterator<Item = VcpuId> {
        let siblings = siblings_round_from(machine, vcpu, self.prototype);
        siblings.filter(move |&sibling| {
            self.decision_about(machine, sibling, scope, false) == SiblingDecision::Request
        })
    }

    fn decision_about(
        &self,
        machine: &Machine,
        sibling: VcpuId,
        scope: PassScope,
        requested: bool,
    ) -> SiblingDecision {
        let state = self.policy_state(machine, sibling);
        let kind = machine.vcpus[sibling].kind().number();
        self.siblings.get(scope, state, kind, requested)
    }

    /// Asks for those of them whom a pass of this scope needs.
    pub(super) fn visit(
        &mut self,
        machine: &mut Machine,
        siblings: impl Iterator<Item = VcpuId>,
        scope: PassScope,
        cause: Cause,
    ) -> PassCounts {
        let mut requested = false;
        let mut counts = PassCounts::default();
        for sibling in siblings {
            match self.decision_about(machine, sibling, scope, requested) {
                SiblingDecision::Request => match self.accelerate(machine, sibling, cause) {
                    Request::Granted => {
                        requested = true;
                        counts.helped += 1;
                    }
                    _ if self.prototype => {
                        self.note_unclaimed(machine, machine.vcpus[sibling].vm);
                        break;
                    }
                    Request::NoRoom => counts.crowded += 1,
                    Request::VmAhead => counts.refused += 1,
                    Request::LeftQueue => {}
                },
                SiblingDecision::AlreadyRequested | SiblingDecision::Answering => counts.helped += 1,
                SiblingDecision::PassDone => break,
                SiblingDecision::NotPreempted
                    if self.prototype
                        && scope == PassScope::AllPreempted
                        && machine.vcpus[sibling].state == VcpuState::Blocked =>
                {
                    if !self.take_along(machine, sibling, cause) {
                        break;
                    }
                }
                SiblingDecision::NotPreempted
                | SiblingDecision::NotCritical
                | SiblingDecision::Yielded
                | SiblingDecision::Answered => {}
            }
        }
        counts
    }

    /// After its pass. In the prototype who waits for a shootdown never yields; who spins for a lock yields only if no
    /// sibling that doesn't run belongs to a micro-sliced pCPU, and those that halted there, or were taken along halted by
    /// a pass for a shootdown, belong to it until they have run again. So once there is one, nobody yields; this is taken
    /// for always.
    pub(super) fn keeps_spinning(
        &self,
        cause: YieldCause,
        scope: PassScope,
        pass: PassCounts,
        spun_ns: u64,
    ) -> bool {
        let spinner = SpinnerObservation {
            cause: cause.into(),
            helped_count: pass.helped,
            crowded_count: pass.crowded,
            refused_count: pass.refused,
            answers_known: u32::from(scope == PassScope::AllPreempted && !self.prototype),
            pass_active: 0,
            pass_made: u32::from(scope != PassScope::None),
            reserved: 0,
            spun_ns,
        };
        self.prototype || policy::decide_on_spinner(&self.rules, &spinner) == SpinnerDecision::KeepsSpinning
    }
}
