//! The kernel's own symbol table, found and decoded in raw bytes: an unpacked image, a memory dump, guest
//! memory.
//!
//! # Format (scripts/kallsyms.c)
//! Names are compressed with 256 tokens; everything else is plain arrays. Sections lie next to each other,
//! each aligned (4, 8 or, on older arm64, 256 bytes), in one of two orders:
//!
//! | kernels | order |
//! |---|---|
//! | up to 6.3 | addresses or offsets + base, num_syms, names, markers, (6.2: seqs_of_names,) tokens |
//! | 6.4 to 6.19 | num_syms, names, markers, token_table, token_index, offsets, base, seqs_of_names |
//! | 7.0 on | the same without base; 4-byte alignment |
//!
//! # How it is found
//! The token index is 256 strictly rising 16-bit offsets whose gaps are the lengths of the strings before it:
//! nothing else in a kernel looks like that ([`tokens`]). From there backwards, a count followed by that many
//! names whose offsets the markers confirm ([`names`]). Then the addresses, before or behind, by the layout
//! whose values rise ([`addresses`]). Every step proves itself on the bytes; nothing depends on a version
//! string.

pub mod addresses;
pub mod names;
pub mod tokens;

use crate::{Error, Identity, SymbolTable, SymbolTableBuilder};
use addresses::AddressMap;

/// Fewest symbols that count as a kernel: the second marker proves a table, and it takes 257 symbols to have
/// one.
pub const SYMBOLS_MIN: usize = 257;

/// Steps that one search may take in all, so that a hostile source buys seconds and not hours.
const STEPS_MAX: u64 = 1 << 30;
/// Most token tables that one search tries: a kernel has one, and each that is forged buys a scan of all
/// before it.
pub const TABLES_MAX: usize = 8;

/// Work that a hostile source can't exceed.
#[derive(Debug, PartialEq, Eq)]
pub struct Budget {
    left: u64,
    spent: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self::of_steps(STEPS_MAX)
    }
}

impl Budget {
    pub fn of_steps(steps: u64) -> Self {
        Self { left: steps, spent: 0 }
    }

    /// For a scan of so many bytes, however little of them is worth a second look.
    pub fn for_bytes(bytes: u64) -> Self {
        Self::of_steps(STEPS_MAX.saturating_add(bytes / 32))
    }

    /// Steps that were taken so far.
    pub fn spent(&self) -> u64 {
        self.spent
    }

    fn spend(&mut self, steps: u64) -> Result<(), Error> {
        self.left = self.left.checked_sub(steps).ok_or_else(too_many_imitations)?;
        self.spent += steps;
        Ok(())
    }
}

fn too_many_imitations() -> Error {
    Error::no_symbols("gave up: the bytes imitate a symbol table in too many places")
}

/// A decoded kallsyms table and where it was.
#[derive(Debug)]
pub struct Kallsyms {
    pub symbols: SymbolTableBuilder,
    /// Offset of the token table in the bytes.
    pub token_table_offset: usize,
    pub layout: addresses::Layout,
    /// `kallsyms_relative_base` as stored, where the layout has one.
    pub relative_base: Option<u64>,
}

/// Finds and decodes the first complete kallsyms table in `bytes`.
///
/// # Errors
/// Why there is none: no token table, or one without names or addresses that fit; or too many of those.
pub fn find(bytes: &[u8], map: &AddressMap) -> Result<Kallsyms, Error> {
    find_within(bytes, map, &mut Budget::default())
}

/// [`find`] with a limit of the caller's on the work.
pub fn find_within(bytes: &[u8], map: &AddressMap, budget: &mut Budget) -> Result<Kallsyms, Error> {
    let mut failure =
        Error::no_symbols("no kallsyms token table (built without CONFIG_KALLSYMS, encrypted, or no kernel)");
    let mut from = 0;
    let mut tables = 0;
    while let Some(tokens) = tokens::find_from(bytes, from, budget)? {
        tables += 1;
        if tables > TABLES_MAX {
            return Err(too_many_imitations());
        }
        from = tokens.index_offset + tokens::INDEX_BYTES;
        match decode_at(bytes, &tokens, map, budget) {
            Ok(kallsyms) => return Ok(kallsyms),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn decode_at(
    bytes: &[u8],
    tokens: &tokens::Tokens<'_>,
    map: &AddressMap,
    budget: &mut Budget,
) -> Result<Kallsyms, Error> {
    let names = names::find_before(bytes, tokens, budget)?;
    let found = addresses::find(bytes, tokens, &names, map)?;
    let mut symbols = SymbolTableBuilder::with_capacity(names.count);
    let mut expanded = Vec::with_capacity(128);
    let mut walk = names.walk(bytes);
    for address in found.values {
        let Some(entry) = walk.next_entry() else { break };
        expanded.clear();
        for &token in entry {
            expanded.extend_from_slice(tokens.string(token));
        }
        let at = (names.names_offset + walk.position) as u64;
        if expanded.len() > crate::table::NAME_BYTES_MAX {
            return Err(Error::malformed(at, "a symbol name expands past every kernel's limit"));
        }
        let text =
            std::str::from_utf8(&expanded).map_err(|_| Error::malformed(at, "a symbol name isn't UTF-8"))?;
        let mut chars = text.chars();
        let kind = chars.next().unwrap_or('?');
        symbols
            .push(address, kind, chars.as_str())
            .map_err(|error| Error::malformed(at, error.to_string()))?;
    }
    Ok(Kallsyms {
        symbols,
        token_table_offset: tokens.table_offset,
        layout: found.layout,
        relative_base: found.relative_base,
    })
}

impl Kallsyms {
    pub fn into_table(self, identity: Identity) -> SymbolTable {
        self.symbols.finish(identity)
    }
}

/// `value` rounded up to a multiple of `alignment`, a power of two.
fn align_up(value: usize, alignment: usize) -> usize {
    (value + alignment - 1) & !(alignment - 1)
}

fn read_u32(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
}

fn read_u64(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
}
