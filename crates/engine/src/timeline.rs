//! The event queue: one pending time per slot (a pCPU, a sleeping thread, a NIC …), never more.
//!
//! Problem.   Twenty million times a second a pCPU's next event is replaced, and the earliest one taken.
//! Mechanism. The pCPUs have nearly all events. They play a knock-out tournament of four a game: a new time
//!            walks one path to the top. The path's place in memory depends on the pCPU alone, and its length
//!            on nothing. So the processor has neither a branch to mispredict nor a load to wait for (a heap
//!            has both at every level). The next event is nearly always another pCPU's, whose time is known
//!            before the new one. The processor is told by a branch, not by a minimum, so that it begins with
//!            the next event before the present one is over. What is rare has a 4-ary heap of (time, slot),
//!            with each slot's place in it, so that an update moves one entry. Nothing ever allocates.
//! Order.     By time, then by slot: the same on every run.

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
            self.pcpus.set(slot, time_ns, false);
        } else {
            self.others.set(slot - self.pcpu_count, time_ns);
        }
    }

    /// The same for a pCPU's slot, with what [`Turn::hint`] will say. Returns the pCPUs whose turn comes
    /// soon.
    #[inline]
    pub fn set_pcpu(&mut self, pcpu: u32, time_ns: u64, hint: bool) -> Soon {
        self.pcpus.set(pcpu, time_ns, hint)
    }

    pub fn cancel(&mut self, slot: u32) {
        if slot < self.pcpu_count {
            self.pcpus.set(slot, TIME_END_NS, false);
        } else {
            self.others.cancel(slot - self.pcpu_count);
        }
    }

    /// The earliest slot, left in place: most are set again at once.
    #[inline]
    pub fn peek(&self) -> Option<Turn> {
        let winner = self.pcpus.winner;
        let pcpu_ns = winner >> LOW_BITS;
        match self.others.first() {
            Some(other) if other.time_ns < pcpu_ns => {
                Some(Turn { time_ns: other.time_ns, slot: self.pcpu_count + other.slot, hint: false })
            }
            _ if pcpu_ns < TIME_END_NS => {
                Some(Turn { time_ns: pcpu_ns, slot: pcpu_of(winner), hint: winner & 1 == 1 })
            }
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

/// Whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    pub time_ns: u64,
    pub slot: u32,
    /// What was said when the time was set: known at once, where anything of the pCPU itself has to be
    /// fetched first.
    pub hint: bool,
}

/// pCPUs whose turn comes soon: one or two, and about a dozen events from now. `u32::MAX`: not worth knowing,
/// because a host this small is in the fastest cache as a whole.
pub struct Soon {
    pub next: u32,
    pub later: u32,
}

/// A time, a pCPU and a hint share a word, the time first: comparing words orders by time, then by pCPU.
const LOW_BITS: u32 = 16;
/// pCPUs that a word has room for.
pub const PCPUS_MAX: usize = 1 << (LOW_BITS - 1);
/// The end of time: more than three days.
pub const TIME_END_NS: u64 = u64::MAX >> LOW_BITS;
/// ARITY to this power is at least `PCPUS_MAX`.
const LEVELS_MAX: usize = 8;
/// Hosts with fewer levels are small.
const LEVELS_OF_LARGE: usize = 4;
const NEVER: u64 = u64::MAX;

#[inline]
fn pcpu_of(word: u64) -> u32 {
    word as u32 >> 1 & (PCPUS_MAX - 1) as u32
}

/// Four players or winners of lower games. Aligned so that none lies in two cache lines.
#[derive(Clone, Copy)]
#[repr(align(32))]
struct Game([u64; ARITY]);

/// Games before those of the level that is `depth` below the final: 0, 1, 1 + 4, 1 + 4 + 16 …
const fn games_above(depth: usize) -> usize {
    (ARITY.pow(depth as u32) - 1) / (ARITY - 1)
}

/// A pCPU's way from its own game to the final.
struct Path {
    /// In the players of this depth.
    place: usize,
    /// The slot that comes first there, and the first of all others so far.
    best: u64,
    best_other: u64,
}

impl Path {
    #[inline(always)]
    fn through<const LEVELS: usize, const DEPTH: usize>(&mut self, games: &mut [Game]) {
        if DEPTH >= LEVELS {
            return;
        }
        let (seats, seat) = (&mut games[games_above(DEPTH) + self.place / ARITY].0, self.place % ARITY);
        seats[seat] = self.best;
        // The opponents only, so that no level waits for its own store.
        let opponents = seats[seat ^ 1].min(seats[seat ^ 2]).min(seats[seat ^ 3]);
        self.best_other = self.best_other.min(opponents);
        self.best = self.best.min(opponents);
        self.place /= ARITY;
    }
}

/// The final comes first, then the games of its four players, and so on; the pCPUs' own words come last. Each
/// level has all the games it can have.
struct Tournament {
    games: Vec<Game>,
    levels: usize,
    winner: u64,
}

impl Tournament {
    fn new(players: usize) -> Self {
        let players = players.clamp(1, PCPUS_MAX);
        let mut levels = 1;
        while ARITY.pow(levels as u32) < players {
            levels += 1;
        }
        Self { games: vec![Game([NEVER; ARITY]); games_above(levels)], levels, winner: NEVER }
    }

    #[inline(always)]
    fn set(&mut self, player: u32, time_ns: u64, hint: bool) -> Soon {
        // Each length has code of its own: where every level lies is arithmetic then.
        match self.levels {
            1 => self.play::<1>(player, time_ns, hint),
            2 => self.play::<2>(player, time_ns, hint),
            3 => self.play::<3>(player, time_ns, hint),
            4 => self.play::<4>(player, time_ns, hint),
            5 => self.play::<5>(player, time_ns, hint),
            6 => self.play::<6>(player, time_ns, hint),
            7 => self.play::<7>(player, time_ns, hint),
            _ => self.play::<LEVELS_MAX>(player, time_ns, hint),
        }
    }

    /// Out of line: short lengths don't have to save the registers that long ones use.
    #[inline(never)]
    fn play<const LEVELS: usize>(&mut self, player: u32, time_ns: u64, hint: bool) -> Soon {
        let low = u64::from(player) << 1 | u64::from(hint);
        let own = if time_ns < TIME_END_NS { time_ns << LOW_BITS | low } else { NEVER };
        let games = &mut self.games[..games_above(LEVELS)];
        let mut path =
            Path { place: player as usize % ARITY.pow(LEVELS as u32), best: own, best_other: NEVER };
        // Each depth by its own number: where its games begin is a constant then, and no step of a path is
        // checked.
        path.through::<LEVELS, 7>(games);
        path.through::<LEVELS, 6>(games);
        path.through::<LEVELS, 5>(games);
        path.through::<LEVELS, 4>(games);
        path.through::<LEVELS, 3>(games);
        path.through::<LEVELS, 2>(games);
        let later = path.best_other;
        path.through::<LEVELS, 1>(games);
        let next = path.best_other;
        path.through::<LEVELS, 0>(games);
        if LEVELS < LEVELS_OF_LARGE {
            self.winner = path.best;
            return Soon { next: u32::MAX, later: u32::MAX };
        }
        self.winner = path.best_other;
        if own < path.best_other {
            self.wins_again(own);
        }
        Soon { next: pcpu_of(next), later: pcpu_of(later) }
    }

    /// Out of line, so that the compiler makes a branch of it.
    #[cold]
    #[inline(never)]
    fn wins_again(&mut self, word: u64) {
        self.winner = word;
    }

    fn is_set(&self, player: u32) -> bool {
        let place = player as usize;
        self.games[games_above(self.levels - 1) + place / ARITY].0[place % ARITY] != NEVER
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

    const SLOTS: u32 = 310;

    #[test]
    fn it_orders_like_a_sorted_map_whatever_is_set_and_cancelled() {
        for pcpus in [0, 1, 4, 5, 17, 50, 65, 300] {
            let mut timeline = Timeline::new(pcpus, SLOTS as usize);
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            let mut random = microslice_model::random::Random::stream(7, pcpus as u64);
            for _ in 0..20_000 {
                let slot = random.below(SLOTS);
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
                let found = timeline.peek().map(|turn| (turn.time_ns, turn.slot));
                assert_eq!(found, expected, "{pcpus} pCPUs");
            }
        }
    }

    #[test]
    fn a_hint_is_there_when_its_turn_comes_and_orders_nothing() {
        let mut timeline = Timeline::new(100, 100);
        timeline.set_pcpu(7, 5, true);
        timeline.set_pcpu(8, 5, false);
        assert_eq!(timeline.peek(), Some(Turn { time_ns: 5, slot: 7, hint: true }));
        timeline.set_pcpu(7, 6, true);
        assert_eq!(timeline.peek(), Some(Turn { time_ns: 5, slot: 8, hint: false }));
    }

    #[test]
    fn the_last_of_as_many_pcpus_as_there_may_be_has_room_for_the_latest_time() {
        let mut timeline = Timeline::new(PCPUS_MAX, PCPUS_MAX);
        let last = PCPUS_MAX as u32 - 1;
        timeline.set(last, TIME_END_NS - 1);
        assert_eq!(timeline.peek(), Some(Turn { time_ns: TIME_END_NS - 1, slot: last, hint: false }));
        timeline.set(last, u64::MAX);
        assert_eq!(timeline.peek(), None);
    }
}
