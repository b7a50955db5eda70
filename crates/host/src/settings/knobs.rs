//! Which settings only some schedulers have: nothing may be set that would be believed to act, and doesn't.

use crate::HostError;
use crate::settings::vm_policy::VmPolicy;
use crate::settings::{BESIDE, SchedulerChoice, Settings};

const MICROSLICE: &str = "microslice";
const COORDINATED: &str = "coordinated";

/// Who has these settings, by the flags' names. All others hold for each scheduler.
const KNOBS: [(&[&str], &[&str]); 5] = [
    (&[BESIDE], &["boost-percent", "pay-back"]),
    (&[MICROSLICE], &["micro-cpus", "micro-cpus-limit", "normal-cpus", "interrupts-by-looks"]),
    (&[BESIDE, MICROSLICE], &["micro-slice-us", "max-wait", "rules", "dry-run"]),
    (
        &[MICROSLICE, COORDINATED],
        &[
            "slice-us",
            "queue-domain",
            "delay-preemption",
            "delay-unsafe",
            "delay-look-us",
            "weight",
            "trace",
            "program-costs",
            "vm-places",
        ],
    ),
    (
        &[COORDINATED],
        &[
            "resched-dp",
            "tlb-co",
            "resched-co",
            "urgent-slice-us",
            "preemption-delay-us",
            "urgent-allowance-us",
            "urgent-answer-us",
        ],
    ),
];

/// The schedulers that have this setting, if not all do. `key`: `slice-us`, `vm.web.weight`.
fn owners(key: &str) -> Option<&'static [&'static str]> {
    let knob = key.rsplit('.').next().unwrap_or(key);
    KNOBS.iter().find(|(_, knobs)| knobs.contains(&knob)).map(|(owners, _)| *owners)
}

impl Settings {
    /// Who schedules: [`BESIDE`], or a scheduler of ours.
    pub fn scheduler_name(&self) -> &'static str {
        self.scheduler.map_or(BESIDE, SchedulerChoice::name)
    }

    /// The schedulers that have this setting, if this one doesn't.
    fn foreign(&self, key: &str) -> Option<String> {
        let owners = owners(key).filter(|owners| !owners.contains(&self.scheduler_name()))?;
        Some(owners.join(" or "))
    }

    /// Names the settings in a VM's policy that only another scheduler has, if there are any.
    pub fn without_effect(&self, policy: &VmPolicy) -> Option<String> {
        let weight = policy.weight.map(|_| "weight");
        let max_wait = policy.max_wait.map(|_| "max-wait");
        let said = weight.into_iter().chain(max_wait).chain(policy.schemes.keys().map(|scheme| scheme.key()));
        let keys: Vec<&str> = said.filter(|key| self.foreign(key).is_some()).collect();
        let scheduler = self.scheduler_name();
        (!keys.is_empty()).then(|| {
            format!("{} has no effect: the scheduler {scheduler} has no such setting", keys.join(", "))
        })
    }

    /// Refuses what is set and the chosen scheduler doesn't have.
    pub(crate) fn check_knobs(&self) -> Result<(), HostError> {
        for flag in &self.flags_given {
            if let Some(owners) = self.foreign(flag) {
                let cause = format!("--{flag} is a setting of --scheduler {owners}");
                return Err(HostError::refused(format!("{cause}; here it is {}", self.scheduler_name())));
            }
        }
        for (key, place) in &self.places {
            if let Some(owners) = self.foreign(key) {
                let cause = format!("{place}: {key} is a setting of the scheduler {owners}");
                return Err(HostError::refused(format!("{cause}; here it is {}", self.scheduler_name())));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::coordination::{Acts, Scheme};

    fn of(name: &str) -> Settings {
        Settings { scheduler: crate::settings::scheduler_named(name).unwrap(), ..Settings::default() }
    }

    fn error(settings: &Settings) -> String {
        settings.check().unwrap_err().to_string()
    }

    #[test]
    fn settings_of_another_scheduler_are_refused_by_flag_and_file() {
        for (scheduler, flag, owners) in [
            ("coordinated", "micro-cpus", "microslice"),
            ("beside", "micro-cpus", "microslice"),
            ("beside", "slice-us", "microslice or coordinated"),
            ("coordinated", "max-wait", "beside or microslice"),
            ("coordinated", "rules", "beside or microslice"),
        ] {
            let mut settings = of(scheduler);
            assert!(settings.check().is_ok());
            settings.flags_given.insert(flag.into());
            let expected = format!("--{flag} is a setting of --scheduler {owners}; here it is {scheduler}");
            assert_eq!(error(&settings), expected);
        }
        let mut settings = of("microslice");
        settings.places.insert("vm.web.tlb-co".into(), "my.toml:2:10".into());
        assert_eq!(
            error(&settings),
            "my.toml:2:10: vm.web.tlb-co is a setting of the scheduler coordinated; here it is microslice"
        );
    }

    #[test]
    fn settings_that_all_schedulers_have_are_refused_by_none() {
        for name in [BESIDE, MICROSLICE, COORDINATED] {
            let flags_given = ["guest", "stats", "record", "metrics-listen"].map(String::from).into();
            assert!(Settings { flags_given, ..of(name) }.check().is_ok());
        }
    }

    #[test]
    fn metadata_for_another_scheduler_are_reported_as_ineffective() {
        let schemes = [(Scheme::ReschedCo, Acts::On), (Scheme::TlbCo, Acts::Off)].into();
        let policy = VmPolicy { weight: Some(200), schemes, ..VmPolicy::default() };
        let said = |scheduler: &str| of(scheduler).without_effect(&policy);
        assert_eq!(
            said("microslice").unwrap(),
            "tlb-co, resched-co has no effect: the scheduler microslice has no such setting"
        );
        assert!(said("beside").unwrap().starts_with("weight, tlb-co, resched-co has no effect"));
        assert_eq!(said("coordinated"), None);
        assert_eq!(of("beside").without_effect(&VmPolicy::default()), None);
    }
}
