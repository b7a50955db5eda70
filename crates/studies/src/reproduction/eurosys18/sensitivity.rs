//! Which parameter of the model moves which figure: each is varied by 20 % both ways, everything else kept.
//! Figures differ from seed to seed, so every change is estimated over the seeds, and one that may be chance
//! isn't shown as a number.

use crate::reproduction::runs::{
    BASELINE, DYNAMIC, Experiment, ReproductionError, RunTable, estimate, target, target_time,
};
use microslice_experiments::batch::BatchProgress;
use microslice_metrics::Estimate;
use microslice_metrics::table::Table;
use microslice_model::config::{MicroSlicedConfig, NormalPoolKind, SchedulerKind, SimulationConfig};

/// Simulated time per run, at most: longer ones differ from seed to seed nearly as much.
const DURATION_NS: u64 = 4_000_000_000;
/// What a table shows of a change whose confidence interval has 0 in it.
const MAY_BE_CHANCE: &str = ".";

type Scale = fn(&mut SimulationConfig, f64);

fn times(value: &mut u64, factor: f64) {
    *value = (*value as f64 * factor).round() as u64;
}

/// Of a hardware thread, in 1/1000 of its speed alone: never above that.
fn scaled_speed(permille: u32, factor: f64) -> u32 {
    ((f64::from(permille) * factor).round() as u32).min(1_000)
}

/// The parameters: name and how to scale them. None of them was fitted to a co-run figure, but the two speeds
/// of hyper-threads were chosen while looking at some (docs/explanation/simulator.md, SMT).
const PARAMETERS: [(&str, Scale); 16] = [
    ("context switch", |config, factor| times(&mut config.host.costs.context_switch_ns, factor)),
    ("exit", |config, factor| times(&mut config.host.costs.exit_ns, factor)),
    ("IPI send", |config, factor| times(&mut config.host.costs.ipi_send_ns, factor)),
    ("IPI delivery", |config, factor| {
        let costs = &mut config.host.costs;
        times(&mut costs.ipi_delivery_ns, factor);
        times(&mut costs.interrupt_entry_ns, factor);
    }),
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

fn credit(config: &mut SimulationConfig) -> &mut microslice_model::config::CreditConfig {
    match &mut config.scheduler {
        SchedulerKind::Credit(credit) => credit,
        SchedulerKind::MicroSliced(MicroSlicedConfig { normal: NormalPoolKind::Credit(credit), .. }) => {
            credit
        }
        // The experiments run the paper's schedulers only (`experiments`).
        _ => unreachable!("the paper's experiments run on the credit scheduler only"),
    }
}

fn kernels(config: &mut SimulationConfig, change: impl Fn(&mut microslice_model::config::GuestKernelConfig)) {
    config.vms.iter_mut().for_each(|vm| change(&mut vm.kernel));
}

/// One value per seed.
type Measure = fn(&RunTable) -> Vec<f64>;

/// The figures that stand for all: one per mechanism.
const FIGURES: [(&str, Measure); 9] = [
    ("gmake 1", |runs| relative_times(runs, "gmake-swaptions", "micro-xen:1")),
    ("memclone 1", |runs| relative_times(runs, "memclone-swaptions", "micro-xen:1")),
    ("dedup 1", |runs| relative_times(runs, "dedup-swaptions", "micro-xen:1")),
    ("dedup 3", |runs| relative_times(runs, "dedup-swaptions", "micro-xen:3")),
    ("vips 3", |runs| relative_times(runs, "vips-swaptions", "micro-xen:3")),
    ("dedup dyn", |runs| relative_times(runs, "dedup-swaptions", DYNAMIC)),
    ("exim 1", |runs| relative_times(runs, "exim-swaptions", "micro-xen:1")),
    ("dedup tlb", |runs| {
        runs.each("dedup-swaptions", BASELINE, |r| target(r).tlb_sync.mean().unwrap_or(f64::NAN))
    }),
    ("gmake time", |runs| runs.each("gmake-swaptions", BASELINE, target_time)),
];

fn relative_times(runs: &RunTable, scenario: &str, policy: &str) -> Vec<f64> {
    runs.relative(scenario, policy, BASELINE, target_time)
}

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
    pub changes: Vec<(Option<Estimate>, Option<Estimate>)>,
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
            Ok::<_, ReproductionError>(FIGURES.map(|(_, values)| values(&runs)))
        };
        began(0, PARAMETERS.len(), "as it is");
        let middle = measure(&|_| {})?;
        let mut rows = Vec::new();
        for (index, (parameter, scale)) in PARAMETERS.iter().enumerate() {
            began(index + 1, PARAMETERS.len(), parameter);
            let low = measure(&|config| scale(config, 0.8))?;
            let high = measure(&|config| scale(config, 1.2))?;
            let changes =
                (0..FIGURES.len()).map(|i| (change(&low[i], &middle[i]), change(&high[i], &middle[i])));
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
        for row in &self.rows {
            let cells = row.changes.iter().map(|(low, high)| format!("{} / {}", shown(low), shown(high)));
            table.row([row.parameter.to_owned()].into_iter().chain(cells));
        }
        let widths = (0..FIGURES.len()).map(|figure| self.typical_half_width(figure));
        let widths =
            widths.map(|width| width.map_or("-".to_owned(), |width| format!("{:.0}", width * 100.0)));
        table.row(["seen from".to_owned()].into_iter().chain(widths));
        table
    }

    /// Smaller changes of this figure are lost in what seeds differ by: the median of half the intervals'
    /// widths.
    fn typical_half_width(&self, figure: usize) -> Option<f64> {
        let changes = self.rows.iter().flat_map(|row| [row.changes[figure].0, row.changes[figure].1]);
        let estimates = changes.flatten().filter(|change| change.count > 1);
        let mut widths: Vec<f64> = estimates.map(|change| change.half_width()).collect();
        widths.sort_by(f64::total_cmp);
        widths.get(widths.len() / 2).copied()
    }
}

/// How far values are from those of the same seeds before, as a ratio less one. Halving and doubling cancel
/// out.
fn change(values: &[f64], before: &[f64]) -> Option<Estimate> {
    let logarithms: Vec<f64> =
        values.iter().zip(before).map(|(value, before)| (value / before).ln()).collect();
    estimate(&logarithms).map(|Estimate { mean, low, high, count }| Estimate {
        mean: mean.exp_m1(),
        low: low.exp_m1(),
        high: high.exp_m1(),
        count,
    })
}

/// In per cent.
fn shown(change: &Option<Estimate>) -> String {
    match change {
        None => "-".to_owned(),
        Some(change) if change.count > 1 && change.low <= 0.0 && change.high >= 0.0 => {
            MAY_BE_CHANCE.to_owned()
        }
        Some(change) => format!("{:+.0}", change.mean * 100.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_all_seeds_agree_on_is_shown_in_per_cent() {
        let halved = change(&[5.0, 10.2, 20.0], &[10.0, 20.0, 40.0]);
        assert_eq!(shown(&halved), "-50");
    }

    #[test]
    fn one_that_may_be_chance_is_shown_as_such() {
        let up_and_down = change(&[5.0, 40.0, 20.0], &[10.0, 20.0, 20.0]);
        let mean = up_and_down.expect("three seeds").mean;
        assert!(mean.abs() < 1e-9, "halving and doubling cancel out: {mean}");
        assert_eq!(shown(&up_and_down), MAY_BE_CHANCE);
    }

    #[test]
    fn the_last_row_says_what_is_lost_in_the_differences_between_seeds() {
        let row = |values: [f64; 2]| {
            let changes = FIGURES.map(|_| (change(&values, &[1.0, 1.0]), change(&[1.0], &[1.0])));
            SensitivityRow { parameter: "exit", changes: changes.into() }
        };
        let rows = vec![row([1.0, 1.0]), row([0.99, 1.01]), row([0.5, 2.0])];
        let middle = Sensitivity { rows }.typical_half_width(0).expect("of two seeds each");
        assert!((0.1..0.2).contains(&middle), "0.01 times Student's 12.7 is {middle}");
    }

    #[test]
    fn of_a_single_seed_nobody_knows() {
        assert_eq!(shown(&change(&[12.0], &[10.0])), "+20");
    }

    #[test]
    fn a_figure_that_no_run_has_has_no_change() {
        assert_eq!(shown(&change(&[f64::NAN], &[1.0])), "-");
    }
}
