//! Progress of long work on standard error, and Ctrl-C. `indicatif` shows nothing where that is a file.

use crate::failure::Failure;
use crate::interrupt;
use crate::output::plain;
use microslice_experiments::batch::BatchProgress;
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

/// Shows how far long work is until it is dropped.
pub struct ProgressLine {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressLine {
    /// The same for a batch of simulations.
    pub fn of_batch(what: String, progress: Arc<BatchProgress>) -> Self {
        Self::show(what, move || {
            let (done, jobs, share) = progress.read();
            let runs = if jobs > 1 { format!(", {done} of {jobs} runs") } else { String::new() };
            Some(format!("{:.0} %{runs}", share * 100.0))
        })
    }

    /// Starts showing; `what` is what is being done ("simulating gmake-swaptions"), `how_far` how much of it
    /// is done, if that is known.
    pub fn show(what: String, how_far: impl Fn() -> Option<String> + Send + 'static) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let watched = over.clone();
        let thread = std::thread::Builder::new().spawn(move || draw(&what, &how_far, &watched));
        // Without a thread the work goes on, and isn't shown.
        Self { over, thread: thread.ok() }
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

fn draw(what: &str, how_far: &dyn Fn() -> Option<String>, over: &AtomicBool) {
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
        let how_far = how_far().map_or(String::new(), |how_far| format!("{how_far}, "));
        let line = plain(&format!("{what}: {how_far}{:.0} s", begun.elapsed().as_secs_f64()));
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
    stoppable_within(Some(interrupt::GRACE))
}

/// The same for work that has that long to end by itself, or as long as it takes.
pub fn stoppable_within(grace: Option<Duration>) -> Result<Arc<BatchProgress>, Failure> {
    let progress = Arc::new(BatchProgress::default());
    let stopped = progress.clone();
    interrupt::on_signal(grace, move || stopped.stop())?;
    Ok(progress)
}
