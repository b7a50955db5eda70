//! KVM's halt polling: a vCPU that halts keeps its pCPU for a while, and looks for what would end the halt.
//!
//! Problem.   A switch away and back costs more than many halts last.
//! Mechanism. The vCPU polls for its `halt_poll_ns`. A halt that lasted longer, but no longer than the
//!            host's `halt_poll_ns`, doubles it, from 10 us on. A longer halt halves it, down to 0 below
//!            10 us. It stops polling when another task is in the pCPU's runqueue (`kvm_vcpu_halt`,
//!            `kvm_vcpu_can_poll`, `grow_halt_poll_ns`, `shrink_halt_poll_ns` in `virt/kvm/kvm_main.c`, Linux
//!            6.12).
//! Limits.    The guest's own `haltpoll` governor, which turns it off, isn't modelled.

use crate::simulation::Simulation;
use microslice_model::config::KvmConfig;
use microslice_model::events::StopReason;
use microslice_model::ids::{IdVec, PcpuId, VcpuId};
use microslice_model::machine::VcpuState;
use microslice_policy::YieldCause;

/// `halt_poll_ns_grow`, `halt_poll_ns_grow_start` and `halt_poll_ns_shrink`, at their defaults.
const GROW: u64 = 2;
const GROW_START_NS: u64 = 10_000;
const SHRINK: u64 = 2;

#[derive(Clone, Copy)]
struct Halt {
    /// `vcpu->halt_poll_ns`.
    poll_ns: u64,
    since_ns: u64,
    /// Why it stops when it has polled in vain; `None`: it doesn't poll.
    polls: Option<StopReason>,
}

impl Halt {
    const NONE: Self = Self { poll_ns: 0, since_ns: 0, polls: None };

    /// The vCPU runs again after a halt of that length.
    fn lasted(&mut self, halt_ns: u64, max_ns: u64) {
        if halt_ns <= self.poll_ns {
        } else if self.poll_ns > 0 && halt_ns > max_ns {
            let shrunk_ns = self.poll_ns / SHRINK;
            self.poll_ns = if shrunk_ns < GROW_START_NS { 0 } else { shrunk_ns };
        } else if self.poll_ns < max_ns && halt_ns < max_ns {
            // What is beyond the most is cut at the next halt.
            self.poll_ns = (self.poll_ns * GROW).max(GROW_START_NS).min(max_ns);
        }
    }
}

pub(crate) struct HaltPolling {
    /// The host's `halt_poll_ns`; 0: nobody polls.
    max_ns: u64,
    halts: IdVec<VcpuId, Halt>,
}

impl HaltPolling {
    pub fn new(kvm: Option<&KvmConfig>, vcpus: usize) -> Self {
        let max_ns = kvm.map_or(0, |kvm| kvm.halt_poll_ns);
        Self { max_ns, halts: IdVec::of(Halt::NONE, if max_ns > 0 { vcpus } else { 0 }) }
    }

    /// Returns until when a vCPU polls, if it does.
    #[inline]
    pub fn until_ns(&self, vcpu: VcpuId) -> Option<u64> {
        if self.max_ns == 0 {
            return None;
        }
        let halt = &self.halts[vcpu];
        halt.polls.map(|_| halt.since_ns + halt.poll_ns)
    }

    #[inline]
    pub fn polls(&self, vcpu: VcpuId) -> bool {
        self.max_ns > 0 && self.halts[vcpu].polls.is_some()
    }

    /// A vCPU has been woken from its halt, and runs again.
    pub fn ran_again(&mut self, now_ns: u64, vcpu: VcpuId) {
        if self.max_ns > 0 {
            let halt = &mut self.halts[vcpu];
            halt.lasted(now_ns - halt.since_ns, self.max_ns);
        }
    }
}

impl Simulation<'_> {
    /// The vCPU, which runs there, halts: it polls first, if it may.
    pub(crate) fn begins_to_poll(&mut self, vcpu: VcpuId, pcpu: PcpuId, reason: StopReason) -> bool {
        if self.halt_polling.max_ns == 0 || self.vms[self.machine.vcpus[vcpu].vm].are_tasks {
            return false;
        }
        let may_poll = !self.machine.wants_schedule(pcpu) && self.is_single_task(pcpu);
        let halt = &mut self.halt_polling.halts[vcpu];
        halt.since_ns = self.machine.now_ns;
        halt.polls = Some(reason).filter(|_| may_poll && halt.poll_ns > 0);
        halt.polls.is_some()
    }

    /// `single_task_running()`: nobody waits in this pCPU's runqueue, whosever else's turn it may be.
    fn is_single_task(&self, pcpu: PcpuId) -> bool {
        !self.machine.vcpus.iter().any(|host| host.state == VcpuState::Runnable && host.pcpu == pcpu)
    }

    /// If the vCPU that runs there polls, and another waits in the pCPU's runqueue or its time is over, it
    /// gives up.
    pub(crate) fn poll(&mut self, pcpu: PcpuId) {
        let Some(vcpu) = self.machine.current(pcpu) else { return };
        let Some(until_ns) = self.halt_polling.until_ns(vcpu) else { return };
        self.sync(vcpu);
        let is_over = until_ns <= self.machine.now_ns
            || self.machine.pcpus[pcpu].slice_end_ns <= self.machine.now_ns
            || !self.is_single_task(pcpu);
        if is_over {
            self.polled_in_vain(vcpu, pcpu);
            self.machine.request_schedule(pcpu);
        }
    }

    /// It has polled for nothing, and leaves its pCPU, which is about to choose.
    pub(crate) fn polled_in_vain(&mut self, vcpu: VcpuId, pcpu: PcpuId) {
        if self.halt_polling.max_ns > 0
            && let Some(reason) = self.halt_polling.halts[vcpu].polls.take()
        {
            self.machine.blocks(vcpu);
            self.why[pcpu] = reason;
        }
    }

    /// What ends its halt has come while it polled: an entry, and it goes on.
    pub(crate) fn polled_with_success(&mut self, vcpu: VcpuId) {
        self.sync(vcpu);
        self.halt_polling.halts[vcpu].polls = None;
        self.guest[vcpu].overhead_ns += self.costs.exit_ns;
    }

    /// The vCPU leaves its pCPU of its own will and waits for an event.
    pub(crate) fn block(&mut self, vcpu: VcpuId, reason: StopReason) {
        let host = &mut self.machine.vcpus[vcpu];
        if host.state != VcpuState::Running {
            // The vCPU that it has just woken took its pCPU. It comes here again when it runs.
            return;
        }
        let pcpu = host.pcpu;
        if !self.vms[host.vm].are_tasks {
            self.measured.count_halt(host.vm);
        }
        self.note_position(vcpu);
        self.scheduler.yields(&mut self.machine, vcpu, pcpu, YieldCause::Hlt);
        if !self.begins_to_poll(vcpu, pcpu, reason) {
            self.machine.blocks(vcpu);
            self.request_stop(pcpu, reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;

    #[test]
    fn polling_grows_with_short_halts_and_halves_with_long_ones() {
        let mut halt = Halt::NONE;
        let mut after = |halt_ns| {
            halt.lasted(halt_ns, 200 * US);
            halt.poll_ns / US
        };
        let halts_us = [300, 50, 50, 50, 50, 50, 150, 150, 150, 250, 200, 5_000, 5_000, 5_000, 5_000];
        let polls_us = [0, 10, 20, 40, 80, 80, 160, 160, 160, 80, 80, 40, 20, 10, 0];
        assert_eq!(halts_us.map(|halt_us| after(halt_us * US)), polls_us);
    }
}
