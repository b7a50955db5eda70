//! What `cpu.weight` gives services: host tasks of cgroups that are no VM's.
//!
//! Problem.   The kernel's own scheduler divides time from the root of the hierarchy down. A sched_ext
//!            scheduler sees tasks.
//! Mechanism. Where root gave a cgroup another weight than the default, it and its siblings are *groups*: the
//!            tasks of each, and of what lies in it, have one clock together, of its weight. Beside that, the
//!            outermost cgroups are two sides, those that have VMs and all others: the sums of their weights
//!            say what each side gets of a pCPU that both want.
//! Formula.   weight(group) = 100 * product of weight / 100 over all cgroups that it lies in, 1 to 10000
//! Limits.    Weights that a tenant wrote, in a cgroup that is his, don't count. Groups in a group have
//!            clocks of their own beside its, so that a group of groups has more than its weight. Where all
//!            siblings have the default weight each task has a clock: a service of many has more than one of
//!            few.

use crate::HostError;
use crate::interface::{self, ServiceWeight};
use crate::machine::cgroups;
use crate::shares::weights::Weighed;
use microslice_policy::{WEIGHT_DEFAULT, WEIGHT_MAX};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub const SERVICE_CGROUPS_MAX: usize = interface::SERVICE_CGROUPS_MAX as usize;

/// Whose clock the tasks of a cgroup go by, and its weight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Group {
    id: u64,
    /// Before it is rounded.
    weight: f64,
}

impl Group {
    /// Makes the group of a cgroup with this number and weight that lies in the group `outer`.
    pub fn within(outer: Option<Self>, id: u64, own: u32) -> Self {
        let default = f64::from(WEIGHT_DEFAULT);
        let outer_weight = outer.map_or(default, |outer| outer.weight);
        // An idle cgroup (`cpu.idle`) has a weight of 0.
        Self { id, weight: outer_weight * f64::from(own.max(1)) / default }
    }

    fn for_kernel_side(self) -> ServiceWeight {
        let weight = self.weight.round().clamp(1.0, f64::from(WEIGHT_MAX)) as u32;
        ServiceWeight { group: self.id, weight, reserved: 0 }
    }
}

/// The weight of the cgroup with this folder. The default where a tenant wrote it: tenants may not take more
/// by that. `None`: it is without the cpu controller.
///
/// # Errors
/// It is there and can't be read.
pub fn own_weight(folder: &Path) -> io::Result<Option<u32>> {
    let own = cgroups::weight(folder)?;
    // Nearly all have the default: whose it is needn't be looked at.
    if own.is_none_or(|own| own == WEIGHT_DEFAULT) {
        return Ok(own);
    }
    match std::fs::metadata(folder.join("cpu.weight")) {
        Ok(metadata) => Ok(own.map(|own| if metadata.uid() == 0 { own } else { WEIGHT_DEFAULT })),
        Err(error) if cgroups::is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The weights that the kernel side was told, by the cgroup's number.
#[derive(Debug, Default)]
pub struct ServiceTable(BTreeMap<u64, ServiceWeight>);

/// Changes that the kernel side has to be told.
#[derive(Debug, Default)]
pub struct Changes {
    pub gone: Vec<u64>,
    pub weights: Vec<(u64, ServiceWeight)>,
    /// Any service has a weight.
    pub in_force: bool,
    /// Cgroups for which there was no room: they are as of the default weight.
    pub left_out: usize,
}

/// The kernel side's table.
pub trait ServiceMap {
    fn remove(&mut self, cgroup: u64);
    fn set(&mut self, cgroup: u64, weight: &ServiceWeight) -> Result<(), HostError>;
}

impl ServiceTable {
    /// The host's cgroups are like this now: those of a group, by number.
    pub fn update(&mut self, cgroups: &[(u64, Group)]) -> Changes {
        let now: BTreeMap<u64, ServiceWeight> = cgroups
            .iter()
            .take(SERVICE_CGROUPS_MAX)
            .map(|(id, group)| (*id, group.for_kernel_side()))
            .collect();
        let changes = Changes {
            gone: self.0.keys().filter(|id| !now.contains_key(id)).copied().collect(),
            weights: now
                .iter()
                .filter(|(id, weight)| self.0.get(id) != Some(weight))
                .map(|(id, weight)| (*id, *weight))
                .collect(),
            in_force: !now.is_empty(),
            left_out: cgroups.len().saturating_sub(SERVICE_CGROUPS_MAX),
        };
        self.0 = now;
        changes
    }

    /// Tells the kernel side. What it doesn't take is a change again the next time.
    ///
    /// # Errors
    /// The first that it didn't take.
    pub fn tell(&mut self, changes: &Changes, map: &mut (impl ServiceMap + ?Sized)) -> Result<(), HostError> {
        changes.gone.iter().for_each(|id| map.remove(*id));
        let mut result = Ok(());
        for (id, weight) in &changes.weights {
            if let Err(error) = map.set(*id, weight) {
                self.0.remove(id);
                result = result.and(Err(error));
            }
        }
        result
    }
}

/// The sums of the outermost cgroups' weights, of those that want to run; 0: unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sides {
    pub vms: u32,
    pub services: u32,
}

/// The time that the outermost cgroups used until they were looked at last, by folder.
#[derive(Debug, Default)]
pub struct Used(BTreeMap<PathBuf, u64>);

impl Used {
    /// Looks at them. `since`: the last look.
    pub fn sides(&mut self, mount: &Path, vms: &[Weighed<'_>], since: Duration) -> Sides {
        let outermost = |vm: &Weighed<'_>| vm.place.cgroups.first().cloned();
        let of_vms: BTreeSet<_> = vms.iter().filter_map(outermost).map(|(folder, _)| folder).collect();
        let active: BTreeMap<_, _> = vms.iter().filter(|vm| vm.is_active).filter_map(outermost).collect();
        let before = std::mem::take(&mut self.0);
        let mut services = 0;
        for (folder, weight, used_us) in used_by_outermost(mount) {
            let was_us = before.get(&folder).copied().unwrap_or(used_us);
            let is_active = u128::from(used_us.saturating_sub(was_us)) * 100 >= since.as_micros();
            if is_active && !of_vms.contains(&folder) {
                services += weight;
            }
            self.0.insert(folder, used_us);
        }
        // Kernel threads lie in no cgroup: the kernel's own scheduler weighs each as one of the default
        // weight.
        Sides { vms: active.values().sum(), services: services.max(WEIGHT_DEFAULT) }
    }
}

/// Folder, weight, and time used in us. Those that can't be read, or are without the cpu controller, are left
/// out.
fn used_by_outermost(mount: &Path) -> Vec<(PathBuf, u32, u64)> {
    let Ok(entries) = std::fs::read_dir(mount) else { return Vec::new() };
    let folders = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders
        .filter_map(|entry| {
            let weight = cgroups::weight(&entry.path()).ok()??;
            let text = std::fs::read_to_string(entry.path().join("cpu.stat")).ok()?;
            let used = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
            Some((entry.file_name().into(), weight, used.trim().parse().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::cgroups::tests::mount_with;
    use crate::shares::weights::Place;

    #[test]
    fn weights_of_nested_groups_multiply_within_the_policys_range() {
        let weight = |own, outer| Group::within(outer, 7, own).for_kernel_side().weight;
        let outer = |weight| Some(Group { id: 1, weight });
        assert_eq!(weight(100, None), 100);
        assert_eq!(weight(20, outer(50.0)), 10);
        assert_eq!(weight(20, outer(1.0)), 1);
        assert_eq!(weight(10_000, outer(200.0)), 10_000);
        assert_eq!(weight(0, None), 1, "an idle one");
    }

    #[test]
    fn a_weight_in_a_tenants_own_cgroup_does_not_count() {
        let mount = mount_with(&[("mine/cpu.weight", "10000"), ("roots/cpu.weight", "300"), ("none/a", "")]);
        std::os::unix::fs::chown(mount.path().join("mine/cpu.weight"), Some(1000), None)
            .expect("tests run as root");
        let own = |folder| own_weight(&mount.path().join(folder)).unwrap();
        assert_eq!([own("mine"), own("roots"), own("none")], [Some(100), Some(300), None]);
    }

    /// A map that takes no more than `room`.
    struct Map {
        weights: BTreeMap<u64, u32>,
        room: usize,
    }

    impl ServiceMap for Map {
        fn remove(&mut self, cgroup: u64) {
            self.weights.remove(&cgroup);
        }

        fn set(&mut self, cgroup: u64, weight: &ServiceWeight) -> Result<(), HostError> {
            if self.weights.len() == self.room {
                return Err(HostError::broken("full"));
            }
            self.weights.insert(cgroup, weight.weight);
            Ok(())
        }
    }

    #[test]
    fn only_changes_and_refused_weights_are_told() {
        let (mut table, mut map) = (ServiceTable::default(), Map { weights: BTreeMap::new(), room: 1 });
        let weigh = |id, weight| (id, Group { id, weight });
        let changes = table.update(&[weigh(1, 50.0), weigh(2, 20.0)]);
        assert!(changes.in_force && table.tell(&changes, &mut map).is_err());
        map.room = 2;
        let changes = table.update(&[weigh(1, 50.0), weigh(2, 20.0)]);
        assert_eq!(changes.weights.len(), 1);
        table.tell(&changes, &mut map).unwrap();
        assert_eq!(map.weights, [(1, 50), (2, 20)].into());
        let changes = table.update(&[weigh(2, 30.0)]);
        table.tell(&changes, &mut map).unwrap();
        assert_eq!(map.weights, [(2, 30)].into());
        assert!(!table.update(&[]).in_force);
    }

    #[test]
    fn sides_are_the_outermost_cgroups_that_want_to_run() {
        let mount = mount_with(&[
            ("machine.slice/cpu.weight", "300"),
            ("machine.slice/cpu.stat", "usage_usec 100\n"),
            ("system.slice/cpu.weight", "100"),
            ("system.slice/cpu.stat", "usage_usec 100\nuser_usec 1\n"),
            ("user.slice/cpu.weight", "200"),
            ("user.slice/cpu.stat", "usage_usec 100\n"),
        ]);
        let place = Place { cgroups: vec![("machine.slice".into(), 300), ("m/a".into(), 100)], given: None };
        let vms = [Weighed { place: &place, is_active: true }; 2];
        let mut used = Used::default();
        let second = Duration::from_secs(1);
        assert_eq!(
            used.sides(mount.path(), &vms, second),
            Sides { vms: 300, services: 100 },
            "the first look"
        );
        for folder in ["user.slice", "system.slice"] {
            std::fs::write(mount.path().join(folder).join("cpu.stat"), "usage_usec 10100\n").unwrap();
        }
        assert_eq!(used.sides(mount.path(), &vms, second), Sides { vms: 300, services: 300 });
        assert_eq!(used.sides(mount.path(), &[], second), Sides { vms: 0, services: 100 });
    }
}
