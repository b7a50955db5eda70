//! What plugs into the real scheduler's core on a KVM host, with a micro pool or without.

use super::directed_yield::{self, DirectedYield};
use super::warm_caches;
use crate::ids::{PcpuId, VcpuId};
use crate::machine::Machine;
use crate::scheduler::YieldAnswer;
use crate::scheduler::core::{FairShare, Hooks, Waiter};

pub struct KvmHost {
    directed_yield: DirectedYield,
}

impl Hooks for KvmHost {
    fn new(machine: &Machine) -> Self {
        Self { directed_yield: DirectedYield::new(machine) }
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
        directed_yield::goes_first(core, machine, pcpu, heir)
    }

    fn goes_before<'a>(
        core: &'a FairShare<Self>,
        machine: &Machine,
        pcpu: PcpuId,
        first: &Waiter,
    ) -> Option<&'a Waiter> {
        warm_caches::goes_before(core, machine, pcpu, first)
    }
}
