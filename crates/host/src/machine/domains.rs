//! Queue domains (`policy/queue_domain.h`): which pCPUs share queues, by what the host shows of its caches
//! and NUMA nodes.

use crate::interface::PCPUS_MAX;
use microslice_policy::{Coded, DomainRange, QueueDomain, QueueNearness, QueuePlace};
use std::collections::BTreeMap;
use std::path::Path;

/// Where one online pCPU is. Groups are called by their first pCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbourhood {
    pub cpu: u32,
    /// Its thread siblings.
    pub core: u32,
    /// Its last-level cache, by a number that all CPUs of it share; `None`: the host doesn't show it.
    pub llc: Option<u32>,
    /// Its NUMA node.
    pub node: u32,
}

/// All domains of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domains {
    pub kind: QueueDomain,
    pub count: u32,
    /// The place of each pCPU, by its number. A pCPU that isn't online counts as one of the first domain.
    pub places: Vec<QueuePlace>,
}

/// The kind that the operator calls so.
pub fn named(text: &str) -> Result<QueueDomain, String> {
    let found = QueueDomain::ALL.iter().find(|kind| kind.name() == text).copied();
    found.ok_or_else(|| format!("no queue domain {text:?}: must be pcpu, llc or host"))
}

impl Neighbourhood {
    /// Reads where one pCPU is from `folder`, `/sys/devices/system/cpu`.
    pub fn read(folder: &Path, cpu: u32) -> Self {
        let own = folder.join(format!("cpu{cpu}"));
        let first_of =
            |list: String| crate::machine::cpu_list::parse_cpu_list(list.trim())?.into_iter().min();
        let text = |path: &Path| std::fs::read_to_string(path).ok();
        let entries = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
        let numbered = |name: &str, before: &str| name.strip_prefix(before)?.parse::<u32>().ok();
        let caches = entries(&own.join("cache")).filter_map(|entry| {
            let path = entry.path();
            let level: u32 = text(&path.join("level"))?.trim().parse().ok()?;
            Some((level, first_of(text(&path.join("shared_cpu_list"))?)?))
        });
        let nodes = entries(&own).filter_map(|entry| numbered(entry.file_name().to_str()?, "node"));
        Self {
            cpu,
            core: text(&own.join("topology/thread_siblings_list")).and_then(first_of).unwrap_or(cpu),
            // Caches of the first levels are a core's own: they aren't what domains are about.
            llc: caches.filter(|(level, _)| *level >= 2).max_by_key(|(level, _)| *level).map(|(_, llc)| llc),
            node: nodes.min().unwrap_or(0),
        }
    }
}

impl Domains {
    /// Makes the domains of a host with these pCPUs. `None`: by last-level cache, or one for the whole host
    /// if that doesn't show them.
    ///
    /// # Errors
    /// By last-level cache, and the host doesn't show them.
    pub fn of_host(chosen: Option<QueueDomain>, online: &[Neighbourhood]) -> Result<Self, String> {
        let kind = match (chosen, online.iter().all(|near| near.llc.is_some())) {
            (Some(QueueDomain::Llc), false) => {
                return Err("this host doesn't show its last-level caches (/sys/devices/system/cpu/cpu*/cache): choose pcpu or host".into());
            }
            (None, false) => QueueDomain::Host,
            (kind, _) => kind.unwrap_or(QueueDomain::Llc),
        };
        Ok(Self::new(kind, online))
    }

    fn new(kind: QueueDomain, online: &[Neighbourhood]) -> Self {
        // A cache may reach over several nodes (sub-NUMA clusters): it belongs to that of its first pCPU.
        let node_of = |near: &Neighbourhood| {
            let of_cache = online.iter().filter(|other| near.llc.is_some() && other.llc == near.llc);
            of_cache.min_by_key(|other| other.cpu).map_or(near.node, |first| first.node)
        };
        // By node, cache and core, so that near pCPUs are neighbours, and near domains have near numbers.
        let mut groups: Vec<[u32; 4]> =
            online.iter().map(|near| [node_of(near), near.llc.unwrap_or(0), near.core, near.cpu]).collect();
        groups.sort_unstable();
        let members = |group: &[u32; 4]| match kind {
            QueueDomain::Pcpu => group[..4].to_vec(),
            QueueDomain::Llc => group[..2].to_vec(),
            QueueDomain::Host => Vec::new(),
        };
        let mut numbers: BTreeMap<Vec<u32>, u32> = BTreeMap::new();
        for group in &groups {
            let next = numbers.len() as u32;
            numbers.entry(members(group)).or_insert(next);
        }
        let domain = |group: &[u32; 4]| numbers[&members(group)];
        let count = numbers.len() as u32;
        let everywhere = DomainRange { first: 0, end: count };
        let elsewhere = QueuePlace { domain: 0, near: [everywhere; QueueNearness::ALL.len()] };
        let mut places = vec![elsewhere; PCPUS_MAX as usize];
        for group in &groups {
            // All that share the first so many of node, cache and core.
            let range = |shared: usize| {
                let near = groups.iter().filter(|other| other[..shared] == group[..shared]).map(domain);
                DomainRange {
                    first: near.clone().min().unwrap_or(0),
                    end: near.max().map_or(count, |last| last + 1),
                }
            };
            places[group[3] as usize] = QueuePlace { domain: domain(group), near: [3, 2, 1, 0].map(range) };
        }
        Self { kind, count, places }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use microslice_policy::queue_domain::nth_nearest_domain;
    use proptest::prelude::*;

    /// Two nodes of two caches of two cores of two threads, numbered as Linux does: all first threads first.
    fn host() -> Vec<Neighbourhood> {
        let near = |cpu: u32| {
            let core = cpu % 8;
            Neighbourhood { cpu, core, llc: Some(core / 2 * 2), node: core / 4 }
        };
        (0..16).map(near).collect()
    }

    fn looks(domains: &Domains, cpu: usize) -> Vec<u32> {
        (0..domains.count - 1).map(|n| nth_nearest_domain(&domains.places[cpu], n)).collect()
    }

    #[test]
    fn domains_are_by_pcpu_by_cache_or_one_for_all() {
        let count = |kind| Domains::new(kind, &host()).count;
        assert_eq!([QueueDomain::Pcpu, QueueDomain::Llc, QueueDomain::Host].map(count), [16, 4, 1]);
        let by_cache = Domains::new(QueueDomain::Llc, &host());
        assert_eq!([0, 1, 2, 7, 8, 15].map(|cpu: usize| by_cache.places[cpu].domain), [0, 0, 1, 3, 0, 3]);
        assert_eq!(looks(&by_cache, 2), [0, 2, 3], "the other cache of the node comes first");
        assert_eq!(looks(&by_cache, 4), [3, 0, 1]);
    }

    #[test]
    fn a_pcpu_looks_at_the_nearest_domains_first() {
        let domains = Domains::new(QueueDomain::Pcpu, &host());
        let at =
            |domain: u32| domains.places.iter().take(16).position(|place| place.domain == domain).unwrap();
        let order: Vec<usize> = looks(&domains, 1).into_iter().map(at).collect();
        assert_eq!(order[0], 9, "the other thread of its core");
        assert!([0, 8].iter().all(|cpu| order[1..3].contains(cpu)), "its cache: {order:?}");
        assert!([2, 3, 10, 11].iter().all(|cpu| order[3..7].contains(cpu)), "its node: {order:?}");
        assert_eq!(order.len(), 15);
    }

    #[test]
    fn a_cache_that_reaches_over_nodes_is_one_domain() {
        let near = |cpu: u32| Neighbourhood { cpu, core: cpu, llc: Some(0), node: cpu / 2 };
        let online: Vec<_> = (0..4).map(near).collect();
        assert_eq!(Domains::new(QueueDomain::Llc, &online).count, 1);
    }

    #[test]
    fn caches_are_asked_for_only_where_the_host_shows_them() {
        let hidden: Vec<_> = host().into_iter().map(|near| Neighbourhood { llc: None, ..near }).collect();
        let refused = Domains::of_host(Some(QueueDomain::Llc), &hidden).unwrap_err();
        assert!(refused.starts_with("this host doesn't show its last-level caches"), "{refused}");
        let count = |chosen, online: &[_]| Domains::of_host(chosen, online).unwrap().count;
        assert_eq!(count(Some(QueueDomain::Host), &hidden), 1);
        assert_eq!(count(Some(QueueDomain::Pcpu), &hidden), 16);
        assert_eq!([count(None, &hidden), count(None, &host())], [1, 4], "what holds if nothing is said");
    }

    #[test]
    fn a_real_folder_of_a_pcpu_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join("cpu5").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let bare = Neighbourhood { cpu: 5, core: 5, llc: None, node: 0 };
        assert_eq!(Neighbourhood::read(folder.path(), 5), bare);
        write("topology/thread_siblings_list", "1,5\n");
        write("cache/index0/level", "1\n");
        write("cache/index0/shared_cpu_list", "1,5\n");
        assert_eq!(Neighbourhood::read(folder.path(), 5).llc, None);
        write("cache/index3/level", "3\n");
        write("cache/index3/shared_cpu_list", "4-7\n");
        write("node1/cpulist", "4-7\n");
        let near = Neighbourhood { cpu: 5, core: 1, llc: Some(4), node: 1 };
        assert_eq!(Neighbourhood::read(folder.path(), 5), near);
    }

    #[test]
    fn unknown_names_are_refused_in_one_line() {
        assert_eq!(named("node").unwrap_err(), "no queue domain \"node\": must be pcpu, llc or host");
        let all = QueueDomain::ALL.iter().copied().map(Ok).collect::<Vec<_>>();
        assert_eq!(["pcpu", "llc", "host"].map(named).to_vec(), all);
    }

    proptest! {
        #[test]
        fn each_pcpu_looks_at_each_domain_once_nearest_first(
            online in prop::collection::btree_set(0..64u32, 1..40), kind in 0..3usize,
            core_threads in 1..3u32, cache in 1..9u32, caches in 1..5u32,
        ) {
            let near = |cpu: u32| {
                let core = cpu / core_threads * core_threads;
                let llc = core / (cache * core_threads);
                Neighbourhood { cpu, core, llc: Some(llc), node: llc / caches }
            };
            let online: Vec<_> = online.into_iter().map(near).collect();
            let domains = Domains::new(QueueDomain::ALL[kind], &online);
            let group = |domain: u32| online.iter().find(|at| domains.places[at.cpu as usize].domain == domain).unwrap();
            for at in &online {
                let order = looks(&domains, at.cpu as usize);
                let mut all = order.clone();
                all.push(domains.places[at.cpu as usize].domain);
                all.sort_unstable();
                prop_assert_eq!(all, (0..domains.count).collect::<Vec<_>>());
                let far = |domain: &u32| {
                    let other = group(*domain);
                    (other.node != at.node, other.llc != at.llc, other.core != at.core)
                };
                prop_assert!(order.is_sorted_by_key(far), "{:?} {:?}", at, order);
            }
        }
    }
}
