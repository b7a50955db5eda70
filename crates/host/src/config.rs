//! What the operator chose: flags over `/etc/microslice.toml` over the defaults.

use crate::HostError;
use microslice_policy::{AccelerateConfig, FairShareConfig, PoolSizeConfig};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Read when it exists and no other file is named.
pub const DEFAULT_CONFIG: &str = "/etc/microslice.toml";

/// How many pCPUs are micro-sliced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolChoice {
    /// Always this many.
    Static(u32),
    /// As many as Algorithm 1 finds useful.
    Auto,
}

impl std::str::FromStr for PoolChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        text.parse().map(Self::Static).map_err(|_| format!("{text:?} is neither a number nor `auto`"))
    }
}

/// Everything that a run needs to know.
#[derive(Debug, Clone)]
pub struct Settings {
    pub micro_cpus: PoolChoice,
    /// NUM_LIMIT of Algorithm 1; `None`: a quarter of the pCPUs, as the paper's 3 of 12.
    pub micro_cpus_limit: Option<u32>,
    pub micro_slice_us: u64,
    pub slice_us: u64,
    pub profile_ms: u64,
    pub epoch_ms: u64,
    /// In a row, until a quiet profile phase is believed; the paper: 0.
    pub second_looks: u32,
    /// How busy micro-sliced pCPUs must have been for one more to be tried, in per cent; the paper: 0.
    pub grow_when_busy: u32,
    /// Micro slices in a row for a vCPU that is stopped in critical code, or before it answered a call; the paper: 0.
    pub grace: u32,
    /// For how many micro slices who waits keeps its pCPU though nobody is found to help; the paper: 0.
    pub patience: u32,
    /// Accelerate the recipient of a call-function IPI at once, not only when its sender yields.
    pub call_function_ipi: bool,
    /// Micro-sliced pCPUs that nobody asks for run vCPUs of the normal pool; not so in the paper.
    pub lend: bool,
    /// Look for a guest's kernel in its memory when nobody names it. Read-only.
    pub guest_memory: bool,
    pub dry_run: bool,
    /// Measure what the BPF programs cost.
    pub program_costs: bool,
    pub record: Option<PathBuf>,
    pub stats: Option<f64>,
    pub json: bool,
    pub verbose: bool,
    /// VM name -> kernel image.
    pub guests: BTreeMap<String, PathBuf>,
    /// Names that came from the command line: they must be of running VMs.
    pub guests_must_run: Vec<String>,
    /// VM name -> weight, over that of its cgroup.
    pub weights: BTreeMap<String, u32>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            micro_cpus: PoolChoice::Auto,
            micro_cpus_limit: None,
            micro_slice_us: 100,
            slice_us: FairShareConfig::DEFAULT.slice_ns / 1000,
            profile_ms: 10,
            epoch_ms: 1000,
            second_looks: PoolSizeConfig::DEFAULT.second_looks,
            grow_when_busy: PoolSizeConfig::DEFAULT.grow_when_busy_percent,
            grace: AccelerateConfig::DEFAULT.grace_max,
            patience: 10,
            call_function_ipi: AccelerateConfig::DEFAULT.call_function_ipi != 0,
            lend: true,
            guest_memory: true,
            dry_run: false,
            program_costs: false,
            record: None,
            stats: None,
            json: false,
            verbose: false,
            guests: BTreeMap::new(),
            guests_must_run: Vec::new(),
            weights: BTreeMap::new(),
        }
    }
}

/// The file's shape: the flags' names, and a table per VM.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    micro_cpus: Option<Pool>,
    micro_cpus_limit: Option<u32>,
    micro_slice_us: Option<u64>,
    slice_us: Option<u64>,
    profile_ms: Option<u64>,
    epoch_ms: Option<u64>,
    second_looks: Option<u32>,
    grow_when_busy: Option<u32>,
    grace: Option<u32>,
    patience: Option<u32>,
    call_function_ipi: Option<bool>,
    lend: Option<bool>,
    guest_memory: Option<bool>,
    dry_run: Option<bool>,
    record: Option<PathBuf>,
    stats: Option<f64>,
    #[serde(default)]
    vm: BTreeMap<String, Vm>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Vm {
    kernel: Option<PathBuf>,
    weight: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Pool {
    Count(u32),
    Word(String),
}

impl Settings {
    /// The defaults, with what `path` says over them; with no path, [`DEFAULT_CONFIG`] if there is one.
    pub fn from_file(path: Option<&Path>) -> Result<Self, HostError> {
        let path = match path {
            Some(path) => path,
            None if Path::new(DEFAULT_CONFIG).exists() => Path::new(DEFAULT_CONFIG),
            None => return Ok(Self::default()),
        };
        let text = std::fs::read_to_string(path)
            .map_err(|cause| HostError::refused(format!("{}: {cause}", path.display())))?;
        Self::from_toml(&text).map_err(|cause| HostError::refused(format!("{}: {cause}", path.display())))
    }

    fn from_toml(text: &str) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            format!("line {line}: {}", error.message())
        })?;
        let mut settings = Self::default();
        if let Some(pool) = file.micro_cpus {
            settings.micro_cpus = match pool {
                Pool::Count(count) => PoolChoice::Static(count),
                Pool::Word(word) => word.parse().map_err(|cause| format!("micro-cpus: {cause}"))?,
            };
        }
        macro_rules! take {
            ($($field:ident),*) => { $(if let Some(value) = file.$field { settings.$field = value; })* };
        }
        take!(
            micro_slice_us,
            slice_us,
            profile_ms,
            epoch_ms,
            second_looks,
            grow_when_busy,
            grace,
            patience,
            call_function_ipi,
            lend,
            guest_memory,
            dry_run
        );
        settings.micro_cpus_limit = file.micro_cpus_limit;
        settings.record = file.record;
        settings.stats = file.stats;
        for (name, vm) in file.vm {
            if let Some(kernel) = vm.kernel {
                settings.guests.insert(name.clone(), kernel);
            }
            if let Some(weight) = vm.weight {
                settings.weights.insert(name, weight);
            }
        }
        Ok(settings)
    }

    /// Bounds that no host changes. The pool's are checked against the host, in [`Settings::pool_limit`].
    pub fn check(&self) -> Result<(), HostError> {
        let within = |name: &str, value: u64, least: u64, most: u64, unit: &str| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(HostError::refused(format!("--{name} {value}: must be {least} to {most} {unit}")))
        };
        within("micro-slice-us", self.micro_slice_us, 10, 100_000, "microseconds")?;
        within("slice-us", self.slice_us, 500, 1_000_000, "microseconds")?;
        within("profile-ms", self.profile_ms, 1, 10_000, "milliseconds")?;
        within("epoch-ms", self.epoch_ms, 1, 600_000, "milliseconds")?;
        within("second-looks", u64::from(self.second_looks), 0, 1000, "looks")?;
        within("grow-when-busy", u64::from(self.grow_when_busy), 0, 100, "per cent")?;
        within("grace", u64::from(self.grace), 0, 100, "micro slices")?;
        within("patience", u64::from(self.patience), 0, 1000, "micro slices")?;
        for (name, &weight) in &self.weights {
            if !(1..=10_000).contains(&weight) {
                return Err(HostError::refused(format!("weight of {name:?}: {weight} isn't in 1 to 10000")));
            }
        }
        if self.stats.is_some_and(|seconds| !(0.1..=86_400.0).contains(&seconds)) {
            return Err(HostError::refused("--stats/--monitor: must be 0.1 to 86400 seconds"));
        }
        Ok(())
    }

    /// A dry run keeps no pCPU busy: its pool grows by the paper's rule, and shows the most that would be reserved.
    pub fn grow_when_busy_percent(&self) -> u32 {
        if self.dry_run { 0 } else { self.grow_when_busy }
    }

    /// In a dry run nobody is helped, so nobody has a reason to wait.
    pub fn patience_ns(&self) -> u64 {
        if self.dry_run { 0 } else { u64::from(self.patience) * self.micro_slice_us * 1000 }
    }

    /// The most pCPUs that may be micro-sliced on a host with this many that could be. At least one pCPU stays normal.
    pub fn pool_limit(&self, candidates: usize) -> Result<u32, HostError> {
        let possible = candidates.min(microslice_policy::POOL_LIMIT_MAX) as u32;
        let limit = self.micro_cpus_limit.unwrap_or((possible + 1).div_ceil(4).min(possible));
        if limit > possible {
            return Err(HostError::refused(format!(
                "--micro-cpus-limit {limit}: this host has {possible} CPUs that could be micro-sliced (one stays normal)"
            )));
        }
        match self.micro_cpus {
            PoolChoice::Static(count) if count > limit => Err(HostError::refused(format!(
                "--micro-cpus {count}: beyond the limit of {limit} (--micro-cpus-limit allows up to {possible} here)"
            ))),
            _ => Ok(limit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_overrides_defaults_and_flags_names_are_its_keys() {
        let settings = Settings::from_toml(
            "micro-cpus = 2\nmicro-slice-us = 3000\n[vm.web]\nkernel = \"/boot/vmlinuz\"\nweight = 200\n",
        )
        .unwrap();
        assert_eq!(settings.micro_cpus, PoolChoice::Static(2));
        assert_eq!(settings.micro_slice_us, 3000);
        assert_eq!(settings.slice_us, 10_000);
        assert_eq!(settings.guests["web"], Path::new("/boot/vmlinuz"));
        assert_eq!(settings.weights["web"], 200);
        assert_eq!(Settings::from_toml("micro-cpus = \"auto\"").unwrap().micro_cpus, PoolChoice::Auto);
    }

    #[test]
    fn a_broken_file_is_one_line_with_the_place() {
        let error = Settings::from_toml("slice-us = 30000\nmicro-cpu = 1\n").unwrap_err();
        assert!(error.starts_with("line 2: unknown field `micro-cpu`"), "{error}");
        let error = Settings::from_toml("micro-cpus = \"many\"").unwrap_err();
        assert_eq!(error, "micro-cpus: \"many\" is neither a number nor `auto`");
    }

    #[test]
    fn the_pool_never_takes_every_pcpu() {
        let default = Settings::default();
        assert_eq!(default.pool_limit(11).unwrap(), 3, "the paper's 3 of 12");
        assert_eq!(default.pool_limit(3).unwrap(), 1);
        assert_eq!(default.pool_limit(0).unwrap(), 0);
        let greedy = Settings { micro_cpus: PoolChoice::Static(4), ..Settings::default() };
        assert!(greedy.pool_limit(3).unwrap_err().is_refusal());
        let greedy = Settings { micro_cpus_limit: Some(4), ..Settings::default() };
        assert!(greedy.pool_limit(3).unwrap_err().is_refusal());
    }

    #[test]
    fn the_pool_of_a_dry_run_grows_though_nothing_keeps_it_busy() {
        let default = Settings::default();
        assert_eq!(default.grow_when_busy_percent(), PoolSizeConfig::DEFAULT.grow_when_busy_percent);
        assert_eq!(Settings { dry_run: true, ..default }.grow_when_busy_percent(), 0);
    }

    #[test]
    fn values_out_of_bounds_are_refused_by_name() {
        let error = Settings { micro_slice_us: 1, ..Settings::default() }.check().unwrap_err();
        assert_eq!(error.to_string(), "--micro-slice-us 1: must be 10 to 100000 microseconds");
        let error = Settings { grow_when_busy: 101, ..Settings::default() }.check().unwrap_err();
        assert_eq!(error.to_string(), "--grow-when-busy 101: must be 0 to 100 per cent");
        assert!(Settings::default().check().is_ok());
    }
}
