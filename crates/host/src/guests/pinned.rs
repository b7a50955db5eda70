//! pCPUs that VMs need because some of their threads may run nowhere else.

use crate::guests::running::vmm_processes;
use crate::machine::cpu_list::parse_cpu_list;
use std::collections::BTreeSet;

/// The pCPUs that threads of running VMs are pinned to, one each.
pub(crate) fn pinned_pcpus() -> Vec<u32> {
    vmm_processes().into_iter().flat_map(pinned_of).collect::<BTreeSet<_>>().into_iter().collect()
}

/// The same, of one process.
pub(crate) fn pinned_of(pid: u32) -> BTreeSet<u32> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return BTreeSet::new() };
    let status = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("status")).ok();
    threads.flatten().filter_map(status).filter_map(|status| only_pcpu(&status)).collect()
}

/// The one that a thread may run on, by its `status`.
fn only_pcpu(status: &str) -> Option<u32> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    match parse_cpu_list(list.trim())?[..] {
        [only] => Some(only),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_of_one_pcpu_is_pinned() {
        let of = |list: &str| {
            only_pcpu(&format!("Name:\tCPU 0/KVM\nCpus_allowed:\t20\nCpus_allowed_list:\t{list}\n"))
        };
        assert_eq!([of("5"), of("0-3"), of("0,2"), of("")], [Some(5), None, None, None]);
        assert_eq!(only_pcpu("Name:\tinit\n"), None);
    }
}
