//! The host's pCPUs: which of them become micro-sliced, in which order, and where they are.

use crate::HostError;
use crate::interface::PCPUS_MAX;
use crate::machine::capacity::slow_pcpus;
use crate::machine::cgroups;
use crate::machine::cpu_list::{cpu_list, parse_cpu_list};
use crate::machine::domains::Neighbourhood;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;

/// The host's pCPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// Highest number plus one: what masks and tables are sized by.
    pub pcpu_count: u32,
    /// Online pCPUs in the order in which they join the micro pool.
    pub micro_order: Vec<u32>,
    /// Online pCPUs that the operator set apart, and that never join: no other VM may run there.
    pub isolated: Vec<u32>,
    /// Online pCPUs of the normal pool that are too slow to join.
    pub slow: Vec<u32>,
    /// Online pCPUs that VMs are pinned to, and that don't join for that.
    pub pinned: Vec<u32>,
    /// Where each online pCPU is, isolated or not.
    pub neighbourhoods: Vec<Neighbourhood>,
    /// Do cores have several threads that are in use?
    pub smt: bool,
    /// How often pCPUs had come and gone when this was read; 0: unknown.
    pub hotplug_seq: u64,
}

const HOTPLUG_SEQ: &str = "/sys/kernel/sched_ext/hotplug_seq";

/// sched_ext's count of pCPUs that came or went; 0: unknown.
pub fn hotplug_seq() -> u64 {
    std::fs::read_to_string(HOTPLUG_SEQ).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

impl Topology {
    /// Reads `/sys/devices/system/cpu`, and what cpusets isolate.
    pub fn read() -> Result<Self, HostError> {
        // First: what changes while the rest is read is then a change.
        let hotplug_seq = hotplug_seq();
        let topology = Self::read_from(Path::new("/sys/devices/system/cpu"), Path::new(cgroups::MOUNT))?;
        Ok(Self { hotplug_seq, ..topology })
    }

    fn read_from(folder: &Path, cgroups: &Path) -> Result<Self, HostError> {
        let mut online = read_list(&folder.join("online"))?.unwrap_or_default();
        let possible = read_list(&folder.join("possible"))?.unwrap_or_default();
        let pcpu_count = possible.iter().max().map_or(0, |last| last + 1);
        if online.is_empty() || pcpu_count > PCPUS_MAX {
            return Err(HostError::refused(format!(
                "this host has {pcpu_count} CPUs; microslice was built for at most {PCPUS_MAX}"
            )));
        }
        let neighbourhoods: Vec<_> = online.iter().map(|&cpu| Neighbourhood::read(folder, cpu)).collect();
        let place = |cpu: u32| {
            let text = |file: &str| {
                std::fs::read_to_string(folder.join(format!("cpu{cpu}/topology/{file}"))).unwrap_or_default()
            };
            let number = |file: &str| text(file).trim().parse::<i64>().unwrap_or(0);
            let siblings = parse_cpu_list(text("thread_siblings_list").trim()).unwrap_or_default();
            Place {
                thread: siblings.iter().filter(|&&sibling| sibling < cpu).count(),
                package: number("physical_package_id"),
                node: neighbourhoods.iter().find(|near| near.cpu == cpu).map_or(0, |near| near.node),
                core: number("core_id"),
                cpu,
            }
        };
        let smt = std::fs::read_to_string(folder.join("smt/active")).is_ok_and(|text| text.trim() == "1");
        let set_apart = isolated(folder, cgroups)?;
        let isolated: Vec<u32> = online.extract_if(.., |cpu| set_apart.contains(cpu)).collect();
        let slow = slow_pcpus(folder, &online);
        let micro_order = micro_order(online, &slow, place);
        if micro_order.is_empty() && slow.is_empty() && !isolated.is_empty() {
            return Err(HostError::refused(format!(
                "CPUs {} are isolated, and of the others none could be micro-sliced (one stays normal)",
                cpu_list(&isolated)
            )));
        }
        let pinned = Vec::new();
        Ok(Self { pcpu_count, micro_order, isolated, slow, pinned, neighbourhoods, smt, hotplug_seq: 0 })
    }

    /// Keeps pCPUs out of the micro pool: those that the operator names, and those that VMs are pinned to.
    pub fn keep_normal(&mut self, named: &[u32], pinned: &[u32]) {
        self.micro_order.retain(|cpu| !named.contains(cpu));
        self.pinned = pinned.iter().copied().filter(|cpu| self.micro_order.contains(cpu)).collect();
        self.micro_order.retain(|cpu| !pinned.contains(cpu));
    }

    /// How many pCPUs the pools have together: all that are online but those that are isolated.
    pub fn wide_pcpu_count(&self) -> u32 {
        let is_isolated = |near: &&Neighbourhood| self.isolated.contains(&near.cpu);
        (self.neighbourhoods.len() - self.neighbourhoods.iter().filter(is_isolated).count()) as u32
    }
}

/// Where a pCPU is, in the order of which the last one becomes micro-sliced first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// Its number among the threads of its core.
    thread: usize,
    package: i64,
    /// Its NUMA node: a package may have several, and a node several packages.
    node: u32,
    core: i64,
    cpu: u32,
}

/// Packages and NUMA nodes take turns, from the last one down. A VM that is pinned to one of them may use
/// micro-sliced pCPUs there only.
///
/// Within each, cores join from the last one down, of each core its last thread first: a micro-sliced thread
/// is idle for most of the time, and then its sibling has the core to itself. Whole cores would cost more and
/// help no vCPU sooner (docs/explanation/simulator.md, SMT). The first pCPU that isn't isolated never joins:
/// it is where the host's interrupts and housekeeping go by default.
fn micro_order(mut online: Vec<u32>, slow: &[u32], place: impl Fn(u32) -> Place) -> Vec<u32> {
    online.sort_unstable();
    online.drain(..online.len().min(1));
    online.retain(|cpu| !slow.contains(cpu));
    let mut places: Vec<Place> = online.into_iter().map(place).collect();
    places.sort_unstable();
    places.reverse();
    let mut taken: BTreeMap<(usize, i64, u32), usize> = BTreeMap::new();
    let mut turn = |place: &Place| {
        let of_its_node = taken.entry((place.thread, place.package, place.node)).or_default();
        *of_its_node += 1;
        *of_its_node
    };
    let mut by_turns: Vec<(usize, Place)> = places.into_iter().map(|place| (turn(&place), place)).collect();
    // A stable sort: those of one turn stay in their order.
    by_turns.sort_by_key(|(turn, place)| (Reverse(place.thread), *turn));
    by_turns.into_iter().map(|(_, place)| place.cpu).collect()
}

/// By `isolcpus=` (but a host with that is refused, unless only its interrupts are meant), and by cpuset
/// partitions, which kernels before 6.7 don't list.
fn isolated(folder: &Path, cgroups: &Path) -> Result<Vec<u32>, HostError> {
    let mut cpus = read_list(&folder.join("isolated"))?.unwrap_or_default();
    cpus.extend(read_list(&cgroups.join("cpuset.cpus.isolated"))?.unwrap_or_default());
    Ok(cpus)
}

/// The CPUs that a file lists; `None` if there is no such file.
fn read_list(path: &Path) -> Result<Option<Vec<u32>>, HostError> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if cgroups::is_gone(&error) => return Ok(None),
        read => read.map_err(|cause| HostError::broken(format!("{}: {cause}", path.display())))?,
    };
    let list = parse_cpu_list(text.trim());
    list.map(Some).ok_or_else(|| HostError::broken(format!("{}: no list of CPUs: {text:?}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn micro_pcpus_come_from_the_last_core_never_the_first() {
        let of_its_own = |cpu| Place { thread: 0, package: 0, node: 0, core: i64::from(cpu), cpu };
        assert_eq!(micro_order(vec![0, 1, 2, 3], &[], of_its_own), [3, 2, 1]);
        assert_eq!(micro_order(vec![0], &[], of_its_own), Vec::<u32>::new());
        assert_eq!(micro_order(vec![0, 1, 2, 3], &[2, 3], of_its_own), [1]);
        assert_eq!(
            micro_order(vec![0, 1, 2, 3], &[0, 1], of_its_own),
            [3, 2],
            "a slow first one stays normal, too"
        );
    }

    /// A host of these nodes, of four cores of two threads each. Linux numbers all first threads, node by
    /// node, then all second ones. Each package has `nodes_per_package` nodes.
    fn order_with_nodes(nodes: u32, nodes_per_package: u32) -> Vec<u32> {
        let cores = nodes * 4;
        let place = |cpu: u32| {
            let core = cpu % cores;
            let node = core / 4;
            Place {
                thread: (cpu / cores) as usize,
                package: i64::from(node / nodes_per_package),
                node,
                core: i64::from(core),
                cpu,
            }
        };
        micro_order((0..2 * cores).collect(), &[], place)
    }

    #[test]
    fn two_nodes_join_by_turns_first_one_thread_per_core() {
        let order = order_with_nodes(2, 1);
        assert_eq!(
            order[..8],
            [15, 11, 14, 10, 13, 9, 12, 8],
            "second threads, of node 1 and node 0 by turns"
        );
        assert_eq!(order[8..], [7, 3, 6, 2, 5, 1, 4], "then first ones, without the host's first pCPU");
        assert_eq!(order_with_nodes(2, 2), order, "in one package, too");
    }

    #[test]
    fn each_of_eight_nodes_joins_once_before_any_twice() {
        for nodes_per_package in [1, 4] {
            let order = order_with_nodes(8, nodes_per_package);
            let nodes: Vec<u32> = order.iter().map(|cpu| cpu % 32 / 4).collect();
            for (turn, nodes) in nodes.chunks(8).enumerate() {
                let from_the_last_down = (0..8).rev().take(nodes.len());
                assert!(nodes.iter().copied().eq(from_the_last_down), "turn {turn}: {nodes:?}");
            }
            assert!(order[..32].iter().all(|cpu| *cpu >= 32), "one thread of each core first: {order:?}");
            assert_eq!(order.len(), 63);
        }
    }

    #[test]
    fn an_exhausted_node_leaves_its_turns_to_others() {
        let place =
            |cpu: u32| Place { thread: 0, package: 0, node: u32::from(cpu >= 6), core: cpu.into(), cpu };
        assert_eq!(micro_order((0..8).collect(), &[], place), [7, 5, 6, 4, 3, 2, 1]);
        assert_eq!(micro_order((0..8).collect(), &[7], place), [6, 5, 4, 3, 2, 1], "a slow one has none");
    }

    #[test]
    fn two_packages_of_one_node_join_by_turns() {
        let in_packages_of = |size: u32| {
            move |cpu: u32| Place { thread: 0, package: (cpu / size).into(), node: 0, core: cpu.into(), cpu }
        };
        assert_eq!(micro_order((0..6).collect(), &[], in_packages_of(3)), [5, 2, 4, 1, 3]);
        assert_eq!(micro_order((0..6).collect(), &[], in_packages_of(6)), [5, 4, 3, 2, 1]);
    }

    /// A folder of six pCPUs, of which those with one number here are threads of one core.
    fn order_with_cores(cores: [usize; 6]) -> Vec<u32> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("online"), "0-5\n").unwrap();
        std::fs::write(folder.path().join("possible"), "0-5\n").unwrap();
        for (cpu, core) in cores.iter().enumerate() {
            let topology = folder.path().join(format!("cpu{cpu}/topology"));
            let threads = (0..6).filter(|&other| cores[other] == *core).map(|other| other.to_string());
            let list = threads.collect::<Vec<_>>().join(",");
            std::fs::create_dir_all(&topology).unwrap();
            std::fs::write(topology.join("physical_package_id"), "0\n").unwrap();
            std::fs::write(topology.join("core_id"), format!("{core}\n")).unwrap();
            std::fs::write(topology.join("thread_siblings_list"), format!("{list}\n")).unwrap();
        }
        Topology::read_from(folder.path(), folder.path()).unwrap().micro_order
    }

    #[test]
    fn one_thread_of_each_core_joins_before_both() {
        assert_eq!(order_with_cores([0, 1, 2, 0, 1, 2]), [5, 4, 3, 2, 1]);
        assert_eq!(order_with_cores([0, 0, 1, 1, 2, 2]), [5, 3, 1, 4, 2]);
        // Two cores with two threads, and two with one.
        assert_eq!(order_with_cores([0, 0, 1, 1, 2, 3]), [3, 1, 5, 4, 2]);
    }

    #[test]
    fn nodes_are_read_where_the_host_shows_them() {
        let folder = tempfile::tempdir().unwrap();
        for file in ["online", "possible"] {
            std::fs::write(folder.path().join(file), "0-5\n").unwrap();
        }
        for cpu in 0..6 {
            let node = folder.path().join(format!("cpu{cpu}/node{}", cpu / 3));
            std::fs::create_dir_all(node).unwrap();
        }
        let topology = Topology::read_from(folder.path(), folder.path()).unwrap();
        assert_eq!(topology.micro_order, [5, 2, 4, 1, 3]);
    }

    #[test]
    fn a_real_folder_of_cpus_is_read() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("online"), "0-2\n").unwrap();
        std::fs::write(folder.path().join("possible"), "0-7\n").unwrap();
        let topology = Topology::read_from(folder.path(), folder.path()).unwrap();
        let expected = Topology {
            pcpu_count: 8,
            micro_order: vec![2, 1],
            isolated: vec![],
            slow: vec![],
            pinned: vec![],
            smt: false,
            hotplug_seq: 0,
            neighbourhoods: topology.neighbourhoods.clone(),
        };
        assert_eq!(topology, expected);
        assert!(topology.neighbourhoods.iter().map(|near| near.cpu).eq(0..3));
    }

    #[test]
    fn pcpus_that_are_named_or_pinned_to_stay_normal() {
        let mut topology = with_isolated("", "").unwrap();
        topology.keep_normal(&[7, 1], &[0, 2, 7]);
        assert_eq!((topology.micro_order, topology.pinned), (vec![6, 5, 4, 3], vec![2]));
        let mut all = with_isolated("", "").unwrap();
        all.keep_normal(&[], &[0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(all.micro_order.is_empty(), "no VM loses the pCPU that it was given");
    }

    /// Of eight pCPUs, with what the kernel and cpusets isolate.
    fn with_isolated(kernel: &str, cpusets: &str) -> Result<Topology, HostError> {
        let folder = tempfile::tempdir().unwrap();
        for file in ["online", "possible"] {
            std::fs::write(folder.path().join(file), "0-7\n").unwrap();
        }
        std::fs::write(folder.path().join("isolated"), format!("{kernel}\n")).unwrap();
        std::fs::write(folder.path().join("cpuset.cpus.isolated"), format!("{cpusets}\n")).unwrap();
        Topology::read_from(folder.path(), folder.path())
    }

    #[test]
    fn isolated_pcpus_are_never_micro_sliced() {
        let topology = with_isolated("", "5-7").unwrap();
        assert_eq!((topology.micro_order, topology.isolated), (vec![4, 3, 2, 1], vec![5, 6, 7]));
        let topology = with_isolated("1,7", "3,7").unwrap();
        assert_eq!((topology.micro_order, topology.isolated), (vec![6, 5, 4, 2], vec![1, 3, 7]));
        let topology = with_isolated("0-1", "").unwrap();
        assert_eq!(topology.micro_order, [7, 6, 5, 4, 3], "the first that isn't isolated stays normal");
        for isolated in ["1-7", "0-7"] {
            let refused = with_isolated("", isolated).unwrap_err();
            let line = format!(
                "CPUs {isolated} are isolated, and of the others none could be micro-sliced (one stays normal)"
            );
            assert_eq!((refused.is_refusal(), refused.to_string()), (true, line));
        }
    }

    /// Of six pCPUs, of which the last ones have this capacity and the others the most.
    fn with_slow(count: u32, capacity: u32) -> Topology {
        let folder = tempfile::tempdir().unwrap();
        for file in ["online", "possible"] {
            std::fs::write(folder.path().join(file), "0-5\n").unwrap();
        }
        for cpu in 0..6 {
            let capacity = if cpu < 6 - count { 1024 } else { capacity };
            std::fs::create_dir(folder.path().join(format!("cpu{cpu}"))).unwrap();
            std::fs::write(folder.path().join(format!("cpu{cpu}/cpu_capacity")), format!("{capacity}\n"))
                .unwrap();
        }
        Topology::read_from(folder.path(), folder.path()).unwrap()
    }

    #[test]
    fn slow_pcpus_stay_in_the_normal_pool() {
        let topology = with_slow(3, 500);
        assert_eq!((&topology.micro_order[..], &topology.slow[..]), (&[2, 1][..], &[3, 4, 5][..]));
        assert_eq!(topology.wide_pcpu_count(), 6);
        let topology = with_slow(5, 500);
        assert_eq!(
            (topology.micro_order.len(), topology.wide_pcpu_count()),
            (0, 6),
            "one fast pCPU stays normal"
        );
        assert_eq!(with_slow(3, 1000).micro_order, [5, 4, 3, 2, 1]);
    }

    #[test]
    fn lists_of_cpus_are_written_as_the_kernel_writes_them() {
        assert_eq!(cpu_list(&[0, 1, 2, 3, 8, 10, 11]), "0-3,8,10-11");
        assert_eq!(cpu_list(&[]), "");
    }
}
