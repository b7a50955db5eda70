//! What several tests need.

use microslice_symbols::memory::{Area, Memory};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Links a kernel of a hundred functions in `folder`, with a symbol table and a build ID.
pub fn linked_kernel(folder: &Path) -> PathBuf {
    let (source, kernel) = (folder.join("kernel.c"), folder.join("vmlinux"));
    let functions: String = (0..100).map(|number| format!("void function_{number}(void) {{}}\n")).collect();
    let start = "const char linux_banner[] = \"Linux version 6.12.1 (a@b) #1 SMP Mon Jan 1\\n\";\nvoid _text(void) {}\n";
    std::fs::write(&source, format!("{start}{functions}")).expect("a folder");
    let flags = "-ffreestanding -nostdlib -static -no-pie -fno-pic -mcmodel=kernel -fno-asynchronous-unwind-tables \
                 -Wl,--build-id,-e,_text,-Ttext=0xffffffff81000000";
    let linked =
        Command::new("cc").args(flags.split_whitespace()).arg("-o").arg(&kernel).arg(&source).output();
    let linked = linked.expect("a compiler, as for the build");
    assert!(linked.status.success(), "{}", String::from_utf8_lossy(&linked.stderr));
    kernel
}

/// Memory of one area, from address 0 on.
pub struct Ram {
    content: Vec<u8>,
    area: [Area; 1],
}

impl Ram {
    pub fn of(content: Vec<u8>) -> Self {
        let area = [Area { start: 0, bytes: content.len() as u64 }];
        Self { content, area }
    }
}

impl Memory for Ram {
    fn areas(&self) -> &[Area] {
        &self.area
    }

    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        buffer.copy_from_slice(&self.content[address as usize..address as usize + buffer.len()]);
        Ok(())
    }
}
