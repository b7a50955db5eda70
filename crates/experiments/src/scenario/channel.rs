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

/// Refuses channels that nobody sends to, or receives from, and what others would take of a NIC's packets.
pub fn check(nodes: &[Node], channels: &[ChannelConfig], vms: &[VmConfig]) -> Result<(), ScenarioError> {
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    for workload in vms.iter().flat_map(|vm| &vm.workloads) {
        workload::collect_queues(&workload.program, &mut sent, &mut received);
    }
    let workers = || vms.iter().filter_map(|vm| vm.nic.as_ref()?.worker.as_ref());
    for (node, ChannelConfig { name, .. }) in nodes.iter().zip(channels) {
        let refuse =
            |cause: &str| Err(ScenarioError::new(&node.place, format!("channel {}: {cause}", quoted(name))));
        let from = workers().filter(|worker| worker.from == *name).count();
        let to = workers().filter(|worker| worker.to == *name).count();
        let (is_sent, is_received) = (sent.contains(&name.as_str()), received.contains(&name.as_str()));
        if from + to > 1 || (from > 0 && is_sent) || (to > 0 && is_received) {
            return refuse("that end of it is a NIC's, which shares it with nobody");
        }
        if !is_sent && from == 0 {
            return refuse("nobody sends to it");
        }
        if !is_received && to == 0 {
            return refuse("nobody receives from it");
        }
    }
    Ok(())
}
