//! The faults, and how they are drawn: the same seed gives the same list.

use chacha20::ChaCha8Rng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use serde::Serialize;
use std::fmt;

/// The emulated host's pCPUs.
pub const PCPUS: u32 = 4;
/// The first pCPU can't be taken away.
const PCPUS_THAT_GO: std::ops::Range<u32> = 1..PCPUS;
/// Cgroups at once, beside those of guests.
const CGROUPS: u32 = 6;
/// A real-time task that keeps a pCPU for ten seconds brings sched_ext's watchdog before Linux 7.0
/// (docs/how-to/replace-the-scheduler.md). Half of it leaves an emulated host room.
const REAL_TIME_MS: std::ops::RangeInclusive<u32> = 500..=5_000;

/// What is done to the host, and how much of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Fault {
    /// SIGKILL of the daemon.
    Kill,
    /// SIGSTOP of the daemon, and SIGCONT after so long.
    Stop { seconds: u32 },
    /// A pCPU goes and comes, again and again.
    Hotplug { pcpu: u32, rounds: u32, pause_ms: u32 },
    /// Cgroups with a busy task each.
    Cgroups { steps: Vec<CgroupStep> },
    /// VMs come together and are killed together, so many times.
    Vms { vms: u32, vcpus: u32, does: &'static str, rounds: u32 },
    /// A task that keeps a pCPU to itself.
    RealTime { pcpu: u32, priority: u32, milliseconds: u32 },
    /// Of the host's memory so much is left, and taken; then a cgroup's runs out.
    Memory { leave_mib: u32, seconds: u32 },
    /// The wall clock is set by so many seconds each.
    ClockJumps { by_seconds: Vec<i64> },
    /// Each round gives every thread of every VM one of these masks of pCPUs.
    Affinity { rounds: u32, masks: Vec<u32> },
    /// A guest that means ill, for so long.
    Hostile { guest: HostileGuest, vcpus: u32, seconds: u32 },
}

/// What is done to a cgroup, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "do")]
pub enum CgroupStep {
    Make {
        group: u32,
    },
    Remove {
        group: u32,
    },
    /// The tasks of one to another.
    Move {
        group: u32,
        to: u32,
    },
    Weigh {
        group: u32,
        weight: u32,
    },
    /// `cpu.max`: so much of each 100 ms.
    Limit {
        group: u32,
        quota_us: u32,
    },
    Unlimit {
        group: u32,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostileGuest {
    /// All vCPUs discard memory, so that nearly always they send or await shootdowns, and look for locks.
    Critical,
    /// Interrupts to siblings and itself.
    Interrupts,
    Pauses,
    /// Another syscall entry, another place of its halts, another kernel's name, again and again.
    Slides,
}

/// One emulated boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Boot {
    /// Guests exit at each PAUSE.
    pub pause_exits: bool,
    pub faults: Vec<Fault>,
}

/// The kinds, as dealt: each comes once before any comes twice.
const KINDS: [fn(&mut ChaCha8Rng) -> Fault; 13] = [
    |_| Fault::Kill,
    |random| Fault::Stop { seconds: random.random_range(2..=15) },
    |random| Fault::Hotplug {
        pcpu: random.random_range(PCPUS_THAT_GO),
        rounds: random.random_range(1..=3),
        pause_ms: random.random_range(0..=3_000),
    },
    |random| Fault::Cgroups { steps: cgroup_steps(random) },
    |random| {
        // Spinning ones share the pCPUs with all others.
        let (does, most) =
            [("", 40), ("leave", 40), ("spin", 12), ("spin mixed", 12)][random.random_range(0..4usize)];
        Fault::Vms {
            vms: random.random_range(10..=most),
            vcpus: random.random_range(1..=4),
            does,
            rounds: random.random_range(1..=3),
        }
    },
    |random| Fault::RealTime {
        pcpu: random.random_range(0..PCPUS),
        priority: random.random_range(1..=99),
        milliseconds: random.random_range(REAL_TIME_MS),
    },
    |random| Fault::Memory { leave_mib: random.random_range(64..=256), seconds: random.random_range(1..=10) },
    |random| {
        let jumps = random.random_range(1..=6);
        Fault::ClockJumps {
            by_seconds: (0..jumps).map(|_| random.random_range(-86_400..=86_400 * 365)).collect(),
        }
    },
    |random| {
        let masks = random.random_range(1..=8);
        Fault::Affinity {
            rounds: random.random_range(1..=5),
            masks: (0..masks).map(|_| random.random_range(1..1 << PCPUS)).collect(),
        }
    },
    |random| hostile(HostileGuest::Critical, random),
    |random| hostile(HostileGuest::Interrupts, random),
    |random| hostile(HostileGuest::Pauses, random),
    |random| hostile(HostileGuest::Slides, random),
];

fn hostile(guest: HostileGuest, random: &mut ChaCha8Rng) -> Fault {
    Fault::Hostile { guest, vcpus: random.random_range(1..=4), seconds: random.random_range(5..=20) }
}

/// Steps that can be done: on cgroups that are there by then.
fn cgroup_steps(random: &mut ChaCha8Rng) -> Vec<CgroupStep> {
    let mut there = Vec::new();
    let count = random.random_range(8..=32);
    (0..count)
        .map(|_| {
            let free: Vec<u32> = (0..CGROUPS).filter(|group| !there.contains(group)).collect();
            let some = |of: &[u32], random: &mut ChaCha8Rng| of[random.random_range(0..of.len())];
            let what = if there.is_empty() { 0 } else { random.random_range(0..6) };
            if what == 0 && !free.is_empty() {
                let group = some(&free, random);
                there.push(group);
                return CgroupStep::Make { group };
            }
            let group = some(&there, random);
            match what {
                1 => {
                    there.retain(|&other| other != group);
                    CgroupStep::Remove { group }
                }
                2 => CgroupStep::Move { group, to: some(&there, random) },
                3 => CgroupStep::Weigh { group, weight: random.random_range(1..=10_000) },
                4 => CgroupStep::Limit { group, quota_us: random.random_range(1_000..=200_000) },
                _ => CgroupStep::Unlimit { group },
            }
        })
        .collect()
}

/// Deals boots, one after the other, for ever.
pub struct Boots {
    random: ChaCha8Rng,
    deck: Vec<fn(&mut ChaCha8Rng) -> Fault>,
    faults_per_boot: usize,
}

impl Boots {
    pub fn new(seed: u64, faults_per_boot: usize) -> Self {
        Self { random: ChaCha8Rng::seed_from_u64(seed), deck: Vec::new(), faults_per_boot }
    }

    fn fault(&mut self) -> Fault {
        if self.deck.is_empty() {
            self.deck = KINDS.to_vec();
            self.deck.shuffle(&mut self.random);
        }
        match self.deck.pop() {
            Some(draw) => draw(&mut self.random),
            None => Fault::Kill, // there are kinds
        }
    }
}

impl Iterator for Boots {
    type Item = Boot;

    fn next(&mut self) -> Option<Boot> {
        let pause_exits = self.random.random_range(0..4) == 0;
        let faults = (0..self.faults_per_boot).map(|_| self.fault()).collect();
        Some(Boot { pause_exits, faults })
    }
}

impl Fault {
    /// Whether it is done to our daemon: without one there is nothing to do.
    pub fn is_of_the_daemon(&self) -> bool {
        matches!(self, Self::Kill | Self::Stop { .. })
    }

    /// Its kind, in a word or two.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Kill => "SIGKILL",
            Self::Stop { .. } => "SIGSTOP",
            Self::Hotplug { .. } => "hotplug",
            Self::Cgroups { .. } => "cgroups",
            Self::Vms { .. } => "VMs",
            Self::RealTime { .. } => "real-time task",
            Self::Memory { .. } => "memory",
            Self::ClockJumps { .. } => "clock jumps",
            Self::Affinity { .. } => "affinities",
            Self::Hostile { guest, .. } => match guest {
                HostileGuest::Critical => "hostile: critical",
                HostileGuest::Interrupts => "hostile: interrupts",
                HostileGuest::Pauses => "hostile: pauses",
                HostileGuest::Slides => "hostile: slides",
            },
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name())?;
        match self {
            Self::Kill => Ok(()),
            Self::Stop { seconds } => write!(f, " for {seconds} s"),
            Self::Hotplug { pcpu, rounds, pause_ms } => {
                write!(f, " of pCPU {pcpu}, {rounds} x, {pause_ms} ms apart")
            }
            Self::Cgroups { steps } => write!(f, ", {} steps", steps.len()),
            Self::Vms { vms, vcpus, does, rounds } => {
                let does = if does.is_empty() { "halt" } else { does };
                write!(f, ", {vms} of {vcpus} vCPUs that {does}, {rounds} x")
            }
            Self::RealTime { pcpu, priority, milliseconds } => {
                write!(f, " of priority {priority} on pCPU {pcpu} for {milliseconds} ms")
            }
            Self::Memory { leave_mib, seconds } => {
                write!(f, ", {leave_mib} MiB of it left and taken for {seconds} s")
            }
            Self::ClockJumps { by_seconds } => write!(f, ", {} of them", by_seconds.len()),
            Self::Affinity { rounds, masks } => write!(f, ", {rounds} rounds of {} masks", masks.len()),
            Self::Hostile { vcpus, seconds, .. } => write!(f, ", {vcpus} vCPUs for {seconds} s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn the_same_seed_gives_the_same_faults(seed: u64, faults in 1usize..9) {
            let boots = |seed| Boots::new(seed, faults).take(5).collect::<Vec<_>>();
            prop_assert_eq!(boots(seed), boots(seed));
        }

        #[test]
        fn every_kind_comes_once_before_any_comes_twice(seed: u64) {
            let faults: Vec<Fault> = Boots::new(seed, KINDS.len()).take(3).flat_map(|boot| boot.faults).collect();
            for dealt in faults.chunks(KINDS.len()) {
                prop_assert_eq!(dealt.iter().map(Fault::name).collect::<BTreeSet<_>>().len(), KINDS.len());
            }
        }

        #[test]
        fn cgroups_are_made_before_anything_is_done_to_them_and_once(seed: u64) {
            let mut there = BTreeSet::new();
            for step in cgroup_steps(&mut ChaCha8Rng::seed_from_u64(seed)) {
                let can_be_done = match step {
                    CgroupStep::Make { group } => group < CGROUPS && there.insert(group),
                    CgroupStep::Remove { group } => there.remove(&group),
                    CgroupStep::Move { group, to } => there.contains(&group) && there.contains(&to),
                    CgroupStep::Weigh { group, .. } | CgroupStep::Limit { group, .. } | CgroupStep::Unlimit { group } => {
                        there.contains(&group)
                    }
                };
                prop_assert!(can_be_done, "{step:?}");
            }
        }
    }

    #[test]
    fn another_seed_gives_other_faults() {
        let of = |seed| Boots::new(seed, 6).take(2).collect::<Vec<_>>();
        assert_ne!(of(1), of(2));
    }
}
