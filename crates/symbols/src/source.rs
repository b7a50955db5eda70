//! Any file that holds a kernel's symbols, told by its content.

use crate::image::boot_header::{self, Wrapper};
use crate::image::{self, IMAGE_BYTES_MAX, Kernel, compression, elf, unified};
use crate::memory::{self, MemoryKernel, ScanLimits, dump::DumpFile};
use crate::{Cause, Error, Place, text};
use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::ops::Range;
use std::path::Path;

/// Bytes that tell a format.
const HEAD_BYTES: u64 = 4096;

/// What a file turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceKind {
    /// bzImage, EFI zboot, unified kernel image, libkrunfw, bare packed kernel.
    Image,
    /// ELF `vmlinux`, stripped or not.
    Elf,
    /// Bytes of a running kernel: addresses are put back to where they are linked.
    MemoryDump,
    /// `System.map` or `/proc/kallsyms`.
    SymbolText,
    /// A table of the symbol store.
    Stored,
}

impl SourceKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Elf => "elf",
            Self::MemoryDump => "memory",
            Self::SymbolText => "text",
            Self::Stored => "store",
        }
    }
}

/// A kernel, and what it came from.
#[derive(Debug)]
pub struct Source {
    pub kind: SourceKind,
    pub kernel: Kernel,
    /// For memory: how far the running kernel is from where it is linked, when the memory tells.
    pub slide: Option<u64>,
}

impl Source {
    fn new(kind: SourceKind, kernel: Kernel) -> Self {
        Self { kind, kernel, slide: None }
    }

    fn of_memory(found: MemoryKernel) -> Self {
        Self { kind: SourceKind::MemoryDump, kernel: found.kernel, slide: found.slide }
    }
}

/// Reads the kernel in the file at `path`.
///
/// # Errors
/// One line that names the file, the place in it and the cause.
pub fn open(path: &Path) -> Result<Source, Error> {
    open_file(path).map_err(|error| error.of(path.display()))
}

fn open_file(path: &Path) -> Result<Source, Error> {
    // Opening a FIFO or a device can block for ever: look first.
    let metadata = std::fs::metadata(path).map_err(|error| Error::io(&error))?;
    if !metadata.is_file() {
        return Err(Error::new(Place::Whole, Cause::Io("isn't a regular file".into())));
    }
    let mut file = crate::open_to_end(path).map_err(|error| Error::io(&error))?;
    let mut head = Vec::new();
    file.by_ref().take(HEAD_BYTES).read_to_end(&mut head).map_err(|error| Error::io(&error))?;
    if head.is_empty() {
        return Err(Error::new(Place::Whole, Cause::Io("is empty".into())));
    }
    file.rewind().map_err(|error| Error::io(&error))?;
    let small = metadata.len() <= IMAGE_BYTES_MAX as u64;
    if text::looks_like_symbol_text(&head) {
        return read_text(path, file);
    }
    match Wrapper::of(&head) {
        Some(Wrapper::Elf) if is_core_dump(&head) => scan_dump(file),
        Some(Wrapper::Elf) if !small => read_large_elf(file),
        Some(_) if small => read_image(read_whole(&mut file)?),
        _ => scan_unknown(file, small),
    }
}

/// Reads the kernel in `bytes`: any image, packed or not.
pub fn read_image(bytes: Vec<u8>) -> Result<Source, Error> {
    let Some(wrapper) = Wrapper::of(&bytes) else {
        return Err(Error::new(Place::Whole, Cause::UnknownFormat));
    };
    let (release, unpacked) = match wrapper {
        Wrapper::Unified => return read_unified(bytes),
        Wrapper::Elf => {
            return match elf::kernel_bundle(&bytes) {
                Some(range) => read_bundle(bytes, range),
                None => elf::read(bytes).map(|kernel| Source::new(SourceKind::Elf, kernel)),
            };
        }
        Wrapper::Arm64Image => return Err(an_arm64_image()),
        Wrapper::BzImage => (boot_header::bzimage_release(&bytes), boot_header::unpack_bzimage(&bytes)?),
        Wrapper::EfiZboot => (None, boot_header::unpack_zboot(&bytes)?),
        Wrapper::Bare(compression) => (None, compression::unpack(compression, &bytes, 0, IMAGE_BYTES_MAX)?),
    };
    drop(bytes);
    let mut kernel = read_unpacked(unpacked).map_err(Error::in_payload)?;
    let banner_release = kernel.symbols.identity().release.clone();
    if let (Some(header), Some(banner)) = (&release, &banner_release)
        && header != banner
    {
        kernel.notices.push(format!("the boot header says release {header}, the kernel inside {banner}"));
    }
    Ok(Source::new(SourceKind::Image, kernel))
}

/// The kernel of a unified kernel image is an image itself; one inside another is refused.
fn read_unified(mut bytes: Vec<u8>) -> Result<Source, Error> {
    let range = unified::kernel_range(&bytes)?;
    bytes.truncate(range.end);
    bytes.drain(..range.start);
    if Wrapper::of(&bytes) == Some(Wrapper::Unified) {
        return Err(Error::malformed(
            range.start as u64,
            "a unified kernel image inside a unified kernel image",
        ));
    }
    let mut source = read_image(bytes).map_err(Error::in_payload)?;
    source.kind = SourceKind::Image;
    Ok(source)
}

/// A library carries a flat kernel.
fn read_bundle(mut bytes: Vec<u8>, range: Range<usize>) -> Result<Source, Error> {
    bytes.truncate(range.end);
    bytes.drain(..range.start);
    let read = match Wrapper::of(&bytes) {
        Some(Wrapper::Arm64Image) => Err(an_arm64_image()),
        _ => image::read_flat(bytes),
    };
    read.map_err(Error::in_payload).map(|kernel| Source::new(SourceKind::Image, kernel))
}

/// What comes out of a payload is an ELF file; a payload inside a payload is refused.
fn read_unpacked(bytes: Vec<u8>) -> Result<Kernel, Error> {
    match Wrapper::of(&bytes) {
        Some(Wrapper::Elf) => elf::read(bytes),
        Some(Wrapper::Arm64Image) => Err(an_arm64_image()),
        _ => Err(Error::malformed(0, "no ELF file")),
    }
}

fn an_arm64_image() -> Error {
    Error::new(Place::Whole, Cause::OtherArchitecture("arm64"))
}

fn read_text(path: &Path, file: File) -> Result<Source, Error> {
    let symbols = text::read_symbol_text(BufReader::new(file))?;
    if let Some(text) = symbols.address_of("_text").or_else(|| symbols.address_of("_stext")) {
        image::refuse_arm64(text)?;
    }
    let release =
        path.file_name().and_then(|name| name.to_str()?.strip_prefix("System.map-")).map(str::to_owned);
    let identity = crate::Identity { release, ..symbols.identity().clone() };
    let kernel = Kernel {
        symbols: symbols.with_identity(identity),
        code: None,
        halt_sites: Vec::new(),
        notices: Vec::new(),
    };
    Ok(Source::new(SourceKind::SymbolText, kernel))
}

/// A `vmlinux` with debug information: only its symbol table is read, not the file.
fn read_large_elf(file: File) -> Result<Source, Error> {
    let cache = object::ReadCache::new(file);
    let symbols = elf::read_symbols_only(&cache)?.ok_or_else(|| {
        Error::no_symbols(format!("a stripped ELF file larger than {IMAGE_BYTES_MAX} bytes is no kernel"))
    })?;
    Ok(Source::new(
        SourceKind::Elf,
        Kernel { symbols, code: None, halt_sites: Vec::new(), notices: Vec::new() },
    ))
}

/// No header that we know: a memory dump, or a packed kernel with something unknown around it.
fn scan_unknown(mut file: File, small: bool) -> Result<Source, Error> {
    let not_a_dump = match scan_dump(file.try_clone().map_err(|error| Error::io(&error))?) {
        Ok(source) => return Ok(source),
        Err(error) => error,
    };
    if small && let Some(unpacked) = boot_header::unpack_by_magic(&read_whole(&mut file)?) {
        return read_unpacked(unpacked).map(|kernel| Source::new(SourceKind::Image, kernel));
    }
    Err(match not_a_dump.cause {
        Cause::NoSymbols(_) => Error::new(Place::Whole, Cause::UnknownFormat),
        _ => not_a_dump,
    })
}

fn scan_dump(file: File) -> Result<Source, Error> {
    let dump = DumpFile::new(file).map_err(|error| Error::io(&error))?;
    memory::find_kernel(&dump, &ScanLimits::default(), &mut |_| ()).map(Source::of_memory)
}

fn is_core_dump(head: &[u8]) -> bool {
    const ET_CORE: u8 = 4;
    head.get(16) == Some(&ET_CORE)
}

fn read_whole(file: &mut File) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    file.rewind().map_err(|error| Error::io(&error))?;
    let size = file.metadata().map_err(|error| Error::io(&error))?.len();
    bytes.reserve_exact(size.min(IMAGE_BYTES_MAX as u64) as usize + 1);
    file.take(IMAGE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(|error| Error::io(&error))?;
    if bytes.len() > IMAGE_BYTES_MAX {
        return Err(Error::too_large("bytes of image", IMAGE_BYTES_MAX as u64));
    }
    Ok(bytes)
}
