//! The event queue: one pending time per slot (a pCPU, a sleeping thread, a NIC …), never more.
//!
//! Problem: twenty million times a second a pCPU's next event is replaced, and the earliest one taken.
//! Mechanism: a 4-ary heap of (time, slot), with each slot's place in it, so that an update moves one entry instead of
//! adding a second one to be cancelled later. The heap never grows beyond the number of slots and never allocates.
//! Order: by time, then by slot: the same on every run.

const ABSENT: u32 = u32::MAX;
const ARITY: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    time_ns: u64,
    slot: u32,
}

pub struct Timeline {
    heap: Vec<Entry>,
    place: Vec<u32>,
}

impl Timeline {
    pub fn new(slots: usize) -> Self {
        Self { heap: Vec::with_capacity(slots), place: vec![ABSENT; slots] }
    }

    /// Sets or replaces the time of a slot.
    #[inline]
    pub fn set(&mut self, slot: u32, time_ns: u64) {
        let entry = Entry { time_ns, slot };
        let at = self.place[slot as usize];
        if at == ABSENT {
            self.heap.push(entry);
            self.rise(self.heap.len() - 1, entry);
        } else if entry < self.heap[at as usize] {
            self.rise(at as usize, entry);
        } else {
            self.sink(at as usize, entry);
        }
    }

    pub fn cancel(&mut self, slot: u32) {
        let at = self.place[slot as usize];
        if at == ABSENT {
            return;
        }
        self.place[slot as usize] = ABSENT;
        let last = self.heap.pop().expect("the slot is in the heap");
        if last.slot == slot {
            return;
        }
        let at = at as usize;
        if at > 0 && last < self.heap[(at - 1) / ARITY] {
            self.rise(at, last);
        } else {
            self.sink(at, last);
        }
    }

    /// The earliest slot, left in place: most are set again at once, which is one sink instead of two.
    #[inline]
    pub fn peek(&self) -> Option<(u64, u32)> {
        self.heap.first().map(|entry| (entry.time_ns, entry.slot))
    }

    pub fn is_set(&self, slot: u32) -> bool {
        self.place[slot as usize] != ABSENT
    }

    #[inline]
    fn rise(&mut self, mut at: usize, entry: Entry) {
        while at > 0 {
            let parent = (at - 1) / ARITY;
            if self.heap[parent] <= entry {
                break;
            }
            self.put(at, self.heap[parent]);
            at = parent;
        }
        self.put(at, entry);
    }

    #[inline]
    fn sink(&mut self, mut at: usize, entry: Entry) {
        let len = self.heap.len();
        loop {
            let first = at * ARITY + 1;
            if first >= len {
                break;
            }
            let mut least = first;
            for child in first + 1..(first + ARITY).min(len) {
                if self.heap[child] < self.heap[least] {
                    least = child;
                }
            }
            if self.heap[least] >= entry {
                break;
            }
            self.put(at, self.heap[least]);
            at = least;
        }
        self.put(at, entry);
    }

    #[inline]
    fn put(&mut self, at: usize, entry: Entry) {
        self.heap[at] = entry;
        self.place[entry.slot as usize] = at as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn it_orders_like_a_sorted_map_whatever_is_set_and_cancelled() {
        let mut timeline = Timeline::new(50);
        let mut model: BTreeMap<u32, u64> = BTreeMap::new();
        let mut random = crate::random::Random::stream(7, 0);
        for _ in 0..20_000 {
            let slot = (random.next() % 50) as u32;
            match random.next() % 4 {
                0 => {
                    timeline.cancel(slot);
                    model.remove(&slot);
                }
                _ => {
                    let time = random.next() % 1000;
                    timeline.set(slot, time);
                    model.insert(slot, time);
                }
            }
            let expected = model.iter().map(|(slot, time)| (*time, *slot)).min();
            assert_eq!(timeline.peek(), expected);
        }
    }
}
