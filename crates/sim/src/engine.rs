//! The engine: the clock, the event loop, and vCPUs getting on and off pCPUs.
//!
//! Each pCPU has one pending event: the earliest of its vCPU's next step, the end of the slice, and the guest's tick.
//! Everything else (the host's ticks, sleeping threads, NICs, host-wide timers) has a slot of its own in the same queue.

use crate::SimError;
use crate::config::{CostModel, PleConfig, SimulationConfig};
use crate::guest::text::Text;
use crate::guest::{Act, Barrier, Frame, GuestVcpu, Lock, Queue, Thread, pending};
use crate::guest::{balance::Balancing, modes::Mode, network::Nic, program::Programs};
use crate::ids::{BarrierId, IdVec, LockId, PcpuId, QueueId, ThreadId, VcpuId, VmId, WorkloadId};
use crate::machine::{Machine, VcpuState};
use crate::measurements::Measurements;
use crate::observers::Observers;
use crate::random::{Random, Samplers};
use crate::report::RunReport;
use crate::scheduler::{Scheduler, YieldAnswer};
use crate::smt::Smt;
use crate::timeline::{Timeline, Turn};
use crate::trace_event::{GuestClass, StopReason, TraceEvent, TraceNames};
use microslice_policy::YieldCause;

const PROGRESS_NS: u64 = 1_000_000;
/// Threads start at random within this time, or sooner if the run is too short for it.
const START_SPREAD_NS: u64 = 60_000_000;
/// Reading a cache line that another pCPU has just written.
pub const CACHE_LINE_NS: u64 = 100;

/// What a guest kernel does with time, from its configuration.
pub struct KernelTimes {
    pub tick_ns: u64,
    pub thread_slice_ns: u64,
    /// Wall time of spinning, exits included, before a paravirtual waiter halts.
    pub pv_spin_ns: u64,
    /// Likewise, before the waiter of a yield lock yields.
    pub yield_spin_ns: u64,
    pub call_function_ns: u64,
    pub reschedule_ns: u64,
    pub tick_handler_ns: u64,
    pub switch_ns: u64,
    pub pv_tlb_flush: bool,
    pub pv_ipi_yield: bool,
    /// For how long who takes a spinlock says that it isn't to be preempted; 0: it says nothing.
    pub preemption_hint_ns: u32,
}

pub struct Vm {
    pub first_vcpu: VcpuId,
    pub vcpus: u32,
    pub text: usize,
    pub kernel: KernelTimes,
    /// Lock of each vCPU's runqueue, the first of them, and of all the VM's locks.
    pub runqueue_lock: LockId,
    pub first_queue: QueueId,
    pub first_barrier: BarrierId,
    /// Ready threads in all queues.
    pub ready_threads: u32,
    pub nic: Option<Nic>,
    /// If its scheduler balances threads, beyond what wakes and idles.
    pub balancing: Option<Balancing>,
    pub first_thread: ThreadId,
    pub threads: u32,
}

impl Vm {
    /// That of the runqueue of one of its vCPUs.
    #[inline]
    pub fn runqueue_lock_of(&self, vcpu: VcpuId) -> LockId {
        self.runqueue_lock.plus(vcpu.since(self.first_vcpu))
    }
}

pub struct Workload {
    pub vm: VmId,
    pub shared_address_space: bool,
    /// The first workload of its process, which stands for the address space.
    pub address_space: WorkloadId,
    pub cache_permille: u32,
    pub units_done: u64,
    /// User-mode work, with all of the steps that were begun: what is left of them is subtracted in the end.
    pub computed_ns: u64,
}

/// Numbers of the timeline's slots.
pub struct Slots {
    /// pCPUs' own slots come first, from 0. The host's ticks have one: they go round the pCPUs (`HostTicks`).
    pub ticks: u32,
    pub threads: u32,
    pub nics: u32,
    pub host_timer: u32,
    pub progress: u32,
    pub warmup: u32,
    pub count: u32,
}

impl Slots {
    pub fn new(pcpus: usize, threads: usize, vms: usize) -> Self {
        let (pcpus, threads, vms) = (pcpus as u32, threads as u32, vms as u32);
        let nics = pcpus + 1 + threads;
        let host_timer = nics + vms;
        Self {
            ticks: pcpus,
            threads: pcpus + 1,
            nics,
            host_timer,
            progress: host_timer + 1,
            warmup: host_timer + 2,
            count: host_timer + 3,
        }
    }

    /// Of a sleeping thread.
    #[inline]
    pub fn thread(&self, thread: ThreadId) -> u32 {
        self.threads + thread.number()
    }

    pub fn nic(&self, vm: VmId) -> u32 {
        self.nics + vm.number()
    }
}

/// Whose tick is the host's next one: each pCPU's comes once a period, spread over it.
pub struct HostTicks {
    pcpus: u32,
    next: u32,
    periods: u64,
}

impl HostTicks {
    pub fn new(pcpus: usize) -> Self {
        Self { pcpus: pcpus as u32, next: 0, periods: 1 }
    }

    fn next_ns(&self, period_ns: u64) -> u64 {
        period_ns * self.periods + period_ns * u64::from(self.next) / u64::from(self.pcpus)
    }

    fn take(&mut self) -> PcpuId {
        let pcpu = PcpuId::new(self.next);
        self.next += 1;
        if self.next == self.pcpus {
            (self.next, self.periods) = (0, self.periods + 1);
        }
        pcpu
    }
}

pub struct Simulation<'a> {
    pub(crate) config: &'a SimulationConfig,
    pub(crate) observers: Observers<'a>,
    pub(crate) names: TraceNames,
    pub(crate) timeline: Timeline,
    pub(crate) slots: Slots,
    pub(crate) host_ticks: HostTicks,
    pub(crate) machine: Machine,
    pub(crate) scheduler: Box<dyn Scheduler>,
    pub(crate) costs: CostModel,
    pub(crate) smt: Smt,
    pub(crate) ple: PleConfig,
    pub(crate) ple_period_ns: u64,
    /// Why each pCPU's vCPU is to be scheduled away, if it is.
    pub(crate) why: IdVec<PcpuId, StopReason>,
    pub(crate) guest: IdVec<VcpuId, GuestVcpu>,
    pub(crate) threads: IdVec<ThreadId, Thread>,
    pub(crate) locks: IdVec<LockId, Lock>,
    pub(crate) queues: IdVec<QueueId, Queue>,
    pub(crate) barriers: IdVec<BarrierId, Barrier>,
    pub(crate) programs: Programs,
    pub(crate) workloads: IdVec<WorkloadId, Workload>,
    pub(crate) vms: IdVec<VmId, Vm>,
    pub(crate) texts: &'static [Text],
    /// Classes of all texts' functions, by number.
    pub(crate) classes: Vec<microslice_policy::GuestClass>,
    pub(crate) samplers: Samplers,
    pub(crate) random: Random,
    /// Of the present event.
    pub(crate) slot: u32,
    /// Who wakes others in the middle of a step of its own, or `NONE`.
    pub(crate) within_step: VcpuId,
    pub(crate) measured: Measurements,
    /// Whether it is measured how long guests hold locks and are unsafe; then of each vCPU.
    pub(crate) times_guests: bool,
    pub(crate) modes: IdVec<VcpuId, Mode>,
}

impl Simulation<'_> {
    pub fn run(&mut self) -> Result<RunReport, SimError> {
        self.observers.begin(&self.names);
        let end_ns = self.config.warmup_ns + self.config.duration_ns;
        self.boot();
        while let Some(Turn { time_ns, slot, hint }) = self.timeline.peek() {
            if time_ns > end_ns {
                break;
            }
            self.machine.now_ns = time_ns;
            self.slot = slot;
            self.measured.count_event();
            if slot < self.slots.ticks {
                self.pcpu_event(PcpuId::new(slot), hint);
            } else {
                self.rare_event(slot)?;
            }
            self.settle();
            if self.machine.tracing {
                self.flush_trace()?;
            }
        }
        self.machine.now_ns = end_ns;
        self.finish_accounts();
        // What the end itself brought, whether it is checked or not.
        if self.machine.tracing {
            self.flush_trace()?;
        }
        self.final_checks()?;
        Ok(self.report())
    }

    fn boot(&mut self) {
        self.timeline.set(self.slots.progress, PROGRESS_NS);
        self.timeline.set(self.slots.warmup, self.config.warmup_ns);
        let first = self.scheduler.timer(&mut self.machine);
        if first != u64::MAX {
            self.timeline.set(self.slots.host_timer, first);
        }
        self.timeline.set(self.slots.ticks, self.host_ticks.next_ns(self.scheduler.tick_ns()));
        for vm in self.vms.ids() {
            self.start_nic(vm);
            let vm = &self.vms[vm];
            for vcpu in vm.first_vcpu.span(vm.vcpus) {
                // Ticks of a guest's vCPUs are spread, as they are by boot order.
                let offset = vm.kernel.tick_ns * u64::from(vcpu.since(vm.first_vcpu)) / u64::from(vm.vcpus);
                self.guest[vcpu].next_tick_ns = vm.kernel.tick_ns + offset;
            }
        }
        // Programs don't start in step: nothing on a real host makes two vCPUs' slices end together.
        // What is measured of a short run without warm-up shall not be its start.
        let spread_ns = START_SPREAD_NS.min(self.config.warmup_ns + self.config.duration_ns / 20).max(1);
        for thread in self.threads.ids() {
            let offset_ns = 1 + u64::from(self.random.below(spread_ns as u32));
            self.timeline.set(self.slots.thread(thread), offset_ns);
        }
        self.settle();
    }

    /// Schedules pCPUs until none asks for it.
    #[inline(always)]
    pub(crate) fn settle(&mut self) {
        if !self.machine.is_settled() {
            self.settle_all();
        }
    }

    /// Out of line: most events ask for nothing.
    #[inline(never)]
    fn settle_all(&mut self) {
        while let Some(pcpu) = self.machine.next_schedule() {
            self.schedule(pcpu);
        }
        while let Some(pcpu) = self.machine.unbatch.pop() {
            let vcpu = self.machine.pcpus[pcpu].current;
            if vcpu != VcpuId::NONE && self.guest[vcpu].ple_batch_until_ns > self.machine.now_ns {
                self.sync(vcpu);
                let guest = &mut self.guest[vcpu];
                guest.ple_batch_until_ns = 0;
                let is_at_exit = guest.frame().spins()
                    && guest.overhead_ns == 0
                    && guest.ple_phase_ns == self.ple.window_ns;
                if is_at_exit && pcpu.number() > self.slot {
                    // Asked one by one it would be now, behind the present event.
                    self.timeline.set(pcpu.number(), self.machine.now_ns);
                } else {
                    self.arm(pcpu);
                }
            }
        }
        if let Some(at_ns) = self.machine.take_timer() {
            self.timeline.set(self.slots.host_timer, at_ns);
        }
    }

    /// "Cold" tells the compiler what to keep out of the way of ordinary events: a twentieth of their time depends on it.
    #[cold]
    fn rare_event(&mut self, slot: u32) -> Result<(), SimError> {
        let now_ns = self.machine.now_ns;
        let slots = &self.slots;
        if slot < slots.threads {
            let pcpu = self.host_ticks.take();
            self.timeline.set(slot, self.host_ticks.next_ns(self.scheduler.tick_ns()));
            if let Some(vcpu) = self.machine.current(pcpu) {
                self.sync(vcpu);
                self.note_position(vcpu);
            }
            self.scheduler.tick(&mut self.machine, pcpu);
        } else if slot < slots.nics {
            self.timeline.cancel(slot);
            self.thread_timer(ThreadId::new(slot - self.slots.threads));
        } else if slot < slots.host_timer {
            self.nic_event(VmId::new(slot - self.slots.nics));
        } else if slot == slots.host_timer {
            self.sync_promised();
            let next = self.scheduler.timer(&mut self.machine);
            if next == u64::MAX { self.timeline.cancel(slot) } else { self.timeline.set(slot, next) }
        } else if slot == slots.progress {
            self.timeline.set(slot, now_ns + PROGRESS_NS);
            // A mistake of the engine may look like one of the workload.
            self.check_now()?;
            self.find_deadlock()?;
            let end_ns = self.config.warmup_ns + self.config.duration_ns;
            if !self.observers.progress(now_ns, end_ns) {
                return Err(SimError::Stopped { time_ns: now_ns });
            }
        } else {
            self.timeline.cancel(slot);
            self.begin_measuring();
        }
        Ok(())
    }

    /// `timed` says what the vCPU does, most likely. That can't be predicted, and a host of many pCPUs has to be fetched
    /// from slow caches before it can be looked up: so it comes with the event, and each of the two has code of its own.
    fn pcpu_event(&mut self, pcpu: PcpuId, timed: bool) {
        let now_ns = self.machine.now_ns;
        let host = &self.machine.pcpus[pcpu];
        let vcpu = host.current;
        debug_assert_ne!(vcpu, VcpuId::NONE);
        let guest = &self.guest[vcpu];
        if (guest.next_tick_ns <= now_ns) | (host.slice_end_ns <= now_ns) {
            return self.any_event(pcpu, vcpu);
        }
        let is_timed = guest.frame().act == Act::Timed;
        if timed {
            if !is_timed {
                return self.any_event(pcpu, vcpu);
            }
            if self.sync_timed(vcpu) {
                self.finish(vcpu);
            }
            self.arm_unless_scheduled(pcpu);
        } else {
            if is_timed {
                return self.any_event(pcpu, vcpu);
            }
            self.sync_waiting(vcpu);
            self.spinning_ends(pcpu, vcpu);
            self.arm_unless_scheduled(pcpu);
        }
        if self.machine.pcpus[pcpu].tells_changes | self.times_guests {
            self.tell_change(pcpu, vcpu);
        }
    }

    /// The guest's tick may be due, or the slice over, or what the vCPU does at an end.
    #[cold]
    #[inline(never)]
    fn any_event(&mut self, pcpu: PcpuId, vcpu: VcpuId) {
        self.sync(vcpu);
        let now_ns = self.machine.now_ns;
        if self.guest[vcpu].next_tick_ns <= now_ns {
            self.raise_tick(vcpu);
        }
        if self.machine.pcpus[pcpu].slice_end_ns <= now_ns {
            return self.request_stop(pcpu, StopReason::SliceExpired);
        }
        match self.guest[vcpu].frame().act {
            Act::Timed => self.step_ends(vcpu),
            _ => self.spinning_ends(pcpu, vcpu),
        }
        self.arm(pcpu);
        if self.machine.pcpus[pcpu].tells_changes | self.times_guests {
            self.tell_change(pcpu, vcpu);
        }
    }

    /// What is about to be scheduled is armed then.
    #[inline(always)]
    fn arm_unless_scheduled(&mut self, pcpu: PcpuId) {
        if !self.machine.wants_schedule(pcpu) {
            self.arm_again(pcpu);
        }
    }

    /// If the present step is over, does what follows it.
    #[inline(always)]
    fn step_ends(&mut self, vcpu: VcpuId) {
        let guest = &self.guest[vcpu];
        if (guest.overhead_ns == 0) & (guest.frame().left_ns == 0) {
            self.finish(vcpu);
        }
    }

    /// If a spinning vCPU is to halt or at a pause-loop exit, does that.
    #[inline(always)]
    fn spinning_ends(&mut self, pcpu: PcpuId, vcpu: VcpuId) {
        let guest = &self.guest[vcpu];
        if guest.overhead_ns > 0 {
            return;
        }
        match guest.frame().act {
            Act::SpinLock if guest.pv_spin_left_ns == 0 => self.spun_enough(vcpu, pcpu),
            Act::SpinLock | Act::SpinAcks
                if guest.ple_phase_ns == self.ple.window_ns
                    && guest.ple_batch_until_ns <= self.machine.now_ns =>
            {
                self.pause_loop_exit(vcpu, pcpu)
            }
            _ => {}
        }
    }

    fn pause_loop_exit(&mut self, vcpu: VcpuId, pcpu: PcpuId) {
        if self.machine.watched {
            self.note_position(vcpu);
        }
        match self.scheduler.yields(&mut self.machine, vcpu, pcpu, YieldCause::Ple) {
            YieldAnswer::Yield => self.request_stop(pcpu, StopReason::Ple),
            YieldAnswer::KeepSpinning { until_ns } => {
                let until_ns = if self.config.fold_exits { until_ns } else { self.machine.now_ns };
                self.guest[vcpu].ple_batch_until_ns = until_ns;
            }
        }
    }

    /// Asks for a scheduling decision because of what the running vCPU does.
    pub(crate) fn request_stop(&mut self, pcpu: PcpuId, why: StopReason) {
        self.why[pcpu] = why;
        self.machine.request_schedule(pcpu);
    }

    pub(crate) fn is_running(&self, vcpu: VcpuId) -> bool {
        self.machine.vcpus[vcpu].state == VcpuState::Running
    }

    /// Tells the host what it could see of a vCPU now: the class of its instruction pointer, and its interrupt flag.
    pub(crate) fn note_position(&mut self, vcpu: VcpuId) {
        let guest = &self.guest[vcpu];
        let host = &mut self.machine.vcpus[vcpu];
        host.interrupts_enabled = guest.depth == 0 && !guest.frames[0].irqs_off;
        host.pending_interrupts = guest.pending & !pending::TICK;
        self.machine.set_class(vcpu, self.classes[guest.frame().symbol as usize]);
        if self.config.delay.is_some() {
            self.note_locks(vcpu);
        }
    }

    fn schedule(&mut self, pcpu: PcpuId) {
        let current = self.machine.pcpus[pcpu].current;
        let reason = std::mem::replace(&mut self.why[pcpu], StopReason::Preempted);
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
    }

    /// For how long a pCPU had, or waited for, locks of queues since it chose last, and what boosts have cost it.
    #[cold]
    fn choice_costs_ns(&mut self, pcpu: PcpuId) -> u64 {
        let times = self.scheduler.take_lock_times(pcpu);
        self.measured.locked_queues(times);
        times.held_ns + times.waited_ns + self.scheduler.take_boost_costs_ns(pcpu)
    }

    fn stop(&mut self, vcpu: VcpuId, pcpu: PcpuId, reason: StopReason) {
        let now_ns = self.machine.now_ns;
        let host = &mut self.machine.vcpus[vcpu];
        let class: GuestClass = host.class.into();
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
            }
            self.machine.stops(vcpu, yielded);
        }
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
        self.measured.got_pcpu_after(waited_ns);
        host.since_ns = now_ns;
        host.pcpu = pcpu;
        let was_woken = !host.preempted && !host.yielded;
        let halt_ns = if was_woken { self.costs.halt_ns } else { 0 };
        self.machine.runs(vcpu);
        self.machine.pcpus[pcpu].current = vcpu;
        self.machine.pcpu_times[pcpu].since_ns = now_ns;
        self.set_speed(vcpu, pcpu);
        let guest = &mut self.guest[vcpu];
        guest.synced_ns = now_ns;
        // The exit of who halted, or gave its pCPU up by hypercall, is part of the switch that followed.
        guest.overhead_ns = self.costs.context_switch_ns + locks_ns + halt_ns;
        guest.refill_ns = refill_ns;
        guest.ple_phase_ns = 0;
        guest.ple_batch_until_ns = 0;
        if self.machine.tracing {
            // Nobody else may run on a micro pCPU, unless it is lent: the checker sees to it.
            let micro = self.machine.vcpus[vcpu].requested
                || (self.scheduler.is_micro(pcpu) && !self.scheduler.lends());
            self.machine.emit(TraceEvent::Running { vcpu, pcpu, micro });
        }
        if self.guest[vcpu].next_tick_ns <= now_ns {
            self.raise_tick(vcpu);
        }
        self.resume(vcpu);
        if self.times_guests {
            self.note_mode(vcpu);
        }
        self.arm(pcpu);
    }

    /// What a vCPU owes its caches that gets on a pCPU: what it hadn't paid before, and what they got colder while it was away.
    /// Nothing is colder than cold: that is the most, and what another last-level cache costs comes on top of it.
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
        let is_far = self.machine.llc_of(pcpu) != self.machine.llc_of(warmth.left_pcpu);
        let far_ns = if is_far { costs.llc_migration_ns } else { 0 };
        let felt = |cost_ns| cost_ns * u64::from(warmth.sensitivity) / 1000;
        let most_ns = costs.cache_refill_max_ns + felt(far_ns);
        // Who owes more since it came from afar is excused nothing by being preempted.
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

    /// The vCPU leaves its pCPU of its own will and waits for an event.
    pub(crate) fn block(&mut self, vcpu: VcpuId, reason: StopReason) {
        let host = &mut self.machine.vcpus[vcpu];
        if host.state != VcpuState::Running {
            // Whom it has just woken took its pCPU. It comes here again when it runs.
            return;
        }
        let pcpu = host.pcpu;
        self.measured.count_halt(host.vm);
        self.note_position(vcpu);
        self.scheduler.yields(&mut self.machine, vcpu, pcpu, YieldCause::Hlt);
        self.machine.blocks(vcpu);
        self.request_stop(pcpu, reason);
    }

    pub(crate) fn wake_vcpu(&mut self, vcpu: VcpuId) {
        let host = &mut self.machine.vcpus[vcpu];
        if host.state != VcpuState::Blocked {
            return;
        }
        host.since_ns = self.machine.now_ns;
        self.machine.wakes(vcpu);
        self.machine.emit(TraceEvent::Runnable { vcpu });
        self.scheduler.wake(&mut self.machine, vcpu);
    }

    pub(crate) fn timed(&mut self, vcpu: VcpuId, then: crate::guest::Then, symbol: u16, left_ns: u64) {
        let frame = self.guest[vcpu].frame_mut();
        *frame = Frame { act: Act::Timed, then, symbol, left_ns, ..*frame };
    }
}
