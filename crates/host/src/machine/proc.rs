//! Files of `/proc`: processes, their threads, and what the kernel says of one of these.

use crate::machine::cpu_list::parse_cpu_list;
use std::path::Path;

/// Returns the entries of a folder that are numbers: processes of `/proc`, threads of `/proc/PID/task`.
pub(crate) fn numbers(folder: &Path) -> impl Iterator<Item = u32> + use<> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns a file of each thread below `proc`, of those that have it.
pub(crate) fn of_threads(proc: &Path, file: &str) -> impl Iterator<Item = String> {
    let tasks = numbers(proc).map(|pid| proc.join(format!("{pid}/task")));
    let threads = tasks.flat_map(|tasks| numbers(&tasks).map(move |tid| tasks.join(tid.to_string())));
    threads.filter_map(move |thread| std::fs::read_to_string(thread.join(file)).ok())
}

/// Returns a thread's name.
pub(crate) fn name(task: &Path) -> Option<String> {
    Some(std::fs::read_to_string(task.join("comm")).ok()?.trim_end().to_owned())
}

/// Returns how long a thread ran and waited for a CPU, in nanoseconds: its `schedstat`
/// (Documentation/scheduler/sched-stats.rst).
pub(crate) fn times_ns(task: &Path) -> Option<(u64, u64)> {
    parse_times(&std::fs::read_to_string(task.join("schedstat")).ok()?)
}

fn parse_times(schedstat: &str) -> Option<(u64, u64)> {
    let mut numbers = schedstat.split_whitespace().map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Returns the process that a thread is one of. `task`: its folder, which `/proc` has of each thread.
pub(crate) fn process_of(task: &Path) -> Option<u32> {
    let status = std::fs::read_to_string(task.join("status")).ok()?;
    field(&status, "Tgid:")?.parse().ok()
}

/// Returns the pCPUs where a thread may run, by its `status`.
pub(crate) fn allowed_pcpus(status: &str) -> Option<Vec<u32>> {
    parse_cpu_list(field(status, "Cpus_allowed_list:")?)
}

fn field<'s>(status: &'s str, name: &str) -> Option<&'s str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_counts_what_a_thread_ran_and_waited() {
        assert_eq!(parse_times("4000 300 12\n"), Some((4000, 300)));
        assert_eq!(parse_times("0\n"), None);
        let own = Path::new("/proc/thread-self");
        assert!(times_ns(own).is_some());
        assert_eq!(process_of(own), Some(std::process::id()));
    }

    #[test]
    fn a_thread_may_run_where_its_status_says() {
        let of = |list: &str| {
            allowed_pcpus(&format!("Name:\tCPU 0/KVM\nCpus_allowed:\t20\nCpus_allowed_list:\t{list}\n"))
        };
        assert_eq!((of("5"), of("0,2-3")), (Some(vec![5]), Some(vec![0, 2, 3])));
        assert_eq!(allowed_pcpus("Name:\tinit\n"), None);
    }
}
