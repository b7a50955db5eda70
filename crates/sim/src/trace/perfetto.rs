//! A trace that Perfetto's UI opens: a group for the host with a track per pCPU and the size of the micro pool, one per VM
//! with a track per vCPU and its interrupts below that. Slices are what runs (on pCPUs) and the state (of vCPUs); instants
//! are yields, accelerations, IPIs, interrupts and waits that ended; arrows lead from an IPI's sender to its handler.
//!
//! The groups are tracks, not processes, since the UI sorts processes, and what is in them, as it likes: vCPU 10 before vCPU 2.

use super::perfetto_messages::*;
use super::{cause_name, class_name, ipi_name, name_at, stop_name, vcpu_name};
use crate::ids::{Id, IdVec, LockId, PcpuId, VcpuId};
use crate::trace_event::{IpiKind, StopReason, TraceEvent, TraceNames, TraceSink};

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};

const SIMULATION_UUID: u64 = 3;
const HOST_UUID: u64 = 1;
const POOL_UUID: u64 = 2;
const PCPU_UUID: u64 = 1 << 20;
const VM_UUID: u64 = 1 << 24;
const VCPU_UUID: u64 = 1 << 28;
const INTERRUPTS_UUID: u64 = 1 << 32;
/// All packets come from one writer.
const SEQUENCE: u32 = 1;

/// Categories, by which the UI filters.
#[derive(Clone, Copy)]
enum Category {
    Run = 1,
    State,
    Yield,
    Acceleration,
    Ipi,
    Guest,
}
const CATEGORIES: [&str; 6] = ["run", "state", "yield", "acceleration", "ipi", "guest"];

/// Writes packets as events come.
pub struct PerfettoTrace<W: Write> {
    out: W,
    names: TraceNames,
    interned: BTreeMap<String, u64>,
    /// Whether a vCPU's track has an open slice, and a pCPU's.
    vcpu_open: IdVec<VcpuId, bool>,
    pcpu_open: IdVec<PcpuId, bool>,
    /// Flow ids of IPIs sent to each vCPU and not handled yet, oldest first, by kind.
    pending_ipis: BTreeMap<(VcpuId, IpiKind), VecDeque<u64>>,
    next_flow: u64,
    buffer: Vec<u8>,
    error: Option<io::Error>,
}

impl<W: Write> PerfettoTrace<W> {
    /// `out` should be buffered: a packet is some twenty bytes.
    pub fn new(out: W) -> Self {
        Self {
            out,
            names: TraceNames::default(),
            interned: BTreeMap::new(),
            vcpu_open: IdVec::new(),
            pcpu_open: IdVec::new(),
            pending_ipis: BTreeMap::new(),
            next_flow: 1,
            buffer: Vec::new(),
            error: None,
        }
    }

    /// Closes open slices at the end of the run and flushes; says whether everything was written.
    pub fn finish(mut self, end_ns: u64) -> io::Result<W> {
        for vcpu in self.vcpu_open.ids() {
            self.close_vcpu(end_ns, vcpu);
        }
        for pcpu in self.pcpu_open.ids() {
            self.close_pcpu(end_ns, pcpu);
        }
        match self.error {
            Some(error) => Err(error),
            None => self.out.flush().map(|()| self.out),
        }
    }

    fn write(&mut self, packet: &TracePacket) {
        if self.error.is_some() {
            return;
        }
        self.buffer.clear();
        // Field 1 of `Trace`, length-delimited; writing into a Vec can't fail.
        prost::encoding::message::encode(1, packet, &mut self.buffer);
        self.error = self.out.write_all(&self.buffer).err();
    }

    fn track(&mut self, descriptor: TrackDescriptor) {
        self.write(&TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE),
            track_descriptor: Some(descriptor),
            ..TracePacket::default()
        });
    }

    /// The number of a name, announced to the reader on first use.
    fn intern(&mut self, name: &str) -> u64 {
        if let Some(iid) = self.interned.get(name) {
            return *iid;
        }
        let iid = self.interned.len() as u64 + 1;
        self.interned.insert(name.to_owned(), iid);
        let event_names = vec![InternedName { iid: Some(iid), name: Some(name.to_owned()) }];
        self.write(&TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE),
            sequence_flags: Some(NEEDS_INCREMENTAL_STATE),
            interned_data: Some(InternedData { event_names, event_categories: Vec::new() }),
            ..TracePacket::default()
        });
        iid
    }

    fn emit(&mut self, time_ns: u64, event: TrackEvent) {
        self.write(&TracePacket {
            timestamp: Some(time_ns),
            trusted_packet_sequence_id: Some(SEQUENCE),
            sequence_flags: Some(NEEDS_INCREMENTAL_STATE),
            track_event: Some(event),
            ..TracePacket::default()
        });
    }

    fn named(&mut self, kind: i32, track_uuid: u64, category: Category, name: &str) -> TrackEvent {
        TrackEvent {
            kind: Some(kind),
            track_uuid: Some(track_uuid),
            category_iids: vec![category as u64],
            name_iid: Some(self.intern(name)),
            ..TrackEvent::default()
        }
    }

    fn instant(
        &mut self,
        time_ns: u64,
        vcpu: VcpuId,
        category: Category,
        name: &str,
        notes: Vec<DebugAnnotation>,
    ) {
        let track = match category {
            Category::Ipi => interrupts_track(vcpu),
            _ => vcpu_track(vcpu),
        };
        let mut event = self.named(INSTANT, track, category, name);
        event.debug_annotations = notes;
        self.emit(time_ns, event);
    }

    fn open_vcpu(&mut self, time_ns: u64, vcpu: VcpuId, state: &str, notes: Vec<DebugAnnotation>) {
        self.close_vcpu(time_ns, vcpu);
        let mut event = self.named(SLICE_BEGIN, vcpu_track(vcpu), Category::State, state);
        event.debug_annotations = notes;
        self.emit(time_ns, event);
        set(&mut self.vcpu_open, vcpu, true);
    }

    fn close_vcpu(&mut self, time_ns: u64, vcpu: VcpuId) {
        if set(&mut self.vcpu_open, vcpu, false) {
            self.emit(time_ns, end(vcpu_track(vcpu)));
        }
    }

    fn close_pcpu(&mut self, time_ns: u64, pcpu: PcpuId) {
        if set(&mut self.pcpu_open, pcpu, false) {
            self.emit(time_ns, end(pcpu_track(pcpu)));
        }
    }

    fn running(&mut self, time_ns: u64, vcpu: VcpuId, pcpu: PcpuId, micro: bool) {
        self.close_pcpu(time_ns, pcpu);
        let name = vcpu_name(&self.names, vcpu);
        let category = if micro { Category::Acceleration } else { Category::Run };
        let event = self.named(SLICE_BEGIN, pcpu_track(pcpu), category, &name);
        self.emit(time_ns, event);
        set(&mut self.pcpu_open, pcpu, true);
        let state = if micro { "running (micro)" } else { "running" };
        self.open_vcpu(time_ns, vcpu, state, vec![number("pcpu", u64::from(pcpu.number()))]);
    }

    fn runnable(&mut self, time_ns: u64, vcpu: VcpuId) {
        // A lock's kick has no handler: it ends the halt.
        let kicks = self.pending_ipis.remove(&(vcpu, IpiKind::LockKick)).unwrap_or_default();
        if self.vcpu_open.get(vcpu).copied().unwrap_or(false) {
            return;
        }
        let mut event = self.named(SLICE_BEGIN, vcpu_track(vcpu), Category::State, "runnable");
        event.terminating_flow_ids = kicks.into();
        self.emit(time_ns, event);
        set(&mut self.vcpu_open, vcpu, true);
    }

    fn stopping(&mut self, time_ns: u64, event: &TraceEvent) {
        let TraceEvent::Stopping { vcpu, pcpu, reason, ip, symbol } = *event else { return };
        let function = text("function", name_at(&self.names.symbols, symbol));
        self.instant(time_ns, vcpu, Category::Yield, stop_name(reason), vec![function, pointer("ip", ip)]);
        self.close_pcpu(time_ns, pcpu);
        match reason {
            StopReason::Hlt | StopReason::LockHlt => self.close_vcpu(time_ns, vcpu),
            _ => self.open_vcpu(time_ns, vcpu, "runnable", Vec::new()),
        }
    }

    fn ipi(&mut self, time_ns: u64, event: &TraceEvent) {
        match *event {
            TraceEvent::IpiSent { from, to, kind } => {
                let flow = self.next_flow;
                self.next_flow += 1;
                self.pending_ipis.entry((to, kind)).or_default().push_back(flow);
                let mut event = self.named(INSTANT, interrupts_track(from), Category::Ipi, &sent_name(kind));
                event.debug_annotations = vec![text("to", &vcpu_name(&self.names, to))];
                event.flow_ids = vec![flow];
                self.emit(time_ns, event);
            }
            TraceEvent::IpiHandled { vcpu, kind } => {
                let flows = self.pending_ipis.remove(&(vcpu, kind)).unwrap_or_default();
                let name = format!("{} handled", ipi_name(kind));
                let mut event = self.named(INSTANT, interrupts_track(vcpu), Category::Ipi, &name);
                // One handler run answers every IPI of its kind that is pending.
                event.terminating_flow_ids = flows.into();
                self.emit(time_ns, event);
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
                let lock = lock_name(&self.names, lock);
                self.instant(time_ns, vcpu, Category::Guest, "lock wait", vec![text("lock", &lock)]);
            }
            // Uncontended locks would drown everything else.
            TraceEvent::LockAcquired { vcpu, lock, waited_ns } if waited_ns > 0 => {
                let lock = lock_name(&self.names, lock);
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
}

impl<W: Write> TraceSink for PerfettoTrace<W> {
    fn begin(&mut self, names: &TraceNames) {
        self.names = names.clone();
        self.vcpu_open = IdVec::of(false, names.vcpus.len());
        self.pcpu_open = IdVec::of(false, names.pcpus as usize);
        let event_categories = CATEGORIES
            .iter()
            .zip(1..)
            .map(|(name, iid)| InternedName { iid: Some(iid), name: Some((*name).to_owned()) });
        let interned_data =
            InternedData { event_categories: event_categories.collect(), event_names: Vec::new() };
        self.write(&TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE),
            sequence_flags: Some(INCREMENTAL_STATE_CLEARED),
            interned_data: Some(interned_data),
            ..TracePacket::default()
        });
        self.track(TrackDescriptor { parent_uuid: None, ..group(SIMULATION_UUID, "simulation", 0) });
        self.track(group(HOST_UUID, "host", 0));
        self.track(TrackDescriptor {
            counter: Some(CounterDescriptor {}),
            ..child(POOL_UUID, HOST_UUID, "micro-sliced pCPUs", 0)
        });
        for pcpu in PcpuId::new(0).span(names.pcpus) {
            self.track(child(pcpu_track(pcpu), HOST_UUID, &format!("pCPU {pcpu}"), pcpu.number() as i32 + 1));
        }
        for (vm, name) in names.vms.enumerate() {
            self.track(group(
                VM_UUID + u64::from(vm.number()),
                &format!("VM {name}"),
                vm.number() as i32 + 1,
            ));
        }
        for (vcpu, (vm, number)) in names.vcpus.enumerate() {
            let name = format!("vCPU {number}");
            self.track(child(vcpu_track(vcpu), VM_UUID + u64::from(vm.number()), &name, *number as i32));
            self.track(child(interrupts_track(vcpu), vcpu_track(vcpu), "interrupts", 0));
        }
    }

    fn event(&mut self, time_ns: u64, event: &TraceEvent) {
        match *event {
            TraceEvent::Running { vcpu, pcpu, micro } => self.running(time_ns, vcpu, pcpu, micro),
            TraceEvent::Stopping { .. } => self.stopping(time_ns, event),
            TraceEvent::Runnable { vcpu } => self.runnable(time_ns, vcpu),
            TraceEvent::Blocked { vcpu } => self.close_vcpu(time_ns, vcpu),
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
            TraceEvent::Accelerated { vcpu, pcpu, cause, class } => {
                let notes = vec![
                    text("cause", cause_name(cause)),
                    text("class", class_name(class)),
                    number("pcpu", u64::from(pcpu.number())),
                ];
                self.instant(time_ns, vcpu, Category::Acceleration, "accelerated", notes);
            }
            TraceEvent::ReturnedToNormalPool { vcpu, .. } => {
                self.instant(time_ns, vcpu, Category::Acceleration, "returned to normal pool", Vec::new());
            }
            TraceEvent::TurnGoesOn { vcpu, .. } => {
                self.instant(time_ns, vcpu, Category::Acceleration, "turn goes on", Vec::new());
            }
            TraceEvent::TurnEnded { vcpu, .. } => {
                self.instant(time_ns, vcpu, Category::Acceleration, "longer turn ended", Vec::new());
            }
            TraceEvent::PreemptionPutOff { vcpu, class, .. } => {
                let notes = vec![text("class", class_name(class))];
                self.instant(time_ns, vcpu, Category::Acceleration, "preemption put off", notes);
            }
            TraceEvent::WindowEnded { vcpu, forced, .. } => {
                let name = if forced { "window ended by force" } else { "window ended" };
                self.instant(time_ns, vcpu, Category::Acceleration, name, Vec::new());
            }
            TraceEvent::PoolResized { micro_pcpus } => {
                let counter_value = Some(i64::from(micro_pcpus));
                let (kind, track_uuid) = (Some(COUNTER), Some(POOL_UUID));
                self.emit(time_ns, TrackEvent { kind, track_uuid, counter_value, ..TrackEvent::default() });
            }
            TraceEvent::UrgencyRequested { vcpu } => {
                self.instant(time_ns, vcpu, Category::Acceleration, "urgency requested", Vec::new());
            }
            TraceEvent::UrgentServed { vcpu, ahead_ns, .. } => {
                let notes = vec![number("ahead_ns", ahead_ns)];
                self.instant(time_ns, vcpu, Category::Acceleration, "urgent: goes first", notes);
            }
            TraceEvent::UrgentRefused { vcpu, ahead_ns, .. } => {
                let notes = vec![number("ahead_ns", ahead_ns)];
                self.instant(time_ns, vcpu, Category::Acceleration, "urgent: refused", notes);
            }
            TraceEvent::UrgencyEnded { .. }
            | TraceEvent::UrgentQueued { .. }
            | TraceEvent::UrgentUnqueued { .. } => {}
            _ => self.guest(time_ns, event),
        }
    }

    fn progress(&mut self, _time_ns: u64, _end_ns: u64) -> bool {
        self.error.is_none()
    }
}

/// Sets a flag and returns what it was; a number beyond the names is no reason to panic.
fn set<I: Id>(flags: &mut IdVec<I, bool>, id: I, value: bool) -> bool {
    flags.get_mut(id).is_some_and(|flag| std::mem::replace(flag, value))
}

fn pcpu_track(pcpu: PcpuId) -> u64 {
    PCPU_UUID + u64::from(pcpu.number())
}

fn vcpu_track(vcpu: VcpuId) -> u64 {
    VCPU_UUID + u64::from(vcpu.number())
}

/// Interrupts have a track of their own below the vCPU's: a shootdown sends eleven at once, which the UI puts on top of each other.
fn interrupts_track(vcpu: VcpuId) -> u64 {
    INTERRUPTS_UUID + u64::from(vcpu.number())
}

fn sent_name(kind: IpiKind) -> String {
    format!("{} sent", ipi_name(kind))
}

/// Of the host, or of a VM: what is below it is shown in the order of its ranks.
fn group(uuid: u64, name: &str, rank: i32) -> TrackDescriptor {
    TrackDescriptor {
        child_ordering: Some(CHILD_ORDERING_EXPLICIT),
        ..child(uuid, SIMULATION_UUID, name, rank)
    }
}

fn child(uuid: u64, parent_uuid: u64, name: &str, rank: i32) -> TrackDescriptor {
    TrackDescriptor {
        uuid: Some(uuid),
        parent_uuid: Some(parent_uuid),
        name: Some(name.to_owned()),
        sibling_order_rank: Some(rank),
        ..TrackDescriptor::default()
    }
}

fn end(track_uuid: u64) -> TrackEvent {
    TrackEvent { kind: Some(SLICE_END), track_uuid: Some(track_uuid), ..TrackEvent::default() }
}

fn text(name: &str, value: &str) -> DebugAnnotation {
    DebugAnnotation {
        name: Some(name.to_owned()),
        string_value: Some(value.to_owned()),
        ..DebugAnnotation::default()
    }
}

fn number(name: &str, value: u64) -> DebugAnnotation {
    DebugAnnotation { name: Some(name.to_owned()), uint_value: Some(value), ..DebugAnnotation::default() }
}

fn pointer(name: &str, value: u64) -> DebugAnnotation {
    DebugAnnotation { name: Some(name.to_owned()), pointer_value: Some(value), ..DebugAnnotation::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::VmId;
    use crate::trace_event::{AccelerationCause, GuestClass};
    use prost::Message;

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
        let mut trace = PerfettoTrace::new(Vec::new());
        trace.begin(&names());
        events.iter().for_each(|(time, event)| trace.event(*time, event));
        decode(&trace.finish(100).expect("written to memory"))
    }

    /// Decodes with prost, after walking the framing by hand: tag 0x0a (field 1, length-delimited), then a varint.
    fn decode(mut bytes: &[u8]) -> Vec<TracePacket> {
        let mut packets = Vec::new();
        while let [0x0a, rest @ ..] = bytes {
            bytes = rest;
            let length = prost::decode_length_delimiter(&mut bytes).expect("a length");
            packets.push(TracePacket::decode(&bytes[..length]).expect("a packet"));
            bytes = &bytes[length..];
        }
        assert!(bytes.is_empty(), "only packets");
        packets
    }

    #[test]
    fn every_pcpu_and_vcpu_has_a_track_below_its_group() {
        let tracks: Vec<_> = trace_of(&[]).into_iter().filter_map(|packet| packet.track_descriptor).collect();
        let named: Vec<_> = tracks.iter().filter_map(|track| track.name.as_deref()).collect();
        let host = ["simulation", "host", "micro-sliced pCPUs", "pCPU 0", "pCPU 1"];
        let guest = ["VM target", "vCPU 0", "interrupts", "vCPU 1", "interrupts"];
        assert_eq!(named, [host, guest].concat());
        let uuids: std::collections::BTreeSet<_> = tracks.iter().map(|track| track.uuid).collect();
        assert_eq!(uuids.len(), tracks.len());
        assert!(tracks.iter().all(|track| track.parent_uuid.is_none() || uuids.contains(&track.parent_uuid)));
    }

    #[test]
    fn slices_begin_and_end_in_pairs_even_if_the_run_stops_in_between() {
        let packets = trace_of(&[
            (10, TraceEvent::Running { vcpu: VcpuId::new(0), pcpu: PcpuId::new(1), micro: false }),
            (
                20,
                TraceEvent::Stopping {
                    vcpu: VcpuId::new(0),
                    pcpu: PcpuId::new(1),
                    reason: StopReason::Ple,
                    ip: 0xffff,
                    symbol: crate::ids::SymbolId::new(1),
                },
            ),
            (30, TraceEvent::Running { vcpu: VcpuId::new(0), pcpu: PcpuId::new(0), micro: true }),
        ]);
        let mut open: BTreeMap<u64, i32> = BTreeMap::new();
        for event in packets.iter().filter_map(|packet| packet.track_event.as_ref()) {
            let depth = open.entry(event.track_uuid.expect("a track")).or_default();
            *depth += match event.kind {
                Some(SLICE_BEGIN) => 1,
                Some(SLICE_END) => -1,
                _ => 0,
            };
            assert!((0..=1).contains(depth), "slices of one track don't overlap");
        }
        assert!(open.values().all(|depth| *depth == 0));
        // What still runs does so until the end, not until the last event.
        assert_eq!(packets.last().and_then(|packet| packet.timestamp), Some(100));
    }

    #[test]
    fn names_are_announced_before_they_are_used() {
        let packets = trace_of(&[(
            5,
            TraceEvent::Accelerated {
                vcpu: VcpuId::new(1),
                pcpu: PcpuId::new(0),
                cause: AccelerationCause::LockYield,
                class: GuestClass::LockHolder,
            },
        )]);
        let mut known = std::collections::BTreeMap::new();
        let mut used = Vec::new();
        for packet in &packets {
            for name in packet.interned_data.iter().flat_map(|data| &data.event_names) {
                known.insert(name.iid, name.name.clone().unwrap_or_default());
            }
            let iid = packet.track_event.as_ref().and_then(|event| event.name_iid);
            used.extend(iid.map(|iid| known.get(&Some(iid)).cloned().expect("announced")));
        }
        assert_eq!(used, ["accelerated"]);
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
        let mut trace = PerfettoTrace::new(Full);
        trace.begin(&names());
        assert!(!trace.progress(0, 1));
        assert_eq!(trace.finish(1).err().map(|error| error.kind()), Some(io::ErrorKind::StorageFull));
    }
}
