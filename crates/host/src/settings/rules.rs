//! The paper's rules alone, or with what the project added to them (docs/explanation/differences.md). The
//! simulator's policies have the same word, `rules`.

use crate::HostError;
use crate::settings::Settings;
use crate::settings::max_wait::MaxWait;
use microslice_policy::{AccelerateConfig, Coded, CriticalBy, FairShareConfig, PoolSizeConfig};

/// For how many micro slices a waiter keeps its pCPU though the host finds no sibling to help; by the paper's
/// rules for none.
pub const PATIENCE_MICRO_SLICES: u64 = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rules {
    /// With those of `microslice_policy::rules`.
    Project,
    /// Without any of these that can be off.
    Paper,
}

impl Rules {
    pub const ALL: [Self; 2] = [Self::Project, Self::Paper];

    pub fn name(self) -> &'static str {
        match self {
            Self::Project => "project",
            Self::Paper => "paper",
        }
    }

    /// Do micro-sliced pCPUs run vCPUs of the normal pool while no vCPU asks for them?
    pub fn lends(self) -> bool {
        self == Self::Project
    }

    /// Beside the kernel's own scheduler: is a vCPU boosted because it was woken and has to wait?
    pub fn boosts_woken(self) -> bool {
        self == Self::Project
    }
}

impl std::str::FromStr for Rules {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|rules| rules.name() == text);
        known.ok_or_else(|| {
            let [project, paper] = Self::ALL.map(Self::name);
            format!("no rules {text:?}: must be {project} or {paper}")
        })
    }
}

impl Settings {
    pub(crate) fn accelerate_config(&self) -> AccelerateConfig {
        let rules = match self.rules {
            Rules::Project => AccelerateConfig::DEFAULT,
            Rules::Paper => AccelerateConfig::PAPER,
        };
        AccelerateConfig { patience_ns: self.patience_ns(), ..rules }
    }

    /// `limit`: the most pCPUs that may be micro-sliced.
    pub(crate) fn pool_size_config(&self, limit: u32) -> PoolSizeConfig {
        let rules = match self.rules {
            Rules::Project => PoolSizeConfig::DEFAULT,
            Rules::Paper => PoolSizeConfig::PAPER,
        };
        // A dry run keeps no pCPU busy: its pool grows by the paper's rule, and shows the most that would be
        // reserved.
        let grow_when_busy_percent = if self.dry_run { 0 } else { rules.grow_when_busy_percent };
        PoolSizeConfig { limit, grow_when_busy_percent, ..rules }
    }

    /// The length of a turn: the paper's is Xen's, unless one was said.
    pub(crate) fn turn_us(&self) -> u64 {
        match self.rules {
            Rules::Paper if !self.is_said("slice-us") => FairShareConfig::PAPER.slice_ns / 1000,
            _ => self.slice_us,
        }
    }

    /// How long vCPUs may wait: the paper bounds no waits, nor do schedulers of ours unless they are told.
    pub(crate) fn max_wait(&self) -> MaxWait {
        let by_default = match (self.scheduler, self.rules) {
            (None, Rules::Project) => MaxWait::Auto,
            _ => MaxWait::None,
        };
        self.max_wait.unwrap_or(by_default)
    }

    /// In a dry run no vCPU is helped, so none has a reason to wait.
    fn patience_ns(&self) -> u64 {
        // Beside the kernel's own scheduler KVM's yields go ahead.
        let nobody_waits = self.dry_run || self.rules == Rules::Paper || self.scheduler.is_none();
        if nobody_waits { 0 } else { PATIENCE_MICRO_SLICES * self.micro_slice_us * 1000 }
    }

    /// Nothing is said of a rule that isn't there.
    pub(crate) fn check_rules(&self) -> Result<(), HostError> {
        if self.rules == Rules::Paper && self.reads_counts() {
            let (by, rules) = (self.called("critical-by"), self.called("rules"));
            let cause =
                format!("{by} {} with {rules} paper: the paper knows symbols alone", self.critical_by);
            return Err(HostError::refused(cause));
        }
        if self.reads_counts() && !self.guest_memory {
            let (by, without) = (self.called("critical-by"), self.called("no-guest-memory"));
            let cause = format!("{by} {} with {without}: counts are in the guest's memory", self.critical_by);
            return Err(HostError::refused(cause));
        }
        Ok(())
    }
}

/// By what a lock's holder is known, by its name.
pub fn critical_by_named(name: &str) -> Result<CriticalBy, String> {
    let known = CriticalBy::ALL.iter().find(|by| by.name() == name);
    known.copied().ok_or_else(|| format!("{name:?}: must be symbols, counter or both"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_the_papers_rules_none_of_the_projects_acts() {
        let paper = Settings { rules: Rules::Paper, ..Settings::default() };
        assert!(paper.check().is_ok());
        assert_eq!(format!("{:?}", paper.accelerate_config()), format!("{:?}", AccelerateConfig::PAPER));
        let pool_size = PoolSizeConfig { limit: 2, ..PoolSizeConfig::PAPER };
        assert_eq!(format!("{:?}", paper.pool_size_config(2)), format!("{pool_size:?}"));
        assert_eq!(paper.delay_config(true).window_ns, 0, "no grace");
        assert!(!paper.rules.lends() && Settings::default().rules.lends());
        assert_eq!([paper.max_wait(), Settings::default().max_wait()], [MaxWait::None, MaxWait::Auto]);
    }

    /// What a run does about the rule of that key.
    fn ruled(settings: &Settings, key: &str) -> String {
        let (rules, pool) = (settings.accelerate_config(), settings.pool_size_config(3));
        match key {
            "call_function_ipi" => rules.call_function_ipi.to_string(),
            "patience" => rules.patience_ns.to_string(),
            "lend" => settings.rules.lends().to_string(),
            "home_slices" => rules.home_slices.to_string(),
            "grace" => format!("{} {}", rules.grace_max, settings.delay_config(true).window_ns),
            "second_looks" => pool.second_looks.to_string(),
            "grow_when_busy" => pool.grow_when_busy_percent.to_string(),
            "slice" => settings.turn_us().to_string(),
            "max_wait" => {
                format!("{:?}", Settings { scheduler: None, ..settings.clone() }.max_wait())
            }
            "woken" => settings.rules.boosts_woken().to_string(),
            "critical_by" => {
                let counter = Settings { critical_by: CriticalBy::Counter, ..settings.clone() };
                counter.check().is_ok().to_string()
            }
            other => panic!("{other}: a rule that nothing here configures"),
        }
    }

    #[test]
    fn each_value_of_the_table_differs_by_the_papers_rules() {
        let project = Settings::of_microslice();
        let paper = Settings { rules: Rules::Paper, ..project.clone() };
        for key in microslice_policy::rules::keys() {
            assert_ne!(ruled(&project, key), ruled(&paper, key), "{key}");
        }
        assert_eq!(paper.accelerate_config().paper_rules, 1, "and the word is said");
        let mut said = Settings { slice_us: 5000, ..paper };
        said.flags_given.insert("slice-us".into());
        assert_eq!(said.turn_us(), 5000, "whoever says a length has it");
    }

    #[test]
    fn without_a_word_all_of_the_projects_rules_act() {
        let said = format!("{:?}", Settings::of_microslice().accelerate_config());
        assert_eq!(said, format!("{:?}", AccelerateConfig::DEFAULT));
        let percent = Settings::default().pool_size_config(3).grow_when_busy_percent;
        assert_eq!(percent, PoolSizeConfig::DEFAULT.grow_when_busy_percent);
    }

    #[test]
    fn a_dry_runs_pool_grows_idle_and_without_patience() {
        let dry = Settings { dry_run: true, ..Settings::default() };
        assert_eq!(dry.pool_size_config(3).grow_when_busy_percent, 0);
        assert_eq!(dry.accelerate_config().patience_ns, 0);
    }

    #[test]
    fn unknown_rules_are_refused() {
        assert_eq!("ours".parse::<Rules>().unwrap_err(), "no rules \"ours\": must be project or paper");
    }

    #[test]
    fn counts_by_the_papers_rules_are_refused() {
        assert_eq!(critical_by_named("counter"), Ok(CriticalBy::Counter));
        assert_eq!(critical_by_named("count").unwrap_err(), "\"count\": must be symbols, counter or both");
        let counter = Settings { critical_by: CriticalBy::Counter, ..Settings::default() };
        assert!(counter.check().is_ok() && counter.reads_counts());
        let said = Settings { rules: Rules::Paper, ..counter.clone() }.check().unwrap_err().to_string();
        assert_eq!(said, "--critical-by counter with --rules paper: the paper knows symbols alone");
        let said = Settings { guest_memory: false, ..counter }.check().unwrap_err().to_string();
        assert_eq!(said, "--critical-by counter with --no-guest-memory: counts are in the guest's memory");
    }
}
