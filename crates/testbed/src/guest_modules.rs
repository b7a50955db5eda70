//! Our modules for guests' kernels (`guest/`), built with the headers that Debian has of these kernels.
//!
//! The headers' tools were built for the release that the kernel is of. Those that this machine's C library
//! is too old for run with QEMU's libraries.

use crate::cache::Cache;
use crate::emulator::{Emulator, LIBRARIES, LOADER};
use crate::kernels::Kernel;
use crate::packages::{Archive, Offer, is_complete, run};
use crate::{Error, Result, say};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The guest kernels that modules are built for.
pub const KERNELS: [&str; 3] = ["6.1-cloud", "6.12-cloud", "6.18-cloud"];

/// What the modules are made of.
const SOURCES: [(&str, &str); 15] = [
    ("Kbuild", include_str!("../../../guest/Kbuild")),
    ("balloon/balloons.h", include_str!("../../../guest/balloon/balloons.h")),
    ("balloon/microslice_balloon.c", include_str!("../../../guest/balloon/microslice_balloon.c")),
    ("hints/hint_page.h", include_str!("../../../guest/hints/hint_page.h")),
    ("hints/microslice_hints.c", include_str!("../../../guest/hints/microslice_hints.c")),
    ("hints/microslice_hints.h", include_str!("../../../guest/hints/microslice_hints.h")),
    ("hints/microslice_user.h", include_str!("../../../guest/hints/microslice_user.h")),
    ("locks/access.h", include_str!("../../../guest/locks/access.h")),
    ("locks/kvm_waits.h", include_str!("../../../guest/locks/kvm_waits.h")),
    ("locks/lock_line.h", include_str!("../../../guest/locks/lock_line.h")),
    ("locks/microslice_locks.c", include_str!("../../../guest/locks/microslice_locks.c")),
    ("locks/microslice_spinlocks.c", include_str!("../../../guest/locks/microslice_spinlocks.c")),
    ("locks/pv_ticket.h", include_str!("../../../guest/locks/pv_ticket.h")),
    ("locks/yield_lock.h", include_str!("../../../guest/locks/yield_lock.h")),
    ("parameters.h", include_str!("../../../guest/parameters.h")),
];

/// The modules, by their names.
const MODULES: [&str; 4] =
    ["microslice_balloon", "microslice_hints", "microslice_locks", "microslice_spinlocks"];

/// This machine's compiler for kernels of a newer one: it has that flag by another name.
const COMPILER: &str = "#!/bin/sh\n\
    for word; do\n\
    \tshift\n\
    \tcase $word in -fmin-function-alignment=*) word=-falign-functions=${word#*=} ;; esac\n\
    \tset -- \"$@\" \"$word\"\n\
    done\n\
    exec gcc \"$@\"\n";

/// Paths of the modules for `kernel`: from the cache if they were built of the same sources, else built.
pub fn obtain(cache: &Cache, kernel: &Kernel) -> Result<Vec<(String, PathBuf)>> {
    let mut hasher = DefaultHasher::new();
    (SOURCES, COMPILER).hash(&mut hasher);
    let built = cache.directory("modules")?.join(format!("{}-{:016x}", kernel.release, hasher.finish()));
    if !built.is_dir() {
        let _lock = cache.lock("modules", Duration::from_secs(1800))?;
        if !built.is_dir() {
            let headers = headers(cache, &kernel.release)?;
            build(cache, &headers, &kernel.release, &built)?;
        }
    }
    Ok(MODULES.map(|name| (format!("{name}.ko"), built.join(format!("{name}.ko")))).into())
}

/// The unpacked headers of `release`: from the cache, else fetched.
pub fn headers(cache: &Cache, release: &str) -> Result<PathBuf> {
    let dir = cache.directory("headers")?.join(release);
    if is_complete(&dir) {
        return Ok(dir);
    }
    let _lock = cache.lock("headers", Duration::from_secs(1800))?;
    if is_complete(&dir) {
        return Ok(dir);
    }
    let archive = Archive::open(cache)?;
    archive.refresh()?;
    let mut parts: Vec<Offer> = Vec::new();
    for names in packages_of(release) {
        let mut offered = names.iter().filter_map(|name| archive.offers(name).ok()?.remove(name));
        parts.push(offered.next().ok_or_else(|| Error::Kernel {
            wanted: release.into(),
            cause: format!("the archive has no {} (any more): no module can be built for it", names[0]),
        })?);
    }
    say(format_args!("fetching the headers of kernel {release}"));
    let parts: Vec<&Offer> = parts.iter().collect();
    match archive.unpack(&parts, &dir) {
        Err(error) if parts.iter().any(|part| part.is_unlisted()) => Err(Error::Kernel {
            wanted: release.into(),
            cause: format!("its headers, which the archive doesn't list any more, are gone: {error}"),
        }),
        result => result.map(|()| dir),
    }
}

/// The packages that hold the headers of `release`; of some either of two names.
fn packages_of(release: &str) -> [Vec<String>; 3] {
    let base = release.trim_end_matches("-amd64").trim_end_matches("-cloud");
    let series = base.splitn(3, '.').take(2).collect::<Vec<_>>().join(".");
    [
        vec![format!("linux-headers-{release}")],
        vec![format!("linux-headers-{base}-common")],
        vec![format!("linux-kbuild-{base}"), format!("linux-kbuild-{series}")],
    ]
}

fn build(cache: &Cache, headers: &Path, release: &str, into: &Path) -> Result<()> {
    say(format_args!("building the guest's modules for {release}"));
    let emulator = Emulator::obtain(cache)?;
    let libraries = emulator.root().strip_prefix(cache.root()).unwrap_or(emulator.root());
    for tool in ["scripts/mod/modpost.real-lsb-64", "tools/objtool/objtool.real-x86"] {
        make_runnable(&headers.join("usr/lib"), tool, libraries)?;
    }
    let scratch = tempfile::tempdir().map_err(|cause| Error::file(std::env::temp_dir(), cause))?;
    let place = scratch.path();
    for (name, text) in SOURCES {
        write(&place.join(name), text, 0o644)?;
    }
    write(&place.join("compiler"), COMPILER, 0o755)?;
    let base = release.trim_end_matches("-amd64").trim_end_matches("-cloud");
    let [own, common] = [release, &format!("{base}-common")]
        .map(|name| headers.join(format!("usr/src/linux-headers-{name}")));
    let mut make = Command::new("make");
    make.arg("-C").arg(&own).arg("-f").arg(common.join("Makefile"));
    make.arg(format!("KBUILD_OUTPUT={}", own.display())).arg(format!("M={}", place.display()));
    make.arg(format!("CC={}", place.join("compiler").display()));
    // No types for BPF: they would need pahole.
    make.args(["CROSS_COMPILE=", "CONFIG_DEBUG_INFO_BTF_MODULES=", "modules"]);
    // Cargo's own settings are for cargo's own makes.
    run(make.env_remove("MAKEFLAGS").env_remove("MFLAGS"))?;
    let partial = into.with_extension("partial");
    crate::packages::remove(&partial)?;
    fs::create_dir_all(&partial).map_err(|cause| Error::file(&partial, cause))?;
    for name in MODULES {
        let module = format!("{name}.ko");
        run(Command::new("strip")
            .arg("--strip-debug")
            .arg("-o")
            .arg(partial.join(&module))
            .arg(place.join(&module)))?;
    }
    fs::rename(&partial, into).map_err(|cause| Error::file(into, cause))
}

/// One that this machine's C library is too old for gets the emulator's, by a script in its place. `emulator`
/// is relative to the cache.
fn make_runnable(kbuild: &Path, tool: &str, emulator: &Path) -> Result<()> {
    let versions = fs::read_dir(kbuild).map_err(|cause| Error::file(kbuild, cause))?;
    for version in versions.filter_map(|entry| Some(entry.ok()?.path())) {
        let path = version.join(tool);
        let moved = path.with_extension("program");
        let runs =
            |path: &Path| run(Command::new("ldd").arg(path)).is_ok_and(|said| !said.contains("not found"));
        if !path.is_file() || moved.exists() || runs(&path) {
            continue;
        }
        fs::rename(&path, &moved).map_err(|cause| Error::file(&path, cause))?;
        // It finds its way from where it lies: caches are moved.
        let script = format!(
            "#!/bin/sh\nhere=$(readlink -f \"$0\")\nemulator=${{here%/headers/*}}/{}\n\
             exec \"$emulator/{LOADER}\" --library-path \"$emulator/{LIBRARIES}\" \"${{here%/*}}/{}\" \"$@\"\n",
            emulator.display(),
            moved.file_name().unwrap_or_default().display()
        );
        write(&path, &script, 0o755)?;
    }
    Ok(())
}

fn write(path: &Path, text: &str, mode: u32) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(path, text))
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)))
        .map_err(|cause| Error::file(path, cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_three_packages_whatever_the_release_is_called() {
        let names = |release| packages_of(release).map(|names| names.join(" or "));
        assert_eq!(
            names("6.1.0-50-cloud-amd64"),
            [
                "linux-headers-6.1.0-50-cloud-amd64",
                "linux-headers-6.1.0-50-common",
                "linux-kbuild-6.1.0-50 or linux-kbuild-6.1"
            ]
        );
        assert_eq!(
            names("6.12.117+deb13-amd64"),
            [
                "linux-headers-6.12.117+deb13-amd64",
                "linux-headers-6.12.117+deb13-common",
                "linux-kbuild-6.12.117+deb13 or linux-kbuild-6.12"
            ]
        );
    }

    #[test]
    fn every_source_of_the_modules_comes_along() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest");
        let mut found = vec!["Kbuild".to_owned()];
        for part in ["balloon", "hints", "locks"] {
            let entries = fs::read_dir(folder.join(part)).expect("a folder");
            found.extend(
                entries.map(|entry| format!("{part}/{}", entry.expect("entry").file_name().display())),
            );
        }
        found.push("parameters.h".to_owned());
        found.sort();
        assert_eq!(found, SOURCES.map(|(name, _)| name));
    }
}
