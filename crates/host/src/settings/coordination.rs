//! What the scheduler `coordinated` may be told: which schemes act, for all VMs or one, and its three times.

use crate::HostError;
use crate::settings::vm_policy::VmPolicy;
use crate::settings::{SchedulerChoice, Settings};
use microslice_policy::coordinated::{RESCHED_CO, RESCHED_DP, TLB_CO, UrgentConfig};
use std::collections::BTreeMap;

/// A reason for a VM's vCPUs to be urgent (`policy/urgent.h`; Kim et al., ASPLOS'13, section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scheme {
    /// The sender of a reschedule IPI isn't preempted for a while.
    ReschedDp,
    /// The recipient of a call-function IPI is urgent until it has answered it.
    TlbCo,
    /// The recipient of a reschedule IPI is urgent for a while.
    ReschedCo,
}

impl Scheme {
    pub const ALL: [Self; 3] = [Self::ReschedDp, Self::TlbCo, Self::ReschedCo];

    /// Its flag, and its key in the configuration file.
    pub fn key(self) -> &'static str {
        match self {
            Self::ReschedDp => "resched-dp",
            Self::TlbCo => "tlb-co",
            Self::ReschedCo => "resched-co",
        }
    }

    fn bit(self) -> u32 {
        match self {
            Self::ReschedDp => RESCHED_DP,
            Self::TlbCo => TLB_CO,
            Self::ReschedCo => RESCHED_CO,
        }
    }
}

/// Whether a scheme acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acts {
    On,
    Off,
    /// Only [`Scheme::ReschedCo`]: where reschedule IPIs become rarer by it (section 4.2).
    Auto,
}

impl Acts {
    pub fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
            Self::Auto => "auto",
        }
    }

    /// As the configuration file has it: `true`, `false`, or `auto` where that may be.
    pub fn said_of(scheme: Scheme, text: &str) -> Option<Self> {
        match text {
            "auto" => (scheme == Scheme::ReschedCo).then_some(Self::Auto),
            _ => text.parse::<bool>().ok().map(Self::from),
        }
    }
}

impl From<bool> for Acts {
    fn from(acts: bool) -> Self {
        if acts { Self::On } else { Self::Off }
    }
}

/// Which of them act.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schemes(BTreeMap<Scheme, Acts>);

impl Default for Schemes {
    /// As in the paper: Resched-Co is for VMs whose programs are known to gain by it (section 3.1.2).
    fn default() -> Self {
        Self(
            [(Scheme::ReschedDp, Acts::On), (Scheme::TlbCo, Acts::On), (Scheme::ReschedCo, Acts::Off)].into(),
        )
    }
}

impl Schemes {
    pub fn set(&mut self, scheme: Scheme, acts: Acts) {
        self.0.insert(scheme, acts);
    }

    /// As the BPF programs take them: those that are on from the start.
    pub fn bits(&self) -> u32 {
        self.0.iter().filter(|(_, acts)| **acts == Acts::On).map(|(scheme, _)| scheme.bit()).sum()
    }

    /// Is Resched-Co tried?
    pub fn tries_resched_co(&self) -> bool {
        self.0.get(&Scheme::ReschedCo) == Some(&Acts::Auto)
    }
}

impl std::fmt::Display for Schemes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words: Vec<String> =
            self.0.iter().map(|(scheme, acts)| format!("{} {}", scheme.key(), acts.name())).collect();
        f.write_str(&words.join(", "))
    }
}

/// Keys that only one scheduler has. All others hold for each of them.
const KNOBS: [(SchedulerChoice, &[&str]); 2] = [
    (
        SchedulerChoice::Microslice,
        &["micro-cpus", "micro-cpus-limit", "normal-cpus", "micro-slice-us", "rules", "patience", "dry-run"],
    ),
    (
        SchedulerChoice::Coordinated,
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

impl Settings {
    /// The three times of section 4.1.1, and the time for an answer.
    pub fn urgent_config(&self) -> UrgentConfig {
        UrgentConfig {
            delay_ns: self.preemption_delay_us * 1000,
            slice_ns: self.urgent_slice_us * 1000,
            allowance_ns: self.urgent_allowance_us * 1000,
            answer_ns: self.urgent_answer_us * 1000,
        }
    }

    /// The schemes of a VM of which this is said. None acts for one that isn't to be accelerated.
    pub fn schemes_of(&self, policy: &VmPolicy) -> Schemes {
        let mut schemes = self.schemes.clone();
        schemes.0.extend(&policy.schemes);
        if !policy.accelerates() {
            schemes.0.values_mut().for_each(|acts| *acts = Acts::Off);
        }
        schemes
    }

    /// Names the settings in a VM's policy that only another scheduler has, if there are any.
    pub fn without_effect(&self, policy: &VmPolicy) -> Option<String> {
        if self.scheduler == SchedulerChoice::Coordinated || policy.schemes.is_empty() {
            return None;
        }
        let keys: Vec<&str> = policy.schemes.keys().map(|scheme| scheme.key()).collect();
        let scheduler = self.scheduler.name();
        Some(format!("{} has no effect: the scheduler {scheduler} has no such setting", keys.join(", ")))
    }

    /// Nothing may be set that the chosen scheduler doesn't have: it would be believed to act.
    pub(crate) fn check_knobs(&self) -> Result<(), HostError> {
        let foreign = |key: &str| {
            let knob = key.rsplit('.').next().unwrap_or(key);
            let knob = knob.strip_prefix("no-").unwrap_or(knob);
            KNOBS.iter().any(|(owner, knobs)| *owner != self.scheduler && knobs.contains(&knob))
        };
        let flag = self.flags_given.iter().find(|flag| foreign(flag)).map(|flag| format!("--{flag}"));
        let from_file =
            || self.places.iter().find(|(key, _)| foreign(key)).map(|(key, place)| format!("{place}: {key}"));
        match flag.or_else(from_file) {
            Some(called) => {
                let scheduler = self.scheduler.name();
                Err(HostError::refused(format!("{called}: the scheduler {scheduler} has no such setting")))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(settings: &Settings) -> String {
        settings.check().unwrap_err().to_string()
    }

    #[test]
    fn settings_of_the_other_scheduler_are_refused() {
        let mut settings = Settings { scheduler: SchedulerChoice::Coordinated, ..Settings::default() };
        assert!(settings.check().is_ok());
        settings.flags_given.insert("patience".into());
        assert_eq!(error(&settings), "--patience: the scheduler coordinated has no such setting");
        let mut settings = Settings::default();
        settings.places.insert("vm.web.tlb-co".into(), "my.toml:2:10".into());
        assert_eq!(
            error(&settings),
            "my.toml:2:10: vm.web.tlb-co: the scheduler microslice has no such setting"
        );
    }

    #[test]
    fn settings_that_all_schedulers_have_are_refused_by_none() {
        for scheduler in SchedulerChoice::ALL {
            let flags_given = ["slice-us", "weight", "guest", "stats", "record"].map(String::from).into();
            assert!(Settings { scheduler, flags_given, ..Settings::default() }.check().is_ok());
        }
    }

    #[test]
    fn a_vms_own_schemes_override_those_of_all() {
        let of_web = [(Scheme::ReschedCo, Acts::On), (Scheme::TlbCo, Acts::Off)];
        let vm_schemes = [("web".to_owned(), of_web.into())];
        let settings = Settings { vm_schemes: vm_schemes.into(), ..Settings::default() };
        let schemes_of = |name: &str| settings.schemes_of(&settings.said_of(name));
        assert_eq!(schemes_of("db"), Schemes::default());
        assert_eq!(schemes_of("web").bits(), RESCHED_DP | RESCHED_CO);
        assert_eq!(schemes_of("web").to_string(), "resched-dp on, tlb-co off, resched-co on");
        let quiet = VmPolicy { accelerate: Some(false), ..settings.said_of("web") };
        assert_eq!(settings.schemes_of(&quiet).bits(), 0, "who isn't to be accelerated is never urgent");
    }

    #[test]
    fn metadata_for_another_scheduler_are_reported_as_ineffective() {
        let schemes = [(Scheme::ReschedCo, Acts::On), (Scheme::TlbCo, Acts::Off)].into();
        let policy = VmPolicy { weight: Some(200), schemes, ..VmPolicy::default() };
        let said = Settings::default().without_effect(&policy).unwrap();
        assert_eq!(said, "tlb-co, resched-co has no effect: the scheduler microslice has no such setting");
        let coordinated = Settings { scheduler: SchedulerChoice::Coordinated, ..Settings::default() };
        assert_eq!(coordinated.without_effect(&policy), None);
        assert_eq!(Settings::default().without_effect(&VmPolicy::default()), None);
    }
}
