//! Files that a VMM names on its command line. A tenant may have chosen the name, and what lies there.
//!
//! Problem.   A FIFO would block its opener, and a device may do anything. A symbolic link in a container's
//!            root may name a file of the host's.
//! Mechanism. The kernel resolves the path within the VMM's own root directory (`openat2`, RESOLVE_IN_ROOT)
//!            and through no link of /proc; nothing blocks; what isn't a regular file of a kernel's size is
//!            refused before it is read.

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, openat2};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// A `vmlinux` with all its debug information has about one.
const BYTES_MAX: i64 = 2 << 30;
/// The kernel says EAGAIN when something was moved while it resolved a path.
const TRIES: u32 = 8;

/// The regular file that process `pid` knows as `path`.
///
/// # Errors
/// There is none, or something else is there.
pub fn open(pid: u32, path: &Path) -> io::Result<File> {
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    open_in(&root, &seen_from_root(pid, path)?).or_else(|error| {
        // A VMM that has since closed itself in (chroot, an empty mount namespace) doesn't reach what it was
        // started with.
        if error.kind() == io::ErrorKind::NotFound && path.is_absolute() {
            open_in(Path::new("/"), path)
        } else {
            Err(error)
        }
    })
}

/// Where an open file is opened again, by code that takes paths.
pub fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// A relative path is meant from the process's working directory.
fn seen_from_root(pid: u32, path: &Path) -> io::Result<PathBuf> {
    if path.is_absolute() {
        return Ok(path.to_owned());
    }
    let target = |link: &str| std::fs::read_link(format!("/proc/{pid}/{link}"));
    let (root, cwd) = (target("root")?, target("cwd")?);
    Ok(cwd.strip_prefix(&root).unwrap_or(&cwd).join(path))
}

fn open_in(root: &Path, path: &Path) -> io::Result<File> {
    let root = File::open(root)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let mut tries = 0;
    let file = loop {
        tries += 1;
        // Only looked at: opening a device for reading may already do something.
        match openat2(&root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve) {
            Err(rustix::io::Errno::AGAIN) if tries < TRIES => {}
            result => break result?,
        }
    };
    let found = fstat(&file)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("isn't a regular file"));
    }
    if found.st_size > BYTES_MAX {
        return Err(io::Error::other(format!("is larger than {BYTES_MAX} bytes: no kernel")));
    }
    let again = rustix::fs::open(path_of(&File::from(file)), flags, Mode::empty())?;
    Ok(File::from(again))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    fn content(root: &Path, path: &str) -> io::Result<String> {
        let mut text = String::new();
        open_in(root, Path::new(path))?.read_to_string(&mut text)?;
        Ok(text)
    }

    #[test]
    fn links_of_a_tenant_stay_in_its_root() {
        let host = tempfile::tempdir().unwrap();
        let root = host.path().join("tenant");
        std::fs::create_dir_all(root.join("boot")).unwrap();
        std::fs::write(host.path().join("secret"), "the host's").unwrap();
        std::fs::write(root.join("secret"), "the tenant's").unwrap();
        std::fs::write(root.join("boot/vmlinuz-1"), "kernel").unwrap();
        symlink("/boot/vmlinuz-1", root.join("vmlinuz")).unwrap();
        symlink("../../../secret", root.join("boot/up")).unwrap();
        symlink(host.path().join("secret"), root.join("out")).unwrap();
        symlink(
            format!("/proc/{}/root/{}", std::process::id(), host.path().join("secret").display()),
            root.join("magic"),
        )
        .unwrap();
        assert_eq!(content(&root, "/vmlinuz").unwrap(), "kernel", "absolute links begin at its root");
        assert_eq!(content(&root, "/boot/up").unwrap(), "the tenant's");
        assert_eq!(content(&root, "/../../secret").unwrap(), "the tenant's");
        assert_eq!(content(&root, "/out").unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(content(&root, "/magic").is_err());
    }

    #[test]
    fn files_that_could_block_are_refused_at_once() {
        let root = tempfile::tempdir().unwrap();
        let fifo = root.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert_eq!(content(root.path(), "/fifo").unwrap_err().to_string(), "isn't a regular file");
        assert_eq!(content(root.path(), "/").unwrap_err().to_string(), "isn't a regular file");
        assert_eq!(content(Path::new("/"), "/dev/zero").unwrap_err().to_string(), "isn't a regular file");
        let huge = File::create(root.path().join("huge")).unwrap();
        huge.set_len(BYTES_MAX as u64 + 1).unwrap();
        assert!(content(root.path(), "/huge").unwrap_err().to_string().starts_with("is larger than"));
    }

    #[test]
    fn a_relative_path_is_meant_from_the_working_directory() {
        let mut text = String::new();
        open(std::process::id(), Path::new("Cargo.toml")).unwrap().read_to_string(&mut text).unwrap();
        assert!(text.contains("microslice-host"));
    }
}
