//! Looks: interrupts that wait for a waiting vCPU, and that nobody was told of (`policy/looks.h`).
//!
//! Problem.   Where interrupts are posted none exits: neither the sender's, nor the recipient's that waits.
//! Mechanism. The host looks at some vCPUs at a time, by a cursor. What waits there is as if it came then.
//! Limits.    Looks cost nothing here but for what they ask for.

use super::{Core, MicroSliced};
use crate::ids::{IdVec, VcpuId};
use crate::machine::{HostVcpu, Machine, interrupt_bit};
use microslice_policy::{self as policy, InterruptKind, LookState};

/// What was found of a vCPU in one wait: nothing of it is found again.
#[derive(Clone, Copy, Default)]
struct Found {
    since_ns: u64,
    kinds: u8,
}

pub struct Looks {
    state: LookState,
    due_ns: u64,
    found: IdVec<VcpuId, Found>,
}

impl Looks {
    /// Of a host that is told of every interrupt there are none.
    pub fn new(machine: &Machine) -> Self {
        Self {
            state: LookState::default(),
            due_ns: if machine.hides_interrupts { policy::LOOK_LEAST_NS.into() } else { u64::MAX },
            found: IdVec::of(Found::default(), machine.vcpus.len()),
        }
    }

    pub fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// What this vCPU is wanted for.
    fn find(&mut self, vcpu: VcpuId, host: &HostVcpu, state: policy::VcpuState) -> Option<InterruptKind> {
        let found = &mut self.found[vcpu];
        if found.since_ns != host.since_ns {
            *found = Found { since_ns: host.since_ns, kinds: 0 };
        }
        let owed = if host.owes_answer { interrupt_bit(InterruptKind::IpiCallFunction) } else { 0 };
        let kind = policy::interrupt_by_look(state, (host.pending_interrupts | owed) & !found.kinds);
        found.kinds |= interrupt_bit(kind);
        (kind != InterruptKind::Other).then_some(kind)
    }
}

impl<Normal: Core> MicroSliced<Normal> {
    pub(super) fn look_for_interrupts(&mut self, machine: &mut Machine) {
        if machine.now_ns < self.looks.due_ns {
            return;
        }
        let count = machine.vcpus.len() as u32;
        let first = VcpuId::new(self.looks.state.next);
        let mut found_count = 0;
        for vcpu in first.span(policy::LOOK_MAX.min(count - first.number())) {
            let state = self.pool.policy_state(machine, vcpu);
            if let Some(kind) = self.looks.find(vcpu, &machine.vcpus[vcpu], state) {
                found_count += 1;
                self.on_interrupt(machine, vcpu, kind);
            }
        }
        self.looks.state = policy::look_after(&self.looks.state, count, found_count);
        self.looks.due_ns = machine.now_ns + self.looks.state.interval_ns;
    }
}
