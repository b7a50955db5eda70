//! Lottery scheduling (Waldspurger and Weihl, OSDI'94) over the core: the worked example of
//! docs/how-to/add-a-scheduler.md.
//!
//! Problem.   Proportional shares without clocks to compare.
//! Mechanism. When a turn ends, one of those that could run here is drawn. Each has as many tickets as it has
//!            weight: its VM's, divided by the VM's vCPUs that aren't blocked. A vCPU that was woken within
//!            its share goes first, and KVM's heir does, as in the core.
//! Limits.    A vCPU that runs on another pCPU takes no part in a draw. So a VM with few vCPUs and a great
//!            weight has less than its due on a host of many pCPUs. Draws are the same ones for every seed of
//!            a scenario.

use super::YieldAnswer;
use super::core::{FairShare, Hooks, Waiter};
use super::mechanisms::directed_yield::{self, DirectedYield};
use crate::ids::{PcpuId, VcpuId};
use crate::machine::{Machine, VcpuState};
use crate::random::Random;

const SEED: u64 = 1994;

pub struct Lottery {
    directed_yield: DirectedYield,
    random: Random,
}

impl Lottery {
    /// One of them, by their tickets.
    fn draw(core: &mut FairShare<Self>, machine: &Machine, candidates: &[VcpuId]) -> Option<VcpuId> {
        let tickets = |core: &FairShare<Self>, vcpu: VcpuId| core.weight_of(machine.vcpus[vcpu].vm).max(1);
        let sold: u64 = candidates.iter().map(|&vcpu| tickets(core, vcpu)).sum();
        let mut drawn = core.hooks.random.next().checked_rem(sold)?;
        candidates.iter().copied().find(|&vcpu| {
            let held = tickets(core, vcpu);
            let wins = drawn < held;
            drawn = drawn.saturating_sub(held);
            wins
        })
    }
}

impl Hooks for Lottery {
    fn new(machine: &Machine) -> Self {
        Self { directed_yield: DirectedYield::new(machine), random: Random::stream(SEED, 0) }
    }

    fn on_hint(core: &mut FairShare<Self>, machine: &mut Machine, vcpu: VcpuId, pcpu: PcpuId) -> YieldAnswer {
        match core.hooks.directed_yield.heir_of(machine, vcpu) {
            Some(heir) if core.may_come(machine, pcpu, heir) => {
                core.hooks.directed_yield.yields_to(pcpu, heir)
            }
            _ => YieldAnswer::KeepSpinning { until_ns: machine.now_ns },
        }
    }

    fn goes_first(
        core: &mut FairShare<Self>,
        machine: &mut Machine,
        pcpu: PcpuId,
        gave_way: bool,
    ) -> Option<VcpuId> {
        let heir = core.hooks.directed_yield.take_heir(pcpu).filter(|_| gave_way);
        if let Some(heir) = directed_yield::goes_first(core, machine, pcpu, heir) {
            return Some(heir);
        }
        if core.first_boosted(machine, pcpu).is_some() {
            return None;
        }
        let waiting = core.in_line(machine, pcpu).map(|waiter| waiter.vcpu);
        let mut candidates: Vec<_> = waiting.filter(|&vcpu| machine.allows(vcpu, pcpu)).collect();
        let could_go_on = |&ran: &VcpuId| !gave_way && machine.vcpus[ran].state != VcpuState::Blocked;
        // Alone it goes on by the core's rule, and owes nothing for it.
        if !candidates.is_empty() {
            candidates.extend(machine.current(pcpu).filter(could_go_on));
        }
        Self::draw(core, machine, &candidates)
    }

    fn goes_before<'a>(
        _core: &'a FairShare<Self>,
        _machine: &Machine,
        _pcpu: PcpuId,
        _first: &Waiter,
    ) -> Option<&'a Waiter> {
        None
    }
}
