//! QEMU from Debian's backports with every library it needs, in the cache: independent of what this machine
//! runs.

use crate::cache::Cache;
use crate::packages::{Archive, is_complete};
use crate::{Error, Result, say};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The release whose QEMU runs on both levels. Its backports have 10.2 or newer, which fixed an SVM interrupt
/// race.
const RELEASE: &str = "trixie";

/// An unpacked tree that holds QEMU, its libraries and firmware, and busybox.
#[derive(Debug, Clone)]
pub struct Emulator {
    root: PathBuf,
}

/// Where Debian keeps libraries, relative to a root.
pub const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
pub const LOADER: &str = "usr/lib64/ld-linux-x86-64.so.2";

impl Emulator {
    /// From the cache, else fetched.
    pub fn obtain(cache: &Cache) -> Result<Self> {
        let root = cache.directory("qemu")?.join(RELEASE);
        if !is_complete(&root) {
            let _lock = cache.lock("qemu", Duration::from_secs(1800))?;
            if !is_complete(&root) {
                say("fetching QEMU and its libraries");
                let archive = Archive::open(cache)?;
                archive.refresh()?;
                archive.unpack_with_dependencies(RELEASE, &["qemu-system-x86", "busybox-static"], &root)?;
            }
        }
        Ok(Self { root })
    }

    /// The tree.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// QEMU on this machine, through the tree's own loader: nothing of it is installed.
    pub fn command(&self) -> Command {
        let mut command = Command::new(self.root.join(LOADER));
        command.arg("--library-path").arg(self.root.join(LIBRARIES));
        command.arg(self.root.join("usr/bin/qemu-system-x86_64"));
        for firmware in ["usr/share/qemu", "usr/share/seabios"] {
            command.arg("-L").arg(self.root.join(firmware));
        }
        command.env("QEMU_MODULE_DIR", self.root.join(LIBRARIES).join("qemu"));
        command
    }

    /// The same for a shell of this machine.
    pub fn shell_command(&self) -> String {
        let root = self.root.display();
        format!(
            "env QEMU_MODULE_DIR={root}/{LIBRARIES}/qemu {root}/{LOADER} --library-path {root}/{LIBRARIES} \
             {root}/usr/bin/qemu-system-x86_64 -L {root}/usr/share/qemu -L {root}/usr/share/seabios"
        )
    }

    /// What QEMU needs to run KVM guests elsewhere: `(path there, file here)`.
    pub fn files_for_guests(&self) -> Result<Vec<(String, PathBuf)>> {
        let qemu = self.root.join("usr/bin/qemu-system-x86_64");
        let mut files = vec![("usr/bin/qemu-system-x86_64".to_owned(), qemu.clone())];
        for firmware in [
            "qemu/qboot.rom",
            "qemu/linuxboot_dma.bin",
            "qemu/kvmvapic.bin",
            "seabios/bios-256k.bin",
            "seabios/bios-microvm.bin",
        ] {
            let path = self.root.join("usr/share").join(firmware);
            if path.is_file() {
                let name = firmware.rsplit('/').next().unwrap_or(firmware);
                files.push((format!("usr/share/qemu/{name}"), path));
            }
        }
        for library in self.libraries_of(&qemu)? {
            let name = library.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let real = library.canonicalize().map_err(|cause| Error::file(&library, cause))?;
            files.push((format!("{LIBRARIES}/{name}"), real));
        }
        Ok(files)
    }

    /// The libraries that the loader would map for `program`, found in the tree only.
    pub fn libraries_of(&self, program: &Path) -> Result<Vec<PathBuf>> {
        let mut loader = Command::new(self.root.join(LOADER));
        loader.arg("--library-path").arg(self.root.join(LIBRARIES)).arg("--list").arg(program);
        let listed = crate::packages::run(&mut loader)?;
        let paths = listed.lines().filter_map(|line| {
            let path = line.split_once("=> ")?.1.split_once(" (")?.0;
            Some(PathBuf::from(path))
        });
        Ok(paths.collect())
    }

    /// A shell and its tools, in one static program.
    pub fn busybox(&self) -> Result<PathBuf> {
        self.real("usr/bin/busybox")
    }

    /// What starts programs that aren't static.
    pub fn loader(&self) -> Result<PathBuf> {
        self.real(LOADER)
    }

    fn real(&self, path: &str) -> Result<PathBuf> {
        let path = self.root.join(path);
        path.canonicalize().map_err(|cause| Error::file(&path, cause))
    }
}
