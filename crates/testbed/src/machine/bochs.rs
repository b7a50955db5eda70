//! Bochs of Debian's stable release, with every library that it needs and what makes a CD of a kernel, in the
//! cache.

use crate::cache::Cache;
use crate::emulator::{LIBRARIES, LOADER};
use crate::packages::{Archive, is_complete};
use crate::{Result, say};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Its Bochs is 3.0. Older and newer ones don't get Debian's 6.18 through its boot
/// (docs/explanation/testbed.md).
const RELEASE: &str = "trixie";
/// The program with a display that needs none of ours, its firmware, the terminal's description, and the CD's
/// boot loader.
const PACKAGES: [&str; 8] =
    ["bochs", "bochs-term", "bochsbios", "vgabios", "ncurses-base", "isolinux", "syslinux-common", "xorriso"];

/// An unpacked tree of these packages.
#[derive(Debug, Clone)]
pub struct Bochs {
    root: PathBuf,
}

impl Bochs {
    /// From the cache, else fetched.
    pub fn obtain(cache: &Cache) -> Result<Self> {
        let root = cache.directory("bochs")?.join(RELEASE);
        if !is_complete(&root) {
            let _lock = cache.lock("bochs", Duration::from_secs(1800))?;
            if !is_complete(&root) {
                say("fetching Bochs and its libraries");
                let archive = Archive::open(cache)?;
                archive.refresh()?;
                archive.unpack_with_dependencies(RELEASE, &PACKAGES, &root)?;
            }
        }
        Ok(Self { root })
    }

    /// A file of the tree.
    pub fn file(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// The emulator: nothing of it is installed. It draws a terminal's screen, which nobody looks at.
    pub fn command(&self) -> Command {
        let mut command = self.program("bochs-bin");
        command.env("LTDL_LIBRARY_PATH", self.root.join(LIBRARIES).join("bochs/plugins"));
        command.env("BXSHARE", self.root.join("usr/share/bochs"));
        command.env("TERM", "vt100").env("TERMINFO", self.root.join("usr/share/terminfo"));
        command
    }

    /// What writes CDs.
    pub fn cd_writer(&self) -> Command {
        self.program("xorriso")
    }

    /// Through the tree's own loader.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.root.join(LOADER));
        command.arg("--library-path").arg(self.root.join(LIBRARIES));
        command.arg(self.root.join("usr/bin").join(name));
        command
    }
}
