//! Warm caches: the vCPU that ran on a pCPU last goes before others there, as long as none waits for long
//! (`policy/fair_share.h`).

use crate::ids::PcpuId;
use crate::machine::Machine;
use crate::scheduler::core::{FairShare, Hooks, LOOK_MAX, Waiter};
use microslice_policy as policy;

/// Of those that wait by virtual time the first one that ran here last.
pub fn goes_before<'a, H: Hooks>(
    core: &'a FairShare<H>,
    machine: &Machine,
    pcpu: PcpuId,
    first: &Waiter,
) -> Option<&'a Waiter> {
    if !policy::is_worth_warm_caches(core.rules(), core.waited_ns(machine, first)) {
        return None;
    }
    let ran_here = |waiter: &&Waiter| waiter.home == pcpu && machine.allows(waiter.vcpu, pcpu);
    core.in_line(machine, pcpu).take(LOOK_MAX).find(ran_here)
}
