//! The event queue: one pending time per slot (a pCPU, a sleeping thread, a NIC …), never more.
//!
//! Problem: twenty million times a second a pCPU's next event is replaced, and the earliest one taken.
//! Mechanism: the pCPUs, which have nearly all events, play a knock-out tournament of four a game: a new time walks one
//! path to the top, whose place in memory depends on the pCPU alone and whose length on nothing, so that the processor
//! has neither a branch to mispredict nor a load to wait for (a heap has both at every level). What is rare has a 4-ary
//! heap of (time, slot), with each slot's place in it, so that an update moves one entry. Nothing ever allocates.
//! Order: by time, then by slot: the same on every run.

const ABSENT: u32 = u32::MAX;
const ARITY: usize = 4;

pub struct Timeline {
    pcpus: Tournament,
    pcpu_count: u32,
    others: Heap,
}

impl Timeline {
    /// Slots are numbered from 0, those of pCPUs first.
    pub fn new(pcpus: usize, slots: usize) -> Self {
        Self {
            pcpus: Tournament::new(pcpus),
            pcpu_count: pcpus as u32,
            others: Heap::new(slots.saturating_sub(pcpus)),
        }
    }

    /// Sets or replaces the time of a slot. A time from [`TIME_END_NS`] on is never.
    #[inline]
    pub fn set(&mut self, slot: u32, time_ns: u64) {
        if slot < self.pcpu_count {
            self.pcpus.set(slot, time_ns);
        } else {
            self.others.set(slot - self.pcpu_count, time_ns);
        }
    }

    /// The same for a pCPU's slot.
    #[inline]
    pub fn set_pcpu(&mut self, pcpu: u32, time_ns: u64) {
        self.pcpus.set(pcpu, time_ns);
    }

    pub fn cancel(&mut self, slot: u32) {
        if slot < self.pcpu_count {
            self.pcpus.set(slot, TIME_END_NS);
        } else {
            self.others.cancel(slot - self.pcpu_count);
        }
    }

    /// The earliest slot, left in place: most are set again at once.
    #[inline]
    pub fn peek(&self) -> Option<(u64, u32)> {
        let (pcpu_ns, pcpu) = self.pcpus.first();
        match self.others.first() {
            Some(other) if other.time_ns < pcpu_ns => Some((other.time_ns, self.pcpu_count + other.slot)),
            _ if pcpu_ns < TIME_END_NS => Some((pcpu_ns, pcpu)),
            _ => None,
        }
    }

    pub fn is_set(&self, slot: u32) -> bool {
        if slot < self.pcpu_count {
            self.pcpus.is_set(slot)
        } else {
            self.others.is_set(slot - self.pcpu_count)
        }
    }
}

/// A time and a pCPU share a word, the time first: comparing words orders by both.
const PCPU_BITS: u32 = 16;
/// pCPUs that a word has room for.
pub const PCPUS_MAX: usize = 1 << PCPU_BITS;
/// The end of time: more than three days.
pub const TIME_END_NS: u64 = u64::MAX >> PCPU_BITS;
/// ARITY to this power is `PCPUS_MAX`.
const LEVELS_MAX: usize = 8;
const NEVER: u64 = u64::MAX;

struct Tournament {
    /// Level by level, the pCPUs' own words first; each word of a higher level is the least of a game below.
    games: Vec<[u64; ARITY]>,
    /// Where each level begins in `games`.
    levels: [u32; LEVELS_MAX],
    level_count: usize,
    winner: u64,
}

impl Tournament {
    fn new(players: usize) -> Self {
        let mut levels = [0; LEVELS_MAX];
        let (mut game_count, mut level_count, mut width) = (0, 0, players.clamp(1, PCPUS_MAX));
        while level_count == 0 || width > 1 {
            levels[level_count] = game_count as u32;
            level_count += 1;
            width = width.div_ceil(ARITY);
            game_count += width;
        }
        Self { games: vec![[NEVER; ARITY]; game_count], levels, level_count, winner: NEVER }
    }

    #[inline]
    fn set(&mut self, player: u32, time_ns: u64) {
        let mut word = if time_ns < TIME_END_NS { time_ns << PCPU_BITS | u64::from(player) } else { NEVER };
        let mut place = player as usize;
        for &level in &self.levels[..self.level_count] {
            let game = &mut self.games[level as usize + place / ARITY];
            let seat = place % ARITY;
            game[seat] = word;
            // The opponents only, so that no level waits for its own store.
            word = word.min(game[seat ^ 1].min(game[seat ^ 2]).min(game[seat ^ 3]));
            place /= ARITY;
        }
        self.winner = word;
    }

    #[inline]
    fn first(&self) -> (u64, u32) {
        (self.winner >> PCPU_BITS, self.winner as u32 & (PCPUS_MAX - 1) as u32)
    }

    fn is_set(&self, player: u32) -> bool {
        self.games[player as usize / ARITY][player as usize % ARITY] != NEVER
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    time_ns: u64,
    slot: u32,
}

struct Heap {
    heap: Vec<Entry>,
    place: Vec<u32>,
}

impl Heap {
    fn new(slots: usize) -> Self {
        Self { heap: Vec::with_capacity(slots), place: vec![ABSENT; slots] }
    }

    fn set(&mut self, slot: u32, time_ns: u64) {
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

    fn cancel(&mut self, slot: u32) {
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

    #[inline]
    fn first(&self) -> Option<&Entry> {
        self.heap.first()
    }

    fn is_set(&self, slot: u32) -> bool {
        self.place[slot as usize] != ABSENT
    }

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
        for pcpus in [0, 1, 4, 5, 17, 50] {
            let mut timeline = Timeline::new(pcpus, 50);
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            let mut random = crate::random::Random::stream(7, pcpus as u64);
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
                assert_eq!(timeline.is_set(slot), model.contains_key(&slot));
                let expected = model.iter().map(|(slot, time)| (*time, *slot)).min();
                assert_eq!(timeline.peek(), expected, "{pcpus} pCPUs");
            }
        }
    }

    #[test]
    fn the_last_of_as_many_pcpus_as_there_may_be_has_room_for_the_latest_time() {
        let mut timeline = Timeline::new(PCPUS_MAX, PCPUS_MAX);
        let last = PCPUS_MAX as u32 - 1;
        timeline.set(last, TIME_END_NS - 1);
        assert_eq!(timeline.peek(), Some((TIME_END_NS - 1, last)));
        timeline.set(last, u64::MAX);
        assert_eq!(timeline.peek(), None);
    }
}
