//! Builds a peer with cargo, once, into the cache.

use crate::cache::Cache;
use crate::peers::{Peer, VERSION};
use crate::{Error, Result, children};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long another process may take to build them all.
const LOCK_PATIENCE: Duration = Duration::from_secs(7200);
const NEWS_INTERVAL: Duration = Duration::from_secs(30);
/// The compiler of BPF programs, unless `BPF_CLANG` names another.
const CLANG: &str = "clang-19";

/// The program of `peer`, built if it isn't in the cache yet; `progress` hears of that.
///
/// # Errors
/// Why it can't be built, and where the whole of what cargo said is.
pub fn obtain(cache: &Cache, peer: Peer, progress: &dyn Fn(&str)) -> Result<PathBuf> {
    let root = cache.directory("peers")?;
    let program = root.join("bin").join(peer.program());
    if is_installed(&root, peer) {
        return Ok(program);
    }
    let _lock = cache.lock("peers", LOCK_PATIENCE)?;
    if !is_installed(&root, peer) {
        build(&root, peer, progress)?;
    }
    Ok(program)
}

/// By cargo's own book.
fn is_installed(root: &Path, peer: Peer) -> bool {
    let book = fs::read_to_string(root.join(".crates.toml")).unwrap_or_default();
    let has_entry = book.contains(&format!("\"{} {VERSION} (", peer.program()));
    has_entry && root.join("bin").join(peer.program()).is_file()
}

fn build(root: &Path, peer: Peer, progress: &dyn Fn(&str)) -> Result<()> {
    let program = peer.program();
    let log = root.join(format!("{program}.log"));
    let target = root.join("target");
    let cause = |cause| Error::file(&log, cause);
    let out = File::create(&log).map_err(cause)?;
    let err = out.try_clone().map_err(cause)?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(&cargo);
    command.args(["install", "--locked", program, "--version", VERSION]);
    command.arg("--root").arg(root).arg("--target-dir").arg(&target);
    // A folder without settings: those of a source tree around it are not for them.
    command.current_dir(root).env_remove("CARGO_TARGET_DIR");
    if std::env::var_os("BPF_CLANG").is_none() {
        command.env("BPF_CLANG", CLANG);
    }
    command.stdin(Stdio::null()).stdout(out).stderr(err);
    progress(&format!("building {program} {VERSION} (once; some minutes)"));
    let child = children::spawn(command, Vec::new())
        .map_err(|cause| Error::Program { program: cargo.to_string_lossy().into_owned(), cause })?;
    let status = wait(child, program, progress).map_err(cause)?;
    if status.success() && is_installed(root, peer) {
        // What the next one needs of it is compiled in seconds, and it is a gigabyte.
        return crate::packages::remove(&target);
    }
    let said = fs::read_to_string(&log).unwrap_or_default();
    Err(Error::file(&log, format!("{program} {VERSION} can't be built: {}", complaint(&said))))
}

fn wait(
    mut child: Child,
    program: &str,
    progress: &dyn Fn(&str),
) -> std::io::Result<std::process::ExitStatus> {
    let (began, mut news) = (Instant::now(), Instant::now());
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if news.elapsed() >= NEWS_INTERVAL {
            news = Instant::now();
            progress(&format!("building {program}: {} s", began.elapsed().as_secs()));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// The first line that says what is wrong, of cargo's or of a build script's output.
fn complaint(said: &str) -> String {
    let is_telling = |line: &&str| {
        ["error", "Error", "pkg-config", "not found", "fatal"].iter().any(|word| line.contains(word))
    };
    let lines = || said.lines().map(str::trim).filter(|line| !line.is_empty());
    lines().find(is_telling).or_else(|| lines().next_back()).unwrap_or("it said nothing").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_there_only_if_cargo_has_entered_its_release() {
        let root = tempfile::tempdir().expect("temporary directory");
        assert!(!is_installed(root.path(), Peer::Lavd));
        fs::create_dir(root.path().join("bin")).expect("bin");
        fs::write(root.path().join("bin/scx_lavd"), "").expect("program");
        let book = |version: &str| format!("[v1]\n\"scx_lavd {version} (registry+x)\" = [\"scx_lavd\"]\n");
        fs::write(root.path().join(".crates.toml"), book("1.0.0")).expect("book");
        assert!(!is_installed(root.path(), Peer::Lavd), "another release is there");
        fs::write(root.path().join(".crates.toml"), book(VERSION)).expect("book");
        assert!(is_installed(root.path(), Peer::Lavd));
        assert!(!is_installed(root.path(), Peer::Rusty));
    }

    #[test]
    fn what_is_wrong_with_a_build_is_told_in_its_first_telling_line() {
        let said = "   Compiling a v1\nerror: could not find libelf\n\nwarning: build failed\n";
        assert_eq!(complaint(said), "error: could not find libelf");
        assert_eq!(complaint("  Updating index\nspurious\n"), "spurious");
        assert_eq!(complaint(""), "it said nothing");
    }
}
