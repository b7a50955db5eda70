//! `microslice simulate`: one run of one scenario.

use super::what_if::{self, WhatIfArgs};
use crate::failure::Failure;
use crate::output::{self, OutputFile};
use crate::progress::{self, ProgressLine};
use clap::{Args, ValueEnum};
use microslice_engine::SimError;
use microslice_engine::report::RunReport;
use microslice_engine::trace::{PerfettoTrace, TextTrace};
use microslice_experiments::batch::{BatchProgress, run_one};
use microslice_experiments::figures::snapshot_of;
use microslice_experiments::scenario::{self, Overrides, Scenario, Shelf};
use microslice_metrics::html::Page;
use microslice_metrics::plot::StepChart;
use microslice_metrics::table::{self, Table};
use microslice_metrics::{Snapshot, Unit, Value, figures, json, openmetrics};
use microslice_model::events::NoTrace;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// MiB of a trace file, and the most that it may have: as of a real host's.
const TRACE_MIB: u32 = 100;
const TRACE_MIB_MAX: u32 = 4096;

/// Simulate a host, its VMs and a scheduler, and show what it measured
#[derive(Args)]
#[command(after_help = "Examples:
  microslice simulate --list                                 what is built in
  microslice simulate gmake-swaptions                        the paper's baseline: Xen's credit scheduler
  microslice simulate gmake-swaptions --policy micro:1       one micro-sliced pCPU
  microslice simulate gmake-swaptions --policy micro --seed 7 --json
  microslice simulate dedup-swaptions --policy micro:2 --set duration='200 ms' --trace dedup.pftrace
                                                             then open dedup.pftrace in https://ui.perfetto.dev
  microslice simulate ./mine.toml --set vm.target.vcpus=8 --set host.pcpus=4 --set host.llc_pcpus=4 --check
  microslice simulate --profile p.json                       what policies would bring the VMs that `observe --profile` saw
  microslice simulate --profile p.json --policies eevdf,microslice,beside --seeds 10 --json
  microslice simulate --profile p.json --write-scenario mine.toml
                                                             the scenario that was fitted to it, for any other command

A SCENARIO is a built-in name or a TOML file; docs/reference/scenarios.md describes the format. The same scenario, policy, settings
and seed always give the same output, byte for byte.")]
pub struct Simulate {
    /// Built-in scenario, or a file
    #[arg(required_unless_present_any = ["list", "profile"])]
    scenario: Option<String>,

    #[command(flatten)]
    overrides: OverrideArgs,

    /// Print figures and the full configuration as JSON
    #[arg(long)]
    json: bool,

    /// Print figures in OpenMetrics text
    #[arg(long, conflicts_with = "json")]
    openmetrics: bool,

    /// Write a trace: Perfetto's format, or text lines if FILE ends in .txt
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// With --trace: as long as the file is smaller
    #[arg(
        long,
        value_name = "MIB",
        default_value_t = TRACE_MIB,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(TRACE_MIB_MAX)),
        requires = "trace"
    )]
    trace_size: u32,

    /// Write the figures as a self-contained page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Verify the model's invariants while it runs (slower)
    #[arg(long)]
    check: bool,

    /// List scenarios, workloads, hosts, kernels, NICs and policies, with what they are; --list=symbols: the
    /// functions of each kernel that workloads can name, and which of them are critical
    #[arg(long, value_name = "WHAT", num_args = 0..=1, require_equals = true, default_missing_value = "all")]
    list: Option<Listed>,

    #[command(flatten)]
    what_if: WhatIfArgs,
}

/// What every simulating command can change in a scenario.
#[derive(Args, Clone)]
pub struct OverrideArgs {
    /// The scheduler: a built-in policy, micro:N for N static micro-sliced pCPUs, or a file
    #[arg(long, value_name = "POLICY")]
    policy: Option<String>,

    /// Change a value of the scenario, such as vm.target.vcpus=8; repeatable
    #[arg(long = "set", value_name = "PATH=VALUE", value_parser = parse_setting)]
    settings: Vec<(String, String)>,

    /// Seed of the random numbers (default: the scenario's)
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

impl From<OverrideArgs> for Overrides {
    fn from(args: OverrideArgs) -> Self {
        Self { policy: args.policy, seed: args.seed, settings: args.settings }
    }
}

/// A `--set` option.
pub fn parse_setting(text: &str) -> Result<(String, String), String> {
    scenario::split_setting(text).map(|(path, value)| (path.to_owned(), value.to_owned()))
}

pub fn run(args: Simulate) -> Result<(), Failure> {
    if let Some(listed) = args.list {
        return output::print(&listing(listed)?);
    }
    if let Some(profile) = args.what_if.profile.clone() {
        return what_if::run(&profile, args.what_if, args.json);
    }
    let reference = args.scenario.unwrap_or_default();
    let policy = args.overrides.policy.clone();
    let mut scenario = {
        let _line = ProgressLine::show(format!("reading {reference}"), || None);
        scenario::load(&reference, &args.overrides.into()).map_err(Failure::bad_input)?
    };
    scenario.config.check = args.check;
    output::refuse_same_file(args.trace.as_deref(), args.html.as_deref())?;
    // First, so that Ctrl-C never leaves a temporary file behind.
    let progress = progress::stoppable()?;
    let trace = OutputFile::wanted(args.trace.as_deref(), &scenario.files)?;
    let html = OutputFile::wanted(args.html.as_deref(), &scenario.files)?;
    let (report, elapsed) = {
        let _line = ProgressLine::of_batch(format!("simulating {reference}"), progress.clone());
        run_with_trace(
            &scenario,
            &progress,
            args.trace.as_deref().zip(trace),
            u64::from(args.trace_size) << 20,
        )?
    };
    let rate = report.events as f64 / elapsed.as_secs_f64().max(1e-9);
    let rate = Unit::Count.show(rate.round());
    output::say(format_args!("seed {}, {} events, {rate} events/s", report.seed, report.events));
    let snapshot = snapshot_of(&report);
    if let Some(file) = html {
        file.finish_with(&page(&scenario, &snapshot))?;
    }
    match (args.json, args.openmetrics) {
        (true, _) => output::print_json(&json!({
            "scenario": scenario.name,
            "policy": policy.unwrap_or_else(|| "the scenario's".to_owned()),
            "seed": report.seed,
            "measured_ns": report.measured_ns,
            "events": report.events,
            "figures": json::of_snapshot(&snapshot),
            "configuration": scenario.config,
        })),
        (_, true) => output::print(&openmetrics::of_snapshot(&snapshot)),
        _ => output::print(&format!("{}{}", header(&scenario), table::of_snapshot(&snapshot))),
    }
}

fn run_with_trace(
    scenario: &Scenario,
    progress: &BatchProgress,
    trace: Option<(&Path, OutputFile)>,
    bytes_max: u64,
) -> Result<(RunReport, Duration), Failure> {
    let failed = |error: SimError| failure_of(&scenario.name, &error);
    let Some((path, file)) = trace else {
        return run_one(&scenario.config, progress, &mut NoTrace).map_err(failed);
    };
    let unwritable = |error: std::io::Error| Failure::broken(output::cause(path, &error));
    // A full disk stops the run; then the disk is the cause, not the stop.
    if path.extension().is_some_and(|extension| extension == "txt") {
        let mut sink = TextTrace::new(file, bytes_max);
        let report = run_one(&scenario.config, progress, &mut sink);
        say_where_it_ends(path, sink.full_at_ns());
        let file = sink.finish().map_err(unwritable)?;
        let report = report.map_err(failed)?;
        return file.commit().map(|()| report);
    }
    let mut sink = PerfettoTrace::new(file, bytes_max);
    let report = run_one(&scenario.config, progress, &mut sink);
    say_where_it_ends(path, sink.full_at_ns());
    let file = sink.finish(scenario.config.warmup_ns + scenario.config.duration_ns).map_err(unwritable)?;
    let report = report.map_err(failed)?;
    file.commit().map(|()| report)
}

/// The run itself goes on.
fn say_where_it_ends(path: &Path, full_at_ns: Option<u64>) {
    if let Some(time_ns) = full_at_ns {
        let time = Unit::Nanoseconds.show(time_ns as f64);
        let why = "as large as it may be: --trace-size";
        output::say(format_args!("{}: the trace ends after {time} ({why})", path.display()));
    }
}

/// A configuration or a workload that can't run is bad input; a broken invariant is a bug; only Ctrl-C stops
/// a run.
pub fn failure_of(scenario: &str, error: &SimError) -> Failure {
    match error {
        SimError::Config { .. } | SimError::Deadlock { .. } => {
            Failure::bad_input(format!("{scenario}: {error}"))
        }
        SimError::Check { .. } | SimError::Panic { .. } => Failure::broken(format!("{scenario}: {error}")),
        SimError::Stopped { .. } => Failure::interrupted(),
    }
}

fn header(scenario: &Scenario) -> String {
    let config = &scenario.config;
    let vms: Vec<String> =
        config.vms.iter().take(8).map(|vm| format!("{} ({} vCPUs)", vm.name, vm.vcpus)).collect();
    let more =
        if config.vms.len() > 8 { format!(" and {} more", config.vms.len() - 8) } else { String::new() };
    format!(
        "{}\nseed {}, {} pCPUs, {}{more}; {} measured after {} of warm-up\n\n",
        if scenario.description.is_empty() { &scenario.name } else { &scenario.description },
        config.seed,
        config.host.pcpus,
        vms.join(", "),
        Unit::Nanoseconds.show(config.duration_ns as f64),
        Unit::Nanoseconds.show(config.warmup_ns as f64),
    )
}

fn page(scenario: &Scenario, snapshot: &Snapshot) -> String {
    let mut page = Page::new(&format!("Simulation: {}", scenario.name));
    header(scenario).trim_end().lines().for_each(|line| page.paragraph(line));
    let lines = snapshot.of(&figures::MICRO_POOL_SIZE).filter_map(|entry| match &entry.value {
        Value::Series(points) => {
            let end = points
                .last()
                .map(|(_, size)| (scenario.config.warmup_ns + scenario.config.duration_ns, *size));
            Some(("micro-sliced pCPUs".to_owned(), points.iter().copied().chain(end).collect()))
        }
        _ => None,
    });
    let chart = StepChart {
        title: "Size of the micro pool".to_owned(),
        y_label: "pCPUs".to_owned(),
        lines: lines.collect(),
    };
    page.plots(&[chart.to_svg()]);
    page.heading("Figures");
    page.table(&table::of_snapshot(snapshot));
    page.render()
}

/// What `--list` shows.
#[derive(Clone, Copy, ValueEnum)]
enum Listed {
    All,
    Symbols,
}

fn listing(listed: Listed) -> Result<String, Failure> {
    match listed {
        Listed::All => list_of_files(),
        Listed::Symbols => list_of_symbols(),
    }
}

fn list_of_files() -> Result<String, Failure> {
    let mut scenarios = Table::new(&["scenario", ">pCPUs", ">VMs", ">vCPUs", ""]);
    for name in Shelf::Scenario.built_in_names() {
        let scenario = scenario::load(name, &Overrides::default()).map_err(Failure::broken)?;
        let vms: Vec<_> = scenario.config.vms.iter().filter(|vm| !vm.are_tasks).collect();
        let vcpus: usize = vms.iter().map(|vm| vm.vcpus).sum();
        let counts = [scenario.config.host.pcpus, vms.len(), vcpus].map(|count| count.to_string());
        scenarios.row([name.to_owned()].into_iter().chain(counts).chain([scenario.description]));
    }
    let mut text = format!("{scenarios}\n");
    for (title, shelf) in [
        ("workload", Shelf::Workload),
        ("host", Shelf::Host),
        ("kernel", Shelf::Kernel),
        ("nic", Shelf::Nic),
        ("policy", Shelf::Policy),
    ] {
        let mut table = Table::new(&[title, ""]);
        for (name, description) in shelf.built_in_descriptions() {
            table.row([name.to_owned(), description]);
        }
        text.push_str(&format!("{table}\n"));
    }
    text.push_str(&format!("policies as --policy takes them: {}\n", scenario::policy_names().join(" ")));
    text.push_str("functions of each kernel, and which are critical: microslice simulate --list=symbols\n");
    Ok(text)
}

fn list_of_symbols() -> Result<String, Failure> {
    let mut text = String::new();
    for (kernel, functions) in scenario::symbol_tables() {
        text.push_str(&format!("symbols of {kernel}: {}\n", functions.join(" ")));
    }
    for (kernel, functions) in scenario::critical_functions().map_err(Failure::broken)? {
        text.push_str(&format!("of these critical in {kernel}: {}\n", functions.join(", ")));
    }
    Ok(text)
}
