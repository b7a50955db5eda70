//! Load balancing at ticks (`sched_balance_rq`), as in `eevdf/balance.rs`, by loads that go through the groups.
//!
//! A pCPU's load is what the groups in its queue weigh there. A vCPU's is its part of its group's (`task_h_load`).

use super::super::balance::{Domain, FAILED_MAX, IMBALANCE_PERCENT};
use super::GroupedEevdf;
use crate::ids::{PcpuId, VcpuId};
use crate::machine::Machine;

impl GroupedEevdf {
    fn load(&self, pcpu: PcpuId) -> u64 {
        self.queues[pcpu].queued().map(|(_, entity)| entity.weight).sum()
    }

    fn load_of(&self, pcpu: PcpuId, vcpu: VcpuId) -> u64 {
        let queue = &self.queues[pcpu];
        let group = queue.place_of(self.vm_of[vcpu]).map(|at| &queue.groups[at]);
        group.map_or(0, |group| group.entity.weight / group.tasks.len().max(1) as u64)
    }

    pub(super) fn push_to_the_next(&mut self, machine: &mut Machine, pcpu: PcpuId) {
        let Some(peer) = self.queues.round_from(pcpu.plus(1)).next() else { return };
        if peer == pcpu || self.queues[pcpu].waiting() == 0 {
            return;
        }
        let more = self.load(pcpu).saturating_sub(self.load(peer));
        let fits = |&vcpu: &VcpuId| 2 * self.load_of(pcpu, vcpu) <= more && machine.allows(vcpu, peer);
        let found = self.waiting_on(pcpu).find(fits);
        if let Some(vcpu) = found {
            self.move_waiting(machine, vcpu, peer);
        }
    }

    pub(super) fn pull_from_the_busiest(&mut self, machine: &mut Machine, pcpu: PcpuId) {
        for domain in Domain::ALL {
            let next_ns = &mut self.balance[pcpu].next_ns[domain as usize];
            if machine.now_ns >= *next_ns {
                *next_ns = machine.now_ns + domain.interval_ns(machine);
                self.pull(machine, pcpu, domain);
            }
        }
    }

    fn pull(&mut self, machine: &mut Machine, pcpu: PcpuId, domain: Domain) {
        let busiest = self.busiest(machine, pcpu, domain);
        let failed = &mut self.balance[pcpu].failed[domain as usize];
        let Some((busiest, load)) = busiest else {
            *failed = 0;
            return;
        };
        let before = *failed;
        *failed = (before + 1).min(FAILED_MAX);
        let most = (load - self.load(pcpu)) / 2;
        let fits =
            |&vcpu: &VcpuId| self.load_of(busiest, vcpu) >> before <= most && machine.allows(vcpu, pcpu);
        let found = self.waiting_on(busiest).find(fits);
        if let Some(vcpu) = found {
            self.balance[pcpu].failed[domain as usize] = 0;
            self.move_waiting(machine, vcpu, pcpu);
        }
    }

    /// Who has the most to do, with somebody who may come here.
    fn busiest(&self, machine: &Machine, pcpu: PcpuId, domain: Domain) -> Option<(PcpuId, u64)> {
        let own = self.load(pcpu);
        let mut most = None;
        for peer in self.waited_for.round_from(pcpu) {
            let is_near = machine.llc_of(peer) == machine.llc_of(pcpu);
            if peer == pcpu || is_near != (domain == Domain::Cache) {
                continue;
            }
            let load = self.load(peer);
            if load * 100 > own * IMBALANCE_PERCENT
                && most.is_none_or(|(_, most)| load > most)
                && self.waiting_on(peer).any(|vcpu| machine.allows(vcpu, pcpu))
            {
                most = Some((peer, load));
            }
        }
        most
    }

    fn move_waiting(&mut self, machine: &mut Machine, vcpu: VcpuId, to: PcpuId) {
        self.migrate(machine, vcpu, to);
        if self.preempts(to, vcpu) {
            machine.request_schedule(to);
        }
    }
}
