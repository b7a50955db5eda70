//! pCPUs that VMs need because some of their threads may run nowhere else.

use crate::guests::running::vmm_processes;
use crate::machine::proc::{allowed_pcpus, numbers};
use std::collections::BTreeSet;

/// The pCPUs that threads of running VMs are pinned to, one each.
pub(crate) fn pinned_pcpus() -> Vec<u32> {
    vmm_processes().into_iter().flat_map(pinned_of).collect::<BTreeSet<_>>().into_iter().collect()
}

/// The same, of one process.
pub(crate) fn pinned_of(pid: u32) -> BTreeSet<u32> {
    let tasks = format!("/proc/{pid}/task");
    let status = |tid| std::fs::read_to_string(format!("{tasks}/{tid}/status")).ok();
    numbers(tasks.as_ref()).filter_map(status).filter_map(|status| only_pcpu(&status)).collect()
}

/// The one that a thread may run on, by its `status`.
fn only_pcpu(status: &str) -> Option<u32> {
    match allowed_pcpus(status)?[..] {
        [only] => Some(only),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_of_one_pcpu_is_pinned() {
        let of = |list: &str| only_pcpu(&format!("Cpus_allowed_list:\t{list}\n"));
        assert_eq!([of("5"), of("0-3"), of("0,2"), of("")], [Some(5), None, None, None]);
    }
}
