//! What the scheduler `coordinated` may be told: which schemes act, for all VMs or one, and its three times.

use crate::settings::Settings;
use crate::settings::vm_policy::VmPolicy;
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
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
