//! Lending: a micro pCPU without a request runs vCPUs of the normal pool, until one comes. In the paper it
//! idles.
//!
//! | moment | what follows (and where, in `bpf/`) |
//! |---|---|
//! | a micro pCPU finds no request | it chooses like a normal one (`lending.bpf.h`: `dispatch_lent`) |
//! | a request comes | it goes before the borrower, which is queued (`call_pcpu`, `enqueue_vcpu`) |
//! | a vCPU waits, and no normal pCPU idles | an idle micro pCPU comes for it (`kick_idle_micro`) |
//!
//! The borrower gets no grace when it is called back: what it waits for may be the one that it is called back
//! for. With it, dedup's shootdowns took a fifth longer, and nothing was faster.

use super::*;

impl<Normal: Core> MicroSliced<Normal> {
    pub(super) fn runs_micro_slice(&self, machine: &Machine, pcpu: PcpuId) -> bool {
        machine.current(pcpu).is_some_and(|vcpu| self.pool.is_member(vcpu, pcpu))
    }

    /// Whether this micro pCPU would serve a request at once: it runs nobody, or is lent.
    pub(super) fn is_free(&self, machine: &Machine, pcpu: PcpuId) -> bool {
        machine.is_idle(pcpu) || (self.lends && !self.runs_micro_slice(machine, pcpu))
    }

    /// From a vCPU that could go on.
    pub(super) fn call_back(&mut self, machine: &mut Machine, vcpu: VcpuId, pcpu: PcpuId) {
        machine.pool.called_back += 1;
        self.new_turn(machine, vcpu, pcpu);
        self.normal.cut_short(machine, vcpu, pcpu);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{FairShare, all_woken, choose, look};
    use super::*;

    const NORMAL: PcpuId = PcpuId::new(0);
    const MICRO: PcpuId = PcpuId::new(1);

    /// So many vCPUs of one VM have woken on a host of two pCPUs, one of them micro-sliced.
    fn host(lends: bool, vcpus: u32) -> (MicroSliced<FairShare>, Machine) {
        all_woken(2, &[vcpus], |config| config.lends = lends)
    }

    fn on(machine: &Machine) -> [Option<VcpuId>; 2] {
        [NORMAL, MICRO].map(|pcpu| machine.current(pcpu))
    }

    fn running(vcpu: u32) -> Option<VcpuId> {
        Some(VcpuId::new(vcpu))
    }

    #[test]
    fn a_micro_pcpu_that_nobody_asks_for_runs_a_vcpu_that_waits_in_the_normal_pool() {
        assert_eq!(on(&host(true, 3).1), [0, 1].map(running));
        assert_eq!(on(&host(false, 3).1), [running(0), None], "in the paper it idles");
    }

    #[test]
    fn a_requested_vcpu_runs_there_at_once_for_a_micro_slice() {
        let (mut micro, mut machine) = host(true, 3);
        machine.now_ns = 1_000_000;
        machine.set_class(VcpuId::new(1), policy::GuestClass::LockHolder);
        assert_eq!(micro.accelerate(&mut machine, VcpuId::new(2), Cause::LockYield), Request::Granted);
        look(&mut micro, &mut machine);
        assert_eq!(on(&machine), [0, 2].map(running));
        assert_eq!(machine.pcpus[MICRO].slice_end_ns, 1_100_000);
        assert_eq!((machine.pool.called_back, machine.pool.graces), (1, 0));
        assert!(micro.normal.take_out(&machine, VcpuId::new(1)), "the borrower waits in the normal pool");
    }

    #[test]
    fn after_the_micro_slice_it_is_lent_again() {
        let (mut micro, mut machine) = host(true, 3);
        micro.accelerate(&mut machine, VcpuId::new(2), Cause::LockYield);
        look(&mut micro, &mut machine);
        machine.now_ns = machine.pcpus[MICRO].slice_end_ns;
        assert!(micro.is_free(&machine, NORMAL) && !micro.is_free(&machine, MICRO));
        let pick = choose(&mut micro, &mut machine, MICRO, StopReason::SliceExpired).expect("somebody waits");
        assert_eq!((pick.vcpu, pick.slice_end_ns), (VcpuId::new(1), u64::MAX), "a turn of the normal pool");
        assert!(micro.is_free(&machine, MICRO));
    }

    #[test]
    fn a_second_request_does_not_cut_the_micro_slice_short() {
        let (mut micro, mut machine) = host(true, 4);
        for vcpu in [2, 3] {
            assert_eq!(micro.accelerate(&mut machine, VcpuId::new(vcpu), Cause::LockYield), Request::Granted);
            look(&mut micro, &mut machine);
            assert_eq!(machine.current(MICRO), running(2));
        }
    }

    #[test]
    fn a_woken_vcpu_takes_a_turn_not_the_micro_slice_of_the_borrower_before_it() {
        let (mut micro, mut machine) = host(true, 4);
        // Until no vCPU runs that was woken for it.
        for _ in 0..4 {
            machine.now_ns += 10_000_000;
            for pcpu in [NORMAL, MICRO] {
                choose(&mut micro, &mut machine, pcpu, StopReason::SliceExpired);
            }
        }
        look(&mut micro, &mut machine);
        let sleeper = machine.current(MICRO).expect("a borrower");
        machine.blocks(sleeper);
        let pick = micro.schedule(&mut machine, MICRO, Some((sleeper, StopReason::Hlt)));
        let borrower = pick.expect("two wait").vcpu;
        machine.runs(borrower);
        machine.pcpus[MICRO].current = borrower;
        let other = machine.vcpus.ids().find(|&vcpu| machine.vcpus[vcpu].state == VcpuState::Runnable);
        // The borrower is called back, and comes for a micro slice of its own.
        for vcpu in [other.expect("one waits"), borrower] {
            assert_eq!(micro.accelerate(&mut machine, vcpu, Cause::LockYield), Request::Granted);
            look(&mut micro, &mut machine);
        }
        machine.now_ns = machine.pcpus[MICRO].slice_end_ns;
        choose(&mut micro, &mut machine, MICRO, StopReason::SliceExpired);
        assert!(machine.current(MICRO) == Some(borrower) && micro.runs_micro_slice(&machine, MICRO));
        machine.wakes(sleeper);
        micro.wake(&mut machine, sleeper);
        assert_eq!(machine.next_schedule(), Some(NORMAL));
    }

    #[test]
    fn the_turn_of_a_borrower_ends_at_a_tick_and_a_micro_slice_does_not() {
        let (mut micro, mut machine) = host(true, 3);
        machine.now_ns = 40_000_000;
        micro.tick(&mut machine, MICRO);
        assert_eq!(machine.next_schedule(), Some(MICRO));
        choose(&mut micro, &mut machine, MICRO, StopReason::Preempted);
        micro.accelerate(&mut machine, VcpuId::new(1), Cause::LockYield);
        look(&mut micro, &mut machine);
        machine.now_ns += 50_000;
        micro.tick(&mut machine, MICRO);
        assert_eq!(machine.next_schedule(), None);
    }

    #[test]
    fn a_borrower_that_spins_yields_like_any_vcpu_in_the_normal_pool() {
        let (mut micro, mut machine) = host(true, 2);
        machine.set_class(VcpuId::new(1), policy::GuestClass::User);
        let answer = micro.yields(&mut machine, VcpuId::new(1), MICRO, YieldCause::Ple);
        assert_eq!(answer, YieldAnswer::KeepSpinning { until_ns: 0 }, "no sibling waits");
    }

    #[test]
    fn a_pcpu_that_leaves_the_micro_pool_goes_on_with_its_borrower() {
        let (mut micro, mut machine) = host(true, 2);
        micro.resize(&mut machine, 0);
        look(&mut micro, &mut machine);
        micro.resize(&mut machine, 1);
        look(&mut micro, &mut machine);
        assert_eq!(on(&machine), [0, 1].map(running));
        assert_eq!(machine.pool.called_back, 0);
    }
}
