//! Files of every kind, sound and hostile, through the one door that users come in by.

mod blobs;

use blobs::{Generation, encode};
use microslice_symbols::image::compression::{Compression, unpack};
use microslice_symbols::{Cause, SourceKind, source};
use proptest::prelude::*;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const TEXT: u64 = 0xffff_ffff_8100_0000;
const BANNER: &str = "Linux version 6.9.0-test (someone@somewhere) #1 SMP";
const BUILD_ID: [u8; 20] = [0xb1; 20];

/// A stripped x86-64 `vmlinux` of one segment: banner, notes, kallsyms.
fn vmlinux(generation: Generation) -> Vec<u8> {
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
    let mut segment = encode(generation, &blobs::symbols(generation, 700, TEXT), before, TEXT).bytes;
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

/// Packs as the kernel's build does (scripts/Makefile.lib): the tool's output, and the unpacked size behind it.
fn pack(compression: Compression, bytes: &[u8]) -> Vec<u8> {
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
        Compression::Zstd => zstd::bulk::compress(bytes, 19).unwrap(),
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
fn bzimage(payload: &[u8], release: &str) -> Vec<u8> {
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

fn zboot(payload: &[u8]) -> Vec<u8> {
    let mut image = b"MZ\0\0zimg".to_vec();
    image.extend([64u32.to_le_bytes(), (payload.len() as u32).to_le_bytes()].concat());
    image.resize(64, 0);
    image.extend(payload);
    image
}

struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

#[test]
fn every_compression_of_every_wrapper_gives_the_same_kernel() {
    let scratch = Scratch::new();
    let vmlinux = vmlinux(Generation::V6_4);
    let expected = source::open(&scratch.file("vmlinux", &vmlinux)).unwrap();
    assert_eq!((expected.kind, expected.kernel.symbols.len()), (SourceKind::Elf, 700));
    for compression in Compression::ALL {
        let packed = pack(compression, &vmlinux);
        for (wrapper, bytes) in
            [("bzImage", bzimage(&packed, "6.9.0-test")), ("zboot", zboot(&packed)), ("bare", packed.clone())]
        {
            let opened = source::open(&scratch.file("image", &bytes));
            let kernel =
                opened.unwrap_or_else(|error| panic!("{wrapper} {}: {error}", compression.name())).kernel;
            assert_eq!(kernel.symbols.identity(), expected.kernel.symbols.identity());
            assert!(
                kernel.symbols.iter().eq(expected.kernel.symbols.iter()),
                "{wrapper} {}",
                compression.name()
            );
            assert_eq!(kernel.notices, Vec::<String>::new());
        }
    }
}

#[test]
fn identity_comes_from_the_banner_and_the_notes() {
    let scratch = Scratch::new();
    let opened = source::open(&scratch.file("vmlinux", &vmlinux(Generation::V7_0))).unwrap();
    let identity = opened.kernel.symbols.identity();
    assert_eq!(identity.release.as_deref(), Some("6.9.0-test"));
    assert_eq!(identity.banner.as_deref(), Some(BANNER));
    assert_eq!(identity.build_id.as_deref(), Some("b1".repeat(20).as_str()));
}

#[test]
fn a_boot_header_that_says_another_release_than_the_kernel_inside_is_reported() {
    let scratch = Scratch::new();
    let packed = pack(Compression::Zstd, &vmlinux(Generation::V6_4));
    let opened = source::open(&scratch.file("image", &bzimage(&packed, "5.0.0-other"))).unwrap();
    assert_eq!(
        opened.kernel.notices,
        ["the boot header says release 5.0.0-other, the kernel inside 6.9.0-test"]
    );
}

#[test]
fn a_payload_that_no_header_names_is_found_by_its_magic() {
    let scratch = Scratch::new();
    let packed = pack(Compression::Gzip, &vmlinux(Generation::V6_4));
    let mut old_protocol = bzimage(&packed, "6.9.0-test");
    old_protocol[0x206..0x208].copy_from_slice(&0x204u16.to_le_bytes());
    assert_eq!(source::open(&scratch.file("old", &old_protocol)).unwrap().kernel.symbols.len(), 700);
    let unknown_wrapper = [b"some firmware".repeat(50), packed].concat();
    assert_eq!(source::open(&scratch.file("unknown", &unknown_wrapper)).unwrap().kernel.symbols.len(), 700);
}

#[test]
fn an_error_names_file_offset_and_cause() {
    let scratch = Scratch::new();
    let mut image = bzimage(&pack(Compression::Zstd, &vmlinux(Generation::V6_4)), "6.9.0-test");
    image[0x24c..0x250].copy_from_slice(&u32::MAX.to_le_bytes());
    let path = scratch.file("vmlinuz", &image);
    assert_eq!(source::open(&path).unwrap().kernel.symbols.len(), 700, "the payload is where its magic is");
    image.truncate(5 * 512 + 0x100 + 200);
    let message = source::open(&scratch.file("vmlinuz", &image)).unwrap_err().to_string();
    let expected = format!(
        "{}: offset 0x248: the payload (4294967295 bytes at 0xb00) reaches past the end of the file (3016)",
        path.display()
    );
    assert_eq!(message, expected);
}

#[test]
fn a_bomb_is_refused_at_the_limit_in_every_compression() {
    let zeros = vec![0u8; 3 << 20];
    for compression in Compression::ALL {
        let packed = pack(compression, &zeros);
        assert_eq!(
            unpack(compression, &packed, 0, zeros.len()).unwrap().len(),
            zeros.len(),
            "{}",
            compression.name()
        );
        let message = unpack(compression, &packed, 7, 1 << 20).unwrap_err().to_string();
        let expected = format!(
            "offset 0x7: {} payload: unpacks to more than 1048576 bytes: refused",
            compression.name()
        );
        assert_eq!(message, expected);
    }
}

#[test]
fn what_is_no_kernel_is_said_not_to_be_one() {
    let scratch = Scratch::new();
    let cause = |name: &str, bytes: &[u8]| source::open(&scratch.file(name, bytes)).unwrap_err().cause;
    assert_eq!(cause("noise", &blobs::noise(100_000)), Cause::UnknownFormat);
    assert!(matches!(cause("empty", b""), Cause::Io(_)));
    assert!(matches!(
        cause("System.map", b"ffffffffffffffff B The real System.map is in the x-dbg package\n"),
        Cause::Stub(_)
    ));
    assert!(matches!(source::open(scratch.0.path()).unwrap_err().cause, Cause::Io(_)));
    assert!(matches!(source::open(&scratch.0.path().join("absent")).unwrap_err().cause, Cause::Io(_)));
}

#[test]
fn a_system_map_takes_its_release_from_its_name() {
    let scratch = Scratch::new();
    let map = scratch.file("System.map-5.4.0-custom", b"ffffffff81000000 T _text\nffffffff81000100 T next\n");
    let opened = source::open(&map).unwrap();
    assert_eq!(opened.kind, SourceKind::SymbolText);
    assert_eq!(opened.kernel.symbols.identity().release.as_deref(), Some("5.4.0-custom"));
}

#[test]
fn an_elf_with_a_symbol_table_gives_what_nm_gives() {
    let scratch = Scratch::new();
    let own = std::env::current_exe().unwrap();
    let listed = Command::new("nm").arg(&own).output();
    let Ok(listed) = listed else {
        eprintln!("SKIPPED: nm (binutils) isn't installed");
        return;
    };
    let opened = source::open(&own).unwrap();
    let names: std::collections::HashSet<(u64, &str)> =
        opened.kernel.symbols.iter().map(|symbol| (symbol.address, symbol.name)).collect();
    let text = String::from_utf8(listed.stdout).unwrap();
    let functions = text.lines().filter_map(|line| {
        let (address, rest) = line.split_once(' ')?;
        let (kind, name) = rest.split_once(' ')?;
        matches!(kind, "T" | "t").then(|| (u64::from_str_radix(address, 16).unwrap(), name))
    });
    let functions: Vec<_> =
        functions.filter(|(_, name)| !name.contains(' ') && !name.starts_with(['$', '.', 'L'])).collect();
    assert!(functions.len() > 1000, "the test itself has functions");
    for function in functions {
        assert!(names.contains(&function), "{function:x?}");
    }
    drop(scratch);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn damaged_images_give_an_error_or_a_kernel_and_never_a_panic(
        compression in proptest::sample::select(Compression::ALL.to_vec()),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
    ) {
        let packed = pack(compression, &vmlinux(Generation::V6_4));
        let mut image = bzimage(&packed, "6.9.0-test");
        for (position, value) in damage {
            let position = position.index(image.len());
            image[position] = value;
        }
        let _ = source::read_image(image);
    }

    #[test]
    fn damaged_elf_headers_give_an_error_or_a_kernel(position in 0usize..400, value: u8) {
        let mut elf = vmlinux(Generation::V7_0);
        elf[position] = value;
        let _ = source::read_image(elf);
    }
}
