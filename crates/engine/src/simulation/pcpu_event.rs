//! What a running vCPU does next: it ends a step, exits from a pause loop, takes its tick, or its slice is
//! over.

use super::Simulation;
use crate::guest::{Act, Frame};
use microslice_model::events::StopReason;
use microslice_model::ids::{PcpuId, VcpuId};
use microslice_model::scheduler::YieldAnswer;
use microslice_policy::YieldCause;

impl Simulation<'_> {
    /// `timed` says what the vCPU does, most likely. That can't be predicted, and a host of many pCPUs has to
    /// be fetched from slow caches before it can be looked up: so it comes with the event, and each of the
    /// two has code of its own.
    pub(super) fn pcpu_event(&mut self, pcpu: PcpuId, timed: bool) {
        let now_ns = self.machine.now_ns;
        let host = &self.machine.pcpus[pcpu];
        let vcpu = host.current;
        debug_assert_ne!(vcpu, VcpuId::NONE);
        if self.halt_polling.polls(vcpu) {
            self.poll(pcpu);
            return self.arm_unless_scheduled(pcpu);
        }
        let guest = &self.guest[vcpu];
        if (guest.next_tick_ns <= now_ns) | (host.slice_end_ns <= now_ns) {
            return self.any_event(pcpu, vcpu);
        }
        let is_timed = guest.frame().act == Act::Timed;
        if timed {
            if !is_timed {
                return self.any_event(pcpu, vcpu);
            }
            if self.sync_timed(vcpu) {
                self.finish(vcpu);
            }
            self.arm_unless_scheduled(pcpu);
        } else {
            if is_timed {
                return self.any_event(pcpu, vcpu);
            }
            self.sync_waiting(vcpu);
            self.spinning_ends(pcpu, vcpu);
            self.arm_unless_scheduled(pcpu);
        }
        if self.machine.pcpus[pcpu].tells_changes | self.times_guests {
            self.tell_change(pcpu, vcpu);
        }
    }

    /// The guest's tick may be due, or the slice over, or what the vCPU does at an end.
    #[cold]
    #[inline(never)]
    fn any_event(&mut self, pcpu: PcpuId, vcpu: VcpuId) {
        self.sync(vcpu);
        let now_ns = self.machine.now_ns;
        if self.guest[vcpu].next_tick_ns <= now_ns {
            self.raise_tick(vcpu);
        }
        if self.machine.pcpus[pcpu].slice_end_ns <= now_ns {
            return self.request_stop(pcpu, StopReason::SliceExpired);
        }
        match self.guest[vcpu].frame().act {
            Act::Timed => self.step_ends(vcpu),
            _ => self.spinning_ends(pcpu, vcpu),
        }
        self.arm(pcpu);
        if self.machine.pcpus[pcpu].tells_changes | self.times_guests {
            self.tell_change(pcpu, vcpu);
        }
    }

    /// What is about to be scheduled is armed then.
    #[inline(always)]
    fn arm_unless_scheduled(&mut self, pcpu: PcpuId) {
        if !self.machine.wants_schedule(pcpu) {
            self.arm_again(pcpu);
        }
    }

    /// If the present step is over, does what follows it.
    #[inline(always)]
    fn step_ends(&mut self, vcpu: VcpuId) {
        let guest = &self.guest[vcpu];
        if (guest.overhead_ns == 0) & (guest.frame().left_ns == 0) {
            self.finish(vcpu);
        }
    }

    /// If a spinning vCPU is to halt or at a pause-loop exit, does that.
    #[inline(always)]
    fn spinning_ends(&mut self, pcpu: PcpuId, vcpu: VcpuId) {
        let guest = &self.guest[vcpu];
        if guest.overhead_ns > 0 {
            return;
        }
        match guest.frame().act {
            Act::SpinLock if guest.pv_spin_left_ns == 0 => self.spun_enough(vcpu, pcpu),
            Act::SpinLock | Act::SpinAcks
                if guest.ple_phase_ns == self.machine.pause_windows.of(vcpu)
                    && guest.ple_batch_until_ns <= self.machine.now_ns =>
            {
                self.pause_loop_exit(vcpu, pcpu)
            }
            _ => {}
        }
    }

    fn pause_loop_exit(&mut self, vcpu: VcpuId, pcpu: PcpuId) {
        if self.machine.watched {
            self.note_position(vcpu);
        }
        if self.machine.heir_kinds != 0 {
            self.note_counts(self.machine.vcpus[vcpu].vm);
        }
        match self.ask_to_yield(vcpu, pcpu, YieldCause::Ple) {
            YieldAnswer::Yield => self.request_stop(pcpu, StopReason::Ple),
            YieldAnswer::KeepSpinning { until_ns } => {
                let until_ns = if self.config.fold_exits { until_ns } else { self.machine.now_ns };
                self.guest[vcpu].ple_batch_until_ns = until_ns;
            }
        }
    }

    /// `vcpu`, which runs on `pcpu`, offers to yield. The tries cost it time, or the one that follows it.
    pub(crate) fn ask_to_yield(&mut self, vcpu: VcpuId, pcpu: PcpuId, cause: YieldCause) -> YieldAnswer {
        let answer = self.scheduler.yields(&mut self.machine, vcpu, pcpu, cause);
        self.machine.leaves_guest(pcpu);
        let jitter_ns = self.pause_loops.jitter_ns;
        let extra_ns = if jitter_ns > 0 { u64::from(self.random.below(jitter_ns)) } else { 0 };
        let cost_ns = self.machine.take_yield_costs() + extra_ns;
        match answer {
            YieldAnswer::Yield => self.machine.pcpu_times[pcpu].owed_ns += cost_ns,
            YieldAnswer::KeepSpinning { .. } => self.guest[vcpu].overhead_ns += cost_ns,
        }
        answer
    }

    pub(crate) fn timed(&mut self, vcpu: VcpuId, then: crate::guest::Then, symbol: u16, left_ns: u64) {
        let frame = self.guest[vcpu].frame_mut();
        *frame = Frame { act: Act::Timed, then, symbol, left_ns, ..*frame };
    }
}
