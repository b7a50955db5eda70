//! The demo's first part: the simulator at the speed of hardware, Linux's own scheduler and ours.

use super::bars::bar;
use super::reading::{Reading, Role, times};
use super::screen::Block;
use crate::commands::simulate::failure_of;
use crate::failure::Failure;
use crate::progress::ProgressLine;
use microslice_engine::report::RunReport;
use microslice_experiments::batch::{BatchProgress, Job, run_each};
use microslice_experiments::scenario::{self, Overrides};
use microslice_metrics::Histogram;
use microslice_metrics::Unit;
use microslice_metrics::plot::{Bar, BarChart, BarSeries};
use microslice_metrics::table::Table;
use microslice_model::config::SimulationConfig;
use microslice_testbed::relative::Figure;
use serde_json::{Value, json};
use std::sync::Arc;

const SCENARIO: &str = "dedup-swaptions";
/// A kernel of today for both VMs, in place of the paper's.
const SETTINGS: [(&str, &str); 2] =
    [("vm.target.kernel", "linux-modern"), ("vm.corunner.kernel", "linux-modern")];
/// The kernel-heavy VM and the one that computes: their names there, and on the screen.
const HEAVY: (&str, &str) = ("target", "dedup");
const HOG: (&str, &str) = ("corunner", "swaptions");
/// The screen shows the first and the last; the other one tells what of a loss is micro-slicing's.
const POLICIES: [(Role, &str); 3] =
    [(Role::First, "eevdf"), (Role::PoolOff, "microslice:0"), (Role::Ours, "microslice")];
/// On two cores a few seconds.
pub const SEEDS: u64 = 10;
/// Confidence intervals of these figures are narrower.
const EQUAL_WITHIN: f64 = 1.05;
/// Characters of the longest bar.
const BAR_COLUMNS: usize = 12;

/// Figures with bars: of which VM, and what they are called.
const ROWS: [((&str, &str), Figure, &str); 5] = [
    (HEAVY, Figure::WorkPerCpuSecond, "dedup work/CPU s"),
    (HOG, Figure::WorkPerCpuSecond, "swaptions work/CPU s"),
    (HEAVY, Figure::ShootdownP50, "shootdown p50"),
    (HEAVY, Figure::ShootdownP99, "shootdown p99"),
    (HEAVY, Figure::WakeP99, "wake-up p99"),
];

/// Each policy's runs, a seed each.
pub struct Simulated(Vec<Vec<RunReport>>);

pub fn run(seeds: u64, progress: &Arc<BatchProgress>) -> Result<Simulated, Failure> {
    let settings: Vec<_> = SETTINGS.iter().map(|(path, value)| ((*path).into(), (*value).into())).collect();
    let config = |(_, policy): &(Role, &str)| {
        let policy = Some((*policy).to_owned());
        let overrides = Overrides { policy, settings: settings.clone(), ..Overrides::default() };
        scenario::load(SCENARIO, &overrides).map(|scenario| scenario.config).map_err(Failure::broken)
    };
    let configs = POLICIES.iter().map(config).collect::<Result<Vec<_>, _>>()?;
    runs_of(&configs, seeds, "demo: simulating", SCENARIO, progress).map(Simulated)
}

/// Runs each configuration with so many seeds; `what` is told while it takes, `scenario` if it fails.
pub fn runs_of(
    configs: &[SimulationConfig],
    seeds: u64,
    what: &str,
    scenario: &str,
    progress: &Arc<BatchProgress>,
) -> Result<Vec<Vec<RunReport>>, Failure> {
    let _line = ProgressLine::of_batch(what.to_owned(), progress.clone());
    let jobs: Vec<Job<'_>> =
        configs.iter().flat_map(|config| (1..=seeds).map(move |seed| Job { config, seed })).collect();
    let mut reports = run_each(&jobs, progress, |_, report| report)
        .map_err(|(index, error)| failure_of(&format!("run {index} of {scenario}"), &error))?
        .into_iter();
    Ok(configs.iter().map(|_| reports.by_ref().take(seeds as usize).collect()).collect())
}

/// A figure of the VM `name` of a run, in the testbed's units.
pub fn figure_of(figure: Figure, report: &RunReport, name: &str) -> Option<f64> {
    let vm = report.vms.iter().find(|vm| vm.name == name)?;
    let seconds = |ns: u64| ns as f64 / 1e9;
    let us = |waits: &Histogram, percent| waits.percentile(percent).map(|ns| ns as f64 / 1e3);
    match figure {
        Figure::Cpus => Some(seconds(vm.run_ns) / seconds(report.measured_ns)),
        Figure::WorkPerCpuSecond => {
            let units: u64 = vm.workloads.iter().map(|workload| workload.units_done).sum();
            (vm.run_ns > 0).then(|| units as f64 / seconds(vm.run_ns))
        }
        Figure::ShootdownP50 => us(&vm.tlb_sync, 50.0),
        Figure::ShootdownP99 => us(&vm.tlb_sync, 99.0),
        Figure::WakeP50 => us(&vm.wake_waits, 50.0),
        Figure::WakeP99 => us(&vm.wake_waits, 99.0),
    }
}

/// Of those that are there.
pub fn mean(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let values: Vec<f64> = values.flatten().collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

impl Simulated {
    /// The mean over seeds.
    fn value(&self, role: Role, vm: &str, figure: Figure) -> Option<f64> {
        let runs = self.0.get(POLICIES.iter().position(|(of, _)| *of == role)?)?;
        mean(runs.iter().map(|report| figure_of(figure, report, vm)))
    }

    fn seeds(&self) -> usize {
        self.0.first().map_or(0, Vec::len)
    }

    /// The screen's first block.
    pub fn block(&self) -> Block {
        let [(_, first), .., (_, ours)] = POLICIES;
        let value = |role: Role, vm: &str, figure: Figure| self.value(role, vm, figure);
        let reading =
            Reading { value: &value, heavy: HEAVY, hog: HOG, first, equal_within: EQUAL_WITHIN }.sentences();
        Block {
            heading: "SIMULATED".into(),
            about: format!(
                "at the speed of hardware: dedup (sends TLB shootdowns) and swaptions (computes) in VMs of 12 vCPUs \
                 on 12 CPUs, with a Linux of today. {first} is Linux's own scheduler, {ours} ours. {} seeds.",
                self.seeds()
            ),
            table: self.table(first, ours),
            notes: Vec::new(),
            reading,
            charts: ROWS.iter().map(|row| self.chart(row)).collect(),
        }
    }

    fn table(&self, first: &str, ours: &str) -> Table {
        let (first, ours) = (format!(">{first}"), format!(">{ours}"));
        let mut table = Table::new(&["figure", &first, "", &ours, "", ">over"]);
        for ((vm, _), figure, name) in ROWS {
            let both = [Role::First, Role::Ours].map(|role| self.value(role, vm, figure));
            let longest = both.iter().copied().flatten().fold(0.0, f64::max);
            let [(first, first_bar), (ours, our_bar)] =
                both.map(|value| (shown(figure, value), bar(value.unwrap_or(0.0), longest, BAR_COLUMNS)));
            let ratio = both[1].zip(both[0]).map(|(ours, first)| ours / first);
            table.row([name.to_owned(), first, first_bar, ours, our_bar, times(ratio)]);
        }
        table
    }

    fn chart(&self, &((vm, _), figure, name): &((&str, &str), Figure, &str)) -> BarChart {
        let bars = POLICIES
            .map(|(role, _)| self.value(role, vm, figure).map(|value| Bar { value, ..Bar::default() }));
        let unit = if figure == Figure::WorkPerCpuSecond { "units" } else { "us" };
        BarChart {
            title: name.into(),
            y_label: unit.into(),
            categories: POLICIES.map(|(_, policy)| policy.to_owned()).into(),
            series: vec![BarSeries { name: name.into(), bars: bars.into() }],
            ..BarChart::default()
        }
    }

    /// `{"scenario", "settings", "seeds", "policies": {POLICY: {VM: {FIGURE: MEAN}}}}`.
    pub fn to_json(&self) -> Value {
        let figures = |role: Role, vm: &str| -> Value {
            let of = |figure: &Figure| (figure.key().to_owned(), json!(self.value(role, vm, *figure)));
            Figure::ALL.iter().map(of).collect()
        };
        let vms = |role: Role| json!({ HEAVY.1: figures(role, HEAVY.0), HOG.1: figures(role, HOG.0) });
        let policies: Value = POLICIES.iter().map(|&(role, name)| (name.to_owned(), vms(role))).collect();
        let settings: Value = SETTINGS.iter().map(|&(path, value)| (path.to_owned(), json!(value))).collect();
        json!({ "scenario": SCENARIO, "settings": settings, "seeds": self.seeds(), "policies": policies })
    }
}

fn shown(figure: Figure, value: Option<f64>) -> String {
    let show = |value: f64| match figure {
        Figure::WorkPerCpuSecond => Unit::Count.show(value.round()),
        _ => Unit::Nanoseconds.show(value * 1e3),
    };
    value.map_or("-".into(), show)
}
