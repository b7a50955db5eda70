//! Results on standard output, progress on standard error.

use crate::failure::Failure;
use crate::output::printed;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::time::{Duration, Instant};

/// Writes results. A reader that has seen enough (`| head`) isn't a failure.
pub fn to_stdout(
    write: impl FnOnce(&mut BufWriter<Harmless<StdoutLock<'_>>>) -> io::Result<()>,
) -> Result<(), Failure> {
    let mut out = BufWriter::with_capacity(256 << 10, Harmless(io::stdout().lock()));
    printed(write(&mut out).and_then(|()| out.flush()))
}

/// A guest or a file says what its symbols are called: no byte of that commands the terminal.
pub struct Harmless<W>(W);

impl<W: Write> Write for Harmless<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let is_harmful = |byte: u8| byte.is_ascii_control() && byte != b'\n' && byte != b'\t';
        if !bytes.iter().any(|&byte| is_harmful(byte)) {
            return self.0.write(bytes);
        }
        let harmless: Vec<u8> =
            bytes.iter().map(|&byte| if is_harmful(byte) { b'?' } else { byte }).collect();
        self.0.write(&harmless)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Pretty-printed JSON and a line feed.
pub fn json(value: &serde_json::Value) -> Result<(), Failure> {
    to_stdout(|out| {
        serde_json::to_writer_pretty(&mut *out, value)?;
        writeln!(out)
    })
}

/// A line that appears when something takes longer than two seconds, and then once a second.
pub struct Progress {
    next: Instant,
    shown: bool,
}

impl Progress {
    pub fn new() -> Self {
        Self { next: Instant::now() + Duration::from_secs(2), shown: false }
    }

    pub fn show(&mut self, line: impl FnOnce() -> String) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + Duration::from_secs(1);
        let end = if io::stderr().is_terminal() { '\r' } else { '\n' };
        // Without a place to show progress there is nobody to miss it.
        let _ = write!(io::stderr(), "{}{end}", line());
        self.shown = true;
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown && io::stderr().is_terminal() {
            let _ = writeln!(io::stderr());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_command_a_terminal_are_shown_without_it() {
        let mut out = Harmless(Vec::new());
        out.write_all(b"ffff T a\x1b[2Jb\x7f\tc\n").expect("written");
        assert_eq!(out.0, b"ffff T a?[2Jb?\tc\n");
    }
}
