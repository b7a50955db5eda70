//! What the operator chose: flags over `/etc/microslice.toml` over the defaults.

mod config_file;
pub mod coordination;
pub mod delay_preemption;
mod knobs;
pub mod listen;
pub mod max_wait;
pub mod rules;
pub mod trace;
pub mod vm_policy;

use crate::HostError;
use crate::interface::VMS_MAX;
use crate::machine::cpu_list::{CpuList, cpu_list};
use crate::machine::domains::Domains;
use crate::machine::topology::Topology;
use crate::settings::coordination::{Acts, Scheme, Schemes};
use crate::settings::delay_preemption::Unsafe;
use crate::settings::listen::Listen;
use crate::settings::max_wait::MaxWait;
use crate::settings::rules::{PATIENCE_MICRO_SLICES, Rules};
use crate::settings::trace::TraceSettings;
use crate::settings::vm_policy::VmPolicy;
use crate::shares::weights::WEIGHTS;
use microslice_policy::coordinated::UrgentConfig;
use microslice_policy::{AccelerateConfig, CriticalBy, FairShareConfig, QueueDomain};
use microslice_symbols::critical::Catalogue;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// A scheduler in place of the kernel's own: which BPF object of `bpf/schedulers/` is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchedulerChoice {
    /// Micro-sliced pCPUs (EuroSys'18).
    Microslice,
    /// Urgent vCPUs first (ASPLOS'13).
    Coordinated,
}

impl SchedulerChoice {
    pub const ALL: [Self; 2] = [Self::Microslice, Self::Coordinated];

    pub fn name(self) -> &'static str {
        match self {
            Self::Microslice => "microslice",
            Self::Coordinated => "coordinated",
        }
    }

    /// Says what it does with a guest whose symbols or slide are unknown.
    pub fn without_symbols(self) -> &'static str {
        match self {
            Self::Microslice => "scheduled normally",
            Self::Coordinated => "coordinated all the same",
        }
    }
}

impl std::str::FromStr for SchedulerChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|choice| choice.name() == text);
        known.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(" or ");
            format!("no scheduler {text:?}: must be {BESIDE}, {names}")
        })
    }
}

/// How the kernel's own scheduler with boosts beside it is called, where others are called by their names.
pub const BESIDE: &str = "beside";

/// Reads who schedules: [`BESIDE`], or a scheduler of ours.
///
/// # Errors
/// There is none of this name: which there are.
pub fn scheduler_named(name: &str) -> Result<Option<SchedulerChoice>, String> {
    if name == BESIDE { Ok(None) } else { name.parse().map(Some) }
}

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
    /// `None`: the kernel's own stays in charge, and threads of vCPUs are boosted beside it.
    pub scheduler: Option<SchedulerChoice>,
    /// Schemes of the scheduler `coordinated` for all VMs, then for single VMs, by name.
    pub schemes: Schemes,
    pub vm_schemes: BTreeMap<String, BTreeMap<Scheme, Acts>>,
    pub urgent_slice_us: u64,
    /// For how long the sender of a reschedule IPI, or its recipient, is urgent.
    pub preemption_delay_us: u64,
    /// By how much an urgent vCPU's clock may be ahead of the vCPU's that it goes before: virtual time.
    pub urgent_allowance_us: u64,
    /// For how long a vCPU that has acknowledged a call is urgent still, to answer it.
    pub urgent_answer_us: u64,
    pub micro_cpus: PoolChoice,
    /// NUM_LIMIT of Algorithm 1; `None`: a quarter of the pCPUs, as the paper's 3 of 12.
    pub micro_cpus_limit: Option<u32>,
    /// pCPUs that are never micro-sliced.
    pub normal_cpus: CpuList,
    pub micro_slice_us: u64,
    /// Per cent of the host that a VM may use by boosts beside the kernel's own scheduler.
    pub boost_percent: u32,
    /// How long vCPUs may wait for a pCPU beside the kernel's own scheduler; `None`: nothing was said.
    pub max_wait: Option<MaxWait>,
    /// What a VM's cgroups had by boosts is taken from what they have by weight.
    pub pay_back: bool,
    pub slice_us: u64,
    /// Which pCPUs share a queue; `None`: nothing was said, so those of a last-level cache.
    pub queue_domain: Option<QueueDomain>,
    pub rules: Rules,
    /// By what a lock's holder is known; by the paper's rules by symbols.
    pub critical_by: CriticalBy,
    /// The window around the end of a turn in which a vCPU is preempted where that is safe; 0: turns end when
    /// they are over.
    pub delay_preemption: u64,
    pub delay_unsafe: Unsafe,
    /// Between two looks at a guest's instruction pointer.
    pub delay_look_us: u64,
    /// Look for a guest's kernel in its memory when no image is named. Read-only.
    pub guest_memory: bool,
    pub dry_run: bool,
    /// Measure what the BPF programs cost.
    pub program_costs: bool,
    /// How many VMs may have a place: fewer than there are, in tests.
    pub vm_places: u32,
    /// Critical functions of guest kernels, in place of those that the program carries.
    pub critical: Option<PathBuf>,
    pub record: Option<PathBuf>,
    /// Where a trace of what runs where goes; only the command line asks for one.
    pub trace: Option<TraceSettings>,
    pub stats: Option<f64>,
    /// Where figures are served; `None`: nothing was said.
    pub metrics_listen: Option<Listen>,
    pub json: bool,
    pub verbose: bool,
    /// Hear of no interrupt by an exit, as where none exits.
    pub interrupts_by_looks: bool,
    /// Trace no function of the kernel, as where that can't be had.
    pub by_tracepoints: bool,
    /// VM name -> kernel image.
    pub guests: BTreeMap<String, PathBuf>,
    /// Names that came from the command line: they must be of running VMs.
    pub guests_must_run: Vec<String>,
    /// VM name -> weight, over that of its cgroup.
    pub weights: BTreeMap<String, u32>,
    /// VM name -> may it be accelerated?
    pub vm_accelerate: BTreeMap<String, bool>,
    /// VM name -> how long its vCPUs may wait.
    pub vm_max_wait: BTreeMap<String, MaxWait>,
    /// Flags of the command line, without their dashes, whatever their values.
    pub flags_given: BTreeSet<String>,
    /// `FILE:line:column` of what comes from the configuration file, by key (`slice-us`, `vm.web.weight`).
    pub places: BTreeMap<String, String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            scheduler: None,
            schemes: Schemes::default(),
            vm_schemes: BTreeMap::new(),
            urgent_slice_us: UrgentConfig::PAPER.slice_ns / 1000,
            preemption_delay_us: UrgentConfig::PAPER.delay_ns / 1000,
            urgent_allowance_us: UrgentConfig::PAPER.allowance_ns / 1000,
            urgent_answer_us: 100,
            micro_cpus: PoolChoice::Auto,
            micro_cpus_limit: None,
            normal_cpus: CpuList::default(),
            micro_slice_us: 100,
            boost_percent: 1,
            max_wait: None,
            pay_back: false,
            slice_us: FairShareConfig::DEFAULT.slice_ns / 1000,
            queue_domain: None,
            rules: Rules::Project,
            critical_by: CriticalBy::Symbols,
            delay_preemption: 0,
            delay_unsafe: Unsafe::Kernel,
            delay_look_us: 100,
            guest_memory: true,
            dry_run: false,
            program_costs: false,
            vm_places: VMS_MAX,
            critical: None,
            record: None,
            trace: None,
            stats: None,
            metrics_listen: None,
            json: false,
            verbose: false,
            interrupts_by_looks: false,
            by_tracepoints: false,
            guests: BTreeMap::new(),
            guests_must_run: Vec::new(),
            weights: BTreeMap::new(),
            vm_accelerate: BTreeMap::new(),
            vm_max_wait: BTreeMap::new(),
            flags_given: BTreeSet::new(),
            places: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
impl Settings {
    /// The defaults, with the scheduler `microslice`.
    pub(crate) fn of_microslice() -> Self {
        Self { scheduler: Some(SchedulerChoice::Microslice), ..Self::default() }
    }
}

/// The longest that one rule may keep a pCPU from those that wait. sched_ext's watchdog ends the scheduler
/// once a single task has waited for ten seconds (`timeout_ms` in `bpf/schedulers/microslice.bpf.c`): it
/// takes thirty such turns in a row. A task that has waited for two seconds goes first, for a third of a
/// slice. So eighty vCPUs a pCPU get theirs in time.
pub const HOLD_US_MAX: u64 = 300_000;

/// So that grace and patience, micro slices in a row, aren't longer than that.
const MICRO_SLICE_US_MAX: u64 = {
    let grace_max = AccelerateConfig::DEFAULT.grace_max as u64;
    HOLD_US_MAX / if grace_max > PATIENCE_MICRO_SLICES { grace_max } else { PATIENCE_MICRO_SLICES }
};

/// A bound of a setting: its key, the least and the most, their unit, and where the value is.
type Bound = (&'static str, u64, u64, &'static str, fn(&Settings) -> u64);

/// Bounds that no host changes.
const BOUNDS: [Bound; 9] = [
    ("vm-places", 1, VMS_MAX as u64, "VMs", |it| u64::from(it.vm_places)),
    ("urgent-slice-us", 50, 10_000, "microseconds", |it| it.urgent_slice_us),
    ("preemption-delay-us", 0, 10_000, "microseconds", |it| it.preemption_delay_us),
    ("urgent-allowance-us", 0, HOLD_US_MAX, "microseconds of virtual time", |it| it.urgent_allowance_us),
    ("urgent-answer-us", 0, 10_000, "microseconds", |it| it.urgent_answer_us),
    ("boost-percent", 1, 50, "per cent", |it| u64::from(it.boost_percent)),
    ("micro-slice-us", 10, MICRO_SLICE_US_MAX, "microseconds", |it| it.micro_slice_us),
    ("slice-us", 500, HOLD_US_MAX, "microseconds", |it| it.slice_us),
    ("delay-look-us", 10, HOLD_US_MAX, "microseconds", |it| it.delay_look_us),
];

/// What may stand behind a key, if more is to be said than that it is text, or true or false. A VM's keys are
/// `vm.NAME.KEY`.
pub(crate) fn allowed(key: &str) -> Option<String> {
    let of_vm = key.strip_prefix("vm.").and_then(|rest| rest.rsplit_once('.')).map(|(_, of_vm)| of_vm);
    if let Some((_, least, most, unit, _)) = BOUNDS.iter().find(|(bounded, ..)| *bounded == key) {
        return Some(format!("must be {least} to {most} {unit}"));
    }
    Some(match of_vm.unwrap_or(key) {
        "queue-domain" => "must be pcpu, llc or host".to_owned(),
        "scheduler" => "must be beside, microslice or coordinated".to_owned(),
        "rules" => "must be project or paper".to_owned(),
        "critical-by" => "must be symbols, counter or both".to_owned(),
        "accelerate" | "resched-dp" | "tlb-co" => "must be true or false".to_owned(),
        "resched-co" => "must be true, false or \"auto\"".to_owned(),
        "delay-preemption" => "must be a window of microseconds, no longer than a turn".to_owned(),
        "delay-unsafe" => "must be kernel, critical or hinted".to_owned(),
        "micro-cpus" => "must be a number or `auto`".to_owned(),
        "micro-cpus-limit" => "must be a number of CPUs".to_owned(),
        "normal-cpus" => "must be a list of CPUs such as 0-3,8".to_owned(),
        "vm" => "must be a table for each VM, such as [vm.web]".to_owned(),
        word if of_vm.is_none() && word.starts_with("vm.") => {
            "must be one table, such as [vm.web]".to_owned()
        }
        "kernel" if of_vm.is_some() => "must be the path of an image, in quotes".to_owned(),
        "max-wait" if of_vm.is_some() => "must be a time such as 10ms, or none".to_owned(),
        "max-wait" => "must be a time such as 10ms, auto or none".to_owned(),
        "metrics-listen" => "must be text: unix:/PATH, IP:PORT, or off".to_owned(),
        "stats" => "must be 0.1 to 86400 seconds".to_owned(),
        "weight" => format!("must be {} to {}", WEIGHTS.start(), WEIGHTS.end()),
        _ => return None,
    })
}

impl Settings {
    /// How the user knows a setting: by its place in the file, or by its flag.
    pub(crate) fn called(&self, key: &str) -> String {
        match self.places.get(key) {
            Some(place) => format!("{place}: {key}"),
            None if key == "metrics-listen" && !self.flags_given.contains(key) => {
                format!("the environment's {}", Listen::ENVIRONMENT)
            }
            None => format!("--{key}"),
        }
    }

    /// Refuses the kernel image that was named for a VM.
    pub(crate) fn refuse_kernel(&self, vm: &str, cause: &HostError) -> HostError {
        let key = format!("vm.{vm}.kernel");
        let place = self.places.get(&key).filter(|_| !self.guests_must_run.iter().any(|name| name == vm));
        let called = place.map_or_else(|| format!("--guest {vm}"), |place| format!("{place}: {key}"));
        HostError::refused(format!("{called}: {cause}"))
    }

    fn refuse(&self, key: &str, value: impl std::fmt::Display) -> HostError {
        let called = self.called(key);
        HostError::refused(format!("{called} {value}: {}", allowed(key).unwrap_or_default()))
    }

    /// Checks all bounds but the pool's, which the host decides: [`Settings::pool_limit`].
    pub fn check(&self) -> Result<(), HostError> {
        self.check_knobs()?;
        for (key, least, most, _, of) in BOUNDS {
            let value = of(self);
            if !(least..=most).contains(&value) {
                return Err(self.refuse(key, value));
            }
        }
        self.check_windows()?;
        self.check_rules()?;
        if let Some((name, weight)) = self.weights.iter().find(|(_, weight)| !WEIGHTS.contains(weight)) {
            let key = format!("vm.{name}.weight");
            return Err(match self.places.contains_key(&key) {
                true => self.refuse(&key, weight),
                false => HostError::refused(format!(
                    "--weight {name}={weight}: {}",
                    allowed(&key).unwrap_or_default()
                )),
            });
        }
        match self.stats {
            Some(seconds) if !(0.1..=86_400.0).contains(&seconds) => Err(self.refuse("stats", seconds)),
            _ => Ok(()),
        }
    }

    /// Which functions of guest kernels are critical.
    pub(crate) fn catalogue(&self) -> Result<Catalogue, HostError> {
        match &self.critical {
            Some(path) => Catalogue::from_file(path)
                .map_err(|cause| HostError::refused(format!("{}: {cause}", self.called("critical")))),
            None => Ok(Catalogue::linux()),
        }
    }

    /// True if guests' counts are read.
    pub(crate) fn reads_counts(&self) -> bool {
        self.critical_by != CriticalBy::Symbols
    }

    /// Is anything configured for VMs of this name?
    pub fn knows_vm(&self, name: &str) -> bool {
        self.guests.contains_key(name) || self.said_of(name) != VmPolicy::default()
    }

    /// Keeps the pCPUs out of the micro pool that the operator names, and those that VMs are pinned to.
    pub fn keep_normal(&self, topology: &mut Topology, pinned: &[u32]) -> Result<(), HostError> {
        let CpuList(named) = &self.normal_cpus;
        if let Some(cpu) = named.iter().find(|cpu| **cpu >= topology.pcpu_count) {
            return Err(HostError::refused(format!(
                "{} {}: this host has no CPU {cpu}",
                self.called("normal-cpus"),
                cpu_list(named)
            )));
        }
        topology.keep_normal(named, pinned);
        Ok(())
    }

    /// By what the host shows of its caches.
    pub fn queue_domains(&self, topology: &Topology) -> Result<Domains, HostError> {
        Domains::of_host(self.queue_domain, &topology.neighbourhoods)
            .map_err(|cause| HostError::refused(format!("{} llc: {cause}", self.called("queue-domain"))))
    }

    /// The same on a host that has lost pCPUs since these settings were checked: no more are micro-sliced
    /// than there are.
    pub fn within(&self, candidates: usize) -> Self {
        let possible = candidates.min(microslice_policy::POOL_LIMIT_MAX) as u32;
        let mut settings = self.clone();
        settings.micro_cpus_limit = self.micro_cpus_limit.map(|limit| limit.min(possible));
        if let PoolChoice::Static(count) = self.micro_cpus {
            let limit = settings.micro_cpus_limit.unwrap_or((possible + 1).div_ceil(4).min(possible));
            settings.micro_cpus = PoolChoice::Static(count.min(limit));
        }
        settings
    }

    /// The most pCPUs that may be micro-sliced on a host with this many that could be. At least one pCPU
    /// stays normal.
    pub fn pool_limit(&self, candidates: usize) -> Result<u32, HostError> {
        let possible = candidates.min(microslice_policy::POOL_LIMIT_MAX) as u32;
        let limit = self.micro_cpus_limit.unwrap_or((possible + 1).div_ceil(4).min(possible));
        if limit > possible {
            return Err(HostError::refused(format!(
                "{} {limit}: this host has {possible} CPUs that could be micro-sliced (one stays normal)",
                self.called("micro-cpus-limit")
            )));
        }
        match self.micro_cpus {
            PoolChoice::Static(count) if count > limit => Err(HostError::refused(format!(
                "{} {count}: beyond the limit of {limit} (--micro-cpus-limit allows up to {possible} here)",
                self.called("micro-cpus")
            ))),
            _ => Ok(limit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_pool_shrinks_to_fit_when_pcpus_are_lost() {
        let greedy =
            Settings { micro_cpus: PoolChoice::Static(3), micro_cpus_limit: Some(3), ..Settings::default() };
        for candidates in 0..=5 {
            let expected = (candidates as u32).min(3);
            let fitting = greedy.within(candidates);
            assert_eq!(fitting.pool_limit(candidates).unwrap(), expected);
            assert_eq!(fitting.micro_cpus, PoolChoice::Static(expected));
        }
        let default = Settings { micro_cpus: PoolChoice::Static(1), ..Settings::default() };
        assert_eq!(default.within(0).micro_cpus, PoolChoice::Static(0));
    }

    #[test]
    fn values_out_of_bounds_are_refused_by_name() {
        let error = Settings { micro_slice_us: 1, ..Settings::default() }.check().unwrap_err();
        assert_eq!(error.to_string(), "--micro-slice-us 1: must be 10 to 30000 microseconds");
        let weights = [("web".to_owned(), 0)].into();
        let error = Settings { weights, ..Settings::default() }.check().unwrap_err();
        assert_eq!(error.to_string(), "--weight web=0: must be 1 to 10000");
        assert!(Settings::default().check().is_ok());
    }

    #[test]
    fn slices_that_bring_the_watchdog_are_refused() {
        let error = |settings: Settings| settings.check().unwrap_err().to_string();
        assert_eq!(
            error(Settings { slice_us: 1_000_000, ..Settings::of_microslice() }),
            "--slice-us 1000000: must be 500 to 300000 microseconds"
        );
        // As the demonstration stretches them for its emulated host.
        let stretched = Settings { slice_us: 300_000, micro_slice_us: 3000, ..Settings::of_microslice() };
        assert!(stretched.check().is_ok());
        let longest = Settings { micro_slice_us: 30_000, ..Settings::of_microslice() };
        assert!(longest.check().is_ok());
    }
}
