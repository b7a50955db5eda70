//! Where each symbol is: the array that holds addresses or offsets, and how to read it.

use super::names::Names;
use super::tokens::{ALIGNMENT_MAX, INDEX_BYTES, Tokens};
use super::{align_up, read_u32, read_u64};
use crate::Error;

/// Where bytes of unknown address are put while their table is read: above every absolute value, below every
/// kernel.
pub const UNKNOWN_BASE: u64 = 1 << 47;

/// What the array holds (kernel/kallsyms.c, `kallsyms_sym_address`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// 64-bit addresses: up to 4.5, and later without `CONFIG_KALLSYMS_BASE_RELATIVE`.
    Absolute,
    /// 32-bit unsigned offsets from the base: arm64 from 4.6, x86-64 from 6.15, up to 6.19.
    BaseRelative,
    /// 32-bit: at or above zero an absolute per-CPU address, below zero `base - 1 - value`: x86-64 4.6 to
    /// 6.14.
    AbsolutePercpu,
    /// 32-bit signed, relative to the array element itself: from 7.0 on.
    SelfRelative,
}

/// One run of bytes and the address that it is linked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Offset of the first byte in the source.
    pub offset: u64,
    /// Bytes in the source.
    pub bytes: u64,
    /// Address of the first byte.
    pub address: u64,
    pub executable: bool,
}

/// How offsets in the bytes relate to kernel addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AddressMap {
    /// The program headers of an ELF image.
    Segments(Vec<Segment>),
    /// The bytes lie as in (physical) memory, their address unknown: `_text` is put at this link address.
    TextLinkedAt(u64),
}

impl AddressMap {
    /// The linked address of the byte at `offset`; for unknown addresses `offset` above [`UNKNOWN_BASE`].
    pub fn address_of(&self, offset: u64) -> Option<u64> {
        match self {
            Self::Segments(segments) => segments.iter().find_map(|segment| {
                let within = offset.checked_sub(segment.offset)?;
                (within < segment.bytes).then(|| segment.address.wrapping_add(within))
            }),
            Self::TextLinkedAt(_) => UNKNOWN_BASE.checked_add(offset),
        }
    }

    /// The offset of the byte at `address`, if the bytes hold it.
    pub fn offset_of(&self, address: u64) -> Option<u64> {
        match self {
            Self::Segments(segments) => segments.iter().find_map(|segment| {
                let within = address.checked_sub(segment.address)?;
                // A header may say any offset, also one that no source is long enough for.
                (within < segment.bytes).then(|| segment.offset.checked_add(within)).flatten()
            }),
            Self::TextLinkedAt(_) => None,
        }
    }
}

/// One address a symbol, in the order of the names.
#[derive(Debug)]
pub struct Addresses {
    pub values: Vec<u64>,
    pub layout: Layout,
    /// `kallsyms_relative_base` as stored.
    pub relative_base: Option<u64>,
}

/// Finds the array of `names`: behind the token index (6.4 on) or before the count (up to 6.3).
///
/// # Errors
/// No layout gives values that rise from symbol to symbol.
pub fn find(bytes: &[u8], tokens: &Tokens<'_>, names: &Names, map: &AddressMap) -> Result<Addresses, Error> {
    let array = Array { bytes, count: names.count, map };
    let behind = tokens.index_offset + INDEX_BYTES;
    array
        .based(behind, BasePlace::Behind)
        .or_else(|| array.absolute(behind))
        .or_else(|| before_count(&array, names.count_offset))
        .or_else(|| array.self_relative(behind))
        .ok_or_else(|| {
            Error::malformed(
                names.count_offset as u64,
                format!("{} names, but no array of rising addresses", names.count),
            )
        })
}

/// Up to 6.3: offsets and base, or addresses, end where the count begins; the array starts aligned.
fn before_count(array: &Array<'_>, count_offset: usize) -> Option<Addresses> {
    [8, ALIGNMENT_MAX].into_iter().find_map(|alignment| {
        let offsets = || {
            let base = count_offset.checked_sub(alignment)?;
            let start = base.checked_sub(align_up(4 * array.count, alignment))?;
            array.based(start, BasePlace::At(base))
        };
        let addresses = || array.absolute(count_offset.checked_sub(align_up(8 * array.count, alignment))?);
        offsets().or_else(addresses)
    })
}

enum BasePlace {
    /// Aligned to 8 behind the offsets.
    Behind,
    At(usize),
}

struct Array<'b> {
    bytes: &'b [u8],
    count: usize,
    map: &'b AddressMap,
}

impl Array<'_> {
    /// A 64-bit kernel's address: in the upper half; or where the image itself says that it is linked, as
    /// User-Mode Linux is.
    fn could_be_base(&self, address: u64) -> bool {
        address >= 0xffff_0000_0000_0000 || self.map.offset_of(address).is_some()
    }

    /// Offsets at `start` that rise from a base.
    fn based(&self, start: usize, place: BasePlace) -> Option<Addresses> {
        let end = start.checked_add(4 * self.count)?;
        let base = match place {
            BasePlace::Behind => read_u64(self.bytes, align_up(end, 8))?,
            BasePlace::At(offset) => read_u64(self.bytes, offset)?,
        };
        let offsets = self.words(start)?;
        let (layout, values) = if offsets.iter().any(|&offset| (offset as i32) < 0) {
            (Layout::AbsolutePercpu, percpu_addresses(&offsets, base))
        } else {
            (
                Layout::BaseRelative,
                offsets.iter().map(|&offset| base.wrapping_add(u64::from(offset))).collect::<Vec<_>>(),
            )
        };
        (self.could_be_base(base) && rises(&values)).then_some(Addresses {
            values,
            layout,
            relative_base: Some(base),
        })
    }

    fn absolute(&self, start: usize) -> Option<Addresses> {
        let end = start.checked_add(8 * self.count)?;
        let (pairs, _) = self.bytes.get(start..end)?.as_chunks::<8>();
        let values: Vec<u64> = pairs.iter().map(|&pair| u64::from_le_bytes(pair)).collect();
        let in_kernel = values.last().is_some_and(|&last| self.could_be_base(last));
        (in_kernel && rises(&values)).then_some(Addresses {
            values,
            layout: Layout::Absolute,
            relative_base: None,
        })
    }

    /// Distances from each element. The array lies behind the code, so that the first of them are negative;
    /// offsets from a base never are, and must not pass for distances where their base is missing (arm64
    /// until 6.1).
    fn self_relative(&self, start: usize) -> Option<Addresses> {
        let first = self.map.address_of(start as u64)?;
        let offsets = self.words(start)?;
        if offsets.first().is_none_or(|&offset| offset as i32 >= 0) {
            return None;
        }
        let values: Vec<u64> = offsets
            .iter()
            .zip((first..).step_by(4))
            .map(|(&offset, element)| element.wrapping_add_signed(i64::from(offset as i32)))
            .collect();
        rises(&values).then_some(Addresses { values, layout: Layout::SelfRelative, relative_base: None })
    }

    fn words(&self, start: usize) -> Option<Vec<u32>> {
        read_u32(self.bytes, start)?;
        let (words, _) = self.bytes.get(start..start.checked_add(4 * self.count)?)?.as_chunks::<4>();
        Some(words.iter().map(|&word| u32::from_le_bytes(word)).collect())
    }
}

fn percpu_addresses(offsets: &[u32], base: u64) -> Vec<u64> {
    offsets
        .iter()
        .map(|&offset| match offset as i32 {
            absolute if absolute >= 0 => absolute as u64,
            relative => base.wrapping_sub(1).wrapping_sub(i64::from(relative) as u64),
        })
        .collect()
}

/// Sorted, and not a run of one value (a page of zeros is sorted too).
fn rises(values: &[u64]) -> bool {
    let steps = values.windows(2).filter(|pair| pair[0] < pair[1]).count();
    values.is_sorted() && steps * 4 >= values.len()
}
