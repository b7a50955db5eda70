//! KVM's directed yield through nested groups, as it is and as Wanpeng Li proposes it.
//!
//! Problem.   A spinner on a pause loop waits for a sibling that the host doesn't run.
//! Mechanism. `kvm_vcpu_on_spin` (virt/kvm/kvm_main.c, Linux 6.18) goes round the siblings that wait, but for
//!            those preempted in user mode. `yield_to` does nothing where both queues have one task. Else the
//!            target is the buddy of its vCPU's and of its VM's queue (`set_next_buddy`). Each level heeds it
//!            only if it is eligible. What `yield_task_fair` takes from the yielder, it takes from its
//!            thread, which is alone in its vCPU's group: at the levels where others wait nothing changes. So
//!            the yielder is mostly picked again.
//!            A hypercall names its target (`kvm_sched_yield`).
//! Proposal.  *Semantics-aware directed yield*, version 3 (June 2026, on Linux 7.1-rc7; not merged), by its
//!            cover letter. A target on the yielder's pCPU is made eligible at each level, by a margin that
//!            grows with the queue, within the bounds of lag. The yielder's slice protects it no longer, at
//!            most once in 6 ms. The first target is a vCPU that the spinner sent an interrupt in the last 50
//!            ms, and that hasn't handled it. Then come the siblings as above; then those preempted in user
//!            mode, too.
//! Limits.    The letter doesn't say how large the margin is: an eighth of a slice for each one in the queue
//!            is an assumption. Of interrupts, call-function IPIs are tracked: these are spun for.

use super::entity::Sums;
use super::{GroupedEevdf, Queue};
use crate::ids::{IdVec, PcpuId, VcpuId};
use crate::machine::{Machine, VcpuState};

/// `ipi_window_ns`.
const RECENT_NS: u64 = 50_000_000;
/// Between two turns that are ended by force on a pCPU.
const FORCED_INTERVAL_NS: u64 = 6_000_000;
/// Of a slice, for each entity in the queue.
const MARGIN_PART: u64 = 8;

/// Which vCPU has sent which an interrupt last (`ipi_context`).
pub struct Interrupts {
    of: IdVec<VcpuId, Interrupt>,
}

#[derive(Clone, Copy)]
struct Interrupt {
    receiver: VcpuId,
    sent_ns: u64,
    /// The vCPU that has sent this one an interrupt last.
    sender: VcpuId,
}

impl Interrupts {
    pub fn new(vcpus: usize) -> Self {
        let none = Interrupt { receiver: VcpuId::NONE, sent_ns: 0, sender: VcpuId::NONE };
        Self { of: IdVec::of(none, vcpus) }
    }

    pub fn sent(&mut self, now_ns: u64, from: VcpuId, to: VcpuId) {
        (self.of[from].receiver, self.of[from].sent_ns) = (to, now_ns);
        self.of[to].sender = from;
    }

    /// The end of an interrupt: its sender no longer waits for this one.
    pub fn handled(&mut self, vcpu: VcpuId) {
        let sender = std::mem::replace(&mut self.of[vcpu].sender, VcpuId::NONE);
        if sender != VcpuId::NONE && self.of[sender].receiver == vcpu {
            self.of[sender].receiver = VcpuId::NONE;
        }
    }

    /// The vCPU that it waits for, as far as is known.
    fn receiver_of(&self, now_ns: u64, vcpu: VcpuId) -> Option<VcpuId> {
        let &Interrupt { receiver, sent_ns, .. } = &self.of[vcpu];
        (receiver != VcpuId::NONE && now_ns - sent_ns < RECENT_NS).then_some(receiver)
    }
}

impl GroupedEevdf {
    /// Whether a sibling was yielded to.
    pub(super) fn yield_to_a_sibling(&mut self, machine: &mut Machine, vcpu: VcpuId, on: PcpuId) -> bool {
        let Some(sibling) = self.sibling_to_yield_to(machine, vcpu, on) else { return false };
        let vm = self.vm_of[vcpu];
        self.last_boosted[vm] = sibling;
        let pcpu = machine.vcpus[sibling].pcpu;
        if self.are_alone(machine, on, sibling) {
            return false;
        }
        let queue = &mut self.queues[pcpu];
        queue.set_next(vm, sibling);
        if pcpu != on {
            // A switch isn't interrupted: two waiting siblings that many spinners yield to would otherwise
            // chase each other off their pCPU for ever, before either is in its guest. The target is next,
            // sooner or later.
            let is_switching =
                queue.running != VcpuId::NONE && machine.now_ns - queue.since_ns < machine.switch_ns;
            if !is_switching {
                machine.request_schedule(pcpu);
            }
        } else if self.config.ipi_aware {
            self.charge(machine.now_ns, on);
            self.credit(on, sibling);
            self.queues[on].end_protection(machine.now_ns);
        }
        true
    }

    /// Whether a vCPU and one that waits have a queue for themselves each.
    fn are_alone(&self, machine: &Machine, on: PcpuId, sibling: VcpuId) -> bool {
        let pcpu = machine.vcpus[sibling].pcpu;
        pcpu != on && self.queues[on].tasks() == 1 && self.queues[pcpu].tasks() == 1
    }

    pub(super) fn sibling_to_yield_to(
        &self,
        machine: &mut Machine,
        vcpu: VcpuId,
        on: PcpuId,
    ) -> Option<VcpuId> {
        if let Some(named) = machine.named_target() {
            return named;
        }
        let vm = self.vm_of[vcpu];
        let waits = |machine: &Machine, vcpu| machine.vcpus[vcpu].state == VcpuState::Runnable;
        let receiver = self.interrupts.receiver_of(machine.now_ns, vcpu);
        let receiver = receiver.filter(|&receiver| waits(machine, receiver));
        if receiver.is_some() {
            return receiver;
        }
        let (first, count) = (machine.vms[vm].first_vcpu, machine.vms[vm].vcpus);
        let last = self.last_boosted[vm];
        let are_alone = |machine: &Machine, sibling| self.are_alone(machine, on, sibling);
        let usual = machine.yields_to(vcpu, last, are_alone);
        if usual.is_some() || !self.config.ipi_aware {
            return usual;
        }
        let mut round = (1..=count).map(|step| first.plus((last.since(first) + step) % count));
        round.find(|&sibling| waits(machine, sibling))
    }

    /// Makes a waiting one eligible at each level.
    fn credit(&mut self, pcpu: PcpuId, sibling: VcpuId) {
        let slice_ns = self.config.base_slice_ns;
        let most_ns = (2 * slice_ns).max(self.config.tick_ns);
        let margin_ns = |queued: usize| (slice_ns / MARGIN_PART * queued as u64).min(most_ns);
        let queue = &mut self.queues[pcpu];
        let Some(at) = queue.place_of(self.vm_of[sibling]) else { return };
        let mut level = Some(at);
        while let Some(at) = level {
            if !queue.sums_around(at).are_behind(&queue.groups[at].entity) {
                let queued = queue.queued_in(queue.groups[at].parent).count();
                let others = queue.sums_without(at);
                let entity = &mut queue.groups[at].entity;
                let (zero_ns, lag_ns) = (entity.vruntime_ns, entity.weighted_ns(margin_ns(queued)));
                entity.place(&others, zero_ns, lag_ns);
            }
            level = queue.around(at);
        }
        let group = &mut queue.groups[at];
        let Some(place) = group.place_of(sibling) else { return };
        if !group.sums().are_behind(&group.tasks[place].entity) {
            let others = group.tasks.iter().filter(|task| task.vcpu != sibling).map(|task| &task.entity);
            let (others, queued) = (Sums::of(others), group.tasks.len());
            let entity = &mut group.tasks[place].entity;
            let (zero_ns, lag_ns) = (entity.vruntime_ns, entity.weighted_ns(margin_ns(queued)));
            entity.place(&others, zero_ns, lag_ns);
        }
    }
}

impl Queue {
    /// The slice of the running vCPU protects it no longer (`cancel_protect_slice`), unless that was so a
    /// moment ago.
    fn end_protection(&mut self, now_ns: u64) {
        if self.forced_ns.is_some_and(|forced_ns| now_ns - forced_ns < FORCED_INTERVAL_NS) {
            return;
        }
        self.forced_ns = Some(now_ns);
        let (vm, running) = (self.running_vm, self.running);
        let Some(at) = self.place_of(vm) else { return };
        self.each_level(at, |group| group.entity.protected_until_ns = group.entity.vruntime_ns);
        let group = &mut self.groups[at];
        if let Some(task) = group.tasks.iter_mut().find(|task| task.vcpu == running) {
            task.entity.protected_until_ns = task.entity.vruntime_ns;
        }
    }
}
