//! The common result of every source: symbols sorted by address, found by address or by name.
//!
//! Storage is three flat arrays (addresses, name offsets, kinds) and one arena of names. So a table of
//! 200,000 symbols costs about 8 MB in four allocations, whatever its source was.

use crate::page_index::PageIndex;
use crate::{Error, Identity};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

/// Most symbols that a table may hold; an allyesconfig kernel has about a million.
pub const SYMBOLS_MAX: usize = 4_000_000;
/// Longest name, in bytes; the kernel's own limit (`KSYM_NAME_LEN`) is 512 since 6.1.
pub const NAME_BYTES_MAX: usize = 4096;
/// Most bytes that all names together may take.
pub const NAME_ARENA_BYTES_MAX: usize = 256 << 20;
/// How far the last symbol reaches, for want of a next one.
const LAST_SYMBOL_BYTES: u64 = 4096;

/// One symbol: `[address, end)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbol<'t> {
    pub name: &'t str,
    /// First byte, as linked for images and as running for memory.
    pub address: u64,
    /// First byte of the next symbol at a higher address.
    pub end: u64,
    /// Type letter of `nm` and kallsyms: `T`/`t` text, `D`/`d` data, `A` absolute …
    pub kind: char,
}

impl Symbol<'_> {
    /// Is it code? (`T`, `t`, and weak `W`, `w`)
    pub fn is_text(&self) -> bool {
        matches!(self.kind, 'T' | 't' | 'W' | 'w')
    }
}

/// The symbol that holds an address, and how far into it the address is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hit<'t> {
    pub symbol: Symbol<'t>,
    /// Bytes from the symbol's first byte.
    pub offset: u64,
}

/// Where the kernel's code lies, by its linker symbols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextBounds {
    /// `_stext` (or `_text`).
    pub start: u64,
    /// `_etext`.
    pub end: u64,
    /// `_sinittext` to `_einittext`: code that is freed after boot.
    pub init: Option<(u64, u64)>,
}

impl TextBounds {
    pub fn contains(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
            || self.init.is_some_and(|(start, end)| (start..end).contains(&address))
    }
}

/// The symbols of one kernel, sorted by address; symbols of one address stay in the order of their source.
#[derive(Clone)]
pub struct SymbolTable {
    addresses: Vec<u64>,
    /// Start of each name in `names`, and the end of the last: one longer than `addresses`.
    name_offsets: Vec<u32>,
    kinds: Vec<u8>,
    names: String,
    identity: Identity,
    bounds: Option<TextBounds>,
    pages: PageIndex,
    by_name: OnceLock<NameIndex>,
}

/// The arrays of a table: what the store writes and reads.
#[derive(Debug)]
pub(crate) struct TableParts {
    pub addresses: Vec<u64>,
    pub name_offsets: Vec<u32>,
    pub kinds: Vec<u8>,
    pub names: String,
}

/// The same, borrowed.
pub(crate) struct TablePartsRef<'t> {
    pub addresses: &'t [u64],
    pub name_offsets: &'t [u32],
    pub kinds: &'t [u8],
    pub names: &'t str,
}

/// (hash, symbol index) sorted by hash. The hasher is keyed at random: a guest can't choose colliding names.
#[derive(Debug, Clone)]
struct NameIndex {
    hasher: RandomState,
    entries: Vec<(u32, u32)>,
}

impl fmt::Debug for SymbolTable {
    /// Says which table it is: its 200,000 symbols would drown any message.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("SymbolTable")
            .field("symbols", &self.len())
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

impl SymbolTable {
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    pub fn len(&self) -> usize {
        self.addresses.len()
    }

    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    pub(crate) fn parts(&self) -> TablePartsRef<'_> {
        let Self { addresses, name_offsets, kinds, names, .. } = self;
        TablePartsRef { addresses, name_offsets, kinds, names }
    }

    /// A table of arrays that someone may have forged: everything that lookups rely on is checked.
    pub(crate) fn from_parts(parts: TableParts, identity: Identity) -> Result<Self, Error> {
        let TableParts { addresses, name_offsets, kinds, names } = parts;
        let forged = |what: &str| Err(Error::no_symbols(format!("a forged table: {what}")));
        if name_offsets.len() != addresses.len() + 1 || kinds.len() != addresses.len() {
            return forged("arrays of different lengths");
        }
        if !addresses.is_sorted() {
            return forged("addresses out of order");
        }
        if name_offsets[0] != 0 || name_offsets.last().map(|&end| end as usize) != Some(names.len()) {
            return forged("names that don't fill their arena");
        }
        let sound = |pair: &[u32]| {
            let (start, end) = (pair[0] as usize, pair[1] as usize);
            start < end && end - start <= NAME_BYTES_MAX && names.is_char_boundary(end)
        };
        if !name_offsets.windows(2).all(sound) {
            return forged("a name that is empty, too long or no text");
        }
        if !is_graphic_ascii(names.as_bytes())
            && names.contains(|c: char| c.is_control() || c.is_whitespace())
        {
            return forged("a name that can't be printed");
        }
        if !kinds.iter().all(|&kind| is_kind(char::from(kind))) {
            return forged("a type that is no letter");
        }
        Ok(Self::of_sound_parts(TableParts { addresses, name_offsets, kinds, names }, identity))
    }

    fn of_sound_parts(parts: TableParts, identity: Identity) -> Self {
        let TableParts { addresses, name_offsets, kinds, names } = parts;
        let pages = PageIndex::of(&addresses);
        let mut table = Self {
            addresses,
            name_offsets,
            kinds,
            names,
            identity,
            bounds: None,
            pages,
            by_name: OnceLock::new(),
        };
        table.bounds = bounds_of(&table);
        table
    }

    /// The same symbols under another identity.
    #[must_use]
    pub fn with_identity(self, identity: Identity) -> Self {
        Self { identity, ..self }
    }

    /// Every symbol moved by `delta` (wrapping), the order of a kernel's upper half kept: addresses below
    /// `2^47` are per-CPU offsets and absolute values, which a slide doesn't move, and stay.
    #[must_use]
    pub fn moved_by(self, delta: u64) -> Self {
        let mut builder = SymbolTableBuilder::with_capacity(self.len());
        for symbol in self.iter() {
            let moves = symbol.address >= crate::kallsyms::addresses::UNKNOWN_BASE;
            let address = if moves { symbol.address.wrapping_add(delta) } else { symbol.address };
            builder.push(address, symbol.kind, symbol.name).expect("the symbol was in a table before");
        }
        builder.finish(self.identity)
    }

    /// Where code lies, if the table has the linker's symbols for it.
    pub fn text_bounds(&self) -> Option<TextBounds> {
        self.bounds
    }

    /// The symbol at `index` in address order.
    pub fn get(&self, index: usize) -> Option<Symbol<'_>> {
        let address = *self.addresses.get(index)?;
        Some(Symbol {
            name: self.name(index),
            address,
            end: self.end(index),
            kind: char::from(self.kinds[index]),
        })
    }

    /// All symbols in address order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Symbol<'_>> + '_ {
        (0..self.len()).map(|index| self.get(index).expect("index is below len"))
    }

    /// The symbol that holds `address`; of several at one address, the first of the source, which is the
    /// kernel's own choice too (`get_symbol_pos` in kernel/kallsyms.c).
    pub fn lookup(&self, address: u64) -> Option<Hit<'_>> {
        let near = self.pages.around(address).unwrap_or(0..self.len());
        let after = near.start + self.addresses[near].partition_point(|&start| start <= address);
        let start = *self.addresses.get(after.checked_sub(1)?)?;
        let symbol = self.get(self.first_at(after - 1, start))?;
        (address < symbol.end).then_some(Hit { symbol, offset: address - start })
    }

    /// The first of the symbols that start at `start`, of which `index` is one. Aliases are few, but a
    /// hostile table may have a million at one address: never step through them.
    fn first_at(&self, index: usize, start: u64) -> usize {
        let before = |index: usize| index.checked_sub(1).map(|before| self.addresses[before]);
        if before(index) != Some(start) {
            return index;
        }
        self.addresses[..index].partition_point(|&address| address < start)
    }

    /// Every symbol that starts at `address`.
    pub fn starting_at(&self, address: u64) -> impl Iterator<Item = Symbol<'_>> + '_ {
        let first = self.addresses.partition_point(|&start| start < address);
        (first..self.len()).map_while(move |index| self.get(index).filter(|symbol| symbol.address == address))
    }

    /// Every symbol called `name`, in address order: static functions of different files share names.
    pub fn by_name<'t>(&'t self, name: &'t str) -> impl Iterator<Item = Symbol<'t>> + 't {
        let index = self.by_name.get_or_init(|| NameIndex::build(self));
        let hash = index.hash(name);
        let first = index.entries.partition_point(|&(entry_hash, _)| entry_hash < hash);
        index.entries[first..]
            .iter()
            .take_while(move |&&(entry_hash, _)| entry_hash == hash)
            .filter_map(|&(_, symbol)| self.get(symbol as usize))
            .filter(move |symbol| symbol.name == name)
    }

    /// The address of the first symbol called `name`.
    pub fn address_of(&self, name: &str) -> Option<u64> {
        self.by_name(name).next().map(|symbol| symbol.address)
    }

    fn name(&self, index: usize) -> &str {
        &self.names[self.name_offsets[index] as usize..self.name_offsets[index + 1] as usize]
    }

    fn end(&self, index: usize) -> u64 {
        let start = self.addresses[index];
        let behind = &self.addresses[index + 1..];
        let next = match behind.first() {
            Some(&next) if next == start => behind.get(behind.partition_point(|&address| address == start)),
            next => next,
        };
        next.copied().unwrap_or(start.saturating_add(LAST_SYMBOL_BYTES))
    }
}

impl NameIndex {
    fn build(table: &SymbolTable) -> Self {
        let mut index = Self { hasher: RandomState::new(), entries: Vec::new() };
        index.entries =
            (0..table.len()).map(|symbol| (index.hash(table.name(symbol)), symbol as u32)).collect();
        index.entries.sort_unstable();
        index
    }

    fn hash(&self, name: &str) -> u32 {
        self.hasher.hash_one(name) as u32
    }
}

/// Takes symbols in any order and makes a table of them.
#[derive(Debug, Default)]
pub struct SymbolTableBuilder {
    entries: Vec<Entry>,
    names: String,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    address: u64,
    name_start: u32,
    name_bytes: u16,
    kind: u8,
}

impl SymbolTableBuilder {
    pub fn new() -> Self {
        Self::default()
    }

    /// Room for `symbols` (no more than the limit: a count read from a hostile source allocates nothing by
    /// itself).
    pub fn with_capacity(symbols: usize) -> Self {
        let symbols = symbols.min(SYMBOLS_MAX);
        Self { entries: Vec::with_capacity(symbols), names: String::with_capacity(symbols * 16) }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds a symbol. Refused: names that are empty, too long or not printable; kinds that are no ASCII
    /// letter or `?`; more than [`SYMBOLS_MAX`] symbols.
    pub fn push(&mut self, address: u64, kind: char, name: &str) -> Result<(), Error> {
        if self.entries.len() >= SYMBOLS_MAX {
            return Err(Error::too_large("symbols", SYMBOLS_MAX as u64));
        }
        if name.len() > NAME_BYTES_MAX {
            return Err(Error::too_large("bytes in a symbol name", NAME_BYTES_MAX as u64));
        }
        if self.names.len() + name.len() > NAME_ARENA_BYTES_MAX {
            return Err(Error::too_large("bytes of symbol names", NAME_ARENA_BYTES_MAX as u64));
        }
        if name.is_empty() || name.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(Error::no_symbols(format!("{name:?} is no symbol name")));
        }
        if !is_kind(kind) {
            return Err(Error::no_symbols(format!("{kind:?} is no symbol type")));
        }
        let name_start = self.names.len() as u32;
        self.names.push_str(name);
        self.entries.push(Entry { address, name_start, name_bytes: name.len() as u16, kind: kind as u8 });
        Ok(())
    }

    /// Sorts (stably) and closes the table.
    pub fn finish(mut self, identity: Identity) -> SymbolTable {
        self.entries.sort_by_key(|entry| entry.address);
        let in_order = self.entries.is_sorted_by_key(|entry| entry.name_start);
        let mut names =
            if in_order { std::mem::take(&mut self.names) } else { String::with_capacity(self.names.len()) };
        let mut name_offsets = Vec::with_capacity(self.entries.len() + 1);
        name_offsets.push(0);
        for entry in &self.entries {
            let start = entry.name_start as usize;
            if in_order {
                name_offsets.push(entry.name_start + u32::from(entry.name_bytes));
            } else {
                names.push_str(&self.names[start..start + usize::from(entry.name_bytes)]);
                name_offsets.push(names.len() as u32);
            }
        }
        let addresses = self.entries.iter().map(|entry| entry.address).collect();
        let kinds = self.entries.iter().map(|entry| entry.kind).collect();
        SymbolTable::of_sound_parts(TableParts { addresses, name_offsets, kinds, names }, identity)
    }
}

/// In blocks without a branch inside, which the compiler turns into vector instructions: there are megabytes
/// of names.
fn is_graphic_ascii(bytes: &[u8]) -> bool {
    bytes
        .chunks(4096)
        .all(|block| block.iter().fold(true, |graphic, &byte| graphic & (byte.wrapping_sub(b'!') < 94)))
}

fn is_kind(kind: char) -> bool {
    kind.is_ascii_alphabetic() || kind == '?'
}

fn bounds_of(table: &SymbolTable) -> Option<TextBounds> {
    const EDGES: [&str; 5] = ["_stext", "_text", "_etext", "_sinittext", "_einittext"];
    let mut edges = [None; EDGES.len()];
    for index in 0..table.len() {
        let name = table.name(index);
        if name.starts_with('_')
            && let Some(edge) = EDGES.iter().position(|&edge| edge == name)
        {
            edges[edge].get_or_insert(table.addresses[index]);
        }
    }
    let [stext, text, etext, sinittext, einittext] = edges;
    let (start, end) = (stext.or(text)?, etext?);
    (start < end).then_some(TextBounds {
        start,
        end,
        init: sinittext.zip(einittext).filter(|(init_start, init_end)| init_start < init_end),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table(symbols: &[(u64, char, &str)]) -> SymbolTable {
        let mut builder = SymbolTableBuilder::new();
        for &(address, kind, name) in symbols {
            builder.push(address, kind, name).unwrap();
        }
        builder.finish(Identity::default())
    }

    #[test]
    fn an_address_belongs_to_the_symbol_at_or_before_it() {
        let table = table(&[(0x3000, 'T', "third"), (0x1000, 'T', "first"), (0x2000, 't', "second")]);
        let name = |address| table.lookup(address).map(|hit| (hit.symbol.name, hit.offset));
        assert_eq!(name(0xfff), None);
        assert_eq!(name(0x1000), Some(("first", 0)));
        assert_eq!(name(0x1fff), Some(("first", 0xfff)));
        assert_eq!(name(0x2000), Some(("second", 0)));
        assert_eq!(name(0x3010), Some(("third", 0x10)));
        assert_eq!(name(0x4000), None, "the last symbol reaches one page");
        assert_eq!(name(u64::MAX), None);
    }

    #[test]
    fn symbols_of_one_address_keep_the_order_of_their_source_and_share_their_end() {
        let table = table(&[(0x10, 'T', "a"), (0x20, 'T', "z"), (0x20, 'T', "b"), (0x30, 'T', "c")]);
        assert_eq!(table.lookup(0x2f).unwrap().symbol.name, "z");
        let ends: Vec<_> = table.starting_at(0x20).map(|symbol| (symbol.name, symbol.end)).collect();
        assert_eq!(ends, [("z", 0x30), ("b", 0x30)]);
    }

    #[test]
    fn a_name_finds_every_symbol_that_has_it() {
        let table = table(&[(0x30, 't', "cleanup"), (0x10, 't', "cleanup"), (0x20, 't', "other")]);
        let addresses: Vec<_> = table.by_name("cleanup").map(|symbol| symbol.address).collect();
        assert_eq!(addresses, [0x10, 0x30]);
        assert_eq!(table.address_of("absent"), None);
    }

    #[test]
    fn text_bounds_come_from_the_linker_symbols() {
        let table = table(&[
            (0x1000, 'T', "_stext"),
            (0x2000, 'T', "_etext"),
            (0x5000, 't', "_sinittext"),
            (0x6000, 't', "_einittext"),
        ]);
        let bounds = table.text_bounds().unwrap();
        assert!(bounds.contains(0x1fff) && bounds.contains(0x5000));
        assert!(!bounds.contains(0x2000) && !bounds.contains(0x6000));
    }

    #[test]
    fn names_and_kinds_that_no_kernel_has_are_refused() {
        let mut builder = SymbolTableBuilder::new();
        for (kind, name) in
            [('T', ""), ('T', "two words"), ('T', "line\nfeed"), ('\n', "kind"), ('5', "kind")]
        {
            assert!(builder.push(0, kind, name).is_err(), "{kind:?} {name:?}");
        }
        assert!(builder.push(0, 'T', &"x".repeat(NAME_BYTES_MAX + 1)).is_err());
        assert!(builder.is_empty());
    }

    #[test]
    fn a_million_symbols_at_one_address_cost_no_more_than_one() {
        let mut builder = SymbolTableBuilder::new();
        for address in std::iter::repeat_n(0x1000, 1_000_000).chain([0x2000]) {
            builder.push(address, 'T', "alias").unwrap();
        }
        let table = builder.finish(Identity::default());
        assert!(table.iter().take(1_000_000).all(|symbol| symbol.end == 0x2000));
        assert_eq!(table.lookup(0x1fff).unwrap().offset, 0xfff);
    }

    proptest! {
        #[test]
        fn lookup_agrees_with_a_linear_scan(
            base in prop_oneof![Just(0u64), Just(0xffff_ffff_8100_0000), Just(u64::MAX - 700)],
            addresses in proptest::collection::vec(0u64..500, 1..60), probe in 0u64..600,
        ) {
            let (addresses, probe): (Vec<u64>, u64) = (addresses.iter().map(|address| base + address).collect(), base + probe);
            let mut builder = SymbolTableBuilder::new();
            for (index, &address) in addresses.iter().enumerate() {
                builder.push(address, 'T', &format!("s{index}")).unwrap();
            }
            let table = builder.finish(Identity::default());
            let expected = addresses.iter().copied().filter(|&address| address <= probe).max();
            prop_assert_eq!(table.lookup(probe).map(|hit| hit.symbol.address), expected);
            for symbol in table.iter() {
                prop_assert!(symbol.end > symbol.address);
                prop_assert!(table.by_name(symbol.name).any(|found| found == symbol));
            }
        }
    }
}
