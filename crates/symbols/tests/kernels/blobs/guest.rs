//! Guest RAM with a running kernel in it.

use super::{BlobSymbol, Generation, encode, noise, symbols};

pub const LINKED_TEXT: u64 = 0xffff_ffff_8100_0000;
pub const SLIDE: u64 = 0x1960_0000;
/// Behind `_text`: the first system call, the table of them, the banner, kallsyms.
pub const READ: u64 = 0x1000;
pub const CALL_TABLE: u64 = 0x2000;
pub const BANNER: u64 = 0x2234;
const KALLSYMS: u64 = 0x4000;

/// A running kernel: code, banner, system call table, kallsyms, VMCOREINFO.
pub struct Guest {
    pub ram: Vec<u8>,
    /// Its symbols as its image has them.
    pub linked: Vec<BlobSymbol>,
    /// Guest-physical place of `_text`: where the boot loader or KASLR put the kernel.
    pub physical_text: usize,
    /// Guest-physical place of VMCOREINFO.
    pub vmcoreinfo: usize,
}

impl Guest {
    /// 24 MiB of RAM.
    pub fn boot(generation: Generation) -> Self {
        Self::boot_at(generation, 900, 0x60_0000, 20 << 20, 24 << 20)
    }

    /// As little RAM as holds a kernel.
    pub fn boot_small(generation: Generation) -> Self {
        Self::boot_at(generation, 300, 0x1000, 0xb000, 0xc000)
    }

    fn boot_at(
        generation: Generation,
        count: usize,
        physical_text: usize,
        vmcoreinfo: usize,
        ram_bytes: usize,
    ) -> Self {
        let mut linked = symbols(generation, count, LINKED_TEXT);
        let named = [
            (0, "_stext"),
            (READ, "__x64_sys_read"),
            (CALL_TABLE, "sys_call_table"),
            (BANNER, "linux_banner"),
        ];
        linked.extend(named.map(|(offset, name)| (LINKED_TEXT + offset, 'T', name.to_owned())));
        linked.sort_by_key(|symbol| symbol.0);
        let running: Vec<_> =
            linked.iter().cloned().map(|(address, kind, name)| (slid(address), kind, name)).collect();
        let running_text = LINKED_TEXT + SLIDE;
        let mut ram = noise(physical_text + KALLSYMS as usize);
        ram.extend(encode(generation, &running, 0, running_text + KALLSYMS).bytes);
        assert!(ram.len() <= vmcoreinfo, "the table ends before VMCOREINFO: {:#x}", ram.len());
        ram.resize(ram_bytes, 0);
        let mut put = |offset: usize, bytes: &[u8]| ram[offset..offset + bytes.len()].copy_from_slice(bytes);
        put(physical_text + CALL_TABLE as usize, &(running_text + READ).to_le_bytes());
        put(physical_text + BANNER as usize, b"Linux version 6.9.0-test (a@b) #1 SMP\n\0");
        let lines = format!(
            "OSRELEASE=6.9.0-test\nBUILD-ID=abcd\nSYMBOL(_stext)={running_text:x}\nKERNELOFFSET={SLIDE:x}\n\0"
        );
        put(vmcoreinfo, lines.as_bytes());
        Self { ram, linked, physical_text, vmcoreinfo }
    }
}

fn slid(address: u64) -> u64 {
    if address < 1 << 31 { address } else { address + SLIDE }
}
