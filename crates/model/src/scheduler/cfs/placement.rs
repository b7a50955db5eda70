//! Where a waking vCPU goes: select_task_rq_fair, for a wake-up.
//!
//! Problem.   Caches are warm where it ran before, and data are where its waker runs.
//! Mechanism. A woken vCPU goes to the waker's pCPU or to its own. The waker's needs no more load, with this
//!            vCPU, than the vCPU's own without it, and an eighth of that (`wake_affine`, `imbalance_pct`
//!            125). If the chosen one doesn't idle, it goes to an idle one of the same last-level cache
//!            (`select_idle_sibling`), else there all the same. So siblings come to wait behind one another:
//!            vCPU stacking (section 3.2.2).
//!            Balance scheduling takes pCPUs away from these choices (`policy/balance.h`).
//! Limits.    Loads are those of the moment (`wake_idx` 0). Timers and devices wake on the vCPU's own pCPU.

use super::Cfs;
use super::queue::TASK_WEIGHT;
use crate::ids::{PcpuId, VcpuId};
use crate::machine::Machine;
use microslice_policy::coordinated::{self, BalanceScheme, CandidateObservation, HostLoad};

/// Per cent: half of `imbalance_pct` above 100.
const AFFINE_PERCENT: i64 = 112;

impl Cfs {
    pub(super) fn select_pcpu(&self, machine: &Machine, vcpu: VcpuId, sender: Option<PcpuId>) -> PcpuId {
        let own = machine.vcpus[vcpu].pcpu;
        let candidates = self.candidates(machine, vcpu);
        let sender = sender.filter(|sender| *sender != own && candidates.contains(sender));
        let target = sender.filter(|&sender| self.wakes_affine(vcpu, sender, own)).unwrap_or(own);
        let least_loaded = || candidates.iter().copied().min_by_key(|&pcpu| self.load(pcpu));
        let target = Some(target).filter(|target| candidates.contains(target)).or_else(least_loaded);
        self.idle_sibling(machine, &candidates, target.unwrap_or(own))
    }

    /// Where balance scheduling lets it be placed; anywhere, if that is nowhere.
    fn candidates(&self, machine: &Machine, vcpu: VcpuId) -> Vec<PcpuId> {
        let allowed: Vec<PcpuId> = machine.pcpus.ids().filter(|&pcpu| machine.allows(vcpu, pcpu)).collect();
        let scheme = self.config.coordination.balance;
        if scheme == BalanceScheme::None {
            return allowed;
        }
        let host = self.host_load();
        let alone = |pcpu: &PcpuId| self.groups.of(*pcpu, self.tasks[vcpu].vm).running == 0;
        let has_room =
            allowed.iter().any(|pcpu| alone(pcpu) && !coordinated::is_overloaded(&host, self.load(*pcpu)));
        let is_candidate = |pcpu: &PcpuId| {
            let seen = CandidateObservation {
                load: self.load(*pcpu),
                has_sibling: u32::from(!alone(pcpu)),
                some_candidate_has_room: has_room.into(),
            };
            coordinated::decide_on_candidate(scheme, &seen)
        };
        let candidates: Vec<PcpuId> = allowed.iter().copied().filter(is_candidate).collect();
        if candidates.is_empty() { allowed } else { candidates }
    }

    fn host_load(&self) -> HostLoad {
        let total = self.roots.ids().map(|pcpu| self.load(pcpu)).sum();
        HostLoad { total, pcpus: self.roots.len() as u32, reserved: 0 }
    }

    /// Whether a waiting vCPU may be moved there by the load balancer.
    pub(super) fn may_move(&self, vcpu: VcpuId, to: PcpuId) -> bool {
        let has_sibling = self.groups.of(to, self.tasks[vcpu].vm).running > 0;
        let seen = CandidateObservation {
            load: self.load(to),
            has_sibling: has_sibling.into(),
            some_candidate_has_room: 0,
        };
        coordinated::decide_on_move(self.config.coordination.balance, &self.host_load(), &seen)
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
    fn idle_sibling(&self, machine: &Machine, candidates: &[PcpuId], target: PcpuId) -> PcpuId {
        let is_idle = |pcpu: PcpuId| machine.is_idle(pcpu) && self.roots[pcpu].groups.is_empty();
        if is_idle(target) {
            return target;
        }
        let mut of_cache = machine.pcpus.ids().filter(|&pcpu| machine.llc_of(pcpu) == machine.llc_of(target));
        of_cache.find(|&pcpu| is_idle(pcpu) && candidates.contains(&pcpu)).unwrap_or(target)
    }
}
