//! What runs in a VM: workloads of some kinds that programs are made of, each drawn anew.

use super::draw::{Draw, time};
use super::generator::Kernel;
use microslice_model::config::{LockKind, SymbolTable};

/// Functions that both kernels have, and that `kernel` phases and locks run in: critical ones and others.
const FUNCTIONS: [&str; 8] = [
    "get_page_from_freelist",
    "handle_mm_fault",
    "d_lookup",
    "copy_process",
    "vfs_write",
    "ext4_create",
    "free_one_page",
    "do_futex",
];

/// Longest time that a lock is held, and shortest.
const HOLD_NS: (u64, u64) = (200, 50_000);

/// What a VM runs, and its NIC.
pub struct Guest {
    pub workloads: Vec<Workload>,
    pub nic: Option<String>,
    /// In a word each.
    pub words: Vec<&'static str>,
}

impl Guest {
    pub fn text(&self) -> String {
        let workloads: Vec<String> = self.workloads.iter().map(Workload::text).collect();
        format!("workloads = [\n{}]\n", workloads.concat())
    }
}

/// Threads of one program.
pub struct Workload {
    name: String,
    threads: Threads,
    /// Further keys.
    keys: Vec<String>,
    locks: Vec<Lock>,
    program: Vec<String>,
}

#[derive(Clone, Copy)]
enum Threads {
    PerVcpu,
    Number(u64),
}

/// A lock that a program may take.
#[derive(Clone)]
struct Lock {
    name: String,
    /// Its table, if the workload has it; else it is the kernel's.
    text: Option<String>,
}

impl Workload {
    fn text(&self) -> String {
        let threads = match self.threads {
            Threads::PerVcpu => "\"per vcpu\"".to_owned(),
            Threads::Number(number) => number.to_string(),
        };
        let mut keys = vec![format!("name = \"{}\"", self.name), format!("threads = {threads}")];
        keys.extend(self.keys.iter().cloned());
        let locks: Vec<&str> = self.locks.iter().filter_map(|lock| lock.text.as_deref()).collect();
        if !locks.is_empty() {
            keys.push(format!("lock = [{}]", locks.join(", ")));
        }
        let phases: Vec<String> = self.program.iter().map(|phase| format!("        {phase},\n")).collect();
        format!("    {{ {}, program = [\n{}    ] }},\n", keys.join(", "), phases.concat())
    }
}

type DrawKind = fn(&mut Author<'_>) -> Vec<Workload>;

/// Kinds of programs, how often each is drawn, and its word.
const KINDS: [(u64, (&str, DrawKind)); 9] = [
    (18, ("computing", computing)),
    (20, ("locks", locking)),
    (14, ("shootdowns", unmapping)),
    (12, ("barriers", meeting)),
    (10, ("a pipeline", passing_on)),
    (10, ("sleepers", sleeping)),
    (6, ("forks", forking)),
    (5, ("a network", serving)),
    (15, ("anything", mixing)),
];

/// What a VM of so many vCPUs runs: one or two kinds of programs.
pub fn draw(draw: &mut Draw, vcpus: u64, kernel: &Kernel) -> Guest {
    let mut guest = Guest { workloads: Vec::new(), nic: None, words: Vec::new() };
    for _ in 0..draw.weighted(&[(75, 1), (25, 2)]) {
        let (word, kind) = draw.weighted(&KINDS);
        let mut author = Author { draw, vcpus, kernel, number: guest.workloads.len(), nic: None };
        let workloads = kind(&mut author);
        guest.nic = author.nic.or(guest.nic);
        guest.workloads.extend(workloads);
        guest.words.push(word);
    }
    guest
}

/// Writes the programs of one kind.
struct Author<'d> {
    draw: &'d mut Draw,
    vcpus: u64,
    kernel: &'d Kernel,
    /// Of the VM's workloads before these.
    number: usize,
    nic: Option<String>,
}

impl Author<'_> {
    fn threads(&mut self) -> Threads {
        let vcpus = self.vcpus;
        match self.draw.weighted(&[(60, 0), (15, 1), (15, 2), (10, 3)]) {
            0 => Threads::PerVcpu,
            1 => Threads::Number(vcpus.div_ceil(2)),
            2 => Threads::Number(2 * vcpus),
            _ => Threads::Number(self.draw.between(1, vcpus)),
        }
    }

    fn number_of(&self, threads: Threads) -> u64 {
        match threads {
            Threads::PerVcpu => self.vcpus,
            Threads::Number(number) => number,
        }
    }

    fn workload(&mut self, word: &str, threads: Threads) -> Workload {
        let mut keys = Vec::new();
        if self.draw.chance(40) {
            keys.push(format!("cache_sensitivity = \"{} %\"", self.draw.one_of(&[0, 20, 50, 80])));
        }
        if self.draw.chance(5) {
            keys.push(format!("pin = {}", self.draw.between(0, self.vcpus - 1)));
        }
        let name = format!("{word}-{}", self.number);
        self.number += 1;
        Workload { name, threads, keys, locks: Vec::new(), program: Vec::new() }
    }

    /// Mean of what a thread computes between two things that others notice.
    fn work_ns(&mut self) -> u64 {
        self.draw.over_decades(8_000, 1_000_000)
    }

    fn function(&mut self) -> &'static str {
        self.draw.one_of(&FUNCTIONS)
    }

    fn compute(&mut self, mean_ns: u64) -> String {
        format!("{{ compute = {} }}", self.draw.around(mean_ns))
    }

    fn kernel_code(&mut self) -> String {
        let mean_ns = self.draw.over_decades(500, 32_000);
        format!("{{ kernel = {}, symbol = \"{}\" }}", self.draw.around(mean_ns), self.function())
    }

    /// A lock of the workload, of any kind.
    fn own_lock(&mut self, at: usize) -> Lock {
        let kind = self.draw.weighted(self.kernel.kinds);
        self.lock_of(at, kind)
    }

    /// A lock of the workload whose waiters sleep, or spin.
    fn own_lock_that(&mut self, at: usize, sleeps: bool) -> Lock {
        let is_drawn = |kind: LockKind| self.kernel.kinds.iter().any(|(_, drawn)| *drawn == Some(kind));
        let kinds: Vec<LockKind> = LockKind::OF_KERNELS
            .into_iter()
            .filter(|&kind| kind.sleeps() == sleeps && is_drawn(kind))
            .collect();
        let kind = if kinds.is_empty() { self.kernel.lock_kind } else { self.draw.one_of(&kinds) };
        self.lock_of(at, Some(kind))
    }

    fn lock_of(&mut self, at: usize, kind: Option<LockKind>) -> Lock {
        let name = format!("lock-{at}");
        let mut keys = vec![format!("name = \"{name}\"")];
        if let Some(kind) = kind {
            keys.push(format!("kind = \"{}\"", kind.rules().word));
        }
        let kind = kind.unwrap_or(self.kernel.lock_kind);
        if !kind.sleeps() && self.draw.chance(15) {
            keys.push("irqs_off = true".to_owned());
        }
        if self.draw.chance(20) {
            keys.push(format!("instances = {}", self.draw.one_of(&[2, 8, 64])));
        }
        let symbol = match (kind.sleeps(), self.kernel.symbols) {
            (true, _) => "\"mutex_lock\"",
            // A critical one, by which a preempted holder is known.
            (false, SymbolTable::LinuxModern) if self.draw.chance(50) => "\"_raw_spin_unlock\"",
            (false, SymbolTable::Linux44) if self.draw.chance(50) => "\"__raw_spin_unlock\"",
            _ => &format!("\"{}\"", self.function()),
        };
        keys.push(format!("symbol = {symbol}"));
        Lock { name, text: Some(format!("{{ {} }}", keys.join(", "))) }
    }

    fn kernel_lock(&mut self) -> Lock {
        let name = self.draw.one_of(&self.kernel.locks).to_owned();
        Lock { name, text: None }
    }

    /// Held by these threads for some part of the time that they compute: from hardly ever to more than there
    /// is.
    fn critical_section(&mut self, lock: &Lock, threads: u64, compute_ns: u64) -> String {
        let wanted_percent = self.draw.over_decades(2, 160);
        let (least_ns, most_ns) = HOLD_NS;
        let hold_ns = (compute_ns * wanted_percent / 100 / threads.max(1)).clamp(least_ns, most_ns);
        format!("{{ lock = \"{}\", hold = {} }}", lock.name, self.draw.around(hold_ns))
    }

    fn shootdown(&mut self, under: Option<&Lock>) -> String {
        let prepare_ns = self.draw.over_decades(500, 4_000);
        let under = under.map_or(String::new(), |lock| format!(", under = \"{}\"", lock.name));
        format!("{{ shootdown = {}{under} }}", self.draw.around(prepare_ns))
    }

    fn sleep(&mut self) -> String {
        let sleep_ns = self.draw.over_decades(50_000, 10_000_000);
        format!("{{ sleep = {} }}", self.draw.around(sleep_ns))
    }

    fn spawn(&mut self) -> String {
        format!("{{ spawn = {} }}", self.draw.weighted(&[(70, 1), (20, 2), (10, 6)]))
    }

    fn sometimes(&mut self, body: &str) -> String {
        let percent = self.draw.one_of(&[1, 3, 10, 30]);
        format!("{{ sometimes = \"{percent} %\", body = [{body}] }}")
    }

    fn share_memory(&mut self, workload: &mut Workload) {
        workload.keys.push("address_space = \"shared\"".to_owned());
    }
}

const PROGRESS: &str = "{ progress = 1 }";

fn computing(author: &mut Author<'_>) -> Vec<Workload> {
    let threads = author.threads();
    let mut workload = author.workload("computing", threads);
    let work_ns = author.draw.over_decades(100_000, 6_000_000);
    workload.program.push(author.compute(work_ns));
    if author.draw.chance(30) {
        workload.program.push(author.kernel_code());
    }
    workload.program.push(PROGRESS.to_owned());
    vec![workload]
}

fn locking(author: &mut Author<'_>) -> Vec<Workload> {
    let threads = author.threads();
    let mut workload = author.workload("locking", threads);
    let number = author.number_of(threads);
    for at in 0..author.draw.weighted(&[(60, 1), (30, 2), (10, 3)]) {
        let lock = if author.draw.chance(25) { author.kernel_lock() } else { author.own_lock(at) };
        let work_ns = author.work_ns();
        workload.program.push(author.compute(work_ns));
        workload.program.push(author.critical_section(&lock, number, work_ns));
        workload.locks.push(lock);
    }
    if author.draw.chance(40) {
        workload.program.push(author.kernel_code());
    }
    workload.program.push(PROGRESS.to_owned());
    vec![workload]
}

fn unmapping(author: &mut Author<'_>) -> Vec<Workload> {
    let threads = author.threads();
    let mut workload = author.workload("unmapping", threads);
    author.share_memory(&mut workload);
    let work_ns = author.work_ns();
    workload.program.push(author.compute(work_ns));
    if author.draw.chance(40) {
        workload.program.push(author.kernel_code());
    }
    let under = author.draw.chance(50).then(|| author.own_lock_that(0, true));
    let shootdown = author.shootdown(under.as_ref());
    let is_rare = author.draw.chance(60);
    workload.program.push(if is_rare { author.sometimes(&shootdown) } else { shootdown });
    workload.locks.extend(under);
    workload.program.push(PROGRESS.to_owned());
    vec![workload]
}

fn meeting(author: &mut Author<'_>) -> Vec<Workload> {
    let threads = author.threads();
    let number = author.number_of(threads);
    let mut workload = author.workload("meeting", threads);
    let work_ns = author.work_ns();
    workload.program.push(author.compute(work_ns));
    let mut keys = vec!["barrier = \"round\"".to_owned()];
    if number > 1 && author.draw.chance(25) {
        keys.push(format!("count = {}", author.draw.between(2, number)));
    }
    if author.draw.chance(40) {
        let lock = author.own_lock_that(0, false);
        keys.push(format!("under = \"{}\"", lock.name));
        if author.draw.chance(50) {
            keys.push(format!("spin = \"{}\"", time(author.draw.over_decades(10_000, 160_000))));
        }
        workload.locks.push(lock);
    }
    workload.program.push(format!("{{ {} }}", keys.join(", ")));
    workload.program.push(PROGRESS.to_owned());
    vec![workload]
}

fn passing_on(author: &mut Author<'_>) -> Vec<Workload> {
    let stages = author.draw.weighted(&[(65, 2), (35, 3)]);
    // Queues are the VM's: a second pipeline in it has its own.
    let first = author.number;
    let mut workloads = Vec::new();
    for stage in 0..stages {
        let threads = Threads::Number(author.draw.between(1, author.vcpus));
        let mut workload = author.workload("stage", threads);
        if stage > 0 {
            workload.program.push(format!("{{ receive = \"queue-{first}-{stage}\" }}"));
        }
        let work_ns = author.work_ns();
        workload.program.push(author.compute(work_ns));
        if stage + 1 < stages {
            let capacity = match author.draw.chance(60) {
                true => format!(", capacity = {}", author.draw.one_of(&[1, 8, 256])),
                false => String::new(),
            };
            workload.program.push(format!("{{ send = \"queue-{first}-{}\"{capacity} }}", stage + 1));
        }
        workload.program.push(PROGRESS.to_owned());
        workloads.push(workload);
    }
    workloads
}

fn sleeping(author: &mut Author<'_>) -> Vec<Workload> {
    let threads = author.threads();
    let mut workload = author.workload("sleeping", threads);
    workload.program.push(author.sleep());
    let work_ns = author.draw.over_decades(4_000, 2_000_000);
    workload.program.push(author.compute(work_ns));
    workload.program.push(PROGRESS.to_owned());
    vec![workload]
}

fn forking(author: &mut Author<'_>) -> Vec<Workload> {
    let threads = author.threads();
    let number = author.number_of(threads);
    let mut workload = author.workload("forking", threads);
    let work_ns = author.work_ns();
    workload.program.push(author.compute(work_ns));
    workload.program.push(author.spawn());
    let lock = author.kernel_lock();
    workload.program.push(author.critical_section(&lock, number, work_ns));
    workload.locks.push(lock);
    workload.program.push(PROGRESS.to_owned());
    vec![workload]
}

fn serving(author: &mut Author<'_>) -> Vec<Workload> {
    let threads = author.threads();
    let number = author.number_of(threads);
    let mut workload = author.workload("serving", threads);
    workload.program.push(format!("{{ network_receive = {} }}", author.draw.one_of(&[1, 2, 16])));
    let work_ns = author.draw.over_decades(4_000, 100_000);
    workload.program.push(author.compute(work_ns));
    if author.draw.chance(40) {
        let lock = author.own_lock(0);
        workload.program.push(author.critical_section(&lock, number, work_ns));
        workload.locks.push(lock);
    }
    workload.program.push(PROGRESS.to_owned());
    author.nic = Some(draw_nic(author.draw, author.vcpus));
    vec![workload]
}

fn draw_nic(draw: &mut Draw, vcpus: u64) -> String {
    let stream = if draw.chance(60) {
        format!(
            "tcp = {{ link = \"{} Mbit/s\", window = \"{} KiB\", packet = \"1448 B\", round_trip = \"{}\" }}",
            draw.over_decades(50, 2_000),
            draw.over_decades(64, 1_024),
            time(draw.over_decades(50_000, 400_000))
        )
    } else {
        format!("udp = {{ rate = \"{} Mbit/s\", packet = \"1470 B\" }}", draw.over_decades(1, 500))
    };
    format!(
        "{{ vcpu = {}, irq_handler = \"{}\", softirq_per_packet = \"{}\", reader_per_packet = \"300 ns\", ring_packets = {}, {stream} }}",
        draw.between(0, vcpus - 1),
        time(draw.over_decades(1_000, 4_000)),
        time(draw.over_decades(300, 1_200)),
        draw.one_of(&[64, 256, 512]),
    )
}

fn mixing(author: &mut Author<'_>) -> Vec<Workload> {
    let threads = author.threads();
    let number = author.number_of(threads);
    let mut workload = author.workload("mixing", threads);
    if author.draw.chance(40) {
        author.share_memory(&mut workload);
    }
    let lock = author.own_lock(0);
    let sleeping_lock = author.own_lock_that(1, true);
    let work_ns = author.work_ns();
    // Two barriers, or one that is passed now and then, would be a deadlock sooner or later.
    let mut may_meet = true;
    workload.program.push(author.compute(work_ns));
    for _ in 0..author.draw.between(2, 6) {
        let phase = match author.draw.between(0, 9) {
            0 => author.kernel_code(),
            1 => author.critical_section(&lock, number, work_ns),
            2 => author.critical_section(&sleeping_lock, number, work_ns),
            3 => author.shootdown(None),
            4 => author.shootdown(Some(&sleeping_lock)),
            5 => author.sleep(),
            6 => author.spawn(),
            7 => format!("{{ yield_thread = {} }}", author.draw.between(1, 3)),
            8 if std::mem::take(&mut may_meet) => "{ barrier = \"round\" }".to_owned(),
            _ => {
                let body = format!("{}, {}", author.compute(work_ns / 4), author.kernel_code());
                format!("{{ repeat = {}, body = [{body}] }}", author.draw.between(2, 5))
            }
        };
        let can_be_rare = !phase.contains("barrier");
        let is_rare = can_be_rare && author.draw.chance(25);
        workload.program.push(if is_rare { author.sometimes(&phase) } else { phase });
    }
    workload.program.push(PROGRESS.to_owned());
    workload.locks = vec![lock, sleeping_lock];
    vec![workload]
}
