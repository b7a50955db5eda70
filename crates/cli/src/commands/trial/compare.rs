//! What two trials say, on two hosts or at two times.

use crate::failure::Failure;
use crate::output;
use microslice_metrics::Estimate;
use microslice_metrics::table::Table;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

/// A trial of thousands of VMs is smaller.
const FILE_MAX: u64 = 256 << 20;

/// No two blocks differ by more.
const RATIO_MAX: f64 = 1e12;

/// Ratios of a trial's VMs, by arm and figure.
type Ratios = BTreeMap<(String, String), Vec<f64>>;

pub fn run(first: &Path, second: &Path, as_json: bool) -> Result<(), Failure> {
    let trials = [read(first)?, read(second)?];
    let arm_of = |(trial, _): &(Value, Ratios)| trial["plan"]["arms"][0].as_str().map(str::to_owned);
    if arm_of(&trials[0]) != arm_of(&trials[1]) {
        return Err(Failure::bad_input(format_args!(
            "{} and {} have different first arms: what the others are compared with",
            first.display(),
            second.display()
        )));
    }
    let [ours, theirs] = &trials.each_ref().map(|(_, ratios)| ratios);
    let rows: Vec<_> =
        ours.iter().filter_map(|(of, values)| Some((of, mean(values)?, mean(theirs.get(of)?)?))).collect();
    if rows.is_empty() {
        return Err(Failure::bad_input(format_args!(
            "{} and {} have no arm in common whose figures are known",
            first.display(),
            second.display()
        )));
    }
    if as_json {
        let row = |((arm, figure), first, second): &(&(String, String), Estimate, Estimate)| json!({"arm": arm, "figure": figure, "first": output::estimate(*first), "second": output::estimate(*second)});
        let hosts = trials.each_ref().map(|(trial, _)| &trial["host"]);
        return output::print_json(
            &json!({"hosts": hosts, "figures": rows.iter().map(row).collect::<Vec<_>>()}),
        );
    }
    let mut table = Table::new(&["arm", "figure", ">first", ">second"]);
    for ((arm, figure), first, second) in &rows {
        table.row([arm.clone(), figure.clone(), shown(first), shown(second)]);
    }
    let [first, second] = trials.each_ref().map(|(trial, _)| describe(trial));
    output::print(&format!(
        "first:  {first}\nsecond: {second}\n\n{table}\nTimes the first arm's: geometric means over VMs, and 95 % intervals over them.\n"
    ))
}

fn shown(of: &Estimate) -> String {
    match of.count {
        1 => format!("{:.2} (one VM)", of.mean),
        count => format!("{:.2} ({:.2}-{:.2}, {count} VMs)", of.mean, of.low, of.high),
    }
}

fn mean(values: &[f64]) -> Option<Estimate> {
    Estimate::of_ratios(values)
}

fn describe(trial: &Value) -> String {
    let text = |key: &str| trial["host"][key].as_str().unwrap_or("unknown").replace('\n', " ");
    let number = |from: &Value| from.as_u64().map_or("?".to_owned(), |number| number.to_string());
    format!(
        "{}, {} CPUs, Linux {}, {} rounds",
        text("cpu"),
        number(&trial["host"]["pcpus"]),
        text("kernel"),
        number(&trial["plan"]["rounds"])
    )
}

fn read(path: &Path) -> Result<(Value, Ratios), Failure> {
    let refused =
        |cause: &dyn std::fmt::Display| Failure::bad_input(format_args!("{}: {cause}", path.display()));
    let file = microslice_metrics::input::open(path).map_err(|cause| refused(&cause))?;
    let mut text = String::new();
    file.take(FILE_MAX).read_to_string(&mut text).map_err(|cause| refused(&cause))?;
    let trial: Value = serde_json::from_str(&text).map_err(|cause| refused(&cause))?;
    match trial["microslice_trial"].as_u64() {
        Some(1) => {}
        Some(version) => {
            return Err(refused(&format_args!("is of version {version}, and version 1 is known")));
        }
        None => return Err(refused(&"is no file of `microslice trial --output`")),
    }
    let mut ratios = Ratios::new();
    for (at, row) in trial["figures"].as_array().into_iter().flatten().enumerate() {
        let (Some(arm), Some(figure), Some(vm), Some(ratio)) =
            (row["arm"].as_str(), row["figure"].as_str(), row["vm"].as_str(), row["ratio"].as_f64())
        else {
            return Err(refused(&format_args!("figure {at} has no arm, figure, vm or ratio")));
        };
        if !(ratio > 0.0 && ratio < RATIO_MAX) {
            return Err(refused(&format_args!("figure {at}: its ratio is {ratio}")));
        }
        if vm != microslice_host::trial::ALL_VMS {
            ratios.entry((arm.to_owned(), figure.to_owned())).or_default().push(ratio);
        }
    }
    Ok((trial, ratios))
}
