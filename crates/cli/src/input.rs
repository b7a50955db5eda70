//! Files that commands read.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Opens a file, but no named pipe: that may take for ever. One that a shell made (`<(…)`) doesn't, and has
/// no path of its own.
///
/// # Errors
/// It is a named pipe, or can't be opened.
pub fn open(path: &Path) -> io::Result<File> {
    let is_pipe = std::fs::metadata(path)?.file_type().is_fifo();
    if is_pipe && std::fs::canonicalize(path).is_ok() {
        return Err(io::Error::other("is a named pipe, not a file"));
    }
    File::open(path)
}
