//! Beside the kernel's own scheduler: EEVDF decides which vCPU runs. One that is needed at once is boosted to
//! real-time for a micro slice (on a real host: `bpf/schedulers/beside.bpf.c`).
//!
//! Problem.   Acceleration shall not need a scheduler of its own.
//! Mechanism. Hints start passes, and interrupts requests, by the same policies as everywhere
//!            (`accelerate.h`). Help is always there, since there is no pool that could be empty. What was
//!            granted is carried out by the helper (`mechanisms/boost.rs`). The real-time class runs first,
//!            and yields to none (`yield_to_task_fair` is the fair class's). KVM's directed yields go ahead.
//!            Whoever was woken is asked for if nothing stops for it.
//! Limits.    No patience, no lending: waiters are EEVDF's business.

use super::eevdf::FairClass;
use super::mechanisms::answers::Answers;
use super::mechanisms::boost::{Boosts, Refused};
use super::mechanisms::holders::Holders;
use super::mechanisms::max_wait::MaxWait;
use super::mechanisms::pay_back::PayBack;
use super::mechanisms::{interrupt_of, siblings_round_from};
use super::{ChoiceCosts, Pick, Scheduler, TurnEnds, YieldAnswer};
use crate::config::{BesideConfig, BoostCosts};
use crate::counters::FailedPull;
use crate::events::{StopReason, TraceEvent};
use crate::ids::{PcpuId, VcpuId, VmId};
use crate::machine::{Machine, VcpuState};
use microslice_policy::{
    self as policy, AccelerateConfig, Cause, InterruptKind, InterruptObservation, MicroSliceDecision,
    MicroSliceObservation, MicroSliceOutcome, PassScope, SiblingDecision, YieldCause,
};

pub struct Beside<Fair> {
    fair: Fair,
    rules: AccelerateConfig,
    answers: Answers,
    boosts: Boosts,
    holders: Holders,
    max_wait: MaxWait,
    pay_back: PayBack,
    asks_for_woken: bool,
}

/// Help is always there.
const HELPERS: usize = 1;

impl<Fair: FairClass> Beside<Fair> {
    pub fn new(fair: Fair, config: &BesideConfig, costs: &BoostCosts, machine: &mut Machine) -> Self {
        machine.choices_cost = true;
        let rules = AccelerateConfig {
            grace_max: config.grace,
            call_function_ipi: u32::from(config.call_function_ipi),
            paper_rules: u32::from(config.paper_rules),
            ..AccelerateConfig::PAPER
        };
        let mut answers = Answers::new(&rules, true);
        answers.set_pool_size(HELPERS);
        Self {
            fair,
            rules,
            answers,
            boosts: Boosts::new(config, costs, machine),
            holders: Holders::new(&config.holders, machine),
            max_wait: MaxWait::new(
                config.max_wait_ns,
                config.max_wait_each_ns,
                config.micro_slice_ns,
                machine,
            ),
            pay_back: PayBack::new(config.pay_back, machine),
            asks_for_woken: config.woken,
        }
    }

    /// A vCPU that waits is needed. Whether help is on its way.
    fn ask(&mut self, machine: &mut Machine, vcpu: VcpuId, cause: Cause) -> bool {
        match self.boosts.ask(machine, vcpu, cause) {
            Ok(()) => {
                machine.request_timer(self.next_timer_ns());
                return true;
            }
            Err(Refused::OverBudget) => {
                machine.pool.count_failed_pulls(cause, FailedPull::OverBudget, 1);
            }
            Err(Refused::Pinned) => machine.pool.count_failed_pulls(cause, FailedPull::Pinned, 1),
        }
        false
    }

    fn next_timer_ns(&self) -> u64 {
        self.boosts.next_due_ns().min(self.max_wait.due_ns()).min(self.pay_back.due_ns())
    }

    /// A vCPU waits: its siblings that could end that are asked for.
    fn make_pass(&mut self, machine: &mut Machine, vcpu: VcpuId, scope: PassScope, cause: Cause) {
        let waiting = machine.vms[machine.vcpus[vcpu].vm].waiting.kinds;
        if self.answers.short_cut(scope).is_some_and(|of| of.kinds_that_matter & waiting == 0) {
            return;
        }
        let mut requested = false;
        for sibling in siblings_round_from(machine, vcpu) {
            let state = self.boosts.policy_state(machine, sibling);
            let kind = machine.vcpus[sibling].kind().number();
            match self.answers.on_sibling(scope, state, kind, requested) {
                SiblingDecision::Request => requested |= self.ask(machine, sibling, cause),
                SiblingDecision::PassDone => break,
                _ => {}
            }
        }
    }

    /// Somebody of the VM may wait for a lock: a stopped waiter may be asked for.
    fn try_heir(&mut self, machine: &mut Machine, vm: VmId) {
        let is_helped = |vcpu| {
            let state = self.boosts.policy_state(machine, vcpu);
            matches!(state, policy::VcpuState::Pending | policy::VcpuState::Micro)
        };
        if let Some(heir) = self.holders.next_heir(machine, vm, is_helped)
            && self.ask(machine, heir, Cause::Heir)
        {
            self.holders.is_tried(machine, heir);
        }
    }

    /// The helper's call has made a vCPU's thread real-time.
    fn give(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        let home = self.fair.queue_of(machine, vcpu);
        match self.boosts.give(machine, vcpu, home) {
            Some(pcpu) => machine.request_schedule(pcpu),
            None => {
                let cause = self.boosts.cause_of(vcpu);
                machine.pool.count_failed_pulls(cause, FailedPull::QueueFull, 1);
            }
        }
    }

    /// The boosted vCPU runs on this pCPU from now on.
    fn begin(
        &mut self,
        machine: &mut Machine,
        pcpu: PcpuId,
        vcpu: VcpuId,
        stopped: Option<(VcpuId, StopReason)>,
    ) -> Option<Pick> {
        if !self.fair.leaves(machine, vcpu) {
            self.misses(machine, vcpu);
            return self.fair.schedule(machine, pcpu, stopped);
        }
        self.fair.gives_way(machine, pcpu, stopped);
        let slice_end_ns = self.boosts.begin(machine.now_ns, vcpu, pcpu);
        let class = machine.vcpus[vcpu].class;
        let cause = self.boosts.cause_of(vcpu);
        machine.set_requested(vcpu, true);
        machine.vcpus[vcpu].pcpu = pcpu;
        machine.pool.count_acceleration(class, cause);
        machine.emit(TraceEvent::Accelerated { vcpu, pcpu, cause, class });
        Some(Pick { vcpu, slice_end_ns })
    }

    /// It has stopped, or is seen to be served: it is an ordinary one again, and the pCPU chooses.
    fn end(&mut self, machine: &mut Machine, pcpu: PcpuId, vcpu: VcpuId) -> Option<Pick> {
        let blocked = machine.vcpus[vcpu].state == VcpuState::Blocked;
        let decision = self.look(machine, vcpu, blocked);
        let vm = machine.vcpus[vcpu].vm;
        let ran_ns = self.boosts.end(machine.now_ns, vcpu, vm)?;
        self.pay_back.boosted(vm, ran_ns);
        let outcome = decision.outcome.get();
        if matches!(outcome, Some(MicroSliceOutcome::StillCritical | MicroSliceOutcome::Unhandled)) {
            machine.pool.slice_ended_unfinished += 1;
        }
        machine.pool.micro_slices.record(ran_ns);
        machine.set_requested(vcpu, false);
        machine.count_return(vcpu);
        machine.emit(TraceEvent::ReturnedToNormalPool { vcpu, pcpu });
        let pick = self.fair.comes_back(machine, pcpu, vcpu);
        // A vCPU that goes on anyway isn't asked for again.
        let is_stopped = pick.is_none_or(|pick| pick.vcpu != vcpu);
        // No bound asks for more than a micro slice.
        let is_for_bound = self.boosts.cause_of(vcpu) == Cause::MaxWait;
        let asks_again = decision.retry != 0 && !blocked && is_stopped && !is_for_bound;
        let retries = if asks_again { self.boosts.retries(vcpu) + 1 } else { 0 };
        self.boosts.set_retries(vcpu, retries);
        if asks_again {
            self.ask(machine, vcpu, self.boosts.cause_of(vcpu));
        }
        pick
    }

    fn look(&self, machine: &Machine, vcpu: VcpuId, blocked: bool) -> MicroSliceDecision {
        let host = &machine.vcpus[vcpu];
        let awaited = interrupt_of(self.boosts.cause_of(vcpu));
        let seen = MicroSliceObservation {
            guest_class: host.class.into(),
            interrupt_pending: u32::from(host.pending_interrupts & awaited != 0),
            blocked: u32::from(blocked),
            retry_count: self.boosts.retries(vcpu),
            answer: self.answers.answer_of(host.owes_answer).into(),
            reserved: 0,
        };
        policy::decide_after_micro_slice(&self.rules, &seen)
    }

    /// A boost that is still on its way to it, if there is one, is too late.
    fn misses(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        if self.boosts.miss(vcpu) {
            let cause = self.boosts.cause_of(vcpu);
            machine.pool.count_failed_pulls(cause, FailedPull::LeftQueue, 1);
        }
    }
}

impl<Fair: FairClass> Scheduler for Beside<Fair> {
    fn wake(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        self.fair.wake(machine, vcpu);
        if !self.asks_for_woken || machine.vms[machine.vcpus[vcpu].vm].are_tasks {
            return;
        }
        if !machine.wants_schedule(self.fair.queue_of(machine, vcpu)) {
            self.ask(machine, vcpu, Cause::Woken);
        }
    }

    fn schedule(
        &mut self,
        machine: &mut Machine,
        pcpu: PcpuId,
        stopped: Option<(VcpuId, StopReason)>,
    ) -> Option<Pick> {
        let Some(boosted) = self.boosts.on(pcpu) else {
            let pick = self.fair.schedule(machine, pcpu, stopped)?;
            self.misses(machine, pick.vcpu);
            return Some(pick);
        };
        let Some(until_ns) = self.boosts.until_ns(boosted) else {
            return self.begin(machine, pcpu, boosted, stopped);
        };
        let is_blocked = machine.vcpus[boosted].state == VcpuState::Blocked;
        let is_served = matches!(stopped, Some((_, StopReason::Ple)));
        if !is_blocked && !is_served && machine.now_ns < until_ns {
            return Some(Pick { vcpu: boosted, slice_end_ns: until_ns });
        }
        let pick = self.end(machine, pcpu, boosted)?;
        self.misses(machine, pick.vcpu);
        Some(pick)
    }

    fn yields(
        &mut self,
        machine: &mut Machine,
        vcpu: VcpuId,
        pcpu: PcpuId,
        cause: YieldCause,
    ) -> YieldAnswer {
        let decision = self.answers.on_yield(cause, &machine.vcpus[vcpu]);
        let scope = decision.scope.get().unwrap_or(PassScope::None);
        if scope != PassScope::None {
            self.make_pass(machine, vcpu, scope, decision.cause.get().unwrap_or(Cause::None));
        }
        if scope == PassScope::OneCritical {
            self.try_heir(machine, machine.vcpus[vcpu].vm);
        }
        if !self.boosts.runs(vcpu) {
            return self.fair.yields(machine, vcpu, pcpu, cause);
        }
        let looked = self.look(machine, vcpu, false);
        if cause == YieldCause::Ple
            && looked.outcome.get() == Some(MicroSliceOutcome::Served)
            && looked.retry == 0
        {
            // It is taken back: `schedule` is called for it as for one that yields.
            return YieldAnswer::Yield;
        }
        YieldAnswer::KeepSpinning { until_ns: machine.now_ns }
    }

    fn interrupt(&mut self, machine: &mut Machine, vcpu: VcpuId, kind: InterruptKind) {
        let seen = InterruptObservation {
            kind: kind.into(),
            recipient_state: self.boosts.policy_state(machine, vcpu).into(),
            micro_pcpu_count: HELPERS as u32,
            guest_known: 1,
            recipient_goes_first: 0,
            reserved: 0,
        };
        let cause = policy::decide_on_interrupt(&self.rules, &seen).cause.get().unwrap_or(Cause::None);
        if cause != Cause::None {
            self.ask(machine, vcpu, cause);
        }
    }

    fn was_stopped(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        let holds = self.holders.asks_for(machine, vcpu);
        if holds && self.boosts.policy_state(machine, vcpu) == policy::VcpuState::Runnable {
            self.ask(machine, vcpu, Cause::Holder);
        } else {
            self.try_heir(machine, machine.vcpus[vcpu].vm);
        }
    }

    fn tick_ns(&self) -> u64 {
        self.fair.tick_ns()
    }

    fn tick(&mut self, machine: &mut Machine, pcpu: PcpuId) {
        if self.boosts.on(pcpu).is_none() {
            self.fair.tick(machine, pcpu);
        }
    }

    fn timer(&mut self, machine: &mut Machine) -> u64 {
        while let Some(vcpu) = self.boosts.take_due(machine.now_ns) {
            self.give(machine, vcpu);
        }
        for vcpu in self.max_wait.look(machine, |machine, vcpu| self.boosts.policy_state(machine, vcpu)) {
            self.ask(machine, vcpu, Cause::MaxWait);
        }
        for (vm, weight) in self.pay_back.look(machine) {
            self.fair.set_weight(machine, vm, weight);
        }
        self.next_timer_ns()
    }

    fn take_choice_costs(&mut self, pcpu: PcpuId) -> ChoiceCosts {
        ChoiceCosts { boosts_ns: self.boosts.take_costs_ns(pcpu), ..ChoiceCosts::default() }
    }
}

impl<Fair: FairClass> TurnEnds for Beside<Fair> {
    fn turn_due_ns(&self, pcpu: PcpuId) -> Option<u64> {
        self.fair.turn_due_ns(pcpu)
    }

    fn is_wanted(&self, pcpu: PcpuId) -> bool {
        self.boosts.on(pcpu).is_some()
    }
}
