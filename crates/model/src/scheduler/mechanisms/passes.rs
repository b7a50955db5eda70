//! A pass over the siblings of a vCPU that waits: which of them the policy asks for, and whether the waiter
//! goes on spinning.

use super::answers::ShortCut;
use super::*;
use microslice_policy::{SiblingDecision, SpinnerDecision, SpinnerObservation, YieldDecision};

/// What a pass has found.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct PassCounts {
    /// Siblings that were requested, now or before, or are about to answer.
    pub helped: u32,
    /// Those whose VM has had more than its share.
    pub refused: u32,
}

/// Siblings that were requested before, or are about to answer. The spinner itself runs, in either pool, and
/// isn't one.
fn helped_already(machine: &Machine, vcpu: VcpuId, short_cut: &ShortCut) -> u32 {
    let host = &machine.vcpus[vcpu];
    let waiting = &machine.vms[host.vm].waiting;
    let requested = waiting.requested - u32::from(host.requested);
    let answering = waiting.answering - u32::from(!host.requested & host.owes_answer);
    requested + if short_cut.answering_help { answering } else { 0 }
}

/// A spinner whose pass has found that, and that has lost its patience.
fn spinner_of(cause: YieldCause, scope: PassScope, pass: PassCounts) -> SpinnerObservation {
    SpinnerObservation {
        cause: cause.into(),
        helped_count: pass.helped,
        refused_count: pass.refused,
        pass_active: 0,
        scope: scope.into(),
        stranded_count: 0,
        vain_waits: 0,
        ran_out_before: 0,
        spun_ns: u64::MAX,
    }
}

/// In the order of a pass: from the next one round, without a division, as passes are what runs most.
pub fn siblings_round_from(machine: &Machine, vcpu: VcpuId) -> impl Iterator<Item = VcpuId> + use<> {
    let vm = &machine.vms[machine.vcpus[vcpu].vm];
    let (first, start) = (vm.first_vcpu, vcpu.plus(1));
    start.until(first.plus(vm.vcpus)).chain(first.until(vcpu))
}

impl<Normal: Core> MicroSliced<Normal> {
    /// A hint came: `vcpu`, which runs on `pcpu`, spins or is about to halt.
    pub(super) fn on_hint(
        &mut self,
        machine: &mut Machine,
        vcpu: VcpuId,
        pcpu: PcpuId,
        cause: YieldCause,
    ) -> YieldAnswer {
        let decision = self.decide_on_hint(machine, vcpu, cause);
        let scope = decision.scope.get().unwrap_or(PassScope::None);
        let mut asked_for_nobody = true;
        if scope != PassScope::None {
            let reason = decision.cause.get().unwrap_or(Cause::None);
            let mut found = match self.pass_without_request(machine, vcpu, scope) {
                None => {
                    asked_for_nobody = false;
                    self.pass(machine, vcpu, scope, reason)
                }
                Some(found) => {
                    debug_assert_eq!(
                        {
                            // Not a pass, which has a short cut of its own.
                            let siblings = siblings_round_from(machine, vcpu);
                            self.visit(machine, siblings, scope, reason)
                        },
                        found,
                        "the short cut is exact"
                    );
                    found
                }
            };
            let vm = machine.vcpus[vcpu].vm;
            if scope == PassScope::OneCritical && machine.vms[vm].waiting.kinds & machine.heir_kinds != 0 {
                asked_for_nobody = false;
                found.helped += u32::from(found.helped == 0 && self.tries_heir(machine, vm));
            }
            let spinner = spinner_of(cause, scope, found);
            if self.keeps_spinning(&spinner) {
                machine.refuses_to_yield(vcpu);
                return self.go_on(machine, vcpu, self.promised(machine, scope, asked_for_nobody), u64::MAX);
            }
            let spinner = self.look_at_wait(machine, vcpu, spinner);
            if self.keeps_spinning(&spinner) {
                let until_ns = machine.now_ns - spinner.spun_ns + self.rules.patience_ns;
                let promised = self.promised(machine, scope, asked_for_nobody);
                let depends_on = promised.map(|promised| self.while_patient(&spinner, promised));
                machine.refuses_to_yield(vcpu);
                return self.go_on(machine, vcpu, depends_on, until_ns);
            }
        }
        if self.pool.is_member(vcpu, pcpu) {
            // It waits itself: the micro pCPU is for vCPUs that can go on.
            return YieldAnswer::Yield;
        }
        match self.normal.yields(machine, vcpu, pcpu, cause) {
            YieldAnswer::KeepSpinning { until_ns } => {
                self.go_on(machine, vcpu, self.promised(machine, scope, asked_for_nobody), until_ns)
            }
            YieldAnswer::Yield => YieldAnswer::Yield,
        }
    }

    pub(super) fn decide_on_hint(
        &mut self,
        machine: &Machine,
        vcpu: VcpuId,
        cause: YieldCause,
    ) -> YieldDecision {
        let host = &machine.vcpus[vcpu];
        let urgent = self.answers.urgent_event(cause, host.class, host.interrupts_enabled);
        self.pool_size.count_urgent(urgent, 1);
        self.answers.on_yield(cause, host)
    }

    /// What a pass would return, if it would find nobody to request. Most passes don't, and looking at each
    /// sibling at every pause-loop exit was the greatest cost of a run.
    #[inline]
    pub(super) fn pass_without_request(
        &self,
        machine: &Machine,
        vcpu: VcpuId,
        scope: PassScope,
    ) -> Option<PassCounts> {
        let host = &machine.vcpus[vcpu];
        let waiting = &machine.vms[host.vm].waiting;
        let short_cut = self.answers.short_cut(scope)?;
        if waiting.kinds & short_cut.kinds_that_matter != 0 {
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
        let siblings = siblings_round_from(machine, vcpu);
        let Some(crowded) = self.crowded_without_room(machine, vcpu, scope) else {
            return self.visit(machine, siblings, scope, cause);
        };
        self.turn_away(machine, machine.vcpus[vcpu].vm, siblings, scope, cause, crowded);
        let short_cut = self.answers.short_cut(scope);
        let helped = short_cut.map_or(0, |short_cut| helped_already(machine, vcpu, short_cut));
        PassCounts { helped, refused: 0 }
    }

    /// How many siblings a pass would ask for in vain, if no micro pCPU has room: nobody needs to be looked
    /// at for that. In wide VMs, and in the prototype, where the first one without room ends the pass, this
    /// is what most passes are.
    pub(super) fn crowded_without_room(
        &self,
        machine: &Machine,
        vcpu: VcpuId,
        scope: PassScope,
    ) -> Option<u32> {
        let short_cut = self.answers.short_cut(scope).filter(|of| of.each_is_requested)?;
        if self.rules.home_slices != 0 || self.pool.pcpus().any(|pcpu| self.has_room_on(pcpu)) {
            return None;
        }
        let crowded = machine.vms[machine.vcpus[vcpu].vm].waiting.count(short_cut.kinds_that_matter);
        debug_assert_eq!(
            siblings_round_from(machine, vcpu).filter(|&other| self.is_wanted(machine, other, scope)).count(),
            crowded as usize,
            "the short cut is exact"
        );
        Some(crowded)
    }

    /// Of these siblings of a VM so many were asked for in vain.
    pub(super) fn turn_away(
        &mut self,
        machine: &mut Machine,
        vm: VmId,
        mut siblings: impl Iterator<Item = VcpuId>,
        scope: PassScope,
        cause: Cause,
        count: u32,
    ) {
        if count == 0 {
            return;
        }
        self.pool.pcpus().for_each(|pcpu| self.asked_again.note_turned_away(pcpu, vm));
        if !self.asked_again.knows_first_turned_away(vm)
            && let Some(first) = siblings.find(|&sibling| self.is_wanted(machine, sibling, scope))
        {
            self.asked_again.note_first_turned_away(vm, first);
        }
        machine.pool.count_failed_pulls(cause, FailedPull::QueueFull, count);
    }

    /// Whether a pass would ask for it, if each of its requests found no room.
    fn is_wanted(&self, machine: &Machine, sibling: VcpuId, scope: PassScope) -> bool {
        self.decision_about(machine, sibling, scope, false) == SiblingDecision::Request
    }

    pub(super) fn decision_about(
        &self,
        machine: &Machine,
        sibling: VcpuId,
        scope: PassScope,
        requested: bool,
    ) -> SiblingDecision {
        let state = self.policy_state(machine, sibling);
        let kind = machine.vcpus[sibling].kind().number();
        self.answers.on_sibling(scope, state, kind, requested)
    }

    /// Asks for those of them that a pass of this scope needs.
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
                    Request::VmAhead => counts.refused += 1,
                    Request::NoRoom | Request::LeftQueue => {}
                },
                SiblingDecision::AlreadyRequested | SiblingDecision::Answering => counts.helped += 1,
                SiblingDecision::PassDone => break,
                SiblingDecision::NotPreempted
                | SiblingDecision::NotCritical
                | SiblingDecision::Yielded
                | SiblingDecision::Answered => {}
            }
        }
        counts
    }

    /// What the answer to hints of that scope depends on, if nobody was asked for.
    fn promised(&self, machine: &Machine, scope: PassScope, asked_for_nobody: bool) -> Option<Promised> {
        let keeps_spinning = |helped| {
            let pass = PassCounts { helped, ..PassCounts::default() };
            self.keeps_spinning(&spinner_of(YieldCause::Ple, scope, pass))
        };
        let heir_kinds = if scope == PassScope::OneCritical { machine.heir_kinds } else { 0 };
        asked_for_nobody.then(|| Promised {
            without_kinds: self.answers.short_cut(scope).map_or(0, |of| of.kinds_that_matter) | heir_kinds,
            helped: keeps_spinning(0) != keeps_spinning(1),
        })
    }

    /// After its pass.
    fn keeps_spinning(&self, spinner: &SpinnerObservation) -> bool {
        policy::decide_on_spinner(&self.rules, spinner) == SpinnerDecision::KeepsSpinning
    }
}
