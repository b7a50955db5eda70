//! Turns: the ladder of which vCPU runs next on a pCPU, and until when.
//!
//! | rung | vCPU |
//! |---|---|
//! | 1 | one that was woken for this idle pCPU |
//! | 2 | one that a mechanism puts first (`Hooks::goes_first`) |
//! | 3 | one that woke within its share (boosted) |
//! | 4 | whose turn was interrupted here: it has what is left of it |
//! | 5 | one that waits in another domain, as `policy/queue_domain.h` says |
//! | 6 | the one that ran here until now, if none waits that is further behind |
//! | 7 | by virtual time, or one that a mechanism puts before the first of them (`Hooks::goes_before`) |

use super::{FairShare, Hooks, Interrupted, Place, Turn, ran_here_last};
use crate::events::StopReason;
use crate::ids::{PcpuId, VcpuId};
use crate::machine::{Machine, VcpuState};
use crate::scheduler::{ChoiceCosts, Core, Pick, Scheduler, TurnEnds, YieldAnswer};
use microslice_policy as policy;
use microslice_policy::YieldCause;

/// `STARVING_AFTER_NS` and `SWEEP_INTERVAL_NS` of `bpf/core/turns.bpf.h`.
pub(super) const STARVING_AFTER_NS: u64 = 2_000_000_000;
pub(super) const SWEEP_INTERVAL_NS: u64 = 250_000_000;

impl<H: Hooks> FairShare<H> {
    /// `goes_on`, `stay_alone`: whether the vCPU that ran here until now begins another turn, before one that
    /// waits by virtual time does.
    pub(super) fn goes_on(
        &mut self,
        machine: &Machine,
        pcpu: PcpuId,
        ran: VcpuId,
        gave_way: bool,
        others_wait: bool,
    ) -> bool {
        let vtime_ns = self.accounts[ran].vtime_ns;
        match self.first_in_line(machine, pcpu) {
            Some(first) if !gave_way && policy::vtime_before(vtime_ns, first.vtime_ns) => true,
            _ if others_wait => false,
            _ => {
                if !self.a_vcpu_waits_elsewhere(machine, pcpu) {
                    self.settle_clock(machine, ran);
                }
                true
            }
        }
    }

    /// It was chosen to go on after a look at the first in line, whose queue was locked for that.
    fn look_at_line(&mut self, machine: &Machine, pcpu: PcpuId) {
        if let Some(place) = self.first_in_line(machine, pcpu).map(|first| self.accounts[first.vcpu].place) {
            self.locks.operate(machine, place, pcpu);
        }
    }

    pub(super) fn begin_turn(&mut self, machine: &mut Machine, pcpu: PcpuId, vcpu: VcpuId) -> Pick {
        let account = &mut self.accounts[vcpu];
        account.home = pcpu;
        let (slice_ns, was_woken) = (account.slice_ns, account.was_blocked);
        self.turns[pcpu] = Turn { vcpu, slice_ns, was_woken };
        self.begin_run(machine.now_ns, vcpu);
        self.advance_clocks(machine, pcpu, vcpu);
        machine.vcpus[vcpu].pcpu = pcpu;
        self.note_idle(pcpu, false);
        // Turns end at ticks.
        Pick { vcpu, slice_end_ns: u64::MAX }
    }

    /// Proportional shares may not bring sched_ext's watchdog.
    pub(super) fn boost_starving(&mut self, machine: &mut Machine) {
        let starving = |vcpu: VcpuId| machine.now_ns - self.accounts[vcpu].queued_at_ns > STARVING_AFTER_NS;
        let waiting = self.queues.iter().flat_map(|queues| &queues.ordered);
        let mut starving: Vec<_> = waiting.copied().filter(|waiter| starving(waiter.vcpu)).collect();
        starving.sort_unstable_by_key(|&waiter| std::cmp::Reverse(waiter));
        for vcpu in starving.into_iter().map(|waiter| waiter.vcpu) {
            self.take(machine, vcpu, machine.vcpus[vcpu].pcpu);
            let queued_at_ns = self.accounts[vcpu].queued_at_ns;
            self.put_boosted(machine, vcpu, false);
            let account = &mut self.accounts[vcpu];
            (account.queued_at_ns, account.out_of_order) = (queued_at_ns, true);
        }
    }

    /// `take_interrupted`: a vCPU that gave way to a micro slice here, and waits still, has what is left of
    /// its turn.
    pub(super) fn resumed(
        &mut self,
        machine: &Machine,
        pcpu: PcpuId,
        interrupted: Option<Interrupted>,
    ) -> Option<VcpuId> {
        let Interrupted { vcpu, left_ns } = interrupted?;
        let account = &mut self.accounts[vcpu];
        if !matches!(account.place, Place::Ordered(..)) || !machine.allows(vcpu, pcpu) {
            return None;
        }
        account.slice_ns = left_ns;
        account.out_of_order = true;
        Some(vcpu)
    }
}

impl<H: Hooks> Scheduler for FairShare<H> {
    fn wake(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        let account = &mut self.accounts[vcpu];
        account.was_blocked = true;
        self.fetched = None;
        self.vms[account.vm].active_vcpus += 1;
        let decision = self.queue_clock(machine, vcpu);
        if let Some(pcpu) = self.claim_idle(machine, vcpu) {
            self.forgive_debt(machine, vcpu);
            self.accounts[vcpu].place = Place::Local(pcpu);
            self.local[pcpu] = Some(vcpu);
            machine.request_schedule(pcpu);
        } else if decision.boost != 0 {
            self.put_boosted(machine, vcpu, false);
            if !self.kick_spare(machine, vcpu) {
                self.preempt_for(machine, vcpu);
            }
        } else {
            self.put_ordered(machine, vcpu);
            self.kick_spare(machine, vcpu);
        }
    }

    fn schedule(
        &mut self,
        machine: &mut Machine,
        pcpu: PcpuId,
        stopped: Option<(VcpuId, StopReason)>,
    ) -> Option<Pick> {
        let mut ran = None;
        if let Some((vcpu, reason)) = stopped {
            self.charge(machine.now_ns, vcpu);
            if machine.vcpus[vcpu].state == VcpuState::Blocked {
                self.blocked(vcpu);
            } else {
                ran = Some((vcpu, matches!(reason, StopReason::Ple | StopReason::IpiWait)));
            }
        }
        let interrupted = self.interrupted[pcpu].take();
        let gave_way = ran.is_some_and(|(_, gave_way)| gave_way);
        let put_first = H::goes_first(self, machine, pcpu, gave_way);
        let first = self.local[pcpu].or(put_first).or_else(|| self.first_boosted(machine, pcpu));
        let first = first.or_else(|| self.resumed(machine, pcpu, interrupted));
        let could_go_on = ran.filter(|&(_, gave_way)| !gave_way).map(|(vcpu, _)| vcpu);
        let first = first.or_else(|| self.take_from_elsewhere(machine, pcpu, could_go_on));
        let next = first.or_else(|| self.first_ordered(machine, pcpu));
        if let Some((vcpu, gave_way)) = ran
            && (first == Some(vcpu)
                || first.is_none() && self.goes_on(machine, pcpu, vcpu, gave_way, next.is_some()))
        {
            self.accounts[vcpu].slice_ns = self.rules.slice_ns;
            self.look_at_line(machine, pcpu);
            return Some(self.begin_turn(machine, pcpu, vcpu));
        }
        if let Some(vcpu) = next.filter(|_| next != put_first)
            && !self.is_first(vcpu)
            && ran_here_last(machine, vcpu, pcpu)
        {
            machine.pool.overtakes[1] += 1;
        }
        let next = next.map(|vcpu| self.take(machine, vcpu, pcpu));
        if let Some((vcpu, _)) = ran {
            self.put_back(machine, vcpu);
            self.kick_idle(machine, vcpu);
        }
        let Some(vcpu) = next else {
            self.note_idle(pcpu, true);
            return None;
        };
        Some(self.begin_turn(machine, pcpu, vcpu))
    }

    fn yields(
        &mut self,
        machine: &mut Machine,
        vcpu: VcpuId,
        pcpu: PcpuId,
        cause: YieldCause,
    ) -> YieldAnswer {
        if cause == YieldCause::Hlt {
            return YieldAnswer::Yield;
        }
        H::on_hint(self, machine, vcpu, pcpu)
    }

    fn take_choice_costs(&mut self, pcpu: PcpuId) -> ChoiceCosts {
        ChoiceCosts { locks: self.locks.take_times(pcpu), boosts_ns: 0 }
    }

    fn tick_ns(&self) -> u64 {
        self.tick_ns
    }

    fn tick(&mut self, machine: &mut Machine, pcpu: PcpuId) {
        let Some(vcpu) = machine.current(pcpu) else { return };
        let ran_ns = machine.now_ns - self.accounts[vcpu].charged_until_ns;
        if ran_ns >= self.turns[pcpu].slice_ns {
            machine.request_schedule(pcpu);
        }
    }

    fn timer(&mut self, machine: &mut Machine) -> u64 {
        if machine.now_ns >= self.next_sweep_ns {
            self.boost_starving(machine);
            self.next_sweep_ns += SWEEP_INTERVAL_NS;
        }
        self.cgroups.look(machine, &mut self.vms);
        self.next_sweep_ns.min(self.cgroups.next_ns())
    }
}

impl<H: Hooks> TurnEnds for FairShare<H> {
    fn turn_due_ns(&self, pcpu: PcpuId) -> Option<u64> {
        let Turn { vcpu, slice_ns, .. } = self.turns[pcpu];
        self.accounts.get(vcpu).map(|account| account.charged_until_ns + slice_ns)
    }
}
