//! Which pCPUs become micro-sliced, and in which order.

use crate::HostError;
use std::path::Path;

/// `PCPUS_MAX` of `bpf/intf.h`.
pub const PCPUS_MAX: usize = 1024;

/// The host's pCPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// Highest number plus one: what masks and tables are sized by.
    pub pcpu_count: u32,
    /// Online pCPUs in the order in which they join the micro pool.
    pub micro_order: Vec<u32>,
    /// Do cores have several threads that are in use?
    pub smt: bool,
}

impl Topology {
    /// Reads `/sys/devices/system/cpu`.
    pub fn read() -> Result<Self, HostError> {
        Self::read_from(Path::new("/sys/devices/system/cpu"))
    }

    fn read_from(folder: &Path) -> Result<Self, HostError> {
        let list = |file: &str| -> Result<Vec<u32>, HostError> {
            let path = folder.join(file);
            let text = std::fs::read_to_string(&path)
                .map_err(|cause| HostError::broken(format!("{}: {cause}", path.display())))?;
            parse_cpu_list(text.trim())
                .ok_or_else(|| HostError::broken(format!("{}: no list of CPUs: {text:?}", path.display())))
        };
        let online = list("online")?;
        let possible = list("possible")?;
        let pcpu_count = possible.iter().max().map_or(0, |last| last + 1);
        if online.is_empty() || pcpu_count as usize > PCPUS_MAX {
            return Err(HostError::refused(format!(
                "this host has {pcpu_count} CPUs; microslice was built for at most {PCPUS_MAX}"
            )));
        }
        let place = |cpu: u32| {
            let text = |file: &str| {
                std::fs::read_to_string(folder.join(format!("cpu{cpu}/topology/{file}"))).unwrap_or_default()
            };
            let number = |file: &str| text(file).trim().parse::<i64>().unwrap_or(0);
            let siblings = parse_cpu_list(text("thread_siblings_list").trim()).unwrap_or_default();
            Place {
                thread: siblings.iter().filter(|&&sibling| sibling < cpu).count(),
                package: number("physical_package_id"),
                core: number("core_id"),
                cpu,
            }
        };
        let smt = std::fs::read_to_string(folder.join("smt/active")).is_ok_and(|text| text.trim() == "1");
        Ok(Self { pcpu_count, micro_order: micro_order(online, place), smt })
    }
}

/// Where a pCPU is, in the order of which the last one becomes micro-sliced first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// Its number among the threads of its core.
    thread: usize,
    package: i64,
    core: i64,
    cpu: u32,
}

/// From the last package's last core down, of each core its last thread first: a micro-sliced thread is idle for most of
/// the time, and then its sibling has the core to itself. Whole cores would cost more and help nobody sooner
/// (docs/simulator.md, SMT). The first pCPU never joins: it is where the host's interrupts and housekeeping go by default.
fn micro_order(mut online: Vec<u32>, place: impl Fn(u32) -> Place) -> Vec<u32> {
    online.sort_unstable();
    online.remove(0);
    online.sort_by_cached_key(|&cpu| std::cmp::Reverse(place(cpu)));
    online
}

/// Reads the kernel's lists of CPUs: `0-3,8,10-11`.
pub fn parse_cpu_list(text: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if last < first || last >= 1 << 16 {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse_cpu_list("0-3,8,10-11"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse_cpu_list(""), Some(vec![]));
        assert_eq!(parse_cpu_list("3-1"), None);
        assert_eq!(parse_cpu_list("a"), None);
    }

    #[test]
    fn micro_pcpus_come_from_the_last_core_down_and_never_include_the_first() {
        let of_its_own = |cpu| Place { thread: 0, package: 0, core: i64::from(cpu), cpu };
        assert_eq!(micro_order(vec![0, 1, 2, 3], of_its_own), [3, 2, 1]);
        assert_eq!(micro_order(vec![0], of_its_own), Vec::<u32>::new());
        let in_two_packages = |cpu| Place { package: i64::from(1 - cpu % 2), ..of_its_own(cpu) };
        assert_eq!(micro_order(vec![0, 1, 2, 3], in_two_packages), [2, 3, 1]);
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
        Topology::read_from(folder.path()).unwrap().micro_order
    }

    #[test]
    fn one_thread_of_each_core_becomes_micro_sliced_before_both_of_any() {
        assert_eq!(order_with_cores([0, 1, 2, 0, 1, 2]), [5, 4, 3, 2, 1]);
        assert_eq!(order_with_cores([0, 0, 1, 1, 2, 2]), [5, 3, 1, 4, 2]);
        // Two cores with two threads, and two with one.
        assert_eq!(order_with_cores([0, 0, 1, 1, 2, 3]), [3, 1, 5, 4, 2]);
    }

    #[test]
    fn a_real_folder_of_cpus_is_read() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("online"), "0-2\n").unwrap();
        std::fs::write(folder.path().join("possible"), "0-7\n").unwrap();
        let topology = Topology::read_from(folder.path()).unwrap();
        assert_eq!(topology, Topology { pcpu_count: 8, micro_order: vec![2, 1], smt: false });
    }
}
