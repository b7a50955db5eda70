//! Where downloads are kept between runs, and the locks that let one testbed and one lab run at a time.

use crate::{Error, Result, say};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A directory of downloads: `apt/` (package lists), `kernels/`, `qemu/`. All of it may be deleted at any
/// time that no testbed runs.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// `$MICROSLICE_CACHE`, else `.cache` of the source tree that the current directory lies in, else
    /// `$XDG_CACHE_HOME/microslice` (`~/.cache/microslice`). Creates it.
    pub fn locate() -> Result<Self> {
        let root = match std::env::var_os("MICROSLICE_CACHE").filter(|root| !root.is_empty()) {
            Some(root) => PathBuf::from(root),
            None => source_tree().map(|tree| tree.join(".cache")).unwrap_or_else(user_cache),
        };
        Self::at(root)
    }

    /// A cache at `root`, created if need be.
    pub fn at(root: impl Into<PathBuf>) -> Result<Self> {
        let root = root.into();
        fs::create_dir_all(&root).map_err(|cause| Error::file(&root, cause))?;
        let root = root.canonicalize().map_err(|cause| Error::file(&root, cause))?;
        Ok(Self { root })
    }

    /// A directory inside, created if need be.
    pub fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.root.join(name);
        fs::create_dir_all(&path).map_err(|cause| Error::file(&path, cause))?;
        Ok(path)
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Takes the lock `name` alone, waiting up to `patience` for its holders. Freed when the value is
    /// dropped, or when the process dies in any way.
    pub fn lock(&self, name: &str, patience: Duration) -> Result<Lock> {
        self.take(name, libc::LOCK_EX, patience)
    }

    /// Takes the lock `name` together with all others that share it.
    pub fn share(&self, name: &str, patience: Duration) -> Result<Lock> {
        self.take(name, libc::LOCK_SH, patience)
    }

    fn take(&self, name: &str, kind: libc::c_int, patience: Duration) -> Result<Lock> {
        let path = self.root.join(format!("{name}.lock"));
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|cause| Error::file(&path, cause))?;
        let start = Instant::now();
        let mut told = false;
        // SAFETY: flock on a descriptor that `file` owns.
        while unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) } != 0 {
            let holder = holder_of(&mut file);
            if start.elapsed() >= patience {
                let (waited_s, lock) = (start.elapsed().as_secs(), path.display().to_string());
                let what = name.to_owned();
                return Err(Error::Busy { what, holder, waited_s, lock });
            }
            if !told {
                say(format_args!("waiting for another {name} ({holder}) to finish"));
                told = true;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        // The holder's pid is only a hint for waiters, so a failure to write it is no reason to stop.
        let _ = file.set_len(0);
        let _ = file.rewind();
        let _ = write!(file, "pid {}", std::process::id());
        Ok(Lock { _file: file })
    }
}

/// Held for as long as the value lives.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

fn holder_of(file: &mut File) -> String {
    let mut holder = String::new();
    let _ = file.rewind();
    let _ = file.take(64).read_to_string(&mut holder);
    if holder.is_empty() { "unknown".into() } else { holder }
}

/// The nearest directory upwards that is this project's source tree.
fn source_tree() -> Option<PathBuf> {
    let here = std::env::current_dir().ok()?;
    here.ancestors().find(|dir| dir.join("crates/testbed/Cargo.toml").is_file()).map(Path::to_owned)
}

fn user_cache() -> PathBuf {
    let home =
        || PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/var/cache".into())).join(".cache");
    std::env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from).join("microslice")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_refused_while_another_holds_it_and_granted_afterwards() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let cache = Cache::at(dir.path()).expect("cache");
        let held = cache.lock("testbed", Duration::ZERO).expect("first lock");
        let refused = cache.lock("testbed", Duration::ZERO).expect_err("second lock");
        assert!(refused.to_string().contains(&format!("pid {}", std::process::id())), "{refused}");
        drop(held);
        cache.lock("testbed", Duration::ZERO).expect("lock after release");
    }

    #[test]
    fn a_shared_lock_keeps_whoever_wants_it_alone_away() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let cache = Cache::at(dir.path()).expect("cache");
        let first = cache.share("testbed", Duration::ZERO).expect("first");
        let second = cache.share("testbed", Duration::ZERO).expect("second");
        cache.lock("testbed", Duration::ZERO).expect_err("alone beside two");
        drop((first, second));
        cache.lock("testbed", Duration::ZERO).expect("alone");
    }
}
