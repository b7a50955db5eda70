//! Accounts: what each vCPU has run, by which clock, and what it runs for next.

use super::clocks::Furthest;
use super::{FairShare, Hooks};
use crate::ids::{PcpuId, VcpuId, VmId};
use crate::machine::Machine;
use microslice_policy as policy;
use microslice_policy::{WakeupDecision, WakeupObservation};

impl<H: Hooks> FairShare<H> {
    /// `clocks_of`: what its clock and its VM's are compared with.
    pub(super) fn furthest(&self, machine: &Machine, vcpu: VcpuId) -> Furthest {
        let host = &machine.vcpus[vcpu];
        self.clocks.of(host.pcpu, machine.vms[host.vm].is_narrow())
    }

    /// `queue_clock`: from when on, and for how long, it runs.
    pub(super) fn queue_clock(&mut self, machine: &Machine, vcpu: VcpuId) -> WakeupDecision {
        let furthest = self.furthest(machine, vcpu);
        self.keep_up(vcpu, furthest.vm_ns);
        let account = &self.accounts[vcpu];
        let seen = WakeupObservation {
            pool_vtime_ns: furthest.vcpu_ns,
            vcpu_vtime_ns: account.vtime_ns,
            weight: self.weight_of(account.vm),
            was_blocked: u32::from(account.was_blocked),
            reserved: 0,
        };
        let decision = policy::decide_on_wakeup(&self.rules, &seen);
        let account = &mut self.accounts[vcpu];
        account.vtime_ns = decision.vtime_ns;
        account.slice_ns = decision.slice_ns;
        decision
    }

    /// `keep_up`: its VM's clock isn't left further behind the first one's than it can catch up with.
    pub(super) fn keep_up(&mut self, vcpu: VcpuId, first_vm_ns: u64) {
        let vm = &mut self.vms[self.accounts[vcpu].vm];
        vm.first_vm_ns = first_vm_ns;
        vm.vtime_ns = policy::vm_clock(&self.rules, &vm.size(), first_vm_ns, vm.vtime_ns);
    }

    /// `advance_clocks`: those of the pool and of the pCPU are of vCPUs that they chose. A micro slice isn't
    /// chosen. Nor is what a light vCPU gets because it has waited for long, nor the rest of a turn that a
    /// micro slice has interrupted.
    pub(super) fn advance_clocks(&mut self, machine: &Machine, pcpu: PcpuId, vcpu: VcpuId) {
        let account = &mut self.accounts[vcpu];
        let vm_ns = self.vms[account.vm].vtime_ns;
        if !std::mem::take(&mut account.out_of_order) {
            self.clocks.advance(pcpu, account.vtime_ns, vm_ns);
        }
        let account = &self.accounts[vcpu];
        let is_narrow = machine.vms[account.vm].is_narrow();
        self.keep_up(vcpu, self.clocks.of(pcpu, is_narrow).vm_ns);
    }

    /// `forgive_debt`: where nobody else waited, what it ran for isn't owed.
    pub(super) fn forgive_debt(&mut self, machine: &Machine, vcpu: VcpuId) {
        let clock_ns = self.furthest(machine, vcpu).vcpu_ns;
        let account = &mut self.accounts[vcpu];
        if policy::vtime_before(clock_ns, account.vtime_ns) {
            account.vtime_ns = clock_ns;
        }
    }

    /// `settle_clock`: a vCPU that ran where none waited owes nothing for it, nor does its VM, and is owed
    /// nothing.
    pub(super) fn settle_clock(&mut self, machine: &Machine, vcpu: VcpuId) {
        let furthest = self.furthest(machine, vcpu);
        let account = &mut self.accounts[vcpu];
        account.vtime_ns = furthest.vcpu_ns;
        let vm = &mut self.vms[account.vm];
        if policy::vtime_before(furthest.vm_ns, vm.vtime_ns) {
            vm.vtime_ns = furthest.vm_ns;
        }
    }

    /// Of each vCPU of that VM.
    pub fn weight_of(&self, vm: VmId) -> u64 {
        let vm = &self.vms[vm];
        policy::vcpu_weight(vm.weight, vm.active_vcpus)
    }

    /// What running is charged by.
    pub(super) fn charged_weight_of(&self, vm: VmId) -> u64 {
        let weight = self.weight_of(vm);
        let vm = &self.vms[vm];
        policy::catch_up_weight(&self.rules, &vm.size(), weight, vm.first_vm_ns, vm.vtime_ns)
    }
}
