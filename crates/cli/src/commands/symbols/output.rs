//! Results on standard output, progress on standard error.

use crate::failure::Failure;
use crate::output::printed;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::time::{Duration, Instant};

/// Writes results. A reader that has seen enough (`| head`) isn't a failure.
pub fn to_stdout(
    write: impl FnOnce(&mut BufWriter<StdoutLock<'_>>) -> io::Result<()>,
) -> Result<(), Failure> {
    let mut out = BufWriter::with_capacity(256 << 10, io::stdout().lock());
    printed(write(&mut out).and_then(|()| out.flush()))
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
