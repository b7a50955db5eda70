//! The engine: the clock, the event loop, and vCPUs getting on and off pCPUs.
//!
//! Each pCPU has one pending event: the earliest of its vCPU's next step, the end of the slice, and the
//! guest's tick. Everything else (the host's ticks, sleeping threads, NICs, host-wide timers) has a slot of
//! its own in the same queue.

mod checking;
mod parts;
mod pcpu_event;
mod slots;
mod switches;

pub use parts::{KernelTimes, Vm, Workload};
pub use slots::{HostTicks, Slots};

use crate::SimError;
use crate::cpu_limits::CpuLimits;
use crate::guest::{Barrier, GuestVcpu, Lock, Queue, Thread, pending};
use crate::guest::{eevdf::ThreadClocks, modes::Mode, program::Programs, user_lock::UserLock};
use crate::halt_polling::HaltPolling;
use crate::measurements::Measurements;
use crate::observers::Observers;
use crate::pause_loops::PauseLoops;
use crate::report::RunReport;
use crate::text::Text;
use crate::timeline::{Timeline, Turn};
use microslice_model::config::{CostModel, SimulationConfig};
use microslice_model::events::{StopReason, TraceNames};
use microslice_model::ids::{BarrierId, IdVec, LockId, PcpuId, QueueId, ThreadId, VcpuId, VmId, WorkloadId};
use microslice_model::machine::{Machine, VcpuState};
use microslice_model::random::{Random, Samplers};
use microslice_model::scheduler::Scheduler;
use microslice_model::smt::Smt;

const PROGRESS_NS: u64 = 1_000_000;
/// Threads start at random within this time, or sooner if the run is too short for it.
const START_SPREAD_NS: u64 = 60_000_000;
/// Reading a cache line that another pCPU has just written.
pub const CACHE_LINE_NS: u64 = 100;

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
    pub(crate) pause_loops: PauseLoops,
    pub(crate) halt_polling: HaltPolling,
    pub(crate) cpu_limits: CpuLimits,
    /// Why each pCPU's vCPU is to be scheduled away, if it is.
    pub(crate) why: IdVec<PcpuId, StopReason>,
    pub(crate) guest: IdVec<VcpuId, GuestVcpu>,
    pub(crate) threads: IdVec<ThreadId, Thread>,
    pub(crate) locks: IdVec<LockId, Lock>,
    /// Of each lock, that of the list of its sleepers, or `NONE`.
    pub(crate) list_locks: IdVec<LockId, LockId>,
    pub(crate) queues: IdVec<QueueId, Queue>,
    pub(crate) barriers: IdVec<BarrierId, Barrier>,
    /// Of programs, those of each VM behind those of the VMs before it.
    pub(crate) user_locks: Vec<UserLock>,
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
    /// The vCPU that wakes others in the middle of a step of its own, or `NONE`.
    pub(crate) within_step: VcpuId,
    pub(crate) measured: Measurements,
    /// Whether it is measured how long guests hold locks and are unsafe; then of each vCPU.
    pub(crate) times_guests: bool,
    pub(crate) modes: IdVec<VcpuId, Mode>,
    /// Some guest's kernel is of today.
    pub(crate) is_modern: bool,
    /// Some guest's threads are on one list (`guest/stealing.rs`).
    pub(crate) any_steals: bool,
    /// Of guests whose threads are under EEVDF.
    pub(crate) thread_clocks: ThreadClocks,
    /// Threads that a vCPU was called to make ready.
    pub(crate) wake_lists: IdVec<VcpuId, Vec<ThreadId>>,
    /// Some guests hold locks in functions that aren't the locks' own.
    pub(crate) holds_vary: bool,
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
        for limit in 0..self.cpu_limits.count() {
            self.time_limit(limit);
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
                    && guest.ple_phase_ns == self.machine.pause_windows.of(vcpu);
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

    /// "Cold" tells the compiler what to keep out of the way of ordinary events: a twentieth of their time
    /// depends on it.
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
                self.tick_of_limit(vcpu, pcpu);
                self.machine.leaves_guest(pcpu);
            }
            self.scheduler.tick(&mut self.machine, pcpu);
            self.poll(pcpu);
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
        } else if let Some(limit) = self.slots.limit_of(slot) {
            self.limit_event(limit);
        } else {
            self.timeline.cancel(slot);
            self.begin_measuring();
        }
        Ok(())
    }

    /// Asks for a scheduling decision because of what the running vCPU does.
    pub(crate) fn request_stop(&mut self, pcpu: PcpuId, why: StopReason) {
        self.why[pcpu] = why;
        self.machine.request_schedule(pcpu);
    }

    pub(crate) fn is_running(&self, vcpu: VcpuId) -> bool {
        self.machine.vcpus[vcpu].state == VcpuState::Running
    }

    /// Whether it could go on, but has no pCPU.
    pub(crate) fn is_preempted(&self, vcpu: VcpuId) -> bool {
        self.machine.vcpus[vcpu].state == VcpuState::Runnable || self.cpu_limits.rests(vcpu)
    }

    /// Whether KVM tells its guest so: an interrupt of the host has stopped it (`at_instruction_boundary`).
    pub(crate) fn is_marked_preempted(&self, vcpu: VcpuId) -> bool {
        let host = &self.machine.vcpus[vcpu];
        host.state == VcpuState::Runnable && host.preempted || self.cpu_limits.rests(vcpu)
    }

    /// Tells the host what it could see of a vCPU now: the class of its instruction pointer, and its
    /// interrupt flag.
    pub(crate) fn note_position(&mut self, vcpu: VcpuId) {
        let guest = &self.guest[vcpu];
        let host = &mut self.machine.vcpus[vcpu];
        host.interrupts_enabled = guest.depth == 0 && !guest.frames[0].irqs_off;
        host.pending_interrupts = guest.pending & !pending::TICK;
        let mut class = self.classes[guest.frame().symbol as usize];
        if self.machine.reads_counters() {
            class = self.machine.class_by_count(vcpu, self.shown_count(vcpu), class);
        }
        self.machine.set_class(vcpu, class);
        if self.config.delay.is_some() {
            self.note_locks(vcpu);
        }
    }
}
