//! An installed Debian with systemd on a disk, as an operator's host has it: what a package meets.
//!
//! `mmdebstrap` makes it of the archive that this machine's own sources name, `mke2fs` a disk of that. The
//! disk stays in the cache; a host writes what it changes elsewhere.

use crate::cache::Cache;
use crate::packages::{KEYRING, mirror, remove, run};
use crate::{Error, Result, say};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The release that our package is built on and for.
const RELEASE: &str = "bookworm";
/// Beside what Debian calls essential. Depends of our package are among both, or `dpkg` refuses it there.
const PACKAGES: &str = "systemd-sysv";
/// What there is room for; the file has holes where nothing lies.
const SIZE: &str = "1G";
/// The harness's hand in it.
const SERVICE: &str = include_str!("../../../testbed/host/testbed.service");
/// Of no machine. Without one the first boot would be a first boot, which enables all that is installed.
const MACHINE_ID: &str = "5ce0b2a6d6f94f1f9d4c0b1f7a3e8d21\n";

/// The disk: from the cache if it was made in the same way, else made, which needs root and takes a minute.
pub fn obtain(cache: &Cache) -> Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    (RELEASE, PACKAGES, SIZE, SERVICE, MACHINE_ID).hash(&mut hasher);
    let disk = cache.directory("installed")?.join(format!("{RELEASE}-{:016x}.ext4", hasher.finish()));
    if !disk.is_file() {
        let _lock = cache.lock("installed", Duration::from_secs(1800))?;
        if !disk.is_file() {
            make(cache, &disk)?;
        }
    }
    Ok(disk)
}

fn make(cache: &Cache, disk: &Path) -> Result<()> {
    say(format_args!("installing {RELEASE} with systemd on a disk"));
    let [root, partial] = ["root", "partial"].map(|name| cache.root().join("installed").join(name));
    remove(&root)?;
    let source = format!("deb [signed-by={KEYRING}] {} {RELEASE} main", mirror()?);
    let mut install = with_system_programs("mmdebstrap");
    install.args(["--quiet", "--variant=essential"]).arg(format!("--include={PACKAGES}"));
    run(install.arg(RELEASE).arg(&root).arg(source))?;
    settle(&root)?;
    let _ = fs::remove_file(&partial);
    let mut format = with_system_programs("mke2fs");
    run(format.args(["-q", "-t", "ext4", "-d"]).arg(&root).arg(&partial).arg(SIZE))?;
    fs::rename(&partial, disk).map_err(|cause| Error::file(disk, cause))?;
    remove(&root)
}

/// What makes a machine of it that the harness can talk to.
fn settle(root: &Path) -> Result<()> {
    let units = root.join("etc/systemd/system");
    let wanted = units.join("multi-user.target.wants");
    fs::create_dir_all(&wanted).map_err(|cause| Error::file(&wanted, cause))?;
    for (path, text) in [(units.join("testbed.service"), SERVICE), (root.join("etc/machine-id"), MACHINE_ID)]
    {
        fs::write(&path, text).map_err(|cause| Error::file(&path, cause))?;
    }
    let link = wanted.join("testbed.service");
    symlink("/etc/systemd/system/testbed.service", &link).map_err(|cause| Error::file(&link, cause))
}

fn with_system_programs(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").env("LC_ALL", "C");
    command
}
