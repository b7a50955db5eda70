//! The micro pool's size over time: its changes, and the pCPU time that it had.

use std::collections::VecDeque;

/// The most changes that are kept; older ones are forgotten.
const CHANGES_MAX: usize = 4096;

/// (milliseconds since the start, size, reason).
pub type Change = (u64, u32, &'static str);

pub struct PoolHistory {
    started_ns: u64,
    changes: VecDeque<Change>,
    /// Changes ever, those that are forgotten included.
    change_count: usize,
    size: u32,
    since_ns: u64,
    /// Until `since_ns`: the size, added up over time.
    pcpu_ns: u64,
}

impl PoolHistory {
    /// `started_ns`: on the host's monotonic clock, as all times here.
    pub fn new(started_ns: u64) -> Self {
        Self {
            started_ns,
            changes: VecDeque::new(),
            change_count: 0,
            size: 0,
            since_ns: started_ns,
            pcpu_ns: 0,
        }
    }

    pub fn change(&mut self, at_ns: u64, size: u32, reason: &'static str) {
        // The first change may be of before this history began: the kernel side is loaded first.
        let at_ns = at_ns.max(self.since_ns);
        self.pcpu_ns = self.pcpu_ns(at_ns);
        (self.size, self.since_ns) = (size, at_ns);
        if self.changes.len() == CHANGES_MAX {
            self.changes.pop_front();
        }
        self.changes.push_back(((at_ns - self.started_ns) / 1_000_000, size, reason));
        self.change_count += 1;
    }

    /// Changes ever.
    pub fn change_count(&self) -> usize {
        self.change_count
    }

    /// Returns the changes after the first `count` that are still kept.
    pub fn changes_after(&self, count: usize) -> Vec<Change> {
        let forgotten = self.change_count - self.changes.len();
        self.changes.iter().skip(count.saturating_sub(forgotten)).copied().collect()
    }

    /// The size, added up over time: two micro-sliced pCPUs have two seconds a second.
    pub fn pcpu_ns(&self, now_ns: u64) -> u64 {
        self.pcpu_ns + u64::from(self.size) * now_ns.saturating_sub(self.since_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn pcpu_time_is_the_size_times_how_long_it_held() {
        let mut history = PoolHistory::new(100 * MS);
        assert_eq!(history.pcpu_ns(150 * MS), 0);
        history.change(200 * MS, 1, "ipi_dominant");
        history.change(210 * MS, 3, "profile_goes_on");
        assert_eq!(history.pcpu_ns(220 * MS), 40 * MS);
        history.change(220 * MS, 0, "profile_starts");
        assert_eq!(history.pcpu_ns(900 * MS), 40 * MS);
        assert_eq!(history.changes_after(1), [(110, 3, "profile_goes_on"), (120, 0, "profile_starts")]);
    }

    #[test]
    fn a_change_told_late_counts_from_its_own_time() {
        let mut history = PoolHistory::new(0);
        history.change(0, 3, "best_found");
        assert_eq!(history.pcpu_ns(10 * MS), 30 * MS);
        history.change(9 * MS, 0, "profile_starts");
        assert_eq!(history.pcpu_ns(11 * MS), 27 * MS);
    }

    #[test]
    fn a_size_set_earlier_counts_from_the_start() {
        let mut history = PoolHistory::new(100 * MS);
        history.change(90 * MS, 2, "static");
        assert_eq!((history.pcpu_ns(110 * MS), history.changes_after(0)), (20 * MS, vec![(0, 2, "static")]));
    }

    #[test]
    fn forgotten_changes_still_count() {
        let mut history = PoolHistory::new(0);
        let changes = 2 * CHANGES_MAX as u64;
        (0..changes).for_each(|ms| history.change(ms * MS, 1, "ipi_dominant"));
        assert_eq!((history.change_count(), history.pcpu_ns(changes * MS)), (changes as usize, changes * MS));
        assert_eq!(history.changes_after(0).len(), CHANGES_MAX);
        assert_eq!(history.changes_after(2 * CHANGES_MAX - 3).len(), 3);
    }
}
