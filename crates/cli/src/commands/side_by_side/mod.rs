//! `microslice testbed side-by-side`: the simulator's prediction for the demo's phases, beside what the
//! testbed measures.

mod model;

use super::demo::simulated::{figure_of, mean, runs_of};
use super::demo::{PHASES, emulated, stretched};
use crate::failure::Failure;
use crate::output::{self, OutputFile};
use crate::progress;
use clap::Args;
use clap::builder::PossibleValuesParser;
use microslice_engine::report::RunReport;
use microslice_experiments::batch::BatchProgress;
use microslice_experiments::scenario::{Overrides, parse};
use microslice_metrics::table::Table;
use microslice_testbed::demo::{self, Phase, Plan, Round, Scheduler};
use microslice_testbed::operation_costs::OperationCosts;
use microslice_testbed::relative::Figure;
use microslice_testbed::{Pv, kernels};
use serde_json::{Value, json};
use std::cell::OnceCell;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Phases that the simulator has a policy for.
const NAMES: [&str; 4] = ["kernel", "off", "1", "auto"];
/// Two ratios agree if neither is more than so many times the other.
const AGREE_WITHIN: f64 = 2.0;

/// Measure the demo's phases in the testbed, predict them in the simulator, and put both side by side
#[derive(Args)]
#[command(after_help = "Examples:
  microslice testbed side-by-side                       some eight minutes: kernel's own, pool off, one micro-sliced pCPU, by turns
  microslice testbed side-by-side --pv on --seconds 60
  microslice testbed side-by-side --only-costs --write-host testbed.toml
                                                        only what operations take there, as a host of the simulator
  microslice testbed side-by-side --write-scenario s.toml --json

Costs of the emulated host and of its guests are measured first, in the same boot; nothing is fitted to the phases. Each
number is how many times that under the kernel's own scheduler it is.")]
pub struct SideBySide {
    /// These phases, in this order; the first has to be `kernel`. Those that come several times are measured
    /// as often
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = PossibleValuesParser::new(NAMES),
          default_value = "kernel,off,1,kernel,off,1")]
    phases: Vec<String>,
    /// Measured seconds per phase
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(5..=3600))]
    seconds: u64,
    /// PV helpers of the guests (TLB flush, IPI, sched-yield, spinlock)
    #[arg(long, default_value = "off", value_parser = ["on", "off"])]
    pv: String,
    /// Seeds of the simulation
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    seeds: u64,
    /// Measure costs, and no phases
    #[arg(long)]
    only_costs: bool,
    /// Write the host's costs as a host of the simulator
    #[arg(long, value_name = "FILE")]
    write_host: Option<PathBuf>,
    /// Write the scenario that predicts
    #[arg(long, value_name = "FILE")]
    write_scenario: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: &SideBySide) -> Result<(), Failure> {
    if args.phases.first().map(String::as_str) != Some("kernel") {
        return Err(Failure::bad_input(
            "--phases: the first has to be `kernel`: all others are compared with it",
        ));
    }
    output::refuse_same_file(args.write_host.as_deref(), args.write_scenario.as_deref())?;
    let host_file = OutputFile::wanted(args.write_host.as_deref(), &[])?;
    let scenario_file = OutputFile::wanted(args.write_scenario.as_deref(), &[])?;
    let pv = if args.pv == "on" { Pv::On } else { Pv::Off };
    let plan = plan(args, pv);
    // The emulator dies with this process, and a process can wait for signals once.
    // Simulations end by the same.
    let progress = progress::stoppable_within(Some(Duration::ZERO))?;
    let (costs, phases) = measure(&plan, pv, args.only_costs)?;
    let scenario = model::scenario(&costs, pv);
    if let Some(file) = host_file {
        file.finish_with(&model::host(&costs))?;
    }
    if let Some(file) = scenario_file {
        file.finish_with(&scenario)?;
    }
    let rows = if args.only_costs {
        Vec::new()
    } else {
        let predicted = predict(&scenario, &costs, &plan, args.seeds, &progress)?;
        rows(&plan.schedulers, &phases, &predicted)
    };
    if args.json {
        return output::print_json(&json!({
            "costs": costs.to_json(),
            "seconds": args.seconds,
            "seeds": args.seeds,
            "figures": rows.iter().map(Row::to_json).collect::<Vec<_>>(),
        }));
    }
    output::print(&to_text(&costs, &rows))
}

/// The demo's, with one round.
fn plan(args: &SideBySide, pv: Pv) -> Plan {
    let named = |name: &String| PHASES.iter().find(|(phase, _)| phase == name).map(|&(_, of)| of);
    Plan {
        seconds: args.seconds,
        guest_kernel: kernels::DEFAULT_GUEST.into(),
        schedulers: args.phases.iter().filter_map(named).collect(),
        rounds: vec![Round { pv, pause_exits: false }],
        ..stretched(demo::EMULATED_DILATION)
    }
}

/// Costs, and then the phases, in one boot.
fn measure(plan: &Plan, pv: Pv, only_costs: bool) -> Result<(OperationCosts, Vec<Phase>), Failure> {
    let begun = Instant::now();
    let progress =
        |what: &str| output::say(format_args!("side-by-side: {:>4} s  {what}", begun.elapsed().as_secs()));
    let costs = OnceCell::new();
    let boot = |pause_exits| {
        progress("booting the host");
        let host = emulated(kernels::DEFAULT_HOST, &plan.guest_kernel, pause_exits)?.boot()?;
        progress("measuring what operations take");
        let measured = OperationCosts::measure(&host, &plan.guest_kernel, pv)?;
        Ok((host, measured))
    };
    if only_costs {
        return boot(false).map(|(_, costs)| (costs, Vec::new())).map_err(Failure::broken);
    }
    let keep = |pause_exits| {
        let (host, measured) = boot(pause_exits)?;
        let _ = costs.set(measured);
        Ok(host)
    };
    let phases = demo::run(plan, &keep, &progress).map_err(Failure::broken)?;
    let costs = costs.into_inner().ok_or_else(|| Failure::broken("no host was booted"))?;
    Ok((costs, phases))
}

/// Each scheduler's runs, in the order in which they come first.
fn predict(
    scenario: &str,
    costs: &OperationCosts,
    plan: &Plan,
    seeds: u64,
    progress: &Arc<BatchProgress>,
) -> Result<Vec<(Scheduler, Vec<RunReport>)>, Failure> {
    let mut configs = Vec::new();
    for scheduler in distinct(&plan.schedulers) {
        let Some(policy) = model::policy(scheduler, costs, plan) else { continue };
        let overrides = Overrides { policy: Some(policy), ..Overrides::default() };
        let scenario = parse("the testbed's scenario", scenario, &overrides).map_err(Failure::broken)?;
        configs.push((scheduler, scenario.config));
    }
    let (schedulers, configs): (Vec<_>, Vec<_>) = configs.into_iter().unzip();
    let runs = runs_of(&configs, seeds, "predicting", "the testbed's scenario", progress)?;
    Ok(schedulers.into_iter().zip(runs).collect())
}

fn distinct(schedulers: &[Scheduler]) -> Vec<Scheduler> {
    let mut first: Vec<Scheduler> = Vec::new();
    schedulers.iter().for_each(|scheduler| {
        if !first.contains(scheduler) {
            first.push(*scheduler);
        }
    });
    first
}

/// A figure in both worlds, of a guest: the testbed's, and what it is called here.
const FIGURES: [(&str, Figure, &str); 8] = [
    ("mix", Figure::WorkPerCpuSecond, "mix: work per CPU second"),
    ("hog", Figure::WorkPerCpuSecond, "hog: work per CPU second"),
    ("mix", Figure::Cpus, "mix: CPUs"),
    ("hog", Figure::Cpus, "hog: CPUs"),
    ("mix", Figure::ShootdownP50, "shootdown p50"),
    ("mix", Figure::ShootdownP99, "shootdown p99"),
    ("mix", Figure::WakeP50, "wake-up p50"),
    ("mix", Figure::WakeP99, "wake-up p99"),
];

/// A figure under one scheduler: means over phases and over seeds, and what they are times the kernel's own.
struct Row {
    figure: &'static str,
    scheduler: String,
    /// One of each phase.
    each_measured: Vec<Option<f64>>,
    measured: Option<f64>,
    predicted: Option<f64>,
    measured_ratio: Option<f64>,
    predicted_ratio: Option<f64>,
}

impl Row {
    fn agrees(&self) -> Option<bool> {
        let off = self.measured_ratio? / self.predicted_ratio?;
        Some((1.0 / AGREE_WITHIN..=AGREE_WITHIN).contains(&off))
    }

    fn to_json(&self) -> Value {
        json!({
            "figure": self.figure,
            "scheduler": self.scheduler,
            "measured": self.measured,
            "measured_by_phase": self.each_measured,
            "predicted": self.predicted,
            "measured_relative": self.measured_ratio,
            "predicted_relative": self.predicted_ratio,
            "agrees_within_two_times": self.agrees(),
        })
    }
}

fn rows(order: &[Scheduler], phases: &[Phase], runs: &[(Scheduler, Vec<RunReport>)]) -> Vec<Row> {
    let each_measured = |figure: Figure, name: &str, scheduler: Scheduler| -> Vec<Option<f64>> {
        let of = phases.iter().filter(|phase| phase.scheduler == scheduler);
        of.map(|phase| figure.of(phase, name)).collect()
    };
    let measured_of =
        |figure, name: &str, scheduler| mean(each_measured(figure, name, scheduler).into_iter());
    let predicted_of = |figure: Figure, name: &str, scheduler: Scheduler| {
        let of = runs.iter().filter(|(own, _)| *own == scheduler).flat_map(|(_, reports)| reports);
        mean(of.map(|report| figure_of(figure, report, name)))
    };
    let ratio = |of: Option<f64>, first: Option<f64>| Some(of? / first.filter(|&first| first > 0.0)?);
    let mut rows = Vec::new();
    for (name, figure, label) in FIGURES {
        let measured_first = measured_of(figure, name, order[0]);
        let predicted_first = predicted_of(figure, name, order[0]);
        for scheduler in distinct(order) {
            let measured = measured_of(figure, name, scheduler);
            let predicted = predicted_of(figure, name, scheduler);
            rows.push(Row {
                figure: label,
                scheduler: scheduler.name(),
                each_measured: each_measured(figure, name, scheduler),
                measured,
                predicted,
                measured_ratio: ratio(measured, measured_first),
                predicted_ratio: ratio(predicted, predicted_first),
            });
        }
    }
    rows
}

fn to_text(costs: &OperationCosts, rows: &[Row]) -> String {
    let us = |ns: u64| format!("{:.1}", ns as f64 / 1e3);
    let mut operations = Table::new(&["operation", ">us"]);
    for (name, ns) in [
        ("switch of the host, with the pipe that wakes", costs.switch_ns),
        ("exit that KVM answers (CPUID)", costs.exit_ns),
        ("a worker's computing", costs.compute_ns),
        ("system call with a free lock", costs.lock_ns),
        ("map, touch, protect, unmap 8 pages", costs.unmap_ns),
        ("call of one running sibling", costs.call_one_ns),
        ("call of all running siblings", costs.call_all_ns),
    ] {
        operations.row(vec![name.into(), us(ns)]);
    }
    let mut text = format!(
        "{operations}\nThe guest computes {:.0} times slower than a CPU of 2.4 GHz. Means, while every vCPU computes.\n",
        costs.slowness()
    );
    if rows.is_empty() {
        return text;
    }
    let mut table = Table::new(&[
        "figure",
        "scheduler",
        ">measured",
        ">predicted",
        ">measured x",
        ">predicted x",
        "agree",
    ]);
    let number = |value: Option<f64>| match value {
        None => "-".to_owned(),
        Some(value) if value.abs() >= 100.0 => format!("{value:.0}"),
        Some(value) => format!("{value:.3}"),
    };
    for row in rows {
        let agree = match row.agrees() {
            None => "-",
            Some(true) => "yes",
            Some(false) => "NO",
        };
        table.row(vec![
            row.figure.into(),
            row.scheduler.clone(),
            number(row.measured),
            number(row.predicted),
            number(row.measured_ratio),
            number(row.predicted_ratio),
            agree.into(),
        ]);
    }
    text += &format!(
        "\n{table}\nTimes are in us. x: how many times that under the kernel's own scheduler; agree: the two ratios differ by less than {AGREE_WITHIN} times.\n\
         The model has no network (the guest's ping-pong), and no machine below that stops a pCPU for ticks of 4 ms.\n"
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(measured_ratio: f64, predicted_ratio: f64) -> Row {
        Row {
            figure: "shootdown p50",
            scheduler: "1 micro".into(),
            each_measured: vec![Some(1.0)],
            measured: Some(1.0),
            predicted: Some(1.0),
            measured_ratio: Some(measured_ratio),
            predicted_ratio: Some(predicted_ratio),
        }
    }

    #[test]
    fn ratios_agree_if_neither_is_more_than_twice_the_other() {
        for (measured, predicted, agrees) in [(0.5, 0.9, true), (0.5, 1.1, false), (1.0, 0.4, false)] {
            assert_eq!(row(measured, predicted).agrees(), Some(agrees), "{measured} {predicted}");
        }
    }

    #[test]
    fn the_model_of_each_phase_runs_and_says_what_the_guests_would_report() {
        let costs = model::tests::COSTS;
        let args = SideBySide {
            phases: ["kernel", "off", "1", "auto"].map(str::to_owned).to_vec(),
            seconds: 30,
            pv: "off".into(),
            seeds: 1,
            only_costs: false,
            write_host: None,
            write_scenario: None,
            json: false,
        };
        let plan = plan(&args, Pv::Off);
        let scenario = model::scenario(&costs, Pv::Off).replace("\"60 s\"", "\"5 s\"");
        let predicted = predict(&scenario, &costs, &plan, 1, &Arc::default()).expect("runs");
        let rows = rows(&plan.schedulers, &[], &predicted);
        assert_eq!(rows.len(), 4 * FIGURES.len());
        for row in rows {
            assert!(row.predicted.is_some_and(|value| value > 0.0), "{} {}", row.figure, row.scheduler);
        }
    }
}
