//! `microslice simulate --profile`: what other schedulers would bring the VMs of a profile
//! (docs/how-to/what-if.md).

use super::simulate::failure_of;
use crate::failure::Failure;
use crate::output::{self, OutputFile};
use crate::progress::{self, ProgressLine};
use clap::Args;
use microslice_metrics::input;
use microslice_metrics::profile::{HostProfile, Profile, SIZE_MAX, VmProfile};
use microslice_metrics::table::Table;
use microslice_metrics::{Estimate, Unit, counted};
use microslice_studies::what_if::{Fit, MeasuredHost, Row, UNKNOWN, WAS_OFF, WhatIfError, fit, predict};
use serde_json::{Value, json};
use std::io::Read;
use std::path::{Path, PathBuf};

/// More seeds than this add no precision that a reader needs.
const SEEDS_MAX: u64 = 1_000;
/// The model shall be this near to the profile, or the reader is told.
const FAR_OFF: f64 = 0.25;

/// What only `--profile` has.
#[derive(Args)]
pub struct WhatIfArgs {
    /// Instead of a scenario: VMs that `microslice observe --profile` saw, as programs fitted to what it saw
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "scenario", "policy", "settings", "seed", "openmetrics", "trace", "html", "check", "list",
    ])]
    pub profile: Option<PathBuf>,

    /// With --profile: policies to compare, the first of which is the reference [default:
    /// eevdf,microslice,beside]
    #[arg(
        long,
        value_name = "A,B,C",
        value_delimiter = ',',
        requires = "profile",
        conflicts_with = "scenario"
    )]
    policies: Option<Vec<String>>,

    /// With --profile: how many seeds [default: 5]
    #[arg(long, value_name = "N", requires = "profile", conflicts_with = "scenario", value_parser = clap::value_parser!(u64).range(1..=SEEDS_MAX))]
    seeds: Option<u64>,

    /// With --profile: a host of the simulator whose costs were measured, as a name or a file, instead of
    /// costs that are fitted [for the testbed: microslice testbed side-by-side --only-costs --write-host
    /// FILE]
    #[arg(long, value_name = "HOST", requires = "profile", conflicts_with = "scenario")]
    host: Option<String>,

    /// With --profile: write the scenario that was fitted, as a TOML file
    #[arg(long, value_name = "FILE", requires = "profile", conflicts_with = "scenario")]
    write_scenario: Option<PathBuf>,
}

pub fn run(path: &Path, args: WhatIfArgs, as_json: bool) -> Result<(), Failure> {
    let profile = read(path)?;
    let default = || ["eevdf", "microslice", "beside"].map(str::to_owned).to_vec();
    let policies =
        args.policies.map_or_else(default, |all| all.iter().map(|one| one.trim().to_owned()).collect());
    let seeds = args.seeds.unwrap_or(5);
    let host = args.host.as_deref().map(MeasuredHost::load).transpose().map_err(Failure::bad_input)?;
    let progress = progress::stoppable()?;
    let file = OutputFile::wanted(args.write_scenario.as_deref(), &[path.to_owned()])?;
    let failed = |error| failure(path, error);
    let fit = {
        let _line = ProgressLine::of_batch("fitting a model".to_owned(), progress.clone());
        fit(&profile, host.as_ref(), &progress).map_err(failed)?
    };
    let scenario = fit.model.to_scenario();
    if let Some(file) = file {
        file.finish_with(&scenario)?;
    }
    let rows = {
        let _line = ProgressLine::of_batch("predicting".to_owned(), progress.clone());
        predict(&scenario, &policies, &profile, seeds, &progress).map_err(failed)?
    };
    let prediction = Prediction { profile: &profile, fit: &fit, policies: &policies, seeds, rows: &rows };
    if as_json { output::print_json(&prediction.to_json(path)) } else { output::print(&prediction.to_text()) }
}

/// All that is shown.
struct Prediction<'p> {
    profile: &'p Profile,
    fit: &'p Fit,
    policies: &'p [String],
    seeds: u64,
    rows: &'p [Row],
}

/// A file that is larger than any profile isn't read to its end.
fn read(path: &Path) -> Result<Profile, Failure> {
    let refuse = |error: std::io::Error| Failure::bad_input(output::cause(path, &error));
    let mut bytes = Vec::new();
    let file = input::open(path).map_err(refuse)?;
    file.take(SIZE_MAX as u64 + 1).read_to_end(&mut bytes).map_err(refuse)?;
    let name = path.display().to_string();
    let text = String::from_utf8(bytes).map_err(|_| Failure::bad_input(format!("{name}: not UTF-8 text")))?;
    Profile::parse(&name, &text).map_err(Failure::bad_input)
}

fn failure(path: &Path, error: WhatIfError) -> Failure {
    match error {
        WhatIfError::Profile(cause) => Failure::bad_input(format!("{}: {cause}", path.display())),
        WhatIfError::Scenario(error) => Failure::bad_input(error),
        WhatIfError::Run { policy, seed, error } => failure_of(
            &format!("the scenario fitted to {} under {policy}, seed {seed}", path.display()),
            &error,
        ),
    }
}

/// What the model was fitted to, and what shows how well it fits: figure, and its number of a VM.
type Seen = (&'static str, fn(&VmProfile) -> f64);
const SEEN: [Seen; 8] = [
    ("cpus", |vm| vm.share(vm.ran_ns) * f64::from(vm.vcpus)),
    ("ready %", |vm| vm.share(vm.ready_ns) * 100.0),
    ("wake-ups/s", |vm| per_second(vm, vm.wakeups())),
    ("calls/s", |vm| per_second(vm, vm.interrupts.call_function.sent)),
    ("waiting calls/s", |vm| per_second(vm, vm.shootdowns.count)),
    ("their p50 ms", |vm| vm.shootdowns.p50_ns as f64 / 1e6),
    ("turns ended in calls %", |vm| vm.turns_ended.share(vm.turns_ended.tlb_shootdown) * 100.0),
    ("turns ended holding locks %", |vm| vm.turns_ended.share(vm.turns_ended.lock_holder) * 100.0),
];

fn per_second(vm: &VmProfile, count: u64) -> f64 {
    count as f64 / (vm.observed_ns.max(1) as f64 / 1e9 / f64::from(vm.vcpus.max(1)))
}

/// What a reader of this prediction in particular has to know.
fn remarks(profile: &Profile, fit: &Fit) -> Vec<String> {
    let mut remarks = Vec::new();
    if !profile.host.sees_interrupts {
        remarks.push(
            "the observed host's KVM shows no interrupts: nothing of shootdowns is predicted".to_owned(),
        );
    }
    for (vm, model) in profile.vms.iter().zip(&fit.model.vms) {
        if !vm.classes_are_known {
            remarks.push(format!("{}: what its guest was doing is unknown: it has no locks, and calls cost what one host's did", model.name));
        }
        if model.spares_preempted {
            remarks.push(format!(
                "{}: its calls hardly ever waited: taken for a guest with PV TLB flush",
                model.name
            ));
        }
    }
    if fit.error > FAR_OFF {
        remarks.push(format!(
            "the model is off by {:.0} % on average: believe no more than the direction",
            fit.error * 100.0
        ));
    }
    remarks
}

impl Prediction<'_> {
    fn to_text(&self) -> String {
        let Self { profile, fit, policies, seeds, rows } = *self;
        let mut text = format!(
            "{} on {}, observed for {:.1} s under {}\n\n\
         The model under {}, beside the profile that it is fitted to (off by {:.0} % on average):\n\n{}\n",
            counted(profile.vms.len(), "VM"),
            counted(profile.host.pcpus as usize, "pCPU"),
            profile.seconds,
            if profile.host.scheduler == HostProfile::KERNEL {
                "the kernel's own scheduler"
            } else {
                &profile.host.scheduler
            },
            fit.baseline,
            fit.error * 100.0,
            fit_table(profile, fit),
        );
        text.push_str(&format!(
        "Predicted: {seeds} seeds; mean ± half of the 95 % confidence interval over them, and how many times the first policy's\n\n{}\n",
        prediction_table(policies, rows)
    ));
        for remark in remarks(profile, fit) {
            text.push_str(&format!("Note: {remark}\n"));
        }
        text.push_str("The intervals are the simulator's, not the prediction's. It can't know:\n");
        UNKNOWN.iter().for_each(|unknown| text.push_str(&format!("- {unknown}\n")));
        text.push_str("How far it was off where it was compared with a measurement:\n");
        WAS_OFF.iter().for_each(|was_off| text.push_str(&format!("- {was_off}\n")));
        text.push_str("`microslice trial` measures on the host itself.\n");
        text
    }

    fn to_json(&self, path: &Path) -> Value {
        let Self { profile, fit, policies, seeds, rows } = *self;
        let seen = profile.vms.iter().zip(&fit.seen.vms).zip(&fit.model.vms).map(|((vm, seen), model)| {
            let figures: serde_json::Map<String, Value> = SEEN
                .into_iter()
                .map(|(figure, of)| (figure.to_owned(), json!({ "profile": of(vm), "model": of(seen) })))
                .collect();
            json!({ "vm": model.name, "figures": figures })
        });
        let by_policy = |estimates: &[Option<Estimate>]| -> serde_json::Map<String, Value> {
            let estimates = estimates.iter().map(|estimate| json!(estimate.map(output::estimate)));
            policies.iter().cloned().zip(estimates).collect()
        };
        let predicted = rows.iter().map(|row| {
            json!({
                "vm": row.vm,
                "figure": row.figure.name(),
                "unit": row.figure.unit().symbol(),
                "policies": by_policy(&row.estimates),
                "relative_to_first": by_policy(&row.ratios),
            })
        });
        json!({
            "profile": path.display().to_string(),
            "fit": {
                "under": fit.baseline,
                "error": fit.error,
                "cost_factor": fit.model.cost_factor,
                "vms": seen.collect::<Vec<_>>(),
            },
            "seeds": seeds,
            "predictions": predicted.collect::<Vec<_>>(),
            "notes": remarks(profile, fit),
            "cannot_know": UNKNOWN,
            "was_off": WAS_OFF,
        })
    }
}

fn fit_table(profile: &Profile, fit: &Fit) -> Table {
    let mut table = Table::new(&["vm", "seen", ">profile", ">model"]);
    for ((vm, seen), model) in profile.vms.iter().zip(&fit.seen.vms).zip(&fit.model.vms) {
        for (figure, of) in SEEN {
            let (profile, model_has) = (of(vm), of(seen));
            if profile > 0.0 || model_has > 0.0 {
                table.row([model.name.clone(), figure.to_owned(), short(profile), short(model_has)]);
            }
        }
    }
    table
}

fn short(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

fn prediction_table(policies: &[String], rows: &[Row]) -> Table {
    let columns: Vec<String> = ["vm".to_owned(), "figure".to_owned()]
        .into_iter()
        .chain(policies.iter().map(|policy| format!(">{policy}")))
        .collect();
    let mut table = Table::new(&columns.iter().map(String::as_str).collect::<Vec<_>>());
    for row in rows {
        let cells = row.estimates.iter().zip(&row.ratios).enumerate().map(|(at, (estimate, ratio))| {
            let Some(estimate) = estimate else { return "-".to_owned() };
            let ratio =
                ratio.filter(|_| at > 0).map_or(String::new(), |ratio| format!(" ({})", ratio_cell(&ratio)));
            format!("{}{ratio}", cell(row.figure.unit(), estimate))
        });
        table.row([row.vm.clone(), row.figure.name().to_owned()].into_iter().chain(cells));
    }
    table
}

fn cell(unit: Unit, estimate: &Estimate) -> String {
    let show = |value: f64| match unit {
        Unit::Ratio => format!("{value:.3}"),
        unit => unit.show(value),
    };
    if estimate.count < 2 {
        show(estimate.mean)
    } else {
        format!("{} ± {}", show(estimate.mean), show(estimate.half_width()))
    }
}

fn ratio_cell(ratio: &Estimate) -> String {
    if ratio.count < 2 {
        format!("{:.2}x", ratio.mean)
    } else {
        format!("{:.2} ± {:.2}x", ratio.mean, ratio.half_width())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_have_the_ratio_only_where_there_is_an_interval_to_show() {
        let estimate = |mean| Estimate { mean, low: mean - 0.5, high: mean + 0.5, count: 3 };
        assert_eq!(cell(Unit::Ratio, &estimate(2.0)), "2.000 ± 0.500");
        assert_eq!(ratio_cell(&estimate(2.0)), "2.00 ± 0.50x");
        assert_eq!(ratio_cell(&Estimate { count: 1, ..estimate(2.0) }), "2.00x");
    }
}
