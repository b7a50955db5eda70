use super::*;
use microslice_policy::{Cause, Code, GuestClass};
use microslice_trace::messages::{SLICE_BEGIN, SLICE_END, TracePacket, packets};
use std::time::Duration;
use zerocopy::{FromZeros, IntoBytes};

const SECOND: u64 = 1_000_000_000;

fn vcpu(vm: u32, vcpu_id: u32) -> TracedTask {
    TracedTask { tid: 100 + vcpu_id, vm: vm + 1, generation: 1, vcpu_id }
}

fn host_task(tid: u32) -> TracedTask {
    TracedTask { tid, vm: 0, generation: 0, vcpu_id: 0 }
}

fn event(kind: TraceKind, at_ns: u64, pcpu: u32, task: TracedTask) -> TraceEvent {
    TraceEvent { at_ns, kind: Code::raw(kind as u32), pcpu, task, ..TraceEvent::new_zeroed() }
}

fn switch(at_ns: u64, pcpu: u32, task: TracedTask, stop: TraceStop, next: TracedTask) -> TraceEvent {
    let mut event = event(TraceKind::Switch, at_ns, pcpu, task);
    (event.stop, event.next) = (Code::raw(stop as u32), next);
    event.guest_class = Code::raw(GuestClass::LockHolder as u32);
    for (to, from) in event.comm.iter_mut().zip(b"kworker/0:1") {
        *to = *from as _;
    }
    event
}

struct Traced {
    folder: tempfile::TempDir,
    tracer: Tracer,
    queue: TraceQueue,
}

impl Traced {
    /// Two pCPUs, from one second on.
    fn new(length: Duration, bytes: u64) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let settings = TraceSettings { path: folder.path().join("trace"), length, bytes };
        let mut tracer = Tracer::create(&settings, "here", 2).expect("a file");
        tracer.begin(SECOND);
        Self { folder, tracer, queue: TraceQueue::default() }
    }

    fn hear(&mut self, events: &[TraceEvent], now_ns: u64) {
        events.iter().for_each(|event| self.queue.hear(event.as_bytes()));
        self.tracer.hear(&self.queue, now_ns, &name_of);
    }

    fn finish(self, lost_in_ring: u64, now_ns: u64) -> (Ended, Vec<TracePacket>) {
        let ended = self.tracer.finish(&self.queue, lost_in_ring, now_ns, &name_of);
        let bytes = std::fs::read(self.folder.path().join("trace")).expect("the file");
        (ended, packets(&bytes).expect("whole packets"))
    }
}

fn name_of(slot: u32, _: u32) -> Option<String> {
    (slot == 0).then(|| "web".to_owned())
}

/// When which name begins, or ends, on each track that has a name.
fn slices(packets: &[TracePacket]) -> Vec<(String, u64, String)> {
    let mut names = BTreeMap::new();
    let mut tracks = BTreeMap::new();
    let mut slices = Vec::new();
    for packet in packets {
        if let Some(track) = &packet.track_descriptor {
            tracks.insert(track.uuid, track.name.clone().unwrap_or_default());
        }
        for name in packet.interned_data.iter().flat_map(|data| &data.event_names) {
            names.insert(name.iid, name.name.clone().unwrap_or_default());
        }
        let Some(event) = &packet.track_event else { continue };
        let what = match event.kind {
            Some(SLICE_BEGIN) => names[&event.name_iid].clone(),
            Some(SLICE_END) => "end".to_owned(),
            _ => continue,
        };
        slices.push((tracks[&event.track_uuid].clone(), packet.timestamp.expect("a time"), what));
    }
    slices
}

fn on(track: &str, slices: &[(String, u64, String)]) -> Vec<(u64, String)> {
    let of_track = slices.iter().filter(|(name, ..)| name == track);
    of_track.map(|(_, at, what)| (*at, what.clone())).collect()
}

fn texts(packets: &[TracePacket]) -> Vec<String> {
    let events = packets.iter().filter_map(|packet| packet.track_event.as_ref());
    events.flat_map(|event| &event.debug_annotations).filter_map(|note| note.string_value.clone()).collect()
}

#[test]
fn slices_are_in_the_order_of_their_times() {
    let mut traced = Traced::new(Duration::from_secs(10), 1 << 20);
    let (idle, worker) = (host_task(0), host_task(7));
    let mut micro = switch(SECOND + 40, 1, idle, TraceStop::Blocked, vcpu(0, 3));
    micro.turn = Code::raw(TraceTurn::Micro as u32);
    // The ring has those of two pCPUs in another order.
    traced.hear(
        &[
            switch(SECOND + 30, 0, vcpu(0, 3), TraceStop::Preempted, worker),
            switch(SECOND + 10, 0, idle, TraceStop::Blocked, vcpu(0, 3)),
            micro,
            switch(SECOND + 50, 0, worker, TraceStop::Blocked, idle),
            switch(SECOND + 60, 1, vcpu(0, 3), TraceStop::Hlt, idle),
            event(TraceKind::Wakeup, SECOND + 70, 0, vcpu(0, 3)),
        ],
        SECOND + 100,
    );
    let (ended, packets) = traced.finish(0, SECOND + 200);
    assert!(!ended.has_failed && ended.line.ends_with("6 events, 0 lost"), "{}", ended.line);
    let slices = slices(&packets);
    let told = |track: &str| {
        let on = on(track, &slices);
        on.into_iter().map(|(at, what)| format!("{} {what}", at - SECOND)).collect::<Vec<_>>()
    };
    assert_eq!(told("pCPU 0"), ["10 web/3", "30 end", "30 kworker/0:1", "50 end"]);
    assert_eq!(told("pCPU 1"), ["40 web/3", "60 end"]);
    let of_vcpu = [
        "10 running",
        "30 end",
        "30 runnable",
        "40 end",
        "40 running (micro)",
        "60 end",
        "70 runnable",
        "200 end",
    ];
    assert_eq!(told("vCPU 3"), of_vcpu);
    // Where it was stopped, of a vCPU that could have gone on.
    assert_eq!(texts(&packets), ["lock_holder"]);
}

#[test]
fn what_was_asked_and_done_for_a_vcpu_says_why() {
    let mut traced = Traced::new(Duration::from_secs(10), 1 << 20);
    let mut requested = event(TraceKind::Requested, SECOND + 1, 0, vcpu(0, 0));
    requested.cause = Code::raw(Cause::CallFunctionIpi as u32);
    let mut failed = event(TraceKind::RequestFailed, SECOND + 2, 0, vcpu(0, 0));
    failed.reason = RequestFailure::NoRoom as u32;
    let mut returned = event(TraceKind::Returned, SECOND + 4, 1, vcpu(0, 0));
    returned.reason = AccelerationReturn::NeverRan as u32;
    let mut unknown = event(TraceKind::Returned, SECOND + 5, 1, vcpu(0, 0));
    unknown.reason = 1000;
    let accelerated = event(TraceKind::Accelerated, SECOND + 3, 1, vcpu(0, 0));
    traced.hear(&[requested, failed, accelerated, returned, unknown], SECOND + 10);
    let (_, packets) = traced.finish(0, SECOND + 20);
    let said = texts(&packets);
    assert_eq!(said, ["call_function_ipi", "unknown", "no_room", "none", "unknown", "never_ran", "?"]);
}

#[test]
fn losses_are_counted_and_end_what_was_known() {
    let mut traced = Traced::new(Duration::from_secs(10), 1 << 20);
    let mut later = switch(SECOND + 30, 1, host_task(0), TraceStop::Blocked, vcpu(0, 0));
    later.lost = 5;
    traced.hear(&[switch(SECOND + 10, 0, host_task(0), TraceStop::Blocked, vcpu(0, 0)), later], SECOND + 100);
    // Two more behind the last event.
    let (ended, packets) = traced.finish(7, SECOND + 200);
    assert!(ended.line.ends_with("2 events, 7 lost"), "{}", ended.line);
    let on_first = on("pCPU 0", &slices(&packets));
    assert_eq!(on_first, [(SECOND + 10, "web/0".to_owned()), (SECOND + 30, "end".to_owned())]);
}

#[test]
fn a_trace_ends_in_time_and_at_its_size() {
    let mut traced = Traced::new(Duration::from_nanos(100), 1 << 20);
    let (idle, first) = (host_task(0), vcpu(0, 0));
    traced.hear(&[switch(SECOND + 10, 0, idle, TraceStop::Blocked, first)], SECOND + 50);
    assert!(!traced.tracer.is_over(SECOND + 50));
    traced.hear(&[switch(SECOND + 101, 0, first, TraceStop::Hlt, idle)], 2 * SECOND);
    assert!(traced.tracer.is_over(2 * SECOND));
    let (ended, packets) = traced.finish(0, 2 * SECOND);
    assert!(ended.line.contains("1 events"), "what is too late isn't written: {}", ended.line);
    assert_eq!(packets.last().and_then(|packet| packet.timestamp), Some(SECOND + 100));

    let mut traced = Traced::new(Duration::from_secs(10), 4096);
    let events: Vec<_> = (0..1000)
        .map(|at| switch(SECOND + at, 0, host_task(1), TraceStop::Blocked, vcpu(0, at as u32 % 8)))
        .collect();
    traced.hear(&events, 2 * SECOND);
    assert!(traced.tracer.is_over(2 * SECOND));
    let (ended, packets) = traced.finish(0, 2 * SECOND);
    assert!(ended.line.ends_with("(as large as it may be: --trace-size)"), "{}", ended.line);
    assert!(packets.len() < 1000);
}

#[test]
fn nonsense_from_the_kernel_side_is_no_reason_to_panic() {
    let mut traced = Traced::new(Duration::from_secs(10), 1 << 20);
    let mut nonsense = TraceEvent::new_zeroed();
    nonsense.as_mut_bytes().fill(0xff);
    nonsense.at_ns = SECOND + 1;
    let mut beyond = switch(SECOND + 2, 9, vcpu(0, 0), TraceStop::Hlt, host_task(1));
    beyond.lost = 0;
    traced.queue.hear(&[1, 2, 3]);
    traced.hear(&[nonsense, beyond], SECOND + 10);
    nonsense.pcpu = 0;
    traced.hear(&[nonsense], SECOND + 10);
    let (ended, _) = traced.finish(0, SECOND + 20);
    assert!(!ended.has_failed, "{}", ended.line);
}
