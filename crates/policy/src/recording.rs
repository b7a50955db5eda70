//! The file of a recording: the guest kernels that were classified with, and the decisions in their order.
//!
//! Little-endian chunks: `tag: u32, length: u32, payload, checksum: u32`. Tag 1 is a slot (`u32`) and the
//! [`GuestCode`] that is in it from here on, tag 2 a [`Record`]. The head is [`MAGIC`], [`RECORD_VERSION`]
//! and their checksum. A checksum is a CRC-32 of where the chunk begins (`u64`) and of what stands before it.
//! A recording that was cut off ends at its last whole chunk.

use crate::layout::{GUEST_CODES_MAX, GuestCode, RECORD_VERSION, Record};
use std::io::{self, ErrorKind, Read, Write};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The first eight bytes of every recording.
pub const MAGIC: [u8; 8] = *b"microrec";

const TAG_CODE: u32 = 1;
const TAG_RECORD: u32 = 2;
const HEAD_BYTES: usize = 16;
const CHECKSUM_BYTES: usize = size_of::<u32>();

/// What is wrong with a recording. Offsets are in bytes from its start.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    #[error("offset {offset}: {cause}")]
    Malformed { offset: u64, cause: String },
    #[error("offset {offset}: {source}")]
    Io { offset: u64, source: io::Error },
}

fn damaged(offset: u64) -> RecordingError {
    RecordingError::Malformed { offset, cause: "damaged: the checksum doesn't match".into() }
}

/// Writes a recording, chunk by chunk.
pub struct Writer<W: Write> {
    sink: W,
    offset: u64,
}

impl<W: Write> Writer<W> {
    pub fn new(mut sink: W) -> io::Result<Self> {
        let version = RECORD_VERSION.to_le_bytes();
        let checksum = checksum(0, &[&MAGIC, &version]).to_le_bytes();
        sink.write_all(&[&MAGIC[..], &version, &checksum].concat())?;
        Ok(Self { sink, offset: HEAD_BYTES as u64 })
    }

    /// Says which guest kernel is in a slot from here on; [`crate::ClassifyRecord::code_id`] refers to the
    /// slot.
    pub fn code(&mut self, slot: u32, code: &GuestCode) -> io::Result<()> {
        self.chunk(TAG_CODE, &[&slot.to_le_bytes(), code.as_bytes()])
    }

    pub fn record(&mut self, record: &Record) -> io::Result<()> {
        self.chunk(TAG_RECORD, &[record.as_bytes()])
    }

    pub fn finish(mut self) -> io::Result<W> {
        self.sink.flush()?;
        Ok(self.sink)
    }

    fn chunk(&mut self, tag: u32, payload: &[&[u8]]) -> io::Result<()> {
        let length: usize = payload.iter().map(|part| part.len()).sum();
        let head = [tag.to_le_bytes(), (length as u32).to_le_bytes()].concat();
        let parts = [&[&head[..]], payload].concat();
        for part in &parts {
            self.sink.write_all(part)?;
        }
        self.sink.write_all(&checksum(self.offset, &parts).to_le_bytes())?;
        self.offset += (head.len() + length + CHECKSUM_BYTES) as u64;
        Ok(())
    }
}

/// Of a chunk that begins there. One that is somewhere else than it was is damage, too.
fn checksum(offset: u64, parts: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&offset.to_le_bytes());
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize()
}

/// One chunk of a recording.
#[derive(Debug)]
pub enum Chunk {
    /// What is in a slot (below [`GUEST_CODES_MAX`]) from here on.
    Code {
        slot: u32,
        code: Box<GuestCode>,
    },
    Record(Record),
}

/// Reads a recording, chunk by chunk, in memory that doesn't grow with its length.
pub struct Reader<R: Read> {
    source: R,
    offset: u64,
}

impl<R: Read> Reader<R> {
    pub fn new(source: R) -> Result<Self, RecordingError> {
        let mut reader = Self { source, offset: 0 };
        let mut head = [0; HEAD_BYTES];
        if !reader.fill(&mut head)? || head[..8] != MAGIC {
            return Err(RecordingError::Malformed { offset: 0, cause: "no recording of microslice".into() });
        }
        let version = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        if version != RECORD_VERSION {
            let cause = format!("version {version}; this build reads version {RECORD_VERSION}");
            return Err(RecordingError::Malformed { offset: 8, cause });
        }
        if head[12..] != checksum(0, &[&head[..12]]).to_le_bytes() {
            return Err(damaged(0));
        }
        Ok(reader)
    }

    /// Where the next chunk begins, in bytes from the start.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The next chunk; `None` at the end, also when the last chunk was cut off.
    pub fn next_chunk(&mut self) -> Result<Option<Chunk>, RecordingError> {
        let start = self.offset;
        let mut head = [0; 8];
        if !self.fill(&mut head)? {
            return Ok(None);
        }
        let tag = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        match (tag, length) {
            (TAG_CODE, length) if length == size_of::<u32>() + size_of::<GuestCode>() => {
                let (mut slot, mut code) = ([0; 4], Box::new(GuestCode::new_zeroed()));
                let whole = self.fill(&mut slot)? && self.fill(code.as_mut_bytes())?;
                if !(whole && self.is_checked(start, &[&head, &slot, code.as_bytes()])?) {
                    return Ok(None);
                }
                let slot = u32::from_le_bytes(slot);
                if slot >= GUEST_CODES_MAX {
                    let cause = format!("guest kernel in slot {slot}; there are {GUEST_CODES_MAX}");
                    return Err(RecordingError::Malformed { offset: start, cause });
                }
                Ok(Some(Chunk::Code { slot, code }))
            }
            (TAG_RECORD, length) if length == size_of::<Record>() => {
                let mut record = Record::new_zeroed();
                let is_whole = self.fill(record.as_mut_bytes())?
                    && self.is_checked(start, &[&head, record.as_bytes()])?;
                Ok(is_whole.then_some(Chunk::Record(record)))
            }
            _ => Err(RecordingError::Malformed {
                offset: start,
                cause: format!("chunk of tag {tag} and {length} bytes"),
            }),
        }
    }

    /// Reads the checksum behind a chunk; false when the file ends before.
    fn is_checked(&mut self, start: u64, parts: &[&[u8]]) -> Result<bool, RecordingError> {
        let mut expected = [0; CHECKSUM_BYTES];
        if !self.fill(&mut expected)? {
            return Ok(false);
        }
        if checksum(start, parts).to_le_bytes() == expected { Ok(true) } else { Err(damaged(start)) }
    }

    /// True when all of `bytes` was read, false when the file ended before.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<bool, RecordingError> {
        match self.source.read_exact(bytes) {
            Ok(()) => {
                self.offset += bytes.len() as u64;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
            Err(source) => Err(RecordingError::Io { offset: self.offset, source }),
        }
    }
}

impl Record {
    /// A record of the given kind; `payload` is one of the `…Record` structs.
    pub fn new(
        at_ns: u64,
        vcpu: u32,
        kind: crate::RecordKind,
        payload: &(impl IntoBytes + zerocopy::Immutable + ?Sized),
    ) -> Self {
        let mut record = Self { at_ns, kind: kind.into(), vcpu, ..Self::default() };
        let bytes = payload.as_bytes();
        record.payload.as_mut_bytes()[..bytes.len()].copy_from_slice(bytes);
        record
    }

    /// The payload as the struct that the record's kind names.
    pub fn payload_as<T: FromBytes>(&self) -> T {
        T::read_from_prefix(self.payload.as_bytes()).expect("every payload struct fits into a record").0
    }
}
