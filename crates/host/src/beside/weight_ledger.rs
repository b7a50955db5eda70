//! The ledger of weights: which cgroups have another weight than the operator gave them, and what that was.
//!
//! Problem.   A daemon that is killed can't give weights back.
//! Mechanism. A file of `/run`, a line for each cgroup, replaced as a whole before weights are written. It
//!            has both weights that may be found there: the one written before, and the one that is about to
//!            be. Whoever settles it gives back where it finds one of these, and leaves what anybody else
//!            wrote.
//! Races.     Watcher and next start may both settle it: the second one finds the operator's weights.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where it is kept, beside the ledger of boosts.
pub fn beside(boosts: &Path) -> PathBuf {
    boosts.with_file_name("weights")
}

/// A weight that is lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lent {
    /// The number of the file's inode: another cgroup of that name has another.
    pub inode: u64,
    /// The operator's.
    pub weight: u32,
    /// The one that we wrote last, and the one that we write next.
    pub ours: [u32; 2],
}

/// Replaces the ledger: cgroups by the file that has their weight. One that was there before stays as long as
/// its weight is ours.
///
/// # Errors
/// The file can't be read or written: then no weight may be.
pub fn replace(ledger: &Path, lent: &BTreeMap<PathBuf, Lent>) -> io::Result<()> {
    let mut all = still_lent(ledger)?;
    all.extend(lent.iter().map(|(file, lent)| (file.clone(), *lent)));
    let mut text = String::new();
    for (file, Lent { inode, weight, ours: [before, next] }) in &all {
        // A name may hold anything, and it is read by us alone.
        let name: String = file.as_os_str().as_bytes().iter().fold(String::new(), |mut name, byte| {
            let _ = write!(name, "{byte:02x}");
            name
        });
        let _ = writeln!(text, "{inode} {weight} {before} {next} {name}");
    }
    let new = ledger.with_extension("new");
    std::fs::write(&new, text)?;
    std::fs::rename(new, ledger)
}

/// Removes a settled ledger, unless a weight of ours is still in force: one that couldn't be given back stays
/// for the next start.
pub fn forget(ledger: &Path) {
    if still_lent(ledger).is_ok_and(|lent| lent.is_empty()) {
        // One that can't be removed is settled again, for nothing.
        let _ = std::fs::remove_file(ledger);
    }
}

/// Returns those whose weight is ours.
///
/// # Errors
/// The file is there, and can't be read.
pub fn still_lent(ledger: &Path) -> io::Result<BTreeMap<PathBuf, Lent>> {
    let text = match std::fs::read_to_string(ledger) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => String::new(),
        text => text?,
    };
    Ok(text.lines().filter_map(parse).filter(|(file, lent)| is_lent(file, lent)).collect())
}

/// Its writer is dead: gives weights back. Returns how many those were.
pub fn settle(ledger: &Path) -> usize {
    let text = std::fs::read_to_string(ledger).unwrap_or_default();
    text.lines().filter_map(parse).filter(|(file, lent)| give_back(file, lent)).count()
}

/// Gives a weight back, if one of ours is there. True if it was.
pub fn give_back(file: &Path, lent: &Lent) -> bool {
    is_lent(file, lent) && write(file, lent.weight).is_ok()
}

/// Is a weight of ours in force in that very cgroup?
fn is_lent(file: &Path, lent: &Lent) -> bool {
    let is_it = std::fs::metadata(file).is_ok_and(|metadata| metadata.ino() == lent.inode);
    let is_ours = |weight: u32| weight != lent.weight && lent.ours.contains(&weight);
    is_it && read(file).is_ok_and(is_ours)
}

/// # Errors
/// There is no such file, or no number in it.
pub fn read(file: &Path) -> io::Result<u32> {
    let text = std::fs::read_to_string(file)?;
    text.trim().parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
}

/// # Errors
/// The cgroup is gone, or this process may not.
pub fn write(file: &Path, weight: u32) -> io::Result<()> {
    use std::io::Write;
    // Never made anew where a cgroup is gone.
    std::fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(file)?
        .write_all(weight.to_string().as_bytes())
}

fn parse(line: &str) -> Option<(PathBuf, Lent)> {
    let mut words = line.split(' ');
    let inode = words.next()?.parse().ok()?;
    let mut weight = || words.next()?.parse().ok();
    let (weight, ours) = (weight()?, [weight()?, weight()?]);
    let name = words.next()?.as_bytes().chunks(2);
    let byte = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
    let name: Vec<u8> = name.map(byte).collect::<Option<_>>()?;
    Some((PathBuf::from(std::ffi::OsStr::from_bytes(&name)), Lent { inode, weight, ours }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lent(file: &Path, weight: u32, ours: [u32; 2]) -> (PathBuf, Lent) {
        let inode = std::fs::metadata(file).unwrap().ino();
        (file.to_owned(), Lent { inode, weight, ours })
    }

    #[test]
    fn our_weights_are_given_back_and_those_of_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, weight: u32| {
            let file = folder.path().join(name);
            std::fs::write(&file, weight.to_string()).unwrap();
            file
        };
        let killed_before_writing = file("a", 100);
        let (written, an_odd_name) = (file("b", 97), file("odd \n name", 98));
        let by_somebody_else = file("c", 500);
        let mut all: BTreeMap<_, _> = [&killed_before_writing, &written, &by_somebody_else]
            .map(|file| lent(file, 100, [98, 97]))
            .into();
        all.extend([lent(&an_odd_name, 100, [98, 97])]);
        let another = file("d", 97);
        let (name, was) = lent(&another, 100, [98, 97]);
        all.insert(name, Lent { inode: was.inode + 1, ..was });
        all.insert(folder.path().join("gone"), was);
        let ledger = folder.path().join("weights");
        replace(&ledger, &all).unwrap();
        assert_eq!(settle(&ledger), 2);
        let now = [&killed_before_writing, &written, &an_odd_name, &by_somebody_else, &another];
        assert_eq!(now.map(|file| read(file).unwrap()), [100, 100, 100, 500, 97]);
        assert!(!folder.path().join("gone").exists());
        assert_eq!(settle(&ledger), 0, "settled by another one meanwhile");
    }

    #[test]
    fn a_weight_that_is_not_given_back_stays_in_the_ledger() {
        let folder = tempfile::tempdir().unwrap();
        let (file, ledger) = (folder.path().join("a"), folder.path().join("weights"));
        std::fs::write(&file, "97").unwrap();
        replace(&ledger, &[lent(&file, 100, [98, 97])].into()).unwrap();
        forget(&ledger);
        assert!(ledger.exists(), "97 is ours, and still in force");
        let other = folder.path().join("b");
        std::fs::write(&other, "97").unwrap();
        replace(&ledger, &[lent(&other, 100, [98, 97])].into()).unwrap();
        assert_eq!(still_lent(&ledger).unwrap().len(), 2, "whoever lends another one doesn't forget it");
        std::fs::write(&other, "100").unwrap();
        assert_eq!(settle(&ledger), 1);
        forget(&ledger);
        assert!(!ledger.exists());
    }

    #[test]
    fn a_ledger_that_is_none_gives_nothing_back() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = folder.path().join("weights");
        assert_eq!(settle(&ledger), 0);
        for text in ["", "\n", "1 2 3", "a b c d e", "1 2 3 4 zz", "1 2 3 4 2f\u{fc}", "1 99999999999 3 4 2f"]
        {
            std::fs::write(&ledger, text).unwrap();
            assert_eq!(settle(&ledger), 0, "{text:?}");
        }
    }
}
