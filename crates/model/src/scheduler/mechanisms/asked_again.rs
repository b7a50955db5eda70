//! Asked again: a vCPU whose micro slice ended too early, or that found no room in the micro pool, is asked
//! for once more. `policy/accelerate.h` says which and how often. The moments at which it is asked are the
//! real scheduler's (`bpf/mechanisms/serving/micro_slice.bpf.h`: `stop_accelerated`;
//! `asking/ask_again.bpf.h`):
//!
//! | moment | what follows |
//! |---|---|
//! | a micro slice is over | a new request, behind all others (`micro_pool.rs`: `end_micro_slice`) |
//! | a micro pCPU has room again | a pass over the VM's responders, from the first that it turned away on |
//!
//! A pass takes no time here, so none is ever under way when a place gets free.

use super::*;

/// What it keeps of vCPUs, pCPUs and VMs.
pub(super) struct AskedAgain {
    /// Requests in a row because a micro slice ended too early.
    retries: IdVec<VcpuId, u32>,
    /// The VM whose vCPU each micro pCPU had no room for last.
    turned_away: IdVec<PcpuId, Option<VmId>>,
    /// Of each VM the first vCPU that found no room since the last pass that asked again. The first, not the
    /// last: then each has its turn, in whichever order those that ask go through them.
    first_turned_away: IdVec<VmId, Option<VcpuId>>,
    /// Of those that are asked for again, how many nobody has looked at yet; 0: they are all looked at.
    left_to_ask: IdVec<VmId, u32>,
}

impl AskedAgain {
    pub fn new(machine: &Machine) -> Self {
        Self {
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
impl AskedAgain {
    /// Of each micro pCPU, and of each VM.
    pub fn all_turned_away(self) -> (IdVec<PcpuId, Option<VmId>>, IdVec<VmId, Option<VcpuId>>) {
        (self.turned_away, self.first_turned_away)
    }

    pub fn turned_away_from(&self, pcpu: PcpuId) -> Option<VmId> {
        self.turned_away[pcpu]
    }
}

impl<Normal: Core> MicroSliced<Normal> {
    /// This micro pCPU may have room: the responders that it turned away, and that still owe an answer, are
    /// asked for again. It begins with the one that was turned away first. From the VM's first vCPU on,
    /// siblings that wait for answers themselves (critical code, too) would take the place in turns. They
    /// would keep out the responders.
    pub(super) fn ask_again(&mut self, machine: &mut Machine, pcpu: PcpuId) {
        if self.rules.grace_max == 0 || self.pool.next_on(pcpu).is_some() {
            return;
        }
        let Some(vm_id) = self.asked_again.turned_away[pcpu].take() else { return };
        machine.pool.asked_again += 1;
        let scope = PassScope::AllOwing;
        let first = self.asked_again.first_turned_away[vm_id].take();
        let vm = &machine.vms[vm_id];
        let nobody_owes = self
            .answers
            .short_cut(scope)
            .is_some_and(|short_cut| vm.waiting.kinds & short_cut.kinds_that_matter == 0);
        if nobody_owes {
            self.asked_again.left_to_ask[vm_id] = 0;
        } else {
            let (start, end) = (vm.first_vcpu, vm.first_vcpu.plus(vm.vcpus));
            let first = first.unwrap_or(start);
            let mut round = first.until(end).chain(start.until(first));
            let some = round.by_ref().take(policy::ASK_AGAIN_MAX as usize);
            self.visit(machine, some, scope, Cause::CallFunctionIpi);
            self.goes_on_asking(machine, pcpu, vm_id, round.next());
        }
    }

    /// Those that nobody has looked at yet are asked for the next time that the pCPU has room, from `next`
    /// on.
    fn goes_on_asking(&mut self, machine: &Machine, pcpu: PcpuId, vm: VmId, next: Option<VcpuId>) {
        let (all, asked) = (machine.vms[vm].vcpus, policy::ASK_AGAIN_MAX);
        let left = match self.asked_again.left_to_ask[vm] {
            0 => all,
            left => left,
        };
        // If one of these was turned away meanwhile, it is where the next round begins.
        let next = next.filter(|_| !self.asked_again.knows_first_turned_away(vm));
        self.asked_again.left_to_ask[vm] = next.map_or(0, |_| left.saturating_sub(asked));
        if self.asked_again.left_to_ask[vm] != 0 {
            self.asked_again.first_turned_away[vm] = next;
            self.asked_again.turned_away[pcpu].get_or_insert(vm);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::passes::PassCounts;
    use super::super::tests::{Credit, SIBLINGS, SPINNER, spinning_among, spinning_for_a_shootdown};
    use super::*;

    const MICRO: PcpuId = PcpuId::new(1);

    /// The sibling runs on the micro pCPU because of a reschedule IPI; what runs there once its micro slice
    /// is over.
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
    fn the_recipient_of_an_ipi_just_before_its_micro_slice_is_over_gets_another_one() {
        let (mut micro, mut machine) = spinning_for_a_shootdown();
        machine.set_owes_answer(SIBLINGS[0], true);
        assert_eq!(after_a_micro_slice(&mut micro, &mut machine, SIBLINGS[0]), Some(SIBLINGS[0]));
        assert_eq!(micro.pool.cause_of(SIBLINGS[0]), Cause::CallFunctionIpi);
    }

    #[test]
    fn a_responder_that_has_answered_by_the_end_of_its_micro_slice_goes_back_whatever_other_interrupt_waits()
    {
        let (mut micro, mut machine) = spinning_for_a_shootdown();
        machine.vcpus[SIBLINGS[0]].pending_interrupts = interrupt_bit(InterruptKind::Virq);
        assert_eq!(after_a_micro_slice(&mut micro, &mut machine, SIBLINGS[0]), None);
    }

    #[test]
    fn another_micro_slice_comes_after_requests_that_wait_for_one() {
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

    /// Both siblings owe an answer, and the second one finds the pool full. Returns the vCPU that waits there
    /// once the first one is served.
    fn waiting_after_the_first(grace_max: u32) -> Option<VcpuId> {
        let (mut micro, mut machine) = spinning_for_a_shootdown();
        micro.rules.grace_max = grace_max;
        SIBLINGS.iter().for_each(|&sibling| machine.set_owes_answer(sibling, true));
        let found = micro.pass(&mut machine, SPINNER, PassScope::AllPreempted, Cause::TlbYield);
        assert_eq!(found, PassCounts { helped: 1, refused: 0 });
        micro.schedule(&mut machine, MICRO, None).expect("the first sibling");
        micro.pool.next_on(MICRO)
    }

    #[test]
    fn a_vcpu_that_found_no_room_is_asked_for_again_when_there_is_some() {
        assert_eq!(waiting_after_the_first(1), Some(SIBLINGS[1]));
        assert_eq!(waiting_after_the_first(0), None, "but not by the paper's rules");
    }

    #[test]
    fn the_vcpu_that_was_turned_away_first_is_asked_for_first() {
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
        micro.asked_again.note_turned_away(MICRO, machine.vcpus[last].vm);
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
        micro.asked_again.note_turned_away(MICRO, machine.vcpus[SPINNER].vm);
        let asked_for: Vec<_> = (0..5)
            .map(|_| {
                micro.ask_again(&mut machine, MICRO);
                let asked_for = micro.pool.next_on(MICRO);
                micro.pool.set_next_on(MICRO, None);
                asked_for
            })
            .collect();
        assert_eq!(asked_for, [Some(SIBLINGS[0]), Some(SPINNER.plus(siblings)), None, None, None]);
        assert_eq!((machine.pool.asked_again, micro.asked_again.turned_away_from(MICRO)), (2, None));
    }

    #[test]
    fn a_responder_that_has_answered_meanwhile_is_not_asked_for_again() {
        let (mut micro, mut machine) = spinning_for_a_shootdown();
        SIBLINGS.iter().for_each(|&sibling| machine.set_owes_answer(sibling, true));
        micro.pass(&mut machine, SPINNER, PassScope::AllPreempted, Cause::TlbYield);
        machine.set_owes_answer(SIBLINGS[1], false);
        micro.schedule(&mut machine, MICRO, None).expect("the first sibling");
        assert_eq!(micro.pool.next_on(MICRO), None);
    }
}
