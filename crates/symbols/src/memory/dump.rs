//! A raw memory dump or an ELF core file: the kernel is one stretch of it, so the file is scanned as it is.

use super::{Area, Memory};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
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

    /// Holes of a sparse file hold nothing, and reading terabytes of them would take for ever.
    fn has_content(&self, address: u64, bytes: u64) -> bool {
        match seek(&self.file, SeekFrom::Data(address)) {
            Ok(data) => data < address.saturating_add(bytes),
            // No data up to the end; any other failure means that the file system can't tell.
            Err(error) => error != Errno::NXIO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn the_holes_of_a_sparse_file_are_passed_over() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 4096]).unwrap();
        file.set_len(1 << 40).unwrap();
        file.write_all_at(&[2; 4096], 1 << 39).unwrap();
        let dump = DumpFile::new(file).unwrap();
        assert!(dump.has_content(0, 4096) && dump.has_content((1 << 39) - 8192, 16384));
        assert!(!dump.has_content(1 << 30, 1 << 30) && !dump.has_content((1 << 40) - 4096, 4096));
    }
}
