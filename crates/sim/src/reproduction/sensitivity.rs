//! Which parameter of the model moves which figure: each is varied by 20 % both ways, everything else kept.

use super::plots::relative_time;
use super::runs::{BASELINE, DYNAMIC, Experiment, ReproductionError, RunTable, target, target_time};
use crate::batch::BatchProgress;
use crate::comparison::mean;
use crate::config::{SchedulerKind, SimulationConfig};
use microslice_metrics::table::Table;

/// Simulated time per run: enough for figures that move by more than a few per cent to show it.
const DURATION_NS: u64 = 1_000_000_000;

type Scale = fn(&mut SimulationConfig, f64);

fn times(value: &mut u64, factor: f64) {
    *value = (*value as f64 * factor).round() as u64;
}

/// Of a hardware thread, in 1/1000 of its speed alone: never above that.
fn scaled_speed(permille: u32, factor: f64) -> u32 {
    ((f64::from(permille) * factor).round() as u32).min(1_000)
}

/// The parameters: name and how to scale them. None of them was fitted to a co-run figure.
const PARAMETERS: [(&str, Scale); 16] = [
    ("context switch", |config, factor| times(&mut config.host.costs.context_switch_ns, factor)),
    ("exit", |config, factor| times(&mut config.host.costs.exit_ns, factor)),
    ("IPI send", |config, factor| times(&mut config.host.costs.ipi_send_ns, factor)),
    ("IPI delivery", |config, factor| times(&mut config.host.costs.ipi_delivery_ns, factor)),
    ("cache refill", |config, factor| times(&mut config.host.costs.cache_refill_max_ns, factor)),
    ("cache displacement", |config, factor| times(&mut config.host.costs.cache_displace_ns, factor)),
    ("speed beside busy", |config, factor| {
        let host = &mut config.host;
        host.smt_busy_speed_permille = scaled_speed(host.smt_busy_speed_permille, factor);
        host.smt_spin_speed_permille = host.smt_spin_speed_permille.max(host.smt_busy_speed_permille);
    }),
    ("speed beside spinning", |config, factor| {
        let host = &mut config.host;
        let speed = scaled_speed(host.smt_spin_speed_permille, factor);
        host.smt_spin_speed_permille = speed.max(host.smt_busy_speed_permille);
    }),
    ("PLE window", |config, factor| times(&mut config.host.ple.window_ns, factor)),
    ("normal slice", |config, factor| times(&mut credit(config).slice_ns, factor)),
    ("rate limit", |config, factor| times(&mut credit(config).ratelimit_ns, factor)),
    ("PV lock spin", |config, factor| kernels(config, |kernel| times(&mut kernel.pv_spin_ns, factor))),
    ("call-function handler", |config, factor| {
        kernels(config, |kernel| times(&mut kernel.call_function_handler_ns, factor));
    }),
    ("reschedule handler", |config, factor| {
        kernels(config, |kernel| times(&mut kernel.reschedule_handler_ns, factor));
    }),
    ("guest thread switch", |config, factor| {
        kernels(config, |kernel| times(&mut kernel.thread_switch_ns, factor))
    }),
    ("micro slice", |config, factor| {
        if let SchedulerKind::MicroSliced(micro) = &mut config.scheduler {
            times(&mut micro.micro_slice_ns, factor);
        }
    }),
];

fn credit(config: &mut SimulationConfig) -> &mut crate::config::CreditConfig {
    match &mut config.scheduler {
        SchedulerKind::Credit(credit) => credit,
        SchedulerKind::MicroSliced(micro) => &mut micro.normal,
        // The experiments run the paper's schedulers only (`experiments`).
        _ => unreachable!("the paper's experiments run credit and micro-sliced only"),
    }
}

fn kernels(config: &mut SimulationConfig, change: impl Fn(&mut crate::config::GuestKernelConfig)) {
    config.vms.iter_mut().for_each(|vm| change(&mut vm.kernel));
}

type Measure = fn(&RunTable) -> Option<f64>;

/// The figures that stand for all: one per mechanism.
const FIGURES: [(&str, Measure); 9] = [
    ("gmake 1", |runs| relative_time(runs, "gmake-swaptions", "micro-xen:1")),
    ("memclone 1", |runs| relative_time(runs, "memclone-swaptions", "micro-xen:1")),
    ("dedup 1", |runs| relative_time(runs, "dedup-swaptions", "micro-xen:1")),
    ("dedup 3", |runs| relative_time(runs, "dedup-swaptions", "micro-xen:3")),
    ("vips 3", |runs| relative_time(runs, "vips-swaptions", "micro-xen:3")),
    ("dedup dyn", |runs| relative_time(runs, "dedup-swaptions", DYNAMIC)),
    ("exim 1", |runs| relative_time(runs, "exim-swaptions", "micro-xen:1")),
    ("dedup tlb", |runs| {
        mean(&runs.each("dedup-swaptions", BASELINE, |r| target(r).tlb_sync.mean().unwrap_or(0.0)))
    }),
    ("gmake time", |runs| mean(&runs.each("gmake-swaptions", BASELINE, target_time))),
];

fn experiments() -> Vec<Experiment> {
    [
        ("gmake", &["micro-xen:1"] as &[&str]),
        ("memclone", &["micro-xen:1"]),
        ("dedup", &["micro-xen:1", "micro-xen:3", DYNAMIC]),
        ("vips", &["micro-xen:3"]),
        ("exim", &["micro-xen:1"]),
    ]
    .iter()
    .flat_map(|(workload, policies)| {
        let scenario = format!("{workload}-swaptions");
        let policies = [BASELINE].iter().chain(policies.iter());
        policies.map(|policy| Experiment::new(&scenario, policy)).collect::<Vec<_>>()
    })
    .collect()
}

/// How the figures change with one parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct SensitivityRow {
    pub parameter: &'static str,
    /// For each figure: its change with the parameter 20 % lower and 20 % higher, as a ratio less one.
    pub changes: Vec<(Option<f64>, Option<f64>)>,
}

/// The whole table.
#[derive(Debug, Clone, PartialEq)]
pub struct Sensitivity {
    pub rows: Vec<SensitivityRow>,
}

impl Sensitivity {
    /// Runs everything twice per parameter; `began` is told each parameter.
    pub fn run(
        seeds: &[u64],
        progress: &BatchProgress,
        began: &mut dyn FnMut(usize, usize, &str),
    ) -> Result<Self, ReproductionError> {
        let shorten =
            |config: &mut SimulationConfig| config.duration_ns = config.duration_ns.min(DURATION_NS);
        let measure = |change: &dyn Fn(&mut SimulationConfig)| {
            let adjust = |config: &mut SimulationConfig| {
                shorten(config);
                change(config);
            };
            let runs = RunTable::run(&experiments(), seeds, &adjust, progress)?;
            Ok::<_, ReproductionError>(FIGURES.map(|(_, figure)| figure(&runs)))
        };
        began(0, PARAMETERS.len(), "as it is");
        let middle = measure(&|_| {})?;
        let mut rows = Vec::new();
        for (index, (parameter, scale)) in PARAMETERS.iter().enumerate() {
            began(index + 1, PARAMETERS.len(), parameter);
            let low = measure(&|config| scale(config, 0.8))?;
            let high = measure(&|config| scale(config, 1.2))?;
            let change = |value: Option<f64>, middle: Option<f64>| Some(value? / middle? - 1.0);
            let changes = (0..FIGURES.len()).map(|i| (change(low[i], middle[i]), change(high[i], middle[i])));
            rows.push(SensitivityRow { parameter, changes: changes.collect() });
        }
        Ok(Self { rows })
    }

    /// Names of the figures, in the order of each row's changes.
    pub fn figures() -> impl Iterator<Item = &'static str> {
        FIGURES.iter().map(|(name, _)| *name)
    }

    /// For people: per figure the change at -20 % and at +20 %, in per cent.
    pub fn table(&self) -> Table {
        let columns: Vec<String> = ["parameter".to_owned()]
            .into_iter()
            .chain(Self::figures().map(|name| format!(">{name}")))
            .collect();
        let mut table = Table::new(&columns.iter().map(String::as_str).collect::<Vec<_>>());
        let percent =
            |change: Option<f64>| change.map_or("-".to_owned(), |change| format!("{:+.0}", change * 100.0));
        for row in &self.rows {
            let cells =
                row.changes.iter().map(|(low, high)| format!("{} / {}", percent(*low), percent(*high)));
            table.row([row.parameter.to_owned()].into_iter().chain(cells));
        }
        table
    }
}
