//! Ctrl-C and SIGTERM: a command ends soon, whatever it is busy with, and leaves no unfinished file behind.

use crate::failure::Failure;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// Work that looks at its flag ends within milliseconds. What is busy for longer waits for a pipe that nobody
/// reads, or simulates a great deal that happens at one instant.
pub const GRACE: Duration = Duration::from_millis(800);
/// Nobody presses Ctrl-C again so soon for want of an effect.
const ECHO: Duration = Duration::from_millis(500);
/// Standard error may be a pipe that nobody empties.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Files that have no useful content yet.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static UNDISTURBED: Mutex<()> = Mutex::new(());

/// Calls `stop` at the first signal, and ends the process if it is still there when `grace` is over, if there
/// is one. A second signal ends it at once.
pub fn on_signal(grace: Option<Duration>, stop: impl Fn() + Send + 'static) -> Result<(), Failure> {
    let mut first = None;
    let handler = move || {
        let now = Instant::now();
        match first {
            None => first = Some(now),
            Some(first) if is_echo(first, now) => return,
            Some(_) => end(),
        }
        stop();
        if let Some(grace) = grace {
            let end_late = move || {
                std::thread::sleep(grace);
                let _done = lock(&UNDISTURBED);
                end()
            };
            if std::thread::Builder::new().spawn(end_late).is_err() {
                end_late();
            }
        }
    };
    ctrlc::set_handler(handler).map_err(|error| match error {
        ctrlc::Error::System(cause) => no_thread(&cause),
        error => Failure::broken(error),
    })
}

/// Why nothing can be begun when the system refuses to make a thread.
pub fn no_thread(cause: &std::io::Error) -> Failure {
    Failure::bad_input(format_args!(
        "no thread can be made ({cause}): raise `ulimit -u`, or pids.max of the control group"
    ))
}

/// Beyond `ulimit -f` a write shall fail as on a full disk: the signal would end the process and leave its
/// temporary file.
pub fn survive_file_size_limit() {
    // SAFETY: no handler is installed, and no other thread is there yet.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// `timeout` and `sudo` send a signal to the command and to its process group: the command has it twice.
fn is_echo(first: Instant, now: Instant) -> bool {
    now.duration_since(first) < ECHO
}

/// Work of which no half may be left: a first signal's grace doesn't end within it.
pub fn undisturbed<T>(work: impl FnOnce() -> T) -> T {
    let _during = lock(&UNDISTURBED);
    work()
}

/// A file that is removed if the process has to end while this is there.
pub struct Unfinished(PathBuf);

impl Unfinished {
    pub fn file(path: &Path) -> Self {
        lock(&UNFINISHED).push(path.to_owned());
        Self(path.to_owned())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        lock(&UNFINISHED).retain(|path| *path != self.0);
    }
}

fn end() -> ! {
    // Kept to the end: nobody else ends the process, too, and no file is finished any more.
    let unfinished = lock(&UNFINISHED);
    for path in unfinished.iter() {
        let _ = std::fs::remove_file(path);
    }
    let (said, heard) = mpsc::channel();
    let last_words = std::thread::Builder::new().spawn(move || {
        clear_progress();
        let code = Failure::interrupted().report();
        said.send(code)
    });
    if last_words.is_ok() {
        let _ = heard.recv_timeout(LAST_WORDS);
    }
    std::process::exit(Failure::INTERRUPTED.into())
}

/// A progress line has no end of its own.
fn clear_progress() {
    let mut out = std::io::stderr();
    if out.is_terminal() {
        let _ = write!(out, "\r\x1b[2K");
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_arrives_twice_is_one_and_a_later_one_is_another() {
        let first = Instant::now();
        assert!(is_echo(first, first + Duration::from_millis(20)));
        assert!(!is_echo(first, first + Duration::from_secs(1)));
    }
}
