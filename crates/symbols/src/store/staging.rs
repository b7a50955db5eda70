//! Tables on their way into a store: all written beside their places, then all renamed.

use super::{SUFFIX, Store, format, is_build_id, is_key};
use crate::{Error, Identity, SymbolTable};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempPath;

/// What names of files begin with that are being written.
const NEW: &str = ".new-";
/// No import takes as long.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);

/// Tables that have no name yet. Dropped before [`Staging::commit`], it leaves none of them behind.
pub struct Staging<'s> {
    store: &'s Store,
    staged: Vec<(TempPath, PathBuf)>,
}

impl<'s> Staging<'s> {
    pub(super) fn new(store: &'s Store) -> Self {
        for folder in ["build-id", "release"] {
            remove_abandoned(&store.directory.join(folder));
        }
        Self { store, staged: Vec::new() }
    }

    /// Writes a table, which replaces the one of the same build when all are renamed. Returns where it will
    /// be.
    ///
    /// # Errors
    /// A kernel without build ID and release; a directory that can't be written.
    pub fn add(&mut self, symbols: &SymbolTable, halt_sites: &[u64]) -> Result<PathBuf, Error> {
        self.store.check(symbols.identity())?;
        let Identity { build_id, release, .. } = symbols.identity();
        let build_id = build_id.as_deref().filter(|build_id| is_build_id(build_id));
        let release = release.as_deref().filter(|release| is_key(release));
        let by_build = build_id.map(|build_id| self.store.path_of("build-id", build_id));
        let by_release = release.map(|release| self.store.path_of("release", release));
        let Some(place) = by_build.as_ref().or(by_release.as_ref()).cloned() else {
            unreachable!("check refused it")
        };
        self.stage(&place, |path| write_table(path, &format::encode(symbols, halt_sites)))?;
        if let (Some(build_id), Some(link)) = (build_id, &by_release) {
            self.stage(link, |path| symlink(format!("../build-id/{build_id}.{SUFFIX}"), path))?;
        }
        Ok(place)
    }

    /// Gives everything its name, one after the other: a reader sees each old table or the new one.
    ///
    /// # Errors
    /// A directory that has changed meanwhile.
    pub fn commit(self) -> Result<(), Error> {
        for (temporary, place) in self.staged {
            temporary.persist(&place).map_err(|error| io_error(&error.error, &place))?;
        }
        Ok(())
    }

    /// What would make renaming fail is found here.
    fn stage(&mut self, place: &Path, make: impl Fn(&Path) -> io::Result<()>) -> Result<(), Error> {
        let staged = || {
            let folder = place.parent().unwrap_or(&self.store.directory);
            fs::create_dir_all(folder)?;
            if fs::symlink_metadata(place).is_ok_and(|there| there.is_dir()) {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            tempfile::Builder::new().prefix(NEW).make_in(folder, &make)
        };
        let temporary = staged().map_err(|error| io_error(&error, place))?;
        self.staged.push((temporary.into_temp_path(), place.to_owned()));
        Ok(())
    }
}

/// Removes what an import that was killed has left in `folder`.
fn remove_abandoned(folder: &Path) {
    let is_abandoned = |entry: &fs::DirEntry| {
        let written = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
        entry.file_name().as_encoded_bytes().starts_with(NEW.as_bytes())
            && written().is_some_and(|age| age > ABANDONED_AFTER)
    };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten().filter(is_abandoned) {
        let _ = fs::remove_file(entry.path());
    }
}

fn write_table(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = fs::File::create_new(path)?;
    let written = file.write_all(bytes).and_then(|()| {
        // The scheduler may run as another user than the importing one.
        file.set_permissions(fs::Permissions::from_mode(0o644))?;
        file.sync_all()
    });
    if written.is_err() {
        let _ = fs::remove_file(path);
    }
    written
}

/// The system's reason and the table's own name, not the temporary one.
fn io_error(error: &io::Error, place: &Path) -> Error {
    let text = error.to_string();
    let reason = text.split(" at path \"").next().unwrap_or_default();
    Error::io(&io::Error::new(error.kind(), reason)).of(place.display())
}
