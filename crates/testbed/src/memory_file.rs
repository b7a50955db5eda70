//! Files without a name: they vanish with the processes that have them open, and nothing is left behind.

use crate::{Error, Result};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::FileExt;

/// A file in memory that child processes can open by [`MemoryFile::path`].
pub struct MemoryFile {
    file: File,
}

impl MemoryFile {
    pub fn new(content: &[u8]) -> Result<Self> {
        // SAFETY: the name is a valid C string; the result is checked before it is owned.
        let fd = unsafe { libc::memfd_create(c"microslice".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(Error::file("memfd", std::io::Error::last_os_error()));
        }
        // SAFETY: `fd` was just created and belongs to nobody else.
        let mut file = unsafe { File::from_raw_fd(fd) };
        file.write_all(content).map_err(|cause| Error::file("memfd", cause))?;
        Ok(Self { file })
    }

    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Its path in a process that inherited the descriptor.
    pub fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.fd())
    }

    /// Its path in any other process, as long as this one lives.
    pub fn path_for_others(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.fd())
    }

    /// The last `length` bytes that were written.
    pub fn tail(&self, length: u64) -> String {
        let size = self.file.metadata().map_or(0, |meta| meta.len());
        let from = size.saturating_sub(length);
        let mut bytes = vec![0; usize::try_from(size - from).unwrap_or(0)];
        let read = self.file.read_at(&mut bytes, from).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..read]).into_owned()
    }
}
