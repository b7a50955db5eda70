//! KVM's memory slots of a real virtual machine that this test makes itself (it has no vCPU: none is needed).
//! Skipped where the machine has no usable `/dev/kvm` or isn't ours; the testbed's `symbols.rs` does the same
//! with real guests.

use microslice_host::guests::memory_slots;
use microslice_symbols::memory::Memory;
use microslice_symbols::memory::process::{MemorySlot, ProcessMemory};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const KVM_CREATE_VM: u64 = 0xae01;
const KVM_SET_USER_MEMORY_REGION: u64 = 0x4020_ae46;

/// `struct kvm_userspace_memory_region`.
#[repr(C)]
struct MemoryRegion {
    slot: u32,
    flags: u32,
    guest_phys_addr: u64,
    memory_size: u64,
    userspace_addr: u64,
}

fn create_vm() -> std::io::Result<OwnedFd> {
    let kvm = File::options().read(true).write(true).open("/dev/kvm")?;
    // SAFETY: plain system calls; the descriptor is new and nobody else's.
    match unsafe { libc::ioctl(kvm.as_raw_fd(), KVM_CREATE_VM, 0) } {
        -1 => Err(std::io::Error::last_os_error()),
        // SAFETY: the kernel just made it for us, and nobody else has it.
        vm => Ok(unsafe { OwnedFd::from_raw_fd(vm) }),
    }
}

/// Page-aligned memory of this process.
fn map(bytes: u64) -> u64 {
    let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new anonymous mapping, which is never unmapped.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes as usize, rights, kind, -1, 0) };
    assert_ne!(address, libc::MAP_FAILED);
    address as u64
}

fn set_slot(vm: &OwnedFd, number: u32, slot: MemorySlot) {
    let region = MemoryRegion {
        slot: number,
        flags: 0,
        guest_phys_addr: slot.guest_phys,
        memory_size: slot.bytes,
        userspace_addr: slot.userspace_addr,
    };
    // SAFETY: the structure that this ioctl reads.
    let result = unsafe { libc::ioctl(vm.as_raw_fd(), KVM_SET_USER_MEMORY_REGION, &raw const region) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn memory_slots_are_found_and_read_by_guest_physical_address() {
    let own = std::process::id();
    let vm = match create_vm() {
        Ok(vm) => vm,
        Err(error) => return writeln!(std::io::stderr(), "SKIPPED: no KVM here: {error}").expect("stderr"),
    };
    let slot = |guest_phys, bytes| MemorySlot { guest_phys, bytes, userspace_addr: map(bytes) };
    // One every few buckets of KVM's table, some of them neighbours; a ROM is left out.
    let mut slots = vec![slot(0, 8 << 20), slot(8 << 20, 4 << 20), slot(4 << 30, 2 << 20)];
    slots.extend((0..300).map(|at| slot((8 << 30) + at * (4 << 20), 1 << 20)));
    for (number, &slot) in slots.iter().enumerate() {
        set_slot(&vm, number as u32, slot);
    }
    set_slot(&vm, 400, slot(0xffff_0000, 0x1_0000));
    // A change swaps KVM's two lists; a slot that is gone must not come back.
    set_slot(&vm, 2, MemorySlot { bytes: 0, ..slots[2] });
    slots.remove(2);
    // A file of that name on another file system is no VM.
    let decoy = tempfile::tempdir().expect("a directory");
    let _decoy = File::create(decoy.path().join("kvm-vm")).expect("a file");

    let found = match memory_slots::of_process(own) {
        Ok(found) => found,
        Err(error) => {
            return writeln!(std::io::stderr(), "SKIPPED: no BPF iterators here: {error}").expect("stderr");
        }
    };
    assert_eq!(found, slots);

    // SAFETY: inside the mappings made above.
    unsafe {
        ((slots[0].userspace_addr + (8 << 20) - 2) as *mut u16).write_unaligned(0x2211);
        (slots[1].userspace_addr as *mut u16).write_unaligned(0x4433);
    }
    let memory = ProcessMemory::of_slots(own, &found).expect("our own memory");
    let mut bytes = [0; 4];
    memory.read((8 << 20) - 2, &mut bytes).expect("readable");
    assert_eq!(bytes, [0x11, 0x22, 0x33, 0x44], "neighbours in the guest, far apart in the process");
    assert_eq!(memory.areas().iter().find(|area| area.start == 0).map(|area| area.bytes), Some(12 << 20));
}

#[test]
fn a_process_without_a_vm_has_no_slots() {
    let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
    let found = memory_slots::of_process(sleeper.id());
    sleeper.kill().and_then(|()| sleeper.wait()).expect("the end");
    match found {
        Ok(slots) => assert_eq!(slots, []),
        Err(error) => {
            return writeln!(std::io::stderr(), "SKIPPED: no BPF iterators here: {error}").expect("stderr");
        }
    }
    let gone = memory_slots::of_process(u32::MAX >> 2).map(|slots| slots.len());
    assert!(!matches!(gone, Ok(1..)), "{gone:?}");
}
