//! `kvm_vcpu_on_spin`: to which sibling a spinner's thread yields, and what its tries cost.
//!
//! Problem.   KVM doesn't know whom a spinner waits for.
//! Mechanism. It goes round the siblings that wait for a pCPU, from the one behind the last that was
//!            yielded to. It leaves out those preempted in user mode without an interrupt to take. One that
//!            is in a pause-loop exit itself is eligible at every second look
//!            (`kvm_vcpu_eligible_for_directed_yield`). `yield_to` locks the runqueues of both. It fails
//!            where both queues have one task only, and the third failure ends the scan (Linux 6.12,
//!            `virt/kvm/kvm_main.c`, `kernel/sched/syscalls.c`).
//! Limits.    Without `[kvm]` a host has none of it: the first sibling is the one, and tries cost nothing.

use super::{Machine, VcpuState};
use crate::bits::Bits;
use crate::ids::VcpuId;

/// `try` in `kvm_vcpu_on_spin`.
const TRIES: u32 = 3;

pub struct OnSpin {
    /// What `yield_to` costs that gets as far as the locks.
    yield_to_ns: u64,
    /// `spin_loop.in_spin_loop`: those that have yielded, and haven't run since.
    in_spin_loop: Bits<VcpuId>,
    /// `spin_loop.dy_eligible`.
    dy_eligible: Bits<VcpuId>,
    /// What the present exit has cost.
    cost_ns: u64,
}

impl OnSpin {
    pub(super) fn new(yield_to_ns: u64, vcpus: usize) -> Self {
        let none = || Bits::new(vcpus, false);
        Self { yield_to_ns, in_spin_loop: none(), dy_eligible: none(), cost_ns: 0 }
    }

    /// `kvm_vcpu_eligible_for_directed_yield`.
    fn is_eligible(&mut self, vcpu: VcpuId) -> bool {
        if !self.in_spin_loop.has(vcpu) {
            return true;
        }
        let eligible = self.dy_eligible.has(vcpu);
        self.dy_eligible.set(vcpu, !eligible);
        eligible
    }

    /// What becomes of a spinner's yield to each sibling, in turn.
    fn scan(
        &mut self,
        spinner: VcpuId,
        siblings: impl Iterator<Item = VcpuId>,
        mut yield_to: impl FnMut(VcpuId) -> YieldTo,
    ) -> Option<VcpuId> {
        let mut tries = TRIES;
        let mut found = None;
        for sibling in siblings {
            if !self.is_eligible(sibling) {
                continue;
            }
            match yield_to(sibling) {
                YieldTo::Alone => tries -= 1,
                YieldTo::Refused => self.cost_ns += self.yield_to_ns,
                YieldTo::Yields => {
                    self.cost_ns += self.yield_to_ns;
                    found = Some(sibling);
                }
            }
            if found.is_some() || tries == 0 {
                break;
            }
        }
        self.dy_eligible.set(spinner, false);
        found
    }
}

/// What `yield_to` finds.
#[derive(Clone, Copy)]
enum YieldTo {
    /// Both queues have one task (-ESRCH).
    Alone,
    /// The scheduler says no.
    Refused,
    Yields,
}

impl Machine {
    /// Returns whether the present yield is a hypercall that names whom to yield to. If so, that one too, if
    /// it waits.
    pub fn named_target(&mut self) -> Option<Option<VcpuId>> {
        let target = self.named_target;
        if target == VcpuId::NONE {
            return None;
        }
        let waits = self.vcpus[target].state == VcpuState::Runnable;
        if let Some(on_spin) = self.on_spin.as_mut().filter(|_| waits) {
            on_spin.cost_ns += on_spin.yield_to_ns;
        }
        Some(Some(target).filter(|_| waits))
    }

    /// Returns the sibling that a spinner yields to. `last` is the one before it; `are_alone`, whether the
    /// queues of both have one task each.
    pub fn yields_to(
        &mut self,
        spinner: VcpuId,
        last: VcpuId,
        are_alone: impl Fn(&Self, VcpuId) -> bool,
    ) -> Option<VcpuId> {
        if let Some(named) = self.named_target() {
            return named;
        }
        let vm = &self.vms[self.vcpus[spinner].vm];
        let (first, count) = (vm.first_vcpu, vm.vcpus);
        let Some(mut on_spin) = self.on_spin.take() else {
            return self.boostable.next_round(first, count, last);
        };
        let yield_to = |sibling| if are_alone(self, sibling) { YieldTo::Alone } else { YieldTo::Yields };
        let found = on_spin.scan(spinner, self.boostable_round_from(first, count, last), yield_to);
        self.on_spin = Some(on_spin);
        found
    }

    /// A spinner yields, by a `yield_to` that found whom to yield to.
    pub fn pays_for_yield(&mut self) {
        if let Some(on_spin) = &mut self.on_spin {
            on_spin.cost_ns += on_spin.yield_to_ns;
        }
    }

    /// A spinner keeps its pCPU, as the scheduler says. KVM asks it about each sibling all the same.
    pub fn refuses_to_yield(&mut self, spinner: VcpuId) {
        let Some(mut on_spin) = self.on_spin.take() else { return };
        let vm = &self.vms[self.vcpus[spinner].vm];
        let siblings = self.boostable_round_from(vm.first_vcpu, vm.vcpus, vm.first_vcpu);
        on_spin.scan(spinner, siblings, |_| YieldTo::Refused);
        self.on_spin = Some(on_spin);
    }

    fn boostable_round_from(
        &self,
        first: VcpuId,
        count: u32,
        last: VcpuId,
    ) -> impl Iterator<Item = VcpuId> + '_ {
        let round = (1..=count).map(move |step| first.plus((last.since(first) + step) % count));
        round.filter(|&vcpu| self.boostable.has(vcpu))
    }

    /// A vCPU yields because of a pause-loop exit, in which it stays until it runs.
    #[inline]
    pub fn waits_in_exit(&mut self, vcpu: VcpuId, waits: bool) {
        if let Some(on_spin) = &mut self.on_spin {
            on_spin.in_spin_loop.set(vcpu, waits);
        }
    }

    /// Returns whether an exit's cost depends on who waits: no answer holds for the next ones.
    pub fn tries_cost(&self) -> bool {
        self.on_spin.is_some()
    }

    /// Returns what the tries of the present exit have cost.
    #[inline]
    pub fn take_yield_costs(&mut self) -> u64 {
        self.on_spin.as_mut().map_or(0, |on_spin| std::mem::take(&mut on_spin.cost_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{HostConfig, KvmConfig};
    use crate::machine::HostVm;
    use crate::samples;
    use microslice_policy::GuestClass;

    const SPINNER: VcpuId = VcpuId::new(0);

    /// A VM of five on a host of KVM: one spins, and the others wait in kernel code.
    fn spinning() -> Machine {
        let host =
            HostConfig { kvm: Some(KvmConfig { yield_to_ns: 500, ..samples::kvm() }), ..samples::host() };
        let mut machine = Machine::new(&host, vec![HostVm::new(5, 256, Vec::new())]);
        for vcpu in machine.vcpus.ids() {
            machine.wakes(vcpu);
            machine.runs(vcpu);
            machine.set_class(vcpu, GuestClass::LockHolder);
            if vcpu != SPINNER {
                machine.stops(vcpu, false);
            }
        }
        machine
    }

    fn yields_to(machine: &mut Machine, last: u32, alone: &[u32]) -> Option<u32> {
        let are_alone = |_: &Machine, sibling: VcpuId| alone.contains(&sibling.number());
        machine.yields_to(SPINNER, VcpuId::new(last), are_alone).map(VcpuId::number)
    }

    #[test]
    fn one_that_yielded_itself_is_eligible_at_every_second_look() {
        let mut machine = spinning();
        machine.waits_in_exit(VcpuId::new(1), true);
        assert_eq!(yields_to(&mut machine, 0, &[]), Some(2));
        assert_eq!(yields_to(&mut machine, 0, &[]), Some(1));
        assert_eq!(yields_to(&mut machine, 0, &[]), Some(2));
        machine.waits_in_exit(VcpuId::new(1), false);
        assert_eq!(yields_to(&mut machine, 0, &[]), Some(1));
    }

    #[test]
    fn a_hypercall_yields_to_whom_it_names_or_to_nobody() {
        let mut machine = spinning();
        machine.named_target = VcpuId::new(3);
        assert_eq!(yields_to(&mut machine, 0, &[]), Some(3));
        assert_eq!(machine.take_yield_costs(), 500);
        machine.runs(VcpuId::new(3));
        assert_eq!(yields_to(&mut machine, 0, &[]), None);
        machine.named_target = VcpuId::NONE;
        assert_eq!(yields_to(&mut machine, 0, &[]), Some(1));
    }

    #[test]
    fn a_scan_ends_at_the_third_sibling_that_is_alone() {
        let mut machine = spinning();
        assert_eq!(yields_to(&mut machine, 0, &[1, 2]), Some(3));
        assert_eq!(yields_to(&mut machine, 0, &[1, 2, 3]), None);
    }

    #[test]
    fn who_gets_as_far_as_the_locks_pays_for_them() {
        let mut machine = spinning();
        yields_to(&mut machine, 0, &[1, 2]);
        assert_eq!(machine.take_yield_costs(), 500);
        assert_eq!(machine.take_yield_costs(), 0);
        machine.refuses_to_yield(SPINNER);
        assert_eq!(machine.take_yield_costs(), 4 * 500, "KVM asks about each");
    }
}
