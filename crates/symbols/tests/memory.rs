//! A kernel found in memory: the same symbols as its image gives, and how far it has moved.

mod blobs;

use blobs::{Generation, encode, noise};
use microslice_symbols::memory::process::{MemorySlot, ProcessMemory};
use microslice_symbols::memory::{Area, Memory, MemoryKernel, ScanLimits, find_kernel};
use microslice_symbols::source;
use std::io;

const LINKED_TEXT: u64 = 0xffff_ffff_8100_0000;
const SLIDE: u64 = 0x1960_0000;
/// Guest-physical place of `_text`: where the boot loader or KASLR put the kernel.
const PHYSICAL_TEXT: usize = 0x60_0000;
const TABLE_BEHIND_TEXT: usize = 0x20_0000;

/// Guest RAM with a running kernel of `generation` in it: code, banner, system call table, kallsyms, VMCOREINFO.
struct Guest {
    ram: Vec<u8>,
    linked: Vec<blobs::BlobSymbol>,
}

impl Guest {
    fn boot(generation: Generation) -> Self {
        let running_text = LINKED_TEXT + SLIDE;
        let named = |linked: &mut Vec<blobs::BlobSymbol>, offset: u64, name: &str| {
            linked.push((LINKED_TEXT + offset, 'R', name.to_owned()));
        };
        let mut linked = blobs::symbols(generation, 900, LINKED_TEXT);
        linked.retain(|symbol| symbol.2 != "_stext");
        named(&mut linked, 0x10_0000, "__x64_sys_read");
        named(&mut linked, 0x11_0000, "sys_call_table");
        named(&mut linked, 0x11_1234, "linux_banner");
        let text = linked.iter().position(|symbol| symbol.2 == "_text").unwrap();
        linked.insert(text + 1, (LINKED_TEXT, 'T', "_stext".into()));
        let running: Vec<_> =
            linked.iter().cloned().map(|(address, kind, name)| (slid(address), kind, name)).collect();
        let table_address = running_text + TABLE_BEHIND_TEXT as u64;
        let table = encode(generation, &running, 0, table_address).bytes;
        let mut ram = noise(PHYSICAL_TEXT + TABLE_BEHIND_TEXT);
        ram.extend(table);
        ram.resize(24 << 20, 0);
        let mut put = |offset: usize, bytes: &[u8]| ram[offset..offset + bytes.len()].copy_from_slice(bytes);
        put(PHYSICAL_TEXT + 0x11_0000, &(running_text + 0x10_0000).to_le_bytes());
        put(PHYSICAL_TEXT + 0x11_1234, b"Linux version 6.9.0-test (a@b) #1 SMP\n\0");
        put(
            20 << 20,
            format!(
                "OSRELEASE=6.9.0-test\nBUILD-ID=abcd\nSYMBOL(_stext)={running_text:x}\nKERNELOFFSET={SLIDE:x}\n\0"
            )
            .as_bytes(),
        );
        Self { ram, linked }
    }

    fn area(&self) -> [Area; 1] {
        [Area { start: 0, bytes: self.ram.len() as u64 }]
    }
}

fn slid(address: u64) -> u64 {
    if address < 1 << 31 { address } else { address + SLIDE }
}

struct Ram<'g>(&'g [u8], [Area; 1]);

impl Memory for Ram<'_> {
    fn areas(&self) -> &[Area] {
        &self.1
    }

    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        buffer.copy_from_slice(&self.0[address as usize..address as usize + buffer.len()]);
        Ok(())
    }
}

fn find(guest: &Guest) -> MemoryKernel {
    find_kernel(&Ram(&guest.ram, guest.area()), &ScanLimits::default(), &mut |_| ()).unwrap()
}

fn listed(found: &MemoryKernel) -> Vec<blobs::BlobSymbol> {
    found.kernel.symbols.iter().map(|symbol| (symbol.address, symbol.kind, symbol.name.to_owned())).collect()
}

#[test]
fn symbols_of_every_generation_are_put_back_to_where_they_are_linked() {
    for generation in Generation::ALL.into_iter().filter(|&generation| generation != Generation::V4_6Arm64) {
        let guest = Guest::boot(generation);
        let found = find(&guest);
        assert_eq!(listed(&found), guest.linked, "{generation:?}");
        assert_eq!(found.slide, Some(SLIDE), "{generation:?}: {:?}", found.witnesses);
        assert_eq!(found.kernel.notices, Vec::<String>::new(), "{generation:?}");
        let identity = found.kernel.symbols.identity();
        assert_eq!(identity.release.as_deref(), Some("6.9.0-test"));
        assert_eq!(identity.build_id.as_deref(), Some("abcd"));
    }
}

#[test]
fn the_bytes_of_the_kernel_are_found_by_linked_address() {
    let guest = Guest::boot(Generation::V7_0);
    let code = find(&guest).kernel.code.unwrap();
    assert_eq!(code.at(LINKED_TEXT + 0x11_1234, 13), Some(&b"Linux version"[..]));
    assert_eq!(code.at(LINKED_TEXT, 4), Some(&guest.ram[PHYSICAL_TEXT..PHYSICAL_TEXT + 4]));
}

#[test]
fn witnesses_that_disagree_give_no_slide_and_say_so() {
    let mut guest = Guest::boot(Generation::V6_4);
    let entry = PHYSICAL_TEXT + 0x11_0000;
    guest.ram[entry..entry + 8].copy_from_slice(&(LINKED_TEXT + 0x10_0000 + SLIDE + 0x20_0000).to_le_bytes());
    let found = find(&guest);
    assert_eq!(found.slide, None);
    assert_eq!(
        found.kernel.notices,
        ["no slide: its witnesses disagree or can't be right: kallsyms addresses 0x19600000, \
          sys_call_table 0x19800000, VMCOREINFO 0x19600000"]
    );
}

#[test]
fn vmcoreinfo_of_a_kernel_that_ran_before_is_not_believed() {
    let mut guest = Guest::boot(Generation::V6_4);
    let stale = b"OSRELEASE=5.0.0-before\nSYMBOL(_stext)=ffffffff99000000\nKERNELOFFSET=17000000\n\0";
    guest.ram[20 << 20..(20 << 20) + stale.len()].copy_from_slice(stale);
    let found = find(&guest);
    assert_eq!(found.vmcoreinfo, None);
    assert_eq!(
        (found.slide, found.kernel.symbols.identity().release.as_deref()),
        (Some(SLIDE), Some("6.9.0-test"))
    );
}

#[test]
fn a_release_in_vmcoreinfo_other_than_the_banners_is_reported() {
    let mut guest = Guest::boot(Generation::V6_4);
    let at = (20 << 20) + "OSRELEASE=".len();
    guest.ram[at..at + 5].copy_from_slice(b"6.9.9");
    let notices = find(&guest).kernel.notices;
    assert_eq!(notices, ["kernel image and VMCOREINFO disagree: release 6.9.0-test against 6.9.9-test"]);
}

#[test]
fn memory_without_a_kernel_says_so_and_a_scan_keeps_to_its_limit() {
    let ram = vec![0u8; 40 << 20];
    let memory = Ram(&ram, [Area { start: 0, bytes: ram.len() as u64 }]);
    let limits = ScanLimits { scanned_bytes_max: 16 << 20, ..ScanLimits::default() };
    let mut scanned_bytes = 0;
    let error =
        find_kernel(&memory, &limits, &mut |progress| scanned_bytes = progress.scanned_bytes).unwrap_err();
    assert!(error.to_string().contains("no Linux guest, or it hasn't started yet"), "{error}");
    assert!(scanned_bytes < 32 << 20, "{scanned_bytes}");
}

#[test]
fn a_dump_file_is_read_like_memory() {
    let guest = Guest::boot(Generation::V6_15);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("guest.dump");
    std::fs::write(&path, &guest.ram).unwrap();
    let opened = source::open(&path).unwrap();
    assert_eq!((opened.kind, opened.slide), (source::SourceKind::MemoryDump, Some(SLIDE)));
    assert_eq!(opened.kernel.symbols.len(), guest.linked.len());
}

#[test]
fn a_guest_is_read_through_the_process_that_holds_it() {
    let guest = Guest::boot(Generation::V7_0);
    // Page-aligned, as KVM's memory slots are.
    let mut held = vec![0u8; guest.ram.len() + 4096];
    let aligned = held.as_ptr().align_offset(4096);
    held[aligned..aligned + guest.ram.len()].copy_from_slice(&guest.ram);
    let userspace_addr = held.as_ptr() as u64 + aligned as u64;
    let slots = [
        MemorySlot { guest_phys: 0xffff_c000, userspace_addr: 0x1000, bytes: 0x4000 },
        MemorySlot { guest_phys: 0, userspace_addr, bytes: guest.ram.len() as u64 },
    ];
    let memory = ProcessMemory::of_slots(std::process::id(), &slots).unwrap();
    let found = find_kernel(&memory, &ScanLimits::default(), &mut |_| ()).unwrap();
    assert_eq!((listed(&found), found.slide), (guest.linked.clone(), Some(SLIDE)));
    let progress = |_| ();
    let by_mappings = ProcessMemory::of_mappings(std::process::id());
    if let Ok(memory) = by_mappings {
        // The test's own copies are in its heap: whatever is found there must be whole.
        let _ = find_kernel(&memory, &ScanLimits::default(), &mut { progress });
    }
}
