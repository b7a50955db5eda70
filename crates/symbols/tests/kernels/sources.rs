//! Files of every kind, sound and hostile, through the one door that users come in by.

use crate::blobs;
use crate::common::linked_kernel;

use crate::blobs::Generation;
use crate::blobs::images::{BANNER, bzimage, pack, vmlinux, zboot};
use microslice_symbols::image::compression::{Compression, unpack};
use microslice_symbols::{Cause, SourceKind, source};
use proptest::prelude::*;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

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
    let vmlinux = vmlinux(Generation::V6_4, 700);
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
fn what_is_wrong_inside_a_payload_is_said_with_the_file() {
    let scratch = Scratch::new();
    let mut vmlinux = vmlinux(Generation::V6_4, 700);
    vmlinux[4] = 1; // A 32-bit kernel.
    let image = scratch.file("vmlinuz", &bzimage(&pack(Compression::Gzip, &vmlinux), "6.9.0-test"));
    let message = source::open(&image).unwrap_err().to_string();
    let expected = format!("{}: inside the unpacked payload: offset 0x4: a 32-bit kernel", image.display());
    assert!(message.starts_with(&expected), "{message}");
}

#[test]
fn identity_comes_from_the_banner_and_the_notes() {
    let scratch = Scratch::new();
    let opened = source::open(&scratch.file("vmlinux", &vmlinux(Generation::V7_0, 700))).unwrap();
    let identity = opened.kernel.symbols.identity();
    assert_eq!(identity.release.as_deref(), Some("6.9.0-test"));
    assert_eq!(identity.banner.as_deref(), Some(BANNER));
    assert_eq!(identity.build_id.as_deref(), Some("b1".repeat(20).as_str()));
}

#[test]
fn a_boot_header_that_says_another_release_than_the_kernel_inside_is_reported() {
    let scratch = Scratch::new();
    let packed = pack(Compression::Zstd, &vmlinux(Generation::V6_4, 700));
    let opened = source::open(&scratch.file("image", &bzimage(&packed, "5.0.0-other"))).unwrap();
    assert_eq!(
        opened.kernel.notices,
        ["the boot header says release 5.0.0-other, the kernel inside 6.9.0-test"]
    );
}

#[test]
fn a_payload_that_no_header_names_is_found_by_its_magic() {
    let scratch = Scratch::new();
    let packed = pack(Compression::Gzip, &vmlinux(Generation::V6_4, 700));
    let mut old_protocol = bzimage(&packed, "6.9.0-test");
    old_protocol[0x206..0x208].copy_from_slice(&0x204u16.to_le_bytes());
    assert_eq!(source::open(&scratch.file("old", &old_protocol)).unwrap().kernel.symbols.len(), 700);
    let unknown_wrapper = [b"some firmware".repeat(50), packed].concat();
    assert_eq!(source::open(&scratch.file("unknown", &unknown_wrapper)).unwrap().kernel.symbols.len(), 700);
}

#[test]
fn an_error_names_file_offset_and_cause() {
    let scratch = Scratch::new();
    let mut image = bzimage(&pack(Compression::Zstd, &vmlinux(Generation::V6_4, 700)), "6.9.0-test");
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
    let kernel = linked_kernel(scratch.0.path());
    let listed = Command::new("nm").arg(&kernel).output();
    let Ok(listed) = listed else {
        writeln!(std::io::stderr(), "SKIPPED: nm (binutils) isn't installed").expect("stderr");
        return;
    };
    let opened = source::open(&kernel).unwrap();
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
    assert_eq!(functions.len(), 101);
    for function in functions {
        assert!(names.contains(&function), "{function:x?}");
    }
    drop(scratch);
}

#[test]
fn a_program_is_no_kernel() {
    let own = std::env::current_exe().unwrap();
    let error = source::open(&own).unwrap_err().to_string();
    assert!(
        error.ends_with("a program or library, no kernel: it has symbols, but no linux_banner"),
        "{error}"
    );
}

#[test]
fn a_library_that_carries_a_kernel_is_refused() {
    // Its code is elsewhere than its kallsyms say.
    let mut library = vmlinux(Generation::V6_4, 700);
    let headers = u64::from_le_bytes(library[32..40].try_into().unwrap()) as usize;
    for segment in 0..usize::from(library[56]) {
        let address = headers + 56 * segment + 16;
        library[address..address + 8].copy_from_slice(&0x1000u64.to_le_bytes());
    }
    let error = source::read_image(library).unwrap_err().to_string();
    assert!(error.contains("a kernel inside") || error.contains("no array of rising addresses"), "{error}");
}

#[test]
fn kernels_for_other_processors_are_named() {
    let scratch = Scratch::new();
    let refusal =
        |name: &str, bytes: &[u8]| source::open(&scratch.file(name, bytes)).unwrap_err().to_string();
    let mut image = vec![0; 4096];
    image[0x38..0x3c].copy_from_slice(b"ARM\x64");
    let mut elf = vmlinux(Generation::V6_4, 700);
    elf[0x12] = 183;
    let files: [(&str, Vec<u8>); 4] = [
        ("Image", image.clone()),
        ("Image.gz", pack(Compression::Gzip, &image)),
        ("vmlinux", elf.clone()),
        ("System.map", b"ffff800080000000 T _text\nffff800080000100 T next\n".to_vec()),
    ];
    for (name, bytes) in files {
        let error = refusal(name, &bytes);
        assert!(error.ends_with("an arm64 kernel, and only x86-64 ones are read"), "{error}");
    }
    elf[0x12] = 243;
    assert!(refusal("riscv", &elf).ends_with("a riscv kernel, and only x86-64 ones are read"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn damaged_images_give_an_error_or_a_kernel_and_never_a_panic(
        compression in proptest::sample::select(Compression::ALL.to_vec()),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
    ) {
        let packed = pack(compression, &vmlinux(Generation::V6_4, 700));
        let mut image = bzimage(&packed, "6.9.0-test");
        for (position, value) in damage {
            let position = position.index(image.len());
            image[position] = value;
        }
        let _ = source::read_image(image);
    }

    #[test]
    fn damaged_elf_headers_give_an_error_or_a_kernel(position in 0usize..400, value: u8) {
        let mut elf = vmlinux(Generation::V7_0, 700);
        elf[position] = value;
        let _ = source::read_image(elf);
    }
}
