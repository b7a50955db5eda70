//! The compressions that a kernel can be packed with (`lib/decompress*.c`), each through a crate of its own,
//! all with a limit on what comes out.

use super::packed;
use crate::{Cause, Error, Place};
use ruzstd::decoding::StreamingDecoder;
use std::io::Read;

/// How a payload is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    Gzip,
    Xz,
    Lzma,
    Bzip2,
    Lzo,
    Lz4Legacy,
    Zstd,
}

impl Compression {
    pub const ALL: [Compression; 7] =
        [Self::Gzip, Self::Xz, Self::Lzma, Self::Bzip2, Self::Lzo, Self::Lz4Legacy, Self::Zstd];

    /// First bytes of a payload, as the kernel tells them apart (`lib/decompress.c`).
    pub fn magic(self) -> &'static [u8] {
        match self {
            Self::Gzip => &[0x1f, 0x8b, 0x08],
            Self::Xz => &[0xfd, b'7', b'z', b'X', b'Z', 0],
            Self::Lzma => &[0x5d, 0, 0],
            Self::Bzip2 => b"BZh",
            Self::Lzo => &[0x89, b'L', b'Z', b'O', 0, b'\r', b'\n', 0x1a, b'\n'],
            Self::Lz4Legacy => &[0x02, 0x21, 0x4c, 0x18],
            Self::Zstd => &[0x28, 0xb5, 0x2f, 0xfd],
        }
    }

    /// The compression whose magic `bytes` start with.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|compression| bytes.starts_with(compression.magic()))
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Lzma => "lzma",
            Self::Bzip2 => "bzip2",
            Self::Lzo => "lzo",
            Self::Lz4Legacy => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

/// Unpacks `payload`, which starts at `offset` of its file. Bytes behind the packed stream are ignored:
/// kernels append the unpacked size.
///
/// # Errors
/// A stream that is damaged, ends early, or unpacks to more than `limit_bytes`.
pub fn unpack(
    compression: Compression,
    payload: &[u8],
    offset: u64,
    limit_bytes: usize,
) -> Result<Vec<u8>, Error> {
    let size_hint = unpacked_size_hint(payload, limit_bytes);
    let read = |reader: &mut dyn Read| read_limited(reader, size_hint, limit_bytes);
    let unpacked = match compression {
        Compression::Gzip => read(&mut flate2::bufread::GzDecoder::new(payload)),
        Compression::Bzip2 => read(&mut bzip2::bufread::BzDecoder::new(payload)),
        Compression::Xz => liblzma::stream::Stream::new_stream_decoder(MEMORY_LIMIT_BYTES, 0)
            .map_err(|error| error.to_string())
            .and_then(|stream| read(&mut liblzma::bufread::XzDecoder::new_stream(payload, stream))),
        Compression::Lzma => liblzma::stream::Stream::new_lzma_decoder(MEMORY_LIMIT_BYTES)
            .map_err(|error| error.to_string())
            .and_then(|stream| read(&mut liblzma::bufread::XzDecoder::new_stream(payload, stream))),
        Compression::Zstd => unpack_zstd(payload, read),
        Compression::Lzo => packed::unpack_lzo(payload, size_hint, limit_bytes),
        Compression::Lz4Legacy => packed::unpack_lz4_legacy(payload, size_hint, limit_bytes),
    };
    let name = compression.name();
    unpacked.map_err(|cause| {
        Error::new(Place::Offset(offset), Cause::Malformed(format!("{name} payload: {cause}")))
    })
}

/// What a decoder may take for its dictionary: xz -9 uses 64 MiB, kernels 32 to 128.
const MEMORY_LIMIT_BYTES: u64 = 160 << 20;
const ZSTD_WINDOW_LIMIT_BYTES: u64 = 128 << 20;

/// Unpacks the one frame that `payload` begins with. The kernel's build adds a checksum, which has to hold.
fn unpack_zstd(
    payload: &[u8],
    read: impl FnOnce(&mut dyn Read) -> Result<Vec<u8>, String>,
) -> Result<Vec<u8>, String> {
    let mut decoder = StreamingDecoder::new_with_max_window_size(payload, ZSTD_WINDOW_LIMIT_BYTES)
        .map_err(|error| error.to_string())?;
    let unpacked = read(&mut decoder)?;
    let frame = decoder.into_frame_decoder();
    match frame.get_checksum_from_data() {
        Some(checksum) if frame.get_calculated_checksum() != Some(checksum) => {
            Err("the checksum doesn't match".into())
        }
        _ => Ok(unpacked),
    }
}

fn read_limited(reader: &mut dyn Read, size_hint: usize, limit_bytes: usize) -> Result<Vec<u8>, String> {
    let mut unpacked = Vec::with_capacity(size_hint);
    reader.take(limit_bytes as u64 + 1).read_to_end(&mut unpacked).map_err(|error| error.to_string())?;
    if unpacked.len() > limit_bytes { Err(packed::too_large(limit_bytes)) } else { Ok(unpacked) }
}

/// Kernels append the unpacked size to the payload. Believed as far as a tenth of a percent compression ratio
/// would carry: a hint only saves moving the buffer.
fn unpacked_size_hint(payload: &[u8], limit_bytes: usize) -> usize {
    let appended = payload.last_chunk().map_or(0, |&bytes| u32::from_le_bytes(bytes) as usize);
    let plausible = payload.len().saturating_mul(16);
    if appended <= plausible.min(limit_bytes) {
        appended + 64
    } else {
        plausible.min(limit_bytes).min(64 << 20)
    }
}
