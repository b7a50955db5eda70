//! How many micro-sliced pCPUs the authors' Xen prototype keeps: `csched_event_acct` in its xen/common/sched_credit.c.
//!
//! It differs from Algorithm 1 as printed, which is `policy/pool_size.h`. A micro-sliced pCPU that somebody was sent to, and
//! that nobody has left for the normal pool since, isn't given back when profiling begins. With one of these left, profiling
//! goes on as if IPIs were dominant: one more every interval, up to the limit. There it stays: the best number is determined,
//! but not applied. Without urgent events it looks again after two profile intervals, not after an epoch. Interrupts of
//! devices, which the published code doesn't count, count as the paper's text says: like pause-loop exits.

use microslice_policy::{PoolSizeConfig, PoolSizeDecision, UrgentEvents};

#[derive(Debug, Default)]
pub struct PrototypeSize {
    profiling: bool,
}

impl PrototypeSize {
    /// What happened in the interval that ends now, with `micro_count` micro-sliced pCPUs. Those in use stay, if the
    /// decision is for fewer.
    pub fn step(
        &mut self,
        config: &PoolSizeConfig,
        seen: &UrgentEvents,
        micro_count: u32,
    ) -> PoolSizeDecision {
        let spinning = seen.ple_count.max(seen.irq_count);
        let (micro_pcpu_count, interval_ns) = if !self.profiling {
            self.profiling = true;
            (0, config.profile_interval_ns)
        } else if micro_count >= config.limit {
            self.profiling = false;
            (micro_count, config.epoch_interval_ns)
        } else if micro_count > 0 {
            (micro_count + 1, config.profile_interval_ns)
        } else if seen.ipi_count == 0 && spinning == 0 {
            self.profiling = false;
            (0, 2 * config.profile_interval_ns)
        } else {
            self.profiling = spinning <= seen.ipi_count;
            (1, if self.profiling { config.profile_interval_ns } else { config.epoch_interval_ns })
        };
        PoolSizeDecision { interval_ns, micro_pcpu_count, ..Default::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: PoolSizeConfig = PoolSizeConfig::PAPER;
    const QUIET: UrgentEvents = UrgentEvents { ipi_count: 0, ple_count: 0, irq_count: 0 };
    const SPINNING: UrgentEvents = UrgentEvents { ple_count: 100, ipi_count: 3, ..QUIET };
    const SHOOTDOWNS: UrgentEvents = UrgentEvents { ple_count: 3, ipi_count: 100, ..QUIET };

    /// Sizes and intervals of the steps after the one that begins to profile.
    fn steps(seen: &UrgentEvents, kept: u32, count: usize) -> Vec<(u32, u64)> {
        let mut size = PrototypeSize::default();
        let begins = size.step(&CONFIG, seen, kept);
        assert_eq!((begins.micro_pcpu_count, begins.interval_ns), (0, CONFIG.profile_interval_ns));
        let mut micro_count = kept;
        let mut step = || {
            let decision = size.step(&CONFIG, seen, micro_count);
            micro_count = decision.micro_pcpu_count;
            (decision.micro_pcpu_count, decision.interval_ns)
        };
        (0..count).map(|_| step()).collect()
    }

    #[test]
    fn without_urgent_events_it_looks_again_soon() {
        assert_eq!(steps(&QUIET, 0, 1), [(0, 2 * CONFIG.profile_interval_ns)]);
    }

    #[test]
    fn spinning_for_locks_gets_one_for_an_epoch() {
        assert_eq!(steps(&SPINNING, 0, 1), [(1, CONFIG.epoch_interval_ns)]);
    }

    #[test]
    fn shootdowns_get_one_more_each_interval_and_then_the_limit_for_an_epoch() {
        let profile = CONFIG.profile_interval_ns;
        let expected = [(1, profile), (2, profile), (3, profile), (3, CONFIG.epoch_interval_ns)];
        assert_eq!(steps(&SHOOTDOWNS, 0, 4), expected);
    }

    #[test]
    fn with_one_that_was_in_use_it_goes_to_the_limit_whatever_is_seen() {
        let profile = CONFIG.profile_interval_ns;
        assert_eq!(steps(&SPINNING, 1, 3), [(2, profile), (3, profile), (3, CONFIG.epoch_interval_ns)]);
    }
}
