//! A raw memory dump or an ELF core file: the kernel is one stretch of it, so the file is scanned as it is.

use super::{Area, Memory};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// A dump file.
#[derive(Debug)]
pub struct DumpFile {
    file: File,
    areas: [Area; 1],
}

impl DumpFile {
    pub fn new(file: File) -> io::Result<Self> {
        let bytes = file.metadata()?.len();
        Ok(Self { file, areas: [Area { start: 0, bytes }] })
    }
}

impl Memory for DumpFile {
    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, address)
    }
}
