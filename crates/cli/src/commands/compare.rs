//! `microslice compare`: policies side by side, with confidence intervals over seeds.

use super::simulate::{failure_of, parse_setting};
use crate::failure::Failure;
use crate::output::{self, OutputFile};
use crate::progress::{self, ProgressLine};
use clap::Args;
use microslice_experiments::comparison::{Comparison, ComparisonError, Row};
use microslice_experiments::scenario::Overrides;
use microslice_metrics::html::Page;
use microslice_metrics::plot::{Bar, BarChart, BarSeries};
use microslice_metrics::table::Table;
use microslice_metrics::{Estimate, Unit};
use serde_json::{Value as Json, json};
use std::path::PathBuf;

/// More seeds than this add no precision that a reader needs.
const SEEDS_MAX: u64 = 1_000;

/// Compare policies on one scenario, over several seeds
#[derive(Args)]
#[command(after_help = "Examples:
  microslice compare gmake-swaptions --policies credit,micro:1,micro,eevdf
  microslice compare dedup-swaptions --policies credit,micro:1,micro:2,micro:3,micro:4 --seeds 10 --html dedup.html
  microslice compare ./mine.toml --policies credit-1ms,micro --set duration='5 s' --json
  microslice compare exim-swaptions --policies 'microslice,microslice+lend=false,microslice+slice=30 ms' --relative

Each cell is the mean over the seeds with the half width of its 95 % confidence interval (Student's t). With --relative all
columns but the first are relative to it, seed by seed. Runs use all cores; the output doesn't depend on how many there are.")]
pub struct Compare {
    /// Built-in scenario, or a file
    scenario: String,

    /// Policies, with commas between (see `microslice simulate --list`); +KEY=VALUE behind one changes its
    /// parameters
    #[arg(long, value_name = "A,B,C", value_delimiter = ',', required = true)]
    policies: Vec<String>,

    /// How many seeds
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=SEEDS_MAX))]
    seeds: u64,

    /// First seed (default: the scenario's)
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Change a value of the scenario, such as vm.target.vcpus=8; repeatable
    #[arg(long = "set", value_name = "PATH=VALUE", value_parser = parse_setting)]
    settings: Vec<(String, String)>,

    /// Show how many times the first policy's figure each other one has
    #[arg(long)]
    relative: bool,

    /// Show every figure, not only the main ones
    #[arg(long)]
    all: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Write a self-contained page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Verify the model's invariants while it runs (slower)
    #[arg(long)]
    check: bool,
}

pub fn run(args: Compare) -> Result<(), Failure> {
    let overrides = Overrides { policy: None, seed: args.seed, settings: args.settings };
    let policies: Vec<String> = args.policies.iter().map(|policy| policy.trim().to_owned()).collect();
    let comparison = {
        let _line = ProgressLine::show(format!("reading {}", args.scenario), || None);
        Comparison::load(&args.scenario, &policies, args.seeds, &overrides, args.check)
            .map_err(Failure::bad_input)?
    };
    let progress = progress::stoppable()?;
    let html = OutputFile::wanted(args.html.as_deref(), &comparison.files)?;
    let rows = {
        let _line = ProgressLine::of_batch(format!("comparing on {}", args.scenario), progress.clone());
        comparison.run(&progress).map_err(|error| match &error {
            ComparisonError::Run { policy, seed, error, scenario } => {
                failure_of(&format!("{scenario} under {policy}, seed {seed}"), error)
            }
            ComparisonError::Scenario(_) => Failure::bad_input(error),
        })?
    };
    let shown: Vec<&Row> = rows.iter().filter(|row| is_shown(row, args.all, args.relative)).collect();
    let table = table_of(&comparison, &shown, args.relative);
    if let Some(file) = html {
        file.finish_with(&page(&comparison, &rows, &table))?;
    }
    if args.json {
        return output::print_json(&json_of(&comparison, &rows));
    }
    let seeds = comparison.seeds.len();
    let first = comparison.seeds.first().copied().unwrap_or(0);
    let relative = if args.relative { ", relative to the first policy's" } else { "" };
    output::print(&format!(
        "{}\n{seeds} seeds from {first}; mean ± half of the 95 % confidence interval{relative}\n\n{table}",
        comparison.description,
    ))
}

/// A column per policy; if `relative`, all but the first have ratios.
fn table_of(comparison: &Comparison, rows: &[&Row], relative: bool) -> Table {
    let policies = comparison.policies.iter().map(|policy| format!(">{policy}"));
    let columns: Vec<String> = ["figure".to_owned(), "of".to_owned()].into_iter().chain(policies).collect();
    let mut table = Table::new(&columns.iter().map(String::as_str).collect::<Vec<_>>());
    for row in rows {
        let cells = cells_of(row, relative, comparison.seeds.len());
        table.row([row.figure.id.to_owned(), row.labels.join(" ")].into_iter().chain(cells));
    }
    table
}

/// One per policy; if `relative`, all but the first are ratios.
pub fn cells_of(row: &Row, relative: bool, seeds: usize) -> impl Iterator<Item = String> {
    row.estimates.iter().zip(&row.ratios).enumerate().map(move |(column, (estimate, ratio))| {
        let cell = match relative && column > 0 {
            true => ratio.map(|ratio| (ratio_cell(&ratio), ratio.count)),
            false => estimate.map(|estimate| (cell(row.figure.unit, &estimate), estimate.count)),
        };
        cell.map_or("-".to_owned(), |(cell, count)| with_runs(cell, count, seeds))
    })
}

/// Whether a table shows a row.
pub fn is_shown(row: &Row, all: bool, relative: bool) -> bool {
    (all || row.is_main()) && (!relative || row.ratios.iter().skip(1).any(Option::is_some))
}

/// Of how many runs it is, if not of all: a VM without progress has no execution time, for one.
fn with_runs(cell: String, count: usize, seeds: usize) -> String {
    if count < seeds { format!("{cell} ({count} of {seeds})") } else { cell }
}

fn cell(unit: Unit, estimate: &Estimate) -> String {
    if estimate.count < 2 {
        return unit.show(estimate.mean);
    }
    format!("{} ± {}", unit.show(estimate.mean), unit.show(estimate.half_width()))
}

fn ratio_cell(ratio: &Estimate) -> String {
    if ratio.count < 2 {
        return format!("{:.3}", ratio.mean);
    }
    format!("{:.3} ± {:.3}", ratio.mean, ratio.half_width())
}

fn json_of(comparison: &Comparison, rows: &[Row]) -> Json {
    let policies: Vec<&str> = comparison.policies.iter().map(String::as_str).collect();
    let figures = figures_json(&policies, rows);
    json!({ "scenario": comparison.scenario, "seeds": comparison.seeds, "figures": figures })
}

/// An object per row.
pub fn figures_json(policies: &[&str], rows: &[Row]) -> Vec<Json> {
    let by_policy = |estimates: &[Option<Estimate>]| -> serde_json::Map<String, Json> {
        let estimates = estimates.iter().map(|estimate| json!(estimate.map(output::estimate)));
        policies.iter().map(|&policy| policy.to_owned()).zip(estimates).collect()
    };
    let figure = |row: &Row| {
        let labels: serde_json::Map<String, Json> =
            row.figure.labels.iter().zip(&row.labels).map(|(k, v)| ((*k).to_owned(), json!(v))).collect();
        json!({
            "figure": row.figure.id,
            "unit": row.figure.unit.symbol(),
            "labels": labels,
            "policies": by_policy(&row.estimates),
            "relative_to_first": by_policy(&row.ratios),
        })
    };
    rows.iter().map(figure).collect()
}

fn page(comparison: &Comparison, rows: &[Row], table: &Table) -> String {
    let mut page = Page::new(&format!("Policies on {}", comparison.scenario));
    page.paragraph(&comparison.description);
    page.paragraph(&format!(
        "Means over {} seeds; error bars and ± are 95 % confidence intervals (Student's t).",
        comparison.seeds.len()
    ));
    let plotted = rows.iter().filter(|row| {
        matches!(row.figure.id, "execution_time" | "bandwidth" | "jitter" | "shootdown_wait" | "lock_wait")
    });
    page.plots(&plotted.map(|row| chart(comparison, row).to_svg()).collect::<Vec<_>>());
    page.table(table);
    page.render()
}

fn chart(comparison: &Comparison, row: &Row) -> BarChart {
    let (scale, symbol) = match row.figure.unit {
        Unit::Nanoseconds => (1e-6, "ms"),
        Unit::BitsPerSecond => (1e-6, "Mbit/s"),
        unit => (1.0, unit.symbol()),
    };
    let bar = |e: &Estimate| Bar {
        value: e.mean * scale,
        interval: (e.count > 1).then_some((e.low * scale, e.high * scale)),
        published: None,
    };
    BarChart {
        title: format!("{} {}", row.figure.id, row.labels.join(" ")),
        y_label: symbol.to_owned(),
        categories: comparison.policies.clone(),
        series: vec![BarSeries {
            name: row.labels.join(" "),
            bars: row.estimates.iter().map(|estimate| estimate.as_ref().map(bar)).collect(),
        }],
        ..BarChart::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_of_some_runs_says_of_how_many() {
        assert_eq!(with_runs("2 s".to_owned(), 3, 5), "2 s (3 of 5)");
        assert_eq!(with_runs("2 s".to_owned(), 5, 5), "2 s");
    }
}
