//! Where mechanisms plug into a core, whichever it is, and the ladder that asks them.
//!
//! | hook | asked when |
//! |---|---|
//! | `wakes` | a blocked vCPU wakes, before the core looks for a pCPU |
//! | `stopped` | the vCPU that ran on a pCPU has stopped there, or is asked to: whatever follows |
//! | `goes_first` | a pCPU chooses, before the core does |
//! | `turn_ends` | the core is about to choose after a vCPU's turn |
//! | `turn_begins` | the core has chosen |
//!
//! A hint (a vCPU spins) is `Scheduler::yields`: the scheduler that composes mechanisms answers it, and asks
//! its core where none of them does. Hooks within the fair share's own choice are [`super::Hooks`].

use super::Core;
use crate::events::StopReason;
use crate::ids::{PcpuId, VcpuId};
use crate::machine::Machine;
use crate::scheduler::{Pick, Scheduler};

/// The vCPU that ran on a pCPU until now, and why it stopped.
pub type Stopped = (VcpuId, StopReason);

/// What runs next on a pCPU, as far as mechanisms say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum First {
    /// This, and the core isn't asked. `None`: nobody.
    Mechanisms(Option<Pick>),
    /// What the core chooses. It has to account for that vCPU, unless a mechanism has.
    Core(Option<Stopped>),
}

/// A core, and what plugs into it.
pub trait Mechanisms {
    type Core: Core;

    fn core(&mut self) -> &mut Self::Core;

    /// `vcpu` wakes. `true`: a mechanism has a place for it, and the core needn't find one.
    fn wakes(&mut self, _machine: &mut Machine, _vcpu: VcpuId) -> bool {
        false
    }

    /// `vcpu`, which runs, is asked to stop or does so by itself. It may go on all the same.
    fn stopped(&mut self, _machine: &mut Machine, _vcpu: VcpuId) {}

    /// The vCPU that runs next on this pCPU, before the core chooses.
    fn goes_first(&mut self, _machine: &mut Machine, _pcpu: PcpuId, stopped: Option<Stopped>) -> First {
        First::Core(stopped)
    }

    /// Its turn by the core is over, unless it may go on for so long.
    fn turn_ends(&mut self, _machine: &mut Machine, _pcpu: PcpuId, _stopped: Stopped) -> Option<Pick> {
        None
    }

    /// The core's choice, whose turn a mechanism may change in length.
    fn turn_begins(&mut self, _machine: &Machine, pick: Pick) -> Pick {
        pick
    }
}

/// The ladder of a wake-up: which pCPU the woken vCPU gets.
pub fn wake<M: Mechanisms>(mechanisms: &mut M, machine: &mut Machine, vcpu: VcpuId) {
    if !mechanisms.wakes(machine, vcpu) {
        mechanisms.core().wake(machine, vcpu);
    }
}

/// The ladder of a choice: which vCPU runs next on a pCPU.
pub fn schedule<M: Mechanisms>(
    mechanisms: &mut M,
    machine: &mut Machine,
    pcpu: PcpuId,
    stopped: Option<Stopped>,
) -> Option<Pick> {
    if let Some((vcpu, _)) = stopped {
        mechanisms.stopped(machine, vcpu);
    }
    match mechanisms.goes_first(machine, pcpu, stopped) {
        First::Mechanisms(pick) => pick,
        First::Core(stopped) => next_turn(mechanisms, machine, pcpu, stopped),
    }
}

/// The core chooses, unless whose turn is over goes on.
fn next_turn<M: Mechanisms>(
    mechanisms: &mut M,
    machine: &mut Machine,
    pcpu: PcpuId,
    stopped: Option<Stopped>,
) -> Option<Pick> {
    if let Some(stopped) = stopped
        && let Some(pick) = mechanisms.turn_ends(machine, pcpu, stopped)
    {
        return Some(pick);
    }
    let pick = mechanisms.core().schedule(machine, pcpu, stopped)?;
    Some(mechanisms.turn_begins(machine, pick))
}
