//! Load balancing at ticks (`sched_balance_rq`), by loads that go through the groups.
//!
//! A pCPU's load is what the groups in its queue weigh there. A vCPU's is its part of its group's
//! (`task_h_load`).

use super::super::balance::{Balance, Balances};
use super::GroupedEevdf;
use crate::bits::Bits;
use crate::ids::{PcpuId, VcpuId};
use crate::machine::Machine;

impl Balances for GroupedEevdf {
    fn balance_of(&mut self, pcpu: PcpuId) -> &mut Balance {
        &mut self.balance[pcpu]
    }

    fn waited_for(&self) -> &Bits<PcpuId> {
        &self.waited_for
    }

    fn next_to(&self, pcpu: PcpuId) -> Option<PcpuId> {
        self.queues.round_from(pcpu.plus(1)).next()
    }

    /// In the order of its groups.
    fn waiting_on(&self, pcpu: PcpuId) -> impl Iterator<Item = VcpuId> {
        let queue = &self.queues[pcpu];
        let tasks = queue.groups.iter().flat_map(|group| &group.tasks).map(|task| task.vcpu);
        tasks.filter(move |&vcpu| vcpu != queue.running)
    }

    fn load(&self, pcpu: PcpuId) -> u64 {
        self.queues[pcpu].queued().map(|(_, entity)| entity.weight).sum()
    }

    fn load_of(&self, _machine: &Machine, pcpu: PcpuId, vcpu: VcpuId) -> u64 {
        let queue = &self.queues[pcpu];
        let Some(at) = queue.place_of(self.vm_of[vcpu]) else { return 0 };
        let group = &queue.groups[at];
        let load = group.entity.weight / group.tasks.len().max(1) as u64;
        // Its part of what the groups around it weigh.
        queue.levels(group.vm).skip(1).fold(load, |load, at| {
            let all = queue.load_in(at).max(1);
            (u128::from(load) * u128::from(queue.groups[at].entity.weight) / u128::from(all)) as u64
        })
    }

    fn move_waiting(&mut self, machine: &mut Machine, vcpu: VcpuId, _from: PcpuId, to: PcpuId) {
        self.migrate(machine, vcpu, to);
        if self.preempts(to, vcpu) {
            machine.request_lazily(to);
        }
    }
}
