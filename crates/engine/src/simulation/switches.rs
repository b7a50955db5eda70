//! vCPUs get on pCPUs and leave them: choices, stops, starts, and what caches cost; halts and wakes.

use super::Simulation;
use crate::guest::Act;
use microslice_model::events::{StopReason, TraceEvent};
use microslice_model::ids::{PcpuId, VcpuId};
use microslice_model::machine::{Distance, VcpuState};
use microslice_model::scheduler::ChoiceCosts;

impl Simulation<'_> {
    pub(super) fn schedule(&mut self, pcpu: PcpuId) {
        let current = self.machine.pcpus[pcpu].current;
        if current != VcpuId::NONE && self.halt_polling.polls(current) {
            self.sync(current);
            self.polled_in_vain(current, pcpu);
        }
        let mut reason = std::mem::replace(&mut self.why[pcpu], StopReason::Preempted);
        if current != VcpuId::NONE && self.is_throttled(current, pcpu) {
            reason = StopReason::Throttled;
        }
        let stopped = (current != VcpuId::NONE).then_some((current, reason));
        if current != VcpuId::NONE {
            self.sync(current);
            if self.machine.watched {
                self.note_position(current);
            }
        }
        let pick = self.scheduler.schedule(&mut self.machine, pcpu, stopped);
        let locks_ns = if self.machine.choices_cost { self.choice_costs_ns(pcpu) } else { 0 };
        if let Some(pick) = pick {
            self.observers.picked(pick.vcpu, pcpu, self.machine.vcpus[pick.vcpu].state);
            self.machine.pcpus[pcpu].slice_end_ns = pick.slice_end_ns;
            if pick.vcpu == current {
                let looks_ns = u64::from(std::mem::take(&mut self.machine.looks)) * self.costs.exit_ns;
                self.guest[current].ple_batch_until_ns = 0;
                self.guest[current].overhead_ns += locks_ns + looks_ns;
                self.limit_turn(current, pcpu);
                return self.arm(pcpu);
            }
        }
        if current != VcpuId::NONE {
            if !self.machine.watched {
                self.note_position(current);
            }
            self.stop(current, pcpu, reason);
        } else {
            let now_ns = self.machine.now_ns;
            let host = &mut self.machine.pcpu_times[pcpu];
            host.idle_ns += now_ns - host.since_ns;
            host.since_ns = now_ns;
        }
        match pick {
            Some(pick) => self.start(pick.vcpu, pcpu, locks_ns),
            None => {
                self.machine.pcpus[pcpu].current = VcpuId::NONE;
                self.timeline.cancel(pcpu.number());
            }
        }
        if pick.is_some() != (current != VcpuId::NONE) {
            self.change_siblings_speed(pcpu);
        }
        if self.is_modern && current != VcpuId::NONE {
            self.spinners_see_preempted(current);
        }
        if self.machine.reads_counters() && current != VcpuId::NONE {
            self.tell_stop(current);
        }
    }

    /// A vCPU was stopped, and may be asked for because of what it or a sibling holds, or waits for.
    #[cold]
    fn tell_stop(&mut self, vcpu: VcpuId) {
        if self.machine.vcpus[vcpu].state == VcpuState::Runnable {
            self.note_counts(self.machine.vcpus[vcpu].vm);
            self.scheduler.was_stopped(&mut self.machine, vcpu);
        }
    }

    /// For how long a pCPU had, or waited for, locks of queues since it chose last, and what boosts have cost
    /// it.
    #[cold]
    fn choice_costs_ns(&mut self, pcpu: PcpuId) -> u64 {
        let ChoiceCosts { locks, boosts_ns } = self.scheduler.take_choice_costs(pcpu);
        self.measured.locked_queues(locks);
        let owed_ns = std::mem::take(&mut self.machine.pcpu_times[pcpu].owed_ns);
        locks.held_ns + locks.waited_ns + boosts_ns + owed_ns
    }

    fn stop(&mut self, vcpu: VcpuId, pcpu: PcpuId, reason: StopReason) {
        let now_ns = self.machine.now_ns;
        let host = &mut self.machine.vcpus[vcpu];
        let class = host.class;
        host.turns.run_ns += now_ns - host.since_ns.max(self.measured.since_ns());
        host.turns.switches += 1;
        host.since_ns = now_ns;
        if host.state == VcpuState::Running {
            let yielded = matches!(reason, StopReason::Ple | StopReason::IpiWait);
            let vm = host.vm;
            if !yielded {
                self.measured.count_preemption(vm, class);
                if let Some(lock) = self.held_spinlock(vcpu) {
                    self.measured.count_holder_preemption(vm, self.locks[lock].statistics);
                }
                self.count_preempted_user(vcpu);
            }
            self.machine.stops(vcpu, yielded);
            if reason == StopReason::Ple {
                self.machine.waits_in_exit(vcpu, true);
            }
        }
        self.end_limited_turn(vcpu, pcpu);
        self.machine.pcpus[pcpu].current = VcpuId::NONE;
        let on = &mut self.machine.pcpu_times[pcpu];
        on.busy_ns += now_ns - on.since_ns;
        on.since_ns = now_ns;
        let warmth = &mut self.machine.vcpus[vcpu].warmth;
        (warmth.left_pcpu, warmth.left_busy_ns) = (pcpu, on.busy_ns);
        if self.machine.tracing {
            let symbol = self.guest[vcpu].frame().symbol;
            let vm = self.machine.vcpus[vcpu].vm;
            let text = &self.texts[self.vms[vm].text];
            let ip = text.symbols[text.index(symbol)].address;
            let symbol = self.symbol_number(vm, symbol);
            self.machine.emit(TraceEvent::Stopping { vcpu, pcpu, reason, ip, symbol });
            if self.machine.vcpus[vcpu].state == VcpuState::Blocked {
                self.machine.emit(TraceEvent::Blocked { vcpu });
            }
        }
    }

    /// `locks_ns`: what the choice has cost beside a switch.
    fn start(&mut self, vcpu: VcpuId, pcpu: PcpuId, locks_ns: u64) {
        let now_ns = self.machine.now_ns;
        let refill_ns = self.refill_debt(vcpu, pcpu);
        let host = &mut self.machine.vcpus[vcpu];
        self.measured.refilled(host.vm, refill_ns - self.guest[vcpu].refill_ns.min(refill_ns));
        let waited_ns = now_ns - host.since_ns.max(self.measured.since_ns()).min(now_ns);
        host.turns.wait_ns += waited_ns;
        self.measured.got_pcpu_after(host.vm, now_ns, waited_ns);
        let bound_ns = self.machine.vms[host.vm].max_wait_ns;
        if bound_ns > 0 && waited_ns > bound_ns {
            self.measured.waited_beyond_bound(host.vm);
        }
        host.since_ns = now_ns;
        host.pcpu = pcpu;
        let was_woken = !host.preempted && !host.yielded && !self.cpu_limits.comes_back(vcpu);
        let halt_ns = if was_woken && !self.vms[host.vm].are_tasks { self.costs.halt_ns } else { 0 };
        if was_woken {
            self.halt_polling.ran_again(now_ns, vcpu);
        }
        self.machine.runs(vcpu);
        self.machine.pcpus[pcpu].current = vcpu;
        self.machine.pcpu_times[pcpu].since_ns = now_ns;
        self.set_speed(vcpu, pcpu);
        let guest = &mut self.guest[vcpu];
        guest.synced_ns = now_ns;
        // The exit of a vCPU that halted, or gave its pCPU up by hypercall, is part of the switch that
        // followed.
        guest.overhead_ns = self.costs.context_switch_ns + locks_ns + halt_ns;
        guest.refill_ns = refill_ns;
        guest.ple_phase_ns = 0;
        guest.ple_batch_until_ns = 0;
        self.machine.pause_windows.begin_anew(vcpu);
        if self.machine.tracing {
            // Nobody else may run on a micro pCPU, unless it is lent: the checker sees to it.
            let micro = self.machine.vcpus[vcpu].requested
                || (self.scheduler.is_micro(pcpu) && !self.config.scheduler.lends());
            self.machine.emit(TraceEvent::Running { vcpu, pcpu, micro });
        }
        if self.guest[vcpu].next_tick_ns <= now_ns {
            self.raise_tick(vcpu);
        }
        self.resume(vcpu);
        if self.times_guests {
            self.note_mode(vcpu);
        }
        self.limit_turn(vcpu, pcpu);
        self.arm(pcpu);
    }

    /// What a vCPU owes its caches that gets on a pCPU: what it hadn't paid before, and what they got colder
    /// while it was away. Nothing is colder than cold: that is the most, and what another last-level cache
    /// costs comes on top of it.
    fn refill_debt(&self, vcpu: VcpuId, pcpu: PcpuId) -> u64 {
        let owed_ns = self.guest[vcpu].refill_ns;
        let warmth = &self.machine.vcpus[vcpu].warmth;
        if warmth.left_pcpu == PcpuId::NONE {
            return owed_ns;
        }
        let costs = &self.costs;
        let colder_ns = if warmth.left_pcpu == pcpu {
            let others_ns = self.machine.pcpu_times[pcpu].busy_ns - warmth.left_busy_ns;
            // In no time is at once, but only by others.
            let displace_ns = costs.cache_displace_ns.max(1);
            costs.cache_refill_max_ns * others_ns.min(displace_ns) / displace_ns
        } else {
            costs.cache_refill_max_ns
        };
        let far_ns = match self.machine.distance(pcpu, warmth.left_pcpu) {
            Distance::Cache => 0,
            Distance::Node => costs.llc_migration_ns,
            Distance::Host => costs.llc_migration_ns + costs.node_migration_ns,
        };
        let felt = |cost_ns| cost_ns * u64::from(warmth.sensitivity) / 1000;
        let most_ns = costs.cache_refill_max_ns + felt(far_ns);
        // A vCPU that owes more since it came from afar is excused nothing by being preempted.
        (owed_ns + felt(colder_ns + far_ns)).min(most_ns.max(owed_ns))
    }

    /// A vCPU is on its pCPU again: what changed while it was away?
    fn resume(&mut self, vcpu: VcpuId) {
        match self.guest[vcpu].frame().act {
            Act::Granted => self.take_granted(vcpu),
            Act::SpinLock => self.look_at_lock_again(vcpu),
            _ => {}
        }
        if self.deliver(vcpu) {
            return;
        }
        let guest = &self.guest[vcpu];
        if guest.depth > 0 {
            // Interrupts are off: it was kicked, ahead of its turn or for it.
            if guest.frame().act == Act::HaltLock {
                self.spin_again(vcpu);
            }
            return;
        }
        match guest.frames[0].act {
            Act::HaltLock => self.spin_again(vcpu),
            Act::None => self.continue_frame(vcpu),
            _ => {}
        }
    }

    pub(crate) fn wake_vcpu(&mut self, vcpu: VcpuId) {
        let host = &mut self.machine.vcpus[vcpu];
        if host.state != VcpuState::Blocked {
            let pcpu = host.pcpu;
            if self.halt_polling.polls(vcpu) {
                self.polled_with_success(vcpu);
                self.resume(vcpu);
                self.arm(pcpu);
            }
            return;
        }
        if self.cpu_limits.rests(vcpu) {
            return;
        }
        host.since_ns = self.machine.now_ns;
        self.machine.wakes(vcpu);
        self.machine.emit(TraceEvent::Runnable { vcpu });
        self.scheduler.wake(&mut self.machine, vcpu);
    }
}
