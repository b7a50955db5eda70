//! Kinds of locks: a row each, made of rules that `guest/locks.rs` and its siblings carry out.

use serde::Serialize;

/// A kind of lock: a row of [`LockKind::rules`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum LockKind {
    /// Test-and-set: any running waiter may win.
    TestAndSet,
    /// Ticket: strictly first come, first served, waiters spin.
    Ticket,
    /// Ticket whose waiters halt after `pv_spin_ns` and are kicked in turn.
    PvTicket,
    /// Queued (MCS): first come, first served, waiters spin.
    Queued,
    /// Queued whose waiters halt after `pv_spin_ns`; the head is kicked at unlock (Linux 4.4: no stealing).
    PvQueued,
    /// The same, from which newcomers steal until the head spins for it, and whose waiters halt early (Linux
    /// 6.12, see `guest/hybrid.rs`).
    PvQueuedHybrid,
    /// Sleeping lock (mutex, rwsem): waiters block in the guest's scheduler at once.
    Sleeping,
    /// Sleeping lock whose waiters spin while the guest thinks that the holder runs (see `guest/mutex.rs`).
    Mutex,
    /// Opportunistic ticket (Kashyap et al., APSys'15, section 3): the nearer a waiter is to the holder, the
    /// longer it spins, and the next few are woken ahead of their turn.
    OTicket,
    /// The first of these two only.
    OTicketSpin,
    /// The second of them only.
    OTicketWake,
    /// Ticket whose waiters spin twice as long as before whenever one of this lock has halted (APSys'15,
    /// 5.2).
    ITicket,
    /// Test-and-set whose waiters give their turn up at once (VM'04, 5.2: pessimistic yield locks).
    Yield,
    /// The same after they have spun for `yield_spin_ns` (optimistic ones).
    SpinYield,
}

impl LockKind {
    /// All that scenarios may name.
    pub const ALL: [Self; 14] = [
        Self::TestAndSet,
        Self::Ticket,
        Self::PvTicket,
        Self::Queued,
        Self::PvQueued,
        Self::PvQueuedHybrid,
        Self::Sleeping,
        Self::Mutex,
        Self::OTicket,
        Self::OTicketSpin,
        Self::OTicketWake,
        Self::ITicket,
        Self::Yield,
        Self::SpinYield,
    ];

    /// Those that kernels have had, but the one that came later: what seeds draw is to stay what it was.
    pub const OF_KERNELS: [Self; 7] = [
        Self::TestAndSet,
        Self::Ticket,
        Self::PvTicket,
        Self::Queued,
        Self::PvQueued,
        Self::Sleeping,
        Self::Mutex,
    ];

    /// What sets it apart. A kind that only combines known rules needs nothing else.
    pub fn rules(self) -> LockRules {
        use {Handover::*, SpinFunction as In, Wait::*};
        let rules = |word, wait, spins_in| LockRules { word, wait, spins_in };
        match self {
            Self::TestAndSet => rules("test-and-set", Spin(WhoeverRuns), In::Simple),
            Self::Ticket => rules("ticket", Spin(FirstInLine), In::Simple),
            Self::PvTicket => rules("pv-ticket", SpinThenHalt(Halting::Stock), In::Simple),
            Self::Queued => rules("queued", Spin(FirstInLine), In::Queued),
            Self::PvQueued => rules("pv-queued", SpinThenHalt(Halting::Stock), In::PvQueued),
            Self::PvQueuedHybrid => rules("pv-queued-hybrid", StealOrHalt, In::PvQueued),
            Self::Sleeping => rules("sleeping", Sleep, In::Nowhere),
            Self::Mutex => rules("mutex", SpinOrSleep, In::OnOwner),
            Self::OTicket => rules("oticket", SpinThenHalt(Halting::Opportunistic), In::Simple),
            Self::OTicketSpin => rules("oticket-spin", SpinThenHalt(Halting::ByDistance), In::Simple),
            Self::OTicketWake => rules("oticket-wake", SpinThenHalt(Halting::WokenAhead), In::Simple),
            Self::ITicket => rules("iticket", SpinThenHalt(Halting::Doubling), In::Simple),
            Self::Yield => rules("yield", SpinThenYield(Patience::None), In::Simple),
            Self::SpinYield => rules("spin-yield", SpinThenYield(Patience::Some), In::Simple),
        }
    }

    /// Its waiters may sleep, so it can be held for long.
    pub fn sleeps(self) -> bool {
        self.rules().wait.sleeps()
    }
}

/// How a lock works; `guest/locks.rs` and its siblings do it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockRules {
    /// What scenarios call it.
    pub word: &'static str,
    pub wait: Wait,
    pub spins_in: SpinFunction,
}

/// What its waiters do, and with it which of them gets it when it is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    Spin(Handover),
    /// Spin for a while, then halt until kicked. It goes to the first in line: a halted waiter sees no free
    /// lock.
    SpinThenHalt(Halting),
    /// Steal it, or queue for it: spin then, and halt sooner behind one that has halted. It goes to the head
    /// of the queue if that spins, else to whoever comes.
    StealOrHalt,
    /// Spin for a while, then give the turn up, again and again. It goes to a waiter that runs.
    SpinThenYield(Patience),
    /// Block in the guest's scheduler at once. It goes to the first in line, which is woken.
    Sleep,
    /// Spin while the guest thinks that the holder runs, else sleep. It goes to the first to come.
    SpinOrSleep,
}

impl Wait {
    /// Of those that spin, whether they get it in the order of coming.
    pub fn serves_in_line(self) -> bool {
        match self {
            Self::Spin(handover) => handover.is_in_line(),
            Self::SpinThenHalt(_) | Self::Sleep => true,
            Self::StealOrHalt | Self::SpinThenYield(_) | Self::SpinOrSleep => false,
        }
    }

    pub fn sleeps(self) -> bool {
        matches!(self, Self::Sleep | Self::SpinOrSleep)
    }
}

/// Which of the waiters that only spin gets it when it is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handover {
    /// The waiter that has waited longest, running or not.
    FirstInLine,
    /// A waiter that runs; if none does, the lock stays free for the first that runs again, or a newcomer.
    WhoeverRuns,
}

impl Handover {
    /// No waiter gets it before the one that has waited longest, so it is never free while one waits.
    pub fn is_in_line(self) -> bool {
        match self {
            Self::FirstInLine => true,
            Self::WhoeverRuns => false,
        }
    }
}

/// For how long waiters spin before they halt, and which are kicked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Halting {
    /// For `pv_spin_ns`; the next in line.
    Stock,
    /// The longer, the nearer; the next few.
    Opportunistic,
    ByDistance,
    WokenAhead,
    /// Twice as long as before whenever one has halted; the next in line.
    Doubling,
}

impl Halting {
    /// Those that have more waiters before them spin for `pv_spin_ns` (`TICKET_QUEUE_WAIT`; APSys'15, Figure
    /// 5).
    pub const NEAR: u32 = 18;
    /// The next in line spins for so many times `pv_spin_ns` at the most, as a power of two:
    /// `SPIN_MAX_THRESHOLD` is 2^34 iterations, `SPIN_THRESHOLD` 2^15.
    pub const LONGEST_BITS: u32 = 34 - Self::STOCK_BITS;
    /// Of `SPIN_THRESHOLD`.
    pub const STOCK_BITS: u32 = 15;
    /// So many of the next in line are kicked (`OPPORTUNISTIC_WAKEUP_NCPU`).
    pub const AHEAD: usize = 4;

    /// How long a waiter with so many tickets before it spins, of a lock that has doubled the time so often:
    /// a multiple of `pv_spin_ns`.
    pub fn spins_for(self, pv_spin_ns: u64, distance: u32, doublings: u32) -> u64 {
        let bits = match self {
            Self::Stock | Self::WokenAhead => 0,
            Self::Doubling => doublings.min(Self::LONGEST_BITS),
            Self::Opportunistic | Self::ByDistance if distance < Self::NEAR => {
                Self::LONGEST_BITS - distance.saturating_sub(1)
            }
            Self::Opportunistic | Self::ByDistance => 0,
        };
        pv_spin_ns.saturating_mul(1 << bits)
    }

    /// How many of the waiters are kicked at a release, the one that gets the lock among them.
    pub fn kicks(self) -> usize {
        if matches!(self, Self::Opportunistic | Self::WokenAhead) { Self::AHEAD } else { 1 }
    }
}

/// Whether a waiter that finds the lock taken spins before it yields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    None,
    Some,
}

/// Where the instruction pointer of a spinning waiter is, see `text.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpinFunction {
    Simple,
    Queued,
    PvQueued,
    OnOwner,
    /// Its waiters don't spin.
    Nowhere,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearer_an_opportunistic_waiter_is_the_longer_it_spins() {
        let spins = |distance| Halting::Opportunistic.spins_for(300, distance, 0);
        assert_eq!(spins(1), 300 << 19, "2^34 iterations");
        assert_eq!(spins(2), 300 << 18);
        assert_eq!(spins(17), 300 << 3);
        assert_eq!((spins(18), spins(200)), (300, 300));
        assert_eq!(Halting::Stock.spins_for(300, 1, 9), 300);
        assert_eq!(Halting::ByDistance.spins_for(u64::MAX, 1, 0), u64::MAX);
    }

    #[test]
    fn a_lock_whose_waiters_halt_spins_longer_each_time_up_to_a_limit() {
        assert_eq!(Halting::Doubling.spins_for(300, 1, 0), 300);
        assert_eq!(Halting::Doubling.spins_for(300, 1, 3), 2400);
        assert_eq!(Halting::Doubling.spins_for(300, 1, 255), 300 << 19);
    }
}
