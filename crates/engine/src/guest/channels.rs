//! Queues between VMs and tasks of the host: virtqueues, and what they connect.
//!
//! Problem.   A packet for a VM, and a request to its disk, pass a thread of the host that needs a pCPU, too.
//! Mechanism. A sender that finds somebody waiting notifies it. Of a guest that is an exit
//!            (`ioeventfd_write`, virt/kvm/eventfd.c). A guest's thread is woken by the handler of a device
//!            interrupt (`irqfd_wakeup`), a task at once. Who doesn't wait isn't notified
//!            (VIRTIO_F_EVENT_IDX).
//! Limits.    Items have no size. An interrupt goes to the vCPU of the thread that waits. Threads that wait
//!            here are no part of a deadlock that is found.

use crate::guest::WaitsFor;
use crate::simulation::Simulation;
use microslice_model::ids::{QueueId, ThreadId, VcpuId};

impl Simulation<'_> {
    /// Puts an item into a channel, or waits for room. Returns whether the thread waits.
    pub(crate) fn send_out(&mut self, vcpu: VcpuId, thread: ThreadId, channel: QueueId) -> bool {
        if let Some(vm) = self.queues[channel].nic {
            return self.send_into_ring(vcpu, thread, channel, vm);
        }
        let state = &mut self.queues[channel];
        if let Some(receiver) = state.receivers.pop_front() {
            self.notify(vcpu, receiver);
        } else if state.items < state.capacity {
            state.items += 1;
        } else {
            state.senders.push_back(thread);
            self.block_thread(vcpu, thread, WaitsFor::Network);
            return true;
        }
        false
    }

    /// Takes an item from a channel, or waits for one. Returns whether the thread waits.
    pub(crate) fn receive_in(&mut self, vcpu: VcpuId, thread: ThreadId, channel: QueueId) -> bool {
        let state = &mut self.queues[channel];
        if let Some(sender) = state.senders.pop_front() {
            // The waiting sender's item takes the place of the one received.
            self.notify(vcpu, sender);
        } else if state.items > 0 {
            state.items -= 1;
        } else {
            state.receivers.push_back(thread);
            self.block_thread(vcpu, thread, WaitsFor::Network);
            return true;
        }
        false
    }

    /// An item comes from outside of the host. Whoever sends it has seen that there is room.
    pub(crate) fn come_from_outside(&mut self, channel: QueueId) {
        match self.queues[channel].receivers.pop_front() {
            Some(receiver) => self.timeline.set(self.slots.thread(receiver), self.machine.now_ns),
            None => self.queues[channel].items += 1,
        }
    }

    /// A thread somewhere else is told that it may go on.
    pub(crate) fn notify(&mut self, vcpu: VcpuId, thread: ThreadId) {
        let host = &self.machine.vcpus[vcpu];
        let (vm, pcpu) = (host.vm, host.pcpu);
        if !self.vms[vm].are_tasks {
            self.guest[vcpu].overhead_ns += self.costs.exit_ns;
            self.machine.leaves_guest(pcpu);
        }
        self.timeline.set(self.slots.thread(thread), self.machine.now_ns);
    }
}
