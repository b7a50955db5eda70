//! Boot wrappers around a packed kernel: x86 bzImage, EFI zboot, arm64 Image.

use super::compression::{self, Compression};
use super::{IMAGE_BYTES_MAX, elf, unified};
use crate::{Error, Identity};
use memchr::memmem;

/// A file that starts a kernel, told by its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrapper {
    /// x86 boot protocol, Documentation/arch/x86/boot.rst.
    BzImage,
    /// drivers/firmware/efi/libstub/zboot-header.S.
    EfiZboot,
    /// A packed kernel with nothing around it: `Image.gz`, `vmlinux.xz`.
    Bare(Compression),
    /// arm64 `Image`, not packed: Documentation/arch/arm64/booting.rst.
    Arm64Image,
    /// A PE file with the kernel in a section: [`super::unified`].
    Unified,
    Elf,
}

impl Wrapper {
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let has =
            |offset: usize, magic: &[u8]| bytes.get(offset..).is_some_and(|rest| rest.starts_with(magic));
        if has(0, b"\x7fELF") {
            Some(Self::Elf)
        } else if has(0x202, b"HdrS") {
            Some(Self::BzImage)
        } else if has(0, b"MZ") && has(4, b"zimg") {
            Some(Self::EfiZboot)
        } else if has(0x38, b"ARM\x64") {
            Some(Self::Arm64Image)
        } else if unified::is_unified(bytes) {
            Some(Self::Unified)
        } else {
            Compression::of(bytes).map(Self::Bare)
        }
    }
}

/// The release in a bzImage's setup header (`kernel_version`): `6.1.0-50-amd64 (builder) #1 SMP …`.
pub fn bzimage_release(bytes: &[u8]) -> Option<String> {
    let pointer = usize::from(u16_at(bytes, 0x20e)?);
    let text = bytes.get(pointer.checked_add(0x200)?..)?;
    let end = text.iter().take(512).position(|&byte| byte == 0)?;
    let line = std::str::from_utf8(&text[..end]).ok()?;
    Identity::release_of_banner(&format!("Linux version {line}")).map(str::to_owned)
}

/// Unpacks the kernel of a bzImage: the payload that the header names, or else the first that unpacks.
pub fn unpack_bzimage(bytes: &[u8]) -> Result<Vec<u8>, Error> {
    match bzimage_payload(bytes) {
        Ok((offset, payload)) => match Compression::of(payload) {
            Some(compression) => compression::unpack(compression, payload, offset as u64, IMAGE_BYTES_MAX),
            None if payload.starts_with(b"\x7fELF") => Ok(payload.to_vec()),
            None => Err(Error::malformed(
                offset as u64,
                "the payload is none of gzip, xz, lzma, bzip2, lzo, lz4, zstd",
            )),
        },
        Err(error) => unpack_by_magic(bytes).ok_or(error),
    }
}

/// (offset, bytes) of the payload by `payload_offset` and `payload_length` (boot protocol 2.08).
fn bzimage_payload(bytes: &[u8]) -> Result<(usize, &[u8]), Error> {
    const PROTOCOL_WITH_PAYLOAD: u16 = 0x0208;
    const SECTOR_BYTES: usize = 512;
    let version = u16_at(bytes, 0x206).unwrap_or(0);
    if version < PROTOCOL_WITH_PAYLOAD {
        return Err(Error::malformed(
            0x206,
            format!("boot protocol {version:#x} names no payload, and none was found by magic"),
        ));
    }
    let setup_sectors = match bytes.get(0x1f1) {
        Some(0) | None => 4,
        Some(&sectors) => usize::from(sectors),
    };
    let (start, length) = (u32_at(bytes, 0x248), u32_at(bytes, 0x24c));
    let (start, length) =
        start.zip(length).ok_or_else(|| Error::malformed(0x248, "the setup header is cut off"))?;
    let offset = (setup_sectors + 1) * SECTOR_BYTES + start as usize;
    let payload = bytes.get(offset..offset + length as usize).ok_or_else(|| {
        Error::malformed(
            0x248,
            format!(
                "the payload ({length} bytes at {offset:#x}) reaches past the end of the file ({})",
                bytes.len()
            ),
        )
    })?;
    Ok((offset, payload))
}

/// Unpacks an EFI zboot image.
pub fn unpack_zboot(bytes: &[u8]) -> Result<Vec<u8>, Error> {
    let (start, length) = u32_at(bytes, 8)
        .zip(u32_at(bytes, 12))
        .ok_or_else(|| Error::malformed(8, "the zboot header is cut off"))?;
    let (start, length) = (start as usize, length as usize);
    let payload = bytes.get(start..start.saturating_add(length)).ok_or_else(|| {
        Error::malformed(
            8,
            format!(
                "the payload ({length} bytes at {start:#x}) reaches past the end of the file ({})",
                bytes.len()
            ),
        )
    })?;
    let compression = Compression::of(payload).ok_or_else(|| {
        Error::malformed(start as u64, "the payload is none of gzip, xz, lzma, bzip2, lzo, lz4, zstd")
    })?;
    compression::unpack(compression, payload, start as u64, IMAGE_BYTES_MAX)
}

/// The first stretch of `bytes` that unpacks into an ELF file that is loaded where it says: for wrappers
/// without a usable header. What only links, such as the modules of an initrd in front, is no kernel.
pub fn unpack_by_magic(bytes: &[u8]) -> Option<Vec<u8>> {
    const TRIES_PER_FORMAT: usize = 16;
    let mut output_left = 2 * IMAGE_BYTES_MAX;
    for compression in Compression::ALL {
        let mut tries = 0;
        for offset in memmem::find_iter(bytes, compression.magic()) {
            if tries == TRIES_PER_FORMAT || output_left == 0 {
                break;
            }
            let limit = output_left.min(IMAGE_BYTES_MAX);
            let Ok(unpacked) = compression::unpack(compression, &bytes[offset..], offset as u64, limit)
            else {
                tries += 1;
                continue;
            };
            if elf::is_loadable(&unpacked) {
                return Some(unpacked);
            }
            // An initrd has thousands of modules. Their bytes are what bounds the search among them.
            tries += usize::from(!elf::is_relocatable(&unpacked));
            output_left = output_left.saturating_sub(unpacked.len());
        }
    }
    None
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
}
