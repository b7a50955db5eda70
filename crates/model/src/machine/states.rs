//! How a vCPU changes its state, with all that is counted by states.

use super::{HostVcpu, Machine, VcpuState};
use crate::ids::VcpuId;
use microslice_policy::{self as policy, CriticalBy, GuestClass};

impl Machine {
    /// A running vCPU's pCPU was taken away, or it gave it up itself: it waits.
    #[inline]
    pub fn stops(&mut self, vcpu: VcpuId, yielded: bool) {
        let host = &mut self.vcpus[vcpu];
        debug_assert_eq!(host.state, VcpuState::Running);
        (host.state, host.preempted, host.yielded) = (VcpuState::Runnable, !yielded, yielded);
        let is_boostable = host.is_boostable(self.boosts_woken);
        self.boostable.set(vcpu, is_boostable);
        if self.watched && !host.requested {
            let vm = host.vm;
            let waiting = &mut self.vms[vm].waiting;
            let before = waiting.helped();
            waiting.answering -= u32::from(host.owes_answer);
            waiting.add(host.kind().number());
            self.break_promises(vm, before);
        }
    }

    /// A waiting vCPU has got a pCPU.
    #[inline]
    pub fn runs(&mut self, vcpu: VcpuId) {
        self.waits_in_exit(vcpu, false);
        let host = &mut self.vcpus[vcpu];
        debug_assert_eq!(host.state, VcpuState::Runnable);
        let kind = host.kind();
        (host.state, host.preempted, host.yielded) = (VcpuState::Running, false, false);
        self.boostable.set(vcpu, false);
        if self.watched && !host.requested {
            let vm = host.vm;
            let waiting = &mut self.vms[vm].waiting;
            let before = waiting.helped();
            waiting.remove(kind.number());
            waiting.answering += u32::from(kind.owes_answer);
            self.break_promises(vm, before);
        }
    }

    #[inline]
    pub fn blocks(&mut self, vcpu: VcpuId) {
        self.change(vcpu, |host| host.state = VcpuState::Blocked);
    }

    /// A blocked vCPU waits for a pCPU.
    #[inline]
    pub fn wakes(&mut self, vcpu: VcpuId) {
        self.change(vcpu, |host| {
            (host.state, host.preempted, host.yielded) = (VcpuState::Runnable, false, false);
        });
    }

    /// A scheduler moves a vCPU to where it runs soon, or back.
    pub fn set_requested(&mut self, vcpu: VcpuId, requested: bool) {
        self.change(vcpu, |host| host.requested = requested);
    }

    /// A call-function interrupt comes, or the last one has been handled.
    #[inline]
    pub fn set_owes_answer(&mut self, vcpu: VcpuId, owes: bool) {
        if self.vcpus[vcpu].owes_answer != owes {
            self.change(vcpu, |host| host.owes_answer = owes);
        }
    }

    /// What the host could read of a vCPU's word, and see of its code: the class by which it knows it.
    #[inline]
    pub fn class_by_count(&mut self, vcpu: VcpuId, count: u32, class: GuestClass) -> GuestClass {
        let host = &mut self.vcpus[vcpu];
        (host.preempt_count, host.held) = (count, policy::held_by_count(count, class));
        policy::class_by_held(self.critical_by, host.held, class)
    }

    /// Whether the host reads words at all.
    #[inline]
    pub fn reads_counters(&self) -> bool {
        self.critical_by != CriticalBy::Symbols
    }

    /// What the host could see of a vCPU now.
    #[inline]
    pub fn set_class(&mut self, vcpu: VcpuId, class: GuestClass) {
        let host = &mut self.vcpus[vcpu];
        if host.state == VcpuState::Runnable {
            self.change(vcpu, |host| host.class = class);
        } else {
            host.class = class;
        }
    }

    #[inline]
    fn change(&mut self, vcpu: VcpuId, change: impl FnOnce(&mut HostVcpu)) {
        let host = &mut self.vcpus[vcpu];
        let vm = host.vm;
        if !self.watched {
            change(host);
            self.boostable.set(vcpu, host.is_boostable(self.boosts_woken));
            return;
        }
        let waiting = &mut self.vms[vm].waiting;
        let before = waiting.helped();
        waiting.leave(host);
        change(host);
        waiting.enter(host);
        self.boostable.set(vcpu, host.is_boostable(self.boosts_woken));
        self.break_promises(vm, before);
    }
}
