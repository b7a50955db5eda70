//! What a sweep's results are to people, and to scripts.

use crate::commands::compare::{cells_of, figures_json, is_shown};
use crate::failure::Failure;
use crate::output;
use microslice_experiments::comparison::Row;
use microslice_experiments::sweep::{FailedRun, Group, Sweep};
use microslice_metrics::figures;
use microslice_metrics::table::Table;
use serde_json::{Value as Json, json};
use std::collections::HashMap;

pub struct Options {
    pub relative: bool,
    pub all: bool,
    pub json: bool,
}

/// Prints the results; then runs that have none are the command's failure.
pub fn show(sweep: &Sweep, groups: &[Group], failed: &[FailedRun], options: &Options) -> Result<(), Failure> {
    if options.json {
        output::print_json(&json_of(sweep, groups, failed))?;
    } else {
        output::print(&text_of(sweep, groups, options))?;
    }
    let Some(first) = failed.first() else { return Ok(()) };
    let run = sweep.name(first.run);
    let said = format!(
        "{} of {} runs failed, the first is run {} ({}, {}, {}, seed {}): {}",
        failed.len(),
        sweep.runs(),
        run.number,
        run.scenario,
        run.setting,
        run.policy,
        run.seed,
        first.cause
    );
    // As everywhere: a workload that can't go on is bad input, a broken invariant isn't.
    if failed.iter().any(|run| ["check", "panic"].contains(&run.kind.as_str())) {
        Err(Failure::broken(said))
    } else {
        Err(Failure::bad_input(said))
    }
}

fn text_of(sweep: &Sweep, groups: &[Group], options: &Options) -> String {
    let seeds = sweep.seeds();
    let description = sweep.description();
    let mut text =
        if description.is_empty() { String::new() } else { format!("{}\n", description.trim_end()) };
    text += &format!(
        "{} runs, {} seeds from {}; mean ± half of the 95 % confidence interval{}\n",
        sweep.runs(),
        seeds.len(),
        seeds[0],
        if options.relative { ", relative to the first policy's" } else { "" },
    );
    // A scenario's groups follow one another.
    for of_scenario in groups.chunk_by(|one, next| one.scenario == next.scenario) {
        text += &format!("\n{}\n{}", of_scenario[0].scenario, table_of(sweep, of_scenario, options));
    }
    text
}

/// A column per policy. A figure's rows, one per setting, are beside each other.
fn table_of(sweep: &Sweep, groups: &[Group], options: &Options) -> Table {
    let has_settings = groups.len() > 1;
    let policies = sweep.policies();
    let policies = policies.iter().map(|policy| format!(">{policy}"));
    let names = ["figure", "of", "setting"].into_iter().take(if has_settings { 3 } else { 2 });
    let columns: Vec<String> = names.map(str::to_owned).chain(policies).collect();
    let mut table = Table::new(&columns.iter().map(String::as_str).collect::<Vec<_>>());
    for rows in rows_together(groups) {
        for (group, row) in rows.into_iter().filter(|(_, row)| is_shown(row, options.all, options.relative)) {
            let mut cells = vec![row.figure.id.to_owned(), row.labels.join(" ")];
            cells.extend(has_settings.then(|| group.setting.clone()));
            cells.extend(cells_of(row, options.relative, sweep.seeds().len()));
            table.row(cells);
        }
    }
    table
}

/// The groups' rows, those of one figure and the same labels together.
fn rows_together(groups: &[Group]) -> Vec<Vec<(&Group, &Row)>> {
    let mut places = HashMap::new();
    let mut together: Vec<Vec<(&Group, &Row)>> = Vec::new();
    for group in groups {
        for row in &group.rows {
            let place = *places.entry((row.figure.id, &row.labels)).or_insert(together.len());
            if place == together.len() {
                together.push(Vec::new());
            }
            together[place].push((group, row));
        }
    }
    let order = |row: &Row| figures::ALL.iter().position(|figure| figure.id == row.figure.id);
    together.sort_by_key(|rows| order(rows[0].1));
    together
}

fn json_of(sweep: &Sweep, groups: &[Group], failed: &[FailedRun]) -> Json {
    let policies = sweep.policies();
    let group = |group: &Group| {
        json!({
            "scenario": group.scenario,
            "setting": group.setting,
            "figures": figures_json(&policies, &group.rows),
        })
    };
    let failure = |failed: &FailedRun| {
        let run = sweep.name(failed.run);
        json!({
            "run": run.number,
            "scenario": run.scenario,
            "setting": run.setting,
            "policy": run.policy,
            "seed": run.seed,
            "failed": failed.kind,
            "cause": failed.cause,
        })
    };
    json!({
        "runs": sweep.runs(),
        "policies": policies,
        "seeds": sweep.seeds(),
        "groups": groups.iter().map(group).collect::<Vec<_>>(),
        "failed": failed.iter().map(failure).collect::<Vec<_>>(),
    })
}
