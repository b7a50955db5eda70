//! Bounds on waits (`max_wait`): of a policy for all VMs, and of a VM for itself.

use super::error::{Place, ScenarioError};
use super::reader::TableReader;
use super::tree::{Node, NodeValue};
use super::units;
use microslice_model::config::{BesideConfig, HostConfig, MicroSlicedConfig, SchedulerKind, VmConfig};
use microslice_policy::{MAX_WAIT_LEAST_NS, MAX_WAIT_MOST_NS, max_wait_least_ns};

/// How long vCPUs may wait for a pCPU; 0: for ever.
pub fn read(table: &TableReader<'_>) -> Result<Option<u64>, ScenarioError> {
    table.parsed("max_wait", |text| match text.trim() {
        "none" => Ok(0),
        text => units::time_ns(text, None, &(u64::from(MAX_WAIT_LEAST_NS)..=u64::from(MAX_WAIT_MOST_NS))),
    })
}

/// Refuses bounds that the host can't keep: micro slices for them would take more than half of it. `places`:
/// where the policy says its bound, and where each VM does.
pub fn check(
    scheduler: &SchedulerKind,
    host: &HostConfig,
    vms: &[VmConfig],
    places: &[Place],
) -> Result<(), ScenarioError> {
    let (SchedulerKind::Beside(BesideConfig { max_wait_ns, micro_slice_ns, .. })
    | SchedulerKind::MicroSliced(MicroSlicedConfig { max_wait_ns, micro_slice_ns, .. })) = scheduler
    else {
        return Ok(());
    };
    let bound_ns = |vm: &VmConfig| vm.max_wait_ns.unwrap_or(*max_wait_ns);
    let bounded = || vms.iter().enumerate().filter(|(_, vm)| bound_ns(vm) > 0);
    let vcpus: usize = bounded().map(|(_, vm)| vm.vcpus).sum();
    for (at, vm) in bounded() {
        // All of them on the host, or its own where it may run.
        let own = if vm.affinity.is_empty() { host.pcpus } else { vm.affinity.len() };
        for (vcpus, pcpus) in [(vcpus, host.pcpus), (vm.vcpus, own)] {
            let least_ns = max_wait_least_ns(*micro_slice_ns, vcpus as u32, pcpus as u32);
            if bound_ns(vm) < least_ns {
                let least_ms = least_ns as f64 / 1e6;
                let cause = format!(
                    "{vcpus} vCPUs on {pcpus} pCPUs can't have that `max_wait`; the least is {least_ms} ms"
                );
                let place = vm.max_wait_ns.and_then(|_| places.get(at + 1)).unwrap_or(&places[0]);
                return Err(ScenarioError::new(place, cause));
            }
        }
    }
    Ok(())
}

/// Where a table says its bound, or where it is.
pub fn place(node: &Node) -> Place {
    let key = match &node.value {
        NodeValue::Table(table) => table.get("max_wait").map(|(_, value)| &value.place),
        _ => None,
    };
    key.unwrap_or(&node.place).clone()
}
