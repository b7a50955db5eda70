//! The folders of cgroups by their numbers, which BPF programs know them by.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Folders that are looked at, at most: a host with thousands of VMs has fewer.
const FOLDERS_MAX: usize = 1 << 16;
/// How long a walk through all of them is enough.
const WALK_AGAIN: Duration = Duration::from_secs(10);

/// Cgroups of version 2. A cgroup's number is that of its folder's inode.
#[derive(Debug)]
pub struct CgroupNames {
    mount: PathBuf,
    by_number: BTreeMap<u64, PathBuf>,
    /// Those that a walk didn't find: they have gone, and no other cgroup will have their number
    /// (`kernfs_node.id`, fs/kernfs/dir.c).
    gone: BTreeSet<u64>,
    walked: Option<Instant>,
}

impl CgroupNames {
    /// Names those below `mount`, or below its `unified`, where version 1 has the other controllers.
    pub fn below(mount: &Path) -> Self {
        let unified = mount.join("unified");
        let mount = if unified.is_dir() { unified } else { mount.to_owned() };
        Self { mount, by_number: BTreeMap::new(), gone: BTreeSet::new(), walked: None }
    }

    /// Returns the folder of this cgroup, relative to the root, whose own is empty. `None`: it has gone, or
    /// has come a moment ago.
    pub fn folder(&mut self, number: u64, now: Instant) -> Option<&Path> {
        let is_due = self.walked.is_none_or(|at| now.duration_since(at) >= WALK_AGAIN);
        if !self.by_number.contains_key(&number) && !self.gone.contains(&number) && is_due {
            self.walked = Some(now);
            self.walk();
            if self.gone.len() >= FOLDERS_MAX {
                self.gone.clear();
            }
            self.gone.extend((!self.by_number.contains_key(&number)).then_some(number));
        }
        self.by_number.get(&number).map(PathBuf::as_path)
    }

    fn walk(&mut self) {
        self.by_number.clear();
        let mut rest = vec![PathBuf::new()];
        // Version 1 has mounts of other controllers below, whose roots have the same number.
        let root = std::fs::metadata(&self.mount).map(|metadata| metadata.dev()).ok();
        while let Some(folder) = rest.pop().filter(|_| self.by_number.len() < FOLDERS_MAX) {
            let path = self.mount.join(&folder);
            let Ok(metadata) = std::fs::metadata(&path) else { continue };
            if Some(metadata.dev()) != root {
                continue;
            }
            for entry in std::fs::read_dir(&path).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    rest.push(folder.join(entry.file_name()));
                }
            }
            self.by_number.insert(metadata.ino(), folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::cgroups::tests::mount_with;

    #[test]
    fn a_cgroup_is_found_by_its_inode() {
        let mount = mount_with(&[("system.slice/backup.service/cpu.stat", "")]);
        let number = |folder: &str| std::fs::metadata(mount.path().join(folder)).unwrap().ino();
        let mut names = CgroupNames::below(mount.path());
        let now = Instant::now();
        assert_eq!(
            names.folder(number("system.slice/backup.service"), now),
            Some(Path::new("system.slice/backup.service"))
        );
        assert_eq!(names.folder(number(""), now), Some(Path::new("")));
        std::fs::create_dir(mount.path().join("new")).unwrap();
        assert_eq!(names.folder(number("new"), now), None, "the walk was a moment ago");
        assert_eq!(names.folder(number("new"), now + WALK_AGAIN), Some(Path::new("new")));
        let walks = [2, 3].map(|at| {
            assert_eq!(names.folder(1, now + WALK_AGAIN * at), None, "none has this number");
            names.walked
        });
        assert_eq!(walks, [Some(now + WALK_AGAIN * 2); 2], "it isn't looked for again");
    }
}
