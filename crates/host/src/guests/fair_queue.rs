//! Work for one worker, of many clients: each has its turn, however much others ask for.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A queue for each client, by number; they are served in turn.
pub struct FairQueue<Job> {
    waiting: Mutex<Waiting<Job>>,
    changed: Condvar,
}

struct Waiting<Job> {
    of: BTreeMap<u32, VecDeque<Job>>,
    served_last: u32,
    is_closed: bool,
}

impl<Job> Default for FairQueue<Job> {
    fn default() -> Self {
        let waiting = Waiting { of: BTreeMap::new(), served_last: u32::MAX, is_closed: false };
        Self { waiting: Mutex::new(waiting), changed: Condvar::new() }
    }
}

impl<Job> FairQueue<Job> {
    pub fn add(&self, who: u32, job: Job) {
        self.lock().of.entry(who).or_default().push_back(job);
        self.changed.notify_one();
    }

    /// Closes the queue: no thread waits for work any more.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Waits for the next one; none once the queue is closed.
    pub fn next(&self) -> Option<Job> {
        let mut waiting = self.lock();
        loop {
            if waiting.is_closed {
                return None;
            }
            if let Some(job) = waiting.take() {
                return Some(job);
            }
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<Job>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<Job> Waiting<Job> {
    /// Takes from the client that comes after the one that was served last.
    fn take(&mut self) -> Option<Job> {
        let after = self.of.range(self.served_last.saturating_add(1)..).next();
        let who = *after.or_else(|| self.of.iter().next())?.0;
        let jobs = self.of.get_mut(&who)?;
        let job = jobs.pop_front();
        if jobs.is_empty() {
            self.of.remove(&who);
        }
        self.served_last = who;
        job
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_vm_delays_others_by_one_turn_at_most() {
        let queue = FairQueue::default();
        (0..100).for_each(|job| queue.add(7, job));
        queue.add(3, 1000);
        queue.add(9, 2000);
        let order: Vec<i32> = (0..5).filter_map(|_| queue.next()).collect();
        assert_eq!(order, [1000, 0, 2000, 1, 2]);
        queue.add(3, 1001);
        assert_eq!((queue.next(), queue.next()), (Some(1001), Some(3)));
        queue.close();
        assert_eq!(queue.next(), None);
    }

    #[test]
    fn a_worker_that_waits_for_work_is_woken_by_it() {
        let queue = std::sync::Arc::new(FairQueue::default());
        let worker = std::thread::spawn({
            let queue = std::sync::Arc::clone(&queue);
            move || (queue.next(), queue.next())
        });
        queue.add(1, "work");
        queue.close();
        let (first, _) = worker.join().unwrap();
        assert!(first.is_none_or(|job| job == "work"));
    }
}
