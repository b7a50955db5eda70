//! What scheduling promises, as one table that the tests of both worlds run.
//!
//! A row is a scenario. It says which parties want the pCPUs, and what each of them has to get. It says by
//! how much that may be off in each world, and what wait is the longest. The simulator's test
//! (`crates/experiments/tests/simulations/promises.rs`) runs the rows under each scheduler that promises
//! shares. The testbed's behaviours (`crates/testbed/tests/behaviours`) run them with real guests. A row that
//! a world doesn't run says why.

mod table;

use std::time::Duration;
pub use table::*;

/// A scenario, and what is promised there.
#[derive(Debug)]
pub struct Promise {
    pub name: &'static str,
    pub pcpus: u32,
    pub parties: &'static [Party],
    /// Of one cgroup that all parties lie in.
    pub limit: Option<Limit>,
    /// Nobody that wants to run waits for longer.
    pub longest_wait: Option<Duration>,
    pub simulator: World,
    pub testbed: World,
}

/// How far from what is due a world may be, in the unit of what is due; or why the row isn't run there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum World {
    Runs { less: f64, more: f64 },
    Not(&'static str),
}

/// A VM, or tasks of the host.
#[derive(Debug)]
pub struct Party {
    pub name: &'static str,
    pub kind: Kind,
    pub does: Load,
    /// Relative to the other parties'.
    pub weight: u32,
    /// Where it may run; everywhere if that is empty.
    pub pcpus: &'static [u32],
    pub limit: Option<Limit>,
    /// Of what all parties get that are due a share.
    pub share: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Vm {
        vcpus: u32,
        /// Of its VMM, that compute beside the vCPUs.
        vmm_threads: u32,
    },
    Tasks {
        count: u32,
        nice: u32,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Always.
    Compute,
    /// Computes, and sleeps now and then for a moment.
    Doze,
    /// Flushes its siblings' TLBs without end.
    Shootdowns,
    /// Forks without end.
    Fork,
}

/// `cpu.max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    pub quota_us: u64,
    pub period_us: u64,
    /// Each vCPU's own, not of all together.
    pub of_each: bool,
}

impl Promise {
    /// What `name` gets of what all parties get that have a share.
    pub fn share(&self, name: &str) -> f64 {
        let share = self.party(name).share;
        share.unwrap_or_else(|| panic!("{}: {name} is promised no share", self.name))
    }

    /// What `name` gets of what these parties get together.
    pub fn share_among(&self, name: &str, parties: &[&str]) -> f64 {
        self.share(name) / parties.iter().map(|party| self.share(party)).sum::<f64>()
    }

    /// How many CPUs its limit, or that of its cgroup, allows `name`.
    pub fn cpus(&self, name: &str) -> f64 {
        let party = self.party(name);
        let limit = party.limit.or(self.limit);
        let limit = limit.unwrap_or_else(|| panic!("{}: {name} has no limit", self.name));
        limit.cpus() * if limit.of_each { f64::from(party.threads()) } else { 1.0 }
    }

    pub fn party(&self, name: &str) -> &'static Party {
        let party = self.parties.iter().find(|party| party.name == name);
        party.unwrap_or_else(|| panic!("{}: no party {name}", self.name))
    }

    /// What the scheduler calls each party's weight: 100 on average.
    pub fn weights_of_100(&self) -> Vec<u64> {
        let sum: u64 = self.parties.iter().map(|party| u64::from(party.weight)).sum();
        let scaled = |party: &Party| 100 * self.parties.len() as u64 * u64::from(party.weight);
        self.parties.iter().map(|party| (scaled(party) + sum / 2) / sum).collect()
    }
}

impl World {
    /// By so much less or more.
    pub const fn within(off: f64) -> Self {
        Self::Runs { less: off, more: off }
    }

    /// Whether a figure is what is due, as far as this world can tell.
    pub fn is_kept(self, due: f64) -> impl Fn(f64) -> bool + Clone {
        move |figure| match self {
            Self::Runs { less, more } => (due - less..=due + more).contains(&figure),
            Self::Not(why) => panic!("this world doesn't run it: {why}"),
        }
    }
}

impl Party {
    /// vCPUs, or tasks.
    pub fn threads(&self) -> u32 {
        match self.kind {
            Kind::Vm { vcpus, .. } => vcpus,
            Kind::Tasks { count, .. } => count,
        }
    }

    /// Its pCPUs as the bits of a mask.
    pub fn pcpu_mask(&self) -> u32 {
        self.pcpus.iter().fold(0, |mask, pcpu| mask | 1 << pcpu)
    }

    const fn vm(name: &'static str, vcpus: u32, does: Load) -> Self {
        let kind = Kind::Vm { vcpus, vmm_threads: 0 };
        Self { name, kind, does, weight: 100, pcpus: &[], limit: None, share: None }
    }

    /// A VM that always computes.
    const fn hog(name: &'static str, vcpus: u32) -> Self {
        Self::vm(name, vcpus, Load::Compute)
    }

    const fn tasks(name: &'static str, count: u32, does: Load) -> Self {
        let kind = Kind::Tasks { count, nice: 0 };
        Self { kind, ..Self::vm(name, 0, does) }
    }

    const fn nice(self, nice: u32) -> Self {
        let Kind::Tasks { count, .. } = self.kind else { panic!("a VM isn't niced") };
        Self { kind: Kind::Tasks { count, nice }, ..self }
    }

    const fn vmm_threads(self, vmm_threads: u32) -> Self {
        let Kind::Vm { vcpus, .. } = self.kind else { panic!("tasks have no VMM") };
        Self { kind: Kind::Vm { vcpus, vmm_threads }, ..self }
    }

    const fn weight(self, weight: u32) -> Self {
        Self { weight, ..self }
    }

    const fn on(self, pcpus: &'static [u32]) -> Self {
        Self { pcpus, ..self }
    }

    const fn limit(self, limit: Limit) -> Self {
        Self { limit: Some(limit), ..self }
    }

    const fn share(self, share: f64) -> Self {
        Self { share: Some(share), ..self }
    }
}

impl Limit {
    const fn of(quota_us: u64, period_us: u64) -> Self {
        Self { quota_us, period_us, of_each: false }
    }

    pub fn cpus(&self) -> f64 {
        self.quota_us as f64 / self.period_us as f64
    }

    /// As a cgroup's file takes it.
    pub fn text(&self) -> String {
        format!("{} {}", self.quota_us, self.period_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn shares_of_a_row_add_up_and_names_are_different() {
        let names: BTreeSet<&str> = ALL.iter().map(|(_, row)| row.name).collect();
        assert_eq!(names.len(), ALL.len());
        for (_, row) in ALL {
            let parties: BTreeSet<&str> = row.parties.iter().map(|party| party.name).collect();
            assert_eq!(parties.len(), row.parties.len(), "{}", row.name);
            let shares: Vec<f64> = row.parties.iter().filter_map(|party| party.share).collect();
            let sum: f64 = shares.iter().sum();
            assert!(shares.is_empty() || (sum - 1.0).abs() < 1e-9, "{}: {sum}", row.name);
        }
    }

    #[test]
    fn each_row_promises_a_share_a_limit_or_a_wait_and_some_world_runs_it() {
        for (_, row) in ALL {
            let promises = |party: &Party| party.share.is_some() || party.limit.is_some();
            let any = row.limit.is_some() || row.longest_wait.is_some();
            assert!(any || row.parties.iter().any(promises), "{} promises nothing", row.name);
            let runs = |world: &World| matches!(world, World::Runs { .. });
            assert!([row.simulator, row.testbed].iter().any(runs), "no world runs {}", row.name);
        }
    }

    #[test]
    fn weights_are_100_on_average_and_limits_are_of_a_cgroup_or_of_each_vcpu() {
        assert_eq!(TWICE_THE_WEIGHT.weights_of_100(), [133, 67]);
        assert_eq!(A_SLICE_OF_THRICE_THE_WEIGHT.weights_of_100(), [225, 38, 38]);
        assert_eq!(VMS_IN_ONE_LIMITED_CGROUP.cpus("a"), 2.0);
        assert_eq!(EACH_VCPU_LIMITED.cpus("a"), 1.0);
        assert_eq!(A_SLEEPER_PINNED_WITH_A_HOG.share_among("a", &["a", "b"]), 0.5);
        assert_eq!(A_SLEEPER_PINNED_WITH_A_HOG.party("others").pcpu_mask(), 0xe);
    }

    #[test]
    fn a_figure_beyond_what_a_world_allows_is_no_kept_promise() {
        let kept = World::Runs { less: 0.1, more: 0.2 }.is_kept(0.5);
        assert_eq!([0.39, 0.41, 0.69, 0.71].map(kept), [false, true, true, false]);
    }
}
