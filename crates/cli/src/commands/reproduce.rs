//! `microslice reproduce`: a paper's evaluation, run again.

use super::simulate::failure_of;
use crate::failure::Failure;
use crate::output::{self, OutputFile};
use crate::progress::{self, ProgressLine};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use microslice_studies::reproduction::{
    FigureResult, Reproduction, ReproductionError, STUDIES, Sensitivity, Study, groups, ids, page, reproduce,
    shape_table, table,
};
use serde_json::{Value as Json, json};
use std::path::PathBuf;
use std::time::Instant;

const SEEDS_MAX: u64 = 1_000;

/// Re-run a paper's evaluation in the simulator: its numbers next to ours
#[derive(Args)]
#[command(after_help = "Examples:
  microslice reproduce eurosys18
  microslice reproduce asplos13
  microslice reproduce vm04 --only figure9
  microslice reproduce apsys15 --html apsys15.html
  microslice reproduce li2026
  microslice reproduce kvm
  microslice reproduce eurosys18 --only table4b --seeds 10
  microslice reproduce eurosys18 --html eurosys18.html
  microslice reproduce eurosys18 --json | jq '.figures[] | select(.id == \"table4b.dedup.corun.avg\")'
  microslice reproduce eurosys18 --sensitivity               which parameter moves which figure by how much

\"calibrated\" figures are what the model was fitted to (runs of one VM alone, published parameters). To \"predicted\" ones (two
VMs together) nothing was fitted, but programs and mechanics of the model were chosen with some of them in view: which ones,
and where the model misses, is listed in docs/explanation/reproduction.md (What was fitted, and to what; Where it hits and where it misses), and for
the others in docs/explanation/asplos13.md, docs/explanation/vm04.md and docs/explanation/apsys15.md.")]
pub struct Reproduce {
    /// Which paper
    #[arg(value_name = "PAPER", value_parser = parse_study())]
    study: &'static dyn Study,

    /// Only one table, figure or section (table2, table4a, figure4, section3, abstract, …), or some of its
    /// numbers (table4b.dedup)
    #[arg(long, value_name = "ID")]
    only: Option<String>,

    /// How many seeds
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=SEEDS_MAX))]
    seeds: u64,

    /// First seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Write a self-contained page with the paper's plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Vary each parameter of the model by 20 % instead, and show how the figures move
    #[arg(long, conflicts_with_all = ["only", "html"])]
    sensitivity: bool,
}

/// Reads the name of a study: one of those that are there.
fn parse_study() -> impl TypedValueParser<Value = &'static dyn Study> {
    let names = STUDIES.map(|study| PossibleValue::new(study.name()).help(study.paper()));
    PossibleValuesParser::new(names).map(|name| {
        let study = STUDIES.into_iter().find(|study| study.name() == name);
        study.expect("it is one of the possible values")
    })
}

pub fn run(args: Reproduce) -> Result<(), Failure> {
    let study = args.study;
    let only = args.only.as_deref().map(str::to_lowercase);
    let group = only.as_deref().map(|only| group(study, only)).transpose()?;
    let seeds = seeds_from(args.seed, args.seeds)?;
    let progress = progress::stoppable()?;
    let html = OutputFile::wanted(args.html.as_deref(), &[])?;
    if args.sensitivity && !study.has_sensitivity() {
        return Err(Failure::bad_input("--sensitivity: its figures are of eurosys18 only"));
    }
    if args.sensitivity {
        return run_sensitivity(&seeds, &progress, args.json);
    }
    let begun = Instant::now();
    let mut reproduction = {
        let _line = ProgressLine::of_batch(format!("reproducing {}", study.title()), progress.clone());
        reproduce(study, group.as_deref(), &seeds, &progress).map_err(failure)?
    };
    reproduction.figures.retain(|figure| only.as_deref().is_none_or(|only| is_within(&figure.id, only)));
    let elapsed_s = begun.elapsed().as_secs_f64();
    if let Some(file) = html {
        file.finish_with(&page(&reproduction))?;
    }
    if args.json {
        return output::print_json(&json_of(&reproduction, args.seed, elapsed_s));
    }
    output::print(&text_of(&reproduction, elapsed_s))
}

/// Seeds that count up from the first one.
fn seeds_from(first: u64, count: u64) -> Result<Vec<u64>, Failure> {
    let end = first.checked_add(count);
    let end = end.ok_or_else(|| {
        Failure::bad_input(format!("--seed {first}: there aren't {count} seeds from there"))
    })?;
    Ok((first..end).collect())
}

/// The group that contains `only`: `table4b` of `table4b.dedup`.
fn group(study: &dyn Study, only: &str) -> Result<String, Failure> {
    let (groups, ids) = (groups(study), ids(study));
    let wanted = only.split('.').next().unwrap_or(only);
    let Some(group) = groups.iter().find(|group| **group == wanted) else {
        return Err(Failure::bad_input(format!(
            "--only {only}: unknown table or figure; allowed: {}",
            groups.join(", ")
        )));
    };
    if only != group && !ids.iter().any(|id| is_within(id, only)) {
        let of_group: Vec<&str> = ids.iter().filter(|id| is_within(id, group)).map(String::as_str).collect();
        return Err(Failure::bad_input(format!(
            "--only {only}: no such number; there are: {}",
            of_group.join(", ")
        )));
    }
    Ok(group.clone())
}

/// `table4b.dedup.corun.avg` is within `table4b.dedup`.
fn is_within(id: &str, only: &str) -> bool {
    id.strip_prefix(only).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn run_sensitivity(
    seeds: &[u64],
    progress: &microslice_experiments::batch::BatchProgress,
    json: bool,
) -> Result<(), Failure> {
    let begun = Instant::now();
    let mut began = |index: usize, count: usize, parameter: &str| {
        let elapsed_s = begun.elapsed().as_secs_f64();
        output::say(format_args!("sensitivity: {index} of {count}, {parameter}, {elapsed_s:.0} s"));
    };
    let sensitivity = Sensitivity::run(seeds, progress, &mut began).map_err(failure)?;
    if json {
        let rows: Vec<Json> = sensitivity
            .rows
            .iter()
            .map(|row| {
                let changes: serde_json::Map<String, Json> = Sensitivity::figures()
                    .zip(&row.changes)
                    .map(|(name, (lower, higher))| {
                        (name.to_owned(), json!({ "lower": lower.map(output::estimate), "higher": higher.map(output::estimate) }))
                    })
                    .collect();
                json!({ "parameter": row.parameter, "changes": changes })
            })
            .collect();
        return output::print_json(&json!({ "seeds": seeds, "variation": 0.2, "parameters": rows }));
    }
    output::print(&format!(
        "Change of each figure in per cent, with the parameter 20 % lower / 20 % higher ({} seed(s)); \".\": within what\n\
         seeds differ by (its 95 % confidence interval has 0 in it; \"seen from\": half of such an interval, in the middle of a column).\n\
         \"gmake 1\" is gmake's time with one micro-sliced pCPU relative to the baseline's, \"dedup dyn\" dedup's with the\n\
         dynamic pool, \"dedup tlb\" the mean TLB synchronization of the baseline, \"gmake time\" the baseline's time.\n\n{}",
        seeds.len(),
        sensitivity.table()
    ))
}

fn failure(error: ReproductionError) -> Failure {
    match &error {
        ReproductionError::Scenario(error) => Failure::bad_input(error),
        ReproductionError::Run { scenario, policy, seed, error } => {
            failure_of(&format!("{scenario} under {policy}, seed {seed}"), error)
        }
    }
}

fn text_of(reproduction: &Reproduction, elapsed_s: f64) -> String {
    let (held, predicted) = verdicts(&reproduction.figures);
    let shapes_held = reproduction.shapes.iter().filter(|shape| shape.holds == Some(true)).count();
    format!(
        "{}, {} seed(s) from {}; ± is half of the 95 % confidence interval\n\n{}{}\n\n{}\n\
         {held} of {predicted} predicted numbers hold (within 25 % of the paper's, or beyond its limit); {shapes_held} of {} shapes hold; \
         {} events in {elapsed_s:.1} s\n",
        reproduction.study.title(),
        reproduction.seeds.len(),
        reproduction.seeds.first().copied().unwrap_or(0),
        table(&reproduction.figures),
        reproduction.study.kinds(),
        shape_table(reproduction),
        reproduction.shapes.len(),
        microslice_metrics::Unit::Count.show(reproduction.events as f64),
    )
}

/// How many of the predicted numbers hold, and how many there are: one that no run has doesn't hold.
fn verdicts(figures: &[FigureResult]) -> (usize, usize) {
    let predicted = || figures.iter().filter(|figure| !figure.calibrated);
    (predicted().filter(|figure| figure.holds()).count(), predicted().count())
}

fn json_of(reproduction: &Reproduction, seed: u64, elapsed_s: f64) -> Json {
    let figures: Vec<Json> = reproduction
        .figures
        .iter()
        .map(|figure| {
            let mut object = json!({
                "id": figure.id,
                "unit": figure.unit,
                "paper": figure.paper,
                "ours": figure.ours.map(|ours| ours.mean),
                "ci95": figure.ours.map(|ours| [ours.low, ours.high]),
                "kind": figure.kind(),
            });
            if let Some(relation) = &figure.relation {
                object["relation"] = json!(relation);
            }
            if let Some(remark) = figure.remark() {
                object["remark"] = json!(remark);
            }
            object
        })
        .collect();
    json!({
        "seed": seed,
        "events": reproduction.events,
        "elapsed_s": elapsed_s,
        "figures": figures,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn predicted(id: &str, ours: Option<f64>) -> FigureResult {
        let exact = |mean| microslice_metrics::Estimate { mean, low: mean, high: mean, count: 1 };
        FigureResult {
            id: id.to_owned(),
            unit: "ratio",
            paper: 1.0,
            relation: None,
            ours: ours.map(exact),
            runs: 1,
            stalled: 0,
            calibrated: false,
        }
    }

    #[test]
    fn a_predicted_number_without_a_value_is_a_miss_and_a_calibrated_one_is_not_counted() {
        let calibrated = FigureResult { calibrated: true, ..predicted("table2.gmake.solo", Some(1.0)) };
        let limit = FigureResult { relation: Some(">=".to_owned()), ..predicted("figure6.x", Some(0.97)) };
        let figures = [predicted("a.b", Some(1.2)), predicted("a.c", None), calibrated, limit];
        assert_eq!(verdicts(&figures), (1, 3));
    }
}
