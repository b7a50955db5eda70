//! Grace: who is stopped at a bad moment goes on for a few micro slices, and who found no room in the micro pool is asked for
//! again. `policy/accelerate.h` says who and how often; the moments at which it is asked are the real scheduler's
//! (`bpf/mechanisms/grace.bpf.h`: `finishes_first`, `comes_back`; `passes.bpf.h`: `ask_again`):
//!
//! | moment | what follows |
//! |---|---|
//! | a turn in the normal pool is over, or somebody boosted comes | it goes on for a micro slice, where it is |
//! | its pCPU becomes micro-sliced under it, and isn't lent (`lending.rs`) | it goes before all others of the normal pool, for a micro slice |
//! | a micro slice is over | a new request, behind all others (`micro_pool.rs`: `end_micro_slice`) |
//! | a micro pCPU has room again | a pass over the VM that it turned away, for siblings that still owe an answer, round from the one that was turned away first |
//!
//! A turn that Xen's rate limit protects isn't over. The simulated host has no tasks of its own, so nobody else interrupts a turn; and
//! a pass takes no time, so none is ever under way when a place gets free.

use super::*;
use microslice_policy::{TurnDecision, TurnObservation};

/// What it keeps of vCPUs, pCPUs and VMs.
pub(super) struct Grace {
    /// Turns of the normal pool end where that is safe (`delay_preemption.rs`): they aren't made longer twice.
    in_windows: bool,
    /// Micro slices in a row that each vCPU's turn in the normal pool was made longer by.
    counts: IdVec<VcpuId, u32>,
    /// Requests in a row because a micro slice ended too early.
    retries: IdVec<VcpuId, u32>,
    /// The VM whose vCPU each micro pCPU had no room for last.
    turned_away: IdVec<PcpuId, Option<VmId>>,
    /// Of each VM the first vCPU that found no room since somebody was asked for again. The first, not the last: then each
    /// has its turn, in whichever order those that ask go through them.
    first_turned_away: IdVec<VmId, Option<VcpuId>>,
    /// Of those that are asked for again, how many nobody has looked at yet; 0: they are all looked at.
    left_to_ask: IdVec<VmId, u32>,
}

impl Grace {
    pub fn new(in_windows: bool, machine: &Machine) -> Self {
        Self {
            in_windows,
            counts: IdVec::of(0, machine.vcpus.len()),
            retries: IdVec::of(0, machine.vcpus.len()),
            turned_away: IdVec::of(None, machine.pcpus.len()),
            first_turned_away: IdVec::of(None, machine.vms.len()),
            left_to_ask: IdVec::of(0, machine.vms.len()),
        }
    }

    pub fn retries(&self, vcpu: VcpuId) -> u32 {
        self.retries[vcpu]
    }

    /// Its micro slice is over: is it asked for again because of that?
    pub fn count_retry(&mut self, vcpu: VcpuId, again: bool) {
        let retries = &mut self.retries[vcpu];
        *retries = if again { *retries + 1 } else { 0 };
    }

    /// This micro pCPU had no room for a vCPU of that VM.
    pub fn note_turned_away(&mut self, pcpu: PcpuId, vm: VmId) {
        self.turned_away[pcpu] = Some(vm);
    }

    /// Nor had any other.
    pub fn note_first_turned_away(&mut self, vm: VmId, vcpu: VcpuId) {
        self.first_turned_away[vm].get_or_insert(vcpu);
    }

    pub fn knows_first_turned_away(&self, vm: VmId) -> bool {
        self.first_turned_away[vm].is_some()
    }
}

#[cfg(test)]
impl Grace {
    /// Of each micro pCPU, and of each VM.
    pub fn all_turned_away(self) -> (IdVec<PcpuId, Option<VmId>>, IdVec<VmId, Option<VcpuId>>) {
        (self.turned_away, self.first_turned_away)
    }

    pub fn turned_away_from(&self, pcpu: PcpuId) -> Option<VmId> {
        self.turned_away[pcpu]
    }
}

impl<Normal: Core> MicroSliced<Normal> {
    /// Its turn is over, unless it goes on for a micro slice because it was stopped at a bad moment.
    pub(super) fn finishes_first(
        &mut self,
        machine: &mut Machine,
        vcpu: VcpuId,
        pcpu: PcpuId,
        reason: StopReason,
    ) -> Option<Pick> {
        if self.is_cut_off(machine, vcpu, reason) && self.gets_grace(machine, vcpu) {
            machine.emit(TraceEvent::TurnGoesOn { vcpu, pcpu });
            return Some(self.for_a_micro_slice(machine, vcpu));
        }
        self.new_turn(machine, vcpu, pcpu);
        None
    }

    /// Who comes back before its turn was over has a micro slice left of it.
    pub(super) fn comes_back(&self, machine: &Machine, pick: Pick) -> Pick {
        let comes_back = self.grace.counts[pick.vcpu] > 0;
        if comes_back { self.for_a_micro_slice(machine, pick.vcpu) } else { pick }
    }

    pub(super) fn is_rate_limited(&self, machine: &Machine, vcpu: VcpuId, reason: StopReason) -> bool {
        machine.vcpus[vcpu].state != VcpuState::Blocked
            && self.normal.kept_until(machine, vcpu, reason).is_some()
    }

    /// Whether the host ends its turn, not it itself; a yield within the rate limit is one, too.
    pub(super) fn is_cut_off(&self, machine: &Machine, vcpu: VcpuId, reason: StopReason) -> bool {
        machine.vcpus[vcpu].state != VcpuState::Blocked
            && matches!(reason, StopReason::SliceExpired | StopReason::Preempted)
            && !self.normal.has_yielded(vcpu)
    }

    /// Its turn is cut off. May it go on for a micro slice, because it was stopped at a bad moment?
    pub(super) fn gets_grace(&mut self, machine: &mut Machine, vcpu: VcpuId) -> bool {
        if self.pool.count() == 0 || self.grace.in_windows {
            return false;
        }
        let host = &machine.vcpus[vcpu];
        let count = &mut self.grace.counts[vcpu];
        let seen = TurnObservation {
            guest_class: host.class.into(),
            yielded: 0,
            grace_count: *count,
            micro_pcpu_count: self.pool.count() as u32,
            answer: self.answers.answer_of(host.owes_answer).into(),
            reserved: 0,
        };
        if policy::decide_at_turn_end(&self.rules, &seen) != TurnDecision::GoesOn {
            return false;
        }
        *count += 1;
        machine.pool.graces += 1;
        true
    }

    /// Its turn has ended: the next one has its own grace.
    pub(super) fn new_turn(&mut self, machine: &mut Machine, vcpu: VcpuId, pcpu: PcpuId) {
        if std::mem::take(&mut self.grace.counts[vcpu]) > 0 {
            machine.emit(TraceEvent::TurnEnded { vcpu, pcpu });
        }
    }

    /// This pCPU has become micro-sliced under a running vCPU, which goes to the normal pool's queues.
    pub(super) fn evict(&mut self, machine: &mut Machine, vcpu: VcpuId, pcpu: PcpuId, reason: StopReason) {
        if self.is_cut_off(machine, vcpu, reason) && self.gets_grace(machine, vcpu) {
            machine.emit(TraceEvent::TurnGoesOn { vcpu, pcpu });
            self.normal.put_first(machine, vcpu);
        } else {
            self.new_turn(machine, vcpu, pcpu);
            self.normal.put_back(machine, vcpu);
        }
        self.normal.tickle(machine, vcpu);
    }

    /// This micro pCPU may have room: whom it turned away, and who still owes an answer, is asked for again. It begins with
    /// the one that was turned away first: from the VM's first vCPU on, siblings that wait for answers themselves, which is
    /// critical code, would take the place in turns, and keep out who owes them one.
    pub(super) fn ask_again(&mut self, machine: &mut Machine, pcpu: PcpuId) {
        if self.rules.grace_max == 0 || self.pool.next_on(pcpu).is_some() {
            return;
        }
        let Some(vm_id) = self.grace.turned_away[pcpu].take() else { return };
        machine.pool.asked_again += 1;
        let scope = PassScope::AllOwing;
        let first = self.grace.first_turned_away[vm_id].take();
        let vm = &machine.vms[vm_id];
        let nobody_owes = self
            .answers
            .short_cut(scope)
            .is_some_and(|short_cut| vm.waiting.kinds & short_cut.kinds_that_matter == 0);
        if nobody_owes {
            self.grace.left_to_ask[vm_id] = 0;
        } else {
            let (start, end) = (vm.first_vcpu, vm.first_vcpu.plus(vm.vcpus));
            let first = first.unwrap_or(start);
            let mut round = first.until(end).chain(start.until(first));
            let some = round.by_ref().take(policy::ASK_AGAIN_MAX as usize);
            self.visit(machine, some, scope, Cause::CallFunctionIpi);
            self.goes_on_asking(machine, pcpu, vm_id, round.next());
        }
    }

    /// Those that nobody has looked at yet are asked for the next time that the pCPU has room, from `next` on.
    fn goes_on_asking(&mut self, machine: &Machine, pcpu: PcpuId, vm: VmId, next: Option<VcpuId>) {
        let (all, asked) = (machine.vms[vm].vcpus, policy::ASK_AGAIN_MAX);
        let left = match self.grace.left_to_ask[vm] {
            0 => all,
            left => left,
        };
        // If one of these was turned away meanwhile, it is where the next round begins.
        let next = next.filter(|_| !self.grace.knows_first_turned_away(vm));
        self.grace.left_to_ask[vm] = next.map_or(0, |_| left.saturating_sub(asked));
        if self.grace.left_to_ask[vm] != 0 {
            self.grace.first_turned_away[vm] = next;
            self.grace.turned_away[pcpu].get_or_insert(vm);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::passes::PassCounts;
    use super::super::tests::{Credit, SIBLINGS, SPINNER, spinning_among, spinning_for_a_shootdown};
    use super::*;
    use policy::GuestClass;

    const MICRO_SLICE_NS: u64 = 100_000;
    const NORMAL: PcpuId = PcpuId::new(0);
    const MICRO: PcpuId = PcpuId::new(1);

    /// The spinner's slice on pCPU 0 is over; whether it goes on for a micro slice.
    fn goes_on(micro: &mut MicroSliced<Credit>, machine: &mut Machine) -> bool {
        let stopped = Some((SPINNER, StopReason::SliceExpired));
        let pick = micro.schedule(machine, NORMAL, stopped).expect("somebody waits");
        let short = Pick { vcpu: SPINNER, slice_end_ns: machine.now_ns + MICRO_SLICE_NS };
        assert!(pick == short || pick.vcpu != SPINNER, "{pick:?}");
        pick == short
    }

    /// The sibling runs on the micro pCPU because of a reschedule IPI; what runs there once its micro slice is over.
    fn after_a_micro_slice(
        micro: &mut MicroSliced<Credit>,
        machine: &mut Machine,
        sibling: VcpuId,
    ) -> Option<VcpuId> {
        micro.accelerate(machine, sibling, Cause::ReschedIpi);
        let pick = micro.schedule(machine, MICRO, None).expect("the sibling");
        assert_eq!(pick.vcpu, sibling);
        machine.runs(sibling);
        machine.pcpus[MICRO].current = sibling;
        machine.pcpus[MICRO].slice_end_ns = pick.slice_end_ns;
        machine.now_ns = pick.slice_end_ns;
        micro.schedule(machine, MICRO, Some((sibling, StopReason::SliceExpired))).map(|pick| pick.vcpu)
    }

    #[test]
    fn a_turn_that_ends_in_critical_code_goes_on_for_a_few_micro_slices() {
        let (mut micro, mut machine) = spinning_for_a_shootdown();
        for _ in 0..AccelerateConfig::DEFAULT.grace_max {
            assert!(goes_on(&mut micro, &mut machine));
            machine.now_ns += MICRO_SLICE_NS;
        }
        assert!(!goes_on(&mut micro, &mut machine), "grace has an end");
    }

    #[test]
    fn a_turn_that_ends_elsewhere_is_over_unless_an_answer_is_owed() {
        let (mut micro, mut machine) = spinning_for_a_shootdown();
        machine.set_class(SPINNER, GuestClass::User);
        machine.set_owes_answer(SPINNER, true);
        assert!(goes_on(&mut micro, &mut machine));
        machine.set_owes_answer(SPINNER, false);
        assert!(!goes_on(&mut micro, &mut machine));
    }

    #[test]
    fn the_next_turn_has_its_own_grace() {
        let (mut micro, mut machine) = spinning_for_a_shootdown();
        assert!(goes_on(&mut micro, &mut machine));
        machine.set_class(SPINNER, GuestClass::User);
        assert!(!goes_on(&mut micro, &mut machine));
        assert_eq!(micro.grace.counts[SPINNER], 0);
    }

    #[test]
    fn by_the_papers_rules_a_turn_is_over_when_it_is_over() {
        let (mut micro, mut machine) = spinning_for_a_shootdown();
        micro.rules = AccelerateConfig::PAPER;
        assert!(!goes_on(&mut micro, &mut machine));
    }

    #[test]
    fn without_a_micro_pool_nobody_gets_grace() {
        let (mut micro, mut machine) = spinning_for_a_shootdown();
        micro.resize(&mut machine, 0);
        assert!(!goes_on(&mut micro, &mut machine));
    }

    #[test]
    fn who_yields_gets_no_grace_not_even_when_the_rate_limit_delays_the_yield() {
        let (mut micro, mut machine) = spinning_for_a_shootdown();
        machine.now_ns = 500_000;
        micro.normal.yields(&mut machine, SPINNER, NORMAL, YieldCause::Ple);
        machine.now_ns = 1_000_000;
        assert!(!goes_on(&mut micro, &mut machine));
        let (mut micro, mut machine) = spinning_for_a_shootdown();
        let pick = micro.schedule(&mut machine, NORMAL, Some((SPINNER, StopReason::Ple)));
        assert_ne!(pick.map(|pick| pick.vcpu), Some(SPINNER));
    }

    #[test]
    fn who_loses_its_pcpu_to_the_micro_pool_in_critical_code_runs_before_all_others() {
        let (mut micro, mut machine) = spinning_for_a_shootdown();
        machine.pcpus[NORMAL].current = VcpuId::NONE;
        machine.pcpus[MICRO].current = SPINNER;
        let stopped = Some((SPINNER, StopReason::Preempted));
        assert_eq!(micro.schedule(&mut machine, MICRO, stopped), None);
        machine.stops(SPINNER, false);
        let pick = micro.schedule(&mut machine, NORMAL, None);
        let short = Pick { vcpu: SPINNER, slice_end_ns: machine.now_ns + MICRO_SLICE_NS };
        assert_eq!(pick, Some(short));
    }

    #[test]
    fn who_gets_an_ipi_just_before_its_micro_slice_is_over_gets_another_one() {
        let (mut micro, mut machine) = spinning_for_a_shootdown();
        machine.set_owes_answer(SIBLINGS[0], true);
        assert_eq!(after_a_micro_slice(&mut micro, &mut machine, SIBLINGS[0]), Some(SIBLINGS[0]));
        assert_eq!(micro.pool.cause_of(SIBLINGS[0]), Cause::CallFunctionIpi);
    }

    #[test]
    fn who_has_answered_by_the_end_of_its_micro_slice_goes_back_whatever_other_interrupt_waits() {
        let (mut micro, mut machine) = spinning_for_a_shootdown();
        machine.vcpus[SIBLINGS[0]].pending_interrupts = interrupt_bit(InterruptKind::Virq);
        assert_eq!(after_a_micro_slice(&mut micro, &mut machine, SIBLINGS[0]), None);
    }

    #[test]
    fn another_micro_slice_comes_after_those_who_wait_for_one() {
        let (mut micro, mut machine) = spinning_for_a_shootdown();
        machine.set_owes_answer(SIBLINGS[0], true);
        micro.accelerate(&mut machine, SIBLINGS[0], Cause::TlbYield);
        let pick = micro.schedule(&mut machine, MICRO, None).expect("the sibling");
        machine.runs(SIBLINGS[0]);
        machine.pcpus[MICRO].current = SIBLINGS[0];
        machine.pcpus[MICRO].slice_end_ns = pick.slice_end_ns;
        micro.accelerate(&mut machine, SIBLINGS[1], Cause::TlbYield);
        machine.now_ns = pick.slice_end_ns;
        let stopped = Some((SIBLINGS[0], StopReason::SliceExpired));
        let next = micro.schedule(&mut machine, MICRO, stopped).map(|pick| pick.vcpu);
        assert_eq!((next, micro.pool.next_on(MICRO)), (Some(SIBLINGS[1]), Some(SIBLINGS[0])));
    }

    /// Both siblings owe an answer, the second one finds the pool full; who waits there once the first one is served.
    fn waiting_after_the_first(grace_max: u32) -> Option<VcpuId> {
        let (mut micro, mut machine) = spinning_for_a_shootdown();
        micro.rules.grace_max = grace_max;
        SIBLINGS.iter().for_each(|&sibling| machine.set_owes_answer(sibling, true));
        let found = micro.pass(&mut machine, SPINNER, PassScope::AllPreempted, Cause::TlbYield);
        assert_eq!(found, PassCounts { helped: 1, crowded: 1, refused: 0 });
        micro.schedule(&mut machine, MICRO, None).expect("the first sibling");
        micro.pool.next_on(MICRO)
    }

    #[test]
    fn who_found_no_room_is_asked_for_again_when_there_is_some() {
        assert_eq!(waiting_after_the_first(1), Some(SIBLINGS[1]));
        assert_eq!(waiting_after_the_first(0), None, "but not by the paper's rules");
    }

    #[test]
    fn who_was_turned_away_first_is_asked_for_first() {
        let (mut micro, mut machine) = spinning_for_a_shootdown();
        SIBLINGS.iter().for_each(|&sibling| machine.set_owes_answer(sibling, true));
        // Of another VM, say.
        micro.pool.set_next_on(MICRO, Some(SPINNER));
        for sibling in [SIBLINGS[1], SIBLINGS[0]] {
            let request = micro.accelerate(&mut machine, sibling, Cause::CallFunctionIpi);
            assert_eq!(request, Request::NoRoom);
        }
        micro.pool.set_next_on(MICRO, None);
        micro.ask_again(&mut machine, MICRO);
        assert_eq!(micro.pool.next_on(MICRO), Some(SIBLINGS[1]));
    }

    /// Rounds of asking until the last of so many siblings, the only one that owes an answer, is asked for.
    fn rounds_until_the_last_of(siblings: u32) -> Option<usize> {
        let (mut micro, mut machine) = spinning_among(siblings);
        let last = SPINNER.plus(siblings);
        machine.set_owes_answer(last, true);
        micro.grace.note_turned_away(MICRO, machine.vcpus[last].vm);
        (1..=8).find(|_| {
            micro.ask_again(&mut machine, MICRO);
            micro.pool.next_on(MICRO) == Some(last)
        })
    }

    #[test]
    fn a_few_siblings_are_looked_at_each_time_until_all_have_been() {
        assert_eq!(rounds_until_the_last_of(policy::ASK_AGAIN_MAX - 1), Some(1));
        assert_eq!(rounds_until_the_last_of(policy::ASK_AGAIN_MAX), Some(2));
        assert_eq!(rounds_until_the_last_of(4 * policy::ASK_AGAIN_MAX), Some(5));
    }

    #[test]
    fn when_all_have_been_looked_at_nobody_is_asked_for_again() {
        let siblings = 2 * policy::ASK_AGAIN_MAX - 1;
        let (mut micro, mut machine) = spinning_among(siblings);
        for owing in [SIBLINGS[0], SPINNER.plus(siblings)] {
            machine.set_owes_answer(owing, true);
        }
        micro.grace.note_turned_away(MICRO, machine.vcpus[SPINNER].vm);
        let asked_for: Vec<_> = (0..5)
            .map(|_| {
                micro.ask_again(&mut machine, MICRO);
                let asked_for = micro.pool.next_on(MICRO);
                micro.pool.set_next_on(MICRO, None);
                asked_for
            })
            .collect();
        assert_eq!(asked_for, [Some(SIBLINGS[0]), Some(SPINNER.plus(siblings)), None, None, None]);
        assert_eq!((machine.pool.asked_again, micro.grace.turned_away_from(MICRO)), (2, None));
    }

    #[test]
    fn who_has_answered_meanwhile_is_not_asked_for_again() {
        let (mut micro, mut machine) = spinning_for_a_shootdown();
        SIBLINGS.iter().for_each(|&sibling| machine.set_owes_answer(sibling, true));
        micro.pass(&mut machine, SPINNER, PassScope::AllPreempted, Cause::TlbYield);
        machine.set_owes_answer(SIBLINGS[1], false);
        micro.schedule(&mut machine, MICRO, None).expect("the first sibling");
        assert_eq!(micro.pool.next_on(MICRO), None);
    }
}
