//! What `cpu.weight` of the whole cgroup hierarchy gives each VM.
//!
//! Problem.   A cgroup's weight counts among its siblings, at each level anew. Counted for the whole host, a
//!            slice of four VMs has four times what a slice of one has. A user that may write one weight
//!            would take all of the host.
//! Mechanism. From the root down, each cgroup's part is divided among its children that want to run, by their
//!            weights; the VMs of one cgroup share its part alike. The policy knows one weight per VM: parts
//!            become weights of 100 on average.
//! Formula.   part(child) = part(parent) * weight(child) / sum of the weights of all children that want to
//!            run
//!            weight(VM)  = part(VM) * scale, 1 to 10000
//!            scale       = 100 * VMs that want to run, or so much more that the lightest of them has
//!                          LIGHTEST, if the heaviest then has no more than 10000
//! Limits.    Weights are whole numbers: a part below a 10,000th of the largest is more than it should be.
//!            Services of a real host have weights of their own (`service_weights.rs` of `crates/host`).

use crate::{WEIGHT_DEFAULT, WEIGHT_MAX};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The weights that a VM may have.
pub const WEIGHTS: std::ops::RangeInclusive<u32> = 1..=WEIGHT_MAX;
/// With this weight rounding is 5 % at most.
const LIGHTEST: f64 = 10.0;
const HEAVIEST: f64 = WEIGHT_MAX as f64;

/// Where a VM is in the hierarchy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// The cgroups that it lies in and their weights, the outermost first. Those without the cpu controller
    /// are left out: the kernel schedules their tasks as of the next one outside.
    pub cgroups: Vec<(PathBuf, u32)>,
    /// The weight that the operator gave it, in place of that of the outermost cgroup which no other VM lies
    /// in: its scope, its pod's slice. Where there is none it counts among the VMs of its cgroup.
    pub given: Option<u32>,
}

/// A VM, and whether it wants to run.
#[derive(Debug, Clone, Copy)]
pub struct Weighed<'p> {
    pub place: &'p Place,
    pub is_active: bool,
}

/// A node is known by the cgroup, or by the VM, and by what it lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Node<'p> {
    Cgroup(&'p Path),
    Vm(usize),
}

/// How many VMs lie in each cgroup.
fn vms_in<'p>(vms: &[Weighed<'p>]) -> BTreeMap<&'p Path, usize> {
    let mut count = BTreeMap::new();
    for (folder, _) in vms.iter().flat_map(|vm| &vm.place.cgroups) {
        *count.entry(folder.as_path()).or_default() += 1;
    }
    count
}

/// From the root's child down to the VM, with each one's weight.
fn path_of<'p>(index: usize, place: &'p Place, vms_in: &BTreeMap<&Path, usize>) -> Vec<(Node<'p>, f64)> {
    let is_its_own = |(folder, _): &(PathBuf, u32)| vms_in.get(folder.as_path()) == Some(&1);
    let own = place.given.and_then(|_| place.cgroups.iter().position(is_its_own));
    let cgroups = &place.cgroups[..own.unwrap_or(place.cgroups.len())];
    let nodes = cgroups.iter().map(|(folder, weight)| (Node::Cgroup(folder), f64::from(*weight)));
    let own = f64::from(place.given.unwrap_or(WEIGHT_DEFAULT));
    nodes.chain([(Node::Vm(index), own)]).collect()
}

/// The part of the VMs' time that is due to each, while those that want to run do so. One that doesn't has
/// what it would have if it did, too.
pub fn parts(vms: &[Weighed<'_>]) -> Vec<f64> {
    let vms_in = vms_in(vms);
    let paths: Vec<_> = vms.iter().enumerate().map(|(index, vm)| path_of(index, vm.place, &vms_in)).collect();
    // The children of each node that want to run, with their weights; the root is None.
    let mut active: BTreeMap<Option<Node<'_>>, BTreeMap<Node<'_>, f64>> = BTreeMap::new();
    for (path, _) in paths.iter().zip(vms).filter(|(_, vm)| vm.is_active) {
        let mut parent = None;
        for (node, weight) in path {
            active.entry(parent).or_default().insert(*node, *weight);
            parent = Some(*node);
        }
    }
    let sums: BTreeMap<_, f64> =
        active.iter().map(|(parent, children)| (*parent, children.values().sum())).collect();
    let part = |path: &Vec<(Node<'_>, f64)>| {
        let (mut part, mut parent) = (1.0, None);
        for (node, weight) in path {
            let is_counted = active.get(&parent).is_some_and(|children| children.contains_key(node));
            let others = sums.get(&parent).copied().unwrap_or(0.0);
            part *= weight / if is_counted { others } else { others + weight };
            parent = Some(*node);
        }
        part
    };
    paths.iter().map(part).collect()
}

/// The policy's weight of each.
pub fn weights(vms: &[Weighed<'_>]) -> Vec<u32> {
    let parts = parts(vms);
    let active = || parts.iter().zip(vms).filter(|(_, vm)| vm.is_active).map(|(part, _)| *part);
    let lightest = active().fold(1.0, f64::min);
    let heaviest = active().fold(f64::MIN_POSITIVE, f64::max);
    let scale = (f64::from(WEIGHT_DEFAULT) * active().count().max(1) as f64)
        .max((LIGHTEST / lightest).min(HEAVIEST / heaviest));
    parts.iter().map(|part| (part * scale).round().clamp(1.0, HEAVIEST) as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place(cgroups: &[(&str, u32)]) -> Place {
        let mut folder = PathBuf::new();
        let cgroups = cgroups.iter().map(|(name, weight)| {
            folder.push(name);
            (folder.clone(), *weight)
        });
        Place { cgroups: cgroups.collect(), given: None }
    }

    fn all_active(places: &[Place]) -> Vec<Weighed<'_>> {
        places.iter().map(|place| Weighed { place, is_active: true }).collect()
    }

    #[test]
    fn slices_of_four_vms_and_of_one_share_equally() {
        let mut places = vec![place(&[("one", 100), ("a", 100)])];
        places.extend(["b", "c", "d", "e"].map(|name| place(&[("four", 100), (name, 100)])));
        assert_eq!(parts(&all_active(&places)), [0.5, 0.125, 0.125, 0.125, 0.125]);
        assert_eq!(weights(&all_active(&places)), [250, 63, 63, 63, 63]);
    }

    #[test]
    fn a_delegated_weight_counts_among_siblings_only() {
        let user = place(&[("user.slice", 100), ("mine", 10_000)]);
        let machine = |name| place(&[("machine.slice", 100), (name, 100)]);
        let places = [user, machine("a"), machine("b")];
        assert_eq!(parts(&all_active(&places)), [0.5, 0.25, 0.25]);
    }

    #[test]
    fn an_idle_vm_leaves_its_part_to_its_siblings() {
        let places = [
            place(&[("one", 100), ("a", 100)]),
            place(&[("two", 100), ("b", 100)]),
            place(&[("two", 100), ("c", 300)]),
        ];
        let mut vms = all_active(&places);
        vms[2].is_active = false;
        assert_eq!(parts(&vms), [0.5, 0.5, 0.375]);
        assert_eq!(weights(&vms), [100, 100, 75]);
        vms.iter_mut().for_each(|vm| vm.is_active = false);
        assert_eq!(weights(&vms), [100; 3], "each alone");
    }

    #[test]
    fn vms_share_their_cgroups_part_by_innermost_or_given_weights() {
        let places =
            [place(&[("one", 200)]), place(&[("one", 200)]), place(&[("two", 100)]), Place::default()];
        assert_eq!(parts(&all_active(&places)), [0.25, 0.25, 0.25, 0.25]);
        let given = |cgroups, weight| Place { given: Some(weight), ..place(cgroups) };
        let places = [given(&[("slice", 100), ("a", 1)], 900), place(&[("slice", 100), ("b", 100)])];
        assert_eq!(parts(&all_active(&places)), [0.9, 0.1]);
        assert_eq!(weights(&all_active(&places)), [180, 20]);
    }

    /// Of VMs in these cgroups, all with the default weight: what the first has of the second's part, with
    /// and without a given weight.
    fn times_the_second(cgroups: &[&[&str]], given: Option<u32>) -> f64 {
        let of = |names: &&[&str]| place(&names.iter().map(|name| (*name, 100)).collect::<Vec<_>>());
        let mut places: Vec<Place> = cgroups.iter().map(of).collect();
        places[0].given = given;
        let parts = parts(&all_active(&places));
        parts[0] / parts[1]
    }

    #[test]
    fn a_given_weight_counts_in_every_layout() {
        let service: &[&str] = &["system.slice", "incus.service"];
        let in_one_service: &[&[&str]] = &[service; 10];
        let layouts: [(&str, &[&[&str]]); 9] = [
            ("libvirt with machined", &[&["machine.slice", "a.scope"], &["machine.slice", "b.scope"]]),
            (
                "libvirt without machined",
                &[&["machine", "a.libvirt-qemu", "emulator"], &["machine", "b.libvirt-qemu", "emulator"]],
            ),
            (
                "OpenNebula",
                &[
                    &["machine.slice", "qemu-12-one-1234.libvirt-qemu"],
                    &["machine.slice", "qemu-13-one-1235.libvirt-qemu"],
                ],
            ),
            (
                "KubeVirt",
                &[
                    &["kubepods.slice", "pod1.slice", "cri-containerd-1.scope"],
                    &["kubepods.slice", "pod2.slice", "cri-containerd-2.scope"],
                ],
            ),
            ("Kata", &[&["kata_overhead", "1"], &["kata_overhead", "2"]]),
            ("Proxmox", &[&["qemu.slice", "100.scope"], &["qemu.slice", "101.scope"]]),
            ("a jailer", &[&["firecracker", "a"], &["firecracker", "b"]]),
            ("Incus", in_one_service),
            ("the root", &[&[], &[]]),
        ];
        for (layout, cgroups) in layouts {
            for (given, expected) in [(None, 1.0), (Some(100), 1.0), (Some(200), 2.0), (Some(1), 0.01)] {
                let ratio = times_the_second(cgroups, given);
                assert!((ratio - expected).abs() < 1e-9, "{layout}, {given:?}: {ratio}");
            }
        }
    }

    #[test]
    fn ratios_are_kept_as_far_as_the_policys_range_allows() {
        let flat = |weights: &[u32]| -> Vec<Place> {
            weights
                .iter()
                .enumerate()
                .map(|(index, weight)| place(&[(["a", "b", "c"][index], *weight)]))
                .collect()
        };
        let of = |own: &[u32]| weights(&all_active(&flat(own)));
        assert_eq!(of(&[100, 200]), [67, 133]);
        assert_eq!(of(&[1, 100]), [10, 1000]);
        assert_eq!(of(&[1, 10_000]), [1, 10_000]);
        assert_eq!(of(&[100, 100, 100]), [100, 100, 100]);
    }

    prop_compose! {
        /// Three levels of three cgroups each.
        fn any_place()(names in prop::collection::vec(0..3usize, 0..=3), own in prop::option::of(1..=10_000u32)) -> (Vec<usize>, Option<u32>) {
            (names, own)
        }
    }

    proptest! {
        /// At each level the parts of siblings add up to their parent's, and are as their weights.
        #[test]
        fn parts_of_siblings_are_their_parents_part(
            vms in prop::collection::vec((any_place(), any::<bool>()), 1..20),
            table in prop::collection::vec(1..=10_000u32, 40),
        ) {
            let places: Vec<Place> = vms.iter().map(|((names, given), _)| {
                let mut folder = PathBuf::new();
                let cgroups = names.iter().map(|name| {
                    folder.push(name.to_string());
                    let key = folder.iter().fold(0, |key, name| {
                        3 * key + name.to_str().unwrap().parse::<usize>().unwrap() + 1
                    });
                    (folder.clone(), table[key])
                });
                Place { cgroups: cgroups.collect(), given: *given }
            }).collect();
            let weighed: Vec<Weighed<'_>> = places.iter().zip(&vms)
                .map(|(place, (_, is_active))| Weighed { place, is_active: *is_active }).collect();
            let parts = parts(&weighed);
            let mut nodes: BTreeMap<Option<Node<'_>>, BTreeMap<Node<'_>, (f64, f64)>> = BTreeMap::new();
            for (index, vm) in weighed.iter().enumerate() {
                prop_assert!(parts[index] > 0.0 && parts[index] <= 1.0);
                let mut parent = None;
                for (node, weight) in path_of(index, vm.place, &vms_in(&weighed)).into_iter().filter(|_| vm.is_active) {
                    let part = nodes.entry(parent).or_default().entry(node).or_insert((weight, 0.0));
                    part.1 += parts[index];
                    parent = Some(node);
                }
            }
            for (parent, children) in &nodes {
                let of_parent = match parent {
                    None => 1.0,
                    Some(node) => nodes.values().find_map(|siblings| siblings.get(node)).unwrap().1,
                };
                let weight: f64 = children.values().map(|(weight, _)| weight).sum();
                for (own, part) in children.values() {
                    prop_assert!((part - of_parent * own / weight).abs() < 1e-9, "{part} of {of_parent}");
                }
            }
            for weight in weights(&weighed) {
                prop_assert!((1..=10_000).contains(&weight));
            }
        }
    }
}
