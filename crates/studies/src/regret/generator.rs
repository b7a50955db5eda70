//! A scenario from a seed: a host and its VMs, as the text of a file that `simulate` takes.
//!
//! Problem.   Programs that an author chose show what the author thought of. Whether a policy can be loaded
//!            blindly is asked of programs that nobody chose.
//! Mechanism. Hosts, VMs and programs (`programs.rs`) are drawn from all that scenario files can say; each
//!            part has a stream of random numbers of its own. What is drawn is written as a file, and the run
//!            reads that file.
//! Limits.    It is overcommitted, mostly, and most VMs of a scenario are equally wide: where they aren't,
//!            policies differ in what a weight means (of a vCPU, or of a VM). Programs of the papers aren't
//!            drawn.

use super::draw::{Draw, time};
use super::programs::{self, Guest};
use microslice_model::config::{LockKind, SymbolTable};

/// Simulated before measuring starts.
pub const WARMUP_NS: u64 = 500_000_000;
/// Measured.
pub const DURATION_NS: u64 = 1_500_000_000;

/// Of random numbers.
const HOST_STREAM: u64 = 1;
const VMS_STREAM: u64 = 2;
const FIRST_VM_STREAM: u64 = 16;

/// The scenario of this seed, as a file.
pub fn scenario(seed: u64) -> String {
    let host = Host::draw(&mut Draw::stream(seed, HOST_STREAM));
    let vms = draw_vms(&mut Draw::stream(seed, VMS_STREAM), seed, &host);
    let widths = vms.iter().flat_map(|vm| vec![vm.vcpus.to_string(); vm.copies as usize]);
    let description = format!(
        "regret {seed}: {} pCPUs, VMs of {} vCPUs: {}",
        host.pcpus,
        widths.collect::<Vec<_>>().join(", "),
        vms.iter().map(|vm| vm.guest.words.join(" and ")).collect::<Vec<_>>().join("; ")
    );
    let mut text = format!(
        "description = \"{description}\"\nseed = {seed}\nwarmup = \"{}\"\nduration = \"{}\"\n\n{}",
        time(WARMUP_NS),
        time(DURATION_NS),
        host.text
    );
    vms.iter().for_each(|vm| text.push_str(&vm.text()));
    text
}

/// A host, as its table.
struct Host {
    pcpus: u64,
    llc_pcpus: u64,
    text: String,
}

impl Host {
    fn draw(draw: &mut Draw) -> Self {
        let pcpus: u64 = draw.weighted(&[(15, 4), (10, 6), (25, 8), (20, 12), (20, 16), (7, 24), (3, 32)]);
        let caches = draw.weighted(&[(50, 1), (35, 2), (15, 4)]);
        let threads = draw.weighted(&[(55, 1), (45, 2)]);
        let adds_up = caches > 1 && pcpus / caches > 1 && pcpus.is_multiple_of(caches * threads);
        let llc_pcpus = if adds_up { pcpus / caches } else { 0 };
        let mut text =
            format!("[host]\nextends = \"xeon-e5645\"\npcpus = {pcpus}\nllc_pcpus = {llc_pcpus}\n");
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
        Self { pcpus, llc_pcpus, text }
    }
}

struct Vm {
    name: char,
    copies: u64,
    vcpus: u64,
    weight: Option<u64>,
    affinity: Option<Vec<u64>>,
    kernel: Kernel,
    guest: Guest,
}

impl Vm {
    fn text(&self) -> String {
        let mut text = format!("\n[[vm]]\nname = \"{}\"\nvcpus = {}\n", self.name, self.vcpus);
        if self.copies > 1 {
            text += &format!("copies = {}\n", self.copies);
        }
        if let Some(weight) = self.weight {
            text += &format!("weight = {weight}\n");
        }
        if let Some(affinity) = &self.affinity {
            text += &format!("affinity = {affinity:?}\n");
        }
        text += &format!("kernel = {}\n", self.kernel.text);
        if let Some(nic) = &self.guest.nic {
            text += &format!("nic = {nic}\n");
        }
        text + &self.guest.text()
    }
}

fn draw_vms(draw: &mut Draw, seed: u64, host: &Host) -> Vec<Vm> {
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
            let kernel = Kernel::draw(&mut own);
            let weight = (!all_weigh_the_same).then(|| own.one_of(&[128, 256, 512, 1_024]));
            let affinity = (are_pinned && own.chance(70)).then(|| draw_affinity(&mut own, host));
            let guest = programs::draw(&mut own, vcpus, &kernel);
            let copies = if are_copies { count } else { 1 };
            Vm { name: (b'a' + at as u8) as char, copies, vcpus, weight, affinity, kernel, guest }
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

/// A guest's kernel.
pub struct Kernel {
    pub text: String,
    pub symbols: SymbolTable,
    /// The kind of a lock that doesn't name one.
    pub lock_kind: LockKind,
    /// Its own locks, all of that kind.
    pub locks: Vec<&'static str>,
}

impl Kernel {
    fn draw(draw: &mut Draw) -> Self {
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
        if draw.chance(15) {
            for (key, low, high) in [
                ("call_function_handler", 500, 4_000),
                ("reschedule_handler", 300, 2_000),
                ("tick_handler", 1_000, 6_000),
                ("thread_switch", 500, 3_000),
            ] {
                keys.push(format!("{key} = \"{}\"", time(draw.over_decades(low, high))));
            }
        }
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
        Self { text: format!("{{ {} }}", keys.join(", ")), symbols, lock_kind, locks }
    }
}
