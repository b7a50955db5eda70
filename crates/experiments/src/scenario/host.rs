//! `hosts/*.toml`: pCPUs, topology, costs, pause-loop exiting.

use super::error::ScenarioError;
use super::reader::TableReader;
use super::tree::Node;
use super::units;
use microslice_model::config::{
    BoostCosts, CostModel, HostConfig, InterruptMode, KvmConfig, PleConfig, Preempt, QueueLockCosts,
};
use std::ops::RangeInclusive;

/// Larger than any machine that KVM supports.
pub const PCPUS_MAX: u64 = 8_192;
const SMT_THREADS_MAX: u64 = 8;
/// Slower than any machine by orders of magnitude: beyond it someone meant another unit.
const COST_NS: RangeInclusive<u64> = 0..=100_000_000;
/// A pause loop that exits sooner would do nothing else.
const PLE_WINDOW_NS: RangeInclusive<u64> = 100..=1_000_000_000;
const PLE_WINDOW_GROW: RangeInclusive<u64> = 1..=64;

pub const KEYS: [&str; 13] = [
    "pcpus",
    "llc_pcpus",
    "node_pcpus",
    "smt_threads",
    "smt_busy_speed",
    "smt_spin_speed",
    "frequency",
    "preempt",
    "costs",
    "queue_locks",
    "boosts",
    "ple",
    "kvm",
];
pub const COST_KEYS: [&str; 12] = [
    "context_switch",
    "exit",
    "ipi_send",
    "ipi_delivery",
    "interrupt_entry",
    "cache_refill_max",
    "cache_displace",
    "llc_migration",
    "node_migration",
    "kick",
    "halt",
    "waiter_line",
];
pub const QUEUE_LOCK_KEYS: [&str; 3] = ["hold", "line_near", "line_far"];
pub const BOOST_KEYS: [&str; 3] = ["latency", "give_back", "helper"];
pub const KVM_KEYS: [&str; 7] =
    ["module", "interrupts", "device_interrupts", "yield_to", "exit_jitter", "halt_poll_ns", "icr_write"];
pub const PLE_KEYS: [&str; 4] = ["enabled", "window", "window_grow", "window_max"];

/// Reads a host.
pub fn read(node: &Node) -> Result<HostConfig, ScenarioError> {
    let table = TableReader::open(node, "a host", &KEYS)?;
    let pcpus =
        table.integer("pcpus", 1..=PCPUS_MAX)?.ok_or_else(|| table.missing("pcpus", "a number from 1"))?;
    let llc_pcpus = table.integer("llc_pcpus", 0..=pcpus)?.unwrap_or(0);
    let node_pcpus = table.integer("node_pcpus", 0..=pcpus)?.unwrap_or(0);
    let smt_threads = table.integer("smt_threads", 1..=SMT_THREADS_MAX)?.unwrap_or(1);
    let frequency_hz = table.parsed("frequency", |text| match units::frequency_hz(text)? {
        hz if (1e6..=1e11).contains(&hz) => Ok(hz),
        _ => Err("allowed: 1 MHz to 100 GHz".to_owned()),
    })?;
    let costs = table.get("costs").ok_or_else(|| table.missing("costs", "a table of times"))?;
    let ple = table.get("ple").ok_or_else(|| table.missing("ple", "a table: enabled, window"))?;
    let smt_busy_speed_permille = read_speed(&table, "smt_busy_speed", 100)?.unwrap_or(1_000);
    let smt_spin_speed_permille =
        read_speed(&table, "smt_spin_speed", smt_busy_speed_permille)?.unwrap_or(smt_busy_speed_permille);
    let host = HostConfig {
        pcpus: pcpus as usize,
        llc_pcpus: llc_pcpus as usize,
        node_pcpus: node_pcpus as usize,
        smt_threads: smt_threads as usize,
        smt_busy_speed_permille,
        smt_spin_speed_permille,
        costs: read_costs(costs, frequency_hz)?,
        queue_locks: table.get("queue_locks").map(|node| read_queue_locks(node, frequency_hz)).transpose()?,
        boosts: table
            .get("boosts")
            .map_or(Ok(BoostCosts::MEASURED), |node| read_boosts(node, frequency_hz))?,
        ple: read_ple(ple, frequency_hz)?,
        preempt: table
            .choice("preempt", &[("full", Preempt::Full), ("lazy", Preempt::Lazy)])?
            .unwrap_or_default(),
        kvm: table.get("kvm").map(|node| read_kvm(node, frequency_hz)).transpose()?,
    };
    match host.misfit() {
        Some((key, cause)) => {
            let cause = format!("the topology doesn't add up: {cause}");
            Err(ScenarioError::new(&table.get(key).unwrap_or(node).place, cause))
        }
        None => Ok(host),
    }
}

fn read_boosts(node: &Node, frequency_hz: Option<f64>) -> Result<BoostCosts, ScenarioError> {
    let table = TableReader::open(node, "boosts", &BOOST_KEYS)?;
    let latency = table.distribution("latency")?;
    Ok(BoostCosts {
        latency: latency
            .ok_or_else(|| table.missing("latency", "a time such as \"lognormal 24 us sigma 0.34\""))?,
        give_back_ns: read_cost(&table, "give_back", frequency_hz)?,
        helper_ns: read_cost(&table, "helper", frequency_hz)?,
    })
}

/// A speed beside a sibling, in 1/1000 of the speed alone.
fn read_speed(table: &TableReader<'_>, key: &str, least: u32) -> Result<Option<u32>, ScenarioError> {
    table.parsed(key, |text| match units::permille(text)? {
        speed if !(least..=1_000).contains(&speed) => {
            Err(format!("allowed: {} % to 100 %", f64::from(least) / 10.0))
        }
        speed => Ok(speed),
    })
}

fn read_optional_cost(
    table: &TableReader<'_>,
    key: &str,
    frequency_hz: Option<f64>,
) -> Result<Option<u64>, ScenarioError> {
    table.parsed(key, |text| units::time_ns(text, frequency_hz, &COST_NS))
}

fn read_cost(table: &TableReader<'_>, key: &str, frequency_hz: Option<f64>) -> Result<u64, ScenarioError> {
    let time = read_optional_cost(table, key, frequency_hz)?;
    time.ok_or_else(|| table.missing(key, "a time such as \"2 us\", or \"4000 cycles\""))
}

fn read_queue_locks(node: &Node, frequency_hz: Option<f64>) -> Result<QueueLockCosts, ScenarioError> {
    let table = TableReader::open(node, "queue_locks", &QUEUE_LOCK_KEYS)?;
    let cost = |key: &str| read_cost(&table, key, frequency_hz);
    Ok(QueueLockCosts {
        hold_ns: cost("hold")?,
        line_near_ns: cost("line_near")?,
        line_far_ns: cost("line_far")?,
    })
}

fn read_costs(node: &Node, frequency_hz: Option<f64>) -> Result<CostModel, ScenarioError> {
    let table = TableReader::open(node, "costs", &COST_KEYS)?;
    let cost = |key: &str| read_cost(&table, key, frequency_hz);
    let optional = |key: &str| read_optional_cost(&table, key, frequency_hz).map(Option::unwrap_or_default);
    let ipi_delivery_ns = cost("ipi_delivery")?;
    let interrupt_entry_ns = read_optional_cost(&table, "interrupt_entry", frequency_hz)?;
    Ok(CostModel {
        context_switch_ns: cost("context_switch")?,
        exit_ns: cost("exit")?,
        ipi_send_ns: cost("ipi_send")?,
        ipi_delivery_ns,
        interrupt_entry_ns: interrupt_entry_ns.unwrap_or(ipi_delivery_ns),
        cache_refill_max_ns: cost("cache_refill_max")?,
        cache_displace_ns: cost("cache_displace")?,
        llc_migration_ns: cost("llc_migration")?,
        node_migration_ns: optional("node_migration")?,
        kick_ns: optional("kick")?,
        halt_ns: optional("halt")?,
        waiter_line_ns: optional("waiter_line")?,
    })
}

fn read_kvm(node: &Node, frequency_hz: Option<f64>) -> Result<KvmConfig, ScenarioError> {
    let table = TableReader::open(node, "kvm", &KVM_KEYS)?;
    let halt_poll_ns = read_optional_cost(&table, "halt_poll_ns", frequency_hz)?;
    let is_amd = table.choice("module", &[("kvm_intel", false), ("kvm_amd", true)])?;
    let modes: &[_] = match is_amd {
        Some(true) => &[("software", InterruptMode::Software), ("avic", InterruptMode::Avic)],
        Some(false) => &[
            ("software", InterruptMode::Software),
            ("apicv", InterruptMode::Apicv),
            ("ipiv", InterruptMode::Ipiv),
        ],
        None => &[("software", InterruptMode::Software)],
    };
    let interrupts = table.choice("interrupts", modes)?.unwrap_or(InterruptMode::Software);
    // What posts is the virtual APIC (arch/x86/kvm/vmx/posted_intr.c, svm/avic.c).
    let may_post = interrupts != InterruptMode::Software;
    let devices: &[_] = if may_post { &[("exit", false), ("posted", true)] } else { &[("exit", false)] };
    let icr_write_ns = read_optional_cost(&table, "icr_write", frequency_hz)?;
    let may_not_exit = !interrupts.exits(true);
    if may_not_exit && icr_write_ns.is_none() {
        return Err(table.missing("icr_write", "what an IPI costs that doesn't exit, such as \"300 cycles\""));
    }
    Ok(KvmConfig {
        interrupts,
        devices_post: table.choice("device_interrupts", devices)?.unwrap_or(false),
        icr_write_ns: icr_write_ns.unwrap_or(0),
        yield_to_ns: read_cost(&table, "yield_to", frequency_hz)?,
        exit_jitter_ns: read_optional_cost(&table, "exit_jitter", frequency_hz)?.unwrap_or_default(),
        halt_poll_ns: halt_poll_ns.unwrap_or(KvmConfig::HALT_POLL_NS),
    })
}

fn read_ple(node: &Node, frequency_hz: Option<f64>) -> Result<PleConfig, ScenarioError> {
    let table = TableReader::open(node, "ple", &PLE_KEYS)?;
    let time = |key| table.parsed(key, |text| units::time_ns(text, frequency_hz, &PLE_WINDOW_NS));
    let expected = "a time such as \"2 us\", or \"4096 cycles\"";
    let window_ns = time("window")?.ok_or_else(|| table.missing("window", expected))?;
    let window_max_ns = time("window_max")?.unwrap_or(u64::MAX);
    if let Some(node) = table.get("window_max").filter(|_| window_max_ns < window_ns) {
        let cause = "`window_max` is shorter than `window`";
        return Err(ScenarioError::new(&node.place, cause.to_owned()));
    }
    Ok(PleConfig {
        enabled: table.boolean("enabled")?.unwrap_or(true),
        window_ns,
        window_grow: table.integer("window_grow", PLE_WINDOW_GROW)?.unwrap_or(1) as u32,
        window_max_ns,
    })
}
