//! `workloads/*.toml`: threads that repeat a program of phases.

use super::error::{Place, ScenarioError, listed, quoted};
use super::kernel;
use super::reader::{self, TableReader};
use super::tree::{Node, NodeValue};
use super::units;
use microslice_model::config::{
    ChannelConfig, Duration, GuestKernelConfig, LOOP_DEPTH, LockKind, Phase, RUNQUEUE, WorkloadConfig,
};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

const THREADS_MAX: u64 = 65_536;
const PHASES_MAX: usize = 10_000;
const NESTING_MAX: usize = 8;
const REPEAT_MAX: u64 = 1_000_000;
/// Steps of one pass with all repeats unrolled: keeps a pass from taking for ever.
const PASS_STEPS_MAX: u64 = 10_000_000;
/// A pass that takes less on average would be an endless loop in no time.
const PASS_TIME_MIN_NS: f64 = 100.0;
/// One per ns: more of them don't let simulated time go on.
const UNTIMED_STEPS_PER_US_MAX: f64 = 1_000.0;
pub const QUEUE_CAPACITY_MAX: u64 = 1 << 20;
const UNITS_MAX: u64 = 1 << 40;
/// At a barrier, before a thread sleeps.
const SPIN_NS: RangeInclusive<u64> = 1..=1_000_000_000;
/// What a program may say to the host.
const HINT_NS: RangeInclusive<u64> = 1_000..=GuestKernelConfig::USER_HINT_MAX_NS;

/// Each kind of phase: the key that makes it one, and the keys it may carry besides.
const PHASES: [(&str, &[&str]); 17] = [
    ("compute", &[]),
    ("kernel", &["symbol"]),
    ("rcu_read", &["symbol"]),
    ("synchronize_rcu", &[]),
    ("lock", &["hold"]),
    ("user_lock", &["hold", "hint"]),
    ("read", &["hold"]),
    ("shootdown", &["under", "reading", "writing"]),
    ("barrier", &["count", "under", "spin", "requeues"]),
    ("sleep", &[]),
    ("send", &["capacity"]),
    ("receive", &[]),
    ("network_receive", &[]),
    ("spawn", &[]),
    ("yield_thread", &[]),
    ("progress", &[]),
    ("repeat", &["body"]),
];

/// The kind of phase whose body runs by chance.
const SOMETIMES: &str = "sometimes";

pub const KEYS: [&str; 11] = [
    "name",
    "threads",
    "pin",
    "address_space",
    "process",
    "run_units",
    "run_time",
    "unit",
    "cache_sensitivity",
    "lock",
    "program",
];

/// Every kind of phase, and every key that phases may carry besides.
pub fn phase_keys() -> Vec<&'static str> {
    let of_phases = PHASES.iter().flat_map(|(kind, keys)| std::iter::once(*kind).chain(keys.iter().copied()));
    of_phases.chain([SOMETIMES]).collect()
}

/// What a workload may refer to.
pub struct Surroundings<'s> {
    pub vcpus: usize,
    pub has_nic: bool,
    /// The VM's kernel; the workloads' own locks are added to it.
    pub kernel: &'s mut GuestKernelConfig,
    /// How many of its locks are the kernel's own: the first ones.
    pub kernel_locks: usize,
    /// Of the VM's queues, as far as phases have said them.
    pub queue_capacities: BTreeMap<String, usize>,
    /// Queues that aren't the VM's own.
    pub channels: &'s [ChannelConfig],
}

/// Reads a workload; its `name` was put there by the caller that resolved the reference to its file.
pub fn read(node: &Node, surroundings: &mut Surroundings<'_>) -> Result<WorkloadConfig, ScenarioError> {
    let table = TableReader::open(node, "a workload", &KEYS)?;
    let name_node =
        table.get("name").ok_or_else(|| table.missing("name", "or `use`, the name of a workload file"))?;
    let vcpus = surroundings.vcpus;
    let threads = read_threads(&table, vcpus)?;
    let (symbols, lock_kind) = (surroundings.kernel.symbols, surroundings.kernel.lock_kind);
    let name = reader::name(name_node, "a workload")?;
    let others = &surroundings.kernel.locks[surroundings.kernel_locks..];
    let others: Vec<String> = others.iter().map(|lock| lock.name.clone()).collect();
    let mut own_locks = Vec::new();
    for lock in table.list("lock", 256)? {
        // A workload's locks are its own: another workload of the VM may have some of the same names.
        let full_name = |lock: &str| {
            let taken = others.iter().any(|other| other == lock);
            let full = if taken { format!("{name}.{lock}") } else { lock.to_owned() };
            own_locks.push((lock.to_owned(), full.clone()));
            full
        };
        let locks = &mut surroundings.kernel.locks;
        kernel::read_lock(lock, symbols, locks, full_name)?;
        if let Some(read) = locks.last() {
            kernel::refuse_what_does_nothing(lock, read, lock_kind)?;
        }
        if own_locks.last().is_some_and(|(own, _)| own == RUNQUEUE) {
            let cause = format!("a second lock {}: each vCPU has one", quoted(RUNQUEUE));
            return Err(ScenarioError::new(&lock.place, cause));
        }
    }
    if let (Some(_), Some(time)) = (table.get("run_units"), table.get("run_time")) {
        let cause =
            "`run_time` and `run_units` exclude each other: a run ends by the clock or when its work is done";
        return Err(ScenarioError::new(&time.place, cause));
    }
    let program_node = table.get("program").ok_or_else(|| table.missing("program", "a list of phases"))?;
    let mut reader = ProgramReader { surroundings, threads, own_locks, barriers: BTreeMap::new(), phases: 0 };
    let program = reader.read(program_node, 0)?;
    check_pass(program_node, &program)?;
    let process = table.get("process").map(|node| reader::name(node, "a process")).transpose()?;
    if let (Some(_), Some(space)) = (&process, table.get("address_space")) {
        let cause = "`process` and `address_space` exclude each other: workloads of one process share theirs";
        return Err(ScenarioError::new(&space.place, cause));
    }
    Ok(WorkloadConfig {
        name,
        threads,
        pinned_vcpu: table.integer("pin", 0..=vcpus as u64 - 1)?.map(|vcpu| vcpu as usize),
        shared_address_space: process.is_some()
            || table.choice("address_space", &[("shared", true), ("separate", false)])?.unwrap_or(false),
        process,
        program,
        run_units: table.integer("run_units", 0..=UNITS_MAX)?.unwrap_or(0),
        run_time_ns: table.time("run_time", 1..=units::HOUR_NS)?.unwrap_or(0),
        unit: table.string("unit")?.unwrap_or("units").chars().take(40).collect(),
        cache_sensitive_permille: table.parsed("cache_sensitivity", units::permille)?.unwrap_or(1_000),
    })
}

/// Where the VM names the workload: its table may begin in another file.
pub fn name_place(node: &Node) -> &Place {
    match &node.value {
        NodeValue::Table(table) => table.get("name").map_or(&node.place, |(_, name)| &name.place),
        _ => &node.place,
    }
}

/// A number of threads, or "per vcpu".
fn read_threads(table: &TableReader<'_>, vcpus: usize) -> Result<usize, ScenarioError> {
    match table.get("threads") {
        None => Err(table.missing("threads", "a number, or \"per vcpu\"")),
        Some(node) => match &node.value {
            NodeValue::String(text) if text == "per vcpu" => Ok(vcpus),
            NodeValue::String(_) => {
                Err(ScenarioError::new(&node.place, "`threads` is a number from 1, or \"per vcpu\""))
            }
            _ => reader::integer(node, "threads", 1..=THREADS_MAX).map(|threads| threads as usize),
        },
    }
}

struct ProgramReader<'p, 's> {
    surroundings: &'p mut Surroundings<'s>,
    threads: usize,
    /// The workload's own locks: as it calls them, and as the VM does.
    own_locks: Vec<(String, String)>,
    /// How many threads wait at each barrier.
    barriers: BTreeMap<String, usize>,
    phases: usize,
}

impl ProgramReader<'_, '_> {
    fn read(&mut self, node: &Node, depth: usize) -> Result<Vec<Phase>, ScenarioError> {
        if depth > NESTING_MAX {
            return Err(ScenarioError::new(&node.place, format!("phases nested deeper than {NESTING_MAX}")));
        }
        let NodeValue::Array(items) = &node.value else {
            return Err(ScenarioError::new(&node.place, format!("a list of phases, not {}", node.kind())));
        };
        if items.is_empty() {
            return Err(ScenarioError::new(&node.place, "a program needs at least one phase"));
        }
        items.iter().map(|item| self.phase(item, depth)).collect()
    }

    fn phase(&mut self, node: &Node, depth: usize) -> Result<Phase, ScenarioError> {
        self.phases += 1;
        if self.phases > PHASES_MAX {
            return Err(ScenarioError::new(
                &node.place,
                format!("more than {PHASES_MAX} phases in one program"),
            ));
        }
        let (kind, keys) = kind_of(node)?;
        let table = TableReader::open(node, "a phase", &keys)?;
        let required = |key: &str| {
            table.distribution(key)?.ok_or_else(|| table.missing(key, "a time such as \"exponential 3 us\""))
        };
        Ok(match kind {
            "compute" => Phase::Compute { duration: required("compute")? },
            "sleep" => Phase::Sleep { duration: required("sleep")? },
            "shootdown" => self.shootdown(&table, required("shootdown")?)?,
            "read" => Phase::Read { lock: self.lock_read(&table, "read")?, hold: required("hold")? },
            "kernel" => Phase::Kernel { duration: required("kernel")?, symbol: self.symbol_of(&table)? },
            "rcu_read" => Phase::ReadRcu { duration: required("rcu_read")?, symbol: self.symbol_of(&table)? },
            "user_lock" => Phase::UserLock {
                name: name_of(&table, "user_lock")?,
                hold: required("hold")?,
                hint_ns: table.time("hint", HINT_NS)?.unwrap_or(0) as u32,
            },
            "synchronize_rcu" => repeated(&table, "synchronize_rcu", Phase::Synchronize)?,
            "lock" => Phase::Lock { lock: self.lock_of(&table)?, hold: required("hold")? },
            "barrier" => self.barrier(node, &table)?,
            "send" => self.send(node, &table)?,
            "receive" => Phase::Receive { queue: name_of(&table, "receive")? },
            "progress" => Phase::Progress { units: table.integer("progress", 1..=UNITS_MAX)?.unwrap_or(1) },
            "network_receive" if !self.surroundings.has_nic => {
                return Err(ScenarioError::new(&node.place, "`network_receive` needs a [vm.nic] in this VM"));
            }
            "network_receive" => repeated(&table, "network_receive", Phase::NetworkReceive)?,
            "spawn" => repeated(&table, "spawn", Phase::Spawn)?,
            "yield_thread" => repeated(&table, "yield_thread", Phase::YieldThread)?,
            SOMETIMES => Phase::Sometimes {
                ppm: table.parsed(SOMETIMES, units::ppm)?.unwrap_or(0),
                body: self.body_of(&table, depth)?,
            },
            _ => Phase::Repeat {
                count: table.integer("repeat", 1..=REPEAT_MAX)?.unwrap_or(1),
                body: self.body_of(&table, depth)?,
            },
        })
    }

    fn body_of(&mut self, table: &TableReader<'_>, depth: usize) -> Result<Vec<Phase>, ScenarioError> {
        let body = table.get("body").ok_or_else(|| table.missing("body", "a list of phases"))?;
        self.read(body, depth + 1)
    }

    fn symbol_of(&self, table: &TableReader<'_>) -> Result<String, ScenarioError> {
        let symbol = kernel::read_symbol(table, self.surroundings.kernel.symbols)?;
        symbol.ok_or_else(|| table.missing("symbol", "the kernel function that runs"))
    }

    fn send(&mut self, node: &Node, table: &TableReader<'_>) -> Result<Phase, ScenarioError> {
        let queue = name_of(table, "send")?;
        let capacity = table.integer("capacity", 1..=QUEUE_CAPACITY_MAX)?.unwrap_or(0) as usize;
        if capacity > 0 && self.surroundings.channels.iter().any(|channel| channel.name == queue) {
            let cause = format!("channel {} says its capacity itself", quoted(&queue));
            return Err(ScenarioError::new(&node.place, cause));
        }
        if capacity > 0 {
            let before = *self.surroundings.queue_capacities.entry(queue.clone()).or_insert(capacity);
            if before != capacity {
                let shown = quoted(&queue);
                let cause = format!(
                    "queue {shown} has room for {before} items in one phase, for {capacity} in another"
                );
                return Err(ScenarioError::new(&node.place, cause));
            }
        }
        Ok(Phase::Send { queue, capacity })
    }

    fn shootdown(&self, table: &TableReader<'_>, prepare: Duration) -> Result<Phase, ScenarioError> {
        let mut said = ["under", "reading", "writing"].into_iter().filter(|key| table.get(key).is_some());
        let (first, second) = (said.next(), said.next());
        if let (Some(first), Some(second)) = (first, second) {
            let place = table.get(second).map_or(table.place(), |node| &node.place);
            let cause = format!("`{first}` and `{second}` exclude each other: one lock is held");
            return Err(ScenarioError::new(place, cause));
        }
        match first {
            None | Some("under") => Ok(Phase::Shootdown { prepare, under: self.lock_under(table, true)? }),
            Some(key) => {
                let lock = self.lock_read(table, key)?;
                Ok(Phase::GuardedShootdown { prepare, lock, reads: key == "reading" })
            }
        }
    }

    /// A lock that may be held for reading: a semaphore. A kernel without readers needn't have it.
    fn lock_read(&self, table: &TableReader<'_>, key: &str) -> Result<String, ScenarioError> {
        if !self.surroundings.kernel.readers {
            return name_of(table, key);
        }
        let name = self.lock_named(table, key)?.ok_or_else(|| table.missing(key, "the name of a lock"))?;
        let kernel = &self.surroundings.kernel;
        let lock = kernel.locks.iter().find(|lock| lock.name == name);
        if lock.and_then(|lock| lock.kind).unwrap_or(kernel.lock_kind) == LockKind::Sleeping {
            return Ok(name);
        }
        let place = table.get(key).map_or(table.place(), |node| &node.place);
        let cause = format!("`{key}`: {} has no readers; allowed: a sleeping lock", quoted(&name));
        Err(ScenarioError::new(place, cause))
    }

    fn barrier(&mut self, node: &Node, table: &TableReader<'_>) -> Result<Phase, ScenarioError> {
        let name = name_of(table, "barrier")?;
        let count = table.integer("count", 0..=self.threads as u64)?.unwrap_or(0) as usize;
        let waiting = if count == 0 { self.threads } else { count };
        let before = *self.barriers.entry(name.clone()).or_insert(waiting);
        if before != waiting {
            let shown = quoted(&name);
            let cause =
                format!("barrier {shown} is for {before} threads in one phase, for {waiting} in another");
            return Err(ScenarioError::new(&node.place, cause));
        }
        let (under, spin_ns) = (self.lock_under(table, false)?, table.time("spin", SPIN_NS)?.unwrap_or(0));
        if let (Some(spin), None) = (table.get("spin"), &under) {
            let cause = "`spin` needs `under`: a thread that has spun in vain sleeps under that lock";
            return Err(ScenarioError::new(&spin.place, cause));
        }
        let requeues = table.boolean("requeues")?.unwrap_or(false);
        if let (Some(node), None, true) = (table.get("requeues"), &under, requeues) {
            let cause = "`requeues` needs `under`, the lock of the futex's queue";
            return Err(ScenarioError::new(&node.place, cause));
        }
        Ok(Phase::Barrier { name, count, under, spin_ns, requeues })
    }

    /// What a shootdown may be done under: interrupts must stay on and waiters sleep, or nobody would ever
    /// answer. A barrier's waiters can't sleep to come to sleep.
    fn lock_under(&self, table: &TableReader<'_>, sleeps: bool) -> Result<Option<String>, ScenarioError> {
        let kernel = &self.surroundings.kernel;
        // To wake a waiter takes its runqueue's lock, which the waker would hold already.
        let is_allowed = |name: &str| {
            let kind = kernel.locks.iter().find(|lock| lock.name == name).and_then(|lock| lock.kind);
            name != RUNQUEUE && kind.unwrap_or(kernel.lock_kind).sleeps() == sleeps
        };
        match (self.lock_named(table, "under")?, table.get("under")) {
            (Some(name), Some(node)) if !is_allowed(&name) => {
                let allowed = if sleeps {
                    "a sleeping lock or a mutex"
                } else {
                    "a lock whose waiters spin, but no runqueue's"
                };
                let cause = format!("`under`: {} can't be held; allowed: {allowed}", quoted(&name));
                Err(ScenarioError::new(&node.place, cause))
            }
            (name, _) => Ok(name),
        }
    }

    fn lock_of(&self, table: &TableReader<'_>) -> Result<String, ScenarioError> {
        self.lock_named(table, "lock")?.ok_or_else(|| table.missing("lock", "the name of a lock"))
    }

    fn lock_named(&self, table: &TableReader<'_>, key: &str) -> Result<Option<String>, ScenarioError> {
        let locks = &self.surroundings.kernel.locks;
        table.parsed(key, |name| {
            if let Some((_, full)) = self.own_locks.iter().find(|(own, _)| own == name) {
                return Ok(full.clone());
            }
            let configured = locks.iter().map(|lock| lock.name.as_str()).filter(|name| *name != RUNQUEUE);
            let known = configured.chain([RUNQUEUE]);
            if known.clone().any(|known| known == name) {
                return Ok(name.to_owned());
            }
            let known = listed(known);
            Err(format!("unknown lock {}; this VM's kernel and workload define: {known}", quoted(name)))
        })
    }
}

/// The kind of a phase and all keys it may have. Exactly one of its keys must be a kind.
fn kind_of(node: &Node) -> Result<(&'static str, Vec<&'static str>), ScenarioError> {
    let kinds = || PHASES.iter().map(|(kind, _)| *kind).chain([SOMETIMES]);
    let NodeValue::Table(table) = &node.value else {
        let cause = format!("a phase is a table such as {{ compute = \"1 ms\" }}, not {}", node.kind());
        return Err(ScenarioError::new(&node.place, cause));
    };
    let mut found = kinds().filter(|kind| table.contains_key(*kind));
    let Some(kind) = found.next() else {
        let cause = match table.keys().next() {
            Some(key) => format!("unknown phase {}; allowed: {}", quoted(key), listed(kinds())),
            None => format!("an empty phase; allowed: {}", listed(kinds())),
        };
        let place = table.values().next().map_or(&node.place, |(place, _)| place);
        return Err(ScenarioError::new(place, cause));
    };
    if let Some(second) = found.next() {
        let cause = format!("one phase can't be both `{kind}` and `{second}`: write two");
        return Err(ScenarioError::new(&node.place, cause));
    }
    let extra = PHASES.iter().find(|(name, _)| *name == kind).map_or(&["body"] as &[_], |(_, extra)| extra);
    Ok((kind, [&[kind], extra].concat()))
}

fn name_of(table: &TableReader<'_>, key: &str) -> Result<String, ScenarioError> {
    let node = table.get(key).ok_or_else(|| table.missing(key, "a name"))?;
    reader::name(node, key)
}

/// `spawn = 3`: a phase without parameters, that many times.
fn repeated(table: &TableReader<'_>, key: &str, phase: Phase) -> Result<Phase, ScenarioError> {
    Ok(match table.integer(key, 1..=REPEAT_MAX)?.unwrap_or(1) {
        1 => phase,
        count => Phase::Repeat { count, body: vec![phase] },
    })
}

/// A pass must take time and must end.
fn check_pass(node: &Node, program: &[Phase]) -> Result<(), ScenarioError> {
    if steps_of(program) > PASS_STEPS_MAX {
        let cause = format!("one pass has more than {PASS_STEPS_MAX} steps; use fewer repeats");
        return Err(ScenarioError::new(&node.place, cause));
    }
    if repeats_within(program) > LOOP_DEPTH {
        let cause = format!("repeats nested deeper than {LOOP_DEPTH} (`spawn = 2` is one, too)");
        return Err(ScenarioError::new(&node.place, cause));
    }
    if !program.iter().any(Phase::takes_time)
        || !waits_for_others(program) && time_of(program) < PASS_TIME_MIN_NS
    {
        let cause = format!(
            "a pass may take no time, so it could run for ever at one instant: its phases take {:.0} ns; \
             allowed: {PASS_TIME_MIN_NS} ns on average, and at least one compute, kernel, lock or sleep",
            time_of(program)
        );
        return Err(ScenarioError::new(&node.place, cause));
    }
    let time_us = time_of(program).max(PASS_TIME_MIN_NS) / 1e3;
    let steps = untimed_steps_of(program);
    if steps > UNTIMED_STEPS_PER_US_MAX * time_us {
        let cause = format!(
            "{steps:.0} steps of a pass take no time, the others {time_us:.1} us; \
             allowed: {UNTIMED_STEPS_PER_US_MAX} such steps per us"
        );
        return Err(ScenarioError::new(&node.place, cause));
    }
    Ok(())
}

/// How deep repeats are nested.
fn repeats_within(program: &[Phase]) -> usize {
    let depth = |phase: &Phase| match phase {
        Phase::Repeat { body, .. } => 1 + repeats_within(body),
        Phase::Sometimes { body, .. } => repeats_within(body),
        _ => 0,
    };
    program.iter().map(depth).max().unwrap_or(0)
}

/// Phases as they are written, those within others included.
pub fn phases_of(program: &[Phase]) -> usize {
    let phases = |phase: &Phase| match phase {
        Phase::Repeat { body, .. } | Phase::Sometimes { body, .. } => 1 + phases_of(body),
        _ => 1,
    };
    program.iter().map(phases).sum()
}

fn steps_of(program: &[Phase]) -> u64 {
    let steps = |phase: &Phase| match phase {
        Phase::Repeat { count, body } => count.saturating_mul(steps_of(body)),
        Phase::Sometimes { body, .. } => steps_of(body).saturating_add(1),
        _ => 1,
    };
    program.iter().map(steps).fold(0, u64::saturating_add)
}

/// Mean time of one pass without any waiting, in ns.
pub fn time_of(program: &[Phase]) -> f64 {
    let time = |phase: &Phase| match phase {
        Phase::Compute { duration } | Phase::Sleep { duration } => units::mean_ns(duration),
        Phase::Kernel { duration, .. }
        | Phase::ReadRcu { duration, .. }
        | Phase::UserLock { hold: duration, .. }
        | Phase::Lock { hold: duration, .. } => units::mean_ns(duration),
        Phase::Shootdown { prepare, .. } | Phase::GuardedShootdown { prepare, .. } => units::mean_ns(prepare),
        // They take a runqueue's lock.
        Phase::Spawn | Phase::Synchronize => PASS_TIME_MIN_NS,
        Phase::Repeat { count, body } => *count as f64 * time_of(body),
        Phase::Sometimes { ppm, body } => f64::from(*ppm) / 1e6 * time_of(body),
        _ => 0.0,
    };
    program.iter().map(time).sum()
}

/// How many steps of one pass take no time, on average.
pub fn untimed_steps_of(program: &[Phase]) -> f64 {
    let steps = |phase: &Phase| match phase {
        Phase::Repeat { count, body } => *count as f64 * untimed_steps_of(body),
        Phase::Sometimes { ppm, body } => 1.0 + f64::from(*ppm) / 1e6 * untimed_steps_of(body),
        phase => f64::from(!phase.takes_time()),
    };
    program.iter().map(steps).sum()
}

/// Whether each pass certainly waits for the NIC: then it takes time without computing.
fn waits_for_others(program: &[Phase]) -> bool {
    program.iter().any(|phase| match phase {
        Phase::NetworkReceive => true,
        Phase::Repeat { body, .. } => waits_for_others(body),
        _ => false,
    })
}

/// A queue that is only read or only written blocks its users for ever. `workloads` are all of one VM: they
/// share queues.
pub fn check_queues(
    node: &Node,
    workloads: &[WorkloadConfig],
    channels: &[ChannelConfig],
) -> Result<(), ScenarioError> {
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    workloads.iter().for_each(|workload| collect_queues(&workload.program, &mut sent, &mut received));
    for users in [&mut sent, &mut received] {
        users.retain(|queue| channels.iter().all(|channel| channel.name != **queue));
    }
    let lonely = received.iter().find(|queue| !sent.contains(queue)).map(|queue| (queue, "sends to"));
    let lonely =
        lonely.or(sent.iter().find(|queue| !received.contains(queue)).map(|queue| (queue, "receives from")));
    match lonely {
        Some((queue, verb)) => Err(ScenarioError::new(
            &node.place,
            format!("queue {}: nobody in this VM {verb} it", quoted(queue)),
        )),
        None => Ok(()),
    }
}

/// Collects the names of the queues that a program sends to, and receives from.
pub fn collect_queues<'p>(program: &'p [Phase], sent: &mut Vec<&'p str>, received: &mut Vec<&'p str>) {
    for phase in program {
        match phase {
            Phase::Send { queue, .. } => sent.push(queue),
            Phase::Receive { queue } => received.push(queue),
            Phase::Repeat { body, .. } | Phase::Sometimes { body, .. } => {
                collect_queues(body, sent, received)
            }
            _ => {}
        }
    }
}
