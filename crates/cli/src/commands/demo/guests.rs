//! The demo's second part: real guests in one boot, first each alone, then both under one scheduler after
//! the other.

use super::reading::{Reading, Role};
use super::screen::Block;
use microslice_metrics::plot::{Bar, BarChart, BarSeries};
use microslice_testbed::demo::{Plan, Scheduler};
use microslice_testbed::peers::{self, Boot, Column};
use microslice_testbed::relative::Figure;
use microslice_testbed::{Pv, demo_report};
use serde_json::{Value, json};

/// What the demo compares, in order.
const SCHEDULERS: [(Role, Scheduler); 3] = [
    (Role::First, Scheduler::Kernel),
    (Role::PoolOff, Scheduler::Static(0)),
    (Role::Ours, Scheduler::Static(1)),
];
/// The same phase's work differs by up to a third within minutes (docs/explanation/testbed.md).
const EQUAL_WITHIN: f64 = 1.33;
/// Causes of accelerations by name; the rest is summed up.
const CAUSES_SHOWN: usize = 3;
/// Characters of why a scheduler brought nothing. The rest is in JSON.
const FAILURE_LENGTH: usize = 60;

const COLUMNS: [Column; 7] = [
    ("mix", Figure::Cpus, ">mix CPUs"),
    ("hog", Figure::Cpus, ">hog"),
    ("mix", Figure::WorkPerCpuSecond, ">mix work"),
    ("hog", Figure::WorkPerCpuSecond, ">hog"),
    ("mix", Figure::ShootdownP50, ">TLB p50"),
    ("mix", Figure::ShootdownP99, ">p99"),
    ("mix", Figure::WakeP99, ">wake p99"),
];

/// The schedulers of the demo's boot.
pub fn schedulers() -> Vec<Scheduler> {
    SCHEDULERS.map(|(_, scheduler)| scheduler).into()
}

/// The screen's second block.
pub fn block(plan: &Plan, boots: &[Boot], is_emulated: bool) -> Block {
    let charts = [(false, "Work per CPU second"), (true, "Waits")];
    Block {
        heading: "REAL GUESTS".into(),
        about: about(plan, is_emulated),
        table: peers::table(&COLUMNS, &plan.schedulers, boots),
        notes: accelerations(boots).into_iter().chain(failures(boots)).collect(),
        reading: reading(boots),
        charts: charts.map(|(of_waits, title)| chart(plan, boots, of_waits, title)).into(),
    }
}

fn about(plan: &Plan, is_emulated: bool) -> String {
    let host = match is_emulated {
        true => format!("an emulated host (slices {} times as long)", plan.dilation),
        false => "this host".to_owned(),
    };
    let helpers = match plan.rounds.first().map(|round| round.pv) {
        Some(Pv::On) => "with",
        _ => "without",
    };
    format!(
        "mix (kernel-heavy) and hog (computes), {helpers} PV helpers, on {host}. Row alone: each by itself, in \
         units. Below: CPUs as they are, all else times that. work: per CPU second. TLB: shootdowns of mix."
    )
}

fn value(boots: &[Boot], role: Role, vm: &str, figure: Figure) -> Option<f64> {
    let (_, scheduler) = SCHEDULERS.into_iter().find(|(of, _)| *of == role)?;
    peers::shown(boots, scheduler, vm, figure).map(|of| of.mean)
}

fn reading(boots: &[Boot]) -> Vec<String> {
    let value = |role: Role, vm: &str, figure: Figure| value(boots, role, vm, figure);
    let (heavy, hog) = (("mix", "mix"), ("hog", "hog"));
    Reading { value: &value, heavy, hog, first: "the kernel's own", equal_within: EQUAL_WITHIN }.sentences()
}

/// Of ours, by cause, the most frequent first; nothing if it wasn't measured.
fn accelerations(boots: &[Boot]) -> Option<String> {
    let (_, ours) = SCHEDULERS.into_iter().find(|(role, _)| *role == Role::Ours)?;
    let phases = peers::phases(boots);
    let statistics = phases.iter().find(|phase| phase.scheduler == ours)?.statistics.as_ref()?;
    let by_cause = statistics.pointer("/accelerations/by_cause")?.as_object()?;
    let mut counts: Vec<(&str, u64)> =
        by_cause.iter().filter_map(|(cause, count)| Some((cause.as_str(), count.as_u64()?))).collect();
    counts.retain(|(_, count)| *count > 0);
    counts.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    let total: u64 = counts.iter().map(|(_, count)| count).sum();
    let others: u64 = counts.iter().skip(CAUSES_SHOWN).map(|(_, count)| count).sum();
    let named = counts.iter().take(CAUSES_SHOWN).map(|(cause, count)| format!("{cause} {count}"));
    let others = (others > 0).then(|| format!("others {others}"));
    let all: Vec<String> = named.chain(others).collect();
    let by_cause = if all.is_empty() { String::new() } else { format!(": {}", all.join(", ")) };
    Some(format!("{} accelerated {total} times{by_cause}.", ours.name()))
}

/// Why a row is empty.
fn failures(boots: &[Boot]) -> impl Iterator<Item = String> + '_ {
    SCHEDULERS.into_iter().flat_map(move |(_, scheduler)| {
        let causes = peers::failures(boots, scheduler).into_keys();
        causes.map(move |cause| {
            let short: String = cause.chars().take(FAILURE_LENGTH).collect();
            let more = if short.len() < cause.len() { "…" } else { "" };
            format!("{}: {short}{more}", scheduler.name())
        })
    })
}

/// Bars of what is over alone, a colour for each scheduler.
fn chart(plan: &Plan, boots: &[Boot], of_waits: bool, title: &str) -> BarChart {
    let columns: Vec<&Column> = COLUMNS
        .iter()
        .filter(|(_, figure, _)| *figure != Figure::Cpus && (*figure != Figure::WorkPerCpuSecond) == of_waits)
        .collect();
    let bars = |scheduler: Scheduler| {
        let bar = |(vm, figure, _): &&Column| {
            let value = peers::shown(boots, scheduler, vm, *figure)?.mean;
            Some(Bar { value, ..Bar::default() })
        };
        BarSeries { name: scheduler.name(), bars: columns.iter().map(bar).collect() }
    };
    let category = |(vm, figure, _): &&Column| match figure {
        Figure::ShootdownP50 => "shootdown p50".to_owned(),
        Figure::ShootdownP99 => "shootdown p99".to_owned(),
        Figure::WakeP99 => "wake-up p99".to_owned(),
        _ => (*vm).to_owned(),
    };
    BarChart {
        title: format!("{title}, over what the guest has alone"),
        y_label: "times".into(),
        categories: columns.iter().map(category).collect(),
        series: plan.schedulers.iter().map(|&scheduler| bars(scheduler)).collect(),
        reference: Some(1.0),
        logarithmic: of_waits,
        ..BarChart::default()
    }
}

/// `{"phases", "over_alone", "dilation", "failed": {SCHEDULER: CAUSE}}`; the guests alone are phases, too.
pub fn to_json(plan: &Plan, boots: &[Boot]) -> Value {
    let failed: serde_json::Map<String, Value> = SCHEDULERS
        .into_iter()
        .flat_map(|(_, scheduler)| {
            let causes = peers::failures(boots, scheduler).into_keys();
            causes.map(move |cause| (scheduler.name(), json!(cause)))
        })
        .collect();
    let mut all = demo_report::to_json(&peers::phases(boots));
    all["dilation"] = json!(plan.dilation);
    all["over_alone"] = json!(peers::over_alone_json(&plan.schedulers, boots));
    all["failed"] = json!(failed);
    all
}
