//! Restarts that the kernel asks for: sched_ext ends every scheduler when a pCPU comes or goes, and asks for
//! it again.
//!
//! Problem.   Turning SMT off takes pCPUs away one by one; each ends the scheduler. A restart for each is a
//!            restart storm.
//! Mechanism. Nothing is started before pCPUs have come to rest, and no more often than a host can need it.

use crate::machine::topology::hotplug_seq;
use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

/// Nothing came or went for so long: there is rest.
const REST: Duration = Duration::from_millis(200);
/// An operator that toggles pCPUs all the time has a scheduler in between, too.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);
const RESTARTS_MAX: usize = 60;
const WITHIN: Duration = Duration::from_secs(60);
const STATE: &str = "/sys/kernel/sched_ext/state";

/// When restarts were, of late.
#[derive(Default)]
pub struct Restarts {
    of_late: VecDeque<Instant>,
    pub count: u64,
}

impl Restarts {
    /// May there be one more? If not: why.
    pub fn add(&mut self, now: Instant) -> Result<(), String> {
        while self.of_late.front().is_some_and(|at| now.duration_since(*at) >= WITHIN) {
            self.of_late.pop_front();
        }
        if self.of_late.len() == RESTARTS_MAX {
            return Err(format!("it asked for {} restarts within {} s", RESTARTS_MAX + 1, WITHIN.as_secs()));
        }
        self.of_late.push_back(now);
        self.count += 1;
        Ok(())
    }
}

/// Waits until pCPUs stopped coming and going and the kernel is done with the scheduler before, or until
/// `is_over` or patience ends.
pub fn wait_for_rest(is_over: impl Fn() -> bool) {
    let began = Instant::now();
    let mut seen = (hotplug_seq(), began);
    while began.elapsed() < PATIENCE && !is_over() {
        std::thread::sleep(LOOK);
        let now = hotplug_seq();
        if now != seen.0 {
            seen = (now, Instant::now());
        }
        if seen.1.elapsed() >= REST && is_disabled(Path::new(STATE)) {
            return;
        }
    }
}

fn is_disabled(state: &Path) -> bool {
    std::fs::read_to_string(state).is_ok_and(|state| state.trim() == "disabled")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_storm_of_restarts_ends_the_daemon() {
        let start = Instant::now();
        let mut calm = Restarts::default();
        assert!((0..10_000).all(|second| calm.add(start + Duration::from_secs(second)).is_ok()));
        assert_eq!(calm.count, 10_000);
        let mut storm = Restarts::default();
        let first_refused = (0..200).position(|_| storm.add(start).is_err());
        assert_eq!(first_refused, Some(RESTARTS_MAX));
        assert_eq!(storm.add(start).unwrap_err(), "it asked for 61 restarts within 60 s");
    }
}
