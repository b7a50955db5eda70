//! A vCPU that was blocked, was woken, and has to wait: `decide_on_woken` says which of them may run on a
//! micro pCPU.
//!
//! Each micro pCPU has a place for one of them, behind the one for preempted vCPUs
//! (`bpf/mechanisms/asking/woken.bpf.h`: `offer_woken`; `serving/pull.bpf.h`: `serve_woken`). The vCPU in it
//! stays in its normal queue as well, and runs where its turn comes first. So the place costs preempted vCPUs
//! a micro slice at most, and its own vCPU nothing. If all places are taken, a woken vCPU simply waits.

use super::*;
use microslice_policy::WokenObservation;

/// A vCPU in that place, as long as it waits since then.
#[derive(Clone, Copy)]
struct Woken {
    vcpu: VcpuId,
    cause: Cause,
    since_ns: u64,
}

impl Woken {
    /// It hasn't run since, and nobody has asked for it.
    fn still_waits(self, machine: &Machine) -> bool {
        let host = &machine.vcpus[self.vcpu];
        host.state == VcpuState::Runnable && host.since_ns == self.since_ns && !host.requested
    }
}

/// The woken vCPU that comes to each micro pCPU once no preempted one waits for it.
pub(super) struct WokenPlaces(IdVec<PcpuId, Option<Woken>>);

impl WokenPlaces {
    pub fn new(machine: &Machine) -> Self {
        Self(IdVec::of(None, machine.pcpus.len()))
    }

    pub fn clear(&mut self, pcpu: PcpuId) {
        self.0[pcpu] = None;
    }
}

impl<Normal: Core> MicroSliced<Normal> {
    pub(super) fn was_woken(&mut self, machine: &mut Machine, vcpu: VcpuId, by: WokenBy) {
        let kind = match by {
            WokenBy::Interrupt(kind) => kind,
            // In Xen the kick is an event-channel IPI.
            WokenBy::LockKick => InterruptKind::IpiReschedule,
        };
        if self.asks_about_all_that_wait() {
            return self.on_interrupt(machine, vcpu, kind);
        }
        let seen = WokenObservation {
            interrupted: u32::from(by != WokenBy::LockKick),
            kind: kind.into(),
            lock_halt: u32::from(by == WokenBy::LockKick),
            // A vCPU that an interrupt can't reach in its halt isn't woken by it here.
            interrupts_enabled: 1,
            micro_pcpu_count: self.pool.count() as u32,
            guest_known: 1,
        };
        let decision = policy::decide_on_woken(&self.rules, &seen);
        self.pool_size.count_urgent(policy::urgent_event_of_wakeup(&self.rules, &seen, &decision), 1);
        if let Some(cause) = decision.cause.get().filter(|&cause| cause != Cause::None) {
            if !policy::woken_have_places(&self.rules) {
                self.accelerate(machine, vcpu, cause);
                return;
            }
            let since_ns = machine.vcpus[vcpu].since_ns;
            self.offer(machine, Woken { vcpu, cause, since_ns });
        }
    }

    /// An interrupt was sent to a vCPU that waits.
    pub(super) fn on_interrupt(&mut self, machine: &mut Machine, vcpu: VcpuId, kind: InterruptKind) {
        let seen = InterruptObservation {
            kind: kind.into(),
            recipient_state: self.policy_state(machine, vcpu).into(),
            micro_pcpu_count: self.pool.count() as u32,
            guest_known: 1,
            recipient_goes_first: u32::from(self.normal.is_next(vcpu)),
            reserved: 0,
        };
        let decision = policy::decide_on_interrupt(&self.rules, &seen);
        // By the paper's rules it was counted when it came.
        if self.rules.paper_rules == 0 {
            let event = policy::urgent_event_of_interrupt(&self.rules, seen.kind, &decision);
            self.pool_size.count_urgent(event, 1);
        }
        if let Some(cause) = decision.cause.get().filter(|&cause| cause != Cause::None) {
            self.accelerate(machine, vcpu, cause);
        }
    }

    /// A device's interrupt came: by the paper's rules Algorithm 1 counts each, whatever becomes of it.
    pub(super) fn counts_device_interrupt(&mut self) {
        if self.rules.paper_rules != 0 {
            let (kind, decision) = (InterruptKind::Virq.into(), policy::InterruptDecision::default());
            let event = policy::urgent_event_of_interrupt(&self.rules, kind, &decision);
            self.pool_size.count_urgent(event, 1);
        }
    }

    /// Gives it the place of a micro pCPU: first of those that run nothing, then of all.
    fn offer(&mut self, machine: &mut Machine, woken: Woken) {
        if machine.is_pinned(woken.vcpu) {
            return;
        }
        let micro = self.pool.pcpus();
        let is_free = |&pcpu: &PcpuId| {
            self.has_room(self.woken.0[pcpu].is_some_and(|other| other.still_waits(machine)))
        };
        let idle = micro.clone().filter(|&pcpu| self.is_free(machine, pcpu)).find(is_free);
        if let Some(pcpu) = idle.or_else(|| micro.clone().find(is_free)) {
            self.woken.0[pcpu] = Some(woken);
            if self.is_free(machine, pcpu) {
                machine.request_schedule(pcpu);
            }
        }
    }

    /// No preempted vCPU waits for this micro pCPU: it takes a woken one.
    pub(super) fn take_woken(&mut self, machine: &mut Machine, pcpu: PcpuId) -> Option<VcpuId> {
        if self.pool.next_on(pcpu).is_some() {
            return None;
        }
        let woken = self.woken.0[pcpu].take().filter(|woken| woken.still_waits(machine))?;
        self.request(machine, woken.vcpu, pcpu, woken.cause);
        self.pool.take_next(pcpu)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Credit, SIBLINGS, spinning_for_a_shootdown};
    use super::*;

    const NORMAL: PcpuId = PcpuId::new(0);
    const MICRO: PcpuId = PcpuId::new(1);
    const KICK: WokenBy = WokenBy::LockKick;

    fn next_on(micro: &mut MicroSliced<Credit>, machine: &mut Machine, pcpu: PcpuId) -> Option<VcpuId> {
        let stopped = machine.current(pcpu).map(|vcpu| (vcpu, StopReason::SliceExpired));
        let pick = micro.schedule(machine, pcpu, stopped)?;
        machine.runs(pick.vcpu);
        machine.pcpus[pcpu].current = pick.vcpu;
        machine.pcpus[pcpu].slice_end_ns = pick.slice_end_ns;
        Some(pick.vcpu)
    }

    fn cause_of(micro: &MicroSliced<Credit>, vcpu: VcpuId) -> Cause {
        micro.pool.cause_of(vcpu)
    }

    #[test]
    fn a_woken_vcpu_that_has_to_wait_runs_on_a_micro_pcpu_that_no_other_needs() {
        for (by, cause) in [
            (KICK, Cause::LockKick),
            (WokenBy::Interrupt(InterruptKind::IpiReschedule), Cause::ReschedIpi),
            (WokenBy::Interrupt(InterruptKind::IpiCallFunction), Cause::CallFunctionIpi),
            (WokenBy::Interrupt(InterruptKind::Virq), Cause::Virq),
        ] {
            let (mut micro, mut machine) = spinning_for_a_shootdown();
            micro.woken(&mut machine, SIBLINGS[0], by);
            assert_eq!(next_on(&mut micro, &mut machine, MICRO), Some(SIBLINGS[0]), "{by:?}");
            assert_eq!(cause_of(&micro, SIBLINGS[0]), cause);
        }
    }

    #[test]
    fn a_timer_moves_nobody_and_neither_does_anything_without_a_micro_pool() {
        let (mut micro, mut machine) = spinning_for_a_shootdown();
        micro.woken(&mut machine, SIBLINGS[0], WokenBy::Interrupt(InterruptKind::Timer));
        assert_eq!(next_on(&mut micro, &mut machine, MICRO), None);
        micro.resize(&mut machine, 0);
        micro.woken(&mut machine, SIBLINGS[0], KICK);
        assert!(micro.woken.0.iter().all(Option::is_none));
    }

    #[test]
    fn a_preempted_vcpu_comes_first_and_a_woken_one_after_it() {
        let (mut micro, mut machine) = spinning_for_a_shootdown();
        micro.woken(&mut machine, SIBLINGS[0], KICK);
        micro.accelerate(&mut machine, SIBLINGS[1], Cause::LockYield);
        assert_eq!(next_on(&mut micro, &mut machine, MICRO), Some(SIBLINGS[1]));
        machine.now_ns = machine.pcpus[MICRO].slice_end_ns;
        assert_eq!(next_on(&mut micro, &mut machine, MICRO), Some(SIBLINGS[0]));
    }

    #[test]
    fn a_woken_vcpu_stays_in_its_normal_queue_and_runs_where_its_turn_comes_first() {
        let (mut micro, mut machine) = spinning_for_a_shootdown();
        micro.accelerate(&mut machine, SIBLINGS[1], Cause::LockYield);
        next_on(&mut micro, &mut machine, MICRO);
        micro.woken(&mut machine, SIBLINGS[0], KICK);
        machine.set_class(super::super::tests::SPINNER, policy::GuestClass::User);
        machine.now_ns = 40_000_000;
        assert_eq!(next_on(&mut micro, &mut machine, NORMAL), Some(SIBLINGS[0]));
        assert_eq!(next_on(&mut micro, &mut machine, MICRO), None, "it runs: it needs no other pCPU");
        let kicks: u64 = machine
            .pool
            .requests()
            .filter(|(cause, _)| *cause == Cause::LockKick)
            .map(|(_, count)| count)
            .sum();
        assert_eq!(kicks, 0, "and was never requested");
    }

    #[test]
    fn a_place_holds_one_and_the_next_simply_waits() {
        let (mut micro, mut machine) = spinning_for_a_shootdown();
        micro.woken(&mut machine, SIBLINGS[0], KICK);
        micro.woken(&mut machine, SIBLINGS[1], KICK);
        assert_eq!(next_on(&mut micro, &mut machine, MICRO), Some(SIBLINGS[0]));
        machine.now_ns = machine.pcpus[MICRO].slice_end_ns;
        assert_eq!(next_on(&mut micro, &mut machine, MICRO), None);
        assert_eq!((machine.pool.asked_again, micro.asked_again.turned_away_from(MICRO)), (0, None));
    }

    #[test]
    fn a_place_is_free_again_when_its_vcpu_waits_no_longer() {
        let (mut micro, mut machine) = spinning_for_a_shootdown();
        micro.woken(&mut machine, SIBLINGS[0], KICK);
        // A pass asked for it, too: help is on its way.
        micro.accelerate(&mut machine, SIBLINGS[0], Cause::LockYield);
        micro.woken(&mut machine, SIBLINGS[1], KICK);
        assert_eq!(next_on(&mut micro, &mut machine, MICRO), Some(SIBLINGS[0]));
        assert_eq!(cause_of(&micro, SIBLINGS[0]), Cause::LockYield);
        machine.now_ns = machine.pcpus[MICRO].slice_end_ns;
        assert_eq!(next_on(&mut micro, &mut machine, MICRO), Some(SIBLINGS[1]));
    }

    #[test]
    fn the_prototype_treats_woken_vcpus_like_preempted_ones() {
        let (mut micro, mut machine) = spinning_for_a_shootdown();
        micro.prototype = Some(XenPrototype::new(&machine));
        micro.woken(&mut machine, SIBLINGS[0], KICK);
        assert_eq!(micro.pool.next_on(MICRO), Some(SIBLINGS[0]));
        assert_eq!(cause_of(&micro, SIBLINGS[0]), Cause::ReschedIpi);
    }
}
