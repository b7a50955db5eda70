//! The watcher: a process of its own that takes boosts back once the daemon is dead.
//!
//! Mechanism. The daemon starts it before it loads anything, and holds the writing end of its standard input.
//!            However the daemon dies, the kernel closes that end, and the watcher settles the ledger. It
//!            ignores signals that ask to end, because those of a terminal or of systemd come for both. It is
//!            real-time, so that boosted threads don't keep it waiting.
//! Limits.    SIGKILL of both leaves what is boosted at that moment, until the next start or the next boot.

use crate::HostError;
use crate::beside::ledger::Ledger;
use crate::beside::threads::{self, WATCHER_PRIORITY};
use crate::beside::weight_ledger;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The hidden flag of `microslice run` that makes a process one.
pub const FLAG: &str = "--watch-boosts";

/// The line that it writes once it watches.
const READY: &[u8] = b"watching\n";

/// The daemon's handle of its watcher.
pub struct Watcher {
    process: Child,
    path: PathBuf,
}

impl Watcher {
    /// # Errors
    /// No process could be started, or it ended at once.
    pub fn start(path: &Path) -> Result<Self, HostError> {
        let failed = |cause: std::io::Error| HostError::broken(format!("no watcher of boosts: {cause}"));
        let mut command = Command::new("/proc/self/exe");
        command.args(["run", FLAG]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.process_group(0).spawn().map_err(failed)?;
        let mut said = [0; READY.len()];
        let heard = process.stdout.as_mut().map(|stdout| stdout.read_exact(&mut said));
        match heard {
            Some(Ok(())) if said == READY => Ok(Self { process, path: path.to_owned() }),
            _ => {
                let _ = process.kill();
                let _ = process.wait();
                Err(HostError::broken("no watcher of boosts: it ended at once"))
            }
        }
    }

    /// Starts another one if this one is dead. True if it was.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn replace_if_dead(&mut self) -> Result<bool, HostError> {
        if matches!(self.process.try_wait(), Ok(None)) {
            return Ok(false);
        }
        *self = Self::start(&self.path.clone())?;
        Ok(true)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // It finds nothing to take back, and ends.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// The life of the watcher: until the daemon is dead.
///
/// # Errors
/// The ledger can't be opened.
pub fn watch(path: &Path) -> Result<(), HostError> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: no handler is installed, so none can run.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let ledger = Ledger::open(path)?;
    threads::make_real_time(0, WATCHER_PRIORITY)
        .map_err(|cause| HostError::broken(format!("the watcher of boosts can't be real-time: {cause}")))?;
    let broken = |cause: std::io::Error| HostError::broken(format!("the watcher's pipe: {cause}"));
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(READY).and_then(|()| stdout.flush()).map_err(broken)?;
    // Nothing is ever written to it: this returns when the daemon is dead, whatever the kernel says then.
    let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
    ledger.settle();
    weight_ledger::settle(&weight_ledger::beside(path));
    Ok(())
}
