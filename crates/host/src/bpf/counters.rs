//! Counters of an interval: differences and sums, field by field.

use crate::interface::{BoostStats, HostStats, VmStats};
use microslice_policy::InterruptKind;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Counters that only grow: structs of `u64`.
pub trait Counters: Copy + FromBytes + IntoBytes + Immutable {}

impl Counters for VmStats {}
impl Counters for HostStats {}
impl Counters for BoostStats {}

/// `now - before`, counter by counter.
pub fn difference<C: Counters>(now: &C, before: &C) -> C {
    combine(now, before, u64::saturating_sub)
}

/// Both together.
pub fn sum<C: Counters>(a: &C, b: &C) -> C {
    combine(a, b, u64::wrapping_add)
}

fn combine<C: Counters>(a: &C, b: &C, operation: impl Fn(u64, u64) -> u64) -> C {
    let mut result = *a;
    let words =
        <[u64]>::mut_from_bytes(result.as_mut_bytes()).expect("aligned as u64, and a whole number of them");
    let more = <[u64]>::ref_from_bytes(b.as_bytes()).expect("likewise");
    for (word, more) in words.iter_mut().zip(more) {
        *word = operation(*word, *more);
    }
    result
}

pub(crate) fn add_up(counters: &[u64]) -> u64 {
    counters.iter().sum()
}

impl VmStats {
    /// Reschedule and call-function interrupts between its vCPUs.
    pub(crate) fn ipis(&self) -> u64 {
        [InterruptKind::IpiReschedule, InterruptKind::IpiCallFunction]
            .map(|kind| add_up(&self.interrupts[kind as usize]))
            .iter()
            .sum()
    }

    /// Returns the IPIs between its vCPUs that the scheduler `coordinated` sees.
    pub(crate) fn urgent_ipis(&self) -> u64 {
        [InterruptKind::IpiReschedule, InterruptKind::IpiCallFunction]
            .map(|kind| self.urgent.ipis[kind as usize])
            .iter()
            .sum()
    }

    /// Device interrupts to its vCPUs.
    pub(crate) fn virqs(&self) -> u64 {
        add_up(&self.interrupts[InterruptKind::Virq as usize])
    }

    /// Returns the time that its vCPUs and its VMM's other threads ran.
    pub(crate) fn had_ns(&self) -> u64 {
        self.ran_ns + self.vmm_ran_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_of_vm_and_host_counters_are_their_differences() {
        let host = |others_ran_ns| HostStats { others_ran_ns, rescued: 7, ..HostStats::default() };
        let interval = difference(&host(5), &host(3));
        assert_eq!((interval.others_ran_ns, interval.rescued), (2, 0));
        assert_eq!(sum(&interval, &host(3)).others_ran_ns, 5);
        let vm = |ran_ns| VmStats { ran_ns, ..VmStats::default() };
        assert_eq!(difference(&vm(5), &vm(3)).ran_ns, 2);
    }

    #[test]
    fn an_interval_is_the_difference_of_two_readings() {
        let vm = |ran_ns| VmStats { ran_ns, ..VmStats::default() };
        let before = vm(5);
        let now = vm(12);
        assert_eq!(difference(&now, &before).ran_ns, 7);
    }
}
