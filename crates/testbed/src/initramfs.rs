//! Root file systems as cpio archives (the "newc" format that the kernel unpacks at boot).

use crate::{Error, Result};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

const DIRECTORY: u32 = 0o040_755;
const EXECUTABLE: u32 = 0o100_755;
const SYMLINK: u32 = 0o120_777;

/// An archive under construction. Parent directories come by themselves.
#[derive(Default)]
pub struct Initramfs {
    data: Vec<u8>,
    directories: BTreeSet<String>,
    entries: u32,
}

impl Initramfs {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an executable file at `path` (relative to the root).
    pub fn file(&mut self, path: &str, content: &[u8]) -> &mut Self {
        self.parents(path);
        self.entry(path, EXECUTABLE, content);
        self
    }

    /// Adds the file `from` of this machine at `path`.
    pub fn file_from(&mut self, path: &str, from: &Path) -> Result<&mut Self> {
        let content = fs::read(from).map_err(|cause| Error::file(from, cause))?;
        Ok(self.file(path, &content))
    }

    /// Likewise a program, without its debug information: that is most of it, and would take memory there.
    pub fn program_from(&mut self, path: &str, from: &Path) -> Result<&mut Self> {
        let scratch = tempfile::tempdir().map_err(|cause| Error::file(std::env::temp_dir(), cause))?;
        let stripped = scratch.path().join("stripped");
        let mut strip = Command::new("strip");
        let output = strip.arg("--strip-debug").arg("-o").arg(&stripped).arg(from).output();
        // Without binutils the program goes as it is.
        let is_stripped = output.is_ok_and(|output| output.status.success());
        self.file_from(path, if is_stripped { &stripped } else { from })
    }

    pub fn directory(&mut self, path: &str) -> &mut Self {
        self.parents(path);
        if self.directories.insert(path.to_owned()) {
            self.entry(path, DIRECTORY, b"");
        }
        self
    }

    pub fn symlink(&mut self, path: &str, target: &str) -> &mut Self {
        self.parents(path);
        self.entry(path, SYMLINK, target.as_bytes());
        self
    }

    /// The finished archive.
    pub fn finish(self) -> Vec<u8> {
        cpio::newc::trailer(self.data).expect("writing to memory can't fail")
    }

    fn parents(&mut self, path: &str) {
        for (at, _) in path.match_indices('/') {
            let parent = &path[..at];
            if self.directories.insert(parent.to_owned()) {
                self.entry(parent, DIRECTORY, b"");
            }
        }
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let size = u32::try_from(content.len()).expect("files of a root in memory are far below 4 GiB");
        let entry = cpio::newc::Builder::new(path).ino(self.entries).nlink(1).mode(mode);
        let mut writer = entry.write(&mut self.data, size);
        writer
            .write_all(content)
            .and_then(|()| writer.finish().map(drop))
            .expect("writing to memory can't fail");
    }
}
