//! The memory of a running guest, through the process that runs it: `/proc/PID/mem`, read-only.
//!
//! Which of the process's memory is the guest's? If the caller knows KVM's memory slots, addresses are the
//! guest's physical ones. Else the largest writable mappings that are anonymous or shared are looked at: so
//! most VMMs map guest RAM. Then addresses are the process's.
//!
//! Pages that were never touched, and those that are swapped out, are told by `/proc/PID/pagemap` and left
//! alone: reading one of a shared mapping would allocate it, and a look would bring a whole guest back from
//! swap. The guest isn't stopped: what is read may change meanwhile, and whatever it is, it is only believed
//! where it proves itself.

use super::{Area, Memory};
use crate::{Cause, Error, Place};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

const PAGE_BYTES: u64 = 4096;
/// Smallest mapping that can hold a guest's RAM with a kernel in it.
const AREA_BYTES_MIN: u64 = 32 << 20;
const MAPPINGS_MAX: usize = 64;
/// KVM allows 32,764; a VMM that plugs memory in small blocks has some hundreds.
const SLOTS_MAX: usize = 4096;
/// `/proc/PID/maps` of a VMM has a few hundred lines.
const MAPS_BYTES_MAX: u64 = 4 << 20;
/// Bit 63 of a pagemap entry. A page that is swapped out (bit 62) isn't present.
const PAGEMAP_PRESENT: u64 = 1 << 63;

/// One of KVM's memory slots (`struct kvm_memory_slot`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemorySlot {
    /// Guest-physical address.
    pub guest_phys: u64,
    /// Address in the VMM's process.
    pub userspace_addr: u64,
    pub bytes: u64,
}

/// Guest RAM inside a VMM's process.
#[derive(Debug)]
pub struct ProcessMemory {
    mem: File,
    pagemap: Option<File>,
    areas: Vec<Area>,
    /// What lies behind each area, by the address that the reader uses; sorted, without overlaps.
    stretches: Vec<Stretch>,
}

/// Memory that is one piece in both the reader's addresses and the process's.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    start: u64,
    bytes: u64,
    in_process: u64,
}

impl Stretch {
    fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes)
    }
}

impl ProcessMemory {
    /// Guest RAM by the process's largest mappings.
    ///
    /// # Errors
    /// No such process, no right to read it, nothing in it that is large enough.
    pub fn of_mappings(pid: u32) -> Result<Self, Error> {
        let maps = read_bounded(&format!("/proc/{pid}/maps")).map_err(|error| of_process(pid, &error))?;
        let areas = areas_of_maps(&maps);
        if areas.is_empty() {
            let cause = format!(
                "has no mapping of {} MiB or more that could be a guest's memory",
                AREA_BYTES_MIN >> 20
            );
            return Err(Error::no_symbols(cause).of(format!("process {pid}")));
        }
        let stretch = |area: &Area| Stretch { start: area.start, bytes: area.bytes, in_process: area.start };
        let stretches = areas.iter().map(stretch).collect();
        Self::open(pid, areas, stretches)
    }

    /// Guest RAM by KVM's memory slots. Slots that are neighbours in the guest are one area: a kernel may lie
    /// in both.
    ///
    /// # Errors
    /// As [`Self::of_mappings`].
    pub fn of_slots(pid: u32, slots: &[MemorySlot]) -> Result<Self, Error> {
        let stretches = stretches_of_slots(slots);
        if stretches.is_empty() {
            return Err(Error::no_symbols("has no memory slots").of(format!("process {pid}")));
        }
        let mut areas: Vec<Area> = Vec::new();
        for stretch in &stretches {
            match areas.last_mut() {
                Some(area) if area.end() == stretch.start => area.bytes += stretch.bytes,
                _ => areas.push(Area { start: stretch.start, bytes: stretch.bytes }),
            }
        }
        areas.sort_by_key(|area| std::cmp::Reverse(area.bytes));
        Self::open(pid, areas, stretches)
    }

    fn open(pid: u32, areas: Vec<Area>, mut stretches: Vec<Stretch>) -> Result<Self, Error> {
        stretches.sort_by_key(|stretch| stretch.start);
        let mem = File::open(format!("/proc/{pid}/mem")).map_err(|error| of_process(pid, &error))?;
        Ok(Self { mem, pagemap: File::open(format!("/proc/{pid}/pagemap")).ok(), areas, stretches })
    }

    /// Returns where the process has `bytes` at the reader's `address`, if it has them in one piece.
    pub fn address_in_process(&self, address: u64, bytes: u64) -> Option<u64> {
        let (offset, in_process, there) = self.parts(address, address.checked_add(bytes)?).next()?;
        (offset == 0 && there == bytes).then_some(in_process)
    }

    /// The parts of `[start, end)` that there is memory behind: offset from `start`, address in the process,
    /// bytes.
    fn parts(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64, u64)> {
        let first = self.stretches.partition_point(|stretch| stretch.end() <= start);
        let stretches = self.stretches.iter().skip(first).take_while(move |stretch| stretch.start < end);
        stretches.map(move |stretch| {
            let from = stretch.start.max(start);
            (from - start, stretch.in_process + (from - stretch.start), stretch.end().min(end) - from)
        })
    }

    /// Fills `buffer` from the process's `address`.
    fn read_process(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        let (start, end) = (address, address + buffer.len() as u64);
        let first_page = address / PAGE_BYTES;
        let content = self.pages_with_content(address, buffer.len() as u64);
        let mut page = 0;
        for run in content.chunk_by(|a, b| a == b) {
            let run_start = ((first_page + page as u64) * PAGE_BYTES).max(start);
            page += run.len();
            let run_end = ((first_page + page as u64) * PAGE_BYTES).min(end);
            if run[0] {
                let bytes = &mut buffer[(run_start - start) as usize..(run_end - start) as usize];
                // A page can go (a balloon, a hot-unplug) between the look and the read: it stays zeros.
                if let Err(error) = self.mem.read_exact_at(bytes, run_start)
                    && !matches!(error.kind(), io::ErrorKind::UnexpectedEof)
                    && error.raw_os_error() != Some(libc::EIO)
                {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// For each page of `[address, address + bytes)`: is there something in it, at hand? Unknown counts as
    /// no: reading an absent page would bring it in.
    fn pages_with_content(&self, address: u64, bytes: u64) -> Vec<bool> {
        let first = address / PAGE_BYTES;
        let pages = ((address + bytes).div_ceil(PAGE_BYTES) - first) as usize;
        let mut entries = vec![0u8; 8 * pages];
        let known = self
            .pagemap
            .as_ref()
            .is_some_and(|pagemap| pagemap.read_exact_at(&mut entries, 8 * first).is_ok());
        if !known {
            return vec![false; pages];
        }
        entries.as_chunks::<8>().0.iter().map(|&entry| is_present(u64::from_le_bytes(entry))).collect()
    }
}

impl Memory for ProcessMemory {
    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        buffer.fill(0);
        for (offset, in_process, bytes) in self.parts(address, address.saturating_add(buffer.len() as u64)) {
            self.read_process(in_process, &mut buffer[offset as usize..(offset + bytes) as usize])?;
        }
        Ok(())
    }

    fn has_content(&self, address: u64, bytes: u64) -> bool {
        self.parts(address, address.saturating_add(bytes))
            .any(|(_, in_process, bytes)| self.pages_with_content(in_process, bytes).contains(&true))
    }
}

fn is_present(pagemap_entry: u64) -> bool {
    pagemap_entry & PAGEMAP_PRESENT != 0
}

/// Slots by guest-physical address. KVM's never overlap; of a list that was read while it changed, the first
/// counts.
fn stretches_of_slots(slots: &[MemorySlot]) -> Vec<Stretch> {
    let mut stretches: Vec<Stretch> = slots
        .iter()
        .filter(|slot| slot.bytes > 0)
        .filter(|slot| {
            slot.guest_phys.checked_add(slot.bytes).is_some()
                && slot.userspace_addr.checked_add(slot.bytes).is_some()
        })
        .map(|slot| Stretch { start: slot.guest_phys, bytes: slot.bytes, in_process: slot.userspace_addr })
        .take(SLOTS_MAX)
        .collect();
    stretches.sort_by_key(|stretch| stretch.start);
    let mut end = 0;
    stretches.retain(|stretch| {
        let fits = stretch.start >= end;
        end = if fits { stretch.end() } else { end };
        fits
    });
    stretches
}

fn read_bounded(path: &str) -> io::Result<String> {
    use std::io::Read;
    let mut text = String::new();
    File::open(path)?.take(MAPS_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

fn of_process(pid: u32, error: &io::Error) -> Error {
    let cause = match error.kind() {
        io::ErrorKind::NotFound => "no such process".to_owned(),
        io::ErrorKind::PermissionDenied => "no permission to read its memory: run as root".to_owned(),
        _ => error.to_string(),
    };
    Error::new(Place::Whole, Cause::Io(cause)).of(format!("process {pid}"))
}

/// Writable mappings that are anonymous or shared memory, largest first.
fn areas_of_maps(maps: &str) -> Vec<Area> {
    let mut areas: Vec<Area> =
        maps.lines().filter_map(guest_area).filter(|area| area.bytes >= AREA_BYTES_MIN).collect();
    areas.sort_by_key(|area| std::cmp::Reverse(area.bytes));
    areas.truncate(MAPPINGS_MAX);
    areas
}

/// `7f00-7f80 rw-s 00000000 00:01 1234 /memfd:ram (deleted)`
fn guest_area(line: &str) -> Option<Area> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let rights = words.next()?;
    let path = words.nth(3).unwrap_or("");
    let shared_memory = ["/memfd:", "/dev/shm/", "/dev/zero", "/dev/hugepages", "/SYSV"];
    let plausible = path.is_empty()
        || path.starts_with("[anon")
        || shared_memory.iter().any(|prefix| path.starts_with(prefix));
    let backed_by_file = rights.ends_with('s') && path.starts_with('/');
    if !rights.starts_with("rw") || !(plausible || backed_by_file) {
        return None;
    }
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    Some(Area { start, bytes: end.checked_sub(start)? })
}

/// Does the process hold a KVM virtual machine? `None` if its descriptors can't be listed.
pub fn is_kvm_process(pid: u32) -> Option<bool> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let links = entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    Some(links.into_iter().any(|link| link.to_str() == Some("anon_inode:kvm-vm")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_memory_is_told_from_code_heap_and_stacks() {
        let maps = "\
            55d0c0000000-55d0c8000000 r-xp 00000000 08:01 99 /usr/bin/qemu-system-x86_64\n\
            55d0d0000000-55d0d6000000 rw-p 00000000 00:00 0 [heap]\n\
            7f0000000000-7f0010000000 rw-p 00000000 00:00 0 \n\
            7f1000000000-7f1040000000 rw-s 00000000 00:01 1234 /memfd:ram-node0 (deleted)\n\
            7f2000000000-7f2000001000 rw-p 00000000 00:00 0 \n";
        let areas = areas_of_maps(maps);
        assert_eq!(
            areas,
            [
                Area { start: 0x7f1000000000, bytes: 0x4000_0000 },
                Area { start: 0x7f0000000000, bytes: 0x1000_0000 }
            ]
        );
    }

    #[test]
    fn our_own_memory_is_read_and_untouched_pages_are_zeros() {
        let marker = vec![0xa5u8; 3 * 4096];
        let slot =
            MemorySlot { guest_phys: 0, userspace_addr: marker.as_ptr() as u64, bytes: marker.len() as u64 };
        let memory = ProcessMemory::of_slots(std::process::id(), &[slot]).unwrap();
        let mut buffer = vec![0u8; marker.len()];
        memory.read(0, &mut buffer).unwrap();
        assert_eq!(buffer, marker);
        assert!(memory.has_content(0, 1));
        assert!(!memory.has_content(slot.bytes, 1));
    }

    #[test]
    fn pages_that_are_swapped_out_stay_there() {
        let (swapped, frame) = (1 << 62, 0x1234);
        assert!(is_present(PAGEMAP_PRESENT | frame));
        assert!(!is_present(swapped | frame));
        assert!(!is_present(0), "never touched");
    }

    /// Memory of this process that nobody has touched: reading one of its pages allocates it. It stays until
    /// the process ends.
    fn untouched() -> MemorySlot {
        let bytes = 16 * PAGE_BYTES;
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, wherever there is room.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes as usize, rights, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        MemorySlot { guest_phys: 0, userspace_addr: at as u64, bytes }
    }

    /// Reads all of `slot`, for which nobody can say what is present.
    fn read_without_pagemap(slot: MemorySlot, pagemap: Option<File>) -> Vec<u8> {
        let mut memory = ProcessMemory::of_slots(std::process::id(), &[slot]).unwrap();
        memory.pagemap = pagemap;
        let mut buffer = vec![9u8; slot.bytes as usize];
        memory.read(0, &mut buffer).unwrap();
        buffer
    }

    #[test]
    fn a_page_that_nobody_can_say_is_present_is_never_brought_in() {
        for pagemap in [None, Some(File::options().write(true).open("/dev/null").unwrap())] {
            let slot = untouched();
            let read = read_without_pagemap(slot, pagemap);
            assert!(read.iter().all(|&byte| byte == 0));
            let memory = ProcessMemory::of_slots(std::process::id(), &[slot]).unwrap();
            assert!(memory.pagemap.is_some());
            assert!(!memory.has_content(0, slot.bytes), "reading has allocated pages");
        }
    }

    #[test]
    fn slots_are_read_by_guest_physical_address_whatever_lies_between_them() {
        let (low, high) = (vec![1u8; 8192], vec![2u8; 8192]);
        let slot = |guest_phys, memory: &[u8]| MemorySlot {
            guest_phys,
            userspace_addr: memory.as_ptr() as u64,
            bytes: memory.len() as u64,
        };
        let gone = MemorySlot { guest_phys: 0x1000, userspace_addr: 0, bytes: 0x10_0000 };
        let endless = MemorySlot { guest_phys: 0x9000, userspace_addr: u64::MAX, bytes: 4096 };
        let slots = [slot(0x8000, &high), slot(0, &low), slot(0x2000, &high), gone, endless];
        let memory = ProcessMemory::of_slots(std::process::id(), &slots).unwrap();
        let areas = [Area { start: 0, bytes: 0x4000 }, Area { start: 0x8000, bytes: 0x2000 }];
        assert_eq!(memory.areas(), areas);
        let mut buffer = [9u8; 0x3000];
        memory.read(0x1ffe, &mut buffer[..4]).unwrap();
        assert_eq!(buffer[..5], [1, 1, 2, 2, 9]);
        memory.read(0x7000, &mut buffer).unwrap();
        assert!(
            buffer[..0x1000].iter().all(|&byte| byte == 0) && buffer[0x1000..].iter().all(|&byte| byte == 2)
        );
        assert_eq!(memory.address_in_process(0x8010, 4), Some(high.as_ptr() as u64 + 16));
        assert_eq!(memory.address_in_process(0x3fff, 4), None, "half of it lies beyond");
        assert_eq!(memory.address_in_process(0x7000, 4), None);
        assert!(ProcessMemory::of_slots(std::process::id(), &[]).is_err());
    }

    #[test]
    fn a_process_that_is_gone_is_said_to_be() {
        let error = ProcessMemory::of_mappings(u32::MAX - 1).unwrap_err();
        assert_eq!(error.to_string(), format!("process {}: no such process", u32::MAX - 1));
    }
}
