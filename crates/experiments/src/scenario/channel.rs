//! `[[channel]]`: queues between VMs and tasks of the host.

use super::error::{ScenarioError, quoted};
use super::reader::{self, TableReader};
use super::tree::Node;
use super::workload;
use microslice_model::config::{ChannelConfig, NicWorker, Phase, VmConfig};

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
    let nics = || vms.iter().filter_map(|vm| Some((&vm.name, vm.nic.as_ref()?.worker.as_ref()?)));
    let workers = || nics().map(|(_, worker)| worker);
    for (node, ChannelConfig { name, .. }) in nodes.iter().zip(channels) {
        let refuse =
            |cause: &str| Err(ScenarioError::new(&node.place, format!("channel {}: {cause}", quoted(name))));
        let from = workers().filter(|worker| worker.from == *name).count();
        let to = workers().filter(|worker| worker.to == *name).count();
        let (is_sent, is_received) = (sent.contains(&name.as_str()), received.contains(&name.as_str()));
        if from + to > 1 || (from > 0 && is_sent) || (to > 0 && is_received) {
            let (vm, _) = nics().find(|(_, it)| [&it.from, &it.to].contains(&name)).expect("one is counted");
            return refuse(&format!("the NIC of VM {} shares its ends with nobody", quoted(vm)));
        }
        if !is_sent && from == 0 {
            return refuse("nobody sends to it");
        }
        if !is_received && to == 0 {
            return refuse("nobody receives from it");
        }
        let of_this = workers().filter(|worker| worker.to == *name);
        if of_this.flat_map(|worker| carried(worker, vms)).any(|(received, sent)| received != sent) {
            return refuse("the task sends other than it receives of the NIC's packets");
        }
    }
    Ok(())
}

/// How many packets each program receives and sends in one pass, on average: what it keeps would be under way
/// for ever.
fn carried(worker: &NicWorker, vms: &[VmConfig]) -> Vec<(f64, f64)> {
    fn count(program: &[Phase], is_it: &dyn Fn(&Phase) -> bool) -> f64 {
        let of = |phase: &Phase| match phase {
            Phase::Repeat { count: times, body } => *times as f64 * count(body, is_it),
            Phase::Sometimes { ppm, body } => f64::from(*ppm) / 1e6 * count(body, is_it),
            phase => f64::from(u8::from(is_it(phase))),
        };
        program.iter().map(of).sum()
    }
    let received = |phase: &Phase| matches!(phase, Phase::Receive { queue } if *queue == worker.from);
    let sent = |phase: &Phase| matches!(phase, Phase::Send { queue, .. } if *queue == worker.to);
    let programs = vms.iter().flat_map(|vm| &vm.workloads).map(|workload| &workload.program);
    programs.map(|program| (count(program, &received), count(program, &sent))).collect()
}
