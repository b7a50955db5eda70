//! Replay: make every decision of a recording again, natively, and compare it with what the kernel decided.
//! This is the proof that simulator and kernel run the same policy.
//!
//! A decision that comes out the same says nothing about what it was made from. Where one observation can be
//! checked against another one it is: for how long a vCPU has spun, by the clock ([`Waits`]); how many urgent
//! events Algorithm 1 was shown, by the decisions that they come from ([`UrgentEvents`]).

use crate::recording::{Chunk, Reader, RecordingError};
use crate::*;
use std::collections::BTreeMap;
use std::io::Read;
use zerocopy::IntoBytes;

/// What a replay found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Replay {
    /// Decisions made again, by [`RecordKind`].
    pub replayed_count: [u64; RecordKind::ALL.len()],
    /// The first decision that differs: its index among all records, and both sides in words.
    pub first_difference: Option<Difference>,
    pub difference_count: u64,
    pub waits: Waits,
    pub urgent_events: UrgentEvents,
}

/// Exits of vCPUs that spin, by what the kernel says for how long they had ([`SpinnerObservation::spun_ns`]).
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// The vCPU began to wait.
    pub begun: u64,
    /// It had waited at the exit before, and for as long as since then now.
    pub continued: u64,
    /// It can't have waited for so long, or not for so short a time, if nothing in between is missing from
    /// the recording.
    pub wrong: u64,
}

/// Urgent events (`policy/urgent_events.h`) until the last step of Algorithm 1, as IPIs, pause-loop exits and
/// interrupts. Events that came during a step may be on either side of it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct UrgentEvents {
    /// As many as the kernel showed to Algorithm 1.
    pub shown: [u64; 3],
    /// As many as the decisions in the recording say.
    pub decided: [u64; 3],
}

impl UrgentEvents {
    /// `so_far`: by the records up to here.
    fn count(&mut self, so_far: &mut PoolSizeObservation, kind: RecordKind, record: &Record) {
        let event = match kind {
            RecordKind::Yield => {
                let it: YieldRecord = record.payload_as();
                urgent_event_of_yield(&it.seen, &it.decision)
            }
            RecordKind::Interrupt => {
                let it: InterruptRecord = record.payload_as();
                urgent_event_of_interrupt(&it.config, it.seen.kind, &it.decision)
            }
            RecordKind::Woken => {
                let it: WokenRecord = record.payload_as();
                urgent_event_of_wakeup(&it.config, &it.seen, &it.decision)
            }
            RecordKind::PoolSize => {
                let step: PoolSizeRecord = record.payload_as();
                let shown = counts_of(&step.seen);
                self.shown = std::array::from_fn(|event| self.shown[event].saturating_add(shown[event]));
                self.decided = counts_of(so_far);
                return;
            }
            _ => return,
        };
        so_far.count_urgent(event, 1);
    }
}

fn counts_of(seen: &PoolSizeObservation) -> [u64; 3] {
    [seen.ipi_count, seen.ple_count, seen.irq_count]
}

/// Of two readings of the clock for one exit, the second one may be that much later, interrupts included.
const CLOCK_TOLERANCE_NS: u64 = 1_000_000;

/// By vCPU, the exit before: when, and for how long it had spun.
type LastExits = BTreeMap<u32, (u64, u64)>;

impl Waits {
    fn count(&mut self, last: &mut LastExits, record: &Record) {
        let spun_ns = record.payload_as::<SpinnerRecord>().seen.spun_ns;
        let before = last.insert(record.vcpu, (record.at_ns, spun_ns));
        if spun_ns == 0 {
            self.begun += 1;
            return;
        }
        // One that isn't in the recording was first.
        let Some((at_ns, spun_before_ns)) = before else { return };
        let expected_ns = spun_before_ns.saturating_add(record.at_ns.saturating_sub(at_ns));
        if spun_ns.abs_diff(expected_ns) <= CLOCK_TOLERANCE_NS {
            self.continued += 1
        } else {
            self.wrong += 1
        }
    }
}

/// A decision that came out differently.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference {
    pub index: u64,
    pub kind: RecordKind,
    pub recorded: String,
    pub replayed: String,
}

impl Replay {
    pub fn total_count(&self) -> u64 {
        self.replayed_count.iter().sum()
    }
}

/// Replays a whole recording.
pub fn replay(source: impl Read) -> Result<Replay, RecordingError> {
    let mut reader = Reader::new(source)?;
    let mut codes = Codes::new();
    let mut pool = PoolSizeState::default();
    let mut last_exits = LastExits::new();
    let mut urgent_so_far = PoolSizeObservation::default();
    let mut result = Replay::default();
    let mut index = 0;
    loop {
        let offset = reader.offset();
        let Some(chunk) = reader.next_chunk()? else { break };
        match chunk {
            Chunk::Code { slot, code } => {
                codes.insert(slot, code);
            }
            Chunk::Record(record) => {
                let malformed =
                    |cause| RecordingError::Malformed { offset, cause: format!("record {index}: {cause}") };
                let kind = record.kind.get().ok_or_else(|| malformed(format!("{:?}", record.kind)))?;
                let difference = replay_one(kind, &record, &codes, &mut pool).map_err(malformed)?;
                result.replayed_count[kind as usize] += 1;
                if kind == RecordKind::Spinner {
                    result.waits.count(&mut last_exits, &record);
                }
                result.urgent_events.count(&mut urgent_so_far, kind, &record);
                if let Some((recorded, replayed)) = difference {
                    result.difference_count += 1;
                    result.first_difference.get_or_insert(Difference { index, kind, recorded, replayed });
                }
                index += 1;
            }
        }
    }
    Ok(result)
}

type Sides = Option<(String, String)>;
/// What is in which slot at this point of the recording.
type Codes = BTreeMap<u32, Box<GuestCode>>;

fn replay_one(
    kind: RecordKind,
    record: &Record,
    codes: &Codes,
    pool: &mut PoolSizeState,
) -> Result<Sides, String> {
    Ok(match kind {
        RecordKind::Classify => classified_again(&record.payload_as(), codes)?,
        RecordKind::PoolSize => {
            let it: PoolSizeRecord = record.payload_as();
            differ(it.decision, step_pool_size(&it.config, pool, &it.seen))
        }
        RecordKind::Yield => record.payload_as::<YieldRecord>().sides(),
        RecordKind::Sibling => sibling_again(&record.payload_as())?,
        RecordKind::Spinner => record.payload_as::<SpinnerRecord>().sides(),
        RecordKind::Interrupt => record.payload_as::<InterruptRecord>().sides(),
        RecordKind::Woken => record.payload_as::<WokenRecord>().sides(),
        RecordKind::Placement => record.payload_as::<PlacementRecord>().sides(),
        RecordKind::Home => record.payload_as::<HomeRecord>().sides(),
        RecordKind::MicroSlice => record.payload_as::<MicroSliceRecord>().sides(),
        RecordKind::Wakeup => record.payload_as::<WakeupRecord>().sides(),
        RecordKind::Turn => record.payload_as::<TurnRecord>().sides(),
        RecordKind::Window => record.payload_as::<WindowRecord>().sides(),
        RecordKind::Limit => record.payload_as::<LimitRecord>().sides(),
        RecordKind::Boost => record.payload_as::<BoostRecord>().sides(),
        RecordKind::Ipi => record.payload_as::<IpiRecord>().sides(),
        RecordKind::Urgent => record.payload_as::<UrgentRecord>().sides(),
        RecordKind::UrgentTurn => record.payload_as::<UrgentTurnRecord>().sides(),
        RecordKind::Held => record.payload_as::<HeldRecord>().sides(),
        RecordKind::Heir => record.payload_as::<HeirRecord>().sides(),
        RecordKind::Candidate => candidate_again(&record.payload_as())?,
    })
}

fn classified_again(it: &ClassifyRecord, codes: &Codes) -> Result<Sides, String> {
    let code = codes
        .get(&it.code_id)
        .ok_or_else(|| format!("guest kernel {} isn't in the recording", it.code_id))?;
    Ok(differ(it.guest_class, classify(code, &it.layout, it.rip).into()))
}

fn sibling_again(it: &SiblingRecord) -> Result<Sides, String> {
    let scope = it.scope.get().ok_or_else(|| format!("{:?}", it.scope))?;
    Ok(differ(it.decision, decide_on_sibling(scope, &it.seen).into()))
}

fn candidate_again(it: &CandidateRecord) -> Result<Sides, String> {
    let scheme = it.scheme.get().ok_or_else(|| format!("{:?}", it.scheme))?;
    Ok(differ(it.decision, u32::from(coordinated::decide_on_candidate(scheme, &it.seen))))
}

/// A record that holds all that its decision was made from.
trait Whole {
    /// The decision that is recorded, and that which is made now, where they differ.
    fn sides(&self) -> Sides;
}

impl Whole for YieldRecord {
    fn sides(&self) -> Sides {
        differ(self.decision, decide_on_yield(&self.seen))
    }
}

impl Whole for SpinnerRecord {
    fn sides(&self) -> Sides {
        differ(self.decision, decide_on_spinner(&self.config, &self.seen).into())
    }
}

impl Whole for InterruptRecord {
    fn sides(&self) -> Sides {
        differ(self.decision, decide_on_interrupt(&self.config, &self.seen))
    }
}

impl Whole for WokenRecord {
    fn sides(&self) -> Sides {
        differ(self.decision, decide_on_woken(&self.config, &self.seen))
    }
}

impl Whole for PlacementRecord {
    fn sides(&self) -> Sides {
        differ(self.decision, decide_on_placement(&self.config, &self.seen).into())
    }
}

impl Whole for HomeRecord {
    fn sides(&self) -> Sides {
        differ(self.decision, decide_on_home(&self.config, &self.seen).into())
    }
}

impl Whole for MicroSliceRecord {
    fn sides(&self) -> Sides {
        differ(self.decision, decide_after_micro_slice(&self.config, &self.seen))
    }
}

impl Whole for WakeupRecord {
    fn sides(&self) -> Sides {
        differ(self.decision, decide_on_wakeup(&self.config, &self.seen))
    }
}

impl Whole for TurnRecord {
    fn sides(&self) -> Sides {
        differ(self.decision, delay_preemption::decide_on_delay(&self.config, &self.seen))
    }
}

impl Whole for BoostRecord {
    fn sides(&self) -> Sides {
        differ(self.decision, decide_on_boost(&self.config, &self.seen).into())
    }
}

impl Whole for HeldRecord {
    fn sides(&self) -> Sides {
        differ(self.decision, decide_on_count(&self.seen))
    }
}

impl Whole for HeirRecord {
    fn sides(&self) -> Sides {
        differ(self.decision, decide_on_heir(&self.state, &self.seen))
    }
}

impl Whole for UrgentRecord {
    fn sides(&self) -> Sides {
        differ(self.decision, coordinated::decide_on_urgent(&self.config, &self.seen).into())
    }
}

impl Whole for LimitRecord {
    fn sides(&self) -> Sides {
        differ(self.decision, decide_on_limit(&self.limit, &self.seen))
    }
}

impl Whole for WindowRecord {
    fn sides(&self) -> Sides {
        let state = DelayState {
            offset_sum_ns: self.offset_sum_ns,
            offset_count: self.offset_count,
            penalty_turns: self.penalty_turns,
            ..DelayState::default()
        };
        differ(self.window, state.window_around(&self.config, self.due_ns))
    }
}

impl Whole for IpiRecord {
    fn sides(&self) -> Sides {
        let config = UrgentConfig { delay_ns: self.delay_ns, ..UrgentConfig::default() };
        differ(self.decision, coordinated::decide_on_ipi(&config, &self.seen))
    }
}

impl Whole for UrgentTurnRecord {
    fn sides(&self) -> Sides {
        let turn =
            coordinated::decide_on_urgent_turn(&self.config, &self.state, self.ran_ns, self.others_count);
        differ(self.decision, turn.into())
    }
}

/// Compares bytes, not meanings: bit for bit.
fn differ<T: IntoBytes + zerocopy::Immutable + std::fmt::Debug>(recorded: T, replayed: T) -> Sides {
    (recorded.as_bytes() != replayed.as_bytes()).then(|| (format!("{recorded:?}"), format!("{replayed:?}")))
}
