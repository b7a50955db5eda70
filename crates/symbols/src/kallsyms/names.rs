//! `kallsyms_num_syms`, `kallsyms_names` and `kallsyms_markers`: a count, that many compressed names, and the
//! offset of every 256th, which is what proves the other two.

use super::tokens::{ALIGNMENT_MAX, Tokens};
use super::{Budget, SYMBOLS_MIN, align_up, read_u32, read_u64};
use crate::Error;
use crate::table::SYMBOLS_MAX;

/// How far before the token table the count can be: names and markers of [`SYMBOLS_MAX`] symbols.
const SEARCH_BYTES_MAX: usize = 128 << 20;
const SYMBOLS_PER_MARKER: usize = 256;
/// As the search for token tables: a step for so many bytes, whatever they hold.
const BYTES_PER_STEP: usize = 64;

/// How a name's length is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LengthCoding {
    /// One byte, or two for 128 and more (ULEB128): from 6.1 on.
    Uleb128,
    /// One byte, always.
    Byte,
}

/// Names that their markers confirm.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    /// `kallsyms_num_syms`.
    pub count: usize,
    /// Offset of `kallsyms_num_syms`.
    pub count_offset: usize,
    /// Offset of `kallsyms_names`.
    pub names_offset: usize,
    /// Offset of the first byte behind the names.
    pub names_end: usize,
    pub coding: LengthCoding,
}

impl Names {
    pub fn walk<'b>(&self, bytes: &'b [u8]) -> Walk<'b> {
        Walk { bytes: &bytes[self.names_offset..self.names_end], position: 0, coding: self.coding }
    }
}

/// Steps from name to name.
pub struct Walk<'b> {
    bytes: &'b [u8],
    /// Offset of the next name from the first.
    pub position: usize,
    coding: LengthCoding,
}

impl<'b> Walk<'b> {
    /// The tokens of the next name; `None` at the end or where the bytes end inside it.
    pub fn next_entry(&mut self) -> Option<&'b [u8]> {
        let mut length = usize::from(*self.bytes.get(self.position)?);
        let mut start = self.position + 1;
        if self.coding == LengthCoding::Uleb128 && length & 0x80 != 0 {
            length = (length & 0x7f) | usize::from(*self.bytes.get(start)?) << 7;
            start += 1;
        }
        let entry = self.bytes.get(start..start + length)?;
        self.position = start + length;
        Some(entry)
    }
}

/// The names that end before the token table: nearest first, down to [`SEARCH_BYTES_MAX`].
///
/// # Errors
/// No count has that many names and their markers behind it.
pub fn find_before(bytes: &[u8], tokens: &Tokens<'_>, budget: &mut Budget) -> Result<Names, Error> {
    let lowest = tokens.table_offset.saturating_sub(SEARCH_BYTES_MAX);
    let mut offset = tokens.table_offset & !3;
    while offset >= lowest + 4 {
        offset -= 4;
        if offset.is_multiple_of(BYTES_PER_STEP) {
            budget.spend(1)?;
        }
        let Some(count) = read_u32(bytes, offset) else { continue };
        let count = count as usize;
        if !(SYMBOLS_MIN..=SYMBOLS_MAX).contains(&count) || count > (tokens.table_offset - offset) / 2 {
            continue;
        }
        let Some(names_offset) = names_behind_count(bytes, offset, tokens.table_offset) else { continue };
        for coding in [LengthCoding::Uleb128, LengthCoding::Byte] {
            let names =
                Names { count, count_offset: offset, names_offset, names_end: tokens.table_offset, coding };
            if let Some(names) = confirm(bytes, names, tokens, budget)? {
                return Ok(names);
            }
        }
    }
    Err(Error::malformed(tokens.table_offset as u64, "a token table without the names that it compresses"))
}

/// A name has at least one byte, so the first byte that isn't zero behind the count (4 or 8 bytes, padded)
/// starts the names.
fn names_behind_count(bytes: &[u8], count_offset: usize, limit: usize) -> Option<usize> {
    let behind = count_offset + 4;
    let window = bytes.get(behind..limit.min(behind + ALIGNMENT_MAX))?;
    let first = behind + window.iter().position(|&byte| byte != 0)?;
    first.is_multiple_of(4).then_some(first)
}

/// Walks `count` names, each of which must start with a type, and compares the markers behind them.
fn confirm(
    bytes: &[u8],
    names: Names,
    tokens: &Tokens<'_>,
    budget: &mut Budget,
) -> Result<Option<Names>, Error> {
    let mut walk = names.walk(bytes);
    let mut markers = Vec::new();
    for symbol in 0..names.count {
        if symbol % SYMBOLS_PER_MARKER == 0 {
            markers.push(walk.position as u64);
            budget.spend(SYMBOLS_PER_MARKER as u64 / 4)?;
        }
        let typed = walk
            .next_entry()
            .and_then(|entry| entry.first())
            .is_some_and(|&token| tokens.starts_with_type(token));
        if !typed {
            return Ok(None);
        }
    }
    let names_end = names.names_offset + walk.position;
    let confirmed = markers_follow(bytes, names_end, tokens.table_offset, &markers);
    Ok(confirmed.then_some(Names { names_end, ..names }))
}

/// Are these the markers behind the names, in 4 or (up to 4.19) 8 bytes each, at one of the alignments?
fn markers_follow(bytes: &[u8], names_end: usize, limit: usize, markers: &[u64]) -> bool {
    [4, 8, ALIGNMENT_MAX].into_iter().any(|alignment| {
        let start = align_up(names_end, alignment);
        let fits = |width: usize| start + width * markers.len() <= limit;
        let narrow = fits(4)
            && markers
                .iter()
                .enumerate()
                .all(|(i, &marker)| read_u32(bytes, start + 4 * i).map(u64::from) == Some(marker));
        let wide = fits(8)
            && markers.iter().enumerate().all(|(i, &marker)| read_u64(bytes, start + 8 * i) == Some(marker));
        narrow || wide
    })
}
