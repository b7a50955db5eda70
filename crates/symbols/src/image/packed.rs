//! Two container formats that have no crate: `lzop` files and LZ4's legacy frames. The blocks inside go
//! through one.

use lzo1x::DecompressError;

/// `lz4 -l` packs blocks of 8 MiB.
const LZ4_BLOCK_BYTES_MAX: usize = 8 << 20;
/// `lzop` packs blocks of 256 KiB; its format allows 64 MiB.
const LZO_BLOCK_BYTES_MAX: usize = 64 << 20;

pub(super) fn too_large(limit_bytes: usize) -> String {
    format!("unpacks to more than {limit_bytes} bytes: refused")
}

/// LZ4 legacy: magic, then blocks of (size, data) until the input ends; the kernel appends its unpacked size,
/// which can't be a block because nothing follows it.
pub(super) fn unpack_lz4_legacy(
    payload: &[u8],
    size_hint: usize,
    limit_bytes: usize,
) -> Result<Vec<u8>, String> {
    let mut input = Input { bytes: payload, position: 4 };
    let mut unpacked = Vec::with_capacity(size_hint);
    let mut block = vec![0u8; LZ4_BLOCK_BYTES_MAX];
    while input.left() > 4 {
        let size = input.u32_le()? as usize;
        if size == 0x184c_2102 {
            continue;
        }
        let at = input.position;
        let packed = input.take(size)?;
        let length = lz4_flex::block::decompress_into(packed, &mut block)
            .map_err(|error| format!("block at payload byte {at:#x}: {error}"))?;
        if unpacked.len() + length > limit_bytes {
            return Err(too_large(limit_bytes));
        }
        unpacked.extend_from_slice(&block[..length]);
    }
    Ok(unpacked)
}

/// An `lzop` file as `lib/decompress_unlzo.c` reads it: header, then blocks of (unpacked size, packed size,
/// checksums, data) until an unpacked size of zero.
pub(super) fn unpack_lzo(payload: &[u8], size_hint: usize, limit_bytes: usize) -> Result<Vec<u8>, String> {
    let mut input = Input { bytes: payload, position: 9 };
    let checksums = LzopChecksums::of(lzop_header(&mut input)?);
    let mut unpacked = Vec::with_capacity(size_hint);
    loop {
        let length = input.u32_be()? as usize;
        if length == 0 {
            return Ok(unpacked);
        }
        let packed_length = input.u32_be()? as usize;
        if length > LZO_BLOCK_BYTES_MAX || packed_length > length {
            return Err(format!(
                "block of {packed_length} bytes unpacking to {length} at payload byte {:#x}",
                input.position
            ));
        }
        if unpacked.len() + length > limit_bytes {
            return Err(too_large(limit_bytes));
        }
        input.take(checksums.bytes(packed_length < length))?;
        let at = input.position;
        let packed = input.take(packed_length)?;
        if packed_length == length {
            unpacked.extend_from_slice(packed);
            continue;
        }
        let start = unpacked.len();
        unpacked.resize(start + length, 0);
        lzo1x::decompress(packed, &mut unpacked[start..])
            .map_err(|error: DecompressError| format!("block at payload byte {at:#x}: {error}"))?;
    }
}

/// Which checksums stand before each block.
struct LzopChecksums {
    unpacked_count: usize,
    packed_count: usize,
}

impl LzopChecksums {
    /// From the header's flags: Adler-32 and CRC-32, each of the unpacked (`_D`) and packed (`_C`) data.
    fn of(flags: u32) -> Self {
        let count = |masks: [u32; 2]| masks.into_iter().filter(|mask| flags & mask != 0).count();
        Self { unpacked_count: count([0x1, 0x100]), packed_count: count([0x2, 0x200]) }
    }

    /// Blocks that are stored as they are have no checksum of the packed data.
    fn bytes(&self, is_packed: bool) -> usize {
        4 * (self.unpacked_count + if is_packed { self.packed_count } else { 0 })
    }
}

/// Skips to the first block; returns the flags.
fn lzop_header(input: &mut Input<'_>) -> Result<u32, String> {
    const HAS_FILTER: u32 = 0x800;
    const WITH_LEVEL: u16 = 0x0940;
    let version = u16::from_be_bytes([input.u8()?, input.u8()?]);
    input.take(2 + 2 + 1)?; // library version, version needed, method
    if version >= WITH_LEVEL {
        input.u8()?;
    }
    let flags = input.u32_be()?;
    if flags & HAS_FILTER != 0 {
        input.u32_be()?;
    }
    input.take(4 + 4)?; // mode, low half of mtime
    if version >= WITH_LEVEL {
        input.u32_be()?;
    }
    let name_bytes = usize::from(input.u8()?);
    input.take(name_bytes + 4)?; // name, header checksum
    Ok(flags)
}

struct Input<'b> {
    bytes: &'b [u8],
    position: usize,
}

impl<'b> Input<'b> {
    fn left(&self) -> usize {
        self.bytes.len().saturating_sub(self.position)
    }

    fn take(&mut self, length: usize) -> Result<&'b [u8], String> {
        let end = self.position.checked_add(length);
        let taken = end.and_then(|end| self.bytes.get(self.position..end));
        let taken = taken
            .ok_or_else(|| format!("ends inside a block or header at payload byte {:#x}", self.position))?;
        self.position += length;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        Ok(*self.take(N)?.first_chunk().expect("take returned N bytes"))
    }

    fn u8(&mut self) -> Result<u8, String> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u32_be(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_be_bytes)
    }

    fn u32_le(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }
}
