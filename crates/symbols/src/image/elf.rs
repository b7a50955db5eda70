//! ELF `vmlinux`: its symbol table; kallsyms where it is stripped.

use super::{Kernel, identity_of, notes_between_symbols, read_unpacked};
use crate::image::{Code, notes};
use crate::kallsyms::addresses::{AddressMap, Segment};
use crate::{Cause, Error, Identity, Place, SymbolTable, SymbolTableBuilder};
use object::elf::{
    ELFCLASS32, EM_AARCH64, EM_LOONGARCH, EM_PPC64, EM_RISCV, EM_S390, EM_X86_64, ET_DYN, ET_EXEC, ET_REL,
    Machine, PF_X, PT_LOAD, PT_NOTE, SHF_ALLOC, SHF_EXECINSTR, SHF_WRITE, SHT_NOBITS, STB_WEAK, STT_FILE,
    STT_OBJECT, STT_SECTION, STT_TLS,
};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader, SectionHeader, Sym};
use object::{Endianness, ReadRef};
use std::ops::Range;

/// Most program headers that are looked at; kernels have 3 to 6.
const SEGMENTS_MAX: usize = 4096;
/// Most dynamic symbols that are looked at; libkrunfw has 8.
const DYNAMIC_SYMBOLS_MAX: usize = 4096;
/// Most bytes of notes.
const NOTES_BYTES_MAX: u64 = 1 << 20;

type Elf64<'d, R> = ElfFile64<'d, Endianness, R>;

/// Reads an ELF kernel that lies in memory.
pub fn read(bytes: Vec<u8>) -> Result<Kernel, Error> {
    let (symbols, map, build_id) = {
        let elf = parse(&*bytes)?;
        (symbol_table(&elf)?, address_map(&elf, &*bytes)?, note_build_id(&elf, &*bytes))
    };
    let Some(symbols) = symbols else { return read_stripped(bytes, map, build_id) };
    let mut identity = Identity { build_id, ..identity_of(&bytes, &symbols, &map) };
    if identity.build_id.is_none() {
        identity.build_id = notes_between_symbols(&bytes, &symbols, &map);
    }
    Ok(Kernel {
        symbols: symbols.with_identity(identity),
        code: Some(Code::new(bytes, map)),
        halt_sites: Vec::new(),
        notices: Vec::new(),
    })
}

/// Reads a kernel by its kallsyms. A library that carries a kernel has these, too, but doesn't load that.
fn read_stripped(bytes: Vec<u8>, map: AddressMap, build_id: Option<String>) -> Result<Kernel, Error> {
    let kernel = read_unpacked(bytes, map, build_id)?;
    let text = kernel.symbols.address_of("_text").or_else(|| kernel.symbols.address_of("_stext"));
    let is_loaded = |text| kernel.code.as_ref().is_some_and(|code| code.at(text, 1).is_some());
    if text.is_some_and(is_loaded) {
        return Ok(kernel);
    }
    Err(Error::no_symbols("a program or library with a kernel inside, which has to be cut out"))
}

/// Reads the symbol table of an ELF file with nothing but symbols (a debug file), or too large for memory (a
/// `vmlinux` with debug information). `None` if it is stripped.
pub fn read_symbols_only<'d, R: ReadRef<'d>>(data: R) -> Result<Option<SymbolTable>, Error> {
    let elf = parse(data)?;
    let build_id = note_build_id(&elf, data);
    let banner = None;
    let symbols = symbol_table(&elf)?;
    Ok(symbols.map(|symbols| symbols.with_identity(Identity { build_id, release: None, banner })))
}

/// Where a shared library carries a kernel: libkrunfw's variable `KERNEL_BUNDLE` (containers/libkrunfw,
/// bin2cbundle.py).
pub fn kernel_bundle(bytes: &[u8]) -> Option<Range<usize>> {
    const VARIABLE: &[u8] = b"KERNEL_BUNDLE";
    let elf = parse(bytes).ok()?;
    let endian = elf.endian();
    let symbols = elf.elf_dynamic_symbol_table();
    let bundle = symbols.iter().take(DYNAMIC_SYMBOLS_MAX).find(|symbol| {
        symbol.st_type() == STT_OBJECT
            && symbol.name(endian, symbols.strings()).is_ok_and(|name| name == VARIABLE)
    })?;
    let start = usize::try_from(address_map(&elf, bytes).ok()?.offset_of(bundle.st_value(endian))?).ok()?;
    let end = start.checked_add(usize::try_from(bundle.st_size(endian)).ok()?)?;
    (end <= bytes.len()).then_some(start..end)
}

fn parse<'d, R: ReadRef<'d>>(data: R) -> Result<Elf64<'d, R>, Error> {
    const CLASS_OFFSET: u64 = 4;
    if data.read_bytes_at(CLASS_OFFSET, 1) == Ok(&[ELFCLASS32.0]) {
        return Err(Error::new(Place::Offset(CLASS_OFFSET), Cause::ThirtyTwoBit));
    }
    let elf = Elf64::parse(data).map_err(|error| Error::malformed(0, format!("ELF: {error}")))?;
    if let Some(name) = other_architecture(elf.elf_header().e_machine(elf.endian())) {
        return Err(Error::new(Place::Offset(0x12), Cause::OtherArchitecture(name)));
    }
    if elf.elf_header().e_type(elf.endian()) == ET_REL {
        return Err(Error::malformed(0x10, "ELF: a relocatable file, such as a module, is no kernel"));
    }
    Ok(elf)
}

/// Names the architecture that isn't x86-64 as Linux does (`ARCH`).
fn other_architecture(machine: Machine) -> Option<&'static str> {
    match machine {
        EM_X86_64 => None,
        EM_AARCH64 => Some("arm64"),
        EM_RISCV => Some("riscv"),
        EM_S390 => Some("s390"),
        EM_PPC64 => Some("powerpc"),
        EM_LOONGARCH => Some("loongarch"),
        _ => Some("foreign"),
    }
}

/// A kernel or a program, by its header.
pub(super) fn is_loadable(bytes: &[u8]) -> bool {
    kind_of_file(bytes).is_some_and(|kind| kind == ET_EXEC.0 || kind == ET_DYN.0)
}

/// A module or another part of a program, by its header.
pub(super) fn is_relocatable(bytes: &[u8]) -> bool {
    kind_of_file(bytes).is_some_and(|kind| kind == ET_REL.0)
}

fn kind_of_file(bytes: &[u8]) -> Option<u16> {
    const KIND_OFFSET: usize = 16;
    let kind = bytes.starts_with(b"\x7fELF").then(|| bytes.get(KIND_OFFSET..)).flatten()?;
    Some(u16::from_le_bytes(*kind.first_chunk()?))
}

fn address_map<'d, R: ReadRef<'d>>(elf: &Elf64<'d, R>, data: R) -> Result<AddressMap, Error> {
    let endian = elf.endian();
    let headers = elf
        .elf_header()
        .program_headers(endian, data)
        .map_err(|error| Error::malformed(0x20, format!("ELF: {error}")))?;
    let loads = headers.iter().take(SEGMENTS_MAX).filter(|header| header.p_type(endian) == PT_LOAD);
    let segments = loads.map(|header| Segment {
        offset: header.p_offset(endian),
        bytes: header.p_filesz(endian),
        address: header.p_vaddr(endian),
        executable: header.p_flags(endian) & PF_X != Default::default(),
    });
    Ok(AddressMap::Segments(segments.collect()))
}

/// The build ID in note segments or sections.
fn note_build_id<'d, R: ReadRef<'d>>(elf: &Elf64<'d, R>, data: R) -> Option<String> {
    let endian = elf.endian();
    let in_segments = elf.elf_header().program_headers(endian, data).ok().and_then(|headers| {
        headers.iter().take(SEGMENTS_MAX).filter(|header| header.p_type(endian) == PT_NOTE).find_map(
            |header| {
                let length = header.p_filesz(endian).min(NOTES_BYTES_MAX);
                notes::build_id(data.read_bytes_at(header.p_offset(endian), length).ok()?)
            },
        )
    });
    in_segments.or_else(|| {
        elf.elf_section_table()
            .iter()
            .filter(|section| section.sh_type(endian) == object::elf::SHT_NOTE)
            .find_map(|section| {
                let length = section.sh_size(endian).min(NOTES_BYTES_MAX);
                notes::build_id(data.read_bytes_at(section.sh_offset(endian), length).ok()?)
            })
    })
}

/// Functions and variables of `.symtab`; `None` if there is none or nothing in it.
fn symbol_table<'d, R: ReadRef<'d>>(elf: &Elf64<'d, R>) -> Result<Option<SymbolTable>, Error> {
    let endian = elf.endian();
    let symbols = elf.elf_symbol_table();
    let strings = symbols.strings();
    let mut builder = SymbolTableBuilder::with_capacity(symbols.len());
    for (index, symbol) in symbols.enumerate() {
        let section = symbols.symbol_section(endian, symbol, index).ok().flatten();
        let Some(section) = section.and_then(|index| elf.elf_section_table().section(index).ok()) else {
            continue;
        };
        let Some(kind) = kind_of(symbol, section, endian) else { continue };
        let name = symbol
            .name(endian, strings)
            .map_err(|error| Error::malformed(0, format!("symbol name: {error}")))?;
        let Ok(name) = std::str::from_utf8(name) else { continue };
        if !is_compiler_label(name) && !name.contains(char::is_whitespace) {
            builder.push(symbol.st_value(endian), kind, name)?;
        }
    }
    if builder.is_empty() {
        return Ok(None);
    }
    let symbols = builder.finish(Identity::default());
    let is_there = |name| symbols.address_of(name).is_some();
    if !is_there("linux_banner") || !(is_there("_text") || is_there("_stext")) {
        return Err(Error::no_symbols(
            "a program or library, no kernel: it has symbols, but no linux_banner",
        ));
    }
    Ok(Some(symbols))
}

/// Local labels, mapping symbols and export records, which kallsyms leaves out too (scripts/mksysmap).
fn is_compiler_label(name: &str) -> bool {
    const PREFIXES: [&str; 6] = [".L", "$", "__crc_", "__kstrtab", "__ksymtab", "L0"];
    name.is_empty() || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// The letter that `nm` prints; `None` for what is no address of the running kernel.
fn kind_of<S, H>(symbol: &S, section: &H, endian: Endianness) -> Option<char>
where
    S: Sym<Endian = Endianness>,
    H: SectionHeader<Endian = Endianness>,
{
    let kind = symbol.st_type();
    let flags = section.sh_flags(endian);
    if [STT_SECTION, STT_FILE, STT_TLS].contains(&kind) || symbol.st_value(endian).into() == 0u64 {
        return None;
    }
    let has = |flag| flags & flag == flag;
    if !has(SHF_ALLOC) {
        return None;
    }
    if symbol.st_bind() == STB_WEAK {
        return Some(if kind == STT_OBJECT { 'V' } else { 'W' });
    }
    let letter = if has(SHF_EXECINSTR) {
        't'
    } else if section.sh_type(endian) == SHT_NOBITS {
        'b'
    } else if has(SHF_WRITE) {
        'd'
    } else {
        'r'
    };
    Some(if symbol.is_local() { letter } else { letter.to_ascii_uppercase() })
}
