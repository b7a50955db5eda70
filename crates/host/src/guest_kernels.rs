//! Guest kernels: from an image file to the ranges that the BPF side searches, and what finds its slide.
//!
//! Each image is read once, however many guests run it; its symbols are forgotten again as soon as ranges and
//! landmarks are known, so that a kernel costs 12 KiB here and 12 KiB in the BPF map.

use crate::HostError;
use crate::scheduler::GUEST_CODES_MAX;
use microslice_policy::{ClassRange, Code, GuestCode};
use microslice_symbols::critical::Catalogue;
use microslice_symbols::slide::{Landmarks, SlideFinder, halt_sites};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// One guest kernel image.
pub struct GuestKernel {
    /// Where its ranges are in the BPF map; never 0.
    pub code_slot: u32,
    /// `uname -r`, or the file's name.
    pub release: String,
    /// Of the code without ranges: what the recording and the BPF map hold.
    pub code: GuestCode,
    landmarks: Landmarks,
}

impl GuestKernel {
    /// A finder for the slide of one guest that runs this kernel.
    pub fn slide_finder(&self) -> SlideFinder {
        SlideFinder::new(self.landmarks.clone())
    }

    /// Without a `hlt` to compare with, no slide can be found from outside.
    pub fn can_place_halts(&self) -> bool {
        self.landmarks.can_place_halts()
    }
}

/// Device, inode, size and time of change: one image, by whatever path a VMM names it.
type FileIdentity = (u64, u64, u64, i64);

/// All images read so far.
#[derive(Default)]
pub struct GuestKernels {
    kernels: Vec<GuestKernel>,
    by_file: BTreeMap<FileIdentity, Result<usize, String>>,
}

impl GuestKernels {
    /// The kernel in slot `code_slot`.
    pub fn in_slot(&self, code_slot: u32) -> Option<&GuestKernel> {
        self.kernels.get(code_slot.checked_sub(1)? as usize)
    }

    pub fn all(&self) -> &[GuestKernel] {
        &self.kernels
    }

    /// Reads the image at `path` unless that has been done; `display` is the path that messages show.
    /// True in the result: it is new, and its code has to be given to the BPF side.
    pub fn open(&mut self, path: &Path, display: &Path) -> Result<(&GuestKernel, bool), HostError> {
        use std::os::unix::fs::MetadataExt;
        let meta = std::fs::metadata(path)
            .map_err(|cause| HostError::refused(format!("{}: {cause}", display.display())))?;
        let identity = (meta.dev(), meta.ino(), meta.size(), meta.mtime());
        if let Some(known) = self.by_file.get(&identity) {
            return match known {
                Ok(index) => Ok((&self.kernels[*index], false)),
                Err(cause) => Err(HostError::refused(cause)),
            };
        }
        let slot = self.kernels.len() as u32 + 1;
        let read = if slot < GUEST_CODES_MAX {
            read_kernel(path, display, slot)
        } else {
            Err(format!("{}: {} guest kernels are known already", display.display(), GUEST_CODES_MAX - 1))
        };
        match read {
            Ok(kernel) => {
                self.kernels.push(kernel);
                self.by_file.insert(identity, Ok(self.kernels.len() - 1));
                Ok((&self.kernels[self.kernels.len() - 1], true))
            }
            Err(cause) => {
                self.by_file.insert(identity, Err(cause.clone()));
                Err(HostError::refused(cause))
            }
        }
    }
}

fn read_kernel(path: &Path, display: &Path, code_slot: u32) -> Result<GuestKernel, String> {
    let named = |cause: &dyn std::fmt::Display| {
        // The error names the path that was opened, which may lead through /proc: show the one that was meant.
        let text = cause.to_string().replace(&path.display().to_string(), &display.display().to_string());
        if text.contains(&*display.to_string_lossy()) {
            text
        } else {
            format!("{}: {text}", display.display())
        }
    };
    let source = microslice_symbols::source::open(path).map_err(|error| named(&error))?;
    let kernel = source.kernel;
    let classes = Catalogue::linux().class_map(&kernel.symbols);
    let (text_start, text_end) = classes.text();
    let ranges: Vec<_> = classes
        .ranges()
        .iter()
        .map(|range| ClassRange {
            start: range.start,
            end: range.end,
            guest_class: Code::raw(u32::from(range.class.code())),
            reserved: 0,
        })
        .collect();
    let code = GuestCode::new(text_start, text_end, &ranges).map_err(|error| named(&error))?;
    let sites = match &kernel.code {
        Some(bytes) if kernel.halt_sites.is_empty() => halt_sites(&kernel.symbols, bytes),
        _ => kernel.halt_sites.clone(),
    };
    let landmarks = Landmarks::new(&kernel.symbols, &sites);
    let release = kernel.symbols.identity().release.clone();
    let release = release.unwrap_or_else(|| {
        PathBuf::from(display)
            .file_name()
            .map_or("unnamed".into(), |name| name.to_string_lossy().into_owned())
    });
    Ok(GuestKernel { code_slot, release, code, landmarks })
}
