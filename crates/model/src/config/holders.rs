//! What a host makes of its guests' preemption counters.

use microslice_policy::{Coded, CriticalBy};
use serde::{Serialize, Serializer};

/// By what the host knows who holds something, and whom it asks for unasked.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HolderRules {
    /// By what the holder of a lock is known. By its counter one that is stopped is asked for at once.
    #[serde(serialize_with = "by_name")]
    pub critical_by: CriticalBy,
    /// Where somebody waits for a lock and nobody holds anything, stopped waiters are tried.
    pub heirs: bool,
}

impl HolderRules {
    /// The paper's: functions of a list, and no unasked help.
    pub const PAPER: Self = Self { critical_by: CriticalBy::Symbols, heirs: false };

    pub fn are_the_papers(&self) -> bool {
        *self == Self::PAPER
    }

    /// The host reads its guests' counters.
    pub fn read_counters(&self) -> bool {
        self.critical_by != CriticalBy::Symbols
    }
}

/// What a guest shows of its `preempt_count` (`GuestKernelConfig::shown_count`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum ShownCount {
    /// The word as it is.
    Honest,
    /// One that says that something is held.
    Held,
    /// One that says that nothing is.
    Nothing,
    /// Either of the two, by turns.
    Flipping,
}

impl ShownCount {
    /// All, with what scenarios call them.
    pub const WORDS: [(&'static str, Self); 4] = [
        ("honest", Self::Honest),
        ("held", Self::Held),
        ("nothing", Self::Nothing),
        ("flipping", Self::Flipping),
    ];

    pub fn is_honest(&self) -> bool {
        *self == Self::Honest
    }

    /// Returns what stands in the word that is `count` in truth, the `turn`-th time that its vCPU runs.
    pub fn of(self, count: u32, turn: u64) -> u32 {
        match self {
            Self::Honest => count,
            Self::Held => count.max(1),
            Self::Nothing => 0,
            Self::Flipping => (turn % 2) as u32,
        }
    }
}

fn by_name<S: Serializer>(by: &CriticalBy, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(by.name())
}
