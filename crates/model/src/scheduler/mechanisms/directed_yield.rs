//! KVM's directed yield: a spinner gives its pCPU to a sibling that it may wait for (`kvm_vcpu_on_spin`,
//! `yield_to`).
//!
//! Problem.   A spinner keeps the pCPU that the preempted sibling it waits for could run on.
//! Mechanism. On a pause-loop exit KVM goes round the siblings for one that waits and may be waited for. That
//!            one runs next on the spinner's pCPU, if its clock isn't a slice ahead of the first that waits
//!            (`take_heir` in `bpf/`). If it may not run there the spinner gives nothing up
//!            (`heir_may_come`).

use crate::ids::{IdVec, PcpuId, VcpuId, VmId};
use crate::machine::Machine;
use crate::scheduler::YieldAnswer;
use crate::scheduler::core::{FairShare, Hooks};

pub struct DirectedYield {
    /// The heir of the vCPU that runs on each pCPU: the target of its yield.
    heirs: IdVec<PcpuId, Option<VcpuId>>,
    /// The last target of KVM's yields, of each VM.
    yielded_to: IdVec<VmId, VcpuId>,
}

impl DirectedYield {
    pub fn new(machine: &Machine) -> Self {
        Self {
            heirs: IdVec::of(None, machine.pcpus.len()),
            yielded_to: machine.vms.iter().map(|vm| vm.first_vcpu).collect(),
        }
    }

    /// Whom KVM finds for `vcpu`, which spins.
    pub fn heir_of(&mut self, machine: &mut Machine, vcpu: VcpuId) -> Option<VcpuId> {
        let number = machine.vcpus[vcpu].vm;
        // Who waits in a queue that others run from isn't alone.
        let sibling = machine.yields_to(vcpu, self.yielded_to[number], |_, _| false)?;
        self.yielded_to[number] = sibling;
        Some(sibling)
    }

    /// The vCPU that runs on `pcpu` gives it up.
    pub fn yields_to(&mut self, pcpu: PcpuId, heir: VcpuId) -> YieldAnswer {
        self.heirs[pcpu] = Some(heir);
        YieldAnswer::Yield
    }

    /// A pCPU chooses: its heir, which there is for this one time.
    pub fn take_heir(&mut self, pcpu: PcpuId) -> Option<VcpuId> {
        self.heirs[pcpu].take()
    }
}

/// The heir, if the clocks let it. Where the last look into other domains was long ago, one that is further
/// behind there goes before it.
pub fn goes_first<H: Hooks>(
    core: &mut FairShare<H>,
    machine: &mut Machine,
    pcpu: PcpuId,
    heir: Option<VcpuId>,
) -> Option<VcpuId> {
    let heir = heir.filter(|&heir| core.may_go_first(machine, pcpu, heir))?;
    if !core.may_inherit_without_a_look(machine, pcpu)
        && let Some(further_behind) = core.take_from_elsewhere(machine, pcpu, Some(heir))
    {
        return Some(further_behind);
    }
    machine.pool.overtakes[0] += 1;
    Some(heir)
}
