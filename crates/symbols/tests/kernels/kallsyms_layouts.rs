//! Every layout of kallsyms from 4.4 to 7.2, and bytes that only look like one.

use crate::blobs;

use crate::blobs::{Blob, BlobSymbol, Generation, encode, noise};
use microslice_symbols::kallsyms::addresses::{AddressMap, Layout, Segment};
use microslice_symbols::kallsyms::{self, Budget};
use microslice_symbols::{Identity, SymbolTable};
use proptest::prelude::*;

const TEXT: u64 = 0xffff_ffff_8100_0000;
/// Where the table lies relative to `_text`: in the read-only data behind the code.
const BLOB: u64 = TEXT + 0x180_0000;

fn map_of(blob: &Blob) -> AddressMap {
    let segment = Segment { offset: 0, bytes: blob.bytes.len() as u64, address: BLOB, executable: false };
    AddressMap::Segments(vec![segment])
}

fn decode(blob: &Blob) -> SymbolTable {
    kallsyms::find(&blob.bytes, &map_of(blob)).unwrap().into_table(Identity::default())
}

fn listed(table: &SymbolTable) -> Vec<BlobSymbol> {
    table.iter().map(|symbol| (symbol.address, symbol.kind, symbol.name.to_owned())).collect()
}

#[test]
fn every_generation_is_decoded_symbol_by_symbol() {
    for generation in Generation::ALL {
        let symbols = blobs::symbols(generation, 1500, TEXT);
        let blob = encode(generation, &symbols, 4096, BLOB);
        assert_eq!(listed(&decode(&blob)), symbols, "{generation:?}");
    }
}

#[test]
fn the_layout_is_told_by_the_values_themselves() {
    let layout = |generation| {
        let blob = encode(generation, &blobs::symbols(generation, 600, TEXT), 512, BLOB);
        kallsyms::find(&blob.bytes, &map_of(&blob)).unwrap().layout
    };
    assert_eq!(layout(Generation::V4_4), Layout::Absolute);
    assert_eq!(layout(Generation::V4_6Arm64), Layout::BaseRelative);
    assert_eq!(layout(Generation::V4_20), Layout::AbsolutePercpu);
    assert_eq!(layout(Generation::V6_4), Layout::AbsolutePercpu);
    assert_eq!(layout(Generation::V6_15), Layout::BaseRelative);
    assert_eq!(layout(Generation::V7_0), Layout::SelfRelative);
}

/// User-Mode Linux is linked low, like any program.
#[test]
fn a_kernel_that_is_linked_low_is_decoded_at_its_own_addresses() {
    const LOW_TEXT: u64 = 0x6000_1000;
    const LOW_BLOB: u64 = LOW_TEXT + 0x80_0000;
    for generation in [Generation::V4_6Arm64, Generation::V6_15, Generation::V7_0] {
        let symbols = blobs::symbols(generation, 600, LOW_TEXT);
        let blob = encode(generation, &symbols, 512, LOW_BLOB);
        let segment = |address, offset, bytes| Segment { offset, bytes, address, executable: true };
        let bytes = blob.bytes.len() as u64;
        let text = segment(LOW_TEXT, bytes, 0x10_0000);
        let map = AddressMap::Segments(vec![text, segment(LOW_BLOB, 0, bytes)]);
        let found = kallsyms::find(&blob.bytes, &map).unwrap();
        assert_eq!(listed(&found.into_table(Identity::default())), symbols, "{generation:?}");
    }
}

/// arm64 up to 6.1 keeps the base in a relocation: offsets without it must not pass for distances from the
/// array.
#[test]
fn offsets_whose_base_is_missing_are_refused_instead_of_misread() {
    for generation in [Generation::V4_6Arm64, Generation::V6_15] {
        let blob = encode(generation, &blobs::symbols(generation, 600, TEXT), 512, BLOB);
        let mut forged = blob.clone();
        let base = blob.sections["kallsyms_relative_base"];
        forged.bytes[base..base + 8].fill(0);
        for map in [map_of(&forged), AddressMap::TextLinkedAt(TEXT)] {
            let error = kallsyms::find(&forged.bytes, &map).unwrap_err().to_string();
            assert!(
                error.ends_with("600 names, but no array of rising addresses"),
                "{generation:?}: {error}"
            );
        }
    }
}

#[test]
fn names_longer_than_127_bytes_are_read_from_6_1_on() {
    for generation in Generation::ALL.into_iter().filter(|generation| generation.has_long_names()) {
        let mut symbols = blobs::symbols(generation, 600, TEXT);
        // Too irregular for the tokens to bring it under 128 bytes.
        let long: String = noise(500).iter().map(|byte| char::from(b'a' + byte % 26)).collect();
        symbols[300].2 = long;
        let blob = encode(generation, &symbols, 64, BLOB);
        assert_eq!(listed(&decode(&blob)), symbols, "{generation:?}");
    }
}

#[test]
fn a_table_without_markers_that_agree_is_refused() {
    let blob = encode(Generation::V6_4, &blobs::symbols(Generation::V6_4, 600, TEXT), 512, BLOB);
    let mut forged = blob.clone();
    forged.bytes[blob.sections["kallsyms_markers"] + 4] ^= 1;
    let error = kallsyms::find(&forged.bytes, &map_of(&forged)).unwrap_err();
    let expected = format!(
        "offset {:#x}: a token table without the names that it compresses",
        blob.sections["kallsyms_token_table"]
    );
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_count_of_symbols_beyond_the_bytes_is_refused() {
    for count in [0u32, 256, 601, 0x7fff_ffff, u32::MAX] {
        let blob = encode(Generation::V6_4, &blobs::symbols(Generation::V6_4, 600, TEXT), 512, BLOB);
        let mut forged = blob.clone();
        let at = blob.sections["kallsyms_num_syms"];
        forged.bytes[at..at + 4].copy_from_slice(&count.to_le_bytes());
        assert!(kallsyms::find(&forged.bytes, &map_of(&forged)).is_err(), "{count}");
    }
}

#[test]
fn addresses_that_fall_are_refused() {
    let blob = encode(Generation::V6_15, &blobs::symbols(Generation::V6_15, 600, TEXT), 512, BLOB);
    let mut forged = blob.clone();
    let at = blob.sections["kallsyms_offsets"] + 4 * 300;
    forged.bytes[at..at + 4].copy_from_slice(&0u32.to_le_bytes());
    let error = kallsyms::find(&forged.bytes, &map_of(&forged)).unwrap_err().to_string();
    assert!(error.ends_with("600 names, but no array of rising addresses"), "{error}");
}

#[test]
fn a_decoy_before_the_table_is_passed_over() {
    let symbols = blobs::symbols(Generation::V6_4, 600, TEXT);
    let mut decoy = encode(Generation::V6_4, &symbols, 512, BLOB);
    let at = decoy.sections["kallsyms_markers"] + 4;
    decoy.bytes[at] ^= 1;
    decoy.bytes.resize(decoy.bytes.len().next_multiple_of(8), 0);
    let genuine = encode(Generation::V6_4, &symbols, 0, BLOB);
    decoy.bytes.extend(&genuine.bytes);
    assert_eq!(listed(&decode(&decoy)), symbols);
}

#[test]
fn imitations_run_out_of_budget_instead_of_time() {
    // A thousand token tables without names, each of which must be searched before.
    let blob = encode(Generation::V6_4, &blobs::symbols(Generation::V6_4, 300, TEXT), 0, BLOB);
    let tokens = &blob.bytes[blob.sections["kallsyms_token_table"]..blob.sections["kallsyms_offsets"]];
    let bytes: Vec<u8> = std::iter::repeat_n(tokens, 1000).flatten().copied().collect();
    let map = AddressMap::TextLinkedAt(TEXT);
    assert!(kallsyms::find(&bytes, &map).is_err());
    let error = kallsyms::find_within(&bytes, &map, &mut Budget::of_steps(100)).unwrap_err();
    assert_eq!(error.to_string(), "no symbols: gave up: the bytes imitate a symbol table in too many places");
}

/// The smallest token table that is one by its index: 255 empty strings behind one of 61 bytes. Whatever is
/// read of it as a count is too large for a kernel.
fn forged_token_table() -> Vec<u8> {
    const FIRST_GAP: u16 = 62;
    let mut table = vec![b'a'; usize::from(FIRST_GAP) - 1];
    table.resize(usize::from(FIRST_GAP) + 255, 0);
    table.resize(table.len().next_multiple_of(4), 0);
    let index = (0..256u16).map(|token| if token == 0 { 0 } else { FIRST_GAP + token - 1 });
    table.extend(index.flat_map(u16::to_le_bytes));
    table
}

/// `bytes` of filler, which is no count of symbols either, and forged token tables behind them.
fn forged_tables(bytes: usize, tables: usize) -> Vec<u8> {
    let mut forged = vec![0xff; bytes];
    for _ in 0..tables {
        forged.extend(forged_token_table());
    }
    forged
}

#[test]
fn a_search_for_names_that_finds_no_count_spends_its_budget_too() {
    let bytes = forged_tables(4 << 20, 1);
    let map = AddressMap::TextLinkedAt(TEXT);
    let mut ample = Budget::default();
    let error = kallsyms::find_within(&bytes, &map, &mut ample).unwrap_err().to_string();
    assert!(error.ends_with("a token table without the names that it compresses"), "{error}");
    // Once forwards for the table, and once backwards for its names.
    let once = (4 << 20) / 64;
    assert!((2 * once..3 * once).contains(&ample.spent()), "{} steps", ample.spent());
    let error = kallsyms::find_within(&bytes, &map, &mut Budget::of_steps(once + once / 2)).unwrap_err();
    assert_eq!(error.to_string(), "no symbols: gave up: the bytes imitate a symbol table in too many places");
}

#[test]
fn a_window_full_of_forged_token_tables_is_given_up_after_a_few() {
    let bytes = forged_tables(1 << 20, 5000);
    let mut budget = Budget::default();
    let error = kallsyms::find_within(&bytes, &AddressMap::TextLinkedAt(TEXT), &mut budget).unwrap_err();
    assert_eq!(error.to_string(), "no symbols: gave up: the bytes imitate a symbol table in too many places");
    let once = bytes.len() as u64 / 64;
    assert!(budget.spent() < (kallsyms::TABLES_MAX as u64 + 2) * once, "{} steps", budget.spent());
}

#[test]
fn strings_that_fit_a_forged_index_at_many_starts_are_paid_for_one_by_one() {
    // 256 strings of three bytes, and one byte before the index that no start allows.
    let mut table = b"aaa\0".repeat(256 + 180);
    table.extend(b"\0\0\0b");
    table.extend((0..256u16).flat_map(|token| (4 * token).to_le_bytes()));
    let mut budget = Budget::default();
    assert!(kallsyms::find_within(&table, &AddressMap::TextLinkedAt(TEXT), &mut budget).is_err());
    assert!(budget.spent() > 100 * 256, "{} steps", budget.spent());
}

fn any_generation() -> impl Strategy<Value = Generation> {
    proptest::sample::select(Generation::ALL.to_vec())
}

/// Gap to the next symbol, type, name. More than 256, so that there is a second marker.
fn any_symbols() -> impl Strategy<Value = Vec<(u16, char, String)>> {
    let kind = proptest::sample::select(vec!['T', 't', 'D', 'd', 'R', 'b', 'W']);
    let gap = prop_oneof![3 => 1u16..4096, 1 => Just(0u16)];
    proptest::collection::vec((gap, kind, "[a-zA-Z_][a-zA-Z0-9_.$]{0,60}"), 257..700)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn what_is_encoded_is_decoded(generation in any_generation(), drawn in any_symbols(), words in 0usize..64) {
        let mut address = TEXT;
        let mut symbols = vec![(TEXT, 'T', "_text".to_owned())];
        for (gap, kind, name) in drawn {
            address += u64::from(gap);
            symbols.push((address, kind, name));
        }
        let blob = encode(generation, &symbols, 8 * words, BLOB);
        prop_assert_eq!(listed(&decode(&blob)), symbols);
    }

    #[test]
    fn a_damaged_table_gives_an_error_or_a_sound_table(
        generation in any_generation(), damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
    ) {
        let mut blob = encode(generation, &blobs::symbols(generation, 400, TEXT), 64, BLOB);
        for (position, value) in damage {
            let position = position.index(blob.bytes.len());
            blob.bytes[position] = value;
        }
        if let Ok(found) = kallsyms::find(&blob.bytes, &map_of(&blob)) {
            let table = found.into_table(Identity::default());
            prop_assert!(table.iter().all(|symbol| symbol.end >= symbol.address && !symbol.name.is_empty()));
        }
    }

    #[test]
    fn a_table_cut_off_anywhere_is_an_error_or_whole(generation in any_generation(), at in any::<prop::sample::Index>()) {
        let symbols = blobs::symbols(generation, 400, TEXT);
        let mut blob = encode(generation, &symbols, 64, BLOB);
        blob.bytes.truncate(at.index(blob.bytes.len()));
        if let Ok(found) = kallsyms::find(&blob.bytes, &map_of(&blob)) {
            prop_assert_eq!(listed(&found.into_table(Identity::default())), symbols);
        }
    }
}
