//! How much of its weight an entity, or a queue, has had to run lately (kernel/sched/pelt.c, `load_avg`).
//!
//! Problem.   A group's weight on a pCPU is its part of the VM's load there. The load of the moment would
//!            swing with each sleep.
//! Mechanism. An average over periods of 2^20 ns, of which each counts half as much 32 periods later.
//! Limits.    It changes at the periods' ends only.

const PERIOD_SHIFT: u32 = 20;
const HALF_LIFE: u64 = 32;

/// 2^32 times the 32nd root of a half, to the power of each number below 32.
const DECAY: [u64; HALF_LIFE as usize] = {
    /// 2^32 times 2^(-1/32).
    const ROOT: u64 = 4_202_935_003;
    let mut powers = [1 << 32; HALF_LIFE as usize];
    let mut power = 1;
    while power < powers.len() {
        powers[power] = (powers[power - 1] * ROOT) >> 32;
        power += 1;
    }
    powers
};

fn decayed(value: u64, periods: u64) -> u64 {
    let halves = periods / HALF_LIFE;
    if halves >= u64::from(u64::BITS) {
        return 0;
    }
    let value = u128::from(value >> halves) * u128::from(DECAY[(periods % HALF_LIFE) as usize]);
    (value >> 32) as u64
}

/// In the unit of weights.
#[derive(Debug, Clone, Copy, Default)]
pub struct Load {
    pub average: u64,
    /// Weight times ns, of the period that has begun.
    part: u64,
    since_ns: u64,
}

impl Load {
    /// So much weight has been there since the last time.
    pub fn update(&mut self, now_ns: u64, weight: u64) {
        let (from_ns, now_ns) = (self.since_ns, now_ns.max(self.since_ns));
        self.since_ns = now_ns;
        let (first, last) = (from_ns >> PERIOD_SHIFT, now_ns >> PERIOD_SHIFT);
        if first == last {
            self.part += weight * (now_ns - from_ns);
            return;
        }
        let of_first = (self.part + weight * (((first + 1) << PERIOD_SHIFT) - from_ns)) >> PERIOD_SHIFT;
        self.average = decayed(self.average, 1) + of_first - decayed(of_first, 1);
        let whole = last - first - 1;
        self.average = decayed(self.average, whole) + weight - decayed(weight, whole);
        self.part = weight * (now_ns - (last << PERIOD_SHIFT));
    }

    /// A vCPU whose load this is comes along (`attach_entity_load_avg`), or goes.
    pub fn add(&mut self, other: &Self) {
        self.average += other.average;
    }

    pub fn remove(&mut self, other: &Self) {
        self.average = self.average.saturating_sub(other.average);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD_NS: u64 = 1 << PERIOD_SHIFT;

    #[test]
    fn half_of_it_is_gone_after_32_periods() {
        let mut load = Load::default();
        load.update(400 * PERIOD_NS, 1024);
        assert!(load.average >= 1020, "{load:?}");
        load.update(432 * PERIOD_NS, 0);
        assert!(load.average.abs_diff(512) < 8, "{load:?}");
        load.update(4_000 * PERIOD_NS, 0);
        assert_eq!(load.average, 0);
    }

    #[test]
    fn an_entity_that_runs_for_a_quarter_of_the_time_has_a_quarter_of_the_weight() {
        let mut load = Load::default();
        for turn in 0..2_000 {
            load.update(turn * 800_000 + 200_000, 1 << 20);
            load.update((turn + 1) * 800_000, 0);
        }
        assert!(load.average.abs_diff(1 << 18) < 1 << 13, "{load:?}");
    }
}
