//! What is left of root's rights once the scheduler is loaded.

use crate::HostError;
use caps::{CapSet, Capability, CapsHashSet};

/// SYS_ADMIN, BPF, PERFMON and SYSLOG load programs: again when a pCPU comes or goes, and the iterator over a
/// VMM's memory slots. SYS_PTRACE opens `/proc/PID/mem`, `/proc/PID/root` and `/proc/PID/fd` of others,
/// DAC_READ_SEARCH their images, and libvirt's state of domains. SYS_NICE takes the reader's nice value back.
/// The unit in `packaging/` has the same list.
pub const KEPT: [Capability; 7] = [
    Capability::CAP_SYS_ADMIN,
    Capability::CAP_BPF,
    Capability::CAP_PERFMON,
    Capability::CAP_SYSLOG,
    Capability::CAP_SYS_PTRACE,
    Capability::CAP_DAC_READ_SEARCH,
    Capability::CAP_SYS_NICE,
];

/// Drops all others, of the calling thread and of those that it starts from now on. No program that they
/// execute has more.
///
/// # Errors
/// The kernel doesn't take them away.
pub fn keep_only_used() -> Result<(), HostError> {
    let failed =
        |cause: caps::errors::CapsError| HostError::broken(format!("dropping capabilities: {cause}"));
    let kept: CapsHashSet = KEPT.into_iter().collect();
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP).map_err(failed)? {
        let bounding = caps::read(None, CapSet::Bounding).map_err(failed)?;
        for capability in bounding.difference(&kept) {
            caps::drop(None, CapSet::Bounding, *capability).map_err(failed)?;
        }
    }
    let permitted = caps::read(None, CapSet::Permitted).map_err(failed)?;
    let left = permitted.intersection(&kept).copied().collect();
    caps::set(None, CapSet::Inheritable, &CapsHashSet::new()).map_err(failed)?;
    caps::set(None, CapSet::Effective, &left).map_err(failed)?;
    caps::set(None, CapSet::Permitted, &left).map_err(failed)
}

/// Drops every one, of the calling thread only. Fewer rights are never refused.
pub(crate) fn drop_all() {
    for set in [CapSet::Effective, CapSet::Permitted, CapSet::Inheritable] {
        let _ = caps::clear(None, set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_and_their_children_keep_only_used_capabilities() {
        // Threads have capabilities of their own: the test's others keep theirs.
        let left = std::thread::spawn(|| {
            keep_only_used().unwrap();
            std::thread::spawn(|| {
                [CapSet::Permitted, CapSet::Effective].map(|set| caps::read(None, set).unwrap())
            })
            .join()
            .unwrap()
        });
        for set in left.join().unwrap() {
            assert!(set.iter().all(|capability| KEPT.contains(capability)), "{set:?}");
        }
    }

    #[test]
    fn dropping_all_leaves_a_thread_none_and_others_theirs() {
        let before = caps::read(None, CapSet::Effective).unwrap();
        let left = std::thread::spawn(|| {
            drop_all();
            [CapSet::Permitted, CapSet::Effective].map(|set| caps::read(None, set).unwrap())
        });
        assert!(left.join().unwrap().iter().all(std::collections::HashSet::is_empty));
        assert_eq!(caps::read(None, CapSet::Effective).unwrap(), before);
    }

    #[test]
    fn the_unit_and_the_program_keep_the_same() {
        const UNIT: &str = include_str!("../../../../packaging/microslice.service");
        let line = UNIT.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
        assert_eq!(line, KEPT.map(|capability| capability.to_string()).join(" "));
    }
}
