//! VMs without a place, said to the operator: once for each owner, whatever an owner does.

use crate::interface::VMS_MAX;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// An owner is told of again after so long.
const AGAIN_AFTER: Duration = Duration::from_secs(600);
/// Owners that are remembered. With more of them lines come no more often than for so many.
const OWNERS_MAX: usize = 64;

/// A vCPU that found no place (`struct refusal_event` of `bpf/core/intf.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    pub pid: u32,
    pub uid: u32,
    pub is_owners_bound: bool,
}

/// Whom the operator has heard of.
#[derive(Debug, Default)]
pub struct Refusals {
    /// By user; root's VMs are of many owners, told apart by their processes.
    said: BTreeMap<(u32, u32), Instant>,
}

impl Refusals {
    /// The line that is due, if one is.
    pub fn hear(&mut self, refusal: Refusal, now: Instant) -> Option<String> {
        let Refusal { pid, uid, is_owners_bound } = refusal;
        let owner = if uid == 0 { (0, pid) } else { (uid, 0) };
        self.said.retain(|_, said| now.duration_since(*said) < AGAIN_AFTER);
        if self.said.contains_key(&owner) || self.said.len() >= OWNERS_MAX {
            return None;
        }
        self.said.insert(owner, now);
        let cause = if is_owners_bound {
            "its owner has as many as one may have".to_owned()
        } else {
            format!("all of {VMS_MAX} VMs and the vCPUs are taken")
        };
        let user = if uid == 0 { String::new() } else { format!(" (user {uid})") };
        Some(format!(
            "the VM of pid {pid}{user} has no place, or some of its vCPUs have none: {cause}; it shares as one VM with all such of its owner, and is never accelerated"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pid: u32, uid: u32) -> Refusal {
        Refusal { pid, uid, is_owners_bound: true }
    }

    #[test]
    fn an_owner_is_told_of_once_however_many_vms_it_starts_and_again_when_that_was_long_ago() {
        let start = Instant::now();
        let mut refusals = Refusals::default();
        let line = refusals.hear(of(7, 1000), start).expect("a line");
        assert!(line.contains("pid 7 (user 1000)") && line.contains("as many as one may have"), "{line}");
        assert!((8..1000).all(|pid| refusals.hear(of(pid, 1000), start).is_none()));
        assert!(refusals.hear(of(7, 0), start).is_some() && refusals.hear(of(8, 0), start).is_some());
        assert!(refusals.hear(of(9, 1000), start + AGAIN_AFTER).is_some());
    }

    #[test]
    fn owners_without_number_bring_no_lines_without_number() {
        let (start, mut refusals) = (Instant::now(), Refusals::default());
        let lines = (1..10_000).filter(|uid| refusals.hear(of(1, *uid), start).is_some()).count();
        assert_eq!(lines, OWNERS_MAX);
    }
}
