//! Scenarios as data: TOML in, a [`SimulationConfig`] out, or one error with file, line, column and what is
//! allowed.
//!
//! A scenario names a host, a policy and VMs; a VM names a kernel and workloads. Each of these is a file of
//! its own (in `hosts/`, `policies/`, `kernels/`, `workloads/`, `nics/`) or a table in place; `extends` lays
//! a table over a file. The steps: load and layer the files (`library`), resolve names, apply `--set`, read
//! typed values (`host`, `vm`, …).
//!
//! Values are looked up by key, not read by derived `Deserialize`. A draft with three of six readers so
//! written (`policy`, `host`, `delay`) added 1,427 lines and removed 718. A value's place is in the file that
//! gave it, or in `--set`, where `toml::Spanned` counts bytes of one text. So serde needs a deserializer over
//! this tree, of 370 lines where `reader` has 180. Ranges and words of values take types of their own,
//! another 440. What keys mean together is checked by hand either way.

mod bounds;
mod built_in;
mod cgroup;
mod channel;
mod delay;
mod error;
mod host;
mod kernel;
mod library;
mod paper_rules;
mod policy;
mod reader;
mod task;
#[cfg(test)]
mod tests;
mod tree;
mod units;
mod vm;
mod workload;

pub use built_in::built_in;
pub use error::quoted;
pub use error::{Place, ScenarioError};
pub use kernel::{critical_functions, symbol_tables};
pub(crate) use library::Library;
pub use library::Shelf;
pub use policy::names as policy_names;
pub(crate) use reader::{TableReader, name, string};
pub(crate) use tree::{Node, NodeValue};

use microslice_model::config::{
    CgroupConfig, ChannelConfig, MicroSlicedConfig, PoolSize, SchedulerKind, SimulationConfig,
};
use std::path::PathBuf;
use tree::Table;

/// Every key that scenarios may carry, by the table that it is of: what a generator has to cover.
pub fn vocabulary() -> Vec<(&'static str, Vec<&'static str>)> {
    vec![
        ("a scenario", KEYS.to_vec()),
        ("a host", host::KEYS.to_vec()),
        ("costs", host::COST_KEYS.to_vec()),
        ("queue_locks", host::QUEUE_LOCK_KEYS.to_vec()),
        ("boosts", host::BOOST_KEYS.to_vec()),
        ("ple", host::PLE_KEYS.to_vec()),
        ("kvm", host::KVM_KEYS.to_vec()),
        ("a VM", vm::KEYS.to_vec()),
        ("a task", task::KEYS.to_vec()),
        ("a cgroup", cgroup::KEYS.to_vec()),
        ("a channel", channel::KEYS.to_vec()),
        ("a NIC", vm::NIC_KEYS.to_vec()),
        ("a NIC's worker", vm::NIC_WORKER_KEYS.to_vec()),
        ("a TCP stream", vm::TCP_KEYS.to_vec()),
        ("a UDP stream", vm::UDP_KEYS.to_vec()),
        ("a kernel", kernel::KEYS.to_vec()),
        ("a lock", kernel::LOCK_KEYS.to_vec()),
        ("a workload", workload::KEYS.to_vec()),
        ("a phase", workload::phase_keys()),
    ]
}

const KEYS: [&str; 10] =
    ["seed", "warmup", "duration", "host", "policy", "vm", "task", "cgroup", "channel", "guest_times"];
const VMS_MAX: usize = 16_384;
const PROFILE_INTERVALS_MAX: u64 = 4_000_000;
/// What a scenario runs under if it says nothing: the paper's baseline.
const DEFAULT_POLICY: &str = "credit";

/// A scenario, ready to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// As the user named it.
    pub name: String,
    /// The file's own description, one line.
    pub description: String,
    /// Of the disk, that it was read from.
    pub files: Vec<PathBuf>,
    pub config: SimulationConfig,
}

/// What the command line changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `--policy`: a name as in [`policy_names`], or a file.
    pub policy: Option<String>,
    /// `--seed`.
    pub seed: Option<u64>,
    /// `--set path=value`, in order.
    pub settings: Vec<(String, String)>,
}

/// The same, each with the place where it was written.
#[derive(Debug, Clone, Default)]
pub(crate) struct Changes {
    /// A policy's name, or a file.
    pub policy: Option<Node>,
    pub seed: Option<u64>,
    /// Paths, and the values that they get.
    pub settings: Vec<(String, Node)>,
}

impl From<&Overrides> for Changes {
    fn from(overrides: &Overrides) -> Self {
        let policy = overrides
            .policy
            .clone()
            .map(|policy| Node { place: Place::whole("--policy"), value: NodeValue::String(policy) });
        let setting = |(path, text): &(String, String)| {
            (path.clone(), tree::value_of(&Place::whole(&format!("--set {}", error::clipped(path))), text))
        };
        Self { policy, seed: overrides.seed, settings: overrides.settings.iter().map(setting).collect() }
    }
}

/// Splits `path=value`; the value may contain `=` itself.
pub fn split_setting(text: &str) -> Result<(&str, &str), String> {
    match text.split_once('=') {
        Some((path, value)) if !path.trim().is_empty() => Ok((path.trim(), value.trim())),
        _ => Err("expected PATH=VALUE, such as vm.target.vcpus=8".to_owned()),
    }
}

/// `"path=value"`, written in a file: the path, and the value with its place.
pub(crate) fn written_setting(node: &Node) -> Result<(String, Node), ScenarioError> {
    let (path, text) =
        split_setting(string(node)?).map_err(|cause| ScenarioError::new(&node.place, cause))?;
    Ok((path.to_owned(), tree::value_of(&node.place, text)))
}

/// Loads a scenario by path or built-in name.
pub fn load(reference: &str, overrides: &Overrides) -> Result<Scenario, ScenarioError> {
    let mut library = Library::default();
    let document = library.scenario(reference)?;
    build(reference, document, library, &overrides.into())
}

/// Loads a scenario that another file names, which `library` has read.
pub(crate) fn load_named(
    mut library: Library,
    reference: &Node,
    changes: &Changes,
) -> Result<Scenario, ScenarioError> {
    let name = string(reference)?;
    let document = library.find(Shelf::Scenario, name, &reference.place)?;
    build(name, document, library, changes)
}

/// Reads a scenario from a text; `file` is how errors call it. Names in it mean built-in files.
pub fn parse(file: &str, text: &str, overrides: &Overrides) -> Result<Scenario, ScenarioError> {
    let mut library = Library::default();
    let document = library.document(file, text)?;
    build(file, document, library, &overrides.into())
}

fn build(
    name: &str,
    document: Node,
    mut library: Library,
    changes: &Changes,
) -> Result<Scenario, ScenarioError> {
    let mut root = resolve(&mut library, document)?;
    // First, so that settings may change the policy's own parameters; none puts another one in its place.
    if let Some(policy) = &changes.policy {
        tree::set(&mut root, "policy", policy.clone())?;
        root = resolve(&mut library, root)?;
    }
    let sets_policy = |(path, _): &&(String, Node)| path.trim_matches('"') == "policy";
    let setting = changes.settings.iter().find(sets_policy);
    if let (Some(policy), Some((_, value))) = (&changes.policy, setting) {
        let (place, named) = match policy.place.is_command_line() {
            true => (Place::whole("--set policy"), "`--policy`"),
            false => (value.place.clone(), "`policies`"),
        };
        let cause = format!("the policy is that of {named}: name it there, or set policy.KEY");
        return Err(ScenarioError::new(&place, cause));
    }
    for (path, value) in &changes.settings {
        tree::set(&mut root, path, value.clone())?;
        // The new value may be a name itself (`vm.target.kernel=linux-modern`).
        root = resolve(&mut library, root)?;
    }
    let mut scenario = read(name, &root)?;
    scenario.files = library.into_files();
    if let Some(seed) = changes.seed {
        scenario.config.seed = seed;
    }
    Ok(scenario)
}

/// Replaces every name by the table it means. Harmless to repeat.
fn resolve(library: &mut Library, mut root: Node) -> Result<Node, ScenarioError> {
    let NodeValue::Table(scenario) = &mut root.value else { return Ok(root) };
    if !scenario.contains_key("policy") {
        let place = root.place.clone();
        let default = Node { place: place.clone(), value: NodeValue::String(DEFAULT_POLICY.to_owned()) };
        scenario.insert("policy".to_owned(), (place, default));
    }
    replace(scenario, "host", |node| {
        let mut host = by_name(library, Shelf::Host, node)?;
        if let NodeValue::Table(host) = &mut host.value {
            replace(host, "boosts", |node| by_name(library, Shelf::Boosts, node))?;
        }
        Ok(host)
    })?;
    replace(scenario, "policy", |node| match node.value {
        NodeValue::String(_) => policy::named(library, &node),
        _ => library.extended(Shelf::Policy, node),
    })?;
    let vms = scenario.get_mut("vm").and_then(|(_, vms)| vm::entries(vms));
    for vm in vms.into_iter().flatten() {
        let NodeValue::Table(vm) = &mut vm.value else { continue };
        replace(vm, "kernel", |node| by_name(library, Shelf::Kernel, node))?;
        replace(vm, "nic", |node| by_name(library, Shelf::Nic, node))?;
        let workloads = vm.get_mut("workloads").and_then(|(_, list)| vm::entries(list));
        for workload in workloads.into_iter().flatten() {
            let node = std::mem::replace(workload, placeholder(&workload.place));
            *workload = named_workload(library, node)?;
        }
    }
    Ok(root)
}

fn placeholder(place: &Place) -> Node {
    Node { place: place.clone(), value: NodeValue::Boolean(false) }
}

fn replace(
    table: &mut Table,
    key: &str,
    resolved: impl FnOnce(Node) -> Result<Node, ScenarioError>,
) -> Result<(), ScenarioError> {
    let Some((_, node)) = table.get_mut(key) else { return Ok(()) };
    let old = std::mem::replace(node, placeholder(&node.place));
    *node = resolved(old)?;
    Ok(())
}

fn by_name(library: &mut Library, shelf: Shelf, node: Node) -> Result<Node, ScenarioError> {
    match &node.value {
        NodeValue::String(name) => library.find(shelf, name, &node.place),
        _ => library.extended(shelf, node),
    }
}

/// `"gmake"` or `{ use = "gmake", threads = 6 }`: the file's table with the entry's own keys over it, and a
/// name.
fn named_workload(library: &mut Library, node: Node) -> Result<Node, ScenarioError> {
    let (mut workload, name) = match node.value {
        NodeValue::String(ref reference) => {
            (library.find(Shelf::Workload, reference, &node.place)?, Some((node.place.clone(), node)))
        }
        NodeValue::Table(mut own) => match own.remove("use") {
            Some((place, reference)) => {
                let below = library.find(Shelf::Workload, reader::string(&reference)?, &reference.place)?;
                let own = Node { place: node.place, value: NodeValue::Table(own) };
                (tree::overlay(below, own), Some((place, reference)))
            }
            None => {
                let own = Node { place: node.place, value: NodeValue::Table(own) };
                (library.extended(Shelf::Workload, own)?, None)
            }
        },
        _ => (node, None),
    };
    if let (NodeValue::Table(table), Some((place, mut reference))) = (&mut workload.value, name) {
        if let NodeValue::String(path) = &mut reference.value {
            let stem = std::path::Path::new(path.as_str()).file_stem().and_then(|stem| stem.to_str());
            *path = stem.filter(|_| path.ends_with(".toml")).unwrap_or(path).to_owned();
        }
        table.entry("name".to_owned()).or_insert((place, reference));
    }
    Ok(workload)
}

/// The size of the micro pool is kept, and shown, for each profile interval.
fn check_profile_interval(
    scheduler: &SchedulerKind,
    run_ns: u64,
    policy: &Node,
) -> Result<(), ScenarioError> {
    let SchedulerKind::MicroSliced(MicroSlicedConfig { pool, .. }) = scheduler else { return Ok(()) };
    let PoolSize::Auto { profile_interval_ns, .. } = pool else { return Ok(()) };
    if run_ns / profile_interval_ns <= PROFILE_INTERVALS_MAX {
        return Ok(());
    }
    let cause = format!(
        "more than {PROFILE_INTERVALS_MAX} of its `profile_interval` fit into `warmup` and `duration`"
    );
    let key = match &policy.value {
        NodeValue::Table(table) => table.get("profile_interval").map(|(_, value)| &value.place),
        _ => None,
    };
    Err(ScenarioError::new(key.unwrap_or(&policy.place), cause))
}

/// What VMs and tasks may name.
struct Outside {
    cgroups: Vec<CgroupConfig>,
    channels: Vec<ChannelConfig>,
}

fn read_outside(scenario: &TableReader<'_>) -> Result<Outside, ScenarioError> {
    let mut outside = Outside { cgroups: Vec::new(), channels: Vec::new() };
    for node in scenario.list("cgroup", cgroup::CGROUPS_MAX)? {
        cgroup::read(node, &mut outside.cgroups)?;
    }
    for node in scenario.list("channel", channel::CHANNELS_MAX)? {
        channel::read(node, &mut outside.channels)?;
    }
    Ok(outside)
}

fn read(name: &str, root: &Node) -> Result<Scenario, ScenarioError> {
    let table = TableReader::open(root, "a scenario", &KEYS)?;
    let host_node =
        table.get("host").ok_or_else(|| table.missing("host", "such as xeon-e5645, or a table"))?;
    let host = host::read(host_node)?;
    let policy = table.get("policy").ok_or_else(|| table.missing("policy", "such as credit"))?;
    let scheduler = policy::read(policy, host.pcpus)?;
    let delay = delay::read(policy, scheduler.shortest_turn_ns())?;
    let duration_ns = table.time("duration", 1..=units::HOUR_NS)?;
    let warmup_ns = table.time("warmup", 0..=units::HOUR_NS)?.unwrap_or(0);
    check_profile_interval(&scheduler, warmup_ns + duration_ns.unwrap_or(0), policy)?;
    let mut vms = Vec::new();
    let outside = read_outside(&table)?;
    if let Some(node) = table.get("vm").filter(|node| matches!(node.value, NodeValue::Table(_))) {
        return Err(ScenarioError::new(&node.place, "`vm` is a list: write [[vm]], not [vm]"));
    }
    let mut bound_places = vec![bounds::place(policy)];
    for node in table.list("vm", VMS_MAX)? {
        vm::read(node, host.pcpus, &outside, &mut vms)?;
        bound_places.resize(vms.len() + 1, bounds::place(node));
    }
    if vms.is_empty() {
        return Err(table.missing("vm", "at least one [[vm]]"));
    }
    bounds::check(&scheduler, &host, &vms, &bound_places)?;
    for node in table.list("task", VMS_MAX)? {
        task::read(node, host.pcpus, &outside, &mut vms)?;
    }
    let Outside { cgroups, channels } = outside;
    channel::check(table.list("channel", channel::CHANNELS_MAX)?, &channels, &vms)?;
    let config = SimulationConfig {
        seed: table.integer("seed", 0..=i64::MAX as u64)?.unwrap_or(1),
        warmup_ns,
        duration_ns: duration_ns.ok_or_else(|| table.missing("duration", "a time such as \"2 s\""))?,
        scheduler,
        delay,
        host,
        vms,
        cgroups,
        channels,
        check: false,
        guest_times: table.boolean("guest_times")?.unwrap_or(false),
        fold_exits: true,
    };
    let description = table.string("description")?.unwrap_or_default().lines().next().unwrap_or_default();
    Ok(Scenario { name: name.to_owned(), description: description.to_owned(), files: Vec::new(), config })
}
