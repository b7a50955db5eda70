//! CFS bandwidth control (`kernel/sched/fair.c`, Linux 6.18).
//!
//! Mechanism. A VM has a quota for each period, in one pool. A pCPU takes `sched_cfs_bandwidth_slice_us` of
//!            it at a time (`__assign_cfs_rq_runtime`). When that is used up and the pool is empty its vCPUs
//!            there are throttled, until the period ends (`throttle_cfs_rq`, `distribute_cfs_runtime`). What
//!            was used beyond is a debt of that pCPU. A pCPU whose vCPU halts gives back all but a
//!            millisecond, which others get 5 ms later (`__return_cfs_rq_runtime`,
//!            `start_cfs_slack_bandwidth`).
//! Limits.    A pCPU gives back even if another vCPU of the VM waits there: that one takes it again.

use super::Verdict;
use microslice_model::config::CpuMax;
use microslice_model::ids::{IdVec, PcpuId};

/// `sysctl_sched_cfs_bandwidth_slice`, `cfs_bandwidth_slack_period` and `min_cfs_rq_runtime`.
const SLICE_NS: u64 = 5_000_000;
const SLACK_NS: u64 = 5_000_000;
const KEPT_NS: u64 = 1_000_000;

pub(super) struct Quota {
    max: CpuMax,
    pool_ns: u64,
    /// What each pCPU has taken and not used.
    left_ns: IdVec<PcpuId, i64>,
    period_ends_ns: u64,
    /// When those that rest get what was given back.
    slack_ns: u64,
}

impl Quota {
    pub fn new(max: &CpuMax, pcpus: usize) -> Self {
        Self {
            max: *max,
            pool_ns: max.quota_ns,
            left_ns: IdVec::of(0, pcpus),
            period_ends_ns: max.period_ns,
            slack_ns: u64::MAX,
        }
    }

    pub fn next_ns(&self) -> u64 {
        self.period_ends_ns.min(self.slack_ns)
    }

    pub fn charge(&mut self, pcpu: PcpuId, ran_ns: u64) {
        self.left_ns[pcpu] -= ran_ns as i64;
    }

    /// Takes what is missing from the pool, up to so much more than nothing.
    fn take(&mut self, pcpu: PcpuId, wanted_ns: u64) {
        let left_ns = &mut self.left_ns[pcpu];
        let missing_ns = (wanted_ns as i64 - *left_ns).max(0) as u64;
        let taken_ns = missing_ns.min(self.pool_ns);
        self.pool_ns -= taken_ns;
        *left_ns += taken_ns as i64;
    }

    pub fn verdict(&mut self, pcpu: PcpuId) -> Verdict {
        if self.left_ns[pcpu] <= 0 {
            self.take(pcpu, SLICE_NS);
        }
        if self.left_ns[pcpu] > 0 { Verdict::Runs { until_ns: u64::MAX } } else { Verdict::Rests }
    }

    /// The VM doesn't need this pCPU any more, for now.
    pub fn give_back(&mut self, now_ns: u64, pcpu: PcpuId, others_rest: bool) {
        let back_ns = (self.left_ns[pcpu] - KEPT_NS as i64).max(0);
        self.left_ns[pcpu] -= back_ns;
        self.pool_ns += back_ns as u64;
        let is_soon = self.period_ends_ns < now_ns + SLACK_NS;
        if others_rest && self.pool_ns > SLICE_NS && self.slack_ns == u64::MAX && !is_soon {
            self.slack_ns = now_ns + SLACK_NS;
        }
    }

    pub fn refill(&mut self, now_ns: u64) {
        if self.slack_ns <= now_ns {
            self.slack_ns = u64::MAX;
        }
        while self.period_ends_ns <= now_ns {
            self.period_ends_ns += self.max.period_ns;
            self.pool_ns = self.max.quota_ns;
        }
    }

    /// Whether a pCPU has paid its debt, and those that rest there may run.
    pub fn releases(&mut self, pcpu: PcpuId) -> bool {
        self.take(pcpu, 1);
        self.left_ns[pcpu] > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const RUNS: Verdict = Verdict::Runs { until_ns: u64::MAX };

    /// 12 ms in each 100 ms, on two pCPUs.
    fn quota() -> (Quota, [PcpuId; 2]) {
        let max = CpuMax { quota_ns: 12 * MS, period_ns: 100 * MS };
        (Quota::new(&max, 2), [0, 1].map(PcpuId::new))
    }

    #[test]
    fn pcpus_take_slices_until_the_pool_is_empty() {
        let (mut quota, [first, second]) = quota();
        assert_eq!([first, second].map(|pcpu| quota.verdict(pcpu)), [RUNS; 2]);
        assert_eq!(quota.pool_ns, 2 * MS);
        quota.charge(first, 6 * MS);
        assert_eq!(quota.verdict(first), RUNS, "2 ms are left, of which it owes one");
        quota.charge(first, 2 * MS);
        assert_eq!(quota.verdict(first), Verdict::Rests);
        assert_eq!(quota.verdict(second), RUNS);
    }

    #[test]
    fn a_debt_is_paid_before_anybody_is_released() {
        let (mut quota, [first, second]) = quota();
        quota.verdict(first);
        quota.charge(first, 30 * MS);
        assert_eq!(quota.verdict(first), Verdict::Rests);
        quota.refill(100 * MS);
        assert!(!quota.releases(first), "13 ms less than nothing");
        quota.refill(200 * MS);
        assert!(quota.releases(first) && quota.releases(second));
        assert_eq!(quota.next_ns(), 300 * MS);
    }

    #[test]
    fn who_halts_gives_back_what_others_get_a_little_later() {
        let (mut quota, [first, second]) = quota();
        quota.pool_ns = 30 * MS;
        quota.verdict(first);
        quota.give_back(10 * MS, first, true);
        assert_eq!((quota.left_ns[first], quota.pool_ns, quota.next_ns()), (MS as i64, 29 * MS, 15 * MS));
        quota.refill(15 * MS);
        assert!(quota.releases(second));
        assert_eq!((quota.pool_ns, quota.next_ns()), (29 * MS - 1, 100 * MS));
    }
}
