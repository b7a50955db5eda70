//! What the schedulers and the machine count of a run.

use microslice_metrics::Histogram;
use microslice_policy::{Cause, Coded, GuestClass};

/// Turns that end in windows around their end, by the names that `microslice run` has for them. Put off are
/// those that ended safe, by force and otherwise, and those that are just now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DelayReport {
    /// Preemptions that were put off, because the vCPU wasn't safe.
    pub put_off: u64,
    /// Those of them that ended where it was safe, and by force.
    pub ended_safe: u64,
    pub ended_forced: u64,
    /// The vCPU gave its pCPU up by itself, or a micro slice came.
    pub ended_otherwise: u64,
    /// Turns that ended in their window; what those of them had beyond their due end that ended behind it,
    /// and what the others were short of.
    pub turns: u64,
    pub beyond_ns: u64,
    pub short_ns: u64,
    /// The host's looks that found a put-off vCPU not safe yet; none where it is told.
    pub looks: u64,
    /// Further turns that ended early, because their guest had overdrawn.
    pub penalised: u64,
}

impl DelayReport {
    pub fn count_turn(&mut self, due_ns: u64, ended_ns: u64, penalised: bool) {
        if penalised {
            self.penalised += 1;
        } else {
            self.turns += 1;
            self.beyond_ns += ended_ns.saturating_sub(due_ns);
            self.short_ns += due_ns.saturating_sub(ended_ns);
        }
    }

    pub fn count_end(&mut self, forced: bool, was_put_off: bool) {
        self.ended_safe += u64::from(was_put_off && !forced);
        self.ended_forced += u64::from(was_put_off && forced);
    }
}

/// What queues' locks cost: part of the pCPUs' overhead, but for what pCPUs that idle next had time for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueLockTimes {
    pub operations: u64,
    pub held_ns: u64,
    /// Until its holder let go.
    pub waited_ns: u64,
    pub longest_wait_ns: u64,
}

impl std::ops::AddAssign for QueueLockTimes {
    fn add_assign(&mut self, other: Self) {
        self.operations += other.operations;
        self.held_ns += other.held_ns;
        self.waited_ns += other.waited_ns;
        self.longest_wait_ns = self.longest_wait_ns.max(other.longest_wait_ns);
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct PoolReport {
    /// (time since the start, micro pCPUs), one entry per change.
    pub sizes: Vec<(u64, u32)>,
    /// Time-weighted mean over the measured time.
    pub mean_micro_pcpus: f64,
    /// Decisions to accelerate, which the fields below count: each is an acceleration or a failed pull.
    pub accelerations: [ByCause; GuestClass::ALL.len()],
    pub failed_pulls: [ByCause; FailedPull::ALL.len()],
    /// Of those accelerations; a vCPU that was in the micro pool before measuring began isn't counted.
    pub returns: u64,
    /// And those that are still there at the end.
    pub still_accelerated: u64,
    /// How long accelerated vCPUs ran before they returned.
    pub micro_slices: Histogram,
    /// Micro slices that ended with the interrupt unhandled or still in critical code.
    pub slice_ended_unfinished: u64,
    /// Turns of the normal pool made longer by a micro slice.
    pub graces: u64,
    /// Passes for siblings that had found no room.
    pub asked_again: u64,
    /// Micro slices on pCPUs of the normal pool.
    pub home_slices: u64,
    /// vCPUs of the normal pool that lost a micro pCPU which was lent to them.
    pub called_back: u64,
    /// Turns that began before those of vCPUs that had waited longer: by a directed yield, for warm caches.
    pub overtakes: [u64; 2],
}

/// Why a decision to accelerate a vCPU came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailedPull {
    /// Every micro pCPU had one queued already.
    QueueFull,
    /// It ran, or was blocked, before it could be pulled.
    LeftQueue,
    /// Its VM has had more than that of the first that waits.
    VmAhead,
    /// Its VM, or all VMs together and it most, have used up what they may have by boosts.
    OverBudget,
    /// It may run on one pCPU only, which the operator chose for it.
    Pinned,
}

impl FailedPull {
    /// In order, so that `ALL[reason as usize]` is `reason`.
    pub const ALL: [Self; 5] =
        [Self::QueueFull, Self::LeftQueue, Self::VmAhead, Self::OverBudget, Self::Pinned];

    pub fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "no_room",
            Self::LeftQueue => "overtaken",
            Self::VmAhead => "vm_ahead",
            Self::OverBudget => "over_budget",
            Self::Pinned => "pinned",
        }
    }
}

/// Counts of decisions, by what led to them: an array, since prototype passes make millions of them a second.
type ByCause = [u64; Cause::ALL.len()];

impl PoolReport {
    /// Counts a request that became an acceleration.
    pub fn count_acceleration(&mut self, class: GuestClass, cause: Cause) {
        self.accelerations[class as usize][cause as usize] += 1;
    }

    /// Counts requests that came to nothing.
    pub fn count_failed_pulls(&mut self, cause: Cause, reason: FailedPull, count: u32) {
        self.failed_pulls[reason as usize][cause as usize] += u64::from(count);
    }

    /// Decisions to accelerate, by what led to them.
    pub fn requests(&self) -> impl Iterator<Item = (Cause, u64)> {
        let all = || self.accelerations.iter().chain(&self.failed_pulls);
        Cause::ALL.iter().map(move |&cause| (cause, all().map(|by| by[cause as usize]).sum()))
    }

    pub fn accelerations(&self) -> impl Iterator<Item = (GuestClass, Cause, u64)> {
        GuestClass::ALL.iter().flat_map(move |&class| {
            Cause::ALL
                .iter()
                .map(move |&cause| (class, cause, self.accelerations[class as usize][cause as usize]))
        })
    }

    pub fn failed_pulls(&self) -> impl Iterator<Item = (FailedPull, u64)> {
        FailedPull::ALL.into_iter().map(|reason| (reason, self.failed_pulls[reason as usize].iter().sum()))
    }

    /// All accelerations.
    pub fn acceleration_count(&self) -> u64 {
        self.accelerations().map(|(_, _, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_pulls_are_counted_by_their_number() {
        assert!(FailedPull::ALL.iter().enumerate().all(|(number, reason)| *reason as usize == number));
    }

    #[test]
    fn a_request_is_an_acceleration_or_a_failed_pull() {
        let mut pool = PoolReport::default();
        pool.count_acceleration(GuestClass::LockHolder, Cause::LockYield);
        pool.count_failed_pulls(Cause::LockYield, FailedPull::QueueFull, 3);
        pool.count_failed_pulls(Cause::Virq, FailedPull::LeftQueue, 1);
        let requests: Vec<_> = pool.requests().filter(|&(_, count)| count > 0).collect();
        assert_eq!(requests, [(Cause::LockYield, 4), (Cause::Virq, 1)]);
        assert_eq!(pool.acceleration_count(), 1);
        assert_eq!(
            pool.failed_pulls().map(|(reason, count)| (reason.name(), count)).collect::<Vec<_>>(),
            [("no_room", 3), ("overtaken", 1), ("vm_ahead", 0), ("over_budget", 0), ("pinned", 0)]
        );
    }
}
