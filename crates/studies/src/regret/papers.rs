//! Hosts and guests like those of the papers, with some of what came since: the population of tables before
//! hosts of today. What a seed draws stays what it is, since tables and tests name seeds.

use super::draw::{Draw, time};
use super::generator::{FIRST_VM_STREAM, Host, Kernel, VMS_STREAM, Vm, draw_handlers};
use super::programs;
use microslice_model::config::{LockKind, SymbolTable};

/// Locks of programs: of the kernel's kind, or of any.
const LOCK_KINDS: [(u64, Option<LockKind>); 8] = [
    (30, None),
    (28, Some(LockKind::Mutex)),
    (14, Some(LockKind::Sleeping)),
    (12, Some(LockKind::PvQueued)),
    (4, Some(LockKind::PvTicket)),
    (4, Some(LockKind::Queued)),
    (4, Some(LockKind::Ticket)),
    (4, Some(LockKind::TestAndSet)),
];

/// Draws a host between the papers' processors and those of today, without what KVM itself does.
pub fn draw_host(draw: &mut Draw) -> Host {
    let pcpus: u64 = draw.weighted(&[(15, 4), (10, 6), (25, 8), (20, 12), (20, 16), (7, 24), (3, 32)]);
    let caches = draw.weighted(&[(50, 1), (35, 2), (15, 4)]);
    let threads = draw.weighted(&[(55, 1), (45, 2)]);
    let adds_up = caches > 1 && pcpus / caches > 1 && pcpus.is_multiple_of(caches * threads);
    let llc_pcpus = if adds_up { pcpus / caches } else { 0 };
    let mut text = format!("[host]\nextends = \"xeon-e5645\"\npcpus = {pcpus}\nllc_pcpus = {llc_pcpus}\n");
    text += &format!("smt_threads = {threads}\n");
    if threads > 1 {
        let busy = draw.between(55, 80);
        let spinning = draw.between(busy, 100);
        text += &format!("smt_busy_speed = \"{busy} %\"\nsmt_spin_speed = \"{spinning} %\"\n");
    }
    if draw.chance(30) {
        text += &format!("frequency = \"{} GHz\"\n", draw.one_of(&["2", "2.8", "3.5"]));
    }
    // From the papers' processors to those of today.
    if draw.chance(60) {
        let cost = |name: &str, ns: u64| format!("{name} = \"{}\"\n", time(ns));
        text += "\n[host.costs]\n";
        text += &cost("context_switch", draw.over_decades(1_000, 4_000));
        text += &cost("exit", draw.over_decades(300, 1_200));
        text += &cost("ipi_send", draw.over_decades(300, 3_200));
        let delivery = draw.over_decades(500, 4_000);
        text += &cost("ipi_delivery", delivery);
        text += &cost("interrupt_entry", delivery);
        text += &cost("cache_refill_max", draw.over_decades(25_000, 300_000));
        text += &cost("cache_displace", draw.over_decades(500_000, 4_000_000));
        text += &cost("llc_migration", draw.over_decades(10_000, 160_000));
    }
    if draw.chance(15) {
        text += "\n[host.queue_locks]\n";
        for (name, low) in [("hold", 30), ("line_near", 40), ("line_far", 100)] {
            text += &format!("{name} = \"{}\"\n", time(draw.over_decades(low, low * 4)));
        }
    }
    if draw.chance(15) {
        let enabled = draw.chance(50);
        let window = draw.one_of(&[2_048, 4_096, 16_384]);
        text += &format!("\n[host.ple]\nenabled = {enabled}\nwindow = \"{window} cycles\"\n");
    }
    Host { pcpus, llc_pcpus, text }
}

/// Draws the VMs of such a host, most of them as wide as it is.
pub fn draw_vms(draw: &mut Draw, seed: u64, host: &Host) -> Vec<Vm> {
    let count = draw.weighted(&[(5, 1), (45, 2), (30, 3), (20, 4)]);
    let equal_width = draw.weighted(&[
        (60, Some(host.pcpus)),
        (20, Some(draw_width(&mut Draw::stream(seed, VMS_STREAM + 1), host))),
        (20, None),
    ]);
    let all_weigh_the_same = draw.chance(80);
    let are_pinned = draw.chance(8);
    let are_copies = count > 1 && draw.chance(25);
    let entries = if are_copies { 1 } else { count };
    (0..entries)
        .map(|at| {
            let mut own = Draw::stream(seed, FIRST_VM_STREAM + at);
            let vcpus = equal_width.unwrap_or_else(|| draw_width(&mut own, host));
            let kernel = draw_kernel(&mut own);
            let mut keys = Vec::new();
            if !all_weigh_the_same {
                keys.push(format!("weight = {}", own.one_of(&[128, 256, 512, 1_024])));
            }
            if are_pinned && own.chance(70) {
                keys.push(format!("affinity = {:?}", draw_affinity(&mut own, host)));
            }
            let guest = programs::draw(&mut own, vcpus, &kernel);
            let copies = if are_copies { count } else { 1 };
            Vm { name: (b'a' + at as u8) as char, copies, vcpus, keys, kernel, guest }
        })
        .collect()
}

fn draw_width(draw: &mut Draw, host: &Host) -> u64 {
    draw.between(1, host.pcpus + host.pcpus / 4)
}

/// A cache's pCPUs, a half of the host, any, or one. The first half is never micro-sliced: one of it is
/// always there.
fn draw_affinity(draw: &mut Draw, host: &Host) -> Vec<u64> {
    let half = host.pcpus / 2;
    match draw.between(0, 3) {
        0 if host.llc_pcpus > 0 => (0..host.llc_pcpus).collect(),
        0 | 1 => (half - 1..host.pcpus).collect(),
        2 => vec![draw.between(0, half - 1)],
        _ => {
            let first = draw.between(0, half - 1);
            (0..host.pcpus).filter(|&pcpu| pcpu == first || draw.chance(50)).collect()
        }
    }
}

fn draw_kernel(draw: &mut Draw) -> Kernel {
    let symbols = draw.weighted(&[(85, SymbolTable::LinuxModern), (15, SymbolTable::Linux44)]);
    let mut keys = vec![format!("extends = \"{}\"", symbols.word())];
    let mut lock_kind = LockKind::PvQueued;
    if draw.chance(20) {
        let spinning: Vec<LockKind> =
            LockKind::OF_KERNELS.into_iter().filter(|kind| !kind.sleeps()).collect();
        lock_kind = draw.one_of(&spinning);
        keys.push(format!("lock_kind = \"{}\"", lock_kind.rules().word));
    }
    if draw.chance(25) {
        keys.push(format!("tick = \"{} Hz\"", draw.one_of(&[100, 300, 1_000])));
    }
    if draw.chance(20) {
        keys.push(format!("pv_tlb_flush = {}", symbols == SymbolTable::Linux44));
    }
    if draw.chance(20) {
        keys.push("pv_ipi_yield = false".to_owned());
    }
    if draw.chance(15) {
        keys.push(format!("pv_spin = \"{}\"", time(draw.over_decades(20_000, 640_000))));
        keys.push(format!("thread_slice = \"{}\"", time(draw.over_decades(750_000, 6_000_000))));
    }
    keys.extend(draw_handlers(draw));
    let mut locks = vec!["page_reclaim", "page_allocator", "dentry"];
    if draw.chance(15) {
        let instances = draw.one_of(&[1, 4, 64]);
        let runqueue = draw.one_of(&["ticket", "queued", "pv-queued"]);
        keys.push(format!(
            "lock = [{{ name = \"shared\", symbol = \"get_page_from_freelist\", irqs_off = {}, instances = {instances} }}, \
             {{ name = \"runqueue\", kind = \"{runqueue}\", symbol = \"ttwu_do_activate\" }}]",
            draw.chance(50)
        ));
        locks = vec!["shared"];
    }
    Kernel { text: format!("{{ {} }}", keys.join(", ")), symbols, lock_kind, locks, kinds: &LOCK_KINDS }
}
