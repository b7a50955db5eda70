//! A directory of symbol tables, found by build ID or release.
//!
//! ```text
//! STORE/build-id/<hex>.symbols      one table a kernel build
//! STORE/release/<release>.symbols   link to the build imported last; without build ID: the table itself
//! ```
//! A table is written to a temporary file beside its place and renamed: a reader sees the old one or the new
//! one. Tables are read, not mapped: a file that someone truncates under a reader is then an error and not a
//! SIGBUS in the scheduler.

#[cfg(feature = "debuginfod")]
pub mod debuginfod;
pub mod format;
mod staging;

pub use staging::Staging;

use crate::{Cause, Error, Identity, Place, SymbolTable};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

const SUFFIX: &str = "symbols";
/// Most tables that [`Store::list`] reads.
const TABLES_MAX: usize = 10_000;
const KEY_BYTES_MAX: usize = 128;

/// A symbol store. Nothing is created before the first table is put.
#[derive(Debug, Clone)]
pub struct Store {
    directory: PathBuf,
}

/// A kernel from the store.
#[derive(Debug)]
pub struct StoredKernel {
    pub symbols: SymbolTable,
    /// Linked addresses of the `hlt` instructions of the image, rising; empty if it came without its bytes.
    pub halt_sites: Vec<u64>,
    pub path: PathBuf,
}

impl Store {
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Can a kernel of this identity be filed?
    ///
    /// # Errors
    /// It has neither a build ID nor a release that could name a file.
    pub fn check(&self, identity: &Identity) -> Result<(), Error> {
        let release = identity.release.as_deref();
        match release {
            _ if identity.build_id.as_deref().is_some_and(is_build_id) => Ok(()),
            Some(release) if is_key(release) => Ok(()),
            Some(release) => Err(Error::new(Place::Whole, Cause::Malformed(unusable(release)))),
            None => Err(Error::no_symbols("neither build ID nor release: nothing to file the kernel under")),
        }
    }

    /// Puts a table in, replacing the one of the same build. Returns where it is.
    ///
    /// # Errors
    /// A kernel without build ID and release; a directory that can't be written.
    pub fn put(&self, symbols: &SymbolTable, halt_sites: &[u64]) -> Result<PathBuf, Error> {
        let mut staging = self.stage();
        let path = staging.add(symbols, halt_sites)?;
        staging.commit().map(|()| path)
    }

    /// Can tables be put in? Nothing is created.
    ///
    /// # Errors
    /// The directory that this user may not write to, or nobody.
    pub fn check_writable(&self) -> Result<(), Error> {
        for folder in ["build-id", "release"].map(|folder| self.directory.join(folder)) {
            // What isn't there yet is made in the nearest one that is.
            let Some(there) = folder.ancestors().find(|at| at.as_os_str().is_empty() || at.exists()) else {
                continue;
            };
            let there = if there.as_os_str().is_empty() { Path::new(".") } else { there };
            let rights = Access::WRITE_OK | Access::EXEC_OK;
            accessat(CWD, there, rights, AtFlags::EACCESS)
                .map_err(|error| Error::io(&error.into()).of(there.display()))?;
        }
        Ok(())
    }

    /// Begins to put several tables in, all or none.
    pub fn stage(&self) -> Staging<'_> {
        Staging::new(self)
    }

    /// The kernel with this build ID, or else this release; `None` if it isn't stored.
    ///
    /// # Errors
    /// A stored table that is damaged, or that is of another build than it is filed under.
    pub fn get(&self, identity: &Identity) -> Result<Option<StoredKernel>, Error> {
        if let Some(build_id) = identity.build_id.as_deref().filter(|id| is_build_id(id)) {
            let stored = self.read_if_there(&self.path_of("build-id", build_id))?;
            if let Some(stored) = stored {
                return checked(stored, identity).map(Some);
            }
        }
        let Some(release) = identity.release.as_deref().filter(|release| is_key(release)) else {
            return Ok(None);
        };
        let stored = self.read_if_there(&self.path_of("release", release))?;
        Ok(stored.filter(|stored| identity.disagreements(stored.symbols.identity()).is_empty()))
    }

    /// The kernel with this build ID or release, whichever `key` is.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn find(&self, key: &str) -> Result<Option<StoredKernel>, Error> {
        let by_build = Identity { build_id: Some(key.to_lowercase()), ..Identity::default() };
        match self.get(&by_build)? {
            Some(stored) => Ok(Some(stored)),
            None => self.get(&Identity { release: Some(key.to_owned()), ..Identity::default() }),
        }
    }

    /// Every stored table, by path, each read when its turn comes; a damaged one as its error, and so a
    /// folder that can't be read.
    pub fn list(&self) -> impl Iterator<Item = Result<StoredKernel, Error>> + use<> {
        let (mut paths, mut failures) = (Vec::new(), Vec::new());
        let mut note = |folder: &Path, error: &io::Error| {
            if error.kind() != io::ErrorKind::NotFound {
                failures.push(Error::io(error).of(folder.display()));
            }
        };
        match fs::read_dir(&self.directory) {
            Err(error) => note(&self.directory, &error),
            Ok(_) => {
                for folder in ["build-id", "release"].map(|folder| self.directory.join(folder)) {
                    match tables_in(&folder) {
                        Ok(found) => paths.extend(found),
                        Err(error) => note(&folder, &error),
                    }
                }
            }
        }
        paths.sort();
        failures.into_iter().map(Err).chain(paths.into_iter().map(|path| read(&path)))
    }

    fn path_of(&self, folder: &str, key: &str) -> PathBuf {
        self.directory.join(folder).join(format!("{key}.{SUFFIX}"))
    }

    fn read_if_there(&self, path: &Path) -> Result<Option<StoredKernel>, Error> {
        if path.exists() { read(path).map(Some) } else { Ok(None) }
    }
}

/// Files only: a link leads to a table that is listed under its build ID.
fn tables_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let files = fs::read_dir(folder)?
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
        .map(|entry| entry.path());
    Ok(files
        .filter(|path| path.extension().is_some_and(|suffix| suffix == SUFFIX))
        .take(TABLES_MAX)
        .collect())
}

fn read(path: &Path) -> Result<StoredKernel, Error> {
    let read = || {
        let file = crate::open_to_end(path).map_err(|error| Error::io(&error))?;
        let size =
            file.metadata().map_err(|error| Error::io(&error))?.len().min(format::TABLE_BYTES_MAX as u64);
        let mut bytes = Vec::with_capacity(size as usize + 1);
        file.take(format::TABLE_BYTES_MAX as u64 + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| Error::io(&error))?;
        format::decode(&bytes)
    };
    let (symbols, halt_sites) = read().map_err(|error| error.of(path.display()))?;
    Ok(StoredKernel { symbols, halt_sites, path: path.to_owned() })
}

fn checked(stored: StoredKernel, wanted: &Identity) -> Result<StoredKernel, Error> {
    if stored.symbols.identity().build_id == wanted.build_id {
        return Ok(stored);
    }
    let found = stored.symbols.identity().build_id.as_deref().unwrap_or("none");
    let cause = Cause::Disagreement(format!(
        "filed under another build ID than its own ({found}): import the kernel again"
    ));
    Err(Error::new(Place::Whole, cause).of(stored.path.display()))
}

fn is_build_id(text: &str) -> bool {
    (2..=KEY_BYTES_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Why [`is_key`] says no.
fn unusable(release: &str) -> String {
    let shown: String = release.chars().take(60).collect();
    format!(
        "release {shown:?} can't name a file: 1 to {KEY_BYTES_MAX} letters, digits and ._+-~, no dot in front"
    )
}

/// A release names a file: a guest says it, so it may hold no separator and not start with a dot.
fn is_key(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._+-~".contains(&byte);
    (1..=KEY_BYTES_MAX).contains(&text.len()) && text.bytes().all(plain) && !text.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SymbolTableBuilder;
    use std::os::unix::fs::PermissionsExt;

    fn kernel(release: Option<&str>, build_id: Option<&str>) -> SymbolTable {
        let mut builder = SymbolTableBuilder::new();
        builder.push(0x1000, 'T', "_text").unwrap();
        builder.finish(Identity {
            release: release.map(Into::into),
            build_id: build_id.map(Into::into),
            banner: None,
        })
    }

    #[test]
    fn a_kernel_is_found_by_build_id_and_by_release() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path());
        assert!(store.find("6.1.0").unwrap().is_none());
        store.put(&kernel(Some("6.1.0"), Some("ab12")), &[0x1004]).unwrap();
        for key in ["6.1.0", "ab12", "AB12"] {
            let stored = store.find(key).unwrap().unwrap();
            assert_eq!(stored.halt_sites, [0x1004], "{key}");
        }
        assert_eq!(store.list().count(), 1, "a link isn't a second kernel");
    }

    #[test]
    fn the_next_import_removes_what_a_killed_one_left() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("build-id");
        fs::create_dir_all(&folder).unwrap();
        let [left, of_another] = [".new-left", ".new-another"].map(|name| folder.join(name));
        fs::write(&of_another, "").unwrap();
        let two_hours = std::time::Duration::from_secs(7200);
        let long_ago = std::time::SystemTime::now() - two_hours;
        fs::File::create(&left).unwrap().set_modified(long_ago).unwrap();
        Store::new(directory.path()).put(&kernel(None, Some("ab12")), &[]).unwrap();
        assert!(!left.exists() && of_another.exists());
    }

    #[test]
    fn a_rebuilt_kernel_of_one_release_is_told_by_its_build_id() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path());
        store.put(&kernel(Some("6.1.0"), Some("aa")), &[]).unwrap();
        store.put(&kernel(Some("6.1.0"), Some("bb")), &[]).unwrap();
        let of = |build_id: &str| Identity {
            release: Some("6.1.0".into()),
            build_id: Some(build_id.into()),
            banner: None,
        };
        assert_eq!(store.get(&of("aa")).unwrap().unwrap().symbols.identity().build_id.as_deref(), Some("aa"));
        assert!(
            store.get(&of("cc")).unwrap().is_none(),
            "another build of the same release is another kernel"
        );
        assert_eq!(store.list().count(), 2);
    }

    #[test]
    fn a_table_filed_under_anothers_name_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path());
        let path = store.put(&kernel(None, Some("aa")), &[]).unwrap();
        fs::rename(&path, path.with_file_name("bb.symbols")).unwrap();
        let error = store.find("bb").unwrap_err().to_string();
        assert!(error.contains("bb.symbols: filed under another build ID than its own (aa)"), "{error}");
    }

    #[test]
    fn a_release_that_is_a_path_names_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path().join("store"));
        for release in ["../escape", "/etc/x", ".hidden", "a/b", ""] {
            assert!(store.put(&kernel(Some(release), None), &[]).is_err(), "{release:?}");
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "nothing was created");
    }

    #[test]
    fn of_several_tables_none_is_stored_before_all_are_and_none_if_one_cannot_be() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path());
        fs::create_dir_all(directory.path().join("release/6.2.symbols")).unwrap();
        let mut staging = store.stage();
        staging.add(&kernel(Some("6.1"), Some("aa")), &[]).unwrap();
        assert!(store.find("6.1").unwrap().is_none());
        let error = staging.add(&kernel(Some("6.2"), None), &[]).unwrap_err().to_string();
        assert!(error.ends_with("release/6.2.symbols: is a directory"), "{error}");
        drop(staging);
        assert_eq!(fs::read_dir(directory.path().join("build-id")).unwrap().count(), 0, "no scratch is left");
    }

    #[test]
    fn a_folder_that_is_none_is_listed_as_an_error() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("build-id"), "").unwrap();
        let listed: Vec<_> =
            Store::new(directory.path()).list().map(|table| table.unwrap_err().to_string()).collect();
        assert!(matches!(&listed[..], [one] if one.contains("build-id: Not a directory")), "{listed:?}");
    }

    #[test]
    fn a_store_that_cannot_be_written_is_known_before() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path().join("new/store"));
        store.check_writable().unwrap();
        assert!(!directory.path().join("new").exists());
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o555)).unwrap();
        // SAFETY: a plain system call without arguments.
        let is_root = unsafe { libc::geteuid() } == 0;
        match store.check_writable() {
            Ok(()) => assert!(is_root, "root may write everywhere but on read-only file systems"),
            Err(error) => assert!(error.to_string().starts_with(&directory.path().display().to_string())),
        }
    }

    #[test]
    fn a_damaged_table_is_listed_as_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path());
        let path = store.put(&kernel(None, Some("aa")), &[]).unwrap();
        fs::write(&path, b"MSLSYM01 but no more").unwrap();
        assert!(store.list().all(|listed| listed.is_err()));
        assert!(store.find("aa").unwrap_err().to_string().contains("aa.symbols"));
    }
}
