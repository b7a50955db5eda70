//! The project's scheduler: every decision is made by `policy/`, through the same C as on a real host; this
//! folder only gathers observations and applies decisions. The normal pool is the credit scheduler, as in the
//! paper's prototype, or the real scheduler's (`core/`): both are a [`Core`], whose plain operations the
//! mechanisms here call.
//!
//! One mechanism, one file: what it keeps of each vCPU and pCPU is a struct there, and what it does is a
//! method of [`MicroSliced`], which composes them. This file says which hook asks which of them.
//!
//! How the host carries decisions out is its own matter: what the authors' prototype does otherwise is a
//! mechanism, too (`xen_prototype.rs`).

pub mod answers;
mod asked_again;
pub mod boost;
mod delay_preemption;
pub mod directed_yield;
pub mod holders;
mod home_slices;
mod kvm_host;
mod lending;
mod looks;
pub mod max_wait;
mod micro_pool;
mod passes;
mod patience;
pub mod pay_back;
mod pool_size;
mod warm_caches;
mod woken;
mod xen_prototype;

use self::answers::Answers;
use self::asked_again::AskedAgain;
pub use self::delay_preemption::DelayPreemption;
use self::delay_preemption::Grace;
use self::holders::Holders;
use self::home_slices::HomeSlices;
pub use self::kvm_host::KvmHost;
use self::looks::Looks;
use self::max_wait::MaxWait;
pub use self::micro_pool::interrupt_of;
use self::micro_pool::{MicroPool, Request};
pub use self::passes::siblings_round_from;
use self::patience::Patience;
use self::pool_size::PoolSizing;
use self::woken::WokenPlaces;
use self::xen_prototype::XenPrototype;
use super::core::ladder::{self, First, Mechanisms, Stopped};
use super::{ChoiceCosts, Core, Pick, Scheduler, TurnEnds, WokenBy, YieldAnswer};
use crate::config::{Mechanics, MicroSlicedConfig, PoolSize};
use crate::counters::FailedPull;
use crate::events::{StopReason, TraceEvent};
use crate::ids::{IdVec, PcpuId, VcpuId, VmId};
use crate::machine::{HostVm, Machine, Promised, VcpuState, interrupt_bit};
use microslice_policy as policy;
use microslice_policy::{
    AccelerateConfig, Cause, InterruptKind, InterruptObservation, MicroSliceObservation, MicroSliceOutcome,
    PassScope, PlacementDecision, PlacementObservation, SiblingAnswer, YieldCause,
};

pub struct MicroSliced<Normal> {
    rules: AccelerateConfig,
    lends: bool,
    normal: Normal,
    pool: MicroPool,
    pool_size: PoolSizing,
    answers: Answers,
    asked_again: AskedAgain,
    holders: Holders,
    looks: Looks,
    max_wait: MaxWait,
    patience: Patience,
    grace: Grace,
    home_slices: HomeSlices,
    woken: WokenPlaces,
    /// If this is the prototype's host.
    prototype: Option<XenPrototype>,
}

impl<Normal: Core> MicroSliced<Normal> {
    /// `in_windows`: turns of the normal pool end in windows (`delay_preemption.rs`), which is grace enough.
    pub fn new(config: MicroSlicedConfig, normal: Normal, in_windows: bool, machine: &mut Machine) -> Self {
        let is_prototype = config.mechanics == Mechanics::XenPrototype;
        let pool = MicroPool::new(config.micro_slice_ns, machine);
        let rules = AccelerateConfig {
            grace_max: config.grace,
            call_function_ipi: u32::from(config.call_function_ipi),
            home_slices: u32::from(config.home_slices),
            patience_ns: config.patience_ns,
            paper_rules: u32::from(config.paper_rules),
            ..AccelerateConfig::PAPER
        };
        machine.paper_rules = config.paper_rules;
        Self {
            rules,
            lends: config.lends,
            normal,
            pool_size: PoolSizing::new(config.pool, pool.count_max()),
            pool,
            answers: Answers::new(&rules, !is_prototype),
            asked_again: AskedAgain::new(machine),
            holders: Holders::new(&config.holders, machine),
            looks: Looks::new(machine),
            max_wait: MaxWait::new(
                config.max_wait_ns,
                config.max_wait_each_ns,
                config.micro_slice_ns,
                machine,
            ),
            patience: Patience::new(machine),
            grace: Grace::new(in_windows, machine),
            home_slices: HomeSlices::new(machine),
            woken: WokenPlaces::new(machine),
            prototype: is_prototype.then(|| XenPrototype::new(machine)),
        }
    }
}

impl<Normal: Core> Mechanisms for MicroSliced<Normal> {
    type Core = Normal;

    fn core(&mut self) -> &mut Normal {
        &mut self.normal
    }

    fn wakes(&mut self, machine: &mut Machine, vcpu: VcpuId) -> bool {
        self.wakes_in_pool(machine, vcpu)
    }

    fn stopped(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        self.patience.ends(vcpu);
        if machine.vcpus[vcpu].state == VcpuState::Blocked {
            self.note_unclaimed(machine, machine.vcpus[vcpu].vm);
        }
    }

    fn goes_first(&mut self, machine: &mut Machine, pcpu: PcpuId, stopped: Option<Stopped>) -> First {
        if let Some(stopped) = stopped
            && let Some(pick) = self.goes_on_with_micro_slice(machine, pcpu, stopped)
        {
            return First::Mechanisms(Some(pick));
        }
        if self.pool.has(pcpu) {
            self.first_on_micro_pcpu(machine, pcpu, stopped)
        } else {
            self.first_at_home(machine, pcpu, stopped)
        }
    }

    fn turn_ends(&mut self, machine: &mut Machine, pcpu: PcpuId, (vcpu, reason): Stopped) -> Option<Pick> {
        if self.is_rate_limited(machine, vcpu, reason) {
            return None;
        }
        self.finishes_first(machine, vcpu, pcpu, reason)
    }

    fn turn_begins(&mut self, machine: &Machine, pick: Pick) -> Pick {
        self.comes_back(machine, pick)
    }
}

impl<Normal: Core> Scheduler for MicroSliced<Normal> {
    fn wake(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        ladder::wake(self, machine, vcpu);
    }

    fn schedule(
        &mut self,
        machine: &mut Machine,
        pcpu: PcpuId,
        stopped: Option<(VcpuId, StopReason)>,
    ) -> Option<Pick> {
        ladder::schedule(self, machine, pcpu, stopped)
    }

    fn yields(
        &mut self,
        machine: &mut Machine,
        vcpu: VcpuId,
        pcpu: PcpuId,
        cause: YieldCause,
    ) -> YieldAnswer {
        match self.prototype {
            Some(_) => self.on_hint_in_prototype(machine, vcpu, pcpu, cause),
            None => self.on_hint(machine, vcpu, pcpu, cause),
        }
    }

    fn not_asked(&mut self, class: policy::GuestClass, exits: u64) {
        self.pool_size.count_urgent(self.answers.urgent_event(YieldCause::Ple, class, true), exits);
    }

    fn interrupt(&mut self, machine: &mut Machine, vcpu: VcpuId, kind: InterruptKind) {
        self.on_interrupt(machine, vcpu, kind);
    }

    fn device_interrupt(&mut self) {
        self.counts_device_interrupt();
    }

    fn woken(&mut self, machine: &mut Machine, vcpu: VcpuId, by: WokenBy) {
        if !self.normal.is_next(vcpu) {
            self.was_woken(machine, vcpu, by);
        }
    }

    fn was_stopped(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        self.asks_for_stopped(machine, vcpu);
    }

    fn tick_ns(&self) -> u64 {
        self.normal.tick_ns()
    }

    fn tick(&mut self, machine: &mut Machine, pcpu: PcpuId) {
        self.normal.tick(machine, pcpu);
    }

    fn timer(&mut self, machine: &mut Machine) -> u64 {
        let next_accounting_ns = self.normal.timer(machine);
        if self.pool_size.is_due(machine.now_ns) {
            self.step_pool_size(machine);
        }
        self.look_at_waits(machine);
        self.look_for_interrupts(machine);
        let due_ns = [self.pool_size.due_ns(), self.max_wait.due_ns(), self.looks.due_ns()];
        due_ns.into_iter().fold(next_accounting_ns, u64::min)
    }

    fn take_choice_costs(&mut self, pcpu: PcpuId) -> ChoiceCosts {
        self.normal.take_choice_costs(pcpu)
    }

    fn is_micro(&self, pcpu: PcpuId) -> bool {
        self.pool.has(pcpu)
    }
}

impl<Normal: Core> TurnEnds for MicroSliced<Normal> {
    fn turn_due_ns(&self, pcpu: PcpuId) -> Option<u64> {
        self.normal.turn_due_ns(pcpu)
    }

    fn is_wanted(&self, pcpu: PcpuId) -> bool {
        self.pool.next_on(pcpu).is_some()
    }
}

#[cfg(test)]
mod tests;
