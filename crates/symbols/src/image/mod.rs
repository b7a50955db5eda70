//! Kernel images: what a boot loader loads, and the `vmlinux` inside it.

pub mod boot_header;
pub mod compression;
pub mod elf;
pub mod notes;
pub mod packed;
pub mod unified;

use crate::kallsyms::addresses::{AddressMap, Segment};
use crate::{Cause, Error, Identity, Place, SymbolTable, kallsyms};
use memchr::memmem;
use std::fmt;

/// Largest image, packed or unpacked. Distribution kernels unpack to 70 MB; one with everything built in to
/// 250 MB.
pub const IMAGE_BYTES_MAX: usize = 384 << 20;
/// Address that every x86-64 kernel with the default `CONFIG_PHYSICAL_START` is linked at (`_text`).
pub const X86_64_TEXT: u64 = 0xffff_ffff_8100_0000;
/// Where x86-64 kernels are mapped (`__START_KERNEL_map`).
pub const KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;
/// The kernel's half of the address space.
const KERNEL_ADDRESS_MIN: u64 = 0xffff_0000_0000_0000;
const BANNER_BYTES_MAX: usize = 1024;

/// What one source says about one kernel.
#[derive(Debug)]
pub struct Kernel {
    /// Addresses as linked, whatever the source.
    pub symbols: SymbolTable,
    /// The kernel's bytes, where the source has them.
    pub code: Option<Code>,
    /// Linked addresses of `hlt` instructions, rising: what a slide is told by. Filled by the search through
    /// `code`, and by the store, which has no code.
    pub halt_sites: Vec<u64>,
    /// What a user should know, such as parts of the source that disagree; one phrase each.
    pub notices: Vec<String>,
}

/// A kernel's bytes by linked address.
pub struct Code {
    bytes: Vec<u8>,
    map: AddressMap,
}

impl fmt::Debug for Code {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Code").field("bytes", &self.bytes.len()).field("map", &self.map).finish()
    }
}

impl Code {
    pub fn new(bytes: Vec<u8>, map: AddressMap) -> Self {
        Self { bytes, map }
    }

    /// `length` bytes at linked address `address`, if the source has them all.
    pub fn at(&self, address: u64, length: usize) -> Option<&[u8]> {
        let start = usize::try_from(self.map.offset_of(address)?).ok()?;
        self.bytes.get(start..start.checked_add(length)?)
    }

    /// Executable stretches: linked address of the first byte, and the bytes.
    pub fn executable(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let segments: &[Segment] = match &self.map {
            AddressMap::Segments(segments) => segments,
            AddressMap::TextLinkedAt(_) => &[],
        };
        segments.iter().filter(|segment| segment.executable).filter_map(|segment| {
            let start = usize::try_from(segment.offset).ok()?;
            Some((segment.address, self.bytes.get(start..start.checked_add(segment.bytes as usize)?)?))
        })
    }
}

/// Reads an unpacked kernel whose kallsyms are its only symbols: a stripped `vmlinux`.
pub fn read_unpacked(bytes: Vec<u8>, map: AddressMap, build_id: Option<String>) -> Result<Kernel, Error> {
    let found = kallsyms::find(&bytes, &map)?;
    let symbols = found.into_table(Identity::default());
    let (symbols, map) = linked(symbols, map, bytes.len() as u64);
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

/// Refuses a kernel that is linked where only arm64's are.
pub fn refuse_arm64(text: u64) -> Result<(), Error> {
    if (KERNEL_ADDRESS_MIN..KERNEL_MAP).contains(&text) {
        return Err(Error::new(Place::Whole, Cause::OtherArchitecture("arm64")));
    }
    Ok(())
}

/// Reads a flat x86-64 kernel: the memory from `_text` on, as its loader puts it there.
pub fn read_flat(bytes: Vec<u8>) -> Result<Kernel, Error> {
    read_unpacked(bytes, AddressMap::TextLinkedAt(X86_64_TEXT), None)
}

/// Says which bytes of an `Image`, which starts with `_text`, are where. A table without addresses of its own
/// is put where kernels are linked.
fn linked(symbols: SymbolTable, map: AddressMap, bytes: u64) -> (SymbolTable, AddressMap) {
    let AddressMap::TextLinkedAt(text) = map else { return (symbols, map) };
    let Some(found) = symbols.address_of("_text").or_else(|| symbols.address_of("_stext")) else {
        return (symbols, map);
    };
    let is_known = found >= KERNEL_ADDRESS_MIN;
    let (symbols, text) =
        if is_known { (symbols, found) } else { (symbols.moved_by(text.wrapping_sub(found)), text) };
    let segment = Segment { offset: 0, bytes, address: text, executable: true };
    (symbols, AddressMap::Segments(vec![segment]))
}

/// Release and banner: at `linux_banner`, or else the first text that reads like it.
pub fn identity_of(bytes: &[u8], symbols: &SymbolTable, map: &AddressMap) -> Identity {
    let at_symbol = symbols
        .address_of("linux_banner")
        .and_then(|address| map.offset_of(address))
        .and_then(|offset| banner_at(bytes.get(usize::try_from(offset).ok()?..)?));
    // Without its address: the first one behind the text. What lies before it in memory may be another
    // kernel's.
    let text = symbols.address_of("_text").and_then(|address| usize::try_from(map.offset_of(address)?).ok());
    let banner = at_symbol.or_else(|| find_banner(bytes.get(text?..)?)).or_else(|| find_banner(bytes));
    let release = banner.as_deref().and_then(Identity::release_of_banner).map(str::to_owned);
    Identity { release, build_id: None, banner }
}

/// The first `Linux version <digit>…` in `bytes`, a line of printable text.
pub fn find_banner(bytes: &[u8]) -> Option<String> {
    const TRIES: usize = 64;
    memmem::find_iter(bytes, b"Linux version ").take(TRIES).find_map(|offset| banner_at(&bytes[offset..]))
}

fn banner_at(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().take(BANNER_BYTES_MAX).position(|&byte| matches!(byte, b'\n' | 0))?;
    let line = std::str::from_utf8(&bytes[..end]).ok()?;
    let release = line.strip_prefix("Linux version ")?;
    let genuine = release.starts_with(|c: char| c.is_ascii_digit())
        && !line.contains(|c: char| c.is_control() || c == '%');
    genuine.then(|| line.to_owned())
}

/// The build ID among the ELF notes between `__start_notes` and `__stop_notes`.
pub fn notes_between_symbols(bytes: &[u8], symbols: &SymbolTable, map: &AddressMap) -> Option<String> {
    let start = map.offset_of(symbols.address_of("__start_notes")?)?;
    let stop = map.offset_of(symbols.address_of("__stop_notes")?.checked_sub(1)?)?;
    notes::build_id(bytes.get(usize::try_from(start).ok()?..=usize::try_from(stop).ok()?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_banner_starts_with_a_version_number_and_ends_with_its_line() {
        let bytes = b"..Linux version %s (%s)\n\0Linux version 6.1.0-50-amd64 (a@b) #1 SMP\n\0";
        assert_eq!(find_banner(bytes).as_deref(), Some("Linux version 6.1.0-50-amd64 (a@b) #1 SMP"));
        assert_eq!(find_banner(b"Linux version 6.1 without an end"), None);
    }

    #[test]
    fn code_is_read_by_linked_address_and_never_past_its_end() {
        let map =
            AddressMap::Segments(vec![Segment { offset: 2, bytes: 3, address: 0x1000, executable: true }]);
        let code = Code::new(vec![9, 9, 1, 2, 3], map);
        assert_eq!(code.at(0x1001, 2), Some(&[2, 3][..]));
        assert_eq!(code.at(0x1001, 3), None);
        assert_eq!(code.at(0xfff, 1), None);
        assert_eq!(code.executable().collect::<Vec<_>>(), [(0x1000, &[1, 2, 3][..])]);
    }
}
