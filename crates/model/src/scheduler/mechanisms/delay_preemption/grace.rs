//! Grace: a vCPU that stops at a bad moment at the end of its turn goes on for a few micro slices. The window
//! doesn't slide. `policy/delay_preemption.h` says which and how often. The moments at which it is asked are
//! the real scheduler's (`bpf/mechanisms/delay_preemption.bpf.h`: `finishes_first`, `comes_back`):
//!
//! | moment | what follows |
//! |---|---|
//! | a turn in the normal pool is over | it goes on for a micro slice |
//! | its pCPU becomes micro-sliced, and isn't lent | it goes first elsewhere, for a micro slice |
//!
//! A woken vCPU, or one that asks for a micro slice before a turn is over, doesn't wait for that.
//! A turn that Xen's rate limit protects isn't over. The simulated host has no tasks of its own, so nobody
//! else interrupts a turn.

use super::super::*;
use microslice_policy::delay_preemption::decide_on_delay;
use microslice_policy::{DelayConfig, DelayObservation, DelayVerdict};

/// What it keeps of vCPUs.
pub(in super::super) struct Grace {
    /// Turns of the normal pool end in windows (`DelayPreemption`): they aren't made longer twice.
    in_windows: bool,
    /// Micro slices in a row that each vCPU's turn in the normal pool was made longer by.
    counts: IdVec<VcpuId, u32>,
}

impl Grace {
    pub fn new(in_windows: bool, machine: &Machine) -> Self {
        Self { in_windows, counts: IdVec::of(0, machine.vcpus.len()) }
    }
}

impl<Normal: Core> MicroSliced<Normal> {
    /// Its turn is over, unless it goes on for a micro slice because it was stopped at a bad moment.
    pub(in super::super) fn finishes_first(
        &mut self,
        machine: &mut Machine,
        vcpu: VcpuId,
        pcpu: PcpuId,
        reason: StopReason,
    ) -> Option<Pick> {
        let is_cut_short = self.normal.turn_due_ns(pcpu).is_some_and(|due_ns| machine.now_ns < due_ns);
        if self.is_cut_off(machine, vcpu, reason) && self.gets_grace(machine, vcpu, is_cut_short) {
            machine.emit(TraceEvent::TurnGoesOn { vcpu, pcpu });
            return Some(self.for_a_micro_slice(machine, vcpu));
        }
        self.new_turn(machine, vcpu, pcpu);
        None
    }

    /// A vCPU that comes back before its turn was over has a micro slice left of it.
    pub(in super::super) fn comes_back(&self, machine: &Machine, pick: Pick) -> Pick {
        let comes_back = self.grace.counts[pick.vcpu] > 0;
        if comes_back { self.for_a_micro_slice(machine, pick.vcpu) } else { pick }
    }

    pub(in super::super) fn is_rate_limited(
        &self,
        machine: &Machine,
        vcpu: VcpuId,
        reason: StopReason,
    ) -> bool {
        machine.vcpus[vcpu].state != VcpuState::Blocked
            && self.normal.kept_until(machine, vcpu, reason).is_some()
    }

    /// Whether the host ends its turn, not it itself; a yield within the rate limit is one, too.
    pub(in super::super) fn is_cut_off(&self, machine: &Machine, vcpu: VcpuId, reason: StopReason) -> bool {
        machine.vcpus[vcpu].state != VcpuState::Blocked
            && matches!(reason, StopReason::SliceExpired | StopReason::Preempted)
            && !self.normal.has_yielded(vcpu)
    }

    /// Its turn is cut off. May it go on for a micro slice, because it was stopped at a bad moment?
    /// `is_cut_short`: it isn't over.
    pub(in super::super) fn gets_grace(
        &mut self,
        machine: &mut Machine,
        vcpu: VcpuId,
        is_cut_short: bool,
    ) -> bool {
        // Without a micro pool nobody helps those that it may wait for: it would only spin for longer.
        if self.pool.count() == 0 || self.grace.in_windows {
            return false;
        }
        let host = &machine.vcpus[vcpu];
        let count = &mut self.grace.counts[vcpu];
        let rules = DelayConfig::of_grace(self.rules.grace_max, self.pool.slice_ns());
        let seen = DelayObservation {
            window: rules.window_of_grace(),
            now_ns: u64::from(*count) * rules.look_ns,
            guest_class: host.class.into(),
            answer: self.answers.answer_of(host.owes_answer).into(),
            is_cut_short: is_cut_short.into(),
            ..DelayObservation::default()
        };
        if decide_on_delay(&rules, &seen).verdict.get() != Some(DelayVerdict::GoesOn) {
            return false;
        }
        *count += 1;
        machine.pool.graces += 1;
        true
    }

    /// Its turn has ended: the next one has its own grace.
    pub(in super::super) fn new_turn(&mut self, machine: &mut Machine, vcpu: VcpuId, pcpu: PcpuId) {
        if std::mem::take(&mut self.grace.counts[vcpu]) > 0 {
            machine.emit(TraceEvent::TurnEnded { vcpu, pcpu });
        }
    }

    /// This pCPU has become micro-sliced under a running vCPU, which goes to the normal pool's queues.
    pub(in super::super) fn evict(
        &mut self,
        machine: &mut Machine,
        vcpu: VcpuId,
        pcpu: PcpuId,
        reason: StopReason,
    ) {
        if self.is_cut_off(machine, vcpu, reason) && self.gets_grace(machine, vcpu, false) {
            machine.emit(TraceEvent::TurnGoesOn { vcpu, pcpu });
            self.normal.put_first(machine, vcpu);
        } else {
            self.new_turn(machine, vcpu, pcpu);
            self.normal.put_back(machine, vcpu);
        }
        self.normal.tickle(machine, vcpu);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::{Credit, SPINNER, spinning_for_a_shootdown};
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
    fn a_vcpu_that_yields_gets_no_grace_not_even_when_the_rate_limit_delays_the_yield() {
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
    fn a_vcpu_that_loses_its_pcpu_to_the_micro_pool_in_critical_code_runs_before_all_others() {
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
}
