//! What peers and ours brought, as a table for people and as JSON for scripts.

use crate::demo::{Phase, Plan, Scheduler};
use crate::demo_report::phase_json;
use crate::peers::{Boot, Measured, Row, VERSION};
use crate::relative::Figure;
use microslice_metrics::Estimate;
use microslice_metrics::table::Table;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::rc::Rc;

const GUESTS: [&str; 2] = ["mix", "hog"];

/// A guest, a figure of it, and what it is called.
pub type Column = (&'static str, Figure, &'static str);

const COLUMNS: [Column; 8] = [
    ("mix", Figure::Cpus, ">mix CPUs"),
    ("hog", Figure::Cpus, ">hog CPUs"),
    ("mix", Figure::WorkPerCpuSecond, ">mix work"),
    ("hog", Figure::WorkPerCpuSecond, ">hog work"),
    ("mix", Figure::ShootdownP50, ">shootdown p50"),
    ("mix", Figure::ShootdownP99, ">p99"),
    ("mix", Figure::WakeP50, ">wake-up p50"),
    ("mix", Figure::WakeP99, ">p99"),
];

/// `{"boots": [[{"alone": PHASE, "phase": PHASE} | {"name", "failed"}]], "over_alone": [{"name", "vms"}]}`.
pub fn to_json(plan: &Plan, boots: &[Boot]) -> Value {
    let row = |row: &Row| match &row.outcome {
        Ok(Measured { phase, alone }) => json!({ "alone": phase_json(alone), "phase": phase_json(phase) }),
        Err(cause) => json!({ "name": row.scheduler.name(), "failed": cause }),
    };
    let boots_json: Vec<Vec<Value>> = boots.iter().map(|boot| boot.rows.iter().map(row).collect()).collect();
    let over = over_alone_json(&plan.schedulers, boots);
    json!({ "peers_version": VERSION, "dilation": plan.dilation, "boots": boots_json, "over_alone": over })
}

/// `[{"name", "vms": [{"name", FIGURE: {"mean", "ci95", "runs"}}], "failed"}]`, an object per scheduler.
pub fn over_alone_json(schedulers: &[Scheduler], boots: &[Boot]) -> Vec<Value> {
    schedulers.iter().map(|&scheduler| over_alone(boots, scheduler)).collect()
}

/// Of one scheduler, each figure's geometric mean over boots, with its interval.
fn over_alone(boots: &[Boot], scheduler: Scheduler) -> Value {
    let vm = |name: &str| {
        let figures = Figure::ALL.iter().map(|&figure| {
            let ratio = Estimate::of_ratios(&ratios(boots, scheduler, name, figure));
            let ratio =
                ratio.map(|of| json!({ "mean": of.mean, "ci95": [of.low, of.high], "runs": of.count }));
            (figure.key().to_owned(), ratio.unwrap_or(Value::Null))
        });
        let mut object: serde_json::Map<String, Value> = figures.collect();
        object.insert("name".into(), json!(name));
        Value::Object(object)
    };
    json!({ "name": scheduler.name(), "vms": GUESTS.map(vm), "failed": failures(boots, scheduler) })
}

fn measured(boots: &[Boot], scheduler: Scheduler) -> impl Iterator<Item = &Measured> {
    let rows = boots.iter().flat_map(|boot| &boot.rows).filter(move |row| row.scheduler == scheduler);
    rows.filter_map(|row| row.outcome.as_ref().ok())
}

fn ratios(boots: &[Boot], scheduler: Scheduler, name: &str, figure: Figure) -> Vec<f64> {
    measured(boots, scheduler).filter_map(|of| figure.over_alone(&of.phase, &of.alone, name)).collect()
}

fn values(boots: &[Boot], scheduler: Scheduler, name: &str, figure: Figure) -> Vec<f64> {
    measured(boots, scheduler).filter_map(|of| figure.of(&of.phase, name)).collect()
}

/// A cell: CPUs as they are, all else over what the guest has alone.
pub fn shown(boots: &[Boot], scheduler: Scheduler, name: &str, figure: Figure) -> Option<Estimate> {
    match figure {
        Figure::Cpus => Estimate::of(&values(boots, scheduler, name, figure)),
        _ => Estimate::of_ratios(&ratios(boots, scheduler, name, figure)),
    }
}

/// Why a scheduler brought nothing, and in how many boots.
pub fn failures(boots: &[Boot], scheduler: Scheduler) -> BTreeMap<String, usize> {
    let mut causes = BTreeMap::new();
    for row in boots.iter().flat_map(|boot| &boot.rows).filter(|row| row.scheduler == scheduler) {
        if let Err(cause) = &row.outcome {
            *causes.entry(cause.clone()).or_default() += 1;
        }
    }
    causes
}

/// A row per scheduler, below what the guests have alone; then why rows are empty, and how to read it.
pub fn to_text(plan: &Plan, boots: &[Boot], guests: &str) -> String {
    let mut text = format!("{}\n", table(&COLUMNS, &plan.schedulers, boots));
    for &scheduler in &plan.schedulers {
        for (cause, count) in failures(boots, scheduler) {
            text += &format!("{}, {count} of {} boots: {cause}\n", scheduler.name(), boots.len());
        }
    }
    text + &reading(plan, boots.len(), guests)
}

/// A row per scheduler, below what the guests have alone. In how many boots, if there is more than one.
pub fn table(columns: &[Column], schedulers: &[Scheduler], boots: &[Boot]) -> Table {
    let counted = (boots.len() != 1).then_some(">boots");
    let headings = columns.iter().map(|(_, _, heading)| *heading);
    let headings: Vec<&str> = ["scheduler"].into_iter().chain(headings).chain(counted).collect();
    let mut table = Table::new(&headings);
    let mut row = |name: String, cells: Vec<String>, count: usize| {
        let count = counted.map(|_| count.to_string());
        table.row([name].into_iter().chain(cells).chain(count));
    };
    let hosts = hosts(boots);
    row("alone".into(), alone_cells(columns, &hosts), hosts.len());
    for &scheduler in schedulers {
        let cells = columns.iter().map(|&(name, figure, _)| {
            let unit = if figure == Figure::Cpus { "" } else { "x" };
            cell(shown(boots, scheduler, name, figure), unit)
        });
        row(scheduler.name(), cells.collect(), measured(boots, scheduler).count());
    }
    table
}

/// What the guests of each host had alone.
fn hosts(boots: &[Boot]) -> Vec<&Rc<Phase>> {
    let rows = boots.iter().flat_map(|boot| &boot.rows);
    let mut hosts: Vec<&Rc<Phase>> = rows.filter_map(|row| Some(&row.outcome.as_ref().ok()?.alone)).collect();
    // A host's rows share what its guests had alone.
    hosts.sort_by_key(|alone| Rc::as_ptr(alone));
    hosts.dedup_by_key(|alone| Rc::as_ptr(alone));
    hosts
}

/// Every phase that was measured: what guests have alone, then their schedulers'.
pub fn phases(boots: &[Boot]) -> Vec<Phase> {
    let rows = boots.iter().flat_map(|boot| &boot.rows).filter_map(|row| row.outcome.as_ref().ok());
    let under_schedulers = rows.map(|of| of.phase.clone());
    hosts(boots).into_iter().map(|alone| Phase::clone(alone)).chain(under_schedulers).collect()
}

/// In units, as the mean over hosts: CPUs, work per CPU second, milliseconds.
fn alone_cells(columns: &[Column], hosts: &[&Rc<Phase>]) -> Vec<String> {
    let cells = columns.iter().map(|&(name, figure, _)| {
        let values: Vec<f64> = hosts.iter().filter_map(|alone| figure.of(alone, name)).collect();
        let mean = Estimate::of(&values).map(|of| of.mean);
        match figure {
            Figure::Cpus => mean.map_or("-".into(), |cpus| format!("{cpus:.2}")),
            Figure::WorkPerCpuSecond => mean.map_or("-".into(), |work| format!("{work:.0} /s")),
            _ => mean.map_or("-".into(), |us| format!("{} ms", significant(us / 1000.0))),
        }
    });
    cells.collect()
}

/// A mean and, of several boots, its interval.
fn cell(of: Option<Estimate>, unit: &str) -> String {
    let Some(of) = of else { return "-".into() };
    let mean = significant(of.mean);
    match of.count {
        1 => format!("{mean}{unit}"),
        _ => format!("{mean}{unit} ({}..{})", significant(of.low), significant(of.high)),
    }
}

/// Two digits behind the point, fewer of what is large.
pub fn significant(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn reading(plan: &Plan, boots: usize, guests: &str) -> String {
    let intervals = match boots {
        1 => String::new(),
        _ => format!(" In parentheses: 95 % intervals over {boots} boots."),
    };
    format!(
        "\nGuests: mix (kernel-heavy) and hog, four vCPUs each on four pCPUs, {guests}. Row `alone`: each guest by itself, in units.\n\
         CPUs: what a guest had of four. All other columns: times what the same guest has alone in that boot.{intervals}\n\
         work: units per CPU second, more is better. Shootdowns and wake-ups as mix measures them, less is better.\n\
         Peers are {VERSION}. All slices, ours, theirs and the kernel's own, are {} times as long as on hardware.\n\
         Each guest has a cgroup of its own. Peers that look at no cgroups share by thread, which comes to the same here.\n\
         The emulator shows no caches, no frequencies, no SMT and no sockets: what a peer gains by these isn't seen.\n",
        plan.dilation
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::Peer;
    use crate::relative::tests::phase;

    fn plan() -> Plan {
        let schedulers = vec![Scheduler::Kernel, Scheduler::Peer(Peer::Flash), Scheduler::Auto];
        Plan { dilation: 10, schedulers, ..crate::demo_report::tests::plan(10) }
    }

    fn boot(mix_work: u64) -> Boot {
        let alone = Rc::new(phase(Scheduler::Alone, (2.0, 200), (4.0, 400)));
        let row = |scheduler, work| {
            let phase = phase(scheduler, (2.0, work), (2.0, 200));
            Row { scheduler, outcome: Ok(Measured { phase, alone: Rc::clone(&alone) }) }
        };
        let failed = Row { scheduler: Scheduler::Peer(Peer::Flash), outcome: Err("it doesn't load".into()) };
        Boot { rows: vec![row(Scheduler::Kernel, mix_work), failed, row(Scheduler::Auto, 200)] }
    }

    #[test]
    fn a_peer_that_fails_is_a_row_that_says_why() {
        let text = to_text(&plan(), &[boot(100), boot(100)], "PV off");
        assert!(text.contains("scx_flash, 2 of 2 boots: it doesn't load"), "{text}");
        let row = text.lines().find(|line| line.starts_with("scx_flash ")).expect("a row");
        assert_eq!(
            row.split_whitespace().collect::<Vec<_>>(),
            ["scx_flash", "-", "-", "-", "-", "-", "-", "-", "-", "0"]
        );
        let json = to_json(&plan(), &[boot(100)]);
        assert_eq!(json["boots"][0][1]["failed"], "it doesn't load");
        assert_eq!(json["over_alone"][1]["failed"]["it doesn't load"], 1);
    }

    #[test]
    fn figures_are_over_what_the_guest_has_alone_in_the_same_boot() {
        let json = to_json(&plan(), &[boot(50), boot(200)]);
        let work = &json["over_alone"][0]["vms"][0]["work_per_cpu_second"];
        // A quarter and the whole: their geometric mean is a half.
        assert!((work["mean"].as_f64().expect("a mean") - 0.5).abs() < 1e-9, "{work}");
        assert_eq!(work["runs"], 2);
        let text = to_text(&plan(), &[boot(100)], "PV off");
        let row = text.lines().find(|line| line.starts_with("kernel's own")).expect("a row");
        assert!(row.contains("0.50x"), "{row}");
    }

    #[test]
    fn one_boot_needs_no_column_that_counts_boots() {
        let row = |boots: &[Boot]| {
            let table = table(&COLUMNS[..2], &plan().schedulers, boots);
            table.to_string().lines().next().map(str::to_owned)
        };
        assert_eq!(row(&[boot(100)]).as_deref(), Some("scheduler     mix CPUs  hog CPUs"));
        assert!(row(&[boot(100), boot(100)]).is_some_and(|head| head.ends_with("boots")));
    }

    #[test]
    fn every_phase_is_there_once_those_of_guests_alone_too() {
        let names: Vec<String> = phases(&[boot(100)]).iter().map(|phase| phase.scheduler.name()).collect();
        assert_eq!(names, ["alone", "kernel's own", "auto"]);
    }
}
