//! The file of a trace: at any moment it consists of whole packets, and can be opened.

use crate::HostError;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// The bytes that are kept until they are written.
const BUFFER_BYTES: usize = 256 << 10;

/// Takes one whole packet with each write.
pub(super) struct TraceFile {
    file: File,
    buffer: Vec<u8>,
    /// How much of the file is whole packets.
    whole_bytes: u64,
}

impl TraceFile {
    /// Creates it, or empties the one that is there. A pipe that nobody reads would hold up the daemon: it is
    /// refused.
    pub fn create(path: &Path) -> Result<Self, HostError> {
        let failed = |cause: io::Error| HostError::refused(format!("{}: {cause}", path.display()));
        if std::fs::metadata(path).is_ok_and(|there| !there.is_file()) {
            return Err(HostError::refused(format!("{}: a trace needs a regular file", path.display())));
        }
        let file = File::create(path).map_err(failed)?;
        Ok(Self { file, buffer: Vec::with_capacity(BUFFER_BYTES), whole_bytes: 0 })
    }
}

impl Write for TraceFile {
    fn write(&mut self, packet: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(packet);
        if self.buffer.len() >= BUFFER_BYTES {
            self.flush()?;
        }
        Ok(packet.len())
    }

    /// On failure the file keeps what was whole before.
    fn flush(&mut self) -> io::Result<()> {
        let written = self.file.write_all(&self.buffer);
        match written {
            Ok(()) => self.whole_bytes += self.buffer.len() as u64,
            // That it can't be cut off is no worse than the failure itself.
            Err(_) => drop(self.file.set_len(self.whole_bytes)),
        }
        self.buffer.clear();
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_opened() {
        for path in ["/dev/null", "/", "/no/such/folder/trace"] {
            let refused = TraceFile::create(Path::new(path)).map(drop).unwrap_err();
            assert!(refused.is_refusal() && refused.to_string().starts_with(path), "{refused}");
        }
    }

    #[test]
    fn a_file_that_can_not_grow_keeps_the_packets_before() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("trace");
        let mut file = TraceFile::create(&path).expect("a file");
        file.write_all(b"whole").and_then(|()| file.flush()).expect("there is room");
        // A handle that may only read fails as a full disk does.
        file.file = File::open(&path).expect("it is there");
        file.write_all(b"half").expect("kept until it is written");
        assert!(file.flush().is_err());
        assert_eq!(std::fs::read(&path).expect("it is there"), b"whole");
    }
}
