//! `[[channel]]`: queues between VMs and tasks of the host.

use super::error::{ScenarioError, quoted};
use super::reader::{self, TableReader};
use super::tree::Node;
use super::workload;
use microslice_model::config::{ChannelConfig, VmConfig};

pub const KEYS: [&str; 2] = ["name", "capacity"];
pub const CHANNELS_MAX: usize = 1_024;
/// As many requests as a virtqueue of QEMU's has by default.
const CAPACITY_DEFAULT: u64 = 256;

/// Reads one `[[channel]]` entry.
pub fn read(node: &Node, channels: &mut Vec<ChannelConfig>) -> Result<(), ScenarioError> {
    let table = TableReader::open(node, "a channel", &KEYS)?;
    let name_node = table.get("name").ok_or_else(|| table.missing("name", "such as disk"))?;
    let name = reader::name(name_node, "a channel")?;
    if channels.iter().any(|other| other.name == name) {
        return Err(ScenarioError::new(&name_node.place, format!("a second channel {}", quoted(&name))));
    }
    let capacity = table.integer("capacity", 1..=workload::QUEUE_CAPACITY_MAX)?.unwrap_or(CAPACITY_DEFAULT);
    channels.push(ChannelConfig { name, capacity: capacity as usize });
    Ok(())
}

/// Refuses channels that nobody sends to, or receives from.
pub fn check(nodes: &[Node], channels: &[ChannelConfig], vms: &[VmConfig]) -> Result<(), ScenarioError> {
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    for workload in vms.iter().flat_map(|vm| &vm.workloads) {
        workload::collect_queues(&workload.program, &mut sent, &mut received);
    }
    for (node, ChannelConfig { name, .. }) in nodes.iter().zip(channels) {
        for (users, verb) in [(&sent, "sends to"), (&received, "receives from")] {
            if !users.contains(&name.as_str()) {
                return Err(ScenarioError::new(
                    &node.place,
                    format!("channel {}: nobody {verb} it", quoted(name)),
                ));
            }
        }
    }
    Ok(())
}
