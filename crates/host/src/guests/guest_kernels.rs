//! Guest kernels: from an image file or a guest's memory to the ranges that the BPF side searches, and what
//! finds the slide.
//!
//! Each image is read once, however many guests run it; its symbols are forgotten again as soon as ranges and
//! landmarks are known; what is kept is measured by `tests/system/guest_kernel_memory.rs`.

use crate::HostError;
use microslice_policy::{CLASS_RANGES_MAX, ClassRange, Code, GUEST_CODES_MAX, GuestCode};
use microslice_symbols::critical::{Catalogue, RANGES_MAX};
use microslice_symbols::preempt_count::CounterSymbols;
use microslice_symbols::slide::{Landmarks, SlideFinder, halt_sites};
use microslice_symbols::{Kernel, SymbolTable};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

/// Whatever the symbols say, it fits.
const _: () = assert!(RANGES_MAX <= CLASS_RANGES_MAX);

/// One guest kernel image.
pub struct GuestKernel {
    /// Where its ranges are in the BPF map; never 0.
    pub code_slot: u32,
    /// `uname -r`, or the file's name.
    pub release: String,
    /// The ranges of its critical code, as recordings and the BPF map hold them.
    pub code: GuestCode,
    /// What leads to its counters in a guest's memory, or the symbol that it lacks for that.
    pub counter_symbols: Result<CounterSymbols, &'static str>,
    landmarks: Landmarks,
    /// Its symbols, where functions are to be named.
    symbols: Option<SymbolTable>,
}

impl GuestKernel {
    /// A finder for the slide of one guest that runs this kernel.
    pub fn slide_finder(&self) -> SlideFinder {
        SlideFinder::new(self.landmarks.clone())
    }

    /// Returns the function at a linked address, where functions are named.
    pub fn function_at(&self, address: u64) -> Option<&str> {
        self.symbols.as_ref()?.lookup(address).map(|hit| hit.symbol.name)
    }

    /// Do both say the same of every address?
    pub fn is_same_code(&self, other: &Self) -> bool {
        self.release == other.release
            && self.code == other.code
            && self.counter_symbols == other.counter_symbols
    }
}

/// Device, inode, size and time of change: one image, by whatever path a VMM names it.
type FileIdentity = (u64, u64, u64, i64);

/// Files that are remembered. VMMs name them, and a tenant may start any number.
const FILES_MAX: usize = 1024;

/// All kernels read so far.
pub struct GuestKernels {
    /// Which of their functions are critical.
    catalogue: Catalogue,
    names_functions: bool,
    places: CodePlaces,
    by_file: BTreeMap<FileIdentity, Result<Weak<GuestKernel>, String>>,
}

impl Default for GuestKernels {
    fn default() -> Self {
        Self::of(Catalogue::linux())
    }
}

impl GuestKernels {
    /// None yet; `catalogue` will say what is critical in each.
    pub fn of(catalogue: Catalogue) -> Self {
        Self { catalogue, names_functions: false, places: CodePlaces::default(), by_file: BTreeMap::new() }
    }

    /// Keeps the symbols of each, so that functions can be named: some MiB of a kernel.
    pub fn naming_functions(self) -> Self {
        Self { names_functions: true, ..self }
    }

    /// Reads the image at `path` unless that has been done; `display` is the path that messages show.
    pub fn open(&mut self, path: &Path, display: &Path) -> Result<Arc<GuestKernel>, HostError> {
        use std::os::unix::fs::MetadataExt;
        let meta = std::fs::metadata(path)
            .map_err(|cause| HostError::refused(format!("{}: {cause}", display.display())))?;
        let identity = (meta.dev(), meta.ino(), meta.size(), meta.mtime());
        match self.by_file.get(&identity) {
            Some(Err(cause)) => return Err(HostError::refused(cause.clone())),
            Some(Ok(known)) => {
                if let Some(known) = known.upgrade() {
                    self.places.touch(&known);
                    return Ok(known);
                }
            }
            None => {}
        }
        if self.by_file.len() >= FILES_MAX {
            self.by_file.clear();
        }
        let read = self.read_image(path, display);
        self.by_file.insert(identity, read.as_ref().map(Arc::downgrade).map_err(Clone::clone));
        read.map_err(HostError::refused)
    }

    fn read_image(&mut self, path: &Path, display: &Path) -> Result<Arc<GuestKernel>, String> {
        let named = |cause: &dyn std::fmt::Display| {
            // The error names the path that was opened, which may lead through /proc: show the one that was
            // meant.
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
        let symbols = self.names_functions.then(|| kernel.symbols.clone());
        let read = guest_kernel(&self.catalogue, kernel, unnamed)?;
        self.places.place(GuestKernel { symbols, ..read })
    }
}

/// The BPF map's slots for guest kernels. A kernel that no VM runs any more stays, for the next VM that does,
/// until its slot is wanted: or those that tenants bring would take all slots in the end.
#[derive(Default)]
struct CodePlaces {
    /// The n-th has slot n + 1. With each: when it was last wanted, counted in wishes.
    taken: Vec<(Arc<GuestKernel>, u64)>,
    wishes: u64,
}

impl CodePlaces {
    fn place(&mut self, new: GuestKernel) -> Result<Arc<GuestKernel>, String> {
        if let Some((known, _)) = self.taken.iter().find(|(known, _)| known.is_same_code(&new)) {
            let known = Arc::clone(known);
            self.touch(&known);
            return Ok(known);
        }
        let slot = self.free_slot().ok_or_else(|| {
            format!("{} guest kernels run already, and there is room for no more", GUEST_CODES_MAX - 1)
        })?;
        let new = Arc::new(GuestKernel { code_slot: slot as u32 + 1, ..new });
        self.wishes += 1;
        let place = (Arc::clone(&new), self.wishes);
        match self.taken.get_mut(slot) {
            Some(old) => *old = place,
            None => self.taken.push(place),
        }
        Ok(new)
    }

    /// Returns the next slot that was never taken, else that of the kernel that has been unused for longest.
    fn free_slot(&self) -> Option<usize> {
        if self.taken.len() + 1 < GUEST_CODES_MAX as usize {
            return Some(self.taken.len());
        }
        let unused = self.taken.iter().enumerate().filter(|(_, (kernel, _))| Arc::strong_count(kernel) == 1);
        unused.min_by_key(|(_, (_, wanted))| *wanted).map(|(slot, _)| slot)
    }

    fn touch(&mut self, kernel: &Arc<GuestKernel>) {
        self.wishes += 1;
        if let Some((_, wanted)) = self.taken.get_mut(kernel.code_slot as usize - 1) {
            *wanted = self.wishes;
        }
    }
}

/// Without a slot yet.
fn guest_kernel(catalogue: &Catalogue, kernel: &Kernel, unnamed: &str) -> Result<GuestKernel, String> {
    if kernel.symbols.identity().is_uniprocessor() {
        return Err("a kernel without SMP: it has one vCPU, and nobody waits for that".into());
    }
    let classes = catalogue.class_map(&kernel.symbols);
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
    let counter_symbols = CounterSymbols::of(&kernel.symbols);
    Ok(GuestKernel { code_slot: 0, release, code, counter_symbols, landmarks, symbols: None })
}

/// One without critical code.
#[cfg(test)]
pub(crate) fn kernel(release: &str) -> GuestKernel {
    let code = GuestCode::new(0x1000, 0x2000, &[]).unwrap();
    let (counter_symbols, landmarks) = (Err("_text"), Landmarks::default());
    GuestKernel { code_slot: 0, release: release.into(), code, counter_symbols, landmarks, symbols: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use microslice_symbols::Identity;

    /// All places taken, by kernels called "1" to "63" in this order.
    fn full() -> (CodePlaces, Vec<Arc<GuestKernel>>) {
        let mut places = CodePlaces::default();
        let kernels = (1..GUEST_CODES_MAX).map(|number| places.place(kernel(&number.to_string())).unwrap());
        let kernels = kernels.collect();
        (places, kernels)
    }

    #[test]
    fn a_uniprocessor_kernel_is_named_and_has_no_slot() {
        let kernel_of = |banner: &str| {
            let lines = "ffffffff81000000 T _text\nffffffff81001000 T _etext\n";
            let symbols = microslice_symbols::text::read_symbol_text(lines.as_bytes()).unwrap();
            let identity = Identity { banner: Some(banner.into()), ..Identity::default() };
            let symbols = symbols.with_identity(identity);
            Kernel { symbols, code: None, halt_sites: Vec::new(), notices: Vec::new() }
        };
        let mut kernels = GuestKernels::default();
        let single = kernels.adopt(&kernel_of("Linux version 6.12.1 (a@b) #1 Mon Jan 1"), "k");
        assert!(single.err().unwrap().starts_with("a kernel without SMP"));
        assert!(kernels.adopt(&kernel_of("Linux version 6.12.1 (a@b) #1 SMP Mon Jan 1"), "k").is_ok());
    }

    #[test]
    fn each_kernel_has_and_keeps_its_own_slot() {
        let (mut places, kernels) = full();
        let slots: Vec<u32> = kernels.iter().map(|kernel| kernel.code_slot).collect();
        assert_eq!(slots, (1..GUEST_CODES_MAX).collect::<Vec<_>>());
        assert!(Arc::ptr_eq(&places.place(kernel("7")).unwrap(), &kernels[6]));
    }

    #[test]
    fn a_kernel_that_a_vm_runs_never_loses_its_slot() {
        let (mut places, _kernels) = full();
        let refused = places.place(kernel("one more")).err().unwrap();
        assert!(refused.contains("63 guest kernels run already"), "{refused}");
    }

    #[test]
    fn the_least_recently_wanted_unused_kernel_makes_room() {
        let (mut places, mut kernels) = full();
        places.touch(&kernels[2]);
        kernels.drain(2..5); // "3" to "5" run nowhere now
        assert_eq!(places.place(kernel("one more")).unwrap().code_slot, 4);
        assert_eq!(places.place(kernel("and one")).unwrap().code_slot, 5, "the one before was wanted last");
        let kept = places.place(kernel("3")).unwrap();
        assert_eq!(kept.code_slot, 3, "nobody wanted its place");
    }
}
