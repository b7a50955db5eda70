//! Threads that leave the fair class for a while and come back, to a cgroup of their own: as in
//! `eevdf-flat` (`../other_class.rs`). A VM whose last vCPU leaves a pCPU's queue leaves it, too.

use super::super::other_class::FairClass;
use super::entity::{Entity, WEIGHT};
use super::{GroupedEevdf, shares_of};
use crate::events::StopReason;
use crate::ids::{PcpuId, VcpuId, VmId};
use crate::machine::{Machine, VcpuState};
use crate::scheduler::Pick;

/// A vCPU that another class schedules, as it comes back. Its lag is where that of a sleeper is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Away {
    entity: Entity,
    /// Whose queue it left.
    from: PcpuId,
}

impl FairClass for GroupedEevdf {
    fn queue_of(&self, machine: &Machine, vcpu: VcpuId) -> PcpuId {
        machine.vcpus[vcpu].pcpu
    }

    fn leaves(&mut self, machine: &Machine, vcpu: VcpuId) -> bool {
        let (now_ns, from) = (machine.now_ns, machine.vcpus[vcpu].pcpu);
        if !self.waits_on(from, vcpu) {
            return false;
        }
        self.charge(now_ns, from);
        self.loads[vcpu].update(now_ns, WEIGHT);
        let entity = self.dequeue(now_ns, from, vcpu);
        self.away[vcpu] = entity.map(|entity| Away { entity, from });
        entity.is_some()
    }

    fn gives_way(&mut self, machine: &Machine, pcpu: PcpuId, stopped: Option<(VcpuId, StopReason)>) {
        self.stops(machine, pcpu, stopped);
        self.queues[pcpu].running_vm = VmId::NONE;
        let waits = self.queues[pcpu].waiting() > 0;
        self.waited_for.set(pcpu, waits);
        self.idle.set(pcpu, false);
    }

    fn comes_back(&mut self, machine: &mut Machine, pcpu: PcpuId, vcpu: VcpuId) -> Option<Pick> {
        let Away { entity, from } = self.away[vcpu].take()?;
        let now_ns = machine.now_ns;
        self.charge(now_ns, pcpu);
        if from != pcpu {
            self.charge(now_ns, from);
            self.move_load(now_ns, vcpu, from, pcpu);
        }
        if machine.vcpus[vcpu].state != VcpuState::Blocked {
            self.enqueue(now_ns, pcpu, vcpu, Some(entity));
        }
        self.choose(machine, pcpu, VcpuId::NONE)
    }

    fn set_weight(&mut self, machine: &Machine, vm: VmId, weight: u32) {
        self.shares[vm] = shares_of(weight);
        for pcpu in machine.pcpus.ids() {
            self.charge(machine.now_ns, pcpu);
            if let Some(at) = self.queues[pcpu].place_of(vm) {
                self.update_loads(machine.now_ns, pcpu, at);
                self.update_weights(pcpu, at);
            }
        }
    }
}
