//! Unified kernel images (UAPI group's specification): a PE file with the kernel in its section `.linux`.
//!
//! Initrd, command line and microcode lie in sections of their own, in any order. Only `.linux` is looked at,
//! so that nothing that an initrd holds is taken for the kernel.

use crate::Error;
use object::pe::{ImageDosHeader, ImageNtHeaders64, ImageSectionHeader};
use object::read::pe::ImageNtHeaders;
use std::ops::Range;

/// Files with profiles have several of the name; the first is the default profile's.
const KERNEL_SECTION: &[u8] = b".linux";

/// Is it a PE file with a section for the kernel? Its headers are enough.
pub fn is_unified(head: &[u8]) -> bool {
    kernel_section(head).is_some()
}

/// Where the kernel is in `bytes`.
///
/// # Errors
/// No such section, or one that reaches past the end.
pub fn kernel_range(bytes: &[u8]) -> Result<Range<usize>, Error> {
    let section = kernel_section(bytes).ok_or_else(|| {
        Error::malformed(0, "a PE file without a section .linux, which would hold the kernel")
    })?;
    let (offset, length) = section.pe_file_range();
    let (start, length) = (offset as usize, length as usize);
    let end = start.saturating_add(length);
    if end > bytes.len() {
        return Err(Error::malformed(
            u64::from(offset),
            format!(
                "the section .linux ({length} bytes at {offset:#x}) reaches past the end of the file ({})",
                bytes.len()
            ),
        ));
    }
    Ok(start..end)
}

fn kernel_section(bytes: &[u8]) -> Option<&ImageSectionHeader> {
    let mut offset = u64::from(ImageDosHeader::parse(bytes).ok()?.nt_headers_offset());
    let (headers, _) = ImageNtHeaders64::parse(bytes, &mut offset).ok()?;
    let sections = headers.sections(bytes, offset).ok()?;
    sections.iter().find(|section| section.raw_name() == KERNEL_SECTION)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_headers_give_a_range_inside_the_file_or_none(
            bytes in proptest::collection::vec(any::<u8>(), 0..600), nt_headers in 0u8..128,
        ) {
            let mut bytes = [&b"MZ"[..], &bytes].concat();
            let mut put = |offset: usize, with: &[u8]| {
                if let Some(place) = bytes.get_mut(offset..offset + with.len()) {
                    place.copy_from_slice(with);
                }
            };
            let at = usize::from(nt_headers);
            put(0x3c, &u32::from(nt_headers).to_le_bytes());
            put(at, b"PE\0\0");
            put(at + 6, &1u16.to_le_bytes());
            put(at + 20, &112u16.to_le_bytes());
            put(at + 24, &0x20bu16.to_le_bytes());
            put(at + 24 + 108, &0u32.to_le_bytes());
            put(at + 24 + 112, b".linux\0\0");
            if let Ok(range) = kernel_range(&bytes) {
                prop_assert!(range.end <= bytes.len());
            }
        }
    }
}
