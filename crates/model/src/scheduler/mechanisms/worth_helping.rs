//! Whether help brings a VM anything: it is tried, now and then (`policy/worth_helping.h`; on a real host:
//! `bpf/mechanisms/worth_helping.bpf.h`).

use super::*;
use microslice_policy::{HelpObservation, HelpState};

pub(super) struct WorthHelping {
    is_tried: bool,
    of: IdVec<VmId, HelpState>,
}

impl WorthHelping {
    pub fn new(is_tried: bool, machine: &Machine) -> Self {
        Self { is_tried, of: IdVec::of(HelpState::default(), machine.vms.len()) }
    }

    pub fn helps(&self, vm: VmId) -> bool {
        self.of[vm].is_off == 0
    }
}

impl<Normal: Core> MicroSliced<Normal> {
    /// How large the micro pool is for a vCPU's VM: there is none for one that isn't helped.
    pub(super) fn micro_pcpus_for(&self, machine: &Machine, vcpu: VcpuId) -> u32 {
        if self.worth_helping.helps(machine.vcpus[vcpu].vm) { self.pool.count() as u32 } else { 0 }
    }

    /// A tick of the host on this pCPU.
    pub(super) fn look_at_help(&mut self, machine: &mut Machine, pcpu: PcpuId) {
        let Some(vcpu) = machine.current(pcpu).filter(|_| self.worth_helping.is_tried) else { return };
        let (vm, class) = (machine.vcpus[vcpu].vm, machine.vcpus[vcpu].class);
        let seen = HelpObservation { now_ns: machine.now_ns, guest_class: class.into(), reserved: 0 };
        let state = &mut self.worth_helping.of[vm];
        let was_off = state.is_off;
        *state = policy::decide_on_help(state, &seen);
        if state.is_off != was_off {
            machine.break_all_promises(vm);
        }
    }
}
