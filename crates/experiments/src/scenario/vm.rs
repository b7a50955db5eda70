//! `[[vm]]`: vCPUs, weight, affinity, kernel, workloads, NIC.

use super::error::{Place, ScenarioError, quoted};
use super::kernel::HANDLER_NS;
use super::reader::{self, TableReader};
use super::tree::{Node, NodeValue};
use super::workload::{self, Surroundings};
use super::{Outside, bounds, cgroup, kernel, policy, units};
use microslice_model::config::{ChannelConfig, CpuMax, NicConfig, NicWorker, Stream, VmConfig, VmKnobs};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Larger than any guest that KVM supports.
pub const VCPUS_MAX: u64 = 4_096;
/// Keep a scenario's memory within a gigabyte.
pub const VCPUS_TOTAL_MAX: usize = 65_536;
const THREADS_TOTAL_MAX: usize = 1 << 20;
const PHASES_TOTAL_MAX: usize = 1 << 20;
const LOCKS_TOTAL_MAX: usize = 1 << 20;
type Count = fn(&VmConfig) -> usize;
/// What there may be of all VMs together, and how much of it one has.
const TOTALS: [(&str, usize, Count); 4] = [
    ("vCPUs", VCPUS_TOTAL_MAX, |vm| vm.vcpus),
    ("threads", THREADS_TOTAL_MAX, |vm| vm.workloads.iter().map(|workload| workload.threads).sum()),
    ("phases", PHASES_TOTAL_MAX, |vm| {
        vm.workloads.iter().map(|workload| workload::phases_of(&workload.program)).sum()
    }),
    ("locks", LOCKS_TOTAL_MAX, |vm| {
        vm.vcpus + vm.kernel.locks.iter().map(|lock| lock.instances).sum::<usize>()
    }),
];
const COPIES_MAX: u64 = 16_384;
const WORKLOADS_MAX: usize = 64;
const WEIGHT_MAX: u64 = 65_535;
/// Those of the kernel (`max_bw_quota_period_us`, `min_bw_quota_period_us`); quotas of 4,096 vCPUs.
const CPU_PERIOD_US: RangeInclusive<u64> = 1_000..=1_000_000;
const CPU_QUOTA_US: RangeInclusive<u64> = 1_000..=4_096_000_000;
const RING_PACKETS_MAX: u64 = 1 << 20;
const WINDOW_BYTES_MAX: u64 = 1 << 30;

pub const KEYS: [&str; 16] = [
    "name",
    "copies",
    "vcpus",
    "weight",
    "cgroup",
    "cpu_max",
    "max_wait",
    "affinity",
    "pinned",
    "vcpupin",
    "kernel",
    "workloads",
    "nic",
    "resched_dp",
    "tlb_co",
    "resched_co",
];
pub const NIC_KEYS: [&str; 8] = [
    "vcpu",
    "irq_handler",
    "softirq_per_packet",
    "reader_per_packet",
    "ring_packets",
    "worker",
    "tcp",
    "udp",
];
pub const NIC_WORKER_KEYS: [&str; 2] = ["from", "to"];
pub const TCP_KEYS: [&str; 4] = ["link", "window", "packet", "round_trip"];
pub const UDP_KEYS: [&str; 2] = ["rate", "packet"];

/// Reads one `[[vm]]` entry: as many VMs as its `copies` says, numbered from 1 if there is more than one.
pub fn read(
    node: &Node,
    pcpus: usize,
    outside: &Outside,
    vms: &mut Vec<VmConfig>,
) -> Result<(), ScenarioError> {
    let table = TableReader::open(node, "a VM", &KEYS)?;
    let name_node = table.get("name").ok_or_else(|| table.missing("name", "such as target"))?;
    let name = reader::name(name_node, "a VM")?;
    let vcpus =
        table.integer("vcpus", 1..=VCPUS_MAX)?.ok_or_else(|| table.missing("vcpus", "a number from 1"))?;
    let vcpus = vcpus as usize;
    let kernel = table.get("kernel").ok_or_else(|| table.missing("kernel", "such as linux-4.4"))?;
    let mut kernel = kernel::read(kernel)?;
    let nic = table.get("nic").map(|node| read_nic(node, vcpus, &outside.channels)).transpose()?;
    let mut surroundings = Surroundings {
        vcpus,
        has_nic: nic.is_some(),
        kernel_locks: kernel.locks.len(),
        kernel: &mut kernel,
        queue_capacities: BTreeMap::new(),
        channels: &outside.channels,
    };
    let mut workloads: Vec<microslice_model::config::WorkloadConfig> = Vec::new();
    for workload_node in table.list("workloads", WORKLOADS_MAX)? {
        let workload = workload::read(workload_node, &mut surroundings)?;
        if workloads.iter().any(|other| other.name == workload.name) {
            let cause = format!("a second workload {} in this VM; give it a `name`", quoted(&workload.name));
            return Err(ScenarioError::new(workload::name_place(workload_node), cause));
        }
        workloads.push(workload);
    }
    workload::check_queues(node, &workloads, &outside.channels)?;
    let vm = VmConfig {
        name,
        vcpus,
        are_tasks: false,
        weight: read_weight(&table)?,
        cgroup: cgroup::named(&table, "cgroup", &outside.cgroups)?,
        affinity: read_affinity(&table, pcpus)?,
        cpu_max: read_cpu_max(&table)?,
        max_wait_ns: bounds::read(&table)?,
        pins: read_pins(&table, vcpus, pcpus)?,
        kernel,
        workloads,
        nic,
        knobs: read_knobs(&table)?,
    };
    let copies = table.integer("copies", 1..=COPIES_MAX)?.unwrap_or(1);
    add(vm, copies, (table.place(), &name_node.place), vms)
}

pub fn read_weight(table: &TableReader<'_>) -> Result<u32, ScenarioError> {
    Ok(table.integer("weight", 1..=WEIGHT_MAX)?.unwrap_or(256) as u32)
}

/// Adds so many copies to the others, if they have room and a name of their own.
pub fn add(
    vm: VmConfig,
    copies: u64,
    (place, name_place): (&Place, &Place),
    vms: &mut Vec<VmConfig>,
) -> Result<(), ScenarioError> {
    for (what, most, of) in TOTALS {
        if vms.iter().map(of).sum::<usize>() + copies as usize * of(&vm) > most {
            return Err(ScenarioError::new(place, format!("more than {most} {what} in one scenario")));
        }
    }
    let others = vms.len();
    for copy in 1..=copies {
        let name = if copies == 1 { vm.name.clone() } else { format!("{}-{copy}", vm.name) };
        if vms[..others].iter().any(|other| other.name == name) {
            return Err(ScenarioError::new(name_place, format!("a second VM {}", quoted(&name))));
        }
        vms.push(VmConfig { name, ..vm.clone() });
    }
    Ok(())
}

fn read_knobs(table: &TableReader<'_>) -> Result<VmKnobs, ScenarioError> {
    Ok(VmKnobs {
        resched_dp: table.boolean("resched_dp")?,
        tlb_co: table.boolean("tlb_co")?,
        resched_co: policy::read_resched_co(table)?,
    })
}

pub fn read_affinity(table: &TableReader<'_>, pcpus: usize) -> Result<Vec<usize>, ScenarioError> {
    let mut affinity = Vec::new();
    for node in table.list("affinity", pcpus)? {
        let pcpu = reader::integer(node, "affinity", 0..=pcpus as u64 - 1)? as usize;
        if affinity.contains(&pcpu) {
            return Err(ScenarioError::new(&node.place, format!("pCPU {pcpu} twice in one affinity")));
        }
        affinity.push(pcpu);
    }
    affinity.sort_unstable();
    Ok(affinity)
}

/// `cpu.max`, as its file says it: microseconds in each period, and the period's length (default 100,000).
pub fn read_cpu_max(table: &TableReader<'_>) -> Result<Option<CpuMax>, ScenarioError> {
    let expected = "expected `cpu.max` as its file has it: \"150000 100000\", or \"max\"";
    if let Some(number) = table.get("cpu_max").filter(|node| matches!(node.value, NodeValue::Integer(_))) {
        return Err(ScenarioError::new(&number.place, format!("`cpu_max`: {expected}")));
    }
    let max = table.parsed("cpu_max", |text| {
        let (quota, period) = text.trim().split_once(' ').unwrap_or((text.trim(), "100000"));
        let us = |text: &str| text.trim().parse::<u64>().map_err(|_| expected.to_owned());
        let within = |name: &str, us: u64, allowed: RangeInclusive<u64>| match allowed.contains(&us) {
            true => Ok(us * 1_000),
            false => Err(format!("the {name} is {} to {} us, not {us}", allowed.start(), allowed.end())),
        };
        let period_ns = within("period", us(period)?, CPU_PERIOD_US)?;
        Ok(match quota {
            "max" => None,
            quota => Some(CpuMax { quota_ns: within("quota", us(quota)?, CPU_QUOTA_US)?, period_ns }),
        })
    })?;
    Ok(max.flatten())
}

/// `vcpupin`, as libvirt calls it: the pCPU of each vCPU; or `pinned`: that of its number.
fn read_pins(table: &TableReader<'_>, vcpus: usize, pcpus: usize) -> Result<Vec<usize>, ScenarioError> {
    let pinned = table.boolean("pinned")?.unwrap_or(false);
    let own = table.get("vcpupin");
    let word = if own.is_some() { "vcpupin" } else { "pinned" };
    let others = [("pinned", pinned && own.is_some()), ("affinity", pinned || own.is_some())];
    for (other, is_too_many) in others {
        if let Some(node) = table.get(other).filter(|_| is_too_many) {
            let cause = format!("`{word}` says where each vCPU runs; leave `{other}` out");
            return Err(ScenarioError::new(&node.place, cause));
        }
    }
    let Some(own) = own else {
        return Ok(if pinned { (0..vcpus).map(|vcpu| vcpu % pcpus).collect() } else { Vec::new() });
    };
    let pins = table.list("vcpupin", VCPUS_MAX as usize)?;
    let pins = pins.iter().map(|node| reader::integer(node, "vcpupin", 0..=pcpus as u64 - 1));
    let pins = pins.map(|pcpu| Ok(pcpu? as usize)).collect::<Result<Vec<_>, ScenarioError>>()?;
    if pins.len() != vcpus {
        let cause =
            format!("`vcpupin` has {} pCPUs; the VM has {vcpus} vCPUs: name one for each", pins.len());
        return Err(ScenarioError::new(&own.place, cause));
    }
    Ok(pins)
}

fn read_nic(node: &Node, vcpus: usize, channels: &[ChannelConfig]) -> Result<NicConfig, ScenarioError> {
    let table = TableReader::open(node, "a NIC", &NIC_KEYS)?;
    let required =
        |key: &str| table.time(key, HANDLER_NS)?.ok_or_else(|| table.missing(key, "a time such as \"2 us\""));
    let stream = match (table.get("tcp"), table.get("udp")) {
        (Some(tcp), None) => read_tcp(tcp)?,
        (None, Some(udp)) => read_udp(udp)?,
        _ => {
            return Err(ScenarioError::new(
                table.place(),
                "a NIC has one stream: either [nic.tcp] or [nic.udp]",
            ));
        }
    };
    Ok(NicConfig {
        vcpu: table.integer("vcpu", 0..=vcpus as u64 - 1)?.unwrap_or(0) as usize,
        stream,
        irq_handler_ns: required("irq_handler")?,
        softirq_per_packet_ns: required("softirq_per_packet")?,
        reader_per_packet_ns: required("reader_per_packet")?,
        ring_packets: table.integer("ring_packets", 1..=RING_PACKETS_MAX)?.unwrap_or(256) as usize,
        worker: table.get("worker").map(|node| read_nic_worker(node, channels)).transpose()?,
    })
}

fn read_nic_worker(node: &Node, channels: &[ChannelConfig]) -> Result<NicWorker, ScenarioError> {
    let table = TableReader::open(node, "a NIC's worker", &NIC_WORKER_KEYS)?;
    let channel = |key: &str| {
        let named = table.string(key)?.ok_or_else(|| table.missing(key, "the name of a [[channel]]"))?;
        if channels.iter().all(|channel| channel.name != named) {
            let cause = format!("`{key}`: there is no [[channel]] {}", quoted(named));
            return Err(ScenarioError::new(table.get(key).map_or(table.place(), |node| &node.place), cause));
        }
        Ok(named.to_owned())
    };
    let worker = NicWorker { from: channel("from")?, to: channel("to")? };
    if worker.from == worker.to {
        return Err(ScenarioError::new(table.place(), "`from` and `to` are two channels"));
    }
    Ok(worker)
}

fn read_tcp(node: &Node) -> Result<Stream, ScenarioError> {
    let table = TableReader::open(node, "a TCP stream", &TCP_KEYS)?;
    let packet_bytes = read_packet(&table)?;
    let window = table.parsed("window", |text| match units::size_bytes(text)? {
        bytes if bytes < packet_bytes => Err("a window smaller than one packet sends nothing".to_owned()),
        bytes if bytes > WINDOW_BYTES_MAX => Err("larger than 1 GiB, the largest that TCP has".to_owned()),
        bytes => Ok(bytes),
    })?;
    let link_bits_per_s = read_rate(&table, "link")?;
    refuse_packets_in_no_time(&table, "link", link_bits_per_s, packet_bytes)?;
    Ok(Stream::Tcp {
        link_bits_per_s,
        window_bytes: window.ok_or_else(|| table.missing("window", "a size such as \"256 KiB\""))?,
        packet_bytes,
        round_trip_ns: table
            .time("round_trip", 1..=units::HOUR_NS)?
            .ok_or_else(|| table.missing("round_trip", "a time such as \"100 us\""))?,
    })
}

fn read_udp(node: &Node) -> Result<Stream, ScenarioError> {
    let table = TableReader::open(node, "a UDP stream", &UDP_KEYS)?;
    let (bits_per_s, packet_bytes) = (read_rate(&table, "rate")?, read_packet(&table)?);
    refuse_packets_in_no_time(&table, "rate", bits_per_s, packet_bytes)?;
    Ok(Stream::Udp { bits_per_s, packet_bytes })
}

/// Packets that follow one another within a nanosecond don't let simulated time go on.
fn refuse_packets_in_no_time(
    table: &TableReader<'_>,
    key: &str,
    bits_per_s: u64,
    packet_bytes: u64,
) -> Result<(), ScenarioError> {
    const PACKET_NS_MIN: f64 = 10.0;
    let packet_ns = packet_bytes as f64 * 8.0 * 1e9 / bits_per_s as f64;
    if packet_ns >= PACKET_NS_MIN {
        return Ok(());
    }
    let place = table.get(key).map_or(table.place(), |node| &node.place);
    let cause = format!("`{key}`: a packet takes {packet_ns:.1} ns; allowed: {PACKET_NS_MIN} ns and more");
    Err(ScenarioError::new(place, cause))
}

fn read_packet(table: &TableReader<'_>) -> Result<u64, ScenarioError> {
    let packet = table.parsed("packet", |text| match units::size_bytes(text)? {
        bytes if (64..=65_536).contains(&bytes) => Ok(bytes),
        _ => Err("allowed: 64 B to 64 KiB".to_owned()),
    })?;
    packet.ok_or_else(|| table.missing("packet", "a size such as \"1448 B\""))
}

fn read_rate(table: &TableReader<'_>, key: &str) -> Result<u64, ScenarioError> {
    let rate = table.parsed(key, |text| match units::rate_bits_per_s(text)? {
        rate if (1e3..=1e12).contains(&rate) => Ok(rate.round() as u64),
        _ => Err("allowed: 1 kbit/s to 1000 Gbit/s".to_owned()),
    })?;
    rate.ok_or_else(|| table.missing(key, "a rate such as \"1 Gbit/s\""))
}

/// Whether a `[[vm]]` entry is a table at all: its references are resolved before it is read.
pub fn entries(vms: &mut Node) -> Option<&mut Vec<Node>> {
    match &mut vms.value {
        NodeValue::Array(items) => Some(items),
        _ => None,
    }
}
