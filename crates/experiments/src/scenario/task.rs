//! `[[task]]`: threads of the host in a cgroup of their own, such as daemons and workers of the kernel.
//!
//! To schedulers each thread is what a vCPU is. Nothing accelerates it, and its sleeps cost no exits.

use super::error::ScenarioError;
use super::reader::{self, TableReader};
use super::tree::{Node, NodeValue, Table};
use super::workload::{self, Surroundings};
use super::{Outside, cgroup, vm};
use microslice_model::config::{
    ChannelConfig, GuestKernelConfig, KernelFeatures, LockKind, Phase, S, ShownCount, SymbolTable,
    ThreadScheduler, VmConfig, VmKnobs,
};
use std::collections::BTreeMap;

pub const KEYS: [&str; 9] =
    ["name", "threads", "weight", "cgroup", "cpu_max", "affinity", "cache_sensitivity", "unit", "program"];

/// Reads one `[[task]]` entry, which the schedulers have as a VM.
pub fn read(
    node: &Node,
    pcpus: usize,
    outside: &Outside,
    vms: &mut Vec<VmConfig>,
) -> Result<(), ScenarioError> {
    let table = TableReader::open(node, "a task", &KEYS)?;
    let name_node = table.get("name").ok_or_else(|| table.missing("name", "such as vhost"))?;
    let name = reader::name(name_node, "a task")?;
    let threads = table.integer("threads", 1..=vm::VCPUS_MAX)?.unwrap_or(1) as usize;
    let mut kernel = host_kernel();
    let mut surroundings = Surroundings {
        vcpus: threads,
        has_nic: false,
        kernel_locks: 0,
        kernel: &mut kernel,
        queue_capacities: BTreeMap::new(),
        channels: &outside.channels,
    };
    let workload = workload::read(&as_workload(node, threads), &mut surroundings)?;
    if !workload.program.iter().all(|phase| is_of_host(phase, &outside.channels)) {
        let place = table.get("program").map_or(table.place(), |program| &program.place);
        let cause = "the `program` of a task has compute, sleep, progress, repeat, sometimes, and send and receive of a channel only";
        return Err(ScenarioError::new(place, cause));
    }
    let task = VmConfig {
        name,
        vcpus: threads,
        are_tasks: true,
        weight: vm::read_weight(&table)?,
        cgroup: cgroup::named(&table, "cgroup", &outside.cgroups)?,
        cpu_max: vm::read_cpu_max(&table)?,
        max_wait_ns: Some(0),
        affinity: vm::read_affinity(&table, pcpus)?,
        pins: Vec::new(),
        kernel,
        workloads: vec![workload],
        nic: None,
        knobs: VmKnobs::default(),
    };
    vm::add(task, 1, (table.place(), &name_node.place), vms)
}

/// The table's own keys that a workload has, too.
fn as_workload(node: &Node, threads: usize) -> Node {
    let mut own = Table::new();
    if let NodeValue::Table(table) = &node.value {
        let of_workload = ["name", "cache_sensitivity", "unit", "program"];
        let keys = table.iter().filter(|(key, _)| of_workload.contains(&key.as_str()));
        own.extend(keys.map(|(key, value)| (key.clone(), value.clone())));
    }
    let threads = Node { place: node.place.clone(), value: NodeValue::Integer(threads as i64) };
    own.insert("threads".to_owned(), (node.place.clone(), threads));
    Node { place: node.place.clone(), value: NodeValue::Table(own) }
}

fn is_of_host(phase: &Phase, channels: &[ChannelConfig]) -> bool {
    match phase {
        Phase::Compute { .. } | Phase::Sleep { .. } | Phase::Progress { .. } => true,
        Phase::Send { queue, .. } | Phase::Receive { queue } => {
            channels.iter().any(|channel| channel.name == *queue)
        }
        Phase::Repeat { body, .. } | Phase::Sometimes { body, .. } => {
            body.iter().all(|phase| is_of_host(phase, channels))
        }
        _ => false,
    }
}

/// What stands for a guest's kernel, and takes no time.
fn host_kernel() -> GuestKernelConfig {
    GuestKernelConfig {
        symbols: SymbolTable::LinuxModern,
        lock_kind: LockKind::Queued,
        pv_spin_ns: 0,
        yield_spin_ns: GuestKernelConfig::YIELD_SPIN_NS,
        balance: None,
        tick_hz: 1,
        thread_slice_ns: S,
        thread_scheduler: ThreadScheduler::Fifo,
        features: KernelFeatures::default(),
        pv_tlb_flush: false,
        pv_ipi_yield: false,
        preemption_hint_ns: 0,
        user_hint_ns: 0,
        wait_lists: None,
        readers: false,
        flat_ipi: false,
        listed_holds_percent: 100,
        shown_count: ShownCount::Honest,
        call_function_handler_ns: 1,
        reschedule_handler_ns: 1,
        tick_handler_ns: 1,
        thread_switch_ns: 1,
        locks: Vec::new(),
    }
}
