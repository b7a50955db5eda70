//! Pay back: what a VM had by boosts is taken from what it has by weight (`policy/pay_back.h`).
//!
//! Problem.   Nobody's share is charged for boosts.
//! Mechanism. Once a second the weight of each VM's group becomes what the policy says.
//! Limits.    A change of weight costs nothing here. In a cgroup it is taken from the VM among its siblings
//!            only.

use crate::ids::{IdVec, VmId};
use crate::machine::{HostVm, Machine, VcpuState};
use microslice_policy::{self as policy, PayBackObservation};

#[derive(Debug, Clone, Copy, Default)]
struct Account {
    boosted_ns: u64,
    ran_ns: u64,
    owed_ns: u64,
    weight_now: u32,
}

pub struct PayBack {
    of: IdVec<VmId, Account>,
    /// When the next look is due.
    due_ns: u64,
}

impl PayBack {
    pub fn new(is_on: bool, machine: &Machine) -> Self {
        let account = |vm: &HostVm| Account { weight_now: vm.weight, ..Account::default() };
        Self {
            of: machine.vms.iter().map(account).collect(),
            due_ns: if is_on { u64::from(policy::PAY_BACK_PERIOD_NS) } else { u64::MAX },
        }
    }

    pub fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// A VM ran boosted for so long.
    pub fn boosted(&mut self, vm: VmId, ran_ns: u64) {
        self.of[vm].boosted_ns += ran_ns;
    }

    /// Returns the VMs whose weights change now, with these.
    pub fn look(&mut self, machine: &Machine) -> Vec<(VmId, u32)> {
        if machine.now_ns < self.due_ns {
            return Vec::new();
        }
        self.due_ns = machine.now_ns + u64::from(policy::PAY_BACK_PERIOD_NS);
        let mut changes = Vec::new();
        for vm in machine.vms.ids() {
            let ran_ns = ran_ns(machine, vm);
            let account = &mut self.of[vm];
            let seen = PayBackObservation {
                owed_ns: account.owed_ns,
                boosted_ns: std::mem::take(&mut account.boosted_ns),
                // Measuring may have begun since.
                ran_ns: ran_ns.checked_sub(account.ran_ns).unwrap_or(ran_ns),
                weight: machine.vms[vm].weight,
                weight_now: account.weight_now,
            };
            let decision = policy::decide_on_pay_back(&seen);
            (account.ran_ns, account.owed_ns) = (ran_ns, decision.owed_ns);
            if std::mem::replace(&mut account.weight_now, decision.weight) != decision.weight {
                changes.push((vm, decision.weight));
            }
        }
        changes
    }
}

/// For how long its vCPUs have run, since measuring began.
fn ran_ns(machine: &Machine, vm: VmId) -> u64 {
    let HostVm { first_vcpu, vcpus, .. } = &machine.vms[vm];
    let of_vcpu = |vcpu| {
        let host = &machine.vcpus[vcpu];
        let runs_ns = if host.state == VcpuState::Running { machine.now_ns - host.since_ns } else { 0 };
        host.turns.run_ns + runs_ns
    };
    first_vcpu.span(*vcpus).map(of_vcpu).sum()
}
