//! Files that are read to their end.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// A file that ends: a read that would have to wait for more fails.
#[derive(Debug)]
pub struct Input(File);

/// Opens a file, but no named pipe: that may take for ever. One that a shell made (`<(…)`) doesn't, and has
/// no path of its own.
///
/// # Errors
/// It is a named pipe, or can't be opened.
pub fn open(path: &Path) -> io::Result<Input> {
    if !std::fs::metadata(path)?.file_type().is_fifo() {
        // Some files of the kernel's (/proc/kmsg) are regular ones, and a read of them waits for more.
        return File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).map(Input);
    }
    if std::fs::canonicalize(path).is_ok() {
        return Err(io::Error::other("is a named pipe, not a file"));
    }
    File::open(path).map(Input)
}

impl Input {
    pub fn metadata(&self) -> io::Result<std::fs::Metadata> {
        self.0.metadata()
    }
}

impl Read for Input {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => io::Error::other("isn't a file that ends: more may come"),
            _ => error,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_never_end_is_refused_at_once() {
        let mut text = String::new();
        // Nobody writes to the other side of this terminal.
        let error = open(Path::new("/dev/ptmx")).and_then(|mut file| file.read_to_string(&mut text));
        assert_eq!(error.expect_err("refused").to_string(), "isn't a file that ends: more may come");
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        open(&own).and_then(|mut file| file.read_to_string(&mut text)).expect("it ends");
        assert!(text.contains("microslice-metrics"));
    }
}
