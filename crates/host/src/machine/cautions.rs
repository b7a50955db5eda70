//! Cautions: what an operator should know of a host that isn't refused, before a sched_ext scheduler is in
//! charge of it.

use crate::machine::cpu_list::parse_cpu_list;
use crate::machine::preflight;
use crate::machine::proc::{allowed_pcpus, of_threads};
use crate::machine::real_time;
use crate::machine::refused_kernels::numbers;
use std::path::Path;

/// From 48849271e661 up to 2a064262eb37 (7.0-rc2) masks of idle pCPUs are in an array of as many as nodes are
/// there. They are indexed by these nodes' numbers (`kernel/sched/ext_idle.c`, `scx_idle_init_masks`).
const MASKS_PER_NODE: [[u32; 3]; 2] = [[6, 15, 0], [7, 0, 0]];
/// Before it, all tasks of a scheduler that ends wait in one queue of each node. Each pCPU looks there for
/// those that may run on it (`kernel/sched/ext.c`, `scx_bypass`). 6.19 has queues of each pCPU instead.
const BYPASS_QUEUES_OF_PCPUS: [u32; 3] = [6, 19, 0];
/// How many threads that may run on a part of the pCPUs only are worth a line: our own choice. The kernel's
/// authors name no number.
const MANY_PARTED: usize = 1_000;
const POSSIBLE_NODES: &str = "/sys/devices/system/node/possible";

/// Returns a line for each thing that is so on this host. `release` is as `uname -r` says it.
pub fn lines(release: &str) -> Vec<String> {
    let lines = [
        real_time::warning(release),
        tickless(&preflight::tickless_pcpus()),
        gaps_between_nodes(release),
        parted_threads(release),
    ];
    lines.into_iter().flatten().collect()
}

/// A pCPU's tick stops only while a task without an end of its slice runs (`kernel/sched/ext.c`,
/// `scx_can_stop_tick`, `set_next_task_scx`). Ours have ends.
pub fn tickless(pcpus: &str) -> Option<String> {
    pcpus.starts_with(|first: char| first.is_ascii_digit()).then(|| {
        format!("nohz_full={pcpus}: those CPUs keep their ticks while a scheduler of sched_ext is in charge")
    })
}

/// Returns the line about gaps in the numbering of NUMA nodes.
pub fn gaps_between_nodes(release: &str) -> Option<String> {
    let nodes = std::fs::read_to_string(POSSIBLE_NODES).unwrap_or_default();
    line_of_gaps(nodes.trim(), release)
}

fn line_of_gaps(nodes: &str, release: &str) -> Option<String> {
    let [since, mended] = MASKS_PER_NODE;
    let numbered = parse_cpu_list(nodes)?;
    let last = numbered.iter().max()?;
    if numbered.len() > *last as usize || !(since..mended).contains(&numbers(release)) {
        return None;
    }
    Some(format!(
        "NUMA nodes {nodes} have gaps in their numbers: from Linux 6.15 to 7.0 the kernel's boot may write behind an \
         array for that (mended by 2a064262eb37)"
    ))
}

/// Returns the line about threads of which many may run on a part of the pCPUs only.
pub fn parted_threads(release: &str) -> Option<String> {
    if numbers(release) >= BYPASS_QUEUES_OF_PCPUS {
        return None;
    }
    line_of_parted(parted_count())
}

/// How many threads of this host may run on some pCPUs, but neither on all nor on one.
pub fn parted_count() -> usize {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let online = parse_cpu_list(online.trim()).map_or(0, |cpus| cpus.len());
    count_parted(Path::new("/proc"), online)
}

fn line_of_parted(count: usize) -> Option<String> {
    (count >= MANY_PARTED).then(|| {
        format!(
            "{count} threads may run on some CPUs only: before Linux 6.19 the kernel may lock up while it takes so many \
             back from a scheduler of sched_ext (bypass)"
        )
    })
}

/// What is bound to one pCPU, as most kernel threads are, is no other pCPU's to look for.
fn count_parted(proc: &Path, online: usize) -> usize {
    of_threads(proc, "status")
        .filter_map(|status| allowed_pcpus(&status))
        .filter(|pcpus| pcpus.len() > 1 && pcpus.len() < online)
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickless_pcpus_are_said_to_tick() {
        assert!(tickless("2-7").unwrap().starts_with("nohz_full=2-7: "));
        assert_eq!([tickless(""), tickless("(null)")], [None, None]);
    }

    #[test]
    fn gaps_between_nodes_are_said_where_kernels_mind() {
        let said = |nodes| line_of_gaps(nodes, "6.18.15+deb13-amd64");
        assert!(said("0,4").unwrap().starts_with("NUMA nodes 0,4 have gaps"));
        assert_eq!([said("0"), said("0-1"), said(""), said("?")], [None, None, None, None]);
        for fine in ["6.14.1", "7.0.0", "7.2.12"] {
            assert_eq!(line_of_gaps("0,4", fine), None, "{fine}");
        }
    }

    #[test]
    fn threads_of_some_pcpus_are_counted_and_few_not_said() {
        let proc = tempfile::tempdir().unwrap();
        for (tid, list) in [(7, "0-3"), (8, "0-1"), (9, "2"), (10, "1-3")] {
            let task = proc.path().join(format!("7/task/{tid}"));
            std::fs::create_dir_all(&task).unwrap();
            std::fs::write(task.join("status"), format!("Name:\tx\nCpus_allowed_list:\t{list}\n")).unwrap();
        }
        std::fs::create_dir_all(proc.path().join("sys/task/1")).unwrap();
        assert_eq!(count_parted(proc.path(), 4), 2);
        assert_eq!(line_of_parted(MANY_PARTED - 1), None);
        assert!(line_of_parted(MANY_PARTED).unwrap().starts_with("1000 threads may run"));
        assert_eq!(parted_threads("6.19.0"), None);
    }
}
