//! A run as a trace that Perfetto's UI opens: `crates/trace` writes it, as it does that of a real host.
//! Instants name functions of guests' kernels, threads and locks; arrows lead from an IPI's sender to its
//! handler.

use super::{ipi_name, name_at, stop_name};
use microslice_model::events::{IpiKind, StopReason, TraceEvent, TraceNames, TraceSink};
use microslice_model::ids::{LockId, PcpuId, VcpuId};
use microslice_policy::Coded;
use microslice_trace::{Arrows, Category, HostTrace, Note, Pcpu, Turn, Vcpu, Vm, number, pointer, text};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};

/// Writes packets as events come.
pub struct PerfettoTrace<W: Write> {
    state: State<W>,
    names: TraceNames,
    /// Flow ids of IPIs sent to each vCPU and not handled yet, oldest first, by kind.
    pending_ipis: BTreeMap<(VcpuId, IpiKind), VecDeque<u64>>,
    next_flow: u64,
    bytes_max: u64,
    full_at_ns: Option<u64>,
}

enum State<W: Write> {
    /// Until the names are known.
    Waiting(Option<W>),
    Under(Box<HostTrace<W>>),
}

impl<W: Write> PerfettoTrace<W> {
    /// `out` should be buffered: a packet is some twenty bytes. From `bytes_max` on only what is open is
    /// closed.
    pub fn new(out: W, bytes_max: u64) -> Self {
        Self {
            state: State::Waiting(Some(out)),
            names: TraceNames::default(),
            pending_ipis: BTreeMap::new(),
            next_flow: 1,
            bytes_max,
            full_at_ns: None,
        }
    }

    /// Where in the run the trace ended because it is as large as it may be.
    pub fn full_at_ns(&self) -> Option<u64> {
        self.full_at_ns
    }

    /// Closes open slices at the end of the run and flushes; says whether everything was written.
    pub fn finish(self, end_ns: u64) -> io::Result<W> {
        match self.state {
            State::Under(trace) => trace.finish(self.full_at_ns.unwrap_or(end_ns)),
            State::Waiting(out) => {
                let mut out = out.expect("taken by begin() only, which changes the state");
                out.flush().map(|()| out)
            }
        }
    }
}

/// An event's way into the trace.
struct Writing<'t, W: Write> {
    trace: &'t mut HostTrace<W>,
    names: &'t TraceNames,
    pending_ipis: &'t mut BTreeMap<(VcpuId, IpiKind), VecDeque<u64>>,
    next_flow: &'t mut u64,
}

impl<W: Write> Writing<'_, W> {
    fn instant(&mut self, time_ns: u64, vcpu: VcpuId, category: Category, name: &str, notes: Vec<Note>) {
        self.trace.instant(time_ns, of(vcpu), category, name, notes);
    }

    fn runnable(&mut self, time_ns: u64, vcpu: VcpuId) {
        // A lock's kick has no handler: it ends the halt.
        let kicks = self.pending_ipis.remove(&(vcpu, IpiKind::LockKick)).unwrap_or_default();
        self.trace.runnable(time_ns, of(vcpu), kicks.into());
    }

    fn stopping(&mut self, time_ns: u64, event: &TraceEvent) {
        let TraceEvent::Stopping { vcpu, pcpu, reason, ip, symbol } = *event else { return };
        let function = text("function", name_at(&self.names.symbols, symbol));
        let could_go_on = !matches!(reason, StopReason::Hlt | StopReason::LockHlt | StopReason::Throttled);
        let notes = vec![function, pointer("ip", ip)];
        self.trace.stopping(time_ns, of(vcpu), on(pcpu), stop_name(reason), notes, could_go_on);
    }

    fn ipi(&mut self, time_ns: u64, event: &TraceEvent) {
        match *event {
            TraceEvent::IpiSent { from, to, kind } => {
                let flow = *self.next_flow;
                *self.next_flow += 1;
                self.pending_ipis.entry((to, kind)).or_default().push_back(flow);
                let notes = vec![text("to", &self.trace.vcpu_name(of(to)))];
                let arrows = Arrows { begin: vec![flow], end: Vec::new() };
                let name = format!("{} sent", ipi_name(kind));
                self.trace.instant_with_arrows(time_ns, of(from), Category::Ipi, &name, notes, arrows);
            }
            TraceEvent::IpiHandled { vcpu, kind } => {
                // One handler run answers every IPI of its kind that is pending.
                let flows = self.pending_ipis.remove(&(vcpu, kind)).unwrap_or_default();
                let arrows = Arrows { begin: Vec::new(), end: flows.into() };
                let name = format!("{} handled", ipi_name(kind));
                self.trace.instant_with_arrows(time_ns, of(vcpu), Category::Ipi, &name, Vec::new(), arrows);
            }
            _ => {}
        }
    }

    fn guest(&mut self, time_ns: u64, event: &TraceEvent) {
        let lock_name = |names: &TraceNames, lock: LockId| name_at(&names.locks, lock).to_owned();
        match *event {
            TraceEvent::ThreadSwitched { vcpu, thread } => {
                let thread = name_at(&self.names.threads, thread).to_owned();
                self.instant(time_ns, vcpu, Category::Guest, "thread switch", vec![text("to", &thread)]);
            }
            TraceEvent::LockWaitBegan { vcpu, lock } => {
                let lock = lock_name(self.names, lock);
                self.instant(time_ns, vcpu, Category::Guest, "lock wait", vec![text("lock", &lock)]);
            }
            // Uncontended locks would drown everything else.
            TraceEvent::LockAcquired { vcpu, lock, waited_ns } if waited_ns > 0 => {
                let lock = lock_name(self.names, lock);
                let notes = vec![text("lock", &lock), number("waited_ns", waited_ns)];
                self.instant(time_ns, vcpu, Category::Guest, "lock acquired", notes);
            }
            TraceEvent::ShootdownBegan { vcpu, targets } => {
                let notes = vec![number("targets", u64::from(targets))];
                self.instant(time_ns, vcpu, Category::Guest, "shootdown", notes);
            }
            TraceEvent::ShootdownEnded { vcpu, waited_ns } => {
                let notes = vec![number("waited_ns", waited_ns)];
                self.instant(time_ns, vcpu, Category::Guest, "shootdown ended", notes);
            }
            _ => {}
        }
    }

    fn event(&mut self, time_ns: u64, event: &TraceEvent) {
        match *event {
            TraceEvent::Running { vcpu, pcpu, micro } => {
                let turn = if micro { Turn::Micro } else { Turn::Normal };
                self.trace.running(time_ns, of(vcpu), on(pcpu), turn);
            }
            TraceEvent::Stopping { .. } => self.stopping(time_ns, event),
            TraceEvent::Runnable { vcpu } => self.runnable(time_ns, vcpu),
            TraceEvent::Blocked { vcpu } => self.trace.blocked(time_ns, of(vcpu)),
            TraceEvent::PauseLoopExits { vcpu, count } => {
                self.instant(
                    time_ns,
                    vcpu,
                    Category::Yield,
                    "pause-loop exits",
                    vec![number("count", count)],
                );
            }
            TraceEvent::IpiSent { .. } | TraceEvent::IpiHandled { .. } => self.ipi(time_ns, event),
            TraceEvent::VirqRaised { vcpu } => self.instant(time_ns, vcpu, Category::Ipi, "virq", Vec::new()),
            TraceEvent::VirqHandled { vcpu } => {
                self.instant(time_ns, vcpu, Category::Ipi, "virq handled", Vec::new());
            }
            TraceEvent::PoolResized { micro_pcpus } => self.trace.pool_resized(time_ns, micro_pcpus),
            _ => self.acceleration(time_ns, event),
        }
    }

    fn acceleration(&mut self, time_ns: u64, event: &TraceEvent) {
        let mut tell =
            |vcpu, name: &str, notes| self.instant(time_ns, vcpu, Category::Acceleration, name, notes);
        match *event {
            TraceEvent::Accelerated { vcpu, pcpu, cause, class } => {
                let notes = vec![
                    text("cause", cause.name()),
                    text("class", class.name()),
                    number("pcpu", u64::from(pcpu.number())),
                ];
                tell(vcpu, "accelerated", notes);
            }
            TraceEvent::ReturnedToNormalPool { vcpu, .. } => {
                tell(vcpu, "returned to normal pool", Vec::new());
            }
            TraceEvent::TurnGoesOn { vcpu, .. } => tell(vcpu, "turn goes on", Vec::new()),
            TraceEvent::TurnEnded { vcpu, .. } => tell(vcpu, "longer turn ended", Vec::new()),
            TraceEvent::PreemptionPutOff { vcpu, class, .. } => {
                tell(vcpu, "preemption put off", vec![text("class", class.name())]);
            }
            TraceEvent::WindowEnded { vcpu, forced, .. } => {
                tell(vcpu, if forced { "window ended by force" } else { "window ended" }, Vec::new());
            }
            TraceEvent::UrgencyRequested { vcpu } => tell(vcpu, "urgency requested", Vec::new()),
            TraceEvent::UrgentServed { vcpu, ahead_ns, .. } => {
                tell(vcpu, "urgent: goes first", vec![number("ahead_ns", ahead_ns)]);
            }
            TraceEvent::UrgentRefused { vcpu, ahead_ns, .. } => {
                tell(vcpu, "urgent: refused", vec![number("ahead_ns", ahead_ns)]);
            }
            TraceEvent::UrgencyEnded { .. }
            | TraceEvent::UrgentQueued { .. }
            | TraceEvent::UrgentUnqueued { .. } => {}
            _ => self.guest(time_ns, event),
        }
    }
}

impl<W: Write> TraceSink for PerfettoTrace<W> {
    fn begin(&mut self, names: &TraceNames) {
        self.names = names.clone();
        let State::Waiting(out) = &mut self.state else { return };
        let Some(out) = out.take() else { return };
        let mut trace = HostTrace::new(out, "simulation", names.pcpus);
        for (_, name) in names.vms.enumerate() {
            trace.add_vm(name);
        }
        for (_, (vm, number)) in names.vcpus.enumerate() {
            trace.add_vcpu(Vm(vm.number()), *number);
        }
        self.state = State::Under(Box::new(trace));
    }

    fn event(&mut self, time_ns: u64, event: &TraceEvent) {
        if self.full_at_ns.is_some() {
            return;
        }
        if let State::Under(trace) = &mut self.state {
            if trace.byte_count() >= self.bytes_max {
                self.full_at_ns = Some(time_ns);
                return;
            }
            let (names, pending_ipis, next_flow) = (&self.names, &mut self.pending_ipis, &mut self.next_flow);
            Writing { trace, names, pending_ipis, next_flow }.event(time_ns, event);
        }
    }

    fn progress(&mut self, _time_ns: u64, _end_ns: u64) -> bool {
        match &self.state {
            State::Under(trace) => !trace.has_failed(),
            State::Waiting(_) => true,
        }
    }
}

fn of(vcpu: VcpuId) -> Vcpu {
    Vcpu(vcpu.number())
}

fn on(pcpu: PcpuId) -> Pcpu {
    Pcpu(pcpu.number())
}

#[cfg(test)]
mod tests {
    use super::*;
    use microslice_model::ids::VmId;
    use microslice_trace::messages::{TracePacket, packets};

    fn names() -> TraceNames {
        TraceNames {
            pcpus: 2,
            vms: vec!["target".to_owned()].into(),
            vcpus: [0, 1].map(|number| (VmId::new(0), number)).into_iter().collect(),
            symbols: vec!["user".to_owned(), "release_pages".to_owned()].into(),
            ..TraceNames::default()
        }
    }

    fn trace_of(events: &[(u64, TraceEvent)]) -> Vec<TracePacket> {
        let mut trace = PerfettoTrace::new(Vec::new(), u64::MAX);
        trace.begin(&names());
        events.iter().for_each(|(time, event)| trace.event(*time, event));
        packets(&trace.finish(100).expect("written to memory")).expect("only packets")
    }

    #[test]
    fn what_still_runs_does_so_until_the_end_and_a_vcpu_that_stops_says_in_which_function() {
        let (vcpu, pcpu) = (VcpuId::new(0), PcpuId::new(1));
        let symbol = microslice_model::ids::SymbolId::new(1);
        let packets = trace_of(&[
            (10, TraceEvent::Running { vcpu, pcpu, micro: false }),
            (20, TraceEvent::Stopping { vcpu, pcpu, reason: StopReason::Ple, ip: 0xffff, symbol }),
            (30, TraceEvent::Running { vcpu, pcpu: PcpuId::new(0), micro: true }),
        ]);
        assert_eq!(packets.last().and_then(|packet| packet.timestamp), Some(100));
        let events = packets.iter().filter_map(|packet| packet.track_event.as_ref());
        let notes: Vec<_> = events.flat_map(|event| &event.debug_annotations).collect();
        assert!(notes.iter().any(|note| note.string_value.as_deref() == Some("release_pages")));
    }

    #[test]
    fn an_arrow_leads_from_an_ipi_to_its_handler() {
        let kind = IpiKind::CallFunction;
        let packets = trace_of(&[
            (5, TraceEvent::IpiSent { from: VcpuId::new(0), to: VcpuId::new(1), kind }),
            (9, TraceEvent::IpiHandled { vcpu: VcpuId::new(1), kind }),
        ]);
        let flows: Vec<_> = packets
            .iter()
            .filter_map(|packet| packet.track_event.as_ref())
            .map(|event| (event.flow_ids.clone(), event.terminating_flow_ids.clone()))
            .collect();
        assert_eq!(flows, [(vec![1], vec![]), (vec![], vec![1])]);
    }

    #[test]
    fn an_arrow_leads_from_a_locks_kick_to_the_end_of_the_halt() {
        let kick = IpiKind::LockKick;
        let packets = trace_of(&[
            (5, TraceEvent::IpiSent { from: VcpuId::new(0), to: VcpuId::new(1), kind: kick }),
            (5, TraceEvent::Runnable { vcpu: VcpuId::new(1) }),
        ]);
        let ends = packets.iter().filter_map(|packet| packet.track_event.as_ref());
        let ends: Vec<u64> = ends.flat_map(|event| event.terminating_flow_ids.clone()).collect();
        assert_eq!(ends, [1]);
    }

    #[test]
    fn an_output_that_fails_stops_the_run_and_is_reported() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::Error::from(io::ErrorKind::StorageFull))
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut trace = PerfettoTrace::new(Full, u64::MAX);
        trace.begin(&names());
        assert!(!trace.progress(0, 1));
        assert_eq!(trace.finish(1).err().map(|error| error.kind()), Some(io::ErrorKind::StorageFull));
    }
}
