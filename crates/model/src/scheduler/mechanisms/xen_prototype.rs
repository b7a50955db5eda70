//! What the authors' Xen prototype does that no other host does. The paper's numbers were measured on it
//! (microslicedcore/xen, branch dyn-usliced-cores), and it goes beyond the paper's text; `mechanics =
//! "xen-prototype"`:
//!
//! | what happens | otherwise | Xen prototype |
//! |---|---|---|
//! | order of a pass | round from the yielding vCPU | from vCPU 0, until a request finds all queues full |
//! | a vCPU waits for a shootdown | yields unless one is helped | never yields |
//! | a vCPU spins for a lock | yields unless one is helped | never yields (see `on_hint_in_prototype`) |
//! | a vCPU goes back to the normal pool | behind the others | within its credits, see `forgives` |
//! | credits of the normal pool | of its pCPUs | of all pCPUs, the micro pool's too (section 5) |
//! | a sibling is blocked, or blocks on its micro pCPU | it wakes in the normal pool | see `take_along` |
//! | a vCPU on a micro-sliced pCPU spins | its pass decides | no pass; see `spins_on` |
//! | a sibling has answered the shootdown | no request for it | requested like the others |
//! | all queues are full | the spinner goes on, and asks again | never asked (see the third row) |
//! | a turn or a micro slice ends at a bad moment | see `delay_preemption/grace.rs` | it ends |
//! | no micro pCPU serves a request at once | see `home_slices.rs` | it waits, or is forgotten |
//!
//! The prototype's published code sizes its pool otherwise, too (`csched_event_acct`): it grows to the limit
//! with one that was kept, and doesn't apply the best number that it finds.

use super::*;
use microslice_policy::SiblingDecision;

pub(super) struct XenPrototype {
    /// The micro pCPU that each vCPU belongs to while it is blocked; or `NONE`.
    blocked_at: IdVec<VcpuId, PcpuId>,
    /// VMs of which a vCPU may be blocked that belongs to no micro pCPU.
    has_unclaimed: IdVec<VmId, bool>,
}

impl XenPrototype {
    pub fn new(machine: &Machine) -> Self {
        Self {
            blocked_at: IdVec::of(PcpuId::NONE, machine.vcpus.len()),
            has_unclaimed: IdVec::of(true, machine.vms.len()),
        }
    }

    /// Whether a pass may find blocked siblings that it takes along.
    fn takes_along(&self, vm: VmId, scope: PassScope) -> bool {
        scope == PassScope::AllPreempted && self.has_unclaimed[vm]
    }
}

/// In the order of its passes: from the VM's first vCPU on.
pub(super) fn siblings_from_first(machine: &Machine, vcpu: VcpuId) -> impl Iterator<Item = VcpuId> + use<> {
    let vm = &machine.vms[machine.vcpus[vcpu].vm];
    vm.first_vcpu.span(vm.vcpus).filter(move |&sibling| sibling != vcpu)
}

/// Its hooks: elsewhere they do what every other host does.
impl<Normal: Core> MicroSliced<Normal> {
    /// A vCPU wakes: on the micro pCPU that it belonged to while it was blocked, if none waits for it.
    pub(super) fn wakes_in_pool(&mut self, machine: &mut Machine, vcpu: VcpuId) -> bool {
        let Some(prototype) = &mut self.prototype else { return false };
        let at = std::mem::replace(&mut prototype.blocked_at[vcpu], PcpuId::NONE);
        let wakes_there = at != PcpuId::NONE && self.pool.has(at) && self.pool.next_on(at).is_none();
        if wakes_there {
            self.enter(machine, vcpu, at);
        }
        wakes_there
    }

    /// A vCPU of the VM may be blocked that belongs to no micro pCPU: a pass has to look for vCPUs to take
    /// along.
    pub(super) fn note_unclaimed(&mut self, machine: &mut Machine, vm: VmId) {
        let Some(prototype) = &mut self.prototype else { return };
        if !std::mem::replace(&mut prototype.has_unclaimed[vm], true) {
            machine.break_all_promises(vm);
        }
    }

    fn set_unclaimed(&mut self, vm: VmId, unclaimed: bool) {
        if let Some(prototype) = &mut self.prototype {
            prototype.has_unclaimed[vm] = unclaimed;
        }
    }

    /// The micro pool has another size: a vCPU that belonged to a micro pCPU may belong to none.
    pub(super) fn forget_claims(&mut self) {
        if let Some(prototype) = &mut self.prototype {
            prototype.has_unclaimed.fill(true);
        }
    }

    /// A micro slice goes on when its pCPU leaves the pool; the prototype's ends with that pCPU's stay.
    pub(super) fn outlives_stay(&self, pcpu: PcpuId) -> bool {
        self.prototype.is_none() || self.pool.has(pcpu)
    }

    /// The prototype doesn't know which interrupt a request was about: each could be.
    pub(super) fn awaited_interrupts(&self, requested_for: u8) -> u8 {
        if self.prototype.is_some() { u8::MAX } else { requested_for }
    }

    /// The prototype doesn't know why a vCPU waits: a woken one is one like any other.
    pub(super) fn asks_about_all_that_wait(&self) -> bool {
        self.prototype.is_some()
    }

    /// A vCPU that blocks in its micro slice belongs to that micro pCPU until it wakes.
    pub(super) fn blocks_in_pool(&mut self, vcpu: VcpuId, pcpu: PcpuId) {
        if let Some(prototype) = &mut self.prototype {
            prototype.blocked_at[vcpu] = pcpu;
        }
    }

    /// After a micro slice it comes back within its credits. The prototype's code wakes it, which boosts it.
    /// But boosted siblings that have answered come and go hundreds of thousands of times a second here.
    /// Those that owe an answer starve, which nothing in the paper suggests.
    pub(super) fn forgives(&mut self, vcpu: VcpuId) {
        if self.prototype.is_some() {
            self.normal.forgive(vcpu);
        }
    }
}

/// What its spinners do.
impl<Normal: Core> MicroSliced<Normal> {
    /// A waiter for a shootdown never yields. A spinner for a lock yields only if no sibling that doesn't run
    /// belongs to a micro-sliced pCPU. Two kinds belong to one until they have run again: those that halted
    /// there, and those that a pass for a shootdown took along halted. So once there is one, no vCPU yields;
    /// this is taken for always.
    pub(super) fn on_hint_in_prototype(
        &mut self,
        machine: &mut Machine,
        vcpu: VcpuId,
        pcpu: PcpuId,
        cause: YieldCause,
    ) -> YieldAnswer {
        if self.pool.has(pcpu) {
            return self.spins_on(machine, pcpu);
        }
        let decision = self.decide_on_hint(machine, vcpu, cause);
        let scope = decision.scope.get().unwrap_or(PassScope::None);
        let without_kinds = self.answers.short_cut(scope).map_or(0, |of| of.kinds_that_matter);
        let depends_on = Promised { without_kinds, helped: false };
        if scope == PassScope::None {
            return match self.normal.yields(machine, vcpu, pcpu, cause) {
                YieldAnswer::KeepSpinning { until_ns } => {
                    self.go_on(machine, vcpu, Some(depends_on), until_ns)
                }
                YieldAnswer::Yield => YieldAnswer::Yield,
            };
        }
        let is_needed = self.needs_pass(machine, vcpu, scope);
        if is_needed {
            self.pass_in_prototype(machine, vcpu, scope, decision.cause.get().unwrap_or(Cause::None));
        }
        self.go_on(machine, vcpu, Some(depends_on).filter(|_| !is_needed), u64::MAX)
    }

    /// A spinner on a micro-sliced pCPU yields as under plain Xen: the credit scheduler chooses it again, for
    /// a slice more, while no other waits there.
    fn spins_on(&self, machine: &mut Machine, micro_pcpu: PcpuId) -> YieldAnswer {
        if self.pool.next_on(micro_pcpu).is_some() {
            return YieldAnswer::Yield;
        }
        machine.pcpus[micro_pcpu].slice_end_ns = machine.now_ns + self.pool.slice_ns();
        YieldAnswer::KeepSpinning { until_ns: machine.now_ns }
    }

    /// Whether a pass may find a vCPU to request, or to take along.
    fn needs_pass(&self, machine: &Machine, vcpu: VcpuId, scope: PassScope) -> bool {
        let vm = machine.vcpus[vcpu].vm;
        self.pass_without_request(machine, vcpu, scope).is_none()
            || self.prototype.as_ref().is_some_and(|prototype| prototype.takes_along(vm, scope))
    }

    /// It ends at the first sibling without room.
    pub(super) fn pass_in_prototype(
        &mut self,
        machine: &mut Machine,
        vcpu: VcpuId,
        scope: PassScope,
        cause: Cause,
    ) {
        let siblings = siblings_from_first(machine, vcpu);
        let vm = machine.vcpus[vcpu].vm;
        if let Some(crowded) = self.crowded_without_room(machine, vcpu, scope) {
            return self.turn_away(machine, vm, siblings, scope, cause, crowded.min(1));
        }
        if scope == PassScope::AllPreempted {
            // Unless there isn't room for all.
            self.set_unclaimed(vm, false);
        }
        self.visit_in_prototype(machine, siblings, scope, cause);
    }

    pub(super) fn visit_in_prototype(
        &mut self,
        machine: &mut Machine,
        siblings: impl Iterator<Item = VcpuId>,
        scope: PassScope,
        cause: Cause,
    ) {
        let mut requested = false;
        for sibling in siblings {
            match self.decision_about(machine, sibling, scope, requested) {
                SiblingDecision::Request => {
                    if self.accelerate(machine, sibling, cause) != Request::Granted {
                        return self.note_unclaimed(machine, machine.vcpus[sibling].vm);
                    }
                    requested = true;
                }
                SiblingDecision::PassDone => return,
                SiblingDecision::NotPreempted
                    if scope == PassScope::AllPreempted
                        && machine.vcpus[sibling].state == VcpuState::Blocked
                        && !self.take_along(machine, sibling, cause) =>
                {
                    return;
                }
                _ => {}
            }
        }
    }

    /// Passes for shootdowns don't ask whether a sibling runs, waits or is blocked: a blocked one belongs to
    /// a micro pCPU from then on, as does one that blocks there. When it wakes it gets a micro slice, if it
    /// has the place to itself. Returns false if there is no micro pCPU with room, which ends the pass.
    pub(super) fn take_along(&mut self, machine: &Machine, vcpu: VcpuId, cause: Cause) -> bool {
        let at = self.prototype.as_ref().map_or(PcpuId::NONE, |prototype| prototype.blocked_at[vcpu]);
        if at != PcpuId::NONE && self.pool.has(at) {
            return true;
        }
        let Some(pcpu) = self.place(machine, vcpu) else {
            self.set_unclaimed(machine.vcpus[vcpu].vm, true);
            return false;
        };
        self.blocks_in_pool(vcpu, pcpu);
        self.pool.set_cause(vcpu, cause);
        true
    }
}
