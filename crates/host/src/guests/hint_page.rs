//! Hint pages of guests (`guest/hints/hint_page.h`; Uhlig et al., VM'04, section 3.1): where they are found,
//! and which are believed.
//!
//! A guest's module may be loaded at any time, so a VM is looked at again and again: only the lowest 16 MiB
//! of its memory, and there only the begin of each page. What lies there may be anything: a page counts if
//! all that it says of itself is so.

use crate::guests::memory_slots;
use microslice_symbols::memory::Memory;
use microslice_symbols::memory::process::{MemorySlot, ProcessMemory};

/// As `guest/hints/hint_page.h` has them.
const SIGNATURE: &[u8; 16] = b"microslice-hints";
const VERSION: u32 = 1;
const VCPUS_MAX: u32 = 512;
const LINE_BYTES: u64 = 64;
const MEMORY_END: u64 = 16 << 20;

const PAGE_BYTES: u64 = 4096;
const CHUNK_BYTES: u64 = 1 << 20;

/// One that is believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HintPage {
    pub guest_phys: u64,
    /// In the VMM's process.
    pub address: u64,
    /// The number of hints in it, which are by vCPU number.
    pub vcpu_count: u32,
}

/// The page of the guest of process `pid`. One that was `known` is only looked at, as long as it is there.
///
/// # Errors
/// Its memory can't be read, or all pages of that signature lie: one line.
pub fn look(pid: u32, known: Option<HintPage>) -> Result<Option<HintPage>, String> {
    if let Some(page) = known
        && is_there(pid, &page)
    {
        return Ok(known);
    }
    let slots = memory_slots::of_process(pid).map_err(|error| error.to_string())?;
    let low: Vec<MemorySlot> = slots.into_iter().filter(|slot| slot.guest_phys < MEMORY_END).collect();
    let memory = ProcessMemory::of_slots(pid, &low).map_err(|error| error.to_string())?;
    find(&memory, &low)
}

fn is_there(pid: u32, page: &HintPage) -> bool {
    let slot = MemorySlot { guest_phys: page.guest_phys, userspace_addr: page.address, bytes: PAGE_BYTES };
    let mut head = [0; LINE_BYTES as usize];
    ProcessMemory::of_slots(pid, &[slot]).is_ok_and(|memory| memory.read(page.guest_phys, &mut head).is_ok())
        && head.starts_with(SIGNATURE)
        && parse(&head, page.guest_phys).is_ok_and(|vcpu_count| vcpu_count == page.vcpu_count)
}

/// The first that is believed; else what is wrong with the first that isn't.
fn find(memory: &ProcessMemory, slots: &[MemorySlot]) -> Result<Option<HintPage>, String> {
    let mut lie = None;
    let mut chunk = vec![0; CHUNK_BYTES as usize];
    for start in (0..MEMORY_END).step_by(CHUNK_BYTES as usize) {
        chunk.fill(0);
        memory.read(start, &mut chunk).map_err(|error| error.to_string())?;
        let pages = chunk.chunks_exact(PAGE_BYTES as usize).zip((start..).step_by(PAGE_BYTES as usize));
        for (page, guest_phys) in pages.filter(|(page, _)| page.starts_with(SIGNATURE)) {
            match parse(page, guest_phys).and_then(|vcpu_count| place(slots, guest_phys, vcpu_count)) {
                Ok(found) => return Ok(Some(found)),
                Err(cause) => lie = lie.or(Some(cause)),
            }
        }
    }
    lie.map_or(Ok(None), Err)
}

/// How many vCPUs a page at `guest_phys` has hints of.
fn parse(page: &[u8], guest_phys: u64) -> Result<u32, String> {
    let number =
        |at: usize| page.get(at..).and_then(|rest| rest.first_chunk()).map(|&it| u32::from_le_bytes(it));
    let long = page.get(24..).and_then(|rest| rest.first_chunk()).map(|&it| u64::from_le_bytes(it));
    let (Some(version), Some(vcpu_count), Some(said)) = (number(16), number(20), long) else {
        return Err(format!("the hint page at {guest_phys:#x} has no head"));
    };
    let refused = |cause: String| Err(format!("the hint page at {guest_phys:#x} isn't believed: {cause}"));
    if version != VERSION {
        return refused(format!("it is of version {version}, and version {VERSION} is known"));
    }
    if said != guest_phys {
        return refused(format!("it says that it lies at {said:#x}"));
    }
    if !(1..=VCPUS_MAX).contains(&vcpu_count) {
        return refused(format!("it says that it is of {vcpu_count} vCPUs, not of 1 to {VCPUS_MAX}"));
    }
    Ok(vcpu_count)
}

/// Where the VMM has it: in one piece.
fn place(slots: &[MemorySlot], guest_phys: u64, vcpu_count: u32) -> Result<HintPage, String> {
    let end = guest_phys + LINE_BYTES * (1 + u64::from(vcpu_count));
    let holds = |slot: &&MemorySlot| slot.guest_phys <= guest_phys && end - slot.guest_phys <= slot.bytes;
    let slot = slots.iter().find(holds).ok_or_else(|| {
        format!(
            "the hint page at {guest_phys:#x} isn't believed: {vcpu_count} vCPUs end beyond its memory slot"
        )
    })?;
    let address = slot.userspace_addr + (guest_phys - slot.guest_phys);
    Ok(HintPage { guest_phys, address, vcpu_count })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(version: u32, vcpu_count: u32, guest_phys: u64) -> Vec<u8> {
        let mut page = SIGNATURE.to_vec();
        page.extend(version.to_le_bytes());
        page.extend(vcpu_count.to_le_bytes());
        page.extend(guest_phys.to_le_bytes());
        page.resize(PAGE_BYTES as usize, 0);
        page
    }

    /// What is found in memory of this process that begins at 1 MiB of a guest's.
    fn found_in(memory: &[u8]) -> Result<Option<HintPage>, String> {
        let slot = MemorySlot {
            guest_phys: 1 << 20,
            userspace_addr: memory.as_ptr() as u64,
            bytes: memory.len() as u64,
        };
        let process = ProcessMemory::of_slots(std::process::id(), &[slot]).unwrap();
        let found = find(&process, &[slot])?;
        if let Some(page) = found {
            assert_eq!(page.address - slot.userspace_addr, page.guest_phys - slot.guest_phys);
            assert!(is_there(std::process::id(), &page));
        }
        Ok(found)
    }

    #[test]
    fn a_true_page_is_found_and_a_lie_is_named() {
        let (start, second) = (1u64 << 20, (1u64 << 20) + PAGE_BYTES);
        let lie = |page: Vec<u8>| found_in(&page).unwrap_err();
        assert_eq!(found_in(&vec![0; 8192]), Ok(None));
        assert_eq!(
            lie(page(9, 4, start)),
            "the hint page at 0x100000 isn't believed: it is of version 9, and version 1 is known"
        );
        assert!(lie(page(1, 4, start + 1)).ends_with("it says that it lies at 0x100001"));
        for count in [0, 513, u32::MAX] {
            assert!(lie(page(1, count, start)).ends_with(&format!("of {count} vCPUs, not of 1 to 512")));
        }
        assert!(lie(page(1, 64, start)).ends_with("64 vCPUs end beyond its memory slot"));
        // A copy of another page doesn't hide the page itself.
        let both = [page(1, 8, second), page(1, 8, second)].concat();
        let found = found_in(&both).unwrap().expect("the second");
        assert_eq!((found.guest_phys, found.vcpu_count), (second, 8));
        let within = [vec![0; 16], page(1, 8, start)].concat();
        assert_eq!(found_in(&within), Ok(None), "pages begin with it");
    }
}
