//! What each fuzz target does with its bytes, and what must hold. The stable test `fuzz_corpus` replays the
//! corpus through the same functions.

use microslice_symbols::critical::{Catalogue, RANGES_MAX};
use microslice_symbols::image::compression::{Compression, unpack};
use microslice_symbols::image::{boot_header, find_banner, notes as elf_notes, unified};
use microslice_symbols::kallsyms::addresses::{AddressMap, Segment};
use microslice_symbols::kallsyms::{self, Budget};
use microslice_symbols::memory::vmcoreinfo::VmcoreInfo;
use microslice_symbols::memory::{Area, Memory, ScanLimits, find_kernel};
use microslice_symbols::slide::{Landmarks, SLIDE_ALIGN, SlideFinder};
use microslice_symbols::store::format;
use microslice_symbols::{Identity, SymbolTable, SymbolTableBuilder, source, text as symbol_text};
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

/// Images: the wrapper, the decompressor, the ELF file inside. The first byte picks a decompressor for the
/// rest.
pub fn image(bytes: &[u8]) {
    if let Ok(opened) = source::read_image(bytes.to_vec()) {
        check_table(&opened.kernel.symbols);
    }
    let _ = boot_header::bzimage_release(bytes);
    let _ = find_banner(bytes);
    if let Ok(range) = unified::kernel_range(bytes) {
        assert!(range.end <= bytes.len());
    }
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

/// A table of the store: refused, or read and written again to the same bytes. The checksum is made right
/// first: it keeps damage out, not forgery.
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

/// A catalogue: one line of error, or something that can be matched against the names that it holds itself.
pub fn catalogue(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let catalogue = match Catalogue::from_toml(text) {
        Ok(catalogue) => catalogue,
        Err(error) => {
            assert_eq!(error.to_string().lines().count(), 1);
            return;
        }
    };
    let mut builder = SymbolTableBuilder::new();
    let names =
        catalogue.entries().flat_map(|entry| &entry.successors).flat_map(|successor| &successor.symbols);
    for (index, name) in names.enumerate() {
        builder.push(TEXT + index as u64 * 0x40, 't', name).expect("the catalogue holds names of functions");
    }
    let check = catalogue.check(&builder.finish(Identity::default()));
    assert!(check.map.ranges().len() <= RANGES_MAX);
    assert!(check.map.ranges().is_sorted_by(|a, b| a.end <= b.start));
}

/// Witnesses of nine bytes each: the kind, then the address. An accepted slide is one that KASLR can choose,
/// and no witness can leave it standing that, alone, speaks against it.
pub fn slide(bytes: &[u8]) {
    const SAFE_HALT: u64 = TEXT + 0x1_0000;
    const ENTRY: u64 = TEXT + 0x20_0080;
    let sites = [SAFE_HALT + 0xe, TEXT + 0x5_0001, TEXT + 0x25_0001];
    let mut builder = SymbolTableBuilder::new();
    for (address, name) in [
        (TEXT, "_stext"),
        (SAFE_HALT, "native_halt"),
        (SAFE_HALT + 0x20, "next"),
        (ENTRY, "entry_SYSCALL_64"),
    ] {
        builder.push(address, 'T', name).expect("a name");
    }
    let symbols = builder.finish(Identity::default());
    let (choice, witnesses) = bytes.split_first().unwrap_or((&0, &[]));
    let known: &[u64] = if choice & 1 == 0 { &sites } else { &[] };
    let mut finder = SlideFinder::new(Landmarks::new(&symbols, known));
    for witness in witnesses.chunks_exact(9) {
        let address = u64::from_le_bytes(witness[1..].try_into().expect("eight bytes"));
        match witness[0] % 3 {
            0 => finder.observe_halt(address),
            1 => finder.observe_lstar(address),
            _ => finder.observe_kernel_offset(address),
        };
        let Some(slide) = finder.accepted() else { continue };
        assert!(slide.is_multiple_of(SLIDE_ALIGN) && slide < 1 << 30);
        assert!(finder.witnesses().halt_count > 0 || finder.witnesses().lstar);
        match witness[0] % 3 {
            1 if address >> 31 == u64::MAX >> 31 && address < 0xffff_ffff_c000_0000 => {
                assert_eq!(address - slide, ENTRY);
            }
            2 => assert_eq!(address, slide),
            _ => {}
        }
    }
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
