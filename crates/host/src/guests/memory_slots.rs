//! Where a VMM's process has its guest's memory: KVM's memory slots, read by a BPF iterator
//! (`bpf/memory_slots.bpf.c`).
//!
//! Nothing is attached to anything that runs: the iterator walks the files of one process once, and is gone.

use crate::HostError;
use crate::memory_slots_skeleton::MemorySlotsSkelBuilder;
use libbpf_rs::libbpf_sys;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use microslice_symbols::memory::process::MemorySlot;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const PAGE_BYTES: u64 = 4096;
/// `struct memory_slot_record` of `bpf/memory_slots.h`.
const RECORD_BYTES: usize = 32;
/// A thousand slots of each of some VMs; one that has more files than that isn't a VMM.
const OUTPUT_BYTES_MAX: u64 = 4 << 20;

/// The memory slots of the virtual machine that process `pid` made, by guest-physical address; of several,
/// the one with the most memory. None if it holds no KVM machine of its own.
///
/// # Errors
/// No rights, or a kernel without BTF or without BPF's open-coded iterators (before 6.4).
pub fn of_process(pid: u32) -> Result<Vec<MemorySlot>, HostError> {
    // What libbpf says on failure is in its error, too, and this isn't fatal to the caller.
    let print = libbpf_rs::set_print(None);
    let output = read_iterator(pid);
    libbpf_rs::set_print(print);
    Ok(largest_vm(&output?))
}

fn read_iterator(pid: u32) -> Result<Vec<u8>, HostError> {
    let mut storage = MaybeUninit::uninit();
    let skeleton = MemorySlotsSkelBuilder::default().open(&mut storage).and_then(OpenSkel::load);
    let skeleton = skeleton.map_err(|error| HostError::Load(error.to_string()))?;
    let of_system =
        |error: std::io::Error| HostError::broken(format!("the iterator over its files: {error}"));
    let link = link_to_process(skeleton.progs.memory_slots.as_fd(), pid).map_err(of_system)?;
    // SAFETY: a plain system call on a descriptor that is open.
    let iterator = unsafe { libbpf_sys::bpf_iter_create(link.as_raw_fd()) };
    let iterator = owned(iterator).map_err(of_system)?;
    let mut output = Vec::new();
    File::from(iterator).take(OUTPUT_BYTES_MAX).read_to_end(&mut output).map_err(of_system)?;
    Ok(output)
}

/// An iterator's link restricted to one process; libbpf-rs has no way to say so.
fn link_to_process(program: BorrowedFd<'_>, pid: u32) -> std::io::Result<OwnedFd> {
    let mut target = libbpf_sys::bpf_iter_link_info::default();
    target.task.pid = pid;
    let options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
        iter_info: &raw mut target,
        iter_info_len: size_of_val(&target) as u32,
        ..Default::default()
    };
    // SAFETY: `options` and the `target` it points to live until the call returns, with the sizes that they
    // name.
    let link = unsafe {
        libbpf_sys::bpf_link_create(program.as_raw_fd(), 0, libbpf_sys::BPF_TRACE_ITER, &raw const options)
    };
    owned(link)
}

/// A new descriptor, or libbpf's negative error number.
fn owned(descriptor: i32) -> std::io::Result<OwnedFd> {
    if descriptor < 0 {
        return Err(std::io::Error::from_raw_os_error(-descriptor));
    }
    // SAFETY: the kernel just made it for us, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn largest_vm(output: &[u8]) -> Vec<MemorySlot> {
    let mut vms: BTreeMap<u32, Vec<MemorySlot>> = BTreeMap::new();
    for (fd, slot) in output.as_chunks::<RECORD_BYTES>().0.iter().filter_map(parse_record) {
        vms.entry(fd).or_default().push(slot);
    }
    let bytes = |slots: &Vec<MemorySlot>| slots.iter().map(|slot| slot.bytes >> 12).sum::<u64>();
    let mut slots = vms.into_values().max_by_key(bytes).unwrap_or_default();
    slots.sort_by_key(|slot| slot.guest_phys);
    slots
}

/// File descriptor of the VM and one of its slots; none if no address space has room for it.
fn parse_record(record: &[u8; RECORD_BYTES]) -> Option<(u32, MemorySlot)> {
    let long = |at: usize| Some(u64::from_le_bytes(*record.get(at..)?.first_chunk()?));
    let slot = MemorySlot {
        guest_phys: long(0)?.checked_mul(PAGE_BYTES)?,
        bytes: long(8)?.checked_mul(PAGE_BYTES)?,
        userspace_addr: long(16)?,
    };
    slot.guest_phys.checked_add(slot.bytes)?;
    slot.userspace_addr.checked_add(slot.bytes)?;
    Some((u32::from_le_bytes(*record.get(24..)?.first_chunk()?), slot))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(fd: u32, base_page: u64, page_count: u64, userspace_addr: u64) -> Vec<u8> {
        let longs = [base_page, page_count, userspace_addr, u64::from(fd)];
        longs.iter().flat_map(|long| long.to_le_bytes()).collect()
    }

    #[test]
    fn slots_of_the_largest_vm_are_sorted() {
        let output = [
            record(9, 0x100000, 0x40000, 0x7f00_8000_0000),
            record(12, 0, 0x100, 0x7f10_0000_0000),
            record(9, 0, 0x80000, 0x7f00_0000_0000),
        ];
        let slot = |guest_phys, userspace_addr, bytes| MemorySlot { guest_phys, userspace_addr, bytes };
        assert_eq!(
            largest_vm(&output.concat()),
            [slot(0, 0x7f00_0000_0000, 0x8000_0000), slot(0x1_0000_0000, 0x7f00_8000_0000, 0x4000_0000)]
        );
    }

    #[test]
    fn slots_that_no_address_space_has_room_for_are_dropped() {
        let output = [record(9, u64::MAX, 1, 0x1000), record(9, 0, 2, u64::MAX - 0x1000)].concat();
        assert_eq!(largest_vm(&output), []);
        assert_eq!(largest_vm(&output[..31]), []);
    }
}
