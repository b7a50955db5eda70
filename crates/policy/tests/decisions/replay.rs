//! Recordings: written, read, replayed; and what happens to those that lie.

use microslice_policy::recording::{Reader, Writer};
use microslice_policy::replay::{UrgentEvents, Waits, replay};
use microslice_policy::*;
use proptest::prelude::*;
use zerocopy::IntoBytes;

fn a_guest() -> GuestCode {
    let range = ClassRange { start: 0x8000_0000_0000_1100, end: 0x8000_0000_0000_1200, ..lock_holder() };
    GuestCode::new(0x8000_0000_0000_1000, 0x8000_0000_0000_2000, &[range]).unwrap()
}

fn lock_holder() -> ClassRange {
    ClassRange { guest_class: GuestClass::LockHolder.into(), ..Default::default() }
}

/// Writes records of one vCPU, 1 us after another.
struct Recorder {
    writer: Writer<Vec<u8>>,
    at_ns: u64,
}

impl Recorder {
    fn write(&mut self, kind: RecordKind, payload: &[u8]) {
        self.at_ns += 1000;
        self.writer.record(&Record::new(self.at_ns, 3, kind, payload)).unwrap();
    }
}

/// One decision of every kind, as the real host would record it.
fn one_of_each() -> Vec<u8> {
    let mut recorder = Recorder { writer: Writer::new(Vec::new()).unwrap(), at_ns: 0 };
    let guest_class = one_of_a_guests_code(&mut recorder);
    one_of_each_hint(&mut recorder, guest_class);
    one_of_each_place(&mut recorder);
    one_of_each_turns_end(&mut recorder, guest_class);
    one_of_each_share(&mut recorder);
    one_of_what_is_held(&mut recorder);
    one_of_an_heir(&mut recorder);
    one_of_each_urgency(&mut recorder);
    five_of_the_pools_size(&mut recorder);
    recorder.writer.finish().unwrap()
}

fn one_of_a_guests_code(recorder: &mut Recorder) -> GuestClass {
    let guest = a_guest();
    let code_id = 0;
    recorder.writer.code(code_id, &guest).unwrap();
    let layout = GuestLayout::slid_by(0x20_0000);
    let rip = 0x8000_0000_0020_1180;
    let guest_class = classify(&guest, &layout, rip);
    let classified = ClassifyRecord { rip, layout, code_id, guest_class: guest_class.into() };
    recorder.write(RecordKind::Classify, classified.as_bytes());
    guest_class
}

fn one_of_each_hint(recorder: &mut Recorder, guest_class: GuestClass) {
    let config = AccelerateConfig::PAPER;
    let seen = YieldObservation {
        cause: YieldCause::Ple.into(),
        guest_class: GuestClass::LockWaiter.into(),
        micro_pcpu_count: 1,
        ..Default::default()
    };
    recorder.write(RecordKind::Yield, YieldRecord { seen, decision: decide_on_yield(&seen) }.as_bytes());

    let seen = SiblingObservation {
        state: VcpuState::Runnable.into(),
        preempted: 1,
        guest_class: guest_class.into(),
        ..Default::default()
    };
    let scope = PassScope::OneCritical;
    let decision = decide_on_sibling(scope, &seen).into();
    recorder.write(RecordKind::Sibling, SiblingRecord { seen, scope: scope.into(), decision }.as_bytes());

    let seen = SpinnerObservation { cause: YieldCause::Ple.into(), helped_count: 1, ..Default::default() };
    let decision = decide_on_spinner(&config, &seen).into();
    recorder.write(RecordKind::Spinner, SpinnerRecord { config, seen, decision, reserved: 0 }.as_bytes());

    let seen = InterruptObservation {
        kind: InterruptKind::Virq.into(),
        recipient_state: VcpuState::Runnable.into(),
        micro_pcpu_count: 1,
        guest_known: 1,
        recipient_goes_first: 0,
        reserved: 0,
    };
    let decision = decide_on_interrupt(&config, &seen);
    recorder.write(RecordKind::Interrupt, InterruptRecord { config, seen, decision }.as_bytes());

    let seen = WokenObservation { lock_halt: 1, micro_pcpu_count: 1, guest_known: 1, ..Default::default() };
    let decision = decide_on_woken(&config, &seen);
    recorder.write(RecordKind::Woken, WokenRecord { config, seen, decision }.as_bytes());
}

fn one_of_each_place(recorder: &mut Recorder) {
    let config = AccelerateConfig::PAPER;
    let seen = PlacementObservation { queued_count: 1, affinity_allows: 1 };
    let decision = decide_on_placement(&config, &seen).into();
    recorder.write(RecordKind::Placement, PlacementRecord { config, seen, decision, reserved: 0 }.as_bytes());

    let seen = HomeObservation { affinity_allows: 1, gives_way: 1, ..Default::default() };
    let decision = decide_on_home(&config, &seen).into();
    recorder.write(RecordKind::Home, HomeRecord { config, seen, decision, reserved: 0 }.as_bytes());

    let seen = MicroSliceObservation { interrupt_pending: 1, ..Default::default() };
    let decision = decide_after_micro_slice(&config, &seen);
    recorder.write(RecordKind::MicroSlice, MicroSliceRecord { config, seen, decision }.as_bytes());
}

fn one_of_each_turns_end(recorder: &mut Recorder, guest_class: GuestClass) {
    let config = DelayConfig::of_grace(10, 100_000);
    let window = config.window_of_grace();
    let seen = DelayObservation { window, guest_class: guest_class.into(), ..Default::default() };
    let decision = delay_preemption::decide_on_delay(&config, &seen);
    recorder.write(RecordKind::Turn, TurnRecord { config, seen, decision }.as_bytes());

    let config = DelayConfig { history: 2, ..config };
    let state = DelayState { offset_sum_ns: 300_000, offset_count: 1, ..Default::default() };
    let window = state.window_around(&config, 9_000_000);
    let (offset_sum_ns, offset_count) = (state.offset_sum_ns, state.offset_count);
    let began =
        WindowRecord { config, offset_sum_ns, offset_count, penalty_turns: 0, due_ns: 9_000_000, window };
    recorder.write(RecordKind::Window, began.as_bytes());
}

fn one_of_each_share(recorder: &mut Recorder) {
    let config = FairShareConfig::PAPER;
    let seen =
        WakeupObservation { pool_vtime_ns: 9, vcpu_vtime_ns: 9, weight: 1024, was_blocked: 1, reserved: 0 };
    let decision = decide_on_wakeup(&config, &seen);
    recorder.write(RecordKind::Wakeup, WakeupRecord { config, seen, decision }.as_bytes());

    let limit = CpuLimit { quota_us: 20_000, period_us: 100_000, ..CpuLimit::default() };
    let seen = LimitObservation { now_ns: 9, clock_ns: 8, slice_ns: 30_000_000, ..Default::default() };
    let decision = decide_on_limit(&limit, &seen);
    recorder.write(RecordKind::Limit, LimitRecord { limit, seen, decision }.as_bytes());

    let config =
        BoostConfig { vm_percent: 1, host_percent: 5, pcpu_count: 4, burst_ns: 1, ..Default::default() };
    let seen = BoostObservation { now_ns: 9, ..Default::default() };
    let decision = decide_on_boost(&config, &seen).into();
    recorder.write(RecordKind::Boost, BoostRecord { config, seen, decision, reserved: 0 }.as_bytes());
}

fn one_of_what_is_held(recorder: &mut Recorder) {
    let look = CountLook { count: 1, guest_class: GuestClass::KernelOther.into() };
    let belief = CountBelief { belief: Belief::Believed.into(), ..Default::default() };
    let seen = CountObservation { critical_by: CriticalBy::Both.into(), belief, look, ..Default::default() };
    let decision = decide_on_count(&seen);
    assert_eq!(decision.guest_class, GuestClass::LockHolder.into());
    recorder.write(RecordKind::Held, HeldRecord { seen, decision }.as_bytes());
}

fn one_of_an_heir(recorder: &mut Recorder) {
    let state = HeirState { rest_until_ns: 0, tried: 1, vain_rounds: 1 };
    let trial = heir_trial_of(GuestClass::LockWaiter, 1_000).into();
    let seen = HeirObservation { now_ns: 9, waiter_count: 1, trial, ..Default::default() };
    let decision = decide_on_heir(&state, &seen);
    assert_eq!(decision.decision, HeirDecision::Rests.into());
    recorder.write(RecordKind::Heir, HeirRecord { state, seen, decision }.as_bytes());
}

fn one_of_each_urgency(recorder: &mut Recorder) {
    let config = UrgentConfig::PAPER;
    let seen = IpiObservation {
        kind: InterruptKind::IpiReschedule.into(),
        schemes: coordinated::RESCHED_DP,
        ..Default::default()
    };
    let decision = coordinated::decide_on_ipi(&config, &seen);
    recorder.write(RecordKind::Ipi, IpiRecord { delay_ns: config.delay_ns, seen, decision }.as_bytes());

    let state = decision.sender;
    let seen = UrgentObservation { state, vtime_ns: 9, current_exists: 1, ..Default::default() };
    let decision = coordinated::decide_on_urgent(&config, &seen).into();
    recorder.write(RecordKind::Urgent, UrgentRecord { config, seen, decision, reserved: 0 }.as_bytes());

    let (ran_ns, others_count) = (9, 2);
    let decision = coordinated::decide_on_urgent_turn(&config, &state, ran_ns, others_count).into();
    let turn = UrgentTurnRecord { config, state, ran_ns, others_count, decision };
    recorder.write(RecordKind::UrgentTurn, turn.as_bytes());

    let seen = CandidateObservation { load: 3, has_sibling: 1, some_candidate_has_room: 0 };
    let scheme = BalanceScheme::LoadConscious;
    let decision = coordinated::decide_on_candidate(scheme, &seen).into();
    recorder
        .write(RecordKind::Candidate, CandidateRecord { scheme: scheme.into(), decision, seen }.as_bytes());
}

fn five_of_the_pools_size(recorder: &mut Recorder) {
    let config = PoolSizeConfig::PAPER;
    let mut pool = PoolSizeState::default();
    for ipi_count in [0, 90, 80, 10, 40] {
        let seen = PoolSizeObservation { ipi_count, ..Default::default() };
        let decision = step_pool_size(&config, &mut pool, &seen);
        recorder.write(RecordKind::PoolSize, PoolSizeRecord { config, seen, decision }.as_bytes());
    }
}

#[test]
fn every_kind_of_decision_replays_bit_for_bit() {
    let replayed = replay(one_of_each().as_slice()).unwrap();
    assert_eq!(replayed.difference_count, 0, "{:?}", replayed.first_difference);
    assert_eq!(replayed.replayed_count, [1, 1, 1, 1, 1, 1, 1, 1, 5, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
}

#[test]
fn a_decision_that_the_policy_would_not_make_is_found_and_shown() {
    let mut recording = one_of_each();
    let last = recording.len() - size_of::<u32>();
    // Before the checksum. Of the decision: interval (8 bytes), count (4), reason (4), then padding.
    let padding = size_of::<Record>() - 16 - size_of::<PoolSizeRecord>();
    recording[last - padding - 8] ^= 1;
    forge(&mut recording);
    let replayed = replay(recording.as_slice()).unwrap();
    assert_eq!(replayed.difference_count, 1);
    let difference = replayed.first_difference.unwrap();
    assert_eq!((difference.kind, difference.index), (RecordKind::PoolSize, 24));
    assert_ne!(difference.recorded, difference.replayed);
}

/// What a replay finds of one vCPU that spins: (milliseconds since the start, milliseconds spun by then).
fn waits(exits: &[(u64, u64)]) -> Waits {
    const MS: u64 = 1_000_000;
    let mut writer = Writer::new(Vec::new()).unwrap();
    let config = AccelerateConfig::DEFAULT;
    for &(at_ms, spun_ms) in exits {
        let seen =
            SpinnerObservation { cause: YieldCause::Ple.into(), spun_ns: spun_ms * MS, ..Default::default() };
        let decision = decide_on_spinner(&config, &seen).into();
        let payload = SpinnerRecord { config, seen, decision, reserved: 0 };
        let record = Record::new(at_ms * MS, 3, RecordKind::Spinner, zerocopy::IntoBytes::as_bytes(&payload));
        writer.record(&record).unwrap();
    }
    replay(writer.finish().unwrap().as_slice()).unwrap().waits
}

#[test]
fn a_spinner_that_cannot_have_waited_for_so_long_is_counted() {
    let counts = |begun, continued, wrong| Waits { begun, continued, wrong };
    assert_eq!(waits(&[(10, 0), (13, 3), (17, 7), (30, 0), (40, 10)]), counts(2, 3, 0));
    assert_eq!(waits(&[(10, 0), (13, 30)]), counts(1, 0, 1));
    assert_eq!(waits(&[(10, 0), (13, 3), (40, 3)]), counts(1, 1, 1));
    assert_eq!(waits(&[(10, 5)]), counts(0, 0, 0), "the exit before isn't there");
}

/// A shootdown's yield, a lock's, and a device interrupt to a preempted vCPU, and then a step of Algorithm 1
/// that saw `shown`.
fn urgent_events(shown: PoolSizeObservation) -> UrgentEvents {
    use zerocopy::IntoBytes;
    let mut writer = Writer::new(Vec::new()).unwrap();
    let mut write = |kind, payload: &[u8]| writer.record(&Record::new(1, 3, kind, payload)).unwrap();
    for class in [GuestClass::TlbShootdown, GuestClass::LockWaiter, GuestClass::User] {
        let seen = YieldObservation {
            cause: YieldCause::Ple.into(),
            guest_class: class.into(),
            ..Default::default()
        };
        write(RecordKind::Yield, YieldRecord { seen, decision: decide_on_yield(&seen) }.as_bytes());
    }
    let config = AccelerateConfig::DEFAULT;
    let seen = InterruptObservation {
        kind: InterruptKind::Virq.into(),
        recipient_state: VcpuState::Runnable.into(),
        guest_known: 1,
        ..Default::default()
    };
    let decision = decide_on_interrupt(&config, &seen);
    write(RecordKind::Interrupt, InterruptRecord { config, seen, decision }.as_bytes());
    let config = PoolSizeConfig::PAPER;
    let decision = step_pool_size(&config, &mut PoolSizeState::default(), &shown);
    write(RecordKind::PoolSize, PoolSizeRecord { config, seen: shown, decision }.as_bytes());
    replay(writer.finish().unwrap().as_slice()).unwrap().urgent_events
}

#[test]
fn urgent_events_that_algorithm_1_was_not_shown_are_seen() {
    let shown = |ipi_count, ple_count, irq_count| {
        urgent_events(PoolSizeObservation { ipi_count, ple_count, irq_count, ..Default::default() })
    };
    assert_eq!(shown(1, 1, 1), UrgentEvents { shown: [1, 1, 1], decided: [1, 1, 1] });
    assert_eq!(shown(1, 2, 0), UrgentEvents { shown: [1, 2, 0], decided: [1, 1, 1] });
}

#[test]
fn a_recording_that_was_cut_off_replays_up_to_the_cut() {
    let recording = one_of_each();
    let replayed = replay(&recording[..recording.len() - 1]).unwrap();
    assert_eq!((replayed.total_count(), replayed.difference_count), (24, 0));
}

#[test]
fn a_slot_means_the_guest_kernel_that_was_put_there_last() {
    let mut writer = Writer::new(Vec::new()).unwrap();
    let layout = GuestLayout::slid_by(0);
    let rip = 0x8000_0000_0000_1180;
    let other = GuestCode::new(0x8000_0000_0000_1000, 0x8000_0000_0000_2000, &[]).unwrap();
    // Slots needn't come in their order: whichever guest is known first.
    for (slot, code) in [(7, &a_guest()), (2, &other), (7, &other)] {
        writer.code(slot, code).unwrap();
        let guest_class = classify(code, &layout, rip).into();
        let classified = ClassifyRecord { rip, layout, code_id: slot, guest_class };
        writer.record(&Record::new(1, 1, RecordKind::Classify, &classified)).unwrap();
    }
    let replayed = replay(writer.finish().unwrap().as_slice()).unwrap();
    assert_eq!(
        (replayed.total_count(), replayed.difference_count),
        (3, 0),
        "{:?}",
        replayed.first_difference
    );
}

#[test]
fn a_slot_that_no_kernel_has_is_refused() {
    let mut writer = Writer::new(Vec::new()).unwrap();
    writer.code(64, &a_guest()).unwrap();
    let refused = replay(writer.finish().unwrap().as_slice()).unwrap_err().to_string();
    assert_eq!(refused, "offset 16: guest kernel in slot 64; there are 64");
}

#[test]
fn a_record_that_refers_to_nothing_is_refused_with_its_place() {
    let mut writer = Writer::new(Vec::new()).unwrap();
    writer.code(3, &a_guest()).unwrap();
    let layout = GuestLayout::slid_by(0);
    let classified = ClassifyRecord { rip: 1, layout, code_id: 4, guest_class: GuestClass::Unknown.into() };
    writer.record(&Record::new(1, 1, RecordKind::Classify, &classified)).unwrap();
    let recording = writer.finish().unwrap();
    let at = recording.len() - size_of::<Record>() - 12;
    let refused = replay(recording.as_slice()).unwrap_err().to_string();
    assert_eq!(refused, format!("offset {at}: record 0: guest kernel 4 isn't in the recording"));
}

#[test]
fn other_files_and_other_versions_are_refused_with_their_place() {
    let refused = |bytes: &[u8]| Reader::new(bytes).err().unwrap().to_string();
    assert_eq!(refused(b"ELF"), "offset 0: no recording of microslice");
    let mut recording = one_of_each();
    recording[8] = 99;
    assert_eq!(refused(&recording), "offset 8: version 99; this build reads version 22");
}

/// Computes all checksums anew: a forger can.
fn forge(recording: &mut [u8]) {
    let mut at = 16;
    while let Some(head) = recording.get(at..at + 8) {
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let end = at + 8 + length;
        let Some(chunk) = recording.get(at..end) else { return };
        let checksum = crc32fast::hash(&[&(at as u64).to_le_bytes(), chunk].concat());
        let Some(place) = recording.get_mut(end..end + 4) else { return };
        place.copy_from_slice(&checksum.to_le_bytes());
        at = end + 4;
    }
}

proptest! {
    #[test]
    fn a_flipped_bit_is_refused_with_its_place(at: proptest::sample::Index, bit in 0..8) {
        let mut recording = one_of_each();
        let at = at.index(recording.len());
        recording[at] ^= 1u8 << bit;
        let refused = replay(recording.as_slice()).map(drop).expect_err("damaged").to_string();
        prop_assert!(refused.starts_with("offset "), "{}", refused);
    }

    #[test]
    fn no_bytes_make_a_replay_panic(tail in proptest::collection::vec(any::<u8>(), 0..2000), at in 0usize..14_000) {
        let mut recording = one_of_each();
        let at = at.min(recording.len());
        let end = (at + tail.len()).min(recording.len());
        recording[at..end].copy_from_slice(&tail[..end - at]);
        let _ = replay(recording.as_slice());
        forge(&mut recording);
        let _ = replay(recording.as_slice());
    }
}
