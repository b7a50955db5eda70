//! How time passes on a running vCPU, and when the next thing happens there: the hottest code of all.

use crate::guest::{Act, GuestVcpu};
use crate::prefetch::prefetch;
use crate::simulation::Simulation;
use crate::timeline::Soon;
use microslice_model::events::TraceEvent;
use microslice_model::ids::{PcpuId, VcpuId};
use microslice_model::machine::VcpuState;
use std::hint::select_unpredictable;

impl Simulation<'_> {
    /// Lets guest time pass on a running vCPU until now.
    #[inline]
    pub(crate) fn sync(&mut self, vcpu: VcpuId) {
        let guest = &self.guest[vcpu];
        if guest.synced_ns == self.machine.now_ns {
            // What the vCPU does can't be predicted; that its own event has just synced it can.
        } else if guest.frame().act == Act::Timed {
            self.sync_timed(vcpu);
        } else {
            self.sync_waiting(vcpu);
        }
    }

    /// What of the time since the last call is left to the guest once the host's work is done.
    #[inline(always)]
    fn guest_time(&mut self, vcpu: VcpuId) -> u64 {
        let now_ns = self.machine.now_ns;
        let guest = &mut self.guest[vcpu];
        let passed_ns = now_ns - guest.synced_ns;
        guest.synced_ns = now_ns;
        let overhead_ns = passed_ns.min(guest.overhead_ns);
        guest.overhead_ns -= overhead_ns;
        self.measured.host_worked(overhead_ns);
        passed_ns - overhead_ns
    }

    /// Returns whether the step is over.
    #[inline(always)]
    pub(crate) fn sync_timed(&mut self, vcpu: VcpuId) -> bool {
        let elapsed_ns = self.guest_time(vcpu);
        let guest = &mut self.guest[vcpu];
        let done_ns = self.smt.progress_ns(elapsed_ns, guest.speed());
        let refill_ns = guest.refill_ns;
        let frame = guest.frame_mut();
        // Cold caches: half speed in user mode until the refill is paid. Arithmetic in place of branches,
        // because whether there is something to pay can't be predicted.
        let slow_ns = frame.slowed_ns(refill_ns);
        let progress_ns = (done_ns / 2).max(done_ns.saturating_sub(slow_ns));
        frame.left_ns = frame.left_ns.saturating_sub(progress_ns);
        let left_ns = frame.left_ns;
        guest.refill_ns = refill_ns - (done_ns - progress_ns);
        self.measured.guest_ran(elapsed_ns);
        (guest.overhead_ns == 0) & (left_ns == 0)
    }

    #[inline(always)]
    pub(crate) fn sync_waiting(&mut self, vcpu: VcpuId) {
        let elapsed_ns = self.guest_time(vcpu);
        if elapsed_ns == 0 {
        } else if self.guest[vcpu].frame().spins() {
            self.spin(vcpu, elapsed_ns);
        } else if self.halt_polling.polls(vcpu) {
            self.measured.host_worked(elapsed_ns);
        } else {
            self.measured.guest_ran(elapsed_ns);
        }
    }

    /// Spinning: windows and exits alternate.
    #[inline(always)]
    fn spin(&mut self, vcpu: VcpuId, elapsed_ns: u64) {
        let guest = &mut self.guest[vcpu];
        let (mut exits, mut exits_ns) = (0, 0);
        guest.pv_spin_left_ns = guest.pv_spin_left_ns.saturating_sub(elapsed_ns);
        if self.pause_loops.enabled {
            let windows = &mut self.machine.pause_windows;
            let passed = if windows.grow() {
                let window_ns = windows.of(vcpu);
                let passed =
                    self.pause_loops.pass_growing(windows, window_ns, guest.ple_phase_ns, elapsed_ns);
                windows.set(vcpu, passed.window_ns);
                passed
            } else {
                self.pause_loops.pass(guest.ple_phase_ns, elapsed_ns)
            };
            guest.ple_phase_ns = passed.phase_ns;
            (exits, exits_ns) = (passed.exits, passed.exits_ns);
            self.measured.count_exits(exits);
            // One that happens now is asked about, unless its answer was promised; earlier ones weren't.
            let is_now = (exits > 0) & (passed.phase_ns == passed.window_ns);
            let asked = u64::from(is_now & (guest.ple_batch_until_ns <= self.machine.now_ns));
            if exits > asked {
                self.note_unasked(vcpu, exits - asked);
            }
            if self.machine.tracing && exits > 0 {
                self.machine.emit(TraceEvent::PauseLoopExits { vcpu, count: exits });
            }
        }
        let guest = &mut self.guest[vcpu];
        guest.spins.spin_ns += elapsed_ns - exits_ns;
        if guest.frame().act == Act::SpinAcks {
            self.measured.spun_for_shootdown(self.machine.vcpus[vcpu].vm, elapsed_ns, exits);
        } else {
            guest.spins.lock_exits += exits;
        }
        self.measured.host_worked(exits_ns);
        self.measured.guest_ran(elapsed_ns - exits_ns);
    }

    /// So many pause-loop exits were answered as promised.
    #[cold]
    fn note_unasked(&mut self, vcpu: VcpuId, exits: u64) {
        let class = self.classes[self.guest[vcpu].frame().symbol as usize];
        self.scheduler.not_asked(class, exits);
    }

    /// Brings those up to now that were promised an answer, though it may hold no longer, so that all their
    /// exits are counted.
    pub(crate) fn sync_promised(&mut self) {
        for pcpu in self.machine.pcpus.ids() {
            if let Some(vcpu) = self.machine.current(pcpu)
                && self.guest[vcpu].ple_batch_until_ns > self.guest[vcpu].synced_ns
            {
                self.sync(vcpu);
            }
        }
    }

    /// Sets the time of a pCPU's next event. Its vCPU is synced.
    pub(crate) fn arm(&mut self, pcpu: PcpuId) {
        let vcpu = self.machine.pcpus[pcpu].current;
        if vcpu == VcpuId::NONE {
            return self.timeline.cancel(pcpu.number());
        }
        // What a vCPU does that has just been switched to can't be predicted: all its times are calculated.
        let guest = &self.guest[vcpu];
        let (act, start_ns) = (guest.frame().act, self.machine.now_ns + guest.overhead_ns);
        let halt_ns = start_ns.saturating_add(guest.pv_spin_left_ns);
        let halt_ns = select_unpredictable(act == Act::SpinLock, halt_ns, u64::MAX);
        let spin_ns = self.next_exit(vcpu, guest, start_ns).min(halt_ns);
        let other_ns = select_unpredictable(guest.frame().spins(), spin_ns, u64::MAX);
        let next_ns = select_unpredictable(act == Act::Timed, self.step_end(guest, start_ns), other_ns);
        self.arm_at(pcpu, vcpu, next_ns);
    }

    /// The same of a vCPU that most likely goes on with what it did.
    #[inline(always)]
    pub(crate) fn arm_again(&mut self, pcpu: PcpuId) {
        let vcpu = self.machine.pcpus[pcpu].current;
        if vcpu == VcpuId::NONE {
            return self.timeline.cancel(pcpu.number());
        }
        let guest = &self.guest[vcpu];
        let start_ns = self.machine.now_ns + guest.overhead_ns;
        let next_ns = match guest.frame().act {
            Act::Timed => self.step_end(guest, start_ns),
            Act::SpinLock => {
                self.next_exit(vcpu, guest, start_ns).min(start_ns.saturating_add(guest.pv_spin_left_ns))
            }
            Act::SpinAcks => self.next_exit(vcpu, guest, start_ns),
            _ => u64::MAX,
        };
        self.arm_at(pcpu, vcpu, next_ns);
    }

    /// `next_ns`: when what the vCPU does is over, or is looked at.
    #[inline(always)]
    fn arm_at(&mut self, pcpu: PcpuId, vcpu: VcpuId, next_ns: u64) {
        let now_ns = self.machine.now_ns;
        let guest = &self.guest[vcpu];
        let tick_ns = guest.next_tick_ns.max(now_ns);
        let slice_end_ns = self.machine.pcpus[pcpu].slice_end_ns.max(now_ns);
        let (timed, spins) = (guest.frame().act == Act::Timed, guest.frame().spins());
        if let Some(until_ns) = self.halt_polling.until_ns(vcpu) {
            self.set_next(pcpu, until_ns.min(slice_end_ns), false);
            return self.note_spinning(pcpu, true);
        }
        self.set_next(pcpu, next_ns.min(tick_ns).min(slice_end_ns), timed);
        self.note_spinning(pcpu, spins);
    }

    #[inline(never)]
    fn set_next(&mut self, pcpu: PcpuId, time_ns: u64, timed: bool) {
        let soon = self.timeline.set_pcpu(pcpu.number(), time_ns, timed);
        self.prefetch(soon);
    }

    /// Two steps for a pCPU whose turn comes, because where its thread lies is only known by its vCPU.
    #[inline(always)]
    fn prefetch(&self, soon: Soon) {
        if soon.next == u32::MAX {
            return;
        }
        let pcpus = &self.machine.pcpus;
        if let Some(host) = pcpus.get(PcpuId::new(soon.later))
            && let Some(guest) = self.guest.get(host.current)
        {
            prefetch(guest);
            prefetch(&guest.spins);
        }
        if let Some(host) = pcpus.get(PcpuId::new(soon.next))
            && let Some(guest) = self.guest.get(host.current)
            && let Some(thread) = self.threads.get(guest.thread)
        {
            prefetch(thread);
        }
    }

    /// When a timed step is over.
    #[inline(always)]
    fn step_end(&self, guest: &GuestVcpu, start_ns: u64) -> u64 {
        let frame = guest.frame();
        let left_ns = frame.left_ns + frame.slowed_ns(guest.refill_ns);
        start_ns + self.smt.time_ns(left_ns, guest.speed())
    }

    /// Re-arms a vCPU's pCPU after its frame was changed from outside. The vCPU was synced before the change.
    pub(crate) fn retime(&mut self, vcpu: VcpuId) {
        if self.machine.vcpus[vcpu].state == VcpuState::Running {
            self.arm(self.machine.vcpus[vcpu].pcpu);
        }
    }

    /// `vcpu` gets on this pCPU: it isn't synced yet.
    pub(crate) fn set_speed(&mut self, vcpu: VcpuId, pcpu: PcpuId) {
        if let Some(siblings) = self.smt.occupy(pcpu) {
            self.guest[vcpu].set_siblings(siblings);
        }
    }

    /// What this pCPU does next is known.
    #[inline(always)]
    pub(crate) fn note_spinning(&mut self, pcpu: PcpuId, spins: bool) {
        if self.smt.note_spinning(pcpu, spins) {
            self.change_siblings_speed(pcpu);
        }
    }

    /// This pCPU has become idle or busy, or begins or ends to spin: its siblings' speeds change.
    #[inline(never)]
    pub(crate) fn change_siblings_speed(&mut self, pcpu: PcpuId) {
        if !self.smt.note_idle(pcpu, self.machine.is_idle(pcpu)) {
            return;
        }
        if let Some(sibling) = self.smt.only_sibling(pcpu) {
            return self.change_speed(sibling);
        }
        for thread in self.smt.threads_of_core(pcpu).filter(|&thread| thread != pcpu) {
            self.change_speed(thread);
        }
    }

    #[inline]
    fn change_speed(&mut self, pcpu: PcpuId) {
        let Some(vcpu) = self.machine.pcpus.get(pcpu).map(|host| host.current) else { return };
        if vcpu == VcpuId::NONE {
            return;
        }
        let siblings = self.smt.siblings_do(pcpu);
        let guest = &mut self.guest[vcpu];
        let before = guest.siblings();
        // Otherwise its speed matters when it works again.
        if (siblings == before) | (guest.frame().act != Act::Timed) {
            return guest.set_siblings(siblings);
        }
        self.sync_timed(vcpu);
        self.guest[vcpu].set_siblings(siblings);
        // A vCPU that gets slower finds at its event that the step isn't over yet.
        if siblings > before {
            self.arm(pcpu);
        }
    }
}
