//! Kernel images around a generated table: ELF, packed payloads, boot wrappers.

use super::{Generation, encode};
use microslice_symbols::image::compression::Compression;
use std::io::Write;
use std::process::{Command, Stdio};

const TEXT: u64 = 0xffff_ffff_8100_0000;
pub const BANNER: &str = "Linux version 6.9.0-test (someone@somewhere) #1 SMP";
const BUILD_ID: [u8; 20] = [0xb1; 20];

/// A stripped x86-64 `vmlinux` of one segment: banner, notes, kallsyms.
pub fn vmlinux(generation: Generation, symbols: usize) -> Vec<u8> {
    const HEADER_BYTES: usize = 64 + 2 * 56;
    let mut head = format!("{BANNER}\n\0").into_bytes();
    head.resize(256, 0);
    let note_offset = HEADER_BYTES + head.len();
    for word in [4u32, BUILD_ID.len() as u32, 3] {
        head.extend(word.to_le_bytes());
    }
    head.extend(b"GNU\0");
    head.extend(BUILD_ID);
    let note_bytes = HEADER_BYTES + head.len() - note_offset;
    let before = 4096;
    let mut segment = encode(generation, &super::symbols(generation, symbols, TEXT), before, TEXT).bytes;
    segment[HEADER_BYTES..HEADER_BYTES + head.len()].copy_from_slice(&head);
    let mut elf = Vec::new();
    elf.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    elf.extend([2u16.to_le_bytes(), 62u16.to_le_bytes()].concat()); // ET_EXEC, x86-64
    elf.extend(1u32.to_le_bytes());
    elf.extend([TEXT, 64, 0].map(u64::to_le_bytes).concat()); // entry, program headers, sections
    elf.extend(0u32.to_le_bytes());
    elf.extend([64u16, 56, 2, 64, 0, 0].map(u16::to_le_bytes).concat());
    let mut header = |kind: u32, offset: usize, bytes: usize| {
        elf.extend([kind.to_le_bytes(), 5u32.to_le_bytes()].concat());
        let address = TEXT + offset as u64;
        elf.extend(
            [offset as u64, address, address, bytes as u64, bytes as u64, 4].map(u64::to_le_bytes).concat(),
        );
    };
    header(1, 0, segment.len());
    header(4, note_offset, note_bytes);
    segment[..elf.len()].copy_from_slice(&elf);
    segment
}

/// Packs as the kernel's build does (scripts/Makefile.lib): the tool's output, and the unpacked size behind
/// it.
pub fn pack(compression: Compression, bytes: &[u8]) -> Vec<u8> {
    let mut packed = match compression {
        Compression::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
        Compression::Bzip2 => {
            let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::best());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
        Compression::Xz => tool("xz", &["--check=crc32", "--x86", "--lzma2=,dict=32MiB"], bytes),
        Compression::Lzma => tool("xz", &["--format=lzma", "-9"], bytes),
        Compression::Zstd => tool("zstd", &["-22", "--ultra", "--quiet"], bytes),
        Compression::Lzo => lzop(bytes),
        Compression::Lz4Legacy => lz4_legacy(bytes),
    };
    packed.extend((bytes.len() as u32).to_le_bytes());
    packed
}

fn tool(name: &str, flags: &[&str], bytes: &[u8]) -> Vec<u8> {
    let mut child = Command::new(name)
        .args(flags)
        .arg("-c")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let bytes = bytes.to_vec();
    let writer = std::thread::spawn(move || input.write_all(&bytes));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success());
    output.stdout
}

/// What `lzop -9` writes, block by block.
fn lzop(bytes: &[u8]) -> Vec<u8> {
    let mut packed = Compression::Lzo.magic().to_vec();
    packed.extend([0x10, 0x40, 0x20, 0xa0, 0x09, 0x40, 3, 9]); // versions, method, level
    packed.extend(1u32.to_be_bytes()); // flags: Adler-32 of what is unpacked
    packed.extend([0; 12]); // mode, mtime
    packed.push(0); // no name
    packed.extend([0; 4]); // header checksum
    for block in bytes.chunks(256 << 10) {
        let compressed = lzo1x::compress(block, lzo1x::CompressLevel::new(9));
        let stored = compressed.len() >= block.len();
        let data = if stored { block } else { &compressed };
        packed.extend((block.len() as u32).to_be_bytes());
        packed.extend((data.len() as u32).to_be_bytes());
        packed.extend([0; 4]); // Adler-32
        packed.extend(data);
    }
    packed.extend(0u32.to_be_bytes());
    packed
}

fn lz4_legacy(bytes: &[u8]) -> Vec<u8> {
    let mut packed = Compression::Lz4Legacy.magic().to_vec();
    for block in bytes.chunks(8 << 20) {
        let data = lz4_flex::block::compress(block);
        packed.extend((data.len() as u32).to_le_bytes());
        packed.extend(data);
    }
    packed
}

/// A bzImage around `payload`: setup header of protocol 2.15, 4 setup sectors.
pub fn bzimage(payload: &[u8], release: &str) -> Vec<u8> {
    let mut image = vec![0u8; 5 * 512];
    image[0x1f1] = 4;
    image[0x1fe..0x200].copy_from_slice(&[0x55, 0xaa]);
    image[0x202..0x206].copy_from_slice(b"HdrS");
    image[0x206..0x208].copy_from_slice(&0x20fu16.to_le_bytes());
    image[0x20e..0x210].copy_from_slice(&0x300u16.to_le_bytes());
    let version = format!("{release} (someone@somewhere) #1 SMP\0");
    image[0x500..0x500 + version.len()].copy_from_slice(version.as_bytes());
    image[0x248..0x24c].copy_from_slice(&0x100u32.to_le_bytes());
    image[0x24c..0x250].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    image.extend([0x90; 0x100]);
    image.extend(payload);
    image
}

pub fn zboot(payload: &[u8]) -> Vec<u8> {
    let mut image = b"MZ\0\0zimg".to_vec();
    image.extend([64u32.to_le_bytes(), (payload.len() as u32).to_le_bytes()].concat());
    image.resize(64, 0);
    image.extend(payload);
    image
}

/// A 64-bit PE file with these sections, one behind the other, as `ukify` and `objcopy --add-section` make
/// it.
pub fn unified(sections: &[(&str, &[u8])]) -> Vec<u8> {
    const NT_HEADERS: usize = 0x80;
    const OPTIONAL_HEADER_BYTES: usize = 112;
    const FILE_ALIGNMENT: usize = 512;
    let mut image = b"MZ".to_vec();
    image.resize(NT_HEADERS, 0);
    image[0x3c..0x40].copy_from_slice(&(NT_HEADERS as u32).to_le_bytes());
    image.extend(b"PE\0\0");
    image.extend([0x8664u16, sections.len() as u16].map(u16::to_le_bytes).concat());
    image.extend([0; 12]);
    image.extend([OPTIONAL_HEADER_BYTES as u16, 0x22].map(u16::to_le_bytes).concat());
    image.extend(0x20bu16.to_le_bytes());
    image.resize(image.len() + OPTIONAL_HEADER_BYTES - 2, 0);
    let mut offset = (image.len() + 40 * sections.len()).next_multiple_of(FILE_ALIGNMENT);
    for (index, (name, bytes)) in sections.iter().enumerate() {
        let mut padded = name.as_bytes().to_vec();
        padded.resize(8, 0);
        image.extend(padded);
        let raw_bytes = bytes.len().next_multiple_of(FILE_ALIGNMENT);
        let address = 0x800_0000 * (index as u32 + 1);
        image.extend(
            [bytes.len() as u32, address, raw_bytes as u32, offset as u32].map(u32::to_le_bytes).concat(),
        );
        image.extend([0; 12]);
        image.extend(0x4000_0040u32.to_le_bytes());
        offset += raw_bytes;
    }
    for (_, bytes) in sections {
        image.resize(image.len().next_multiple_of(FILE_ALIGNMENT), 0);
        image.extend(*bytes);
    }
    image.resize(image.len().next_multiple_of(FILE_ALIGNMENT), 0);
    image
}
