//! Kernels that come inside something else: a unified kernel image.

mod blobs;

use blobs::Generation;
use blobs::images::{bzimage, pack, unified, vmlinux};
use microslice_symbols::image::compression::Compression;
use microslice_symbols::source;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

const SYMBOLS: usize = 700;

fn file(folder: &tempfile::TempDir, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join("carrier");
    fs::write(&path, bytes).unwrap();
    path
}

fn vmlinuz() -> Vec<u8> {
    bzimage(&pack(Compression::Zstd, &vmlinux(Generation::V6_4, SYMBOLS)), "6.9.0-test")
}

/// A kernel module, as far as an ELF header and a symbol table tell: relocatable, with kallsyms-like bytes inside.
fn module() -> Vec<u8> {
    let mut elf = vmlinux(Generation::V6_4, 300);
    elf[16] = 1; // ET_REL
    elf
}

/// An initrd whose archive isn't packed, but the modules in it are.
fn initrd_of_modules(count: usize) -> Vec<u8> {
    let module = pack(Compression::Zstd, &module());
    (0..count)
        .flat_map(|index| {
            let mut entry = format!("070701 usr/lib/modules/{index}.ko.zst\0").into_bytes();
            entry.resize(entry.len().next_multiple_of(4), 0);
            entry.extend(&module);
            entry
        })
        .collect()
}

#[test]
fn the_kernel_of_a_unified_image_is_the_one_in_its_section_linux() {
    let folder = tempfile::tempdir().unwrap();
    let (kernel, initrd) = (vmlinuz(), initrd_of_modules(40));
    for sections in [
        [(".osrel", &b"NAME=x"[..]), (".initrd", &initrd), (".linux", &kernel)],
        [(".linux", &kernel), (".osrel", b"NAME=x"), (".initrd", &initrd)],
    ] {
        let opened = source::open(&file(&folder, &unified(&sections))).unwrap();
        assert_eq!(opened.kind, source::SourceKind::Image);
        assert_eq!(opened.kernel.symbols.len(), SYMBOLS);
        assert_eq!(opened.kernel.symbols.identity().release.as_deref(), Some("6.9.0-test"));
        assert_eq!(opened.kernel.notices, Vec::<String>::new());
    }
}

#[test]
fn a_module_of_an_initrd_is_never_the_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let initrd = initrd_of_modules(40);
    let alone = source::open(&file(&folder, &initrd)).unwrap_err().to_string();
    assert!(alone.contains("is none of"), "{alone}");
    let in_front = [&initrd[..], &pack(Compression::Zstd, &vmlinux(Generation::V6_4, SYMBOLS))].concat();
    assert_eq!(source::open(&file(&folder, &in_front)).unwrap().kernel.symbols.len(), SYMBOLS);
    let as_kernel = source::open(&file(&folder, &module())).unwrap_err().to_string();
    assert!(as_kernel.contains("relocatable"), "{as_kernel}");
    let in_section = source::open(&file(&folder, &unified(&[(".linux", &initrd)]))).unwrap_err().to_string();
    assert!(in_section.contains("is none of"), "{in_section}");
}

#[test]
fn a_section_that_leads_out_of_the_file_and_an_image_in_an_image_are_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let image = unified(&[(".linux", &vmlinuz())]);
    let cut = source::open(&file(&folder, &image[..image.len() - 1024])).unwrap_err().to_string();
    assert!(cut.contains("the section .linux (") && cut.contains("reaches past the end"), "{cut}");
    let nested = source::open(&file(&folder, &unified(&[(".linux", &image)]))).unwrap_err().to_string();
    assert!(nested.contains("a unified kernel image inside a unified kernel image"), "{nested}");
}

fn cache() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache")
}

fn skip(reason: &str) {
    writeln!(std::io::stderr(), "SKIPPED: {reason}").expect("stderr");
}

#[test]
fn stock_kernels_in_unified_images_are_read_as_they_are_alone() {
    let folder = tempfile::tempdir().unwrap();
    let packages = fs::read_dir(cache().join("kernels")).into_iter().flatten().flatten();
    let images = packages
        .flat_map(|package| fs::read_dir(package.path().join("boot")).into_iter().flatten().flatten())
        .map(|entry| entry.path());
    let mut images: Vec<PathBuf> = images
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("vmlinuz-") && name.contains("-cloud-")
        })
        .collect();
    images.sort();
    if images.is_empty() {
        skip("no cloud kernel in .cache/kernels; `make kernels` fetches them");
    }
    for path in images {
        let alone = source::open(&path).unwrap().kernel;
        let image = unified(&[(".initrd", &initrd_of_modules(40)), (".linux", &fs::read(&path).unwrap())]);
        let carried = source::open(&file(&folder, &image)).unwrap().kernel;
        assert!(carried.symbols.iter().eq(alone.symbols.iter()), "{}", path.display());
        assert_eq!(carried.symbols.identity(), alone.symbols.identity());
    }
}
