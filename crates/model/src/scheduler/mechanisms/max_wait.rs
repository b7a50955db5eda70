//! Max wait: whoever has waited for most of its VM's bound is asked for (`policy/max_wait.h`).
//!
//! Problem.   Shares say how much a VM runs, not when.
//! Mechanism. The host looks at all that wait when the longest wait may be due. Those that are due are asked
//!            for, the one that has waited longest first. Each scheduler serves them as it serves whoever is
//!            needed.
//! Limits.    Looks cost nothing here but for what they ask for.

use super::{Core, MicroSliced};
use crate::counters::FailedPull;
use crate::ids::VcpuId;
use crate::machine::{self, Machine};
use microslice_policy::{self as policy, Cause, MAX_WAIT_NEVER, VcpuState, WaitDecision, WaitObservation};

pub struct MaxWait {
    /// Of VMs that say none themselves.
    host_ns: u64,
    micro_slice_ns: u64,
    each_ns: u64,
    /// When the next look is due.
    due_ns: u64,
}

impl MaxWait {
    /// `host_ns`: the bound of VMs that say none themselves; 0: they have none. `each_ns`: for each vCPU that
    /// wants to run and that a pCPU has, if that is longer. `micro_slice_ns`: of whoever is asked for.
    pub fn new(host_ns: u64, each_ns: u64, micro_slice_ns: u64, machine: &mut Machine) -> Self {
        for vm in &mut machine.vms {
            vm.max_wait_ns = vm.own_max_wait_ns.unwrap_or(host_ns);
        }
        let bounds = machine.vms.iter().map(|vm| vm.max_wait_ns).filter(|&bound_ns| bound_ns > 0);
        Self {
            host_ns,
            each_ns,
            micro_slice_ns,
            due_ns: bounds.map(|bound_ns| policy::wait_next_look_ns(bound_ns, 0)).min().unwrap_or(u64::MAX),
        }
    }

    pub fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Returns those that have to be asked for now, the longest wait first.
    pub fn look(
        &mut self,
        machine: &mut Machine,
        state_of: impl Fn(&Machine, VcpuId) -> VcpuState,
    ) -> Vec<VcpuId> {
        if machine.now_ns < self.due_ns {
            return Vec::new();
        }
        self.share(machine);
        let mut due = Vec::new();
        let mut next_look_ns = u64::MAX;
        for vm in machine.vms.iter().filter(|vm| vm.max_wait_ns > 0) {
            let mut longest_ns = 0;
            for vcpu in vm.first_vcpu.span(vm.vcpus) {
                let since_ns = machine.vcpus[vcpu].since_ns;
                let state = state_of(machine, vcpu);
                let waited_ns = machine.now_ns - since_ns;
                let bound_ns = vm.max_wait_ns;
                let seen = WaitObservation { bound_ns, waited_ns, state: state.into(), reserved: 0 };
                if matches!(policy::decide_on_wait(&seen), WaitDecision::Ends | WaitDecision::Late) {
                    due.push((since_ns, vcpu));
                }
                // Help may miss it, and then it waits on.
                if matches!(state, VcpuState::Runnable | VcpuState::Pending) {
                    longest_ns = longest_ns.max(waited_ns);
                }
            }
            next_look_ns = next_look_ns.min(policy::wait_next_look_ns(vm.max_wait_ns, longest_ns));
        }
        self.due_ns = machine.now_ns + next_look_ns;
        due.sort_unstable();
        due.into_iter().map(|(_, vcpu)| vcpu).collect()
    }

    /// Bounds are for as many as run or want to. The host sees no tasks, as a real one doesn't.
    fn share(&self, machine: &mut Machine) {
        let vms = machine.vms.iter().filter(|vm| !vm.are_tasks);
        let vcpus = vms.flat_map(|vm| vm.first_vcpu.span(vm.vcpus));
        let wanting = vcpus.filter(|&vcpu| machine.vcpus[vcpu].state != machine::VcpuState::Blocked).count();
        let (wanting, pcpus) = (wanting as u32, machine.pcpus.len() as u32);
        let host_ns = policy::max_wait_shared_ns(self.host_ns, self.each_ns, wanting, pcpus);
        let least_ns = policy::max_wait_least_now_ns(self.micro_slice_ns, wanting, pcpus);
        for vm in &mut machine.vms {
            // Here 0 is a VM that has none.
            let own_ns =
                vm.own_max_wait_ns.map_or(0, |own_ns| if own_ns == 0 { MAX_WAIT_NEVER } else { own_ns });
            vm.max_wait_ns = policy::max_wait_of_vm_ns(own_ns, host_ns, least_ns);
        }
    }
}

impl<Normal: Core> MicroSliced<Normal> {
    /// Whoever is due has a micro slice, whatever its VM has had.
    pub(super) fn look_at_waits(&mut self, machine: &mut Machine) {
        for vcpu in self.max_wait.look(machine, |machine, vcpu| self.pool.policy_state(machine, vcpu)) {
            let place = self.home_for_bound(machine, vcpu).or_else(|| self.place(machine, vcpu));
            match place {
                Some(pcpu) => _ = self.request(machine, vcpu, pcpu, Cause::MaxWait),
                None => machine.pool.count_failed_pulls(Cause::MaxWait, FailedPull::QueueFull, 1),
            }
        }
    }
}
