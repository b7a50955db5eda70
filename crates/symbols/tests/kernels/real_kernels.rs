//! Stock Debian kernels from `.cache/kernels` (`make kernels`), against vmlinux-to-elf, an independent
//! reader.
//!
//! vmlinux-to-elf is slow (5 to 45 s a kernel), so what it says is kept in `.cache/vmlinux-to-elf`, by image.

use crate::common::Ram;
use microslice_symbols::memory::{ScanLimits, find_kernel};
use microslice_symbols::{Kernel, source};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

const TOOL: &str = "vmlinux-to-elf==1.4.0";
/// The kernels that must equal vmlinux-to-elf's reading; others in the cache are read, too.
const COMPARED: [&str; 12] = [
    "5.10",
    "5.10-cloud",
    "6.1",
    "6.1-cloud",
    "6.12",
    "6.12-cloud",
    "6.12-rt",
    "6.18-cloud",
    "7.2",
    "7.2-cloud",
    "7.2-rt",
    "7.3",
];
const X86_64_TEXT: u64 = 0xffff_ffff_8100_0000;

fn cache() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache")
}

/// Every image in the cache, by release.
fn images() -> BTreeMap<String, PathBuf> {
    let packages = fs::read_dir(cache().join("kernels")).into_iter().flatten().flatten();
    let in_package =
        |package: fs::DirEntry| fs::read_dir(package.path().join("boot")).into_iter().flatten().flatten();
    let images = packages.flat_map(in_package).filter_map(|entry| {
        let release = entry.file_name().to_str()?.strip_prefix("vmlinuz-")?.to_owned();
        Some((release, entry.path()))
    });
    let images: BTreeMap<_, _> = images.collect();
    if images.is_empty() {
        writeln!(std::io::stderr(), "SKIPPED: no kernel in .cache/kernels; `make kernels` fetches them")
            .expect("stderr");
    }
    images
}

/// `6.12.95+deb12-cloud-amd64` is `6.12-cloud`.
fn series_of(release: &str) -> String {
    let numbers: Vec<&str> = release.split(['.', '-', '+']).take(2).collect();
    let flavour = ["-cloud", "-rt"].into_iter().find(|flavour| release.contains(&format!("{flavour}-")));
    format!("{}{}", numbers.join("."), flavour.unwrap_or_default())
}

/// The last image of each series that is compared.
fn compared() -> Vec<(String, PathBuf)> {
    let images = images();
    let of_series = |series: &&str| {
        let found = images.iter().rfind(|(release, _)| series_of(release) == **series);
        if found.is_none() && !images.is_empty() {
            writeln!(
                std::io::stderr(),
                "SKIPPED: no {series} kernel in .cache/kernels; `make kernels` fetches them"
            )
            .expect("stderr");
        }
        found.map(|(release, path)| (release.clone(), path.clone()))
    };
    COMPARED.iter().filter_map(of_series).collect()
}

fn open(path: &Path) -> Kernel {
    source::open(path).unwrap_or_else(|error| panic!("{error}")).kernel
}

fn lines_of(kernel: &Kernel) -> Vec<String> {
    kernel
        .symbols
        .iter()
        .map(|symbol| format!("{:016x} {} {}", symbol.address, symbol.kind, symbol.name))
        .collect()
}

/// vmlinux-to-elf in a virtual environment of its own; why not, if it can't be had.
fn reference_tool() -> &'static Result<PathBuf, String> {
    static READY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    READY.get_or_init(|| {
        let environment = cache().join("vmlinux-to-elf");
        let tool = environment.join("bin/kallsyms-finder");
        if !tool.exists() {
            run(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
            run(Command::new(environment.join("bin/pip")).args(["install", "--quiet", TOOL]))?;
        }
        Ok(tool)
    })
}

fn run(command: &mut Command) -> Result<Vec<u8>, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        let last = String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned();
        Err(format!("{command:?}: {last}"))
    }
}

/// What vmlinux-to-elf reads from `image`, one `address type name` a line, sorted.
fn reference_lines(image: &Path) -> Result<Vec<String>, String> {
    let bytes = fs::read(image).map_err(|error| error.to_string())?;
    let name = image.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let kept = cache().join("vmlinux-to-elf").join(format!("{name}-{:08x}.symbols", crc32fast::hash(&bytes)));
    if let Ok(text) = fs::read_to_string(&kept) {
        return Ok(text.lines().map(str::to_owned).collect());
    }
    let tool = reference_tool().as_ref()?;
    let mut lines = lines_said_by(tool, image);
    if lines.is_empty() {
        // It misses LZ4 payloads now and then: let it read the unpacked kernel.
        let unpacked = microslice_symbols::image::boot_header::unpack_bzimage(&bytes)
            .map_err(|error| error.to_string())?;
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let path = directory.path().join("vmlinux");
        fs::write(&path, unpacked).map_err(|error| error.to_string())?;
        lines = lines_said_by(tool, &path);
    }
    if lines.is_empty() {
        return Err(format!("vmlinux-to-elf reads nothing from {}", image.display()));
    }
    lines.sort();
    let new = kept.with_extension("new");
    fs::write(&new, lines.join("\n"))
        .and_then(|()| fs::rename(&new, &kept))
        .map_err(|error| error.to_string())?;
    Ok(lines)
}

fn lines_said_by(tool: &Path, image: &Path) -> Vec<String> {
    let said = run(Command::new(tool).arg(image)).unwrap_or_default();
    let text = String::from_utf8_lossy(&said);
    let is_symbol = |line: &&str| {
        line.split(' ').next().is_some_and(|word| word.len() == 16 && u64::from_str_radix(word, 16).is_ok())
    };
    text.lines().filter(is_symbol).map(str::to_owned).collect()
}

#[test]
fn names_addresses_and_types_equal_vmlinux_to_elfs_all_of_them() {
    let work = Mutex::new(compared());
    let compare = || {
        loop {
            let Some((release, path)) = work.lock().unwrap().pop() else { return };
            let reference = match reference_lines(&path) {
                Ok(lines) => lines,
                Err(cause) => {
                    writeln!(std::io::stderr(), "SKIPPED: {release}: {cause}").expect("stderr");
                    continue;
                }
            };
            let mut ours = lines_of(&open(&path));
            ours.sort();
            let differing = ours.iter().zip(&reference).find(|(ours, theirs)| ours != theirs);
            assert_eq!(differing, None, "{release}: ours, theirs");
            assert_eq!(ours.len(), reference.len(), "{release}");
            eprintln!("{release}: {} symbols equal", ours.len());
        }
    };
    std::thread::scope(|threads| {
        threads.spawn(compare);
        threads.spawn(compare);
    });
}

#[test]
fn every_kernel_says_its_identity() {
    for (release, path) in images() {
        let kernel = open(&path);
        let identity = kernel.symbols.identity();
        assert_eq!(identity.release.as_deref(), Some(release.as_str()));
        assert!(
            identity.banner.as_deref().is_some_and(|banner| banner.contains("#1 SMP")),
            "{release}: {identity:?}"
        );
        assert!(
            identity.build_id.as_deref().is_some_and(|build_id| build_id.len() == 40),
            "{release}: {identity:?}"
        );
        assert_eq!(kernel.notices, Vec::<String>::new(), "{release}");
        assert_eq!(kernel.symbols.address_of("_text"), Some(X86_64_TEXT), "{release}");
        let bounds = kernel.symbols.text_bounds().unwrap();
        let idle = kernel
            .symbols
            .address_of("default_idle")
            .or(kernel.symbols.address_of("pv_native_safe_halt"))
            .unwrap();
        assert!(bounds.contains(idle), "{release}: {bounds:x?} {idle:x}");
    }
}

#[test]
fn debians_stub_of_a_system_map_is_refused_with_the_way_out() {
    for (release, path) in images() {
        let map = path.with_file_name(format!("System.map-{release}"));
        if !map.exists() {
            continue; // Packages from 6.19 on have none.
        }
        let message = source::open(&map).unwrap_err().to_string();
        assert!(message.contains("is a stub") && message.contains("give the kernel image"), "{message}");
    }
}

#[test]
fn a_kernel_loaded_into_memory_is_found_there_with_the_same_symbols() {
    const LOADED_AT: usize = 0x100_0000;
    for (release, path) in compared().into_iter().filter(|(release, _)| release.contains("cloud")) {
        let kernel = open(&path);
        let (address, text) = kernel.code.as_ref().unwrap().executable().next().unwrap();
        assert_eq!(address, X86_64_TEXT, "{release}");
        let mut ram = vec![0u8; LOADED_AT + text.len() + (4 << 20)];
        ram[LOADED_AT..LOADED_AT + text.len()].copy_from_slice(text);
        let found = find_kernel(&Ram::of(ram), &ScanLimits::default(), &mut |_| ()).unwrap();
        assert!(found.kernel.symbols.iter().eq(kernel.symbols.iter()), "{release}");
        assert_eq!(found.kernel.symbols.identity(), kernel.symbols.identity(), "{release}");
        assert_eq!(found.slide, Some(0), "{release}: {:?}", found.witnesses);
    }
}
