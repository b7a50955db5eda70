//! Progress of long work on standard error, and Ctrl-C.

use crate::failure::Failure;
use crate::interrupt;
use microslice_sim::batch::BatchProgress;
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Work that is over sooner says nothing.
const QUIET_FOR: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(50);
const TERMINAL_INTERVAL: Duration = Duration::from_millis(250);
/// Log files get a line now and then instead of a moving one.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Shows a batch's progress until it is dropped.
pub struct ProgressLine {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressLine {
    /// Starts showing; `what` is what is being done ("simulating gmake-swaptions").
    pub fn show(what: String, progress: Arc<BatchProgress>) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let watched = over.clone();
        let thread = std::thread::spawn(move || draw(&what, &progress, &watched));
        Self { over, thread: Some(thread) }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic there only cost the display.
            let _ = thread.join();
        }
    }
}

fn draw(what: &str, progress: &BatchProgress, over: &AtomicBool) {
    let terminal = std::io::stderr().is_terminal();
    let interval = if terminal { TERMINAL_INTERVAL } else { LOG_INTERVAL };
    let begun = Instant::now();
    let mut next = QUIET_FOR;
    let mut drawn = false;
    while !over.load(Ordering::Relaxed) {
        std::thread::park_timeout(POLL);
        if begun.elapsed() < next {
            continue;
        }
        next = begun.elapsed() + interval;
        drawn = true;
        let (done, jobs, share) = progress.read();
        let runs = if jobs > 1 { format!(", {done} of {jobs} runs") } else { String::new() };
        let line = format!("{what}: {:.0} %{runs}, {:.0} s", share * 100.0, begun.elapsed().as_secs_f64());
        // Without a place to show progress there is nobody to miss it.
        let _ = if terminal {
            write!(std::io::stderr(), "\r\x1b[2K{line}")
        } else {
            writeln!(std::io::stderr(), "{line}")
        };
    }
    if drawn && terminal {
        let _ = write!(std::io::stderr(), "\r\x1b[2K");
    }
}

/// A batch that Ctrl-C stops: runs end soon, files that aren't complete are removed.
pub fn stoppable() -> Result<Arc<BatchProgress>, Failure> {
    let progress = Arc::new(BatchProgress::default());
    let stopped = progress.clone();
    interrupt::on_signal(Some(interrupt::GRACE), move || stopped.stop())?;
    Ok(progress)
}
