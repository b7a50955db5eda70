//! Token table and token index: 256 NUL-terminated strings, and 256 16-bit offsets into them.

use super::Budget;
use crate::Error;

pub const TOKENS: usize = 256;
pub const INDEX_BYTES: usize = 2 * TOKENS;
/// Longest token: it may expand to a whole name (`KSYM_NAME_LEN`).
const TOKEN_BYTES_MAX: u16 = 512;
/// Widest alignment between two sections (arm64 up to 5.5 aligned them to 256 bytes).
pub const ALIGNMENT_MAX: usize = 256;

/// A token table that its index confirms, string by string.
#[derive(Debug)]
pub struct Tokens<'b> {
    strings: [&'b [u8]; TOKENS],
    /// Offset of `kallsyms_token_table`.
    pub table_offset: usize,
    /// Offset of `kallsyms_token_index`.
    pub index_offset: usize,
}

impl<'b> Tokens<'b> {
    pub fn string(&self, token: u8) -> &'b [u8] {
        self.strings[usize::from(token)]
    }

    /// Can a compressed name start with `token`? Its first character is the symbol's type.
    pub fn starts_with_type(&self, token: u8) -> bool {
        self.string(token).first().is_some_and(|&first| first.is_ascii_alphabetic() || first == b'?')
    }
}

/// The first token table at or after `from`.
pub fn find_from<'b>(bytes: &'b [u8], from: usize, budget: &mut Budget) -> Result<Option<Tokens<'b>>, Error> {
    let mut offset = from.next_multiple_of(4);
    let from = offset;
    // An index starts with 0 and the length of the first string and its NUL; few words of a kernel look like
    // that.
    while offset + INDEX_BYTES <= bytes.len() {
        let word = u32::from_le_bytes(*bytes[offset..].first_chunk().expect("an index fits behind offset"));
        if word & 0xffff == 0 && word >> 16 != 0 && word >> 16 <= u32::from(TOKEN_BYTES_MAX) {
            budget.spend(16)?;
            if let Some(index) = rising_index(&bytes[offset..offset + INDEX_BYTES])
                && let Some(tokens) = table_before(bytes, offset, &index, budget)?
            {
                budget.spend(((offset - from) / 64) as u64)?;
                return Ok(Some(tokens));
            }
        }
        offset += 4;
    }
    budget.spend(((offset - from) / 64) as u64)?;
    Ok(None)
}

/// The index at `bytes`, if each entry is above the one before by the length of a possible token.
fn rising_index(bytes: &[u8]) -> Option<[u16; TOKENS]> {
    let mut index = [0u16; TOKENS];
    for (entry, pair) in index.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *entry = u16::from_le_bytes(*pair);
    }
    let rises = index
        .windows(2)
        .all(|pair| pair[1].checked_sub(pair[0]).is_some_and(|gap| (1..=TOKEN_BYTES_MAX).contains(&gap)));
    rises.then_some(index)
}

/// The table that ends before `index_offset`. Its last string's length and the padding aren't in the index,
/// so every possible start is tried; NULs must be where the index says and nowhere else.
fn table_before<'b>(
    bytes: &'b [u8],
    index_offset: usize,
    index: &[u16; TOKENS],
    budget: &mut Budget,
) -> Result<Option<Tokens<'b>>, Error> {
    let last = usize::from(index[TOKENS - 1]);
    for behind_last in 1..=usize::from(TOKEN_BYTES_MAX) + ALIGNMENT_MAX {
        let Some(start) = index_offset.checked_sub(last + behind_last) else { break };
        if !start.is_multiple_of(4) {
            continue;
        }
        budget.spend(4)?;
        if let Some(strings) = strings_of(&bytes[start..index_offset], index, budget)? {
            return Ok(Some(Tokens { strings, table_offset: start, index_offset }));
        }
    }
    Ok(None)
}

fn strings_of<'b>(
    table: &'b [u8],
    index: &[u16; TOKENS],
    budget: &mut Budget,
) -> Result<Option<[&'b [u8]; TOKENS]>, Error> {
    let mut strings = [&table[..0]; TOKENS];
    for (token, string) in strings.iter_mut().enumerate() {
        // Strings that all have one length fit at many starts, up to the last of them.
        budget.spend(1)?;
        let start = usize::from(index[token]);
        let Some(length) = table.get(start..).and_then(string_length) else { return Ok(None) };
        *string = &table[start..start + length];
        let behind = start + length + 1;
        let fits = match index.get(token + 1) {
            Some(&next) => usize::from(next) == behind,
            // Behind the last string there is only padding.
            None => table[behind..].iter().all(|&byte| byte == 0),
        };
        if !fits {
            return Ok(None);
        }
    }
    Ok(Some(strings))
}

/// Bytes before the NUL that ends a token.
fn string_length(bytes: &[u8]) -> Option<usize> {
    bytes.iter().take(usize::from(TOKEN_BYTES_MAX)).position(|&byte| byte == 0)
}
