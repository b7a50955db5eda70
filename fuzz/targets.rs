//! What each fuzz target does with its bytes, and what must hold. The stable test `fuzz_corpus` replays the corpus
//! through the same functions.

use microslice_symbols::image::compression::{Compression, unpack};
use microslice_symbols::image::{boot_header, find_banner, notes as elf_notes};
use microslice_symbols::kallsyms::addresses::{AddressMap, Segment};
use microslice_symbols::kallsyms::{self, Budget};
use microslice_symbols::memory::vmcoreinfo::VmcoreInfo;
use microslice_symbols::memory::{Area, Memory, ScanLimits, find_kernel};
use microslice_symbols::store::format;
use microslice_symbols::{Identity, SymbolTable, source, text as symbol_text};
use std::io;

const TEXT: u64 = 0xffff_ffff_8100_0000;
/// A bomb of the fuzzer's is cut off here, so that it doesn't spend its time in decompressors.
const UNPACKED_BYTES_MAX: usize = 1 << 20;

/// Raw bytes: found or not, within a budget, and what is found is a sound table.
pub fn kallsyms(bytes: &[u8]) {
    let linked = Segment { offset: 0, bytes: bytes.len() as u64, address: TEXT, executable: true };
    for map in [AddressMap::TextLinkedAt(TEXT), AddressMap::Segments(vec![linked])] {
        if let Ok(found) = kallsyms::find_within(bytes, &map, &mut Budget::of_steps(1 << 24)) {
            check_table(&found.into_table(Identity::default()));
        }
    }
}

/// Images: the wrapper, the decompressor, the ELF file inside. The first byte picks a decompressor for the rest.
pub fn image(bytes: &[u8]) {
    if let Ok(opened) = source::read_image(bytes.to_vec()) {
        check_table(&opened.kernel.symbols);
    }
    let _ = boot_header::bzimage_release(bytes);
    let _ = find_banner(bytes);
    if let Some((&choice, payload)) = bytes.split_first() {
        let compression = Compression::ALL[usize::from(choice) % Compression::ALL.len()];
        if let Ok(unpacked) = unpack(compression, payload, 1, UNPACKED_BYTES_MAX) {
            assert!(unpacked.len() <= UNPACKED_BYTES_MAX);
        }
    }
}

/// Guest memory: a scan ends, and a slide that it gives is one that KASLR can make.
pub fn memory(bytes: &[u8]) {
    let memory = Bytes { bytes, areas: [Area { start: 0, bytes: bytes.len() as u64 }] };
    if let Ok(found) = find_kernel(&memory, &ScanLimits::default(), &mut |_| ()) {
        check_table(&found.kernel.symbols);
        assert!(found.slide.is_none_or(microslice_symbols::memory::is_slide));
    }
}

/// System.map and kallsyms text.
pub fn text(bytes: &[u8]) {
    let _ = symbol_text::looks_like_symbol_text(bytes);
    if let Ok(table) = symbol_text::read_symbol_text(bytes) {
        check_table(&table);
    }
}

/// A table of the store: refused, or read and written again to the same bytes. The checksum is made right first:
/// it keeps damage out, not forgery.
pub fn stored_table(bytes: &[u8]) {
    const CHECKSUM: std::ops::Range<usize> = 8..12;
    let mut bytes = bytes.to_vec();
    let _ = format::decode(&bytes);
    if bytes.len() >= CHECKSUM.end {
        let checksum = format::checksum(&bytes[CHECKSUM.end..]);
        bytes[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
    }
    if let Ok((table, halt_sites)) = format::decode(&bytes) {
        check_table(&table);
        assert_eq!(format::encode(&table, &halt_sites), bytes);
    }
}

/// ELF notes and VMCOREINFO.
pub fn notes(bytes: &[u8]) {
    if let Some(build_id) = elf_notes::build_id(bytes) {
        assert!(build_id.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
    let _ = VmcoreInfo::on_page(bytes);
    let _ = VmcoreInfo::parse(bytes);
}

/// Sorted, named, every start found again.
fn check_table(table: &SymbolTable) {
    let mut last = 0;
    for symbol in table.iter() {
        assert!(symbol.address >= last && symbol.end >= symbol.address && !symbol.name.is_empty());
        last = symbol.address;
    }
    if let Some(symbol) = table.get(table.len() / 2) {
        let found = table.lookup(symbol.address);
        assert!(found.is_none_or(|hit| hit.symbol.address == symbol.address && hit.offset == 0));
        assert!(table.by_name(symbol.name).any(|named| named == symbol));
    }
}

struct Bytes<'b> {
    bytes: &'b [u8],
    areas: [Area; 1],
}

impl Memory for Bytes<'_> {
    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(address).map_err(io::Error::other)?;
        let source = self.bytes.get(start..start + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(source);
        Ok(())
    }
}
