//! Hosts whose cores differ: which pCPUs are too slow to be micro-sliced.
//!
//! A micro slice is there to be over soon, and siblings spin until it is. On a slow core all of them wait for
//! longer.

use std::path::Path;

/// Files that say how fast a pCPU is, each in a unit of its own. The first that exists counts.
const FILES: [&str; 2] = [
    // Linux, drivers/base/arch_topology.c: of 1024.
    "cpu_capacity",
    // drivers/acpi/cppc_acpi.c: what x86 hybrids have.
    "acpi_cppc/highest_perf",
];

/// Slower than that part of the fastest, in per cent, is slow: the margin by which Linux finds that a task
/// doesn't fit a CPU (kernel/sched/fair.c: `fits_capacity`). Cores of one kind differ by a few per cent.
const SLOW_BELOW_PERCENT: u64 = 80;

/// Returns the pCPUs that are slower than the fastest by more than a fifth. Returns none if the speed of any
/// pCPU is unknown.
pub(crate) fn slow_pcpus(folder: &Path, pcpus: &[u32]) -> Vec<u32> {
    FILES.iter().find_map(|file| slow_by(folder, file, pcpus)).unwrap_or_default()
}

fn slow_by(folder: &Path, file: &str, pcpus: &[u32]) -> Option<Vec<u32>> {
    let speed = |&pcpu: &u32| -> Option<(u32, u64)> {
        let text = std::fs::read_to_string(folder.join(format!("cpu{pcpu}/{file}"))).ok()?;
        Some((pcpu, u64::from(text.trim().parse::<u32>().ok()?)))
    };
    let speeds = pcpus.iter().map(speed).collect::<Option<Vec<_>>>()?;
    let fastest = speeds.iter().map(|(_, speed)| *speed).max()?;
    let is_slow = |(pcpu, speed): (u32, u64)| (speed * 100 < fastest * SLOW_BELOW_PERCENT).then_some(pcpu);
    Some(speeds.into_iter().filter_map(is_slow).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow_of(file: &str, speeds: &[&str]) -> Vec<u32> {
        let folder = tempfile::tempdir().unwrap();
        for (pcpu, speed) in speeds.iter().enumerate().filter(|(_, speed)| !speed.is_empty()) {
            let path = folder.path().join(format!("cpu{pcpu}/{file}"));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{speed}\n")).unwrap();
        }
        let pcpus: Vec<u32> = (0..speeds.len() as u32).collect();
        slow_pcpus(folder.path(), &pcpus)
    }

    #[test]
    fn cores_slower_by_more_than_a_fifth_are_slow() {
        assert_eq!(slow_of("cpu_capacity", &["1024", "1024", "430", "430"]), [2, 3]);
        assert_eq!(
            slow_of("acpi_cppc/highest_perf", &["66", "64", "42", "30"]),
            [2, 3],
            "of three kinds, too"
        );
        assert_eq!(slow_of("cpu_capacity", &["100", "80", "79"]), [2]);
    }

    #[test]
    fn no_core_is_slow_where_all_are_equal_or_unknown() {
        for speeds in
            [["64", "66", "65"], ["0", "0", "0"], ["1024", "", "430"], ["", "", ""], ["a", "b", "-1"]]
        {
            assert!(slow_of("cpu_capacity", &speeds).is_empty(), "{speeds:?}");
        }
    }
}
