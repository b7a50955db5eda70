//! Where a running guest keeps its preemption counters.
//!
//! Problem.   A lock's holder is told by its function only if that is in a list, and few are. Kernels count
//!            spinlocks, softirqs and hard interrupts in a word per CPU, `preempt_count`
//!            (include/linux/preempt.h). Nothing says where that word lies.
//! Mechanism. The kernel's data lie where `phys_base` says that they do. From there the kernel's own tables
//!            lead on: `__per_cpu_offset` to a CPU's area, `page_offset_base` from that to physical memory.
//!            Each CPU's area proves itself: it names its own offset and number.
//! Limits.    Needs data symbols (`CONFIG_KALLSYMS_ALL`) and per-CPU areas in the direct mapping. Where the
//!            word lies says nothing of what it means. A kernel without `CONFIG_PREEMPT_COUNT` counts
//!            interrupts alone, and a guest can write anything.

use crate::SymbolTable;
use crate::image::KERNEL_MAP;
use crate::memory::{Memory, is_slide};

/// An image starts at a multiple of it, wherever KASLR puts it (`CONFIG_PHYSICAL_ALIGN`).
const IMAGE_STEP: u64 = 2 << 20;
/// Places at which the image is looked for: 256 GiB.
const PLACES_MAX: usize = 1 << 17;
/// The direct mapping starts at a multiple of it (`PUD_SIZE`; kernel_randomize_memory, arch/x86/mm/kaslr.c).
const DIRECT_MAP_STEP: u64 = 1 << 30;
const UPPER_HALF: u64 = 0xff00_0000_0000_0000;
const BANNER: &[u8; 14] = b"Linux version ";
/// CPUs that are looked at: `CONFIG_NR_CPUS` of distributions.
const CPUS_MAX: u32 = 8192;

/// Addresses of a kernel's symbols that lead to its counters, as linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterSymbols {
    text: u64,
    phys_base: u64,
    banner: u64,
    page_offset_base: u64,
    per_cpu_offset: u64,
    /// Of each CPU's area.
    this_cpu_off: u64,
    cpu_number: u64,
    apic_id: u64,
    word: u64,
}

/// A guest CPU's counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counter {
    /// Number of the CPU in the guest.
    pub cpu: u32,
    /// Number of the CPU for KVM (`kvm_vcpu.vcpu_id`): its APIC ID.
    pub apic_id: u16,
    /// Guest-physical address of the 4-byte word.
    pub word: u64,
}

impl Counter {
    /// Reads how often preemption is disabled there now, in the bits of `PREEMPT_MASK` and above
    /// (include/linux/preempt.h). The bit by which x86 says that nothing is to be scheduled is left out. None
    /// if memory can't be read.
    pub fn read(&self, memory: &dyn Memory) -> Option<u32> {
        const PREEMPT_NEED_RESCHED: u32 = 1 << 31;
        let mut word = [0; 4];
        memory.read(self.word, &mut word).ok()?;
        Some(u32::from_le_bytes(word) & !PREEMPT_NEED_RESCHED)
    }
}

/// A kernel's place in guest memory, and its counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counters {
    /// Running address minus linked address.
    pub slide: u64,
    /// One per CPU that is set up, by number.
    pub counters: Vec<Counter>,
}

impl CounterSymbols {
    /// Looks them up. `symbols` are at linked addresses.
    ///
    /// # Errors
    /// The name of a symbol that isn't there.
    pub fn of(symbols: &SymbolTable) -> Result<Self, &'static str> {
        let address = |name: &'static str| symbols.address_of(name).ok_or(name);
        // Linux 6.2 to 6.13 keep both in one cache line: `struct pcpu_hot` (arch/x86/include/asm/current.h).
        let (word, cpu_number) = match symbols.address_of("pcpu_hot") {
            Some(hot) => (hot.wrapping_add(8), hot.wrapping_add(12)),
            None => (address("__preempt_count")?, address("cpu_number")?),
        };
        Ok(Self {
            text: address("_text")?,
            phys_base: address("phys_base")?,
            banner: address("linux_banner")?,
            page_offset_base: address("page_offset_base")?,
            per_cpu_offset: address("__per_cpu_offset")?,
            this_cpu_off: address("this_cpu_off")?,
            cpu_number,
            apic_id: address("x86_cpu_to_apicid")?,
            word,
        })
    }

    /// Finds the kernel and its counters in guest-physical `memory`. `slide` is known, or told here.
    ///
    /// # Errors
    /// The kernel isn't where its own words say, or no CPU's area proves itself.
    pub fn find(&self, memory: &dyn Memory, slide: Option<u64>) -> Result<Counters, &'static str> {
        let image = self.image(memory, slide).ok_or("its kernel's data aren't in memory")?;
        let counters = self.counters(&image);
        if counters.is_empty() {
            return Err("no CPU's area says that it is one");
        }
        Ok(Counters { slide: image.slide, counters })
    }

    fn image<'m>(&self, memory: &'m dyn Memory, slide: Option<u64>) -> Option<Image<'m>> {
        let places = memory.areas().iter().flat_map(|area| {
            let first = area.start.next_multiple_of(IMAGE_STEP);
            (first..area.start.saturating_add(area.bytes)).step_by(IMAGE_STEP as usize)
        });
        places.take(PLACES_MAX).find_map(|text_at| {
            let mut image = Image { memory, text: self.text, text_at, slide: 0, direct_map: 0 };
            let phys_base = image.data_u64(self.phys_base)?;
            image.slide = text_at.wrapping_sub(self.text.wrapping_sub(KERNEL_MAP)).wrapping_sub(phys_base);
            if !is_slide(image.slide) || slide.is_some_and(|known| known != image.slide) {
                return None;
            }
            image.direct_map = image.data_u64(self.page_offset_base)?;
            let mut banner = [0; BANNER.len()];
            image.memory.read(image.data(self.banner)?, &mut banner).ok()?;
            let is_kernel = image.direct_map.is_multiple_of(DIRECT_MAP_STEP)
                && image.direct_map >= UPPER_HALF
                && banner == *BANNER;
            is_kernel.then_some(image)
        })
    }

    /// Areas are set up for all CPUs that there can be, from the first on (setup_per_cpu_areas,
    /// arch/x86/kernel/setup_percpu.c).
    fn counters(&self, image: &Image<'_>) -> Vec<Counter> {
        (0..CPUS_MAX).map_while(|cpu| self.counter(image, cpu)).collect()
    }

    /// The counter of `cpu`, if its area says that it is that.
    fn counter(&self, image: &Image<'_>, cpu: u32) -> Option<Counter> {
        let area = image.data_u64(self.per_cpu_offset.checked_add(8 * u64::from(cpu))?)?;
        let own_offset = u64::from_le_bytes(image.read(image.per_cpu(self.this_cpu_off, area)?)?);
        let own_number = u32::from_le_bytes(image.read(image.per_cpu(self.cpu_number, area)?)?);
        // Wider than this from some version on; the rest is zero.
        let apic_id = u16::from_le_bytes(image.read(image.per_cpu(self.apic_id, area)?)?);
        let word = image.per_cpu(self.word, area)?;
        let is_its_own = own_offset == area && own_number == cpu && word.is_multiple_of(4);
        is_its_own.then_some(Counter { cpu, apic_id, word })
    }
}

/// A kernel's image in guest-physical memory.
struct Image<'m> {
    memory: &'m dyn Memory,
    /// Linked address of `_text`, and where it lies.
    text: u64,
    text_at: u64,
    slide: u64,
    /// `page_offset_base`.
    direct_map: u64,
}

impl Image<'_> {
    /// Guest-physical address of what is linked at `address`.
    fn data(&self, address: u64) -> Option<u64> {
        self.text_at.checked_add(address.checked_sub(self.text)?)
    }

    fn data_u64(&self, address: u64) -> Option<u64> {
        self.read(self.data(address)?).map(u64::from_le_bytes)
    }

    /// Guest-physical address of a per-CPU variable. Linux 6.14 on links these like all others; before, their
    /// addresses are offsets, which no slide moves.
    fn per_cpu(&self, symbol: u64, area: u64) -> Option<u64> {
        let slide = if symbol >= KERNEL_MAP { self.slide } else { 0 };
        symbol.wrapping_add(slide).wrapping_add(area).checked_sub(self.direct_map)
    }

    fn read<const BYTES: usize>(&self, address: u64) -> Option<[u8; BYTES]> {
        let mut bytes = [0; BYTES];
        self.memory.read(address, &mut bytes).ok()?;
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Area;
    use std::io;

    const TEXT: u64 = 0xffff_ffff_8100_0000;
    const SLIDE: u64 = 0x1c00_0000;
    const TEXT_AT: u64 = 0x2_4a00_0000;
    const DIRECT_MAP: u64 = 0xffff_9e2c_4000_0000;
    const AREAS_AT: u64 = 0x2_7c00_0000;
    const AREA_BYTES: u64 = 0x2_0000;

    /// Guest memory of 16 MiB in two pieces: the image and the per-CPU areas.
    #[derive(Clone)]
    struct Guest {
        areas: [Area; 2],
        bytes: [Vec<u8>; 2],
    }

    impl Memory for Guest {
        fn areas(&self) -> &[Area] {
            &self.areas
        }

        fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
            buffer.fill(0);
            for (area, bytes) in self.areas.iter().zip(&self.bytes) {
                let from = address.checked_sub(area.start).and_then(|from| usize::try_from(from).ok());
                if let Some(there) = from.and_then(|from| bytes.get(from..from.checked_add(buffer.len())?)) {
                    buffer.copy_from_slice(there);
                }
            }
            Ok(())
        }
    }

    impl Guest {
        fn write(&mut self, address: u64, value: &[u8]) {
            for (area, bytes) in self.areas.iter().zip(&mut self.bytes) {
                if let Some(from) = address.checked_sub(area.start).filter(|&from| from < area.bytes) {
                    bytes[from as usize..from as usize + value.len()].copy_from_slice(value);
                }
            }
        }

        /// A guest of `cpus` CPUs whose kernel has these symbols.
        fn running(symbols: &CounterSymbols, cpus: u32) -> Self {
            let area = |start| Area { start, bytes: 8 << 20 };
            let bytes = vec![0; 8 << 20];
            let areas = [area(TEXT_AT - (4 << 20)), area(AREAS_AT)];
            let mut guest = Self { areas, bytes: [bytes.clone(), bytes] };
            let at = |address: u64| TEXT_AT + (address - TEXT);
            let phys_base = TEXT_AT.wrapping_sub(TEXT - KERNEL_MAP).wrapping_sub(SLIDE);
            guest.write(at(symbols.phys_base), &phys_base.to_le_bytes());
            guest.write(at(symbols.page_offset_base), &DIRECT_MAP.to_le_bytes());
            guest.write(at(symbols.banner), b"Linux version 6.12.1");
            // What is linked at 0 is an offset; the first variable of an area is linked at the first symbol.
            let linked = if symbols.word >= KERNEL_MAP { TEXT + SLIDE } else { 0 };
            for cpu in 0..cpus {
                let area_at = AREAS_AT + u64::from(cpu) * AREA_BYTES;
                let offset = (area_at + DIRECT_MAP).wrapping_sub(linked);
                let own = |symbol: u64| area_at + (symbol & 0xffff);
                guest.write(at(symbols.per_cpu_offset) + 8 * u64::from(cpu), &offset.to_le_bytes());
                guest.write(own(symbols.this_cpu_off), &offset.to_le_bytes());
                guest.write(own(symbols.cpu_number), &cpu.to_le_bytes());
                guest.write(own(symbols.apic_id), &(cpu * 2).to_le_bytes());
            }
            guest
        }
    }

    fn symbols(names_and_addresses: &[(&str, u64)]) -> SymbolTable {
        let line = |(name, address): &(&str, u64)| format!("{address:x} D {name}\n");
        let text: String = names_and_addresses.iter().map(line).collect();
        crate::text::read_symbol_text(text.as_bytes()).expect("symbols")
    }

    /// Linux 6.2 to 6.13: per-CPU symbols are offsets.
    fn before_6_14() -> Vec<(&'static str, u64)> {
        let mut all = data();
        all.extend([("this_cpu_off", 0x1000), ("x86_cpu_to_apicid", 0x1010), ("pcpu_hot", 0x1040)]);
        all
    }

    /// Linux 6.14 on: per-CPU symbols are linked like all others.
    fn since_6_14() -> Vec<(&'static str, u64)> {
        let mut all = data();
        let per_cpu =
            [("this_cpu_off", 0), ("x86_cpu_to_apicid", 16), ("cpu_number", 32), ("__preempt_count", 36)];
        all.extend(per_cpu.map(|(name, offset)| (name, TEXT + offset)));
        all
    }

    fn data() -> Vec<(&'static str, u64)> {
        let mut all = vec![("_text", TEXT), ("linux_banner", TEXT + 0x10_0000)];
        all.extend([("phys_base", TEXT + 0x20_0000), ("page_offset_base", TEXT + 0x20_1000)]);
        all.push(("__per_cpu_offset", TEXT + 0x20_2000));
        all
    }

    fn counter_symbols(all: &[(&str, u64)]) -> CounterSymbols {
        CounterSymbols::of(&symbols(all)).expect("symbols")
    }

    #[test]
    fn each_cpus_counter_is_found_wherever_the_kernel_lies() {
        for (kernel, word) in [(before_6_14(), 0x1048), (since_6_14(), 36)] {
            let symbols = counter_symbols(&kernel);
            let guest = Guest::running(&symbols, 3);
            let counter = |cpu: u32| {
                let word = AREAS_AT + u64::from(cpu) * AREA_BYTES + word;
                Counter { cpu, apic_id: 2 * cpu as u16, word }
            };
            let found = Counters { slide: SLIDE, counters: (0..3).map(counter).collect() };
            assert_eq!(symbols.find(&guest, None), Ok(found.clone()));
            assert_eq!(symbols.find(&guest, Some(SLIDE)), Ok(found));
            assert!(symbols.find(&guest, Some(SLIDE + IMAGE_STEP)).is_err(), "another slide");
        }
    }

    #[test]
    fn an_area_that_does_not_prove_itself_has_no_counter() {
        let symbols = counter_symbols(&before_6_14());
        let whole = Guest::running(&symbols, 2);
        let areas = [symbols.this_cpu_off, symbols.cpu_number].map(|own| AREAS_AT + AREA_BYTES + own);
        for forged in areas {
            let mut guest = whole.clone();
            guest.write(forged, &[7]);
            let found = symbols.find(&guest, None).expect("the first CPU's");
            assert_eq!(found.counters.len(), 1, "{forged:#x}");
        }
        let mut guest = whole.clone();
        guest.write(AREAS_AT + symbols.this_cpu_off, &[7]);
        assert!(symbols.find(&guest, None).is_err());
        let mut guest = whole;
        guest.write(TEXT_AT + (symbols.banner - TEXT), b"Linux vorsion");
        assert!(symbols.find(&guest, None).is_err(), "no kernel");
    }

    #[test]
    fn memory_of_any_content_has_no_counters() {
        let symbols = counter_symbols(&since_6_14());
        let mut guest = Guest::running(&symbols, 1);
        for fill in [0, 0xff, 0x55] {
            guest.bytes.iter_mut().for_each(|bytes| bytes.fill(fill));
            assert!(symbols.find(&guest, None).is_err());
        }
    }

    #[test]
    fn a_kernel_without_data_symbols_names_what_it_lacks() {
        let kernel: Vec<_> = before_6_14().into_iter().filter(|(name, _)| *name != "phys_base").collect();
        assert_eq!(CounterSymbols::of(&symbols(&kernel)), Err("phys_base"));
    }
}
