//! Where a waking vCPU goes: select_task_rq_fair, for a wake-up.
//!
//! Problem.   Caches are warm where it ran before, and data are where its waker runs.
//! Mechanism. If the waker's pCPU, with this vCPU, has no more load than the vCPU's own pCPU without it, and an eighth of
//!            that, it goes to the waker's (`wake_affine`, `imbalance_pct` 125), else to its own: to that one if it idles, else to an idle one
//!            of the same last-level cache (`select_idle_sibling`), else there all the same. So siblings come to wait
//!            behind one another: vCPU stacking (section 3.2.2).
//! Limits.    Loads are those of the moment (`wake_idx` 0). Timers and devices wake on the vCPU's own pCPU.

use super::Cfs;
use super::queue::TASK_WEIGHT;
use crate::ids::{PcpuId, VcpuId};
use crate::machine::Machine;

/// Per cent: half of `imbalance_pct` above 100.
const AFFINE_PERCENT: i64 = 112;

impl Cfs {
    pub(super) fn select_pcpu(&self, machine: &Machine, vcpu: VcpuId, sender: Option<PcpuId>) -> PcpuId {
        let own = machine.vcpus[vcpu].pcpu;
        let sender = sender.filter(|&sender| sender != own && machine.allows(vcpu, sender));
        let target = sender.filter(|&sender| self.wakes_affine(vcpu, sender, own)).unwrap_or(own);
        self.idle_sibling(machine, vcpu, target)
    }

    /// wake_affine.
    fn wakes_affine(&self, vcpu: VcpuId, sender: PcpuId, own: PcpuId) -> bool {
        let [here, there] = [sender, own].map(|pcpu| self.load(pcpu) as i64);
        if here == 0 {
            return true;
        }
        let vm = self.tasks[vcpu].vm;
        let (shares, total) = (self.groups.shares[vm.index()], self.groups.totals[vm.index()]);
        let change = |pcpu, more| self.groups.of(pcpu, vm).effective_load(shares, total, more, TASK_WEIGHT);
        if 100 * (here + change(sender, TASK_WEIGHT)) <= AFFINE_PERCENT * (there + change(own, 0)) {
            return true;
        }
        let tasks: u64 = self.roots[sender].groups.iter().map(|&vm| self.groups.of(sender, vm).running).sum();
        here <= there && here + there <= here / tasks.max(1) as i64
    }

    /// select_idle_sibling.
    fn idle_sibling(&self, machine: &Machine, vcpu: VcpuId, target: PcpuId) -> PcpuId {
        let is_idle = |pcpu: PcpuId| machine.is_idle(pcpu) && self.roots[pcpu].groups.is_empty();
        if is_idle(target) {
            return target;
        }
        let mut of_cache = machine.pcpus.ids().filter(|&pcpu| machine.llc_of(pcpu) == machine.llc_of(target));
        of_cache.find(|&pcpu| is_idle(pcpu) && machine.allows(vcpu, pcpu)).unwrap_or(target)
    }
}
