//! A kernel in memory: a dump, or a guest that is running. Only read, never stopped, never more than the
//! limits allow.
//!
//! Nothing has to be known beforehand. The token table of kallsyms is found by its shape. Everything else
//! lies around it, because the kernel image is one stretch of guest-physical memory whatever KASLR did to it.
//! The result is put back to linked addresses, so that it equals what the image of that kernel gives. How far
//! the running kernel is from there is the slide, told by as many witnesses as the memory has.

pub mod dump;
pub mod process;
mod text_place;
pub mod vmcoreinfo;

use crate::image::{Code, Kernel, X86_64_TEXT, identity_of, notes_between_symbols, refuse_arm64};
use crate::kallsyms::addresses::{AddressMap, Layout, Segment};
use crate::kallsyms::{self, Budget, Kallsyms, tokens};
use crate::{Error, Identity, Place, SymbolTable};
use std::io;
use vmcoreinfo::VmcoreInfo;

const PAGE_BYTES: usize = 4096;
const CHUNK_BYTES: usize = 8 << 20;
/// A token table and its index fit into the overlap of two chunks.
const OVERLAP_BYTES: u64 = 128 << 10;
/// What is read before and behind a token table: text, read-only data and names before, offsets behind.
const WINDOW_BEFORE_BYTES: u64 = 64 << 20;
const WINDOW_BEHIND_BYTES: u64 = 32 << 20;
/// KASLR moves by this much (`CONFIG_PHYSICAL_ALIGN`).
const SLIDE_STEP: u64 = 2 << 20;
/// … and stays below this (`KERNEL_IMAGE_SIZE`).
const SLIDE_MAX: u64 = 1 << 30;
/// A kernel that runs, and what reboots and kexec may have left behind.
const KERNELS_MAX: usize = 4;

/// A stretch of memory by the addresses that its reader uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Area {
    pub start: u64,
    pub bytes: u64,
}

impl Area {
    fn end(self) -> u64 {
        self.start.saturating_add(self.bytes)
    }
}

/// Memory that can be read and not written.
pub trait Memory {
    /// Stretches to look at, the likeliest first.
    fn areas(&self) -> &[Area];

    /// Fills `buffer` from `address`; pages that were never touched, or are swapped out, read as zeros,
    /// without touching them.
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Is there anything in `[address, address + bytes)`? May say yes too often.
    fn has_content(&self, _address: u64, _bytes: u64) -> bool {
        true
    }
}

/// What a scan may cost.
#[derive(Debug, Clone, Copy)]
pub struct ScanLimits {
    /// Most bytes that are looked at.
    pub scanned_bytes_max: u64,
    /// How many more are looked at for VMCOREINFO once the kernel is found.
    pub after_kernel_bytes_max: u64,
    /// Most token tables that are tried.
    pub candidates_max: u32,
}

impl Default for ScanLimits {
    fn default() -> Self {
        Self { scanned_bytes_max: 256 << 30, after_kernel_bytes_max: 4 << 30, candidates_max: 8 }
    }
}

/// How far a scan is.
#[derive(Debug, Clone, Copy)]
pub struct ScanProgress {
    pub scanned_bytes: u64,
    pub total_bytes: u64,
    pub found_kernel: bool,
}

/// A kernel found in memory.
#[derive(Debug)]
pub struct MemoryKernel {
    /// Symbols at linked addresses.
    pub kernel: Kernel,
    /// Running address minus linked address, when every witness that the memory has agrees.
    pub slide: Option<u64>,
    /// What said so: `kallsyms_relative_base`, `sys_call_table`, `VMCOREINFO`.
    pub witnesses: Vec<(&'static str, u64)>,
    pub vmcoreinfo: Option<VmcoreInfo>,
}

/// A whole kernel in memory, to be judged: the one that runs, or one that ran before a reboot or kexec.
#[derive(Debug)]
pub struct KernelInMemory<'k> {
    /// At linked addresses.
    pub symbols: &'k SymbolTable,
    pub code: &'k Code,
    /// What lies within it and says how far it has moved, as in [`MemoryKernel`].
    pub witnesses: &'k [(&'static str, u64)],
}

/// Finds the first whole kernel in `memory`.
///
/// # Errors
/// No kernel, with the reason; memory that can't be read.
pub fn find_kernel(
    memory: &dyn Memory,
    limits: &ScanLimits,
    progress: &mut dyn FnMut(ScanProgress),
) -> Result<MemoryKernel, Error> {
    find_kernel_that(&mut |_| true, memory, limits, progress)
}

/// Finds the first of at most four whole kernels in `memory` that `runs`.
///
/// # Errors
/// As [`find_kernel`], and kernels of which none runs.
pub fn find_kernel_that(
    runs: &mut dyn FnMut(KernelInMemory<'_>) -> bool,
    memory: &dyn Memory,
    limits: &ScanLimits,
    progress: &mut dyn FnMut(ScanProgress),
) -> Result<MemoryKernel, Error> {
    let mut scan = Scan {
        memory,
        limits,
        runs,
        passed_over: Vec::new(),
        scanned_bytes: 0,
        kernel_found_at_bytes: 0,
        candidates: 0,
        budget: budget_for(memory, limits),
        found: None,
        vmcoreinfos: Vec::new(),
        failure: Error::no_symbols(
            "no kallsyms token table in memory (no Linux guest, or it hasn't started yet)",
        ),
    };
    scan.run(progress)?;
    let Scan { found, vmcoreinfos, failure, .. } = scan;
    let found = found.ok_or(failure)?;
    Ok(conclude(found, vmcoreinfos))
}

/// A small guest can't buy as much work as a large one.
fn budget_for(memory: &dyn Memory, limits: &ScanLimits) -> Budget {
    let bytes = memory.areas().iter().fold(0, |sum: u64, area| sum.saturating_add(area.bytes));
    Budget::for_bytes(bytes.min(limits.scanned_bytes_max))
}

/// Symbols at linked addresses and the bytes around them, before the witnesses are heard.
struct Found {
    symbols: SymbolTable,
    code: Code,
    identity: Identity,
    witnesses: Vec<(&'static str, u64)>,
}

struct Scan<'m> {
    memory: &'m dyn Memory,
    limits: &'m ScanLimits,
    runs: &'m mut dyn FnMut(KernelInMemory<'_>) -> bool,
    /// Token tables of whole kernels that don't run.
    passed_over: Vec<u64>,
    scanned_bytes: u64,
    kernel_found_at_bytes: u64,
    candidates: u32,
    budget: Budget,
    found: Option<Found>,
    vmcoreinfos: Vec<VmcoreInfo>,
    failure: Error,
}

impl Scan<'_> {
    fn run(&mut self, progress: &mut dyn FnMut(ScanProgress)) -> Result<(), Error> {
        let total_bytes = self.memory.areas().iter().map(|area| area.bytes).sum();
        let mut buffer = vec![0u8; CHUNK_BYTES];
        for &area in self.memory.areas() {
            let mut start = area.start;
            while start < area.end() {
                if self.is_done() {
                    return Ok(());
                }
                let length = (area.end() - start).min(CHUNK_BYTES as u64);
                if self.memory.has_content(start, length) {
                    let chunk = &mut buffer[..length as usize];
                    self.memory
                        .read(start, chunk)
                        .map_err(|error| Error::malformed(start, error.to_string()))?;
                    self.look_at(area, start, &buffer[..length as usize])?;
                }
                let step = if start + length == area.end() { length } else { length - OVERLAP_BYTES };
                self.scanned_bytes += step;
                start += step;
                progress(ScanProgress {
                    scanned_bytes: self.scanned_bytes,
                    total_bytes,
                    found_kernel: self.found.is_some(),
                });
            }
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        let found = self.found.as_ref();
        let confirmed =
            found.is_some_and(|found| self.vmcoreinfos.iter().any(|info| info.is_of(&found.symbols)));
        let patience_left =
            self.scanned_bytes - self.kernel_found_at_bytes < self.limits.after_kernel_bytes_max;
        confirmed
            || (found.is_some() && !patience_left)
            || (found.is_none() && self.passed_over.len() >= KERNELS_MAX)
            || self.scanned_bytes >= self.limits.scanned_bytes_max
    }

    fn look_at(&mut self, area: Area, start: u64, chunk: &[u8]) -> Result<(), Error> {
        const VMCOREINFOS_MAX: usize = 16;
        for page in chunk.chunks(PAGE_BYTES) {
            if self.vmcoreinfos.len() < VMCOREINFOS_MAX {
                self.vmcoreinfos.extend(VmcoreInfo::on_page(page));
            }
        }
        let mut from = 0;
        while self.found.is_none()
            && self.candidates < self.limits.candidates_max
            && self.passed_over.len() < KERNELS_MAX
        {
            let Some(tokens) = tokens::find_from(chunk, from, &mut self.budget)? else { break };
            from = tokens.index_offset + tokens::INDEX_BYTES;
            let table = start + tokens.table_offset as u64;
            // It lay in the overlap with the chunk before.
            if self.passed_over.contains(&table) {
                continue;
            }
            self.candidates += 1;
            match self.read_around(area, table) {
                Ok(found) => self.judge(table, found),
                Err(error) if self.passed_over.is_empty() => self.failure = error,
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// The first page behind the tables before `table` that were passed over: a window with one of them finds
    /// that again.
    fn behind_passed_over(&self, area: Area, table: u64) -> u64 {
        let before = self.passed_over.iter().filter(|passed| (area.start..table).contains(passed)).max();
        let page_behind = |passed: &u64| (passed - area.start + 1).next_multiple_of(PAGE_BYTES as u64);
        area.start + before.map_or(0, page_behind)
    }

    fn judge(&mut self, table: u64, found: Found) {
        let Found { symbols, code, witnesses, .. } = &found;
        if (self.runs)(KernelInMemory { symbols, code, witnesses }) {
            self.found = Some(found);
            self.kernel_found_at_bytes = self.scanned_bytes;
            return;
        }
        self.passed_over.push(table);
        let count = self.passed_over.len();
        self.failure = Error::no_symbols(format!(
            "of the kernels in memory ({count}) none is the one that runs, not yet"
        ));
    }

    fn read_around(&mut self, area: Area, table: u64) -> Result<Found, Error> {
        // Pages of the window are pages of the memory: the banner is told by its place in its page.
        let before = (table - area.start).saturating_sub(WINDOW_BEFORE_BYTES) & !(PAGE_BYTES as u64 - 1);
        let start = (area.start + before).max(self.behind_passed_over(area, table));
        let end = table.saturating_add(WINDOW_BEHIND_BYTES).min(area.end());
        let mut window = vec![0u8; (end - start) as usize];
        self.memory.read(start, &mut window).map_err(|error| Error::malformed(start, error.to_string()))?;
        let found = kallsyms::find_within(&window, &AddressMap::TextLinkedAt(X86_64_TEXT), &mut self.budget);
        found.and_then(|kallsyms| settle(window, kallsyms)).map_err(|error| in_memory(start, error))
    }
}

/// An offset into a window, said as an address of the memory.
fn in_memory(window_start: u64, error: Error) -> Error {
    match error.place {
        Place::Offset(offset) => Error::new(Place::Offset(window_start.saturating_add(offset)), error.cause),
        _ => error,
    }
}

/// Puts a table from memory back to linked addresses and hears the witnesses that lie in the window.
fn settle(window: Vec<u8>, kallsyms: Kallsyms) -> Result<Found, Error> {
    let (layout, table_offset) = (kallsyms.layout, kallsyms.token_table_offset as u64);
    let running = kallsyms.into_table(Identity::default());
    let text = running.address_of("_text").or_else(|| running.address_of("_stext"));
    let text = text.ok_or_else(|| Error::malformed(table_offset, "kallsyms without _text or _stext"))?;
    let kallsyms_offset = table_offset as usize;
    let text_offset =
        window_offset_of_text(&window, &running, layout, text, kallsyms_offset).ok_or_else(|| {
            Error::malformed(table_offset, "a kallsyms table away from the kernel that it describes")
        })?;
    let symbols = running.moved_by(X86_64_TEXT.wrapping_sub(text));
    let first = X86_64_TEXT.wrapping_sub(text_offset as u64);
    let segment = Segment { offset: 0, bytes: window.len() as u64, address: first, executable: true };
    let map = AddressMap::Segments(vec![segment]);
    let mut witnesses = Vec::new();
    if layout != Layout::SelfRelative {
        refuse_arm64(text)?;
        witnesses.push(("kallsyms addresses", text.wrapping_sub(X86_64_TEXT)));
    }
    let build_id = notes_between_symbols(&window, &symbols, &map);
    let identity = Identity { build_id, ..identity_of(&window, &symbols, &map) };
    let code = Code::new(window, map);
    witnesses.extend(system_call_slide(&symbols, &code).map(|slide| ("sys_call_table", slide)));
    Ok(Found { symbols, code, identity, witnesses })
}

/// Offset of `_text` in the window, possibly before its start (then negative): from the array's own place
/// where it is relative to that; else from the banner, whose address and bytes are both known; else from the
/// calls in the text.
fn window_offset_of_text(
    window: &[u8],
    running: &SymbolTable,
    layout: Layout,
    text: u64,
    table_offset: usize,
) -> Option<i64> {
    if layout == Layout::SelfRelative {
        return Some(text.wrapping_sub(kallsyms::addresses::UNKNOWN_BASE) as i64);
    }
    offset_by_banner(window, running, text)
        .or_else(|| text_place::offset_by_calls(window, running, text, table_offset))
}

fn offset_by_banner(window: &[u8], running: &SymbolTable, text: u64) -> Option<i64> {
    const BANNERS_MAX: usize = 64;
    let banner = running.address_of("linux_banner")?;
    let before = i64::try_from(banner.checked_sub(text)?).ok()?;
    // Text and data are mapped in steps of a page, so the banner's place in its page survives every slide.
    memchr::memmem::find_iter(window, b"Linux version ")
        .take(BANNERS_MAX)
        .find(|&offset| offset as u64 % PAGE_BYTES as u64 == banner % PAGE_BYTES as u64)
        .map(|offset| offset as i64 - before)
}

/// The first system call is `read`: its entry's pointer is where the function runs.
fn system_call_slide(symbols: &SymbolTable, code: &Code) -> Option<u64> {
    const READ_NAMES: [&str; 4] = ["__x64_sys_read", "__se_sys_read", "SyS_read", "sys_read"];
    let table = symbols.address_of("sys_call_table")?;
    let entry = u64::from_le_bytes(*code.at(table, 8)?.first_chunk()?);
    let slides = READ_NAMES.iter().filter_map(|name| Some(entry.wrapping_sub(symbols.address_of(name)?)));
    slides.into_iter().find(|&slide| is_slide(slide))
}

/// Can KASLR have moved a kernel by this much?
pub fn is_slide(slide: u64) -> bool {
    slide < SLIDE_MAX && slide.is_multiple_of(SLIDE_STEP)
}

fn conclude(found: Found, vmcoreinfos: Vec<VmcoreInfo>) -> MemoryKernel {
    let Found { symbols, code, mut identity, mut witnesses } = found;
    let mut notices = Vec::new();
    // The same kernel may have run before, elsewhere.
    let (here, elsewhere): (Vec<_>, Vec<_>) = vmcoreinfos
        .into_iter()
        .filter(|info| info.is_of(&symbols))
        .partition(|info| witnesses.first().is_some_and(|&(_, slide)| info.kernel_offset == Some(slide)));
    let vmcoreinfo = here.into_iter().chain(elsewhere).next();
    if let Some(info) = &vmcoreinfo {
        witnesses.extend(info.kernel_offset.map(|slide| ("VMCOREINFO", slide)));
        for disagreement in identity.disagreements(&info.identity()) {
            notices.push(format!("kernel image and VMCOREINFO disagree: {disagreement}"));
        }
        identity.complete_from(info.identity());
    }
    let slides: Vec<u64> = witnesses.iter().map(|&(_, slide)| slide).collect();
    let slide = slides
        .first()
        .copied()
        .filter(|&first| is_slide(first) && slides.iter().all(|&slide| slide == first));
    if slide.is_none() && !witnesses.is_empty() {
        let said =
            witnesses.iter().map(|(name, slide)| format!("{name} {slide:#x}")).collect::<Vec<_>>().join(", ");
        notices.push(format!("no slide: its witnesses disagree or can't be right: {said}"));
    }
    let kernel = Kernel {
        symbols: symbols.with_identity(identity),
        code: Some(code),
        halt_sites: Vec::new(),
        notices,
    };
    MemoryKernel { kernel, slide, witnesses, vmcoreinfo }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing but its size.
    struct Size([Area; 2]);

    impl Memory for Size {
        fn areas(&self) -> &[Area] {
            &self.0
        }

        fn read(&self, _address: u64, _buffer: &mut [u8]) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    #[test]
    fn the_work_that_a_guest_may_cause_is_measured_by_its_size() {
        let budget = |gibibytes: u64| {
            let area = |start| Area { start, bytes: gibibytes << 29 };
            budget_for(&Size([area(0), area(1 << 50)]), &ScanLimits::default())
        };
        assert_eq!(budget(4), Budget::for_bytes(4 << 30));
        assert_eq!(budget(4096), Budget::for_bytes(256 << 30), "no more than is looked at");
    }
}
