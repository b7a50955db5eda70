//! Who decides on the host. One file per scheduler; a new one implements [`Scheduler`] and gets a line in [`build`].

mod answers;
mod credit;
mod eevdf;
mod fair_share;
mod micro_sliced;

use crate::config::{Mechanics, NormalPoolKind, SchedulerKind};
use crate::ids::{PcpuId, VcpuId};
use crate::machine::Machine;
use crate::trace_event::StopReason;
use microslice_policy::{GuestClass, InterruptKind, YieldCause};

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
    /// It goes on; and every further pause-loop exit until then would be answered the same, unless the scheduler says
    /// [`Machine::answers_changed`] before. `until_ns` = now: the next one is asked again.
    KeepSpinning { until_ns: u64 },
}

/// A host scheduler. All calls happen at `machine.now_ns`; decisions about other pCPUs are asked for with
/// [`Machine::request_schedule`].
pub trait Scheduler {
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
    /// So many pause-loop exits of a vCPU in code of this class weren't asked about: their answer had been promised.
    fn not_asked(&mut self, _class: GuestClass, _exits: u64) {}
    /// An interrupt was sent to `vcpu`, which waits for a pCPU.
    fn interrupt(&mut self, _machine: &mut Machine, _vcpu: VcpuId, _kind: InterruptKind) {}
    /// `vcpu` was blocked, was woken by this, and waits for a pCPU all the same: `wake` found it none.
    fn woken(&mut self, _machine: &mut Machine, _vcpu: VcpuId, _by: WokenBy) {}
    /// Period of `tick`.
    fn tick_ns(&self) -> u64;
    /// A running pCPU's periodic tick.
    fn tick(&mut self, machine: &mut Machine, pcpu: PcpuId);
    /// Host-wide work; returns when to be called next. Called first at time 0.
    fn timer(&mut self, _machine: &mut Machine) -> u64 {
        u64::MAX
    }
    /// Whether this pCPU belongs to the micro pool.
    fn is_micro(&self, _pcpu: PcpuId) -> bool {
        false
    }
    /// Whether a weight is that of the whole VM, not of each of its vCPUs.
    fn shares_by_vm(&self) -> bool {
        false
    }
    /// Whether micro pCPUs that nobody asks for run vCPUs of the normal pool.
    fn lends(&self) -> bool {
        false
    }
}

/// A scheduler that leaves some pCPUs, and some vCPUs for a while, to the micro pool.
pub trait NormalPool: Scheduler {
    /// Hands a pCPU to it or takes it away; whoever waited for just that one is returned.
    fn set_usable(&mut self, pcpu: PcpuId, usable: bool) -> Vec<VcpuId>;
    fn set_idle(&mut self, pcpu: PcpuId, idle: bool);
    /// A runnable vCPU comes, or comes back.
    fn enqueue(&mut self, machine: &mut Machine, vcpu: VcpuId);
    /// Likewise, and goes before all others.
    fn enqueue_first(&mut self, machine: &mut Machine, vcpu: VcpuId);
    /// Whoever should look at its queue because of it does.
    fn tickle(&mut self, machine: &mut Machine, vcpu: VcpuId);
    /// Takes a waiting vCPU out of its queue, if it is in one.
    fn remove(&mut self, machine: &Machine, vcpu: VcpuId) -> bool;
    /// It has run until now, wherever.
    fn charge(&mut self, now_ns: u64, vcpu: VcpuId);
    /// It borrowed a micro pCPU, which is asked for now.
    fn call_back(&mut self, machine: &mut Machine, vcpu: VcpuId, _pcpu: PcpuId) {
        self.enqueue(machine, vcpu);
        self.tickle(machine, vcpu);
    }
    /// It runs from now on, wherever.
    fn begin_run(&mut self, now_ns: u64, vcpu: VcpuId);
    /// It has blocked, elsewhere.
    fn blocked(&mut self, _vcpu: VcpuId) {}
    /// It comes back within its share, whatever it has used up.
    fn forgive(&mut self, _vcpu: VcpuId) {}
    /// Until when a vCPU that was stopped for that reason, and could go on, keeps its pCPU all the same.
    fn kept_until(&self, _machine: &Machine, _vcpu: VcpuId, _reason: StopReason) -> Option<u64> {
        None
    }
    /// It has yielded, but keeps its pCPU for now.
    fn has_yielded(&self, _vcpu: VcpuId) -> bool {
        false
    }
    /// Whether a pCPU runs an ordinary turn, which gives way to a micro slice.
    fn gives_way(&self, _machine: &Machine, _pcpu: PcpuId) -> bool {
        false
    }
    /// Whether its VM has had more than that of the first that waits: then it has no micro slices.
    fn is_over_its_share(&self, _machine: &Machine, _vcpu: VcpuId) -> bool {
        false
    }
    /// Whether its VM has had more than that of another vCPU.
    fn is_of_vm_ahead(&self, _vcpu: VcpuId, _other: VcpuId) -> bool {
        false
    }
    /// It is about to give way to a micro slice on the pCPU where it runs, and goes on there afterwards.
    fn note_interrupted(&mut self, _machine: &Machine, _vcpu: VcpuId, _pcpu: PcpuId) {}
    /// Who was woken, and waits, runs before most others: the micro pool isn't asked about it.
    fn goes_first(&self, _vcpu: VcpuId) -> bool {
        false
    }
}

pub fn build(kind: &SchedulerKind, machine: &mut Machine) -> Box<dyn Scheduler> {
    machine.watched = matches!(kind, SchedulerKind::MicroSliced(_));
    match kind {
        SchedulerKind::Credit(config) => Box::new(credit::Credit::new(config.clone(), machine)),
        SchedulerKind::MicroSliced(config) => match &config.normal {
            NormalPoolKind::Credit(normal) => {
                let mut normal = credit::Credit::new(normal.clone(), machine);
                normal.all_pcpus_earn = config.mechanics == Mechanics::XenPrototype;
                Box::new(micro_sliced::MicroSliced::new(config.clone(), normal, machine))
            }
            NormalPoolKind::FairShare(normal) => {
                let normal = fair_share::FairShare::new(normal, machine);
                Box::new(micro_sliced::MicroSliced::new(config.clone(), normal, machine))
            }
        },
        SchedulerKind::Eevdf(config) => Box::new(eevdf::Eevdf::new(config.clone(), machine)),
    }
}
