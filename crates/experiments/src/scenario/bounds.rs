//! Bounds on waits (`max_wait`): of a policy for all VMs, and of a VM for itself.

use super::error::{Place, ScenarioError};
use super::reader::{self, TableReader};
use super::tree::{Node, NodeValue};
use super::units;
use microslice_model::config::{BesideConfig, HostConfig, MicroSlicedConfig, SchedulerKind, VmConfig};
use microslice_policy::{
    MAX_WAIT_AUTO_NS, MAX_WAIT_LEAST_NS, MAX_WAIT_MOST_NS, max_wait_each_ns, max_wait_least_ns,
};

/// A policy's bound, and how long it is for each vCPU that wants to run (`policy/max_wait.h`); 0: none.
/// `is_auto`: who says none has `"auto"`.
pub fn of_policy(
    table: &TableReader<'_>,
    micro_slice_ns: u64,
    is_auto: bool,
) -> Result<(u64, u64), ScenarioError> {
    const AUTO: &str = "auto";
    let auto = (u64::from(MAX_WAIT_AUTO_NS), max_wait_each_ns(micro_slice_ns));
    match table.get("max_wait") {
        Some(node) if reader::string(node).is_ok_and(|text| text.trim() == AUTO) => Ok(auto),
        None if is_auto => Ok(auto),
        _ => Ok((read(table)?.unwrap_or(0), 0)),
    }
}

/// How long vCPUs may wait for a pCPU; 0: for ever.
pub fn read(table: &TableReader<'_>) -> Result<Option<u64>, ScenarioError> {
    table.parsed("max_wait", |text| match text.trim() {
        "none" => Ok(0),
        text => units::time_ns(text, None, &(u64::from(MAX_WAIT_LEAST_NS)..=u64::from(MAX_WAIT_MOST_NS))),
    })
}

/// Refuses bounds that the host can't keep: micro slices for them would take more than half of it. `places`:
/// where the policy says its bound, and where each VM does. A bound that nobody named isn't refused: waits
/// that are longer are counted.
pub fn check(
    scheduler: &SchedulerKind,
    host: &HostConfig,
    vms: &[VmConfig],
    places: &[Option<Place>],
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
                let place = places.get(if vm.max_wait_ns.is_some() { at + 1 } else { 0 });
                if let Some(place) = place.and_then(Option::as_ref) {
                    return Err(ScenarioError::new(place, cause));
                }
            }
        }
    }
    Ok(())
}

/// Where a table says its bound, if it does.
pub fn place(node: &Node) -> Option<Place> {
    match &node.value {
        NodeValue::Table(table) => table.get("max_wait").map(|(_, value)| value.place.clone()),
        _ => None,
    }
}
