//! The ledger: which threads are boosted just now, and what they had before.
//!
//! Problem.   A daemon that is killed can't take its boosts back.
//! Mechanism. Each boost is written down first, in a file of `/run` that is mapped into memory: a few stores,
//!            no system call. The file outlives its writer. So the watcher (`watcher.rs`) reads it when the
//!            daemon is dead, and the next start when both are. A lock on it keeps a second daemon out.
//! Races.     Watcher and next start may give the same thread back: the second one finds it ordinary, and
//!            leaves it. A thread ID that another thread has by now is told by the time of its start.

use crate::HostError;
use crate::beside::threads::{self, Former, Now};
use rustix::fs::FlockOperation;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Where it is kept: gone with the boot, as boosts are.
pub const PATH: &str = "/run/microslice/boosts";

/// More threads are never boosted at a time.
pub const PLACES: usize = 256;

/// One boost. All zeros: none.
#[repr(C)]
struct Place {
    /// 1: the thread may be boosted.
    taken: AtomicU32,
    tid: AtomicU32,
    start_ns: AtomicU64,
    policy: AtomicU32,
    nice: AtomicU32,
    slice_ns: AtomicU64,
    resets_on_fork: AtomicU32,
    reserved: AtomicU32,
}

const BYTES: usize = size_of::<[Place; PLACES]>();

/// A thread, and what it is to get back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub tid: u32,
    /// When it was started, in nanoseconds of the boot clock.
    pub start_ns: u64,
    pub former: Former,
}

/// The mapped file.
pub struct Ledger {
    places: NonNull<[Place; PLACES]>,
    file: File,
}

// SAFETY: all that the pointer leads to is atomic, and stays mapped while the ledger lives.
unsafe impl Send for Ledger {}
// SAFETY: likewise.
unsafe impl Sync for Ledger {}

impl Ledger {
    /// The daemon's: locked for as long as it is open.
    ///
    /// # Errors
    /// Another daemon has it, or the file can't be made.
    pub fn lock(path: &Path) -> Result<Self, HostError> {
        let ledger = Self::open(path)?;
        rustix::fs::flock(&ledger.file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            HostError::refused(format!(
                "{}: another `microslice run --scheduler beside` runs here",
                path.display()
            ))
        })?;
        Ok(ledger)
    }

    /// The watcher's.
    ///
    /// # Errors
    /// The file can't be made or mapped.
    pub fn open(path: &Path) -> Result<Self, HostError> {
        let failed = |cause: std::io::Error| HostError::broken(format!("{}: {cause}", path.display()));
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        // Nobody but root may say which threads are given which priority.
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW);
        Self::map(options.open(path).map_err(failed)?).map_err(failed)
    }

    /// One that nobody else finds: of boosts of threads that die with this process.
    ///
    /// # Errors
    /// There is no memory.
    pub fn of_our_own() -> Result<Self, HostError> {
        let file = rustix::fs::memfd_create("boosts", rustix::fs::MemfdFlags::CLOEXEC);
        file.map_err(std::io::Error::from)
            .and_then(|file| Self::map(file.into()))
            .map_err(|cause| HostError::broken(format!("a ledger in memory: {cause}")))
    }

    fn map(file: File) -> std::io::Result<Self> {
        file.set_len(BYTES as u64)?;
        // SAFETY: a new mapping of a file that is BYTES long; nobody else knows its address.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(memory.cast()) {
            Some(places) if memory != libc::MAP_FAILED => Ok(Self { places, file }),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    fn places(&self) -> &[Place; PLACES] {
        // SAFETY: mapped, aligned to a page, of this size, and atomic throughout.
        unsafe { self.places.as_ref() }
    }

    /// Writes a boost down, before it is made. Its place; none: there is no room. Only one thread of the
    /// daemon does this.
    pub fn enter(&self, entry: Entry) -> Option<usize> {
        let at = self.places().iter().position(|place| place.taken.load(Ordering::Relaxed) == 0)?;
        let place = &self.places()[at];
        place.tid.store(entry.tid, Ordering::Relaxed);
        place.start_ns.store(entry.start_ns, Ordering::Relaxed);
        place.policy.store(entry.former.policy, Ordering::Relaxed);
        place.nice.store(entry.former.nice as u32, Ordering::Relaxed);
        place.slice_ns.store(entry.former.slice_ns, Ordering::Relaxed);
        place.resets_on_fork.store(u32::from(entry.former.resets_on_fork), Ordering::Relaxed);
        // Last: a reader after our death finds the rest complete.
        place.taken.store(1, Ordering::Release);
        Some(at)
    }

    /// The boost in this place is taken back.
    pub fn strike(&self, at: usize) {
        self.places()[at].taken.store(0, Ordering::Release);
    }

    fn entry(&self, at: usize) -> Option<Entry> {
        let place = &self.places()[at];
        (place.taken.load(Ordering::Acquire) == 1).then(|| Entry {
            tid: place.tid.load(Ordering::Relaxed),
            start_ns: place.start_ns.load(Ordering::Relaxed),
            former: Former {
                policy: place.policy.load(Ordering::Relaxed),
                nice: place.nice.load(Ordering::Relaxed) as i32,
                slice_ns: place.slice_ns.load(Ordering::Relaxed),
                resets_on_fork: place.resets_on_fork.load(Ordering::Relaxed) != 0,
            },
        })
    }

    /// Its writer is dead: takes all boosts back that are left. Returns how many threads that were.
    pub fn settle(&self) -> usize {
        let mut given_back = 0;
        for at in 0..PLACES {
            let Some(entry) = self.entry(at) else { continue };
            given_back += usize::from(
                threads::is_the_one(entry.tid, entry.start_ns)
                    && matches!(threads::look_at(entry.tid), Ok(Now::Boosted))
                    && threads::make_ordinary(entry.tid, entry.former).is_ok(),
            );
            self.strike(at);
        }
        given_back
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // SAFETY: the mapping that open() made, which nobody has a reference into any more.
        unsafe { libc::munmap(self.places.as_ptr().cast(), BYTES) };
    }
}

/// The default place.
pub fn path() -> PathBuf {
    PathBuf::from(PATH)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMER: Former = Former { policy: 3, nice: -4, resets_on_fork: false, slice_ns: 0 };

    #[test]
    fn entries_are_read_by_the_next_process_that_opens_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/boosts");
        let written = Ledger::lock(&path).unwrap();
        let entry = |tid| Entry { tid, start_ns: 77, former: FORMER };
        assert_eq!((written.enter(entry(5)), written.enter(entry(6))), (Some(0), Some(1)));
        written.strike(0);
        let read = Ledger::open(&path).unwrap();
        assert_eq!((read.entry(0), read.entry(1)), (None, Some(entry(6))));
        drop(written);
        // No such thread was started then: nobody is given back, and the place is free again.
        assert_eq!((read.settle(), read.entry(1)), (0, None));
    }

    #[test]
    fn a_second_daemon_is_refused_until_the_first_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("boosts");
        let first = Ledger::lock(&path).unwrap();
        assert!(Ledger::lock(&path).err().unwrap().is_refusal());
        drop(first);
        assert!(Ledger::lock(&path).is_ok());
    }

    #[test]
    fn a_full_ledger_has_no_place() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::lock(&folder.path().join("boosts")).unwrap();
        let entry = Entry { tid: 1, start_ns: 0, former: FORMER };
        assert!((0..PLACES).all(|at| ledger.enter(entry) == Some(at)));
        assert_eq!(ledger.enter(entry), None);
        ledger.strike(9);
        assert_eq!(ledger.enter(entry), Some(9));
    }

    #[test]
    fn only_threads_left_boosted_are_given_back() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::lock(&folder.path().join("boosts")).unwrap();
        std::thread::spawn(move || {
            // SAFETY: a plain system call without arguments.
            let tid = unsafe { libc::gettid() } as u32;
            let stat = std::fs::read_to_string(format!("/proc/{tid}/stat")).unwrap();
            let ticks: u64 =
                stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap();
            let Ok(Now::Ordinary(former)) = threads::look_at(tid) else { panic!("a test is ordinary") };
            let entry = Entry { tid, start_ns: ticks * 10_000_000, former };
            ledger.enter(entry).unwrap();
            assert_eq!(ledger.settle(), 0);
            if threads::make_real_time(tid, threads::BOOST_PRIORITY).is_ok() {
                ledger.enter(Entry { start_ns: entry.start_ns + 20_000_000, ..entry }).unwrap();
                assert_eq!(ledger.settle(), 0, "another thread's number");
                ledger.enter(entry).unwrap();
                assert_eq!(ledger.settle(), 1);
            }
            assert!(matches!(threads::look_at(tid), Ok(Now::Ordinary(_))));
        })
        .join()
        .unwrap();
    }
}
