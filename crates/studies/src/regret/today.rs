//! Hosts and guests of today: processors with APICv, AVIC or IPI virtualization, and pause-loop windows that
//! grow. There are several caches and sockets, host tasks and limits, and Linux 6.12 in the guests.

use super::draw::{Draw, time};
use super::generator::{FIRST_VM_STREAM, Host, Kernel, Vm, draw_handlers};
use super::programs;
use microslice_model::config::{LockKind, SymbolTable};

const TASKS_STREAM: u64 = 8;

/// Whose programs the threads of `[[task]]`s are.
pub const HOST_TASKS: &str = "host tasks";

/// Locks of programs: of the kernel's kind, or sleeping ones.
const LOCK_KINDS: [(u64, Option<LockKind>); 3] =
    [(45, None), (35, Some(LockKind::Mutex)), (20, Some(LockKind::Sleeping))];

/// A machine that is extended, and what its processors' interrupts can be.
#[derive(Clone, Copy)]
struct Machine {
    file: &'static str,
    module: &'static str,
    modes: &'static [(u64, &'static str)],
    /// pCPUs of a last-level cache, by threads of a core; 0: all share one.
    llc_cores: u64,
    may_have_two_sockets: bool,
}

/// Modes are those that KVM chooses, mostly, and `software` where an operator switched them off or has an
/// older kernel: AVIC is on by default since Linux 6.18 only.
const MACHINES: [(u64, Machine); 3] = [
    (
        35,
        Machine {
            file: "homelab",
            module: "kvm_intel",
            modes: &[(70, "apicv"), (20, "ipiv"), (10, "software")],
            llc_cores: 0,
            may_have_two_sockets: false,
        },
    ),
    (
        35,
        Machine {
            file: "epyc-genoa",
            module: "kvm_amd",
            modes: &[(60, "avic"), (40, "software")],
            llc_cores: 4,
            may_have_two_sockets: false,
        },
    ),
    (
        30,
        Machine {
            file: "xeon-sapphire-rapids",
            module: "kvm_intel",
            modes: &[(70, "ipiv"), (25, "apicv"), (5, "software")],
            llc_cores: 0,
            may_have_two_sockets: true,
        },
    ),
];

/// Draws a host: a part of one of the machines, or all of it, with other costs in half of all.
pub fn draw_host(draw: &mut Draw) -> Host {
    let machine = draw.weighted(&MACHINES);
    let pcpus: u64 = draw.weighted(&[(20, 8), (30, 16), (20, 24), (25, 32), (5, 48)]);
    let threads = draw.weighted(&[(70, 2), (30, 1)]);
    let has_two_sockets = machine.may_have_two_sockets && draw.chance(60);
    let llc_pcpus = match machine.llc_cores * threads {
        0 if has_two_sockets => pcpus / 2,
        of_die if of_die < pcpus => of_die,
        _ => 0,
    };
    let node_pcpus = if has_two_sockets { llc_pcpus } else { 0 };
    let mut text = format!(
        "[host]\nextends = \"{}\"\npcpus = {pcpus}\nllc_pcpus = {llc_pcpus}\nnode_pcpus = {node_pcpus}\nsmt_threads = {threads}\n",
        machine.file
    );
    if threads > 1 {
        let busy = draw.between(55, 75);
        let spinning = draw.between(busy, 95);
        text += &format!("smt_busy_speed = \"{busy} %\"\nsmt_spin_speed = \"{spinning} %\"\n");
    }
    if draw.chance(50) {
        text += &draw_costs(draw, llc_pcpus > 0, has_two_sockets);
    }
    if draw.chance(5) {
        text += "\n[host.ple]\nenabled = false\n";
    }
    let mode = draw.weighted(machine.modes);
    text += &format!("\n[host.kvm]\nmodule = \"{}\"\ninterrupts = \"{mode}\"\n", machine.module);
    text += &format!("yield_to = \"{}\"\n", time(draw.over_decades(200, 1_600)));
    text += &format!("halt_poll_ns = \"{}\"\n", time(draw.weighted(&[(80, 200_000), (20, 0)])));
    text += &format!("icr_write = \"{}\"\n", time(draw.over_decades(50, 200)));
    Host { pcpus, llc_pcpus, text }
}

/// Draws other costs around those of the three machines, from half to twice.
fn draw_costs(draw: &mut Draw, has_caches: bool, has_two_sockets: bool) -> String {
    let mut text = "\n[host.costs]\n".to_owned();
    let mut cost = |name: &str, low_ns: u64, high_ns: u64| {
        text += &format!("{name} = \"{}\"\n", time(draw.over_decades(low_ns, high_ns)));
    };
    cost("context_switch", 750, 3_000);
    cost("exit", 250, 1_000);
    cost("ipi_send", 650, 2_600);
    cost("ipi_delivery", 450, 1_800);
    cost("cache_refill_max", 50_000, 200_000);
    cost("cache_displace", 1_000_000, 4_000_000);
    cost("kick", 650, 2_600);
    cost("halt", 1_000, 4_000);
    if has_caches {
        cost("llc_migration", 50_000, 400_000);
    }
    if has_two_sockets {
        cost("node_migration", 50_000, 200_000);
    }
    text
}

/// How large VMs are.
#[derive(Clone, Copy)]
enum Sizes {
    /// Each as wide as the host.
    WideAsTheHost,
    /// As clouds sell them, all equal.
    Equal,
    /// The same, each drawn anew.
    Any,
}

/// How weights follow.
#[derive(Clone, Copy)]
enum Weights {
    /// libvirt's default.
    AllTheSame,
    /// As OpenStack sets them.
    ByVcpus,
    Any,
}

/// No host here has more `[[vm]]`s.
const ENTRIES_MAX: u64 = 16;

/// Draws VMs until the host is overcommitted as drawn: from not at all to four vCPUs for a pCPU.
pub fn draw_vms(draw: &mut Draw, seed: u64, host: &Host) -> Vec<Vm> {
    // Of half vCPUs for a pCPU.
    let vcpus_wanted = host.pcpus * draw.weighted(&[(10, 2), (15, 3), (40, 4), (20, 6), (15, 8)]) / 2;
    let sizes = draw.weighted(&[(30, Sizes::WideAsTheHost), (30, Sizes::Equal), (40, Sizes::Any)]);
    let weights = draw.weighted(&[(60, Weights::AllTheSame), (25, Weights::ByVcpus), (15, Weights::Any)]);
    let are_copies = draw.chance(20);
    let are_pinned = draw.chance(15);
    let are_limited = draw.chance(15);
    let equal = draw_size(draw, host);
    let mut vms = Vec::new();
    let mut vcpus_so_far = 0;
    while vcpus_so_far < vcpus_wanted && (vms.len() as u64) < ENTRIES_MAX {
        let mut own = Draw::stream(seed, FIRST_VM_STREAM + vms.len() as u64);
        let vcpus = match sizes {
            Sizes::WideAsTheHost => host.pcpus,
            Sizes::Equal => equal,
            Sizes::Any => draw_size(&mut own, host),
        };
        let copies = if are_copies { (vcpus_wanted / vcpus).clamp(1, ENTRIES_MAX) } else { 1 };
        let mut keys = Vec::new();
        match weights {
            Weights::AllTheSame => {}
            Weights::ByVcpus => keys.push(format!("weight = {}", 64 * vcpus)),
            Weights::Any => keys.push(format!("weight = {}", own.one_of(&[128, 256, 512, 1_024]))),
        }
        if are_pinned && own.chance(50) {
            keys.push(draw_place(&mut own, host, vcpus));
        }
        if are_limited && own.chance(50) {
            let percent = own.between(30, 100);
            keys.push(format!("cpu_max = \"{} 100000\"", vcpus * percent * 1_000));
        }
        let kernel = draw_kernel(&mut own);
        let guest = programs::draw(&mut own, vcpus, &kernel);
        vcpus_so_far += copies * vcpus;
        vms.push(Vm { name: (b'a' + vms.len() as u8) as char, copies, vcpus, keys, kernel, guest });
    }
    vms
}

/// A power of two that clouds sell, and no wider than the host.
fn draw_size(draw: &mut Draw, host: &Host) -> u64 {
    draw.weighted(&[(10, 1), (20, 2), (30, 4), (25, 8), (15, 16)]).min(host.pcpus)
}

/// One pCPU for each vCPU, or a cache's pCPUs, or a half of the host. One of the first half, which is never
/// micro-sliced, is among them.
fn draw_place(draw: &mut Draw, host: &Host, vcpus: u64) -> String {
    let half = host.pcpus / 2;
    match draw.between(0, 2) {
        0 => {
            let first = draw.between(0, half - 1);
            let pcpus = (0..vcpus).map(|vcpu| (first + vcpu) % host.pcpus).collect::<Vec<_>>();
            format!("vcpupin = {pcpus:?}")
        }
        1 if host.llc_pcpus > 0 => format!("affinity = {:?}", (0..host.llc_pcpus).collect::<Vec<_>>()),
        _ => format!("affinity = {:?}", (0..half.max(1)).collect::<Vec<_>>()),
    }
}

/// Draws Linux 6.12, with its paravirtual features or without, mostly as Debian builds it.
fn draw_kernel(draw: &mut Draw) -> Kernel {
    let (file, lock_kind) = draw.weighted(&[
        (80, ("linux-modern", LockKind::PvQueuedHybrid)),
        (20, ("linux-6.12-nopv", LockKind::TestAndSet)),
    ]);
    let mut keys = vec![format!("extends = \"{file}\"")];
    if draw.chance(25) {
        keys.push(format!("tick = \"{} Hz\"", draw.one_of(&[100, 300, 1_000])));
    }
    keys.extend(draw_handlers(draw));
    Kernel {
        text: format!("{{ {} }}", keys.join(", ")),
        symbols: SymbolTable::LinuxModern,
        lock_kind,
        locks: vec!["page_reclaim", "page_allocator", "dentry"],
        kinds: &LOCK_KINDS,
    }
}

/// Draws what runs beside the VMs: daemons, workers that hand packets over, a job that always runs.
pub fn draw_tasks(seed: u64, host: &Host) -> Vec<String> {
    let mut draw = Draw::stream(seed, TASKS_STREAM);
    let mut tasks = Vec::new();
    let mut task = |name: &str, threads: u64, program: String| {
        tasks.push(format!(
            "\n[[task]]\nname = \"{name}\"\nthreads = {threads}\nprogram = [{program}, {{ progress = 1 }}]\n"
        ));
    };
    if draw.chance(40) {
        let threads = draw.between(1, host.pcpus / 4);
        let [sleep_ns, compute_ns] =
            [draw.over_decades(5_000_000, 80_000_000), draw.over_decades(100_000, 3_200_000)];
        let program =
            format!("{{ sleep = {} }}, {{ compute = {} }}", draw.around(sleep_ns), draw.around(compute_ns));
        task("daemons", threads, program);
    }
    if draw.chance(15) {
        let threads = draw.between(1, 4);
        let [sleep_ns, compute_ns] = [draw.over_decades(50_000, 800_000), draw.over_decades(5_000, 40_000)];
        let program =
            format!("{{ sleep = {} }}, {{ compute = {} }}", draw.around(sleep_ns), draw.around(compute_ns));
        task("workers", threads, program);
    }
    if draw.chance(5) {
        let compute_ns = draw.over_decades(500_000, 4_000_000);
        let program = format!("{{ compute = {} }}", draw.around(compute_ns));
        task("job", draw.between(1, host.pcpus / 4), program);
    }
    tasks
}
