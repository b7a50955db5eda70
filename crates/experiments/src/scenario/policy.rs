//! `policies/*.toml`: what decides on the host, and with which parameters.

use super::error::{Place, ScenarioError, clipped, listed, quoted};
use super::library::{Library, Shelf};
use super::reader::{self, TableReader};
use super::tree::{self, Node, NodeValue};
use super::units;
use super::{bounds, delay, paper_rules};
use microslice_model::config::{
    BesideConfig, CfsConfig, Coordination, CreditConfig, EevdfConfig, FairSharePool, HolderRules, Mechanics,
    MicroSlicedConfig, NormalPoolKind, PoolSize, ReschedCo, SchedulerKind, StrideConfig,
};
use microslice_policy::coordinated::BalanceScheme;
use microslice_policy::{AccelerateConfig, Coded, CriticalBy, POOL_LIMIT_MAX, PoolSizeConfig, QueueDomain};
use std::ops::RangeInclusive;

/// Policies whose name may end in `:N`, for N static micro-sliced pCPUs.
const SIZED: [&str; 3] = ["microslice", "micro", "micro-xen"];

/// The policy whose name may end in `:paper`, for the paper's rules: no grace, no boosts by call-function
/// IPIs.
const BESIDE: &str = "beside";
pub(super) const PAPER: &str = "paper";

/// Slices and ticks of nanoseconds would do nothing else than switch.
const TIME_NS: RangeInclusive<u64> = 1_000..=units::HOUR_NS;
/// As `sysctl_sched_latency` and its like, and `HZ` from 1 to 10,000.
const LINUX_NS: RangeInclusive<u64> = 100_000..=1_000_000_000;

/// A policy by its name: a file of `policies/`, or `micro:N` for N static micro-sliced pCPUs (`micro-xen:N`
/// likewise); behind either, `+key=value` as often as wanted changes its parameters (`micro:2+grace=0`).
pub fn named(library: &mut Library, reference: &Node) -> Result<Node, ScenarioError> {
    let (name, variations) = variations_of(reader::string(reference)?);
    let mut policy = sized(library, name, &reference.place)?;
    for (key, value) in variations {
        let origin = format!("{}: +{}", reference.place, clipped(key));
        if key == "extends" {
            let cause = "`extends` was followed before: name the other policy in front";
            return Err(ScenarioError::new(&Place::whole(&origin), cause));
        }
        tree::set(&mut policy, key, tree::value_of(&Place::whole(&origin), value))?;
    }
    Ok(policy)
}

/// The name in front of all `+key=value`, and these in their order. Whatever lacks a `=` belongs to the name:
/// it may be a file's.
fn variations_of(mut name: &str) -> (&str, Vec<(&str, &str)>) {
    let mut variations = Vec::new();
    while let Some((before, last)) = name.rsplit_once('+')
        && let Some((key, value)) = last.split_once('=')
    {
        variations.push((key.trim(), value.trim()));
        name = before.trim_end();
    }
    variations.reverse();
    (name, variations)
}

fn sized(library: &mut Library, name: &str, place: &Place) -> Result<Node, ScenarioError> {
    if let Some((BESIDE, PAPER)) = name.split_once(':') {
        return with(
            library.find(Shelf::Policy, BESIDE, place)?,
            place,
            "rules",
            NodeValue::String(PAPER.into()),
        );
    }
    let sized = name.split_once(':').filter(|(policy, _)| SIZED.contains(policy));
    let Some((policy, size)) = sized else {
        return library.find(Shelf::Policy, name, place).map_err(|error| ScenarioError {
            cause: error.cause.replace("; or name", ", micro:N (N static micro-sliced pCPUs); or name"),
            ..error
        });
    };
    let size: i64 =
        size.parse().ok().filter(|size| (0..=POOL_LIMIT_MAX as i64).contains(size)).ok_or_else(|| {
            ScenarioError::new(
                place,
                format!("{}: {policy}:N needs a whole number from 0 to {POOL_LIMIT_MAX}", quoted(name)),
            )
        })?;
    with(library.find(Shelf::Policy, policy, place)?, place, "pool", NodeValue::Integer(size))
}

/// A policy with another value of a key.
fn with(mut policy: Node, place: &Place, key: &str, value: NodeValue) -> Result<Node, ScenarioError> {
    if let NodeValue::Table(table) = &mut policy.value {
        table.insert(key.to_owned(), (place.clone(), Node { place: place.clone(), value }));
    }
    Ok(policy)
}

/// Names for `--help` and errors.
pub fn names() -> Vec<String> {
    let files = Shelf::Policy.built_in_names().into_iter().map(str::to_owned);
    let rules = [format!("{BESIDE}:{PAPER}")];
    files.chain(rules).chain(SIZED.map(|policy| format!("{policy}:N"))).collect()
}

/// A scheduler as policies name it: its word, its keys besides `scheduler`, and how they are read on a host
/// of so many pCPUs.
type Row = (&'static str, &'static [&'static str], Read);
type Read = fn(&TableReader<'_>, usize) -> Result<SchedulerKind, ScenarioError>;

/// Of CFS.
const CFS_KEYS: [&str; 4] = ["latency", "min_granularity", "wakeup_granularity", "tick"];

const SCHEDULERS: [Row; 8] = [
    ("credit", &["slice", "tick", "ratelimit", "boost", "ratelimit_yields"], |table, _| {
        Ok(SchedulerKind::Credit(read_credit(table)?))
    }),
    (
        "micro-sliced",
        &[
            "slice",
            "tick",
            "ratelimit",
            "boost",
            "ratelimit_yields",
            "normal_pool",
            "domain",
            "rules",
            "mechanics",
            "micro_slice",
            "pool",
            "pool_limit",
            "profile_interval",
            "epoch_interval",
            "second_looks",
            "grow_when_busy",
            "grace",
            "call_function_ipi",
            "patience",
            "lend",
            "home_slices",
            "critical_by",
            "heirs",
            "max_wait",
        ],
        read_micro_sliced,
    ),
    (
        "eevdf",
        &["base_slice", "tick", "directed_yield", "groups", "ipi_aware", "boosts_woken"],
        |table, _| Ok(SchedulerKind::Eevdf(read_groups(table)?)),
    ),
    (
        "beside",
        &[
            "base_slice",
            "tick",
            "directed_yield",
            "groups",
            "micro_slice",
            "rules",
            "grace",
            "call_function_ipi",
            "boost_percent",
            "critical_by",
            "heirs",
            "max_wait",
            "woken",
            "pay_back",
        ],
        read_beside,
    ),
    ("cfs", &CFS_KEYS, |table, _| read_cfs(table, Coordination::NONE)),
    (
        "coordinated",
        &[
            "latency",
            "min_granularity",
            "wakeup_granularity",
            "tick",
            "balance",
            "resched_dp",
            "tlb_co",
            "resched_co",
            "early_dp",
            "tlb_spin",
            "delay",
            "urgent_slice",
            "urgent_allowance",
        ],
        |table, _| read_cfs(table, read_coordination(table)?),
    ),
    ("lottery", &["slice", "tick"], |table, _| {
        Ok(SchedulerKind::Lottery(read_slice_and_tick(table, FairSharePool::DOMAIN)?))
    }),
    ("stride", &["slice"], |table, _| {
        Ok(SchedulerKind::Stride(StrideConfig { slice_ns: required_time(table, "slice")? }))
    }),
];

/// Reads a policy.
pub fn read(node: &Node, pcpus: usize) -> Result<SchedulerKind, ScenarioError> {
    let named = match &node.value {
        NodeValue::Table(table) => {
            table.get("scheduler").map(|(_, name)| Ok((name, reader::string(name)?))).transpose()?
        }
        _ => None,
    };
    let words = listed(SCHEDULERS.iter().map(|(word, ..)| *word));
    let Some((name_node, name)) = named else {
        return Err(ScenarioError::new(&node.place, format!("a policy needs `scheduler`; allowed: {words}")));
    };
    let Some((_, keys, read)) = SCHEDULERS.iter().find(|(word, ..)| *word == name) else {
        let cause = format!("unknown scheduler {}; allowed: {words}", quoted(name));
        return Err(ScenarioError::new(&name_node.place, cause));
    };
    let keys = [&["scheduler"], *keys, &delay::KEYS].concat();
    let ruled = paper_rules::applied(node)?;
    let policy = TableReader::open(&ruled, "a policy", &keys).and_then(|table| read(&table, pcpus));
    policy.map_err(|error| blame_scheduler(node, name_node, error))
}

/// A scheduler that was put over a policy's own has other keys.
/// Not their file is to blame, but who brought it.
fn blame_scheduler(policy: &Node, scheduler: &Node, error: ScenarioError) -> ScenarioError {
    let is_above = match scheduler.place.line {
        0 => true,
        _ => {
            !scheduler.place.is_built_in()
                && scheduler.place.file == policy.place.file
                && error.place.file != policy.place.file
        }
    };
    if !is_above || error.place.line == 0 {
        return error;
    }
    let cause = format!(
        "this policy is another scheduler's ({error}); leave `scheduler` out, or begin with a policy that has it"
    );
    ScenarioError::new(&scheduler.place, cause)
}

fn read_micro_sliced(table: &TableReader<'_>, pcpus: usize) -> Result<SchedulerKind, ScenarioError> {
    let micro_slice_ns = required_time(table, "micro_slice")?;
    let (max_wait_ns, max_wait_each_ns) = bounds::of_policy(table, micro_slice_ns, false)?;
    Ok(SchedulerKind::MicroSliced(MicroSlicedConfig {
        normal: read_normal_pool(table)?,
        micro_slice_ns,
        pool: read_pool(table, pcpus)?,
        mechanics: read_mechanics(table)?,
        paper_rules: paper_rules::are_on(table)?,
        grace: read_grace(table)?,
        call_function_ipi: read_call_function_ipi(table)?,
        patience_ns: read_patience(table)?,
        lends: of_fair_share(table, "lend")?,
        home_slices: of_fair_share(table, "home_slices")?,
        max_wait_ns,
        max_wait_each_ns,
        holders: read_holders(table)?,
    }))
}

fn read_normal_pool(table: &TableReader<'_>) -> Result<NormalPoolKind, ScenarioError> {
    const POOLS: [&str; 2] = ["credit", "fair-share"];
    let Some(node) = table.get("normal_pool") else { return read_credit_pool(table, None) };
    match reader::string(node)? {
        "credit" => read_credit_pool(table, Some(node)),
        "fair-share" => read_fair_share(table, node),
        other => Err(ScenarioError::new(
            &node.place,
            format!("unknown normal pool {}; allowed: {}", quoted(other), listed(POOLS)),
        )),
    }
}

fn read_credit_pool(table: &TableReader<'_>, pool: Option<&Node>) -> Result<NormalPoolKind, ScenarioError> {
    if let Some(node) = table.get("domain") {
        let cause = "`domain` is of the normal pool `fair-share`; `credit` has queues of pCPUs";
        return Err(ScenarioError::new(blamed(node, pool), cause));
    }
    Ok(NormalPoolKind::Credit(read_credit(table)?))
}

fn read_fair_share(table: &TableReader<'_>, pool: &Node) -> Result<NormalPoolKind, ScenarioError> {
    if is_prototype(table)? {
        let cause = "the normal pool is `credit` with mechanics `xen-prototype`";
        return Err(ScenarioError::new(blamed(pool, table.get("mechanics")), cause));
    }
    let of_credit = ["ratelimit", "boost", "ratelimit_yields"];
    if let Some((key, node)) = of_credit.into_iter().find_map(|key| Some((key, table.get(key)?))) {
        let cause = format!("`{key}` is of the normal pool `credit`; `fair-share` has `slice` and `tick`");
        return Err(ScenarioError::new(blamed(node, Some(pool)), cause));
    }
    Ok(NormalPoolKind::FairShare(read_slice_and_tick(table, read_domain(table)?)?))
}

fn read_slice_and_tick(table: &TableReader<'_>, domain: QueueDomain) -> Result<FairSharePool, ScenarioError> {
    Ok(FairSharePool {
        slice_ns: required_time(table, "slice")?,
        tick_ns: required_time(table, "tick")?,
        domain,
    })
}

/// Which pCPUs share queues.
fn read_domain(table: &TableReader<'_>) -> Result<QueueDomain, ScenarioError> {
    let domains = [("pcpu", QueueDomain::Pcpu), ("llc", QueueDomain::Llc), ("host", QueueDomain::Host)];
    Ok(table.choice("domain", &domains)?.unwrap_or(FairSharePool::DOMAIN))
}

/// Of two values that don't go together the one that the command line brought, as files go together: else the
/// first.
pub(super) fn blamed<'n>(first: &'n Node, second: Option<&'n Node>) -> &'n Place {
    let brought = [Some(first), second].into_iter().flatten().find(|node| node.place.is_command_line());
    &brought.unwrap_or(first).place
}

fn read_eevdf(table: &TableReader<'_>) -> Result<EevdfConfig, ScenarioError> {
    Ok(EevdfConfig {
        base_slice_ns: required_time(table, "base_slice")?,
        tick_ns: linux_time(table, "tick")?,
        directed_yield: table.boolean("directed_yield")?.unwrap_or(true),
        groups: false,
        ipi_aware: false,
        boosts_woken: true,
    })
}

fn read_groups(table: &TableReader<'_>) -> Result<EevdfConfig, ScenarioError> {
    let groups = table.boolean("groups")?.unwrap_or(false);
    let ipi_aware = table.boolean("ipi_aware")?.unwrap_or(false);
    if let Some(node) = table.get("ipi_aware").filter(|_| ipi_aware && !groups) {
        return Err(ScenarioError::new(&node.place, "`ipi_aware` needs `groups = true`"));
    }
    let boosts_woken = table.boolean("boosts_woken")?.unwrap_or(true);
    Ok(EevdfConfig { groups, ipi_aware, boosts_woken, ..read_eevdf(table)? })
}

/// In the ranges of `microslice run --scheduler beside`.
fn read_beside(table: &TableReader<'_>, _: usize) -> Result<SchedulerKind, ScenarioError> {
    /// All VMs together may have so many times what one may, and no more than that
    /// (crates/host/src/beside/programs.rs).
    const VMS_PER_HOST_BUDGET: u32 = 5;
    const HOST_PERCENT_MAX: u32 = 50;
    let project = (AccelerateConfig::DEFAULT, true);
    let rules = [("project", project), (PAPER, (AccelerateConfig::PAPER, false))];
    let (rules, is_the_projects) = table.choice("rules", &rules)?.unwrap_or(project);
    let micro_slice_ns = required_time(table, "micro_slice")?;
    let (max_wait_ns, max_wait_each_ns) = bounds::of_policy(table, micro_slice_ns, is_the_projects)?;
    let boost_percent = table.parsed("boost_percent", |text| match units::percent(text)? {
        percent if !(1..=HOST_PERCENT_MAX).contains(&percent) => Err("allowed: 1 % to 50 %".to_owned()),
        percent => Ok(percent),
    })?;
    let boost_percent = boost_percent.unwrap_or(1);
    Ok(SchedulerKind::Beside(BesideConfig {
        eevdf: EevdfConfig { groups: table.boolean("groups")?.unwrap_or(false), ..read_eevdf(table)? },
        micro_slice_ns,
        paper_rules: !is_the_projects,
        grace: table.integer("grace", 0..=100)?.map_or(rules.grace_max, |grace| grace as u32),
        call_function_ipi: table.boolean("call_function_ipi")?.unwrap_or(rules.call_function_ipi != 0),
        boost_percent,
        host_percent: (boost_percent * VMS_PER_HOST_BUDGET).min(HOST_PERCENT_MAX),
        max_wait_ns,
        max_wait_each_ns,
        woken: table.boolean("woken")?.unwrap_or(is_the_projects),
        pay_back: table.boolean("pay_back")?.unwrap_or(false),
        holders: read_holders(table)?,
    }))
}

/// By the words of `microslice run`.
fn read_holders(table: &TableReader<'_>) -> Result<HolderRules, ScenarioError> {
    let words = CriticalBy::ALL.iter().map(|&by| (by.name(), by)).collect::<Vec<_>>();
    let critical_by = table.choice("critical_by", &words)?.unwrap_or(CriticalBy::Symbols);
    let rules = HolderRules { critical_by, heirs: table.boolean("heirs")?.unwrap_or(false) };
    let needs = |key: &str, cause: &str| match table.get(key) {
        Some(node) => Err(ScenarioError::new(&node.place, format!("`{key}` {cause}"))),
        None => Ok(()),
    };
    if rules.heirs && !rules.read_counters() {
        needs(
            "heirs",
            "needs `critical_by = \"counter\"` or `\"both\"`: who holds nothing is known by counters only",
        )?;
    }
    if rules.read_counters() && is_prototype(table)? {
        needs("critical_by", "is \"symbols\" with mechanics `xen-prototype`")?;
    }
    if rules.read_counters()
        && table.get("rules").is_some_and(|node| node.value == NodeValue::String(PAPER.into()))
    {
        needs("critical_by", "is \"symbols\" by the paper's rules")?;
    }
    Ok(rules)
}

fn read_cfs(table: &TableReader<'_>, coordination: Coordination) -> Result<SchedulerKind, ScenarioError> {
    Ok(SchedulerKind::Cfs(CfsConfig {
        latency_ns: linux_time(table, "latency")?,
        min_granularity_ns: linux_time(table, "min_granularity")?,
        wakeup_granularity_ns: linux_time(table, "wakeup_granularity")?,
        tick_ns: linux_time(table, "tick")?,
        coordination,
    }))
}

/// What isn't said is off, and has the paper's lengths.
fn read_coordination(table: &TableReader<'_>) -> Result<Coordination, ScenarioError> {
    let schemes = [
        ("none", BalanceScheme::None),
        ("apart", BalanceScheme::Apart),
        ("load-conscious", BalanceScheme::LoadConscious),
    ];
    let usual = Coordination::NONE;
    let knob = |key: &str| Ok(table.boolean(key)?.unwrap_or(false));
    Ok(Coordination {
        balance: table.choice("balance", &schemes)?.unwrap_or(usual.balance),
        resched_dp: knob("resched_dp")?,
        tlb_co: knob("tlb_co")?,
        resched_co: read_resched_co(table)?.unwrap_or(usual.resched_co),
        early_dp: knob("early_dp")?,
        tlb_spin: knob("tlb_spin")?,
        delay_ns: optional_time(table, "delay")?.unwrap_or(usual.delay_ns),
        urgent_slice_ns: optional_time(table, "urgent_slice")?.unwrap_or(usual.urgent_slice_ns),
        urgent_allowance_ns: table
            .time("urgent_allowance", 0..=units::HOUR_NS)?
            .unwrap_or(usual.urgent_allowance_ns),
    })
}

/// `resched_co = true`, `false` or `"auto"`: of a policy, or of a VM.
pub fn read_resched_co(table: &TableReader<'_>) -> Result<Option<ReschedCo>, ScenarioError> {
    let Some(node) = table.get("resched_co") else { return Ok(None) };
    match &node.value {
        NodeValue::Boolean(on) => Ok(Some(if *on { ReschedCo::On } else { ReschedCo::Off })),
        NodeValue::String(word) if word == "auto" => Ok(Some(ReschedCo::Auto)),
        _ => Err(ScenarioError::new(&node.place, "`resched_co`: allowed: true, false, \"auto\"")),
    }
}

fn required_time(table: &TableReader<'_>, key: &str) -> Result<u64, ScenarioError> {
    optional_time(table, key)?.ok_or_else(|| table.missing(key, "a time such as \"30 ms\""))
}

fn linux_time(table: &TableReader<'_>, key: &str) -> Result<u64, ScenarioError> {
    table.time(key, LINUX_NS)?.ok_or_else(|| table.missing(key, "a time such as \"3 ms\""))
}

fn optional_time(table: &TableReader<'_>, key: &str) -> Result<Option<u64>, ScenarioError> {
    table.time(key, TIME_NS)
}

fn read_credit(table: &TableReader<'_>) -> Result<CreditConfig, ScenarioError> {
    Ok(CreditConfig {
        slice_ns: required_time(table, "slice")?,
        tick_ns: required_time(table, "tick")?,
        ratelimit_ns: table
            .time("ratelimit", 0..=units::HOUR_NS)?
            .ok_or_else(|| table.missing("ratelimit", "a time such as \"1 ms\""))?,
        boost: table.boolean("boost")?.unwrap_or(true),
        ratelimit_yields: table.boolean("ratelimit_yields")?.unwrap_or(true),
    })
}

fn read_mechanics(table: &TableReader<'_>) -> Result<Mechanics, ScenarioError> {
    const MECHANICS: [&str; 2] = ["paper", "xen-prototype"];
    let Some(node) = table.get("mechanics") else { return Ok(Mechanics::Paper) };
    match reader::string(node)? {
        "paper" => Ok(Mechanics::Paper),
        "xen-prototype" => Ok(Mechanics::XenPrototype),
        other => Err(ScenarioError::new(
            &node.place,
            format!("unknown mechanics {}; allowed: {}", quoted(other), listed(MECHANICS)),
        )),
    }
}

/// In a range that no turn suffers from.
fn read_grace(table: &TableReader<'_>) -> Result<u32, ScenarioError> {
    let grace = table.integer("grace", 0..=100)?.map(|grace| grace as u32);
    match table.get("grace") {
        Some(node) if is_prototype(table)? && grace != Some(0) => {
            let cause = "`grace` is 0 with mechanics `xen-prototype`, which has none";
            Err(ScenarioError::new(blamed(node, table.get("mechanics")), cause))
        }
        _ => Ok(grace.unwrap_or(rules_of(table)?.grace_max)),
    }
}

fn read_call_function_ipi(table: &TableReader<'_>) -> Result<bool, ScenarioError> {
    let accelerates = table.boolean("call_function_ipi")?;
    match table.get("call_function_ipi") {
        Some(node) if is_prototype(table)? && accelerates != Some(false) => {
            let cause = "`call_function_ipi` is false with mechanics `xen-prototype`";
            Err(ScenarioError::new(blamed(node, table.get("mechanics")), cause))
        }
        _ => Ok(accelerates.unwrap_or(rules_of(table)?.call_function_ipi != 0)),
    }
}

fn read_patience(table: &TableReader<'_>) -> Result<u64, ScenarioError> {
    let patience_ns = table.time("patience", 0..=units::HOUR_NS)?;
    match table.get("patience") {
        Some(node) if is_prototype(table)? && patience_ns != Some(0) => {
            let cause = "`patience` is \"0 us\" with mechanics `xen-prototype`";
            Err(ScenarioError::new(blamed(node, table.get("mechanics")), cause))
        }
        _ => Ok(patience_ns.unwrap_or(rules_of(table)?.patience_ns)),
    }
}

/// What only the real scheduler does: its normal pool chooses for any pCPU, and any of its pCPUs may run a
/// micro slice.
fn of_fair_share(table: &TableReader<'_>, key: &str) -> Result<bool, ScenarioError> {
    let can = matches!(read_normal_pool(table)?, NormalPoolKind::FairShare(_));
    let usual = can && !paper_rules::are_on(table)?;
    let does = table.boolean(key)?;
    match table.get(key) {
        Some(node) if !can && does == Some(true) => {
            let cause = format!("`{key}` is false with the normal pool `credit`");
            Err(ScenarioError::new(blamed(node, table.get("normal_pool")), cause))
        }
        _ => Ok(does.unwrap_or(usual)),
    }
}

/// What holds for what the policy leaves open.
fn rules_of(table: &TableReader<'_>) -> Result<AccelerateConfig, ScenarioError> {
    let are_the_papers = is_prototype(table)? || paper_rules::are_on(table)?;
    Ok(if are_the_papers { AccelerateConfig::PAPER } else { AccelerateConfig::DEFAULT })
}

pub(super) fn is_prototype(table: &TableReader<'_>) -> Result<bool, ScenarioError> {
    Ok(read_mechanics(table)? == Mechanics::XenPrototype)
}

fn read_pool(table: &TableReader<'_>, pcpus: usize) -> Result<PoolSize, ScenarioError> {
    let most = most_micro_pcpus(pcpus);
    match table.get("pool") {
        Some(node) if node.value == NodeValue::String("auto".to_owned()) => {
            read_algorithm(table, pcpus, required_time)
        }
        Some(node) if matches!(node.value, NodeValue::Integer(_)) => {
            let size = reader::integer(node, "pool", 0..=most).map_err(|error| match most + 1 {
                all if all == pcpus as u64 => ScenarioError {
                    cause: format!("{}: of this host's {pcpus} pCPUs one stays normal", error.cause),
                    ..error
                },
                _ => error,
            })?;
            // A static size has no use for it, but nonsense is refused there as well.
            let unused = |table: &TableReader<'_>, key: &str| Ok(optional_time(table, key)?.unwrap_or(0));
            read_algorithm(table, pcpus, unused)?;
            Ok(PoolSize::Static { pcpus: size as usize })
        }
        Some(node) => {
            Err(ScenarioError::new(&node.place, format!("`pool` is \"auto\" or a number from 0 to {most}")))
        }
        None => Err(table.missing("pool", "\"auto\", or a number of micro-sliced pCPUs")),
    }
}

/// One pCPU must stay normal: the micro pool only runs what the normal pool hands over.
fn most_micro_pcpus(pcpus: usize) -> u64 {
    (pcpus as u64 - 1).min(POOL_LIMIT_MAX as u64)
}

/// What Algorithm 1 goes by.
fn read_algorithm(
    table: &TableReader<'_>,
    pcpus: usize,
    interval: impl Fn(&TableReader<'_>, &str) -> Result<u64, ScenarioError>,
) -> Result<PoolSize, ScenarioError> {
    let most = most_micro_pcpus(pcpus);
    let usual = if paper_rules::are_on(table)? { PoolSizeConfig::PAPER } else { PoolSizeConfig::DEFAULT };
    Ok(PoolSize::Auto {
        // By default a quarter of the pCPUs, as the paper's 3 of 12, and as `microslice run` does.
        limit: table.integer("pool_limit", 0..=most)?.unwrap_or((pcpus as u64).div_ceil(4).min(most))
            as usize,
        profile_interval_ns: interval(table, "profile_interval")?,
        epoch_interval_ns: interval(table, "epoch_interval")?,
        second_looks: table
            .integer("second_looks", 0..=1_000_000)?
            .map_or(usual.second_looks, |looks| looks as u32),
        grow_when_busy_percent: table
            .parsed("grow_when_busy", units::percent)?
            .unwrap_or(usual.grow_when_busy_percent),
    })
}
