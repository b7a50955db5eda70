//! `[[cgroup]]`: cgroups around those of VMs and tasks, with weights and limits.

use super::error::{ScenarioError, quoted};
use super::reader::{self, TableReader};
use super::tree::Node;
use super::vm;
use microslice_model::config::{CgroupConfig, cgroups_around};

pub const KEYS: [&str; 4] = ["name", "parent", "weight", "cpu_max"];
pub const CGROUPS_MAX: usize = 1_024;
/// Deeper than any manager of VMs nests them.
const LEVELS_MAX: usize = 8;

/// Reads one `[[cgroup]]` entry.
pub fn read(node: &Node, cgroups: &mut Vec<CgroupConfig>) -> Result<(), ScenarioError> {
    let table = TableReader::open(node, "a cgroup", &KEYS)?;
    let name_node = table.get("name").ok_or_else(|| table.missing("name", "such as tenant-a"))?;
    let name = reader::name(name_node, "a cgroup")?;
    if cgroups.iter().any(|other| other.name == name) {
        return Err(ScenarioError::new(&name_node.place, format!("a second cgroup {}", quoted(&name))));
    }
    let parent = named(&table, "parent", cgroups)?;
    if let Some(node) = table.get("parent").filter(|_| cgroups_around(cgroups, parent).count() >= LEVELS_MAX)
    {
        let cause = format!("more than {LEVELS_MAX} cgroups around one another");
        return Err(ScenarioError::new(&node.place, cause));
    }
    let (weight, cpu_max) = (vm::read_weight(&table)?, vm::read_cpu_max(&table)?);
    cgroups.push(CgroupConfig { name, weight, parent, cpu_max });
    Ok(())
}

/// Reads a key that names a cgroup which the file has named before.
pub fn named(
    table: &TableReader<'_>,
    key: &str,
    cgroups: &[CgroupConfig],
) -> Result<Option<usize>, ScenarioError> {
    table.parsed(key, |text| {
        let at = cgroups.iter().position(|cgroup| cgroup.name == text);
        at.ok_or_else(|| format!("no cgroup {} stands before it; write [[cgroup]]", quoted(text)))
    })
}
