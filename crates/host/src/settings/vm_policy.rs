//! What is said of one VM: by the configuration file and flags, or by libvirt's metadata.

use crate::settings::coordination::{Acts, Scheme};
use crate::settings::max_wait::MaxWait;
use crate::settings::{Settings, allowed};
use crate::shares::weights::WEIGHTS;
use microslice_policy::MAX_WAIT_NEVER;
use std::collections::BTreeMap;

/// A VM's policy. `None` means that nothing was said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VmPolicy {
    /// In place of that of its own cgroup (`shares/weights.rs`): 1 to 10,000.
    pub weight: Option<u32>,
    pub accelerate: Option<bool>,
    /// In place of the host's. Never [`MaxWait::Auto`].
    pub max_wait: Option<MaxWait>,
    /// Schemes of the scheduler `coordinated`.
    pub schemes: BTreeMap<Scheme, Acts>,
}

impl VmPolicy {
    /// Key by key: what `self` says, else what `other` says.
    #[must_use]
    pub fn over(&self, other: &Self) -> Self {
        let mut schemes = other.schemes.clone();
        schemes.extend(&self.schemes);
        Self {
            weight: self.weight.or(other.weight),
            accelerate: self.accelerate.or(other.accelerate),
            max_wait: self.max_wait.or(other.max_wait),
            schemes,
        }
    }

    /// May it be accelerated, if its guest is known?
    pub fn accelerates(&self) -> bool {
        self.accelerate != Some(false)
    }

    /// Returns its own bound on waits as the kernel side takes it (`max_wait_of_vm_ns()`). One that isn't to
    /// be accelerated has none, unless one is said of it.
    pub fn own_max_wait_ns(&self) -> u64 {
        match self.max_wait {
            Some(MaxWait::Of(bound)) => bound.as_nanos() as u64,
            Some(MaxWait::None) => MAX_WAIT_NEVER,
            Some(MaxWait::Auto) | None if self.accelerates() => 0,
            Some(MaxWait::Auto) | None => MAX_WAIT_NEVER,
        }
    }

    /// Takes a key and a value as text, called as in a VM's table of the configuration file.
    ///
    /// # Errors
    /// There is no such key, or it may not be so: what may be.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let scheme = || Scheme::ALL.into_iter().find(|scheme| scheme.key() == key);
        let is_taken = match key {
            "weight" => {
                self.weight = value.parse().ok().filter(|weight| WEIGHTS.contains(weight));
                self.weight.is_some()
            }
            "accelerate" => {
                self.accelerate = value.parse().ok();
                self.accelerate.is_some()
            }
            "max-wait" => {
                self.max_wait = Some(MaxWait::of_vm(value)?);
                true
            }
            _ => match scheme() {
                Some(scheme) => {
                    Acts::said_of(scheme, value).map(|acts| self.schemes.insert(scheme, acts)).is_some()
                }
                None => return Err(format!("no such key; there are {}", Self::keys().join(", "))),
            },
        };
        if is_taken { Ok(()) } else { Err(allowed(&format!("vm..{key}")).unwrap_or_default()) }
    }

    fn keys() -> Vec<&'static str> {
        ["weight", "accelerate", "max-wait"].into_iter().chain(Scheme::ALL.map(Scheme::key)).collect()
    }
}

/// As one would write it: `weight 200, accelerate false`.
impl std::fmt::Display for VmPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let weight = self.weight.map(|weight| format!("weight {weight}"));
        let accelerate = self.accelerate.map(|accelerate| format!("accelerate {accelerate}"));
        let max_wait = self.max_wait.map(|bound| format!("max-wait {bound}"));
        let schemes = self.schemes.iter().map(|(scheme, acts)| format!("{} {}", scheme.key(), acts.name()));
        let words: Vec<String> =
            weight.into_iter().chain(accelerate).chain(max_wait).chain(schemes).collect();
        f.write_str(&words.join(", "))
    }
}

impl Settings {
    /// Returns the policy of a VM: flags and the configuration file override libvirt's metadata.
    pub(crate) fn policy_of(&self, name: &str, metadata: &VmPolicy) -> VmPolicy {
        self.said_of(name).over(metadata)
    }

    /// Returns the policy that flags and the configuration file give VMs of this name.
    pub fn said_of(&self, name: &str) -> VmPolicy {
        VmPolicy {
            weight: self.weights.get(name).copied(),
            accelerate: self.vm_accelerate.get(name).copied(),
            max_wait: self.vm_max_wait.get(name).copied(),
            schemes: self.vm_schemes.get(name).cloned().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(said: &[(&str, &str)]) -> VmPolicy {
        let mut policy = VmPolicy::default();
        said.iter().for_each(|(key, value)| policy.set(key, value).unwrap());
        policy
    }

    #[test]
    fn keys_and_values_are_those_of_the_configuration_file() {
        let said = policy(&[
            ("weight", "10000"),
            ("accelerate", "false"),
            ("max-wait", "5ms"),
            ("resched-co", "auto"),
            ("tlb-co", "true"),
        ]);
        let words = "weight 10000, accelerate false, max-wait 5ms, tlb-co on, resched-co auto";
        assert_eq!(said.to_string(), words);
        assert!(!said.accelerates() && VmPolicy::default().accelerates());
        assert_eq!(VmPolicy::default().to_string(), "");
    }

    #[test]
    fn unaccelerated_vms_keep_a_bound_of_their_own() {
        let own_ns = |said: &[(&str, &str)]| policy(said).own_max_wait_ns();
        assert_eq!([own_ns(&[]), own_ns(&[("max-wait", "5ms")])], [0, 5_000_000]);
        assert_eq!(own_ns(&[("accelerate", "false"), ("max-wait", "5ms")]), 5_000_000);
        assert_eq!(
            [own_ns(&[("max-wait", "none")]), own_ns(&[("accelerate", "false")])],
            [MAX_WAIT_NEVER; 2]
        );
    }

    #[test]
    fn what_may_not_be_is_refused_with_what_may() {
        let refused = |key: &str, value: &str| VmPolicy::default().set(key, value).unwrap_err();
        for value in ["0", "10001", "-1", "1.5", "", "many", "99999999999999999999"] {
            assert_eq!(refused("weight", value), "must be 1 to 10000", "{value:?}");
        }
        assert_eq!(refused("accelerate", "no"), "must be true or false");
        assert_eq!(refused("tlb-co", "auto"), "must be true or false");
        assert_eq!(refused("resched-co", "1"), "must be true, false or \"auto\"");
        assert_eq!(refused("max-wait", "auto"), "\"auto\" is neither a time such as 10ms, nor none");
        assert_eq!(refused("max-wait", "50us"), "\"50us\" isn't 1ms to 1s");
        let keys = "no such key; there are weight, accelerate, max-wait, resched-dp, tlb-co, resched-co";
        assert_eq!(refused("wieght", "1"), keys);
        assert_eq!(refused("kernel", "/boot/vmlinuz"), keys);
    }

    #[test]
    fn the_policy_that_goes_first_does_so_key_by_key() {
        let file = policy(&[("weight", "300"), ("tlb-co", "false")]);
        let metadata =
            policy(&[("weight", "50"), ("accelerate", "false"), ("tlb-co", "true"), ("resched-co", "auto")]);
        let both = policy(&[
            ("weight", "300"),
            ("accelerate", "false"),
            ("tlb-co", "false"),
            ("resched-co", "auto"),
        ]);
        assert_eq!(file.over(&metadata), both);
        assert_eq!(VmPolicy::default().over(&metadata), metadata);
    }

    #[test]
    fn a_names_policy_comes_from_all_settings() {
        let settings = Settings {
            weights: [("web".to_owned(), 200)].into(),
            vm_accelerate: [("web".to_owned(), false)].into(),
            ..Settings::default()
        };
        assert_eq!(settings.said_of("web"), policy(&[("weight", "200"), ("accelerate", "false")]));
        assert_eq!(settings.said_of("db"), VmPolicy::default());
    }
}
