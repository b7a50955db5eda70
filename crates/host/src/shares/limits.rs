//! The limits (`cpu.max`) of this host's cgroups, as the kernel side has to know them: which of them count
//! for the tasks of which cgroup, and what each allows.

use crate::HostError;
use crate::interface::{self, LIMITS_MAX};
use crate::machine::cgroups::{self, CpuLimit};
use crate::shares::service_weights::{self, Group};
use microslice_policy::WEIGHT_DEFAULT;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub const LIMITED_CGROUPS_MAX: usize = interface::LIMITED_CGROUPS_MAX as usize;
pub const LIMITS_PER_CGROUP: usize = interface::LIMITS_PER_CGROUP as usize;
/// More cgroups than any host has, and than are worth the time every few seconds.
const CGROUPS_MAX: usize = 100_000;
/// A folder has a link of its own, one from its parent, and one from each folder in it (`fs/kernfs/inode.c`).
/// File systems that don't count say 1.
const LINKS_OF_A_LEAF: u64 = 2;

/// Places in the kernel side's table of limits, plus 1; 0: no more. `struct limit_chain`.
pub type Chain = [u32; LIMITS_PER_CGROUP];

/// A cgroup whose tasks are limited, by itself or by a cgroup that it lies in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitedCgroup {
    /// The number of its folder's inode.
    pub id: u64,
    /// Outermost first.
    pub limits: Vec<CpuLimit>,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Tree {
    pub limited: Vec<LimitedCgroup>,
    /// Cgroups that weights count for, by number.
    pub weighed: Vec<(u64, Group)>,
    /// There are more than [`CGROUPS_MAX`] cgroups: those beyond weren't looked at.
    pub is_cut_off: bool,
}

/// Reads the limits, and the weights, of all cgroups.
///
/// # Errors
/// Something is there and can't be read, so that the limits are unknown. What goes meanwhile is
/// no error.
pub fn read_tree(mount: &Path) -> io::Result<Tree> {
    read_tree_up_to(CGROUPS_MAX, mount)
}

fn read_tree_up_to(cgroups_max: usize, mount: &Path) -> io::Result<Tree> {
    let (mut limited, mut weighed) = (Vec::new(), Vec::new());
    let mut open = vec![(mount.to_owned(), Vec::<CpuLimit>::new(), None)];
    let mut seen = 0;
    while let Some((folder, limits, group)) = open.pop() {
        let Some(entries) = unless_gone(std::fs::read_dir(&folder))? else { continue };
        // Of each cgroup in this one: its folder, and what says which it is; its weight.
        let mut inner = Vec::new();
        for entry in entries {
            let Some(entry) = unless_gone(entry)? else { break };
            if !unless_gone(entry.file_type())?.is_some_and(|kind| kind.is_dir()) {
                continue;
            }
            seen += 1;
            if seen > cgroups_max {
                break;
            }
            let Some(metadata) = unless_gone(entry.metadata())? else { continue };
            let weight = service_weights::own_weight(&entry.path())?;
            inner.push((entry.path(), metadata, weight));
        }
        let are_groups = inner.iter().any(|(.., weight)| weight.is_some_and(|own| own != WEIGHT_DEFAULT));
        for (folder, metadata, weight) in inner {
            let mut limits = limits.clone();
            limits.extend(CpuLimit::of_cgroup(&folder)?);
            if !limits.is_empty() {
                limited.push(LimitedCgroup { id: metadata.ino(), limits: limits.clone() });
            }
            let group = match weight.filter(|_| are_groups) {
                Some(own) => Some(Group::within(group, metadata.ino(), own)),
                None => group,
            };
            weighed.extend(group.map(|group| (metadata.ino(), group)));
            // Most have no cgroup in them, and each has a hundred files to go through.
            if metadata.nlink() != LINKS_OF_A_LEAF {
                open.push((folder, limits, group));
            }
        }
        if seen > cgroups_max {
            break;
        }
    }
    Ok(Tree { limited, weighed, is_cut_off: seen > cgroups_max })
}

fn unless_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if cgroups::is_gone(&error) => Ok(None),
        result => result.map(Some),
    }
}

/// The limits that the kernel side was told.
#[derive(Debug, Default)]
pub struct LimitTable {
    /// By the file that says it.
    places: BTreeMap<PathBuf, u32>,
    limits: BTreeMap<u32, microslice_policy::CpuLimit>,
    chains: BTreeMap<u64, Chain>,
}

/// Changes that the kernel side has to be told, in this order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub limits: Vec<(u32, microslice_policy::CpuLimit)>,
    pub gone: Vec<u64>,
    pub chains: Vec<(u64, Chain)>,
    /// Cgroups one of whose limits had no room.
    pub left_out: usize,
    /// There are limits at all.
    pub in_force: bool,
}

/// The kernel side's tables.
pub trait LimitMaps {
    fn set_limit(&mut self, place: u32, limit: &microslice_policy::CpuLimit) -> Result<(), HostError>;
    fn remove_chain(&mut self, cgroup: u64);
    fn set_chain(&mut self, cgroup: u64, chain: &Chain) -> Result<(), HostError>;
}

/// Changes that the kernel side didn't take.
#[derive(Debug, Default)]
pub struct Untold {
    limits: Vec<u32>,
    chains: Vec<u64>,
    /// The cause of the first of them.
    pub cause: Option<HostError>,
}

impl Changes {
    /// Every limit is what it was, and counts for the cgroups that it did.
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty() && self.gone.is_empty() && self.chains.is_empty()
    }

    /// Tells them one by one: a limit that isn't taken doesn't keep the others out.
    pub fn tell(&self, maps: &mut (impl LimitMaps + ?Sized)) -> Untold {
        let mut untold = Untold::default();
        for (place, limit) in &self.limits {
            if let Err(cause) = maps.set_limit(*place, limit) {
                untold.limits.push(*place);
                untold.cause.get_or_insert(cause);
            }
        }
        // First those that are gone: there may be no room for others before.
        for cgroup in &self.gone {
            maps.remove_chain(*cgroup);
        }
        for (cgroup, chain) in &self.chains {
            if let Err(cause) = maps.set_chain(*cgroup, chain) {
                untold.chains.push(*cgroup);
                untold.cause.get_or_insert(cause);
            }
        }
        untold
    }
}

/// Why limits aren't kept, or not those of now.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Troubles {
    pub unreadable: Option<String>,
    pub is_cut_off: bool,
    pub left_out: usize,
    pub untold: Option<String>,
}

impl Troubles {
    /// A line for each that wasn't there `before`.
    pub fn news(&self, before: &Self) -> Vec<String> {
        let mut news = Vec::new();
        if let (Some(cause), None) = (&self.unreadable, &before.unreadable) {
            news.push(format!(
                "limits of cgroups can't be read ({cause}): those that were read before are kept"
            ));
        }
        if self.is_cut_off && !before.is_cut_off {
            news.push(format!(
                "this host has more than {CGROUPS_MAX} cgroups: limits of those beyond aren't kept"
            ));
        }
        if self.left_out > before.left_out {
            let count = self.left_out;
            news.push(format!("{count} cgroups have a limit that isn't kept: this host has more than fit"));
        }
        if let (Some(cause), None) = (&self.untold, &before.untold) {
            news.push(format!("a limit isn't kept ({cause}): tried again with the next reading"));
        }
        news
    }
}

impl LimitTable {
    /// What was read is so now. What couldn't be read changes nothing: no limits would set all tenants free.
    pub fn follow(&mut self, read: io::Result<Tree>, before: &Troubles) -> (Changes, Troubles) {
        match read {
            Ok(Tree { limited, is_cut_off, .. }) => {
                let changes = self.update(&limited);
                let troubles = Troubles { is_cut_off, left_out: changes.left_out, ..Troubles::default() };
                (changes, troubles)
            }
            Err(cause) => {
                let changes = Changes { in_force: !self.chains.is_empty(), ..Changes::default() };
                let Troubles { is_cut_off, left_out, .. } = *before;
                (
                    changes,
                    Troubles { unreadable: Some(cause.to_string()), is_cut_off, left_out, untold: None },
                )
            }
        }
    }

    /// What the kernel side didn't take is a change again when the cgroups are read next.
    pub fn forget(&mut self, untold: &Untold) {
        for place in &untold.limits {
            self.limits.remove(place);
        }
        for cgroup in &untold.chains {
            // Whatever the kernel side has of it goes with the cgroup.
            self.chains.insert(*cgroup, Chain::default());
        }
    }

    /// The host's cgroups are like this now.
    pub fn update(&mut self, cgroups: &[LimitedCgroup]) -> Changes {
        let mut changes = Changes::default();
        let files: BTreeSet<_> =
            cgroups.iter().flat_map(|cgroup| &cgroup.limits).map(|limit| &limit.file).collect();
        self.places.retain(|file, _| files.contains(file));
        let taken: BTreeSet<u32> = self.places.values().copied().collect();
        let mut free = (0..LIMITS_MAX).filter(|place| !taken.contains(place));
        let mut chains = BTreeMap::new();
        for cgroup in cgroups {
            let mut tightest_first: Vec<&CpuLimit> = cgroup.limits.iter().collect();
            tightest_first.sort_by(|a, b| a.cpus().total_cmp(&b.cpus()));
            let mut chain = Chain::default();
            let mut has_room = chains.len() < LIMITED_CGROUPS_MAX;
            for (link, limit) in chain.iter_mut().zip(tightest_first) {
                let known = self.places.get(&limit.file).copied();
                let Some(place) = known.or_else(|| free.next()) else {
                    has_room = false;
                    break;
                };
                self.places.insert(limit.file.clone(), place);
                if self.limits.insert(place, limit.for_policy()) != Some(limit.for_policy()) {
                    changes.limits.push((place, limit.for_policy()));
                }
                *link = place + 1;
            }
            changes.left_out += usize::from(!has_room);
            if chains.len() < LIMITED_CGROUPS_MAX {
                chains.insert(cgroup.id, chain);
            }
        }
        changes.gone = self.chains.keys().filter(|id| !chains.contains_key(id)).copied().collect();
        changes.chains = chains
            .iter()
            .filter(|(id, chain)| self.chains.get(id) != Some(chain))
            .map(|(id, chain)| (*id, *chain))
            .collect();
        changes.in_force = !chains.is_empty();
        self.chains = chains;
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(file: &str, quota_us: u64) -> CpuLimit {
        CpuLimit { quota_us, period_us: 100_000, burst_us: 0, file: file.into() }
    }

    fn cgroup(id: u64, limits: &[CpuLimit]) -> LimitedCgroup {
        LimitedCgroup { id, limits: limits.to_vec() }
    }

    #[test]
    fn a_cgroup_of_another_weight_makes_groups() {
        let mount = tempfile::tempdir().unwrap();
        let weigh = |folder: &str, weight: &str| {
            std::fs::create_dir_all(mount.path().join(folder)).unwrap();
            std::fs::write(mount.path().join(folder).join("cpu.weight"), weight).unwrap();
        };
        weigh("system", "100");
        weigh("user", "100");
        weigh("system/backup", "20");
        weigh("system/web", "100");
        std::fs::create_dir_all(mount.path().join("system/web/without/controller")).unwrap();
        let weighed: BTreeMap<_, _> = read_tree(mount.path()).unwrap().weighed.into_iter().collect();
        let id = |folder: &str| std::fs::metadata(mount.path().join(folder)).unwrap().ino();
        let group = |folder: &str, weight| Group::within(None, id(folder), weight);
        assert_eq!(weighed.len(), 4);
        assert_eq!(weighed[&id("system/backup")], group("system/backup", 20));
        for folder in ["system/web", "system/web/without", "system/web/without/controller"] {
            assert_eq!(weighed[&id(folder)], group("system/web", 100));
        }
    }

    #[test]
    fn outer_cgroups_limit_tasks_of_inner_ones() {
        let mount = tempfile::tempdir().unwrap();
        let inner = mount.path().join("slice/scope/vcpu0");
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::create_dir_all(mount.path().join("free")).unwrap();
        std::fs::write(mount.path().join("slice/cpu.max"), "400000 100000\n").unwrap();
        std::fs::write(mount.path().join("slice/scope/cpu.max"), "max 100000\n").unwrap();
        std::fs::write(inner.join("cpu.max"), "50000 100000\n").unwrap();
        let limited = read_tree(mount.path()).unwrap().limited;
        let of = |folder: &Path| {
            let id = std::fs::metadata(folder).unwrap().ino();
            let cgroup = limited.iter().find(|cgroup| cgroup.id == id)?;
            Some(cgroup.limits.iter().map(CpuLimit::cpus).collect::<Vec<_>>())
        };
        assert_eq!(of(&inner), Some(vec![4.0, 0.5]));
        assert_eq!(of(&mount.path().join("slice/scope")), Some(vec![4.0]));
        assert_eq!(of(&mount.path().join("free")), None);
        assert_eq!(limited.len(), 3);
    }

    #[test]
    fn unreadable_limits_stay_and_are_reported_once() {
        let mut table = LimitTable::default();
        let limited = vec![cgroup(7, &[limit("vcpu", 50_000)])];
        let fine = Troubles::default();
        let (changes, none) = table.follow(Ok(Tree { limited, ..Tree::default() }), &fine);
        assert_eq!((changes.chains.len(), &none), (1, &fine));
        let folder = tempfile::tempdir().unwrap();
        let no_folder = folder.path().join("file");
        std::fs::write(&no_folder, "").unwrap();
        let (changes, troubles) = table.follow(read_tree(&no_folder), &fine);
        assert_eq!(changes, Changes { in_force: true, ..Changes::default() });
        let news = troubles.news(&fine);
        assert!(news[0].starts_with("limits of cgroups can't be read (Not a directory"), "{news:?}");
        let (_, again) = table.follow(read_tree(&no_folder), &troubles);
        assert_eq!(again.news(&troubles), Vec::<String>::new());
        let gone = read_tree(&folder.path().join("gone")).unwrap();
        assert_eq!((gone.limited, gone.is_cut_off), (Vec::new(), false));
    }

    #[test]
    fn cgroups_beyond_those_that_are_looked_at_are_said() {
        let mount = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c"] {
            std::fs::create_dir(mount.path().join(name)).unwrap();
        }
        assert!(!read_tree_up_to(3, mount.path()).unwrap().is_cut_off);
        let read = read_tree_up_to(2, mount.path());
        let (_, troubles) = LimitTable::default().follow(read, &Troubles::default());
        let said = "this host has more than 100000 cgroups: limits of those beyond aren't kept";
        assert_eq!(troubles.news(&Troubles::default()), [said]);
    }

    /// Takes everything but these cgroups.
    struct Picky(Vec<u64>);

    impl LimitMaps for Picky {
        fn set_limit(&mut self, _: u32, _: &microslice_policy::CpuLimit) -> Result<(), HostError> {
            Ok(())
        }

        fn remove_chain(&mut self, _: u64) {}

        fn set_chain(&mut self, cgroup: u64, _: &Chain) -> Result<(), HostError> {
            if self.0.contains(&cgroup) { Err(HostError::broken("no memory")) } else { Ok(()) }
        }
    }

    #[test]
    fn a_refused_limit_stops_no_other_and_is_told_again() {
        let mut table = LimitTable::default();
        let cgroups = [1, 2, 3].map(|id| cgroup(id, &[limit("slice", 400_000)]));
        let untold = table.update(&cgroups).tell(&mut Picky(vec![2]));
        assert_eq!(untold.chains, [2]);
        assert_eq!(untold.cause.as_ref().map(ToString::to_string).as_deref(), Some("no memory"));
        table.forget(&untold);
        let changes = table.update(&cgroups);
        assert_eq!((&changes.chains[..], changes.in_force), (&[(2, [1, 0, 0, 0])][..], true));
        assert!(changes.tell(&mut Picky(vec![])).cause.is_none());
    }

    #[test]
    fn what_has_changed_is_told_and_nothing_else() {
        let mut table = LimitTable::default();
        let [slice, vcpu] = [limit("slice", 400_000), limit("vcpu", 50_000)];
        let cgroups = [cgroup(7, &[slice.clone(), vcpu.clone()]), cgroup(8, std::slice::from_ref(&slice))];
        let changes = table.update(&cgroups);
        assert_eq!(changes.limits, [(0, vcpu.for_policy()), (1, slice.for_policy())]);
        assert_eq!(changes.chains, [(7, [1, 2, 0, 0]), (8, [2, 0, 0, 0])]);
        assert_eq!(table.update(&cgroups), Changes { in_force: true, ..Changes::default() });
        let wider = limit("slice", 500_000);
        let changes = table.update(&[cgroup(8, std::slice::from_ref(&wider))]);
        assert_eq!(
            changes,
            Changes {
                limits: vec![(1, wider.for_policy())],
                gone: vec![7],
                in_force: true,
                ..Changes::default()
            }
        );
        assert_eq!(table.update(&[]), Changes { gone: vec![8], ..Changes::default() });
    }

    #[test]
    fn a_place_that_is_free_is_used_again() {
        let mut table = LimitTable::default();
        table.update(&[cgroup(1, &[limit("a", 1)]), cgroup(2, &[limit("b", 2)])]);
        let changes = table.update(&[cgroup(2, &[limit("b", 2)]), cgroup(3, &[limit("c", 3)])]);
        assert_eq!(changes.limits, [(0, limit("c", 3).for_policy())]);
        assert_eq!((changes.chains, changes.gone), (vec![(3, [1, 0, 0, 0])], vec![1]));
    }

    #[test]
    fn what_has_no_room_is_counted() {
        let mut table = LimitTable::default();
        let many: Vec<_> =
            (0..=u64::from(LIMITS_MAX)).map(|id| cgroup(id, &[limit(&id.to_string(), 1)])).collect();
        assert_eq!(table.update(&many).left_out, 1);
        let shared: Vec<_> =
            (0..=LIMITED_CGROUPS_MAX as u64).map(|id| cgroup(id, &[limit("one", 1)])).collect();
        assert_eq!(table.update(&shared).left_out, 1);
    }

    #[test]
    fn of_many_limits_the_tightest_count() {
        let mut table = LimitTable::default();
        let limits: Vec<_> = (1..=6).rev().map(|quota| limit(&quota.to_string(), quota)).collect();
        let changes = table.update(&[cgroup(1, &limits)]);
        let quotas: Vec<_> = changes.limits.iter().map(|(_, limit)| limit.quota_us).collect();
        assert_eq!(quotas, [1, 2, 3, 4]);
    }
}
