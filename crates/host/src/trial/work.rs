//! Work that needs no help of guests: instructions that vCPUs retired in their guests' user mode.

use perf_event::events::Hardware;
use perf_event::{Builder, Counter};
use std::collections::BTreeMap;

/// Counters of vCPU threads, by thread. They count from when a thread was first asked for.
#[derive(Default)]
pub struct Instructions {
    counters: BTreeMap<u32, Counter>,
    /// This CPU, or this kernel, counts none.
    is_missing: bool,
}

impl Instructions {
    /// Returns how many instructions these threads have retired in guests' user mode so far, as a sum.
    /// `None`: they can't be counted here.
    pub fn of(&mut self, threads: &[u32]) -> Option<u64> {
        let mut sum = 0u64;
        for &thread in threads {
            sum += self.of_thread(thread)?;
        }
        Some(sum)
    }

    fn of_thread(&mut self, thread: u32) -> Option<u64> {
        if self.is_missing {
            return None;
        }
        if let std::collections::btree_map::Entry::Vacant(entry) = self.counters.entry(thread) {
            match count(thread) {
                Ok(counter) => drop(entry.insert(counter)),
                // It has ended meanwhile.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return None,
                Err(_) => {
                    self.is_missing = true;
                    return None;
                }
            }
        }
        self.counters.get_mut(&thread)?.read().ok()
    }

    /// Forgets threads that have ended.
    pub fn keep(&mut self, is_there: impl Fn(u32) -> bool) {
        self.counters.retain(|thread, _| is_there(*thread));
    }
}

fn count(thread: u32) -> std::io::Result<Counter> {
    let mut counter = Builder::new(Hardware::INSTRUCTIONS)
        .observe_pid(thread as libc::pid_t)
        .any_cpu()
        .exclude_host(true)
        .exclude_kernel(true)
        .exclude_hv(true)
        .build()?;
    counter.enable()?;
    Ok(counter)
}
