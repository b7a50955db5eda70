//! `--trace FILE`: what ran on each pCPU from when on, why it left, and what was done for it, as a trace that
//! Perfetto opens.
//!
//! The kernel side (`bpf/core/trace.bpf.h`) sends events, which wait in a [`TraceQueue`]. The tracer sorts
//! them, knows which VM and vCPU each is about, and tells the writer that the simulator's traces have, too
//! (`crates/trace`). A trace is bounded in time and size, and so is what waits for it. docs/how-to/trace.md
//! is the operator's page.

mod file;
mod queue;

pub(crate) use queue::TraceQueue;

use crate::HostError;
use crate::bpf::kernel_vm::KernelVm;
use crate::guests::vms::VmmProcess;
use crate::interface::{
    AccelerationReturn, RequestFailure, TraceEvent, TraceKind, TraceStop, TraceTurn, TracedTask, UrgentEnd,
};
use crate::settings::trace::TraceSettings;
use file::TraceFile;
use microslice_policy::Coded;
use microslice_trace::{Category, HostTrace, Note, Pcpu, Turn, Vcpu, Vm, number, text};
use std::collections::BTreeMap;

/// Events of one moment may come in any order. Before one that is so old none is still to come.
const HOLD_BACK_NS: u64 = 40_000_000;
/// The file is brought up to date at least this often.
const FLUSH_NS: u64 = 1_000_000_000;

/// The name of the VM in this slot, with this generation, if it is still there.
pub(crate) type NameOfVm<'n> = &'n dyn Fn(u32, u32) -> Option<String>;

/// Reads the name of a VM that has come since VMs were looked at last.
pub(crate) fn name_of_newcomer(vms: &[KernelVm], slot: u32, generation: u32) -> Option<String> {
    let vm = vms.iter().find(|vm| vm.slot == slot && vm.generation == generation);
    vm.map(|vm| VmmProcess::read(vm.pid).name)
}

/// The end of a trace.
pub(crate) struct Ended {
    /// For the operator.
    pub line: String,
    /// Something couldn't be written.
    pub has_failed: bool,
}

pub(crate) struct Tracer {
    settings: TraceSettings,
    trace: HostTrace<TraceFile>,
    pcpu_count: u32,
    began_ns: u64,
    flushed_ns: u64,
    /// The last event that was written: none before it is.
    last_ns: u64,
    /// Not old enough to be in order.
    waiting: Vec<TraceEvent>,
    /// By slot and generation.
    vms: BTreeMap<(u32, u32), Vm>,
    /// By slot, generation, and the VM's own number of the vCPU.
    vcpus: BTreeMap<(u32, u32, u32), Vcpu>,
    event_count: u64,
    /// As the kernel side counts those that found no room in its ring.
    lost_in_ring: u32,
    lost: u64,
}

impl Tracer {
    /// Creates the file. `world`: what the trace is of.
    ///
    /// # Errors
    /// It can't be created, or is no regular file.
    pub fn create(settings: &TraceSettings, world: &str, pcpu_count: u32) -> Result<Self, HostError> {
        let file = TraceFile::create(&settings.path)?;
        Ok(Self {
            settings: settings.clone(),
            trace: HostTrace::new(file, world, pcpu_count),
            pcpu_count,
            began_ns: 0,
            flushed_ns: 0,
            last_ns: 0,
            waiting: Vec::new(),
            vms: BTreeMap::new(),
            vcpus: BTreeMap::new(),
            event_count: 0,
            lost_in_ring: 0,
            lost: 0,
        })
    }

    /// Everything is attached: its time begins. By the host's monotonic clock, as all below.
    pub fn begin(&mut self, now_ns: u64) {
        (self.began_ns, self.flushed_ns, self.last_ns) = (now_ns, now_ns, now_ns);
        // Whatever becomes of the rest, the file is a trace.
        self.trace.flush();
    }

    /// Notes how many pCPUs are micro-sliced from `at_ns` on.
    pub fn pool_resized(&mut self, at_ns: u64, micro_pcpu_count: u32) {
        if at_ns <= self.end_ns() {
            self.trace.pool_resized(at_ns.max(self.began_ns), micro_pcpu_count);
        }
    }

    /// Writes what has come, as far as it is in order.
    pub fn hear(&mut self, queue: &TraceQueue, now_ns: u64, name_of: NameOfVm<'_>) {
        self.take(queue);
        let in_order_until = now_ns.saturating_sub(HOLD_BACK_NS);
        let count = self.waiting.partition_point(|event| event.at_ns <= in_order_until);
        let ready: Vec<TraceEvent> = self.waiting.drain(..count).collect();
        self.write_all(&ready, name_of);
        if now_ns.saturating_sub(self.flushed_ns) >= FLUSH_NS {
            self.flushed_ns = now_ns;
            self.trace.flush();
        }
    }

    /// It is as long or as large as it may be, or can't be written any more.
    pub fn is_over(&self, now_ns: u64) -> bool {
        now_ns >= self.end_ns() + HOLD_BACK_NS || self.is_full() || self.trace.has_failed()
    }

    /// Writes the rest. `lost_in_ring`: as the kernel side counts it at the end.
    pub fn finish(
        mut self,
        queue: &TraceQueue,
        lost_in_ring: u64,
        now_ns: u64,
        name_of: NameOfVm<'_>,
    ) -> Ended {
        self.take(queue);
        let rest = std::mem::take(&mut self.waiting);
        self.write_all(&rest, name_of);
        let is_full = self.is_full();
        // Closing what is open takes its room at the end, beyond the bound: a packet for each pCPU and vCPU.
        let end_ns = now_ns.min(self.end_ns()).max(self.last_ns);
        self.note_losses(end_ns, lost_in_ring as u32);
        let (path, seconds) = (self.settings.path.display(), (end_ns - self.began_ns) as f64 / 1e9);
        let (events, lost) = (self.event_count, self.lost);
        match self.trace.finish(end_ns) {
            Ok(_) => {
                let why = if is_full { " (as large as it may be: --trace-size)" } else { "" };
                let line = format!("{path}: traced {seconds:.1} s, {events} events, {lost} lost{why}");
                Ended { line, has_failed: false }
            }
            Err(cause) => Ended {
                line: format!("{path}: {cause}: the trace ends here, all else goes on"),
                has_failed: true,
            },
        }
    }

    fn end_ns(&self) -> u64 {
        self.began_ns.saturating_add(self.settings.length.as_nanos() as u64)
    }

    fn is_full(&self) -> bool {
        self.trace.byte_count() >= self.settings.bytes
    }

    fn take(&mut self, queue: &TraceQueue) {
        let (events, left_out) = queue.take();
        self.waiting.extend(events);
        self.waiting.sort_by_key(|event| event.at_ns);
        if left_out > 0 {
            self.lost += left_out;
            self.trace.lost(self.last_ns, left_out);
        }
    }

    // ---- Events ----

    fn write_all(&mut self, events: &[TraceEvent], name_of: NameOfVm<'_>) {
        for event in events {
            if event.at_ns < self.began_ns {
                continue; // not everything was attached
            }
            if event.at_ns > self.end_ns() || self.is_full() || self.trace.has_failed() {
                return;
            }
            if event.pcpu < self.pcpu_count {
                self.write(event, name_of);
            }
        }
    }

    fn write(&mut self, event: &TraceEvent, name_of: NameOfVm<'_>) {
        // One that came later than any that was waited for.
        let at_ns = event.at_ns.max(self.last_ns);
        self.last_ns = at_ns;
        self.event_count += 1;
        self.note_losses(at_ns, event.lost);
        let Some(kind) = event.kind.get() else { return };
        if kind == TraceKind::Switch {
            self.switch(at_ns, event, name_of);
            return;
        }
        let Some(vcpu) = self.vcpu(&event.task, name_of) else { return };
        let (name, notes) = match kind {
            TraceKind::Switch => return,
            TraceKind::Wakeup => return self.trace.runnable(at_ns, vcpu, Vec::new()),
            TraceKind::Requested => ("requested", vec![cause(event), class(event)]),
            TraceKind::RequestFailed => {
                ("request failed", vec![text("why", name::<RequestFailure>(event.reason))])
            }
            TraceKind::Accelerated => {
                ("accelerated", vec![cause(event), class(event), number("pcpu", u64::from(event.pcpu))])
            }
            TraceKind::Returned => {
                ("returned to normal pool", vec![text("outcome", name::<AccelerationReturn>(event.reason))])
            }
            TraceKind::BecameUrgent => ("urgency requested", vec![class(event)]),
            TraceKind::UrgencyEnded => ("urgency ended", vec![text("why", name::<UrgentEnd>(event.reason))]),
        };
        self.trace.instant(at_ns, vcpu, Category::Acceleration, name, notes);
    }

    fn switch(&mut self, at_ns: u64, event: &TraceEvent, name_of: NameOfVm<'_>) {
        let pcpu = Pcpu(event.pcpu);
        match self.vcpu(&event.task, name_of) {
            Some(vcpu) => {
                let stop = event.stop.get().unwrap_or(TraceStop::Preempted);
                let could_go_on = match stop {
                    TraceStop::Blocked | TraceStop::Hlt | TraceStop::LockHlt => false,
                    TraceStop::Ple | TraceStop::IpiWait | TraceStop::Preempted => true,
                };
                // Not every world looks at the guest of a sleeping vCPU.
                let notes = if could_go_on { vec![class(event)] } else { Vec::new() };
                self.trace.stopping(at_ns, vcpu, pcpu, stop.name(), notes, could_go_on);
            }
            None => self.trace.pcpu_stops(at_ns, pcpu),
        }
        match self.vcpu(&event.next, name_of) {
            Some(vcpu) => self.trace.running(at_ns, vcpu, pcpu, turn(event)),
            None if event.next.tid != 0 => {
                self.trace.task_running(at_ns, pcpu, &name_of_task(event), event.next.tid);
            }
            None => {} // it idles
        }
    }

    /// A vCPU's track, from its first event on.
    fn vcpu(&mut self, task: &TracedTask, name_of: NameOfVm<'_>) -> Option<Vcpu> {
        let slot = task.vm.checked_sub(1)?;
        let of_vm = (slot, task.generation);
        if let Some(known) = self.vcpus.get(&(slot, task.generation, task.vcpu_id)) {
            return Some(*known);
        }
        let vm = match self.vms.get(&of_vm) {
            Some(vm) => *vm,
            None => {
                let vm =
                    self.trace.add_vm(&name_of(slot, task.generation).unwrap_or_else(|| "gone".to_owned()));
                self.vms.insert(of_vm, vm);
                vm
            }
        };
        let vcpu = self.trace.add_vcpu(vm, task.vcpu_id);
        self.vcpus.insert((slot, task.generation, task.vcpu_id), vcpu);
        Some(vcpu)
    }

    /// `lost_in_ring` up to then: the kernel side's count, which goes round.
    fn note_losses(&mut self, at_ns: u64, lost_in_ring: u32) {
        let more = lost_in_ring.wrapping_sub(self.lost_in_ring) as i32;
        if more > 0 {
            self.lost_in_ring = lost_in_ring;
            self.lost += more as u64;
            self.trace.lost(at_ns, more as u64);
        }
    }
}

fn turn(event: &TraceEvent) -> Turn {
    match event.turn.get() {
        Some(TraceTurn::Micro) => Turn::Micro,
        Some(TraceTurn::Urgent) => Turn::Urgent,
        Some(TraceTurn::Normal) | None => Turn::Normal,
    }
}

fn cause(event: &TraceEvent) -> Note {
    text("cause", event.cause.get().map_or("?", Coded::name))
}

fn class(event: &TraceEvent) -> Note {
    text("class", event.guest_class.get().map_or("?", Coded::name))
}

/// Of a code that the kernel side sent as a number.
fn name<E: Coded>(code: u32) -> &'static str {
    E::ALL.get(code as usize).map_or("?", |value| value.name())
}

fn name_of_task(event: &TraceEvent) -> String {
    let bytes: Vec<u8> = event.comm.iter().take_while(|&&byte| byte != 0).map(|&byte| byte as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests;
