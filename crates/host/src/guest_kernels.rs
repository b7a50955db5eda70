//! Guest kernels: from an image file or a guest's memory to the ranges that the BPF side searches, and what finds the slide.
//!
//! Each image is read once, however many guests run it; its symbols are forgotten again as soon as ranges and
//! landmarks are known, so that a kernel costs 12 KiB here and 12 KiB in the BPF map.

use crate::HostError;
use crate::scheduler::GUEST_CODES_MAX;
use microslice_policy::{ClassRange, Code, GuestCode};
use microslice_symbols::Kernel;
use microslice_symbols::critical::Catalogue;
use microslice_symbols::slide::{Landmarks, SlideFinder, halt_sites};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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

    /// Do both say the same of every address?
    pub fn is_same_code(&self, other: &Self) -> bool {
        self.release == other.release && self.code == other.code
    }
}

/// Device, inode, size and time of change: one image, by whatever path a VMM names it.
type FileIdentity = (u64, u64, u64, i64);

/// All kernels read so far.
#[derive(Default)]
pub struct GuestKernels {
    kernels: Vec<Arc<GuestKernel>>,
    by_file: BTreeMap<FileIdentity, Result<Arc<GuestKernel>, String>>,
}

impl GuestKernels {
    pub fn all(&self) -> &[Arc<GuestKernel>] {
        &self.kernels
    }

    /// Reads the image at `path` unless that has been done; `display` is the path that messages show.
    pub fn open(&mut self, path: &Path, display: &Path) -> Result<Arc<GuestKernel>, HostError> {
        use std::os::unix::fs::MetadataExt;
        let meta = std::fs::metadata(path)
            .map_err(|cause| HostError::refused(format!("{}: {cause}", display.display())))?;
        let identity = (meta.dev(), meta.ino(), meta.size(), meta.mtime());
        let known = match self.by_file.get(&identity) {
            Some(known) => known.clone(),
            None => {
                let read = self.read_image(path, display);
                self.by_file.insert(identity, read.clone());
                read
            }
        };
        known.map_err(HostError::refused)
    }

    fn read_image(&mut self, path: &Path, display: &Path) -> Result<Arc<GuestKernel>, String> {
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
        let file_name = PathBuf::from(display)
            .file_name()
            .map_or("unnamed".into(), |name| name.to_string_lossy().into_owned());
        self.adopt(&source.kernel, &file_name).map_err(|error| named(&error))
    }

    /// The kernel by its symbols. One that is known already, from wherever it was read, keeps its slot.
    pub fn adopt(&mut self, kernel: &Kernel, unnamed: &str) -> Result<Arc<GuestKernel>, String> {
        let slot = self.kernels.len() as u32 + 1;
        let new = guest_kernel(kernel, unnamed, slot)?;
        if let Some(known) = self.kernels.iter().find(|known| known.is_same_code(&new)) {
            return Ok(Arc::clone(known));
        }
        if slot >= GUEST_CODES_MAX {
            return Err(format!("{} guest kernels are known already", GUEST_CODES_MAX - 1));
        }
        let new = Arc::new(new);
        self.kernels.push(Arc::clone(&new));
        Ok(new)
    }
}

fn guest_kernel(kernel: &Kernel, unnamed: &str, code_slot: u32) -> Result<GuestKernel, String> {
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
    let code = GuestCode::new(text_start, text_end, &ranges).map_err(|error| error.to_string())?;
    let sites = match &kernel.code {
        Some(bytes) if kernel.halt_sites.is_empty() => halt_sites(&kernel.symbols, bytes),
        _ => kernel.halt_sites.clone(),
    };
    let landmarks = Landmarks::new(&kernel.symbols, &sites);
    let release = kernel.symbols.identity().release.clone().unwrap_or_else(|| unnamed.to_owned());
    Ok(GuestKernel { code_slot, release, code, landmarks })
}
