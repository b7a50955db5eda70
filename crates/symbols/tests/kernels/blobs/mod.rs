//! Kallsyms as each generation of scripts/kallsyms.c writes them: what the decoder is tested against where no
//! real kernel is at hand. Written from the documented layout, not from the decoder.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod guest;
pub mod images;

use std::collections::BTreeMap;

/// Kernels whose tables differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// 64-bit addresses; count and markers 64 bits wide.
    V4_4,
    /// Offsets and base, per-CPU symbols absolute; count and markers still 64 bits wide.
    V4_6,
    /// arm64 of that time: plain offsets, sections aligned to 256 bytes.
    V4_6Arm64,
    /// Count and markers 32 bits wide.
    V4_20,
    /// Names longer than 127 bytes.
    V6_1,
    /// An index sorted by name, 3 bytes an entry, before the tokens.
    V6_2,
    /// Offsets, base and index moved behind the tokens.
    V6_4,
    /// Per-CPU symbols are no longer absolute.
    V6_15,
    /// Offsets relative to themselves, no base, 4-byte alignment.
    V7_0,
}

impl Generation {
    pub const ALL: [Generation; 9] = [
        Self::V4_4,
        Self::V4_6,
        Self::V4_6Arm64,
        Self::V4_20,
        Self::V6_1,
        Self::V6_2,
        Self::V6_4,
        Self::V6_15,
        Self::V7_0,
    ];

    fn alignment(self) -> usize {
        match self {
            Self::V4_6Arm64 => 256,
            Self::V7_0 => 4,
            _ => 8,
        }
    }

    fn has_wide_counts(self) -> bool {
        matches!(self, Self::V4_4 | Self::V4_6 | Self::V4_6Arm64)
    }

    pub fn has_long_names(self) -> bool {
        matches!(self, Self::V6_1 | Self::V6_2 | Self::V6_4 | Self::V6_15 | Self::V7_0)
    }

    pub fn has_absolute_percpu(self) -> bool {
        matches!(self, Self::V4_6 | Self::V4_20 | Self::V6_1 | Self::V6_2 | Self::V6_4)
    }

    fn is_reordered(self) -> bool {
        matches!(self, Self::V6_4 | Self::V6_15 | Self::V7_0)
    }
}

/// One symbol: address, type, name.
pub type BlobSymbol = (u64, char, String);

/// Bytes with a table in them.
#[derive(Debug, Clone)]
pub struct Blob {
    pub bytes: Vec<u8>,
    /// Where sections start, by their kernel names.
    pub sections: BTreeMap<&'static str, usize>,
}

/// The table of `symbols` (sorted by address) behind `before` bytes of noise; `address` is that of the first
/// byte.
pub fn encode(generation: Generation, symbols: &[BlobSymbol], before: usize, address: u64) -> Blob {
    let tokens = Tokens::learn(symbols);
    let mut out = Writer { blob: Blob { bytes: noise(before), sections: BTreeMap::new() }, generation };
    if !generation.is_reordered() {
        out.addresses(symbols, address);
    }
    out.count(symbols.len());
    let markers = out.names(symbols, &tokens);
    out.markers(&markers);
    if generation == Generation::V6_2 {
        out.index_by_name(symbols);
    }
    out.tokens(&tokens);
    if generation.is_reordered() {
        out.addresses(symbols, address);
        out.index_by_name(symbols);
    }
    let mut blob = out.blob;
    blob.bytes.extend(noise(4096));
    blob
}

/// Bytes that look like nothing: a fixed generator, so that a failure repeats.
pub fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

struct Writer {
    blob: Blob,
    generation: Generation,
}

impl Writer {
    fn section(&mut self, name: &'static str) {
        let bytes = &mut self.blob.bytes;
        bytes.resize(bytes.len().next_multiple_of(self.generation.alignment()), 0);
        self.blob.sections.insert(name, bytes.len());
    }

    fn put(&mut self, bytes: &[u8]) {
        self.blob.bytes.extend_from_slice(bytes);
    }

    fn addresses(&mut self, symbols: &[BlobSymbol], first_byte: u64) {
        let percpu = |symbol: &&BlobSymbol| self.generation.has_absolute_percpu() && symbol.0 < 1 << 31;
        let base = symbols.iter().find(|symbol| !percpu(symbol)).map_or(0, |symbol| symbol.0);
        if self.generation == Generation::V4_4 {
            self.section("kallsyms_addresses");
            symbols.iter().for_each(|symbol| self.put(&symbol.0.to_le_bytes()));
            return;
        }
        self.section("kallsyms_offsets");
        for symbol in symbols {
            let offset = match self.generation {
                Generation::V7_0 => symbol.0.wrapping_sub(first_byte + self.blob.bytes.len() as u64) as u32,
                generation if generation.has_absolute_percpu() && symbol.0 < 1 << 31 => symbol.0 as u32,
                generation if generation.has_absolute_percpu() => {
                    base.wrapping_sub(symbol.0).wrapping_sub(1) as u32
                }
                _ => (symbol.0 - base) as u32,
            };
            self.put(&offset.to_le_bytes());
        }
        if self.generation != Generation::V7_0 {
            self.section("kallsyms_relative_base");
            self.put(&base.to_le_bytes());
        }
    }

    fn count(&mut self, count: usize) {
        self.section("kallsyms_num_syms");
        self.number(count as u64);
    }

    fn number(&mut self, number: u64) {
        let wide = self.generation.has_wide_counts();
        self.put(&number.to_le_bytes()[..if wide { 8 } else { 4 }]);
    }

    /// Returns the offset of every 256th name.
    fn names(&mut self, symbols: &[BlobSymbol], tokens: &Tokens) -> Vec<u64> {
        self.section("kallsyms_names");
        let start = self.blob.bytes.len();
        let mut markers = Vec::new();
        for (index, symbol) in symbols.iter().enumerate() {
            if index % 256 == 0 {
                markers.push((self.blob.bytes.len() - start) as u64);
            }
            let packed = tokens.pack(symbol);
            if self.generation.has_long_names() && packed.len() > 0x7f {
                self.put(&[packed.len() as u8 & 0x7f | 0x80, (packed.len() >> 7) as u8]);
            } else {
                self.put(&[u8::try_from(packed.len()).expect("a name that this generation can write")]);
            }
            self.put(&packed);
        }
        markers
    }

    fn markers(&mut self, markers: &[u64]) {
        self.section("kallsyms_markers");
        markers.iter().for_each(|&marker| self.number(marker));
    }

    fn index_by_name(&mut self, symbols: &[BlobSymbol]) {
        self.section("kallsyms_seqs_of_names");
        let mut order: Vec<usize> = (0..symbols.len()).collect();
        order.sort_by_key(|&index| &symbols[index].2);
        order.iter().for_each(|&index| self.put(&(index as u32).to_be_bytes()[1..]));
    }

    fn tokens(&mut self, tokens: &Tokens) {
        self.section("kallsyms_token_table");
        let start = self.blob.bytes.len();
        let mut index = Vec::new();
        for string in &tokens.strings {
            index.push((self.blob.bytes.len() - start) as u16);
            self.put(string);
            self.put(&[0]);
        }
        self.section("kallsyms_token_index");
        index.iter().for_each(|offset| self.put(&offset.to_le_bytes()));
    }
}

/// Characters that occur stand for themselves; free codes for the most frequent pairs, as in
/// scripts/kallsyms.c.
struct Tokens {
    strings: Vec<Vec<u8>>,
    /// (code, the two codes that it replaces), in the order in which they were learnt.
    pairs: Vec<(u8, [u8; 2])>,
}

impl Tokens {
    const PAIRS_MAX: usize = 24;

    fn learn(symbols: &[BlobSymbol]) -> Self {
        let mut texts: Vec<Vec<u8>> = symbols.iter().map(text_of).collect();
        let mut strings = vec![Vec::new(); 256];
        texts.iter().flatten().for_each(|&byte| strings[usize::from(byte)] = vec![byte]);
        let free: Vec<u8> = (0..=255u8).filter(|&code| strings[usize::from(code)].is_empty()).collect();
        let mut pairs = Vec::new();
        for code in free.into_iter().take(Self::PAIRS_MAX) {
            let mut counts = BTreeMap::<[u8; 2], usize>::new();
            texts.iter().for_each(|text| {
                text.windows(2).for_each(|pair| *counts.entry([pair[0], pair[1]]).or_default() += 1)
            });
            let Some((&pair, _)) = counts.iter().max_by_key(|&(_, count)| *count) else { break };
            strings[usize::from(code)] =
                pair.iter().flat_map(|&half| strings[usize::from(half)].clone()).collect();
            texts.iter_mut().for_each(|text| *text = replace(text, pair, code));
            pairs.push((code, pair));
        }
        Self { strings, pairs }
    }

    fn pack(&self, symbol: &BlobSymbol) -> Vec<u8> {
        self.pairs.iter().fold(text_of(symbol), |text, &(code, pair)| replace(&text, pair, code))
    }
}

fn text_of((_, kind, name): &BlobSymbol) -> Vec<u8> {
    format!("{kind}{name}").into_bytes()
}

fn replace(text: &[u8], pair: [u8; 2], code: u8) -> Vec<u8> {
    let mut replaced = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, behind)) = rest.split_first() {
        let matches = rest.starts_with(&pair);
        replaced.push(if matches { code } else { first });
        rest = if matches { &rest[2..] } else { behind };
    }
    replaced
}

/// `count` symbols as a kernel has them: per-CPU (if the generation has them absolute), then `_text` and on.
pub fn symbols(generation: Generation, count: usize, text: u64) -> Vec<BlobSymbol> {
    let percpu = if generation.has_absolute_percpu() { 20 } else { 0 };
    (0..count)
        .map(|index| match index {
            _ if index < percpu => (index as u64 * 64, 'A', format!("percpu_{index}")),
            _ if index == percpu => (text, 'T', "_text".to_owned()),
            _ => {
                let kind = if index.is_multiple_of(3) { 't' } else { 'T' };
                // Aliases: every ninth shares the address of the one before.
                let address = text + ((index - percpu) - usize::from(index.is_multiple_of(9))) as u64 * 0x50;
                (address, kind, format!("function_{}_{index}", ["sched", "lock", "irq", "mm"][index % 4]))
            }
        })
        .collect()
}
