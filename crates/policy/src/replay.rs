//! Replay: make every decision of a recording again, natively, and compare it with what the kernel decided.
//! This is the proof that simulator and kernel run the same policy.

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
    let mut result = Replay::default();
    let mut index = 0;
    while let Some(chunk) = reader.next_chunk()? {
        match chunk {
            Chunk::Code { slot, code } => {
                codes.insert(slot, code);
            }
            Chunk::Record(record) => {
                let malformed = |cause| RecordingError::Malformed {
                    offset: 0,
                    cause: format!("record {index}: {cause}"),
                };
                let kind = record.kind.get().ok_or_else(|| malformed(format!("{:?}", record.kind)))?;
                let difference = replay_one(kind, &record, &codes, &mut pool).map_err(malformed)?;
                result.replayed_count[kind as usize] += 1;
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
        RecordKind::Classify => {
            let it: ClassifyRecord = record.payload_as();
            let code = codes
                .get(&it.code_id)
                .ok_or_else(|| format!("guest kernel {} isn't in the recording", it.code_id))?;
            differ(it.guest_class, classify(code, &it.layout, it.rip).into())
        }
        RecordKind::Yield => {
            let it: YieldRecord = record.payload_as();
            differ(it.decision, decide_on_yield(&it.seen))
        }
        RecordKind::Sibling => {
            let it: SiblingRecord = record.payload_as();
            let scope = it.scope.get().ok_or_else(|| format!("{:?}", it.scope))?;
            differ(it.decision, decide_on_sibling(scope, &it.seen).into())
        }
        RecordKind::Spinner => {
            let it: SpinnerRecord = record.payload_as();
            differ(it.decision, decide_on_spinner(&it.config, &it.seen).into())
        }
        RecordKind::Interrupt => {
            let it: InterruptRecord = record.payload_as();
            differ(it.decision, decide_on_interrupt(&it.config, &it.seen))
        }
        RecordKind::Woken => {
            let it: WokenRecord = record.payload_as();
            differ(it.decision, decide_on_woken(&it.config, &it.seen))
        }
        RecordKind::Placement => {
            let it: PlacementRecord = record.payload_as();
            differ(it.decision, decide_on_placement(&it.config, &it.seen).into())
        }
        RecordKind::MicroSlice => {
            let it: MicroSliceRecord = record.payload_as();
            differ(it.decision, decide_after_micro_slice(&it.config, &it.seen))
        }
        RecordKind::Wakeup => {
            let it: WakeupRecord = record.payload_as();
            differ(it.decision, decide_on_wakeup(&it.config, &it.seen))
        }
        RecordKind::Turn => {
            let it: TurnRecord = record.payload_as();
            differ(it.decision, decide_at_turn_end(&it.config, &it.seen).into())
        }
        RecordKind::Limit => {
            let it: LimitRecord = record.payload_as();
            differ(it.decision, decide_on_limit(&it.limit, &it.seen))
        }
        RecordKind::PoolSize => {
            let it: PoolSizeRecord = record.payload_as();
            differ(it.decision, step_pool_size(&it.config, pool, &it.seen))
        }
    })
}

/// Compares bytes, not meanings: bit for bit.
fn differ<T: IntoBytes + zerocopy::Immutable + std::fmt::Debug>(recorded: T, replayed: T) -> Sides {
    (recorded.as_bytes() != replayed.as_bytes()).then(|| (format!("{recorded:?}"), format!("{replayed:?}")))
}
