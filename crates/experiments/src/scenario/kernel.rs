//! `kernels/*.toml`: a guest's kernel and its locks.

use super::error::{ScenarioError, listed, quoted};
use super::reader::{self, TableReader};
use super::tree::{Node, NodeValue};
use super::units;
use microslice_engine::SimError;
use microslice_engine::text;
use microslice_model::config::{
    BalanceConfig, BalanceRule, GuestKernelConfig, KernelFeatures, LockConfig, LockKind, RCU_NODE, RUNQUEUE,
    ShownCount, SymbolTable, ThreadScheduler, WakesUp,
};
use microslice_policy::{Coded, DelayConfig, class_is_critical};
use std::ops::RangeInclusive;

/// `BUSY_REBALANCE_TICK` of Linux 2.5's O(1) scheduler: a quarter of a second.
const BUSY_REBALANCE_TICK_NS: u64 = 250_000_000;
/// From the shortest of Linux, a tick, upwards.
const BALANCE_INTERVAL_NS: RangeInclusive<u64> = 100_000..=units::HOUR_NS;
/// How long a handler, or a switch of threads, takes.
pub const HANDLER_NS: RangeInclusive<u64> = 1..=100_000_000;
/// A waiter that gives up sooner doesn't spin.
const SPIN_NS: RangeInclusive<u64> = 100..=units::HOUR_NS;
/// Threads' turns.
const SLICE_NS: RangeInclusive<u64> = 1_000..=units::HOUR_NS;
const THREAD_SCHEDULERS: [(&str, ThreadScheduler); 2] =
    [("fifo", ThreadScheduler::Fifo), ("eevdf", ThreadScheduler::Eevdf)];
const LOCKS_MAX: usize = 256;
const LOCK_INSTANCES_MAX: u64 = 65_536;
pub const KEYS: [&str; 30] = [
    "symbols",
    "lock_kind",
    "pv_spin",
    "yield_spin",
    "preemption_hint",
    "user_hint",
    "wait_lists",
    "readers",
    "flat_ipi",
    "listed_holds",
    "shown_count",
    "balance",
    "balance_interval",
    "balloons",
    "plans",
    "tick",
    "thread_slice",
    "thread_scheduler",
    "steal_time",
    "mutex_handoff",
    "pv_ipi",
    "ttwu_queue",
    "lazy_tlb",
    "pv_tlb_flush",
    "pv_ipi_yield",
    "call_function_handler",
    "reschedule_handler",
    "tick_handler",
    "thread_switch",
    "lock",
];
pub const LOCK_KEYS: [&str; 5] = ["name", "kind", "irqs_off", "instances", "symbol"];

/// A kernel function that a workload or a lock runs in; it must be in the guest's symbol table, as the
/// instruction pointer will be there. Of several, the first that this kernel has: functions change their
/// names.
pub fn read_symbol(table: &TableReader<'_>, symbols: SymbolTable) -> Result<Option<String>, ScenarioError> {
    let family = symbols.word();
    let is_known = |name: &str| functions(symbols).any(|function| function == name);
    if let Some(Node { value: NodeValue::Array(names), place }) = table.get("symbol") {
        let names = names.iter().map(reader::string).collect::<Result<Vec<_>, _>>()?;
        return match names.iter().find(|name| is_known(name)) {
            Some(name) => Ok(Some((*name).to_owned())),
            None => Err(ScenarioError::new(place, format!("`symbol`: {family} has none of these functions"))),
        };
    }
    table.parsed("symbol", |name| {
        if is_known(name) {
            return Ok(name.to_owned());
        }
        let (alike, shown) = (listed(most_alike(name, functions(symbols))), quoted(name));
        Err(format!("unknown symbol {shown}; {family} has {alike}, …; all: `microslice simulate --list`"))
    })
}

/// Every symbol table by its name, with its functions in the order of their addresses.
pub fn symbol_tables() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    SymbolTable::ALL.into_iter().map(|symbols| (symbols.word(), functions(symbols).collect()))
}

/// Of every symbol table, the functions in which a preempted vCPU makes others wait, with their class: the
/// policy accelerates these, and nothing else for a lock's sake.
pub fn critical_functions() -> Result<Vec<(&'static str, Vec<String>)>, SimError> {
    let tables = SymbolTable::ALL.into_iter().zip(text::all()?);
    Ok(tables
        .map(|(symbols, text)| {
            let functions = text.symbols.iter().zip(&text.classes);
            let critical = functions.filter(|(_, class)| class_is_critical(**class));
            (
                symbols.word(),
                critical.map(|(symbol, class)| format!("{} ({})", symbol.name, class.name())).collect(),
            )
        })
        .collect())
}

fn functions(symbols: SymbolTable) -> impl Iterator<Item = &'static str> {
    symbols.map().lines().filter_map(function_of)
}

/// The few names that are most like a wrong one: by the share of three-letter pieces that both contain.
fn most_alike<'n>(wrong: &str, names: impl Iterator<Item = &'n str>) -> Vec<&'n str> {
    const SHOWN: usize = 6;
    const COMPARED: usize = 64;
    let wrong: Vec<u8> = wrong.bytes().take(COMPARED).collect();
    let unlikeness = |name: &str| {
        let shared = name.as_bytes().windows(3).filter(|piece| wrong.windows(3).any(|other| other == *piece));
        let pieces = name.len() + wrong.len();
        pieces * 1_000 / (2 * shared.count() + 1)
    };
    let mut names: Vec<&str> = names.collect();
    names.sort_by_key(|name| unlikeness(name));
    names.truncate(SHOWN);
    names
}

/// The name in a line of a `System.map`, if the line is about code.
fn function_of(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().skip(1);
    let kind = words.next()?;
    words.next().filter(|_| kind.eq_ignore_ascii_case("t"))
}

fn lock_kinds() -> [(&'static str, LockKind); LockKind::ALL.len()] {
    LockKind::ALL.map(|kind| (kind.rules().word, kind))
}

/// Reads a kernel.
pub fn read(node: &Node) -> Result<GuestKernelConfig, ScenarioError> {
    let table = TableReader::open(node, "a kernel", &KEYS)?;
    let required = |key: &str, allowed| {
        table.time(key, allowed)?.ok_or_else(|| table.missing(key, "a time such as \"2 us\""))
    };
    let symbols = table.choice("symbols", &SymbolTable::ALL.map(|symbols| (symbols.word(), symbols)))?;
    let words = || SymbolTable::ALL.map(SymbolTable::word).join(" or ");
    let symbols = symbols.ok_or_else(|| table.missing("symbols", &words()))?;
    refuse_readers_without_lists(&table)?;
    let lock_kind = table.choice("lock_kind", &lock_kinds())?;
    let lock_kind = lock_kind.ok_or_else(|| table.missing("lock_kind", "such as pv-queued"))?;
    let mut locks = Vec::new();
    for lock in table.list("lock", LOCKS_MAX)? {
        read_lock(lock, symbols, &mut locks, str::to_owned)?;
    }
    refuse_sleeping_runqueue(&table, lock_kind, &locks)?;
    refuse_sleeping_node(&table, lock_kind, &locks)?;
    for (node, lock) in table.list("lock", LOCKS_MAX)?.iter().zip(&locks) {
        refuse_what_does_nothing(node, lock, lock_kind)?;
    }
    Ok(GuestKernelConfig {
        symbols,
        lock_kind,
        pv_spin_ns: required("pv_spin", SPIN_NS)?,
        yield_spin_ns: table.time("yield_spin", SPIN_NS)?.unwrap_or(GuestKernelConfig::YIELD_SPIN_NS),
        balance: read_balance(&table)?,
        tick_hz: read_tick(&table)?,
        thread_slice_ns: required("thread_slice", SLICE_NS)?,
        thread_scheduler: table
            .choice("thread_scheduler", &THREAD_SCHEDULERS)?
            .unwrap_or(ThreadScheduler::Fifo),
        features: read_features(&table)?,
        pv_tlb_flush: table.boolean("pv_tlb_flush")?.unwrap_or(false),
        pv_ipi_yield: table.boolean("pv_ipi_yield")?.unwrap_or(true),
        preemption_hint_ns: read_hint(&table)?,
        user_hint_ns: table.time("user_hint", 0..=GuestKernelConfig::USER_HINT_MAX_NS)?.unwrap_or(0) as u32,
        wait_lists: table.choice("wait_lists", &WakesUp::WORDS)?,
        readers: table.boolean("readers")?.unwrap_or(false),
        flat_ipi: table.boolean("flat_ipi")?.unwrap_or(false),
        listed_holds_percent: table
            .parsed("listed_holds", units::percent)?
            .map_or(100, |percent| percent as u8),
        shown_count: table.choice("shown_count", &ShownCount::WORDS)?.unwrap_or(ShownCount::Honest),
        call_function_handler_ns: required("call_function_handler", HANDLER_NS)?,
        reschedule_handler_ns: required("reschedule_handler", HANDLER_NS)?,
        tick_handler_ns: required("tick_handler", HANDLER_NS)?,
        thread_switch_ns: required("thread_switch", HANDLER_NS)?,
        locks,
    })
}

/// A reader that has to wait sleeps in a list.
fn refuse_readers_without_lists(table: &TableReader<'_>) -> Result<(), ScenarioError> {
    match table.get("readers") {
        Some(node) if table.boolean("readers")?.unwrap_or(false) && table.get("wait_lists").is_none() => {
            Err(ScenarioError::new(&node.place, "`readers` needs `wait_lists`"))
        }
        _ => Ok(()),
    }
}

/// What kernels of today do; none of it is there unless it is said.
fn read_features(table: &TableReader<'_>) -> Result<KernelFeatures, ScenarioError> {
    let has = |key: &str| Ok(table.boolean(key)?.unwrap_or(false));
    Ok(KernelFeatures {
        steal_time: has("steal_time")?,
        mutex_handoff: has("mutex_handoff")?,
        pv_ipi: has("pv_ipi")?,
        ttwu_queue: has("ttwu_queue")?,
        lazy_tlb: has("lazy_tlb")?,
    })
}

/// The guest's scheduler can't put to sleep a waiter for its own lock.
fn refuse_sleeping_runqueue(
    table: &TableReader<'_>,
    lock_kind: LockKind,
    locks: &[LockConfig],
) -> Result<(), ScenarioError> {
    let at = locks.iter().position(|lock| lock.name == RUNQUEUE);
    let own_kind = at.and_then(|at| locks[at].kind);
    if !own_kind.unwrap_or(lock_kind).sleeps() {
        return Ok(());
    }
    let place = match (own_kind, at) {
        (Some(_), Some(at)) => &table.list("lock", LOCKS_MAX)?[at].place,
        _ => table.get("lock_kind").map_or(table.place(), |node| &node.place),
    };
    let spinning = LockKind::ALL.into_iter().filter(|kind| !kind.sleeps()).map(|kind| kind.rules().word);
    let cause = format!(
        "lock `{RUNQUEUE}` can't sleep; allowed: a `[[lock]]` of that name and kind {}",
        listed(spinning)
    );
    Err(ScenarioError::new(place, cause))
}

/// RCU takes the lock of its node in interrupts.
fn refuse_sleeping_node(
    table: &TableReader<'_>,
    lock_kind: LockKind,
    locks: &[LockConfig],
) -> Result<(), ScenarioError> {
    let sleeps = |lock: &LockConfig| lock.name == RCU_NODE && lock.kind.unwrap_or(lock_kind).sleeps();
    match locks.iter().position(sleeps) {
        Some(at) => {
            let cause = format!("lock `{RCU_NODE}` can't sleep: RCU takes it in interrupts");
            Err(ScenarioError::new(&table.list("lock", LOCKS_MAX)?[at].place, cause))
        }
        None => Ok(()),
    }
}

fn read_balance(table: &TableReader<'_>) -> Result<Option<BalanceConfig>, ScenarioError> {
    let rules = [
        ("queue-length", BalanceRule::QueueLength),
        ("capacity", BalanceRule::Capacity),
        ("work-stealing", BalanceRule::WorkStealing),
    ];
    let rule = table.choice("balance", &rules)?;
    let [balloons, plans] = [table.boolean("balloons")?, table.boolean("plans")?].map(|on| on == Some(true));
    let interval_ns = table.time("balance_interval", BALANCE_INTERVAL_NS)?;
    let is_eevdf = table.choice("thread_scheduler", &THREAD_SCHEDULERS)? == Some(ThreadScheduler::Eevdf);
    let refuse = |key: &str, cause: &str| {
        let place = table.get(key).map_or(table.place(), |node| &node.place);
        Err(ScenarioError::new(place, format!("`{key}` {cause}")))
    };
    match rule {
        None if balloons => refuse("balloons", "needs `balance = \"queue-length\"` or `\"work-stealing\"`"),
        None if interval_ns.is_some() => refuse("balance_interval", "needs `balance`"),
        Some(BalanceRule::Capacity) if balloons => {
            refuse("balloons", "is of the other ways to balance: this one knows what vCPUs are given")
        }
        Some(BalanceRule::WorkStealing) if is_eevdf => refuse(
            "balance",
            "= \"work-stealing\" is a scheduler of its own: not with `thread_scheduler = \"eevdf\"`",
        ),
        rule if plans && rule != Some(BalanceRule::WorkStealing) => {
            refuse("plans", "needs `balance = \"work-stealing\"`")
        }
        None => Ok(None),
        Some(rule) => Ok(Some(BalanceConfig {
            rule,
            interval_ns: interval_ns.unwrap_or(BUSY_REBALANCE_TICK_NS),
            balloons,
            plans,
        })),
    }
}

/// The longest that a host would believe.
fn read_hint(table: &TableReader<'_>) -> Result<u32, ScenarioError> {
    Ok(table.time("preemption_hint", 0..=DelayConfig::WINDOW_MAX_NS)?.map_or(0, |ns| ns as u32))
}

fn read_tick(table: &TableReader<'_>) -> Result<u32, ScenarioError> {
    let tick = table.parsed("tick", |text| match units::frequency_hz(text)? {
        hz if (1.0..=10_000.0).contains(&hz) => Ok(hz.round() as u32),
        _ => Err("allowed: 1 Hz to 10 kHz".to_owned()),
    })?;
    tick.ok_or_else(|| table.missing("tick", "a frequency such as \"250 Hz\""))
}

/// Reads a `[[lock]]`. It is added to `locks` as `name_of(its name)`, which must be free there.
pub fn read_lock(
    node: &Node,
    symbols: SymbolTable,
    locks: &mut Vec<LockConfig>,
    name_of: impl FnOnce(&str) -> String,
) -> Result<(), ScenarioError> {
    let table = TableReader::open(node, "a lock", &LOCK_KEYS)?;
    let name_node = table.get("name").ok_or_else(|| table.missing("name", "such as page_allocator"))?;
    let name = name_of(&reader::name(name_node, "a lock")?);
    if locks.iter().any(|lock| lock.name == name) {
        return Err(ScenarioError::new(&name_node.place, format!("a second lock {}", quoted(&name))));
    }
    let symbol = read_symbol(&table, symbols)?.ok_or_else(|| {
        table.missing("symbol", "the kernel function that holds it, such as get_page_from_freelist")
    })?;
    let is_runqueue = name == RUNQUEUE;
    locks.push(LockConfig {
        name,
        kind: table.choice("kind", &lock_kinds())?,
        irqs_off: table.boolean("irqs_off")?.unwrap_or(is_runqueue),
        instances: table.integer("instances", 1..=LOCK_INSTANCES_MAX)?.unwrap_or(1) as usize,
        symbol,
    });
    if locks.len() > LOCKS_MAX {
        let cause = format!("more than {LOCKS_MAX} locks in one kernel");
        return Err(ScenarioError::new(table.place(), cause));
    }
    Ok(())
}

/// Keys that this lock, of that kind if it doesn't say otherwise, has no use for.
pub fn refuse_what_does_nothing(
    node: &Node,
    lock: &LockConfig,
    lock_kind: LockKind,
) -> Result<(), ScenarioError> {
    let table = TableReader::open(node, "a lock", &LOCK_KEYS)?;
    let kind = lock.kind.unwrap_or(lock_kind);
    if lock.name == RUNQUEUE
        && let Some((key, node)) =
            ["irqs_off", "instances"].iter().find_map(|key| Some((key, table.get(key)?)))
    {
        let cause =
            format!("`{key}`: each vCPU has one `{RUNQUEUE}`, held with interrupts off; leave the key out");
        return Err(ScenarioError::new(&node.place, cause));
    }
    if lock.irqs_off && kind.sleeps() {
        let place = table.get("irqs_off").map_or(table.place(), |node| &node.place);
        let word = quoted(kind.rules().word);
        let cause = format!("`irqs_off`: nobody sleeps with interrupts off, as waiters for {word} do");
        return Err(ScenarioError::new(place, cause));
    }
    Ok(())
}
