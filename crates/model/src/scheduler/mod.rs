//! What decides on the host. One file per scheduler; a new one implements [`Scheduler`] and gets a line in
//! [`build`]. `core/`: what the real scheduler does without a micro pool. `mechanisms/`: what plugs into it.

mod beside;
mod cfs;
mod core;
pub(crate) mod credit;
mod eevdf;
mod lottery;
mod mechanisms;
mod stride;

pub use self::core::Core;
use crate::config::{
    BoostCosts, DelayPreemptionConfig, FairSharePool, Mechanics, NormalPoolKind, SchedulerKind,
};
use crate::counters::QueueLockTimes;
use crate::events::{IpiKind, StopReason};
use crate::ids::{PcpuId, VcpuId};
use crate::machine::Machine;
use microslice_policy::{GuestClass, InterruptKind, QueueDomain, YieldCause};

/// The vCPU that a pCPU runs next, and until when unless something happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pick {
    pub vcpu: VcpuId,
    pub slice_end_ns: u64,
}

/// What ended a vCPU's halt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WokenBy {
    Interrupt(InterruptKind),
    /// The holder of a paravirtual lock gave it to this waiter.
    LockKick,
}

/// What becomes of a yield.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum YieldAnswer {
    /// The vCPU gives its pCPU up.
    Yield,
    /// It goes on; and every further pause-loop exit until then would be answered the same, unless the
    /// scheduler says [`Machine::answers_changed`] before. `until_ns` = now: the next one is asked again.
    KeepSpinning { until_ns: u64 },
}

/// A host scheduler. All calls happen at `machine.now_ns`; decisions about other pCPUs are asked for with
/// [`Machine::request_schedule`].
pub trait Scheduler: TurnEnds {
    /// `vcpu` was blocked and is runnable now.
    fn wake(&mut self, machine: &mut Machine, vcpu: VcpuId);
    /// Chooses for `pcpu`. `stopped` ran until now and either is still runnable, or has blocked.
    fn schedule(
        &mut self,
        machine: &mut Machine,
        pcpu: PcpuId,
        stopped: Option<(VcpuId, StopReason)>,
    ) -> Option<Pick>;
    /// `vcpu`, running on `pcpu`, spins, or is about to halt. For a halt the answer is ignored.
    fn yields(&mut self, machine: &mut Machine, vcpu: VcpuId, pcpu: PcpuId, cause: YieldCause)
    -> YieldAnswer;
    /// So many pause-loop exits of a vCPU in code of this class weren't asked about: their answer had been
    /// promised.
    fn not_asked(&mut self, _class: GuestClass, _exits: u64) {}
    /// `from`, which runs, begins to send an interrupt to a sibling: it accesses the interrupt controller
    /// first.
    fn ipi_begun(&mut self, _machine: &mut Machine, _from: VcpuId) {}
    /// `from`, which runs, sends an interrupt or a lock's kick to its sibling `to`, which it wakes or
    /// interrupts next.
    fn ipi(&mut self, _machine: &mut Machine, _from: VcpuId, _to: VcpuId, _kind: IpiKind) {}
    /// `vcpu` has handled a call-function interrupt; whether another one waits for it already.
    fn acknowledged(&mut self, _machine: &Machine, _vcpu: VcpuId, _another_waits: bool) {}
    /// A device's interrupt was sent, and the host saw it, whatever its recipient does.
    fn device_interrupt(&mut self) {}
    /// An interrupt was sent to `vcpu`, which waits for a pCPU.
    fn interrupt(&mut self, _machine: &mut Machine, _vcpu: VcpuId, _kind: InterruptKind) {}
    /// `vcpu` was blocked, was woken by this, and waits for a pCPU all the same: `wake` found it none.
    fn woken(&mut self, _machine: &mut Machine, _vcpu: VcpuId, _by: WokenBy) {}
    /// `vcpu` has stopped though it could go on, and something else has begun there. Where counters are read.
    fn was_stopped(&mut self, _machine: &mut Machine, _vcpu: VcpuId) {}
    /// Period of `tick`.
    fn tick_ns(&self) -> u64;
    /// A running pCPU's periodic tick.
    fn tick(&mut self, machine: &mut Machine, pcpu: PcpuId);
    /// Host-wide work; returns when to be called next. Called first at time 0.
    fn timer(&mut self, _machine: &mut Machine) -> u64 {
        u64::MAX
    }
    /// Returns what choices have cost a pCPU beside switches since this was asked last.
    fn take_choice_costs(&mut self, _pcpu: PcpuId) -> ChoiceCosts {
        ChoiceCosts::default()
    }
    /// Whether this pCPU belongs to the micro pool.
    fn is_micro(&self, _pcpu: PcpuId) -> bool {
        false
    }
}

/// Tells [`DelayPreemption`](mechanisms::DelayPreemption) about a scheduler's turns, which it ends in windows
/// around their end.
pub trait TurnEnds {
    /// Returns when the turn on this pCPU, which has just begun, is over, if its [`Pick`] doesn't say: where
    /// turns end at ticks.
    fn turn_due_ns(&self, _pcpu: PcpuId) -> Option<u64> {
        None
    }
    /// Returns whether what has begun on this pCPU is an urgent slice: a turn of another kind.
    fn is_urgent_slice(&self, _pcpu: PcpuId) -> bool {
        false
    }
    /// Returns whether a vCPU has a micro slice on this pCPU as soon as it chooses, or is urgent and waits
    /// there.
    fn is_wanted(&self, _pcpu: PcpuId) -> bool {
        false
    }
}

/// What choices cost a pCPU beside switches.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChoiceCosts {
    /// The locks of the scheduler's queues.
    pub locks: QueueLockTimes,
    /// How long the pCPU was busy with boosts of threads.
    pub boosts_ns: u64,
}

/// `boosts`: what they cost on this host; `delay`: turns end in windows.
pub fn build(
    kind: &SchedulerKind,
    boosts: &BoostCosts,
    delay: Option<&DelayPreemptionConfig>,
    machine: &mut Machine,
) -> Box<dyn Scheduler> {
    let looks_at_vcpus = matches!(kind, SchedulerKind::MicroSliced(_) | SchedulerKind::Beside(_));
    machine.watched = delay.is_some() || looks_at_vcpus;
    if let SchedulerKind::Eevdf(eevdf) = kind {
        machine.boosts_woken = eevdf.boosts_woken;
    }
    let scheduler = build_kind(kind, boosts, delay.is_some(), machine);
    match delay {
        Some(delay) => Box::new(mechanisms::DelayPreemption::new(delay, scheduler, machine)),
        None => scheduler,
    }
}

fn build_kind(
    kind: &SchedulerKind,
    boosts: &BoostCosts,
    in_windows: bool,
    machine: &mut Machine,
) -> Box<dyn Scheduler> {
    match kind {
        SchedulerKind::Credit(config) => Box::new(credit::Credit::new(config.clone(), machine)),
        SchedulerKind::MicroSliced(config) => match &config.normal {
            NormalPoolKind::Credit(normal) => {
                let mut normal = credit::Credit::new(normal.clone(), machine);
                normal.all_pcpus_earn = config.mechanics == Mechanics::XenPrototype;
                Box::new(mechanisms::MicroSliced::new(config.clone(), normal, in_windows, machine))
            }
            NormalPoolKind::FairShare(normal) => {
                let normal = core::FairShare::<mechanisms::KvmHost>::new(normal, machine);
                Box::new(mechanisms::MicroSliced::new(config.clone(), normal, in_windows, machine))
            }
        },
        SchedulerKind::Cfs(config) => Box::new(cfs::Cfs::new(config.clone(), machine)),
        SchedulerKind::Lottery(config) => {
            // One drum: a waiter in another domain would have no part in a draw.
            let config = FairSharePool { domain: QueueDomain::Host, ..config.clone() };
            Box::new(core::FairShare::<lottery::Lottery>::new(&config, machine))
        }
        SchedulerKind::Stride(config) => {
            machine.never_moves = true;
            Box::new(stride::Stride::new(config.clone(), machine))
        }
        SchedulerKind::Eevdf(config) if config.groups => {
            Box::new(eevdf::GroupedEevdf::new(config.clone(), machine))
        }
        SchedulerKind::Eevdf(config) => Box::new(eevdf::Eevdf::new(config.clone(), machine)),
        SchedulerKind::Beside(config) if config.eevdf.groups => {
            let fair = eevdf::GroupedEevdf::new(config.eevdf.clone(), machine);
            Box::new(beside::Beside::new(fair, config, boosts, machine))
        }
        SchedulerKind::Beside(config) => {
            let fair = eevdf::Eevdf::new(config.eevdf.clone(), machine);
            Box::new(beside::Beside::new(fair, config, boosts, machine))
        }
    }
}
