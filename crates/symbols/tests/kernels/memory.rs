//! A kernel found in memory: the same symbols as its image gives, and how far it has moved.

use crate::blobs;

use crate::blobs::Generation;
use crate::blobs::guest::{BANNER, CALL_TABLE, Guest, LINKED_TEXT, READ, SLIDE};
use microslice_symbols::memory::process::{MemorySlot, ProcessMemory};
use microslice_symbols::memory::{
    Area, KernelInMemory, Memory, MemoryKernel, ScanLimits, find_kernel, find_kernel_that,
};
use microslice_symbols::source;
use std::io;

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
    find_kernel(
        &Ram(&guest.ram, [Area { start: 0, bytes: guest.ram.len() as u64 }]),
        &ScanLimits::default(),
        &mut |_| (),
    )
    .unwrap()
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
    assert_eq!(code.at(LINKED_TEXT + BANNER, 13), Some(&b"Linux version"[..]));
    assert_eq!(code.at(LINKED_TEXT, 4), Some(&guest.ram[guest.physical_text..guest.physical_text + 4]));
}

#[test]
fn witnesses_that_disagree_give_no_slide_and_say_so() {
    let mut guest = Guest::boot(Generation::V6_4);
    let entry = guest.physical_text + CALL_TABLE as usize;
    guest.ram[entry..entry + 8].copy_from_slice(&(LINKED_TEXT + READ + SLIDE + 0x20_0000).to_le_bytes());
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
    guest.ram[guest.vmcoreinfo..guest.vmcoreinfo + stale.len()].copy_from_slice(stale);
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
    let at = guest.vmcoreinfo + "OSRELEASE=".len();
    guest.ram[at..at + 5].copy_from_slice(b"6.9.9");
    let notices = find(&guest).kernel.notices;
    assert_eq!(notices, ["kernel image and VMCOREINFO disagree: release 6.9.0-test against 6.9.9-test"]);
}

/// Memory of a host that rebooted: a kernel of each generation, one behind the other.
fn kernels_in_one_memory(generations: &[Generation]) -> Vec<u8> {
    generations.iter().flat_map(|&generation| Guest::boot(generation).ram).collect()
}

fn find_that(ram: &[u8], mut runs: impl FnMut(KernelInMemory<'_>) -> bool) -> Result<MemoryKernel, String> {
    let memory = Ram(ram, [Area { start: 0, bytes: ram.len() as u64 }]);
    find_kernel_that(&mut runs, &memory, &ScanLimits::default(), &mut |_| ())
        .map_err(|error| error.to_string())
}

#[test]
fn of_two_kernels_in_memory_the_one_that_runs_is_found() {
    let ram = kernels_in_one_memory(&[Generation::V6_4, Generation::V7_0]);
    let running = Guest::boot(Generation::V7_0).linked;
    let mut judged = 0;
    // Only the tables from 7.0 on say nothing of how far they have moved.
    let found = find_that(&ram, |kernel| {
        judged += 1;
        kernel.witnesses.iter().all(|&(name, _)| name != "kallsyms addresses")
    });
    assert_eq!((listed(&found.unwrap()), judged), (running, 2));
}

#[test]
fn kernels_of_which_none_runs_are_a_plain_not_yet_and_no_more_than_four_are_judged() {
    let two = kernels_in_one_memory(&[Generation::V6_4, Generation::V7_0]);
    let error = find_that(&two, |_| false).unwrap_err();
    assert!(error.contains("of the kernels in memory (2) none is the one that runs, not yet"), "{error}");
    let mut judged = 0;
    let error = find_that(&kernels_in_one_memory(&[Generation::V7_0; 6]), |_| {
        judged += 1;
        judged > 4
    });
    assert!(error.is_err() && judged == 4, "{judged}");
}

#[test]
fn of_two_vmcoreinfos_of_one_kernel_the_one_of_its_slide_is_believed() {
    let mut guest = Guest::boot(Generation::V6_4);
    let before = format!(
        "OSRELEASE=6.9.0-test\nSYMBOL(_stext)={:x}\nKERNELOFFSET={:x}\n\0",
        LINKED_TEXT + SLIDE + 0x20_0000,
        SLIDE + 0x20_0000
    );
    let at = guest.vmcoreinfo - 0x1000;
    guest.ram[at..at + before.len()].copy_from_slice(before.as_bytes());
    let found = find(&guest);
    assert_eq!(found.vmcoreinfo.unwrap().kernel_offset, Some(SLIDE));
    assert_eq!(found.slide, Some(SLIDE));
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
