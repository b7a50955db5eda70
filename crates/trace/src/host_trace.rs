//! A group for the host has a track per pCPU, and the size of the micro pool. A group per VM has a track per
//! vCPU and its interrupts below that. Slices are what runs (on pCPUs) and the state (of vCPUs). Instants are
//! yields, accelerations, IPIs, interrupts and waits that ended. Arrows lead from one event to another.
//!
//! The groups are tracks, not processes, since the UI sorts processes, and what is in them, as it likes: vCPU
//! 10 before vCPU 2.

use crate::messages::*;
use std::collections::BTreeMap;
use std::io::{self, Write};

const WORLD_UUID: u64 = 3;
const HOST_UUID: u64 = 1;
const POOL_UUID: u64 = 2;
const PCPU_UUID: u64 = 1 << 20;
const VM_UUID: u64 = 1 << 24;
const VCPU_UUID: u64 = 1 << 28;
const INTERRUPTS_UUID: u64 = 1 << 32;
/// All packets come from one writer.
const SEQUENCE: u32 = 1;
/// So many different names of tasks are kept, whatever owner chooses them; further tasks have one name.
const TASK_NAMES_MAX: usize = 10_000;
const OTHER_TASK: &str = "another task";

/// Numbers of what a trace has tracks of: each from 0, over the whole host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Vm(pub u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Vcpu(pub u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pcpu(pub u32);

/// Categories, by which the UI filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Category {
    Run = 1,
    State,
    Yield,
    Acceleration,
    Ipi,
    Guest,
}
const CATEGORIES: [&str; 6] = ["run", "state", "yield", "acceleration", "ipi", "guest"];

/// What a vCPU runs for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    Normal,
    /// A micro slice.
    Micro,
    /// An urgent slice.
    Urgent,
}

impl Turn {
    fn state(self) -> &'static str {
        match self {
            Self::Normal => "running",
            Self::Micro => "running (micro)",
            Self::Urgent => "running (urgent)",
        }
    }

    fn category(self) -> Category {
        match self {
            Self::Normal => Category::Run,
            Self::Micro | Self::Urgent => Category::Acceleration,
        }
    }
}

/// The arrows that begin at an event, and those that end there, by their numbers.
#[derive(Debug, Default)]
pub struct Arrows {
    pub begin: Vec<u64>,
    pub end: Vec<u64>,
}

struct TracedVcpu {
    /// `target/3`: the VM's name and the vCPU's number in it.
    name: String,
    is_open: bool,
}

/// Writes packets as it is told what happens. An error of the output is kept, and comes back from
/// [`Self::finish`].
pub struct HostTrace<W: Write> {
    out: W,
    interned: BTreeMap<String, u64>,
    vms: BTreeMap<Vm, String>,
    vcpus: Vec<TracedVcpu>,
    /// Whether a pCPU's track has an open slice.
    pcpu_open: Vec<bool>,
    byte_count: u64,
    buffer: Vec<u8>,
    error: Option<io::Error>,
}

// ---- Tracks ----

impl<W: Write> HostTrace<W> {
    /// `out` should be buffered: a packet is some twenty bytes. `world` is above all that is traced.
    pub fn new(out: W, world: &str, pcpu_count: u32) -> Self {
        let mut trace = Self {
            out,
            interned: BTreeMap::new(),
            vms: BTreeMap::new(),
            vcpus: Vec::new(),
            pcpu_open: vec![false; pcpu_count as usize],
            byte_count: 0,
            buffer: Vec::new(),
            error: None,
        };
        trace.begin(world);
        trace
    }

    fn begin(&mut self, world: &str) {
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
        self.track(TrackDescriptor { parent_uuid: None, ..group(WORLD_UUID, world, 0) });
        self.track(group(HOST_UUID, "host", 0));
        self.track(TrackDescriptor {
            counter: Some(CounterDescriptor {}),
            ..child(POOL_UUID, HOST_UUID, "micro-sliced pCPUs", 0)
        });
        for pcpu in (0..self.pcpu_open.len() as u32).map(Pcpu) {
            self.track(child(pcpu_track(pcpu), HOST_UUID, &format!("pCPU {}", pcpu.0), pcpu.0 as i32 + 1));
        }
    }

    /// The next VM.
    pub fn add_vm(&mut self, name: &str) -> Vm {
        let vm = Vm(self.vms.len() as u32);
        self.vms.insert(vm, name.to_owned());
        self.track(group(VM_UUID + u64::from(vm.0), &format!("VM {name}"), vm.0 as i32 + 1));
        vm
    }

    /// The next vCPU: that of this number in its VM.
    pub fn add_vcpu(&mut self, vm: Vm, number: u32) -> Vcpu {
        let vcpu = Vcpu(self.vcpus.len() as u32);
        let name = format!("{}/{number}", self.vms.get(&vm).map_or("?", String::as_str));
        self.vcpus.push(TracedVcpu { name, is_open: false });
        let track =
            child(vcpu_track(vcpu), VM_UUID + u64::from(vm.0), &format!("vCPU {number}"), number as i32);
        self.track(track);
        self.track(child(interrupts_track(vcpu), vcpu_track(vcpu), "interrupts", 0));
        vcpu
    }

    pub fn vcpu_name(&self, vcpu: Vcpu) -> String {
        self.vcpus.get(vcpu.0 as usize).map_or_else(|| format!("?/{}", vcpu.0), |known| known.name.clone())
    }

    fn track(&mut self, descriptor: TrackDescriptor) {
        self.write(&TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE),
            track_descriptor: Some(descriptor),
            ..TracePacket::default()
        });
    }
}

// ---- What happens, at nanoseconds of one clock ----

impl<W: Write> HostTrace<W> {
    /// A vCPU runs there from now on.
    pub fn running(&mut self, time_ns: u64, vcpu: Vcpu, pcpu: Pcpu, turn: Turn) {
        let name = self.vcpu_name(vcpu);
        self.open_pcpu(time_ns, pcpu, turn.category(), &name, Vec::new());
        self.open_vcpu(time_ns, vcpu, turn.state(), vec![number("pcpu", u64::from(pcpu.0))]);
    }

    /// A task of the host that is no vCPU runs there from now on.
    pub fn task_running(&mut self, time_ns: u64, pcpu: Pcpu, name: &str, tid: u32) {
        let is_room = self.interned.len() < TASK_NAMES_MAX || self.interned.contains_key(name);
        let name = if is_room { name } else { OTHER_TASK };
        self.open_pcpu(time_ns, pcpu, Category::Run, name, vec![number("tid", u64::from(tid))]);
    }

    /// Nobody runs there from now on.
    pub fn pcpu_stops(&mut self, time_ns: u64, pcpu: Pcpu) {
        if let Some(open) = self.pcpu_open.get_mut(pcpu.0 as usize)
            && std::mem::take(open)
        {
            self.emit(time_ns, end(pcpu_track(pcpu)));
        }
    }

    /// A vCPU leaves its pCPU, and waits for another one if it `could_go_on`.
    pub fn stopping(
        &mut self,
        time_ns: u64,
        vcpu: Vcpu,
        pcpu: Pcpu,
        reason: &str,
        notes: Vec<Note>,
        could_go_on: bool,
    ) {
        self.instant(time_ns, vcpu, Category::Yield, reason, notes);
        self.pcpu_stops(time_ns, pcpu);
        if could_go_on {
            self.open_vcpu(time_ns, vcpu, "runnable", Vec::new());
        } else {
            self.blocked(time_ns, vcpu);
        }
    }

    /// A vCPU that slept wants to run. `ends`: the arrows that end here.
    pub fn runnable(&mut self, time_ns: u64, vcpu: Vcpu, ends: Vec<u64>) {
        if self.vcpus.get(vcpu.0 as usize).is_some_and(|vcpu| vcpu.is_open) {
            return;
        }
        let mut event = self.named(SLICE_BEGIN, vcpu_track(vcpu), Category::State, "runnable");
        event.terminating_flow_ids = ends;
        self.emit(time_ns, event);
        self.set_open(vcpu, true);
    }

    /// A vCPU sleeps.
    pub fn blocked(&mut self, time_ns: u64, vcpu: Vcpu) {
        if self.set_open(vcpu, false) {
            self.emit(time_ns, end(vcpu_track(vcpu)));
        }
    }

    pub fn instant(&mut self, time_ns: u64, vcpu: Vcpu, category: Category, name: &str, notes: Vec<Note>) {
        self.instant_with_arrows(time_ns, vcpu, category, name, notes, Arrows::default());
    }

    pub fn instant_with_arrows(
        &mut self,
        time_ns: u64,
        vcpu: Vcpu,
        category: Category,
        name: &str,
        notes: Vec<Note>,
        arrows: Arrows,
    ) {
        let track = match category {
            Category::Ipi => interrupts_track(vcpu),
            _ => vcpu_track(vcpu),
        };
        let mut event = self.named(INSTANT, track, category, name);
        event.debug_annotations = notes;
        event.flow_ids = arrows.begin;
        event.terminating_flow_ids = arrows.end;
        self.emit(time_ns, event);
    }

    /// So many pCPUs are micro-sliced from now on.
    pub fn pool_resized(&mut self, time_ns: u64, micro_pcpus: u32) {
        let counter_value = Some(i64::from(micro_pcpus));
        let (kind, track_uuid) = (Some(COUNTER), Some(POOL_UUID));
        self.emit(time_ns, TrackEvent { kind, track_uuid, counter_value, ..TrackEvent::default() });
    }

    /// From here on so many events are missing: what was known ends, and the host's track says so.
    pub fn lost(&mut self, time_ns: u64, count: u64) {
        self.close_all(time_ns);
        let mut event = self.named(INSTANT, HOST_UUID, Category::State, "events lost");
        event.debug_annotations = vec![number("count", count)];
        self.emit(time_ns, event);
    }

    fn open_pcpu(&mut self, time_ns: u64, pcpu: Pcpu, category: Category, name: &str, notes: Vec<Note>) {
        self.pcpu_stops(time_ns, pcpu);
        let mut event = self.named(SLICE_BEGIN, pcpu_track(pcpu), category, name);
        event.debug_annotations = notes;
        self.emit(time_ns, event);
        if let Some(open) = self.pcpu_open.get_mut(pcpu.0 as usize) {
            *open = true;
        }
    }

    fn open_vcpu(&mut self, time_ns: u64, vcpu: Vcpu, state: &str, notes: Vec<Note>) {
        self.blocked(time_ns, vcpu);
        let mut event = self.named(SLICE_BEGIN, vcpu_track(vcpu), Category::State, state);
        event.debug_annotations = notes;
        self.emit(time_ns, event);
        self.set_open(vcpu, true);
    }

    /// What it was; a number beyond those that were added is no reason to panic.
    fn set_open(&mut self, vcpu: Vcpu, is_open: bool) -> bool {
        let known = self.vcpus.get_mut(vcpu.0 as usize);
        known.is_some_and(|known| std::mem::replace(&mut known.is_open, is_open))
    }

    fn close_all(&mut self, time_ns: u64) {
        for vcpu in (0..self.vcpus.len() as u32).map(Vcpu) {
            self.blocked(time_ns, vcpu);
        }
        for pcpu in (0..self.pcpu_open.len() as u32).map(Pcpu) {
            self.pcpu_stops(time_ns, pcpu);
        }
    }
}

// ---- The output ----

impl<W: Write> HostTrace<W> {
    /// Closes open slices at the end of the trace and flushes; says whether everything was written.
    pub fn finish(mut self, end_ns: u64) -> io::Result<W> {
        self.close_all(end_ns);
        match self.error {
            Some(error) => Err(error),
            None => self.out.flush().map(|()| self.out),
        }
    }

    /// Has the output failed? Then nothing more is written.
    pub fn has_failed(&self) -> bool {
        self.error.is_some()
    }

    /// How long the trace is, to here.
    pub fn byte_count(&self) -> u64 {
        self.byte_count
    }

    /// Whatever was told until now is in the output.
    pub fn flush(&mut self) {
        if self.error.is_none() {
            self.error = self.out.flush().err();
        }
    }

    fn write(&mut self, packet: &TracePacket) {
        if self.error.is_some() {
            return;
        }
        self.buffer.clear();
        // Field 1 of `Trace`, length-delimited; writing into a Vec can't fail.
        prost::encoding::message::encode(1, packet, &mut self.buffer);
        self.byte_count += self.buffer.len() as u64;
        self.error = self.out.write_all(&self.buffer).err();
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
}

fn pcpu_track(pcpu: Pcpu) -> u64 {
    PCPU_UUID + u64::from(pcpu.0)
}

fn vcpu_track(vcpu: Vcpu) -> u64 {
    VCPU_UUID + u64::from(vcpu.0)
}

/// Interrupts have a track of their own below the vCPU's: a shootdown sends eleven at once, which the UI puts
/// on top of each other.
fn interrupts_track(vcpu: Vcpu) -> u64 {
    INTERRUPTS_UUID + u64::from(vcpu.0)
}

/// Of the host, or of a VM: what is below it is shown in the order of its ranks.
fn group(uuid: u64, name: &str, rank: i32) -> TrackDescriptor {
    TrackDescriptor { child_ordering: Some(CHILD_ORDERING_EXPLICIT), ..child(uuid, WORLD_UUID, name, rank) }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Two pCPUs, and a VM of two vCPUs.
    fn trace_of(happens: impl Fn(&mut HostTrace<Vec<u8>>, [Vcpu; 2])) -> Vec<TracePacket> {
        let mut trace = HostTrace::new(Vec::new(), "here", 2);
        let vm = trace.add_vm("target");
        let vcpus = [0, 1].map(|number| trace.add_vcpu(vm, number));
        happens(&mut trace, vcpus);
        let byte_count = trace.byte_count();
        let bytes = trace.finish(100).expect("written to memory");
        assert!(bytes.len() as u64 >= byte_count);
        packets(&bytes).expect("only packets")
    }

    fn open_slices(packets: &[TracePacket]) -> BTreeMap<u64, i32> {
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
        open
    }

    #[test]
    fn every_pcpu_and_vcpu_has_a_track_below_its_group() {
        let packets = trace_of(|_, _| {});
        let tracks: Vec<_> = packets.into_iter().filter_map(|packet| packet.track_descriptor).collect();
        let named: Vec<_> = tracks.iter().filter_map(|track| track.name.as_deref()).collect();
        let host = ["here", "host", "micro-sliced pCPUs", "pCPU 0", "pCPU 1"];
        let guest = ["VM target", "vCPU 0", "interrupts", "vCPU 1", "interrupts"];
        assert_eq!(named, [&host[..], &guest].concat());
        let uuids: std::collections::BTreeSet<_> = tracks.iter().map(|track| track.uuid).collect();
        assert_eq!(uuids.len(), tracks.len());
        assert!(tracks.iter().all(|track| track.parent_uuid.is_none() || uuids.contains(&track.parent_uuid)));
    }

    #[test]
    fn slices_begin_and_end_in_pairs_even_if_the_trace_stops_in_between() {
        let packets = trace_of(|trace, [first, second]| {
            trace.running(10, first, Pcpu(1), Turn::Normal);
            trace.stopping(20, first, Pcpu(1), "ple", vec![text("class", "lock_waiter")], true);
            trace.task_running(20, Pcpu(1), "kworker/1:0", 7);
            trace.running(30, first, Pcpu(0), Turn::Micro);
            trace.runnable(30, second, Vec::new());
            trace.runnable(40, second, Vec::new());
        });
        assert!(open_slices(&packets).values().all(|depth| *depth == 0));
        // What still runs does so until the end, not until the last event.
        assert_eq!(packets.last().and_then(|packet| packet.timestamp), Some(100));
    }

    #[test]
    fn where_events_are_lost_nothing_is_known_until_the_next_ones() {
        let packets = trace_of(|trace, [first, _]| {
            trace.running(10, first, Pcpu(0), Turn::Normal);
            trace.lost(20, 3);
            trace.running(30, first, Pcpu(1), Turn::Normal);
        });
        assert!(open_slices(&packets[..packets.len() - 2]).values().sum::<i32>() == 2);
        let ended_at_loss = packets.iter().filter(|packet| {
            let ends = |event: &TrackEvent| event.kind == Some(SLICE_END);
            packet.timestamp == Some(20) && packet.track_event.as_ref().is_some_and(ends)
        });
        assert_eq!(ended_at_loss.count(), 2);
    }

    #[test]
    fn names_are_announced_before_they_are_used() {
        let packets = trace_of(|trace, [_, second]| {
            trace.instant(5, second, Category::Acceleration, "accelerated", vec![number("pcpu", 0)]);
        });
        let mut known = BTreeMap::new();
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
    fn names_that_tasks_choose_fill_no_memory() {
        let mut trace = HostTrace::new(Vec::new(), "here", 1);
        for at in 0..2 * TASK_NAMES_MAX {
            trace.task_running(at as u64, Pcpu(0), &format!("task {at}"), 7);
        }
        assert!(trace.interned.len() <= TASK_NAMES_MAX + 1);
        assert!(trace.interned.contains_key(OTHER_TASK));
    }

    #[test]
    fn an_output_that_fails_is_written_to_no_more_and_is_reported() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::Error::from(io::ErrorKind::StorageFull))
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let trace = HostTrace::new(Full, "here", 1);
        assert!(trace.has_failed());
        assert_eq!(trace.finish(1).err().map(|error| error.kind()), Some(io::ErrorKind::StorageFull));
    }

    #[test]
    fn bytes_that_are_no_trace_are_refused() {
        let whole = HostTrace::new(Vec::new(), "here", 1).finish(1).expect("written to memory");
        assert!(packets(&whole).is_ok());
        assert!(packets(&whole[..whole.len() - 1]).is_err());
    }
}
