//! Which pCPUs idle, and which one a waiter gets: an idle one, or one whose turn gives way.
//!
//! A pCPU is this scheduler's, or another pool's that has the first claim to it: that one it may use as long
//! as its turns there give way.

use super::{FairShare, Hooks};
use crate::ids::{PcpuId, VcpuId};
use crate::machine::Machine;
use crate::scheduler::Core;

/// How many pCPUs are looked at for one that gives way: `PREEMPT_LOOK_MAX` of `bpf/core/idle.bpf.h`.
const PREEMPT_LOOK_MAX: usize = 4;

impl<H: Hooks> FairShare<H> {
    /// `pick_idle_normal`: the pCPU that it ran on last, or the nearest other one. It is idle no longer.
    pub(super) fn claim_idle(&mut self, machine: &Machine, vcpu: VcpuId) -> Option<PcpuId> {
        let home = machine.vcpus[vcpu].pcpu;
        let pcpu = machine.near_first(&self.idle, home).find(|&pcpu| machine.allows(vcpu, pcpu))?;
        self.idle.set(pcpu, false);
        Some(pcpu)
    }

    /// `kick_idle_normal`: an idle pCPU comes and gets it, or one of another pool's that idles.
    pub(super) fn kick_idle(&mut self, machine: &mut Machine, vcpu: VcpuId) -> bool {
        match self.claim_idle(machine, vcpu) {
            Some(pcpu) => {
                self.bring(machine, vcpu, pcpu);
                machine.request_schedule(pcpu);
            }
            None => return self.kick_spare(machine, vcpu),
        }
        true
    }

    pub(super) fn kick_spare(&mut self, machine: &mut Machine, vcpu: VcpuId) -> bool {
        let pcpu = self.spare.round_from(PcpuId::new(0)).find(|&pcpu| machine.allows(vcpu, pcpu));
        if let Some(pcpu) = pcpu {
            self.spare.set(pcpu, false);
            self.bring(machine, vcpu, pcpu);
            machine.request_schedule(pcpu);
            self.fetched = Some(vcpu);
        }
        pcpu.is_some()
    }

    /// Which of the idle ones it counts to.
    pub(super) fn note_idle(&mut self, pcpu: PcpuId, idle: bool) {
        let set = if self.usable[pcpu] { &mut self.idle } else { &mut self.spare };
        set.set(pcpu, idle);
    }

    /// The vCPU that has a turn of this pool on a pCPU. A stay in another pool of the vCPU that had the last
    /// one there is none.
    pub(super) fn on_turn(&self, machine: &Machine, pcpu: PcpuId) -> Option<VcpuId> {
        let has_turn = |vcpu: &VcpuId| self.turns[pcpu].vcpu == *vcpu && !machine.vcpus[*vcpu].requested;
        machine.current(pcpu).filter(has_turn)
    }

    /// `preempt_for`: it takes over the pCPU that it ran on last, or one of the next few, if what runs there
    /// gives way.
    pub(super) fn preempt_for(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        let mut home = machine.vcpus[vcpu].pcpu;
        if !self.usable[home] && self.on_turn(machine, home).is_none() {
            let mut others = machine.pcpus.round_from(self.preempted_last.plus(1));
            let Some(other) = others.find(|&other| self.usable[other]) else { return };
            (home, self.preempted_last) = (other, other);
        }
        let mut near = machine.pcpus.round_from(home).take(PREEMPT_LOOK_MAX);
        let gives_way = |&pcpu: &PcpuId| {
            (self.usable[pcpu] || self.on_turn(machine, pcpu).is_some())
                && machine.allows(vcpu, pcpu)
                && !self.turns[pcpu].was_woken
                && (machine.is_idle(pcpu)
                    || self.on_turn(machine, pcpu).is_some_and(|on| !self.is_of_vm_ahead(vcpu, on)))
        };
        if let Some(pcpu) = near.find(gives_way) {
            self.bring(machine, vcpu, pcpu);
            machine.request_schedule(pcpu);
        }
    }
}
