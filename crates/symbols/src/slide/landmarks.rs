//! What of a kernel can be recognised from outside when its slide isn't known.

use crate::SymbolTable;

/// KASLR moves the text by multiples of this (`MIN_KERNEL_ALIGN`, arch/x86/include/asm/boot.h, 7.2).
pub const SLIDE_ALIGN: u64 = 2 << 20;
/// Where the mapping of the kernel image starts (`__START_KERNEL_map`, arch/x86/include/asm/page_64_types.h,
/// 7.2).
pub const KERNEL_IMAGE_START: u64 = 0xffff_ffff_8000_0000;
/// How large it is with KASLR (`KERNEL_IMAGE_SIZE`, same file); modules start behind it.
pub const KERNEL_IMAGE_BYTES: u64 = 1 << 30;
/// Functions that hold, or may be patched to hold, the `hlt` that an idle or waiting vCPU executes.
const HALTING_FUNCTIONS: [&str; 8] = [
    "pv_native_safe_halt",
    "native_safe_halt",
    "native_halt",
    "default_idle",
    "arch_cpu_idle",
    "acpi_safe_halt",
    "acpi_idle_do_entry",
    "kvm_wait",
];
/// None of them is longer; a forged table must not make one that spans 2 MiB and so matches every address.
const HALTING_FUNCTION_BYTES_MAX: u64 = 512;
/// A copy of a function under one name is rare; more than these are forged.
const COPIES_MAX: usize = 4;

/// Linked addresses by which a running copy of one kernel is recognised.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Landmarks {
    /// `hlt` instructions, from [`super::halt_sites`].
    halt_sites: Vec<u64>,
    /// `[start, end)` of functions that halt.
    halting: Vec<(u64, u64)>,
    /// `entry_SYSCALL_64`: what MSR_LSTAR points to.
    syscall_entry: Option<u64>,
    /// Largest slide that leaves the text inside the image's mapping.
    slide_max: u64,
}

impl Landmarks {
    /// Landmarks of the kernel with `symbols`. Without `halt_sites` (a System.map has no code), halts are
    /// matched against whole functions that are known to halt.
    pub fn new(symbols: &SymbolTable, halt_sites: &[u64]) -> Self {
        let in_image = |address: &u64| is_in_kernel_image(*address);
        let halting = HALTING_FUNCTIONS
            .iter()
            .flat_map(|name| symbols.by_name(name).take(COPIES_MAX))
            .filter(|symbol| symbol.is_text() && in_image(&symbol.address))
            .map(|symbol| (symbol.address, symbol.end.min(symbol.address + HALTING_FUNCTION_BYTES_MAX)))
            .collect();
        let text_end = symbols.text_bounds().map_or(KERNEL_IMAGE_START, |text| text.end);
        let room = (KERNEL_IMAGE_START + KERNEL_IMAGE_BYTES).saturating_sub(text_end);
        Self {
            halt_sites: halt_sites.iter().copied().filter(in_image).take(super::HALT_SITES_MAX).collect(),
            halting,
            syscall_entry: symbols.address_of("entry_SYSCALL_64").filter(in_image),
            slide_max: room.min(KERNEL_IMAGE_BYTES) & !(SLIDE_ALIGN - 1),
        }
    }

    /// `hlt` instructions that are known.
    pub fn halt_site_count(&self) -> usize {
        self.halt_sites.len()
    }

    /// Is there anything that a halt could be matched against?
    pub fn can_place_halts(&self) -> bool {
        !self.halt_sites.is_empty() || !self.halting.is_empty()
    }

    /// Is there an address that MSR_LSTAR could be matched against?
    pub fn can_place_lstar(&self) -> bool {
        self.syscall_entry.is_some()
    }

    /// Every slide under which a halt at `address` would be at a `hlt` of this kernel. Hypervisors report the
    /// address of the instruction, or of the one behind it once they have emulated it.
    pub fn slides_of_halt(&self, address: u64) -> Vec<u64> {
        let mut slides: Vec<u64> = if self.halt_sites.is_empty() {
            self.halting.iter().filter_map(|&range| self.slide_into(address, range)).collect()
        } else {
            self.halt_sites.iter().filter_map(|&site| self.slide_into(address, (site, site + 2))).collect()
        };
        slides.sort_unstable();
        slides.dedup();
        slides
    }

    /// Would `slide` put `address` into a function that halts? Boot-time patching may have moved the `hlt`
    /// itself.
    pub fn halts_under(&self, address: u64, slide: u64) -> bool {
        let linked = address.wrapping_sub(slide);
        self.halting.iter().any(|&(start, end)| (start..end).contains(&linked))
    }

    /// The slide under which `address` is the syscall entry, if there can be one.
    pub fn slide_of_lstar(&self, address: u64) -> Option<u64> {
        let entry = self.syscall_entry?;
        self.slide_into(address, (entry, entry + 1))
    }

    /// Can KASLR have chosen this slide?
    pub fn is_plausible(&self, slide: u64) -> bool {
        slide.is_multiple_of(SLIDE_ALIGN) && slide <= self.slide_max
    }

    fn slide_into(&self, address: u64, (start, end): (u64, u64)) -> Option<u64> {
        let slide = address.checked_sub(start)? & !(SLIDE_ALIGN - 1);
        (address - slide < end && self.is_plausible(slide)).then_some(slide)
    }
}

/// Is it in the mapping of the kernel image? Firmware, user code, modules and BPF programs aren't.
pub(super) fn is_in_kernel_image(address: u64) -> bool {
    (KERNEL_IMAGE_START..KERNEL_IMAGE_START + KERNEL_IMAGE_BYTES).contains(&address)
}
