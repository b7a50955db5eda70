//! Ahn et al., EuroSys'18: what each published number is in a simulated run. The shapes of its plots are in
//! `shapes.rs`, the plots in `plots.rs`, and `sensitivity.rs` varies the model's parameters.

mod plots;
mod sensitivity;
mod shapes;

pub use sensitivity::{Sensitivity, SensitivityRow};

use super::Reproduction;
use super::published::group_of;
use super::runs::{
    BASELINE, DYNAMIC, Experiment, RunTable, STATIC, corunner_time, over_one_run, target, target_time,
};
use super::study::{Shape, Study};
use microslice_engine::report::{NetworkReport, RunReport};
use microslice_metrics::html::Page;
use microslice_model::config::{PoolSize, SchedulerKind, SimulationConfig};

/// Programs of Figure 8 that hardly use the kernel's critical services. The paper's text names neither the
/// two of PARSEC nor the "several" of SPEC CPU2006. These differ in what the model knows of such programs:
/// threads, caches, pages.
pub const UNAFFECTED: [&str; 5] = [
    "blackscholes-swaptions",
    "spec-cpu-swaptions",
    "spec-cpu-single-swaptions",
    "spec-cpu-streaming-swaptions",
    "spec-cpu-allocating-swaptions",
];

/// A whole run, as Lockstat adds up.
const GMAKE_RUN: &str = "gmake-swaptions-run";

/// Ahn et al.: flexible micro-sliced cores.
#[derive(Debug)]
pub struct Eurosys18;

impl Study for Eurosys18 {
    fn name(&self) -> &'static str {
        "eurosys18"
    }

    fn title(&self) -> &'static str {
        "EuroSys'18"
    }

    fn paper(&self) -> &'static str {
        r#"Ahn et al., "Accelerating Critical OS Services in Virtualized Systems with Flexible Micro-sliced Cores""#
    }

    fn numbers(&self) -> &'static str {
        "paper-results/eurosys18.toml"
    }

    fn kinds(&self) -> &'static str {
        "Calibrated: the model was fitted to it, or it is a parameter. Predicted: of two VMs, and nothing was fitted to it; but \
             programs and mechanics of the model were chosen with some of these numbers in view, which docs/explanation/reproduction.md lists (What was \
             fitted, and to what)."
    }

    fn groups_without_numbers(&self) -> &'static [&'static str] {
        &["figure7"]
    }

    fn unit(&self, id: &str) -> &'static str {
        let last = id.rsplit('.').next().unwrap_or_default();
        match group_of(id) {
            "table2" => "count",
            "table4a" | "table4b" => "us",
            _ if last.ends_with("_ms") || id.contains("jitter_ms") => "ms",
            _ if last.ends_with("_us") => "us",
            _ if last.ends_with("_mbps") => "Mbit/s",
            _ if last.ends_with("_limit") => "count",
            _ => "ratio",
        }
    }

    /// Solo figures and parameters went into the model.
    fn is_calibrated(&self, id: &str) -> bool {
        group_of(id) == "parameters" || id.split('.').any(|part| part == "solo")
    }

    fn experiments_of(&self, group: &str) -> Vec<Experiment> {
        let pairs = |workloads: &[&str], policies: &[&str]| -> Vec<Experiment> {
            let scenarios = workloads.iter().map(|workload| format!("{workload}-swaptions"));
            scenarios
                .flat_map(|scenario| policies.iter().map(move |policy| Experiment::new(&scenario, policy)))
                .collect()
        };
        let solo = |workloads: &[&str]| -> Vec<Experiment> {
            workloads.iter().map(|workload| Experiment::new(&format!("{workload}-solo"), BASELINE)).collect()
        };
        let mut statics = vec![BASELINE];
        statics.extend(STATIC);
        let mut all = statics.clone();
        all.push(DYNAMIC);
        match group {
            "table2" => {
                let workloads = ["exim", "gmake", "dedup", "vips"];
                [solo(&workloads), pairs(&workloads, &[BASELINE])].concat()
            }
            "table4a" => vec![Experiment::new("gmake-solo", BASELINE), Experiment::new(GMAKE_RUN, BASELINE)],
            "table4b" => [solo(&["dedup", "vips"]), pairs(&["dedup", "vips"], &[BASELINE])].concat(),
            "table4c" => ["iperf-tcp-solo", "iperf-udp-solo", "iperf-tcp-mixed", "iperf-udp-mixed"]
                .map(|scenario| Experiment::new(scenario, BASELINE))
                .to_vec(),
            "section3" => pairs(&["dedup"], &[BASELINE]),
            "figure4" => pairs(&["gmake", "memclone", "dedup", "vips"], &statics),
            "figure5" => pairs(&["exim", "psearchy"], &statics),
            "figure6" | "figure7" => pairs(&["gmake", "memclone", "dedup", "vips", "exim", "psearchy"], &all),
            "figure8" => UNAFFECTED
                .iter()
                .flat_map(|scenario| [BASELINE, DYNAMIC].map(|policy| Experiment::new(scenario, policy)))
                .collect(),
            "figure9" => ["iperf-tcp-mixed", "iperf-udp-mixed"]
                .iter()
                .flat_map(|scenario| [BASELINE, DYNAMIC].map(|policy| Experiment::new(scenario, policy)))
                .collect(),
            "abstract" => pairs(&["exim", "dedup", "vips"], &[BASELINE, DYNAMIC]),
            _ => Vec::new(),
        }
    }

    fn measure(&self, id: &str, runs: &RunTable) -> Vec<f64> {
        let parts: Vec<&str> = id.split('.').collect();
        match parts.as_slice() {
            ["table2", workload, configuration] => {
                let yields = |report: &RunReport| over_one_run(report, target(report).yields.total());
                runs.each(&scenario_of(workload, configuration), BASELINE, yields)
            }
            ["table4a", lock, configuration] => {
                let scenario = if *configuration == "solo" { "gmake-solo" } else { GMAKE_RUN };
                runs.each(scenario, BASELINE, |report| {
                    let wait = target(report).lockstat_waits.get(*lock).and_then(|waits| waits.mean());
                    wait.map_or(f64::NAN, |ns| ns / 1e3)
                })
            }
            ["table4b", workload, configuration, number] => {
                runs.each(&scenario_of(workload, configuration), BASELINE, |report| {
                    shootdown_us(report, number)
                })
            }
            ["table4c", configuration @ .., number] => {
                let mixed = if configuration.contains(&"mixed") { "mixed" } else { "solo" };
                iperf(runs, mixed, BASELINE, number)
            }
            ["section3", "dedup", "corun", _] => runs.each("dedup-swaptions", BASELINE, |report| {
                target(report).shootdown_spin_ns as f64 / target(report).run_ns as f64
            }),
            ["figure4" | "figure5", pair, number] => {
                let Some((workload, cores)) = pair.split_once('_') else { return Vec::new() };
                let count = cores.trim_end_matches("cores").trim_end_matches("core");
                relative_figure(runs, &format!("{workload}-swaptions"), &format!("micro-xen:{count}"), number)
            }
            ["figure6", "dynamic", number] => dynamic_figure(runs, number),
            ["figure8", "overhead", _] => overhead(runs),
            ["figure9", "udp_jitter_ms", "baseline"] => iperf(runs, "mixed", BASELINE, "jitter_ms"),
            ["figure9", "udp_jitter_ms", "micro_sliced"] => iperf(runs, "mixed", DYNAMIC, "jitter_ms"),
            ["abstract", number] => match number.split_once('_') {
                Some((workload, number)) => {
                    relative_figure(runs, &format!("{workload}-swaptions"), DYNAMIC, number)
                }
                None => Vec::new(),
            },
            ["parameters", name] => parameter(name).into_iter().collect(),
            _ => Vec::new(),
        }
    }

    fn shapes(&self, runs: &RunTable) -> Vec<Shape> {
        shapes::shapes(runs)
    }

    fn draw(&self, page: &mut Page, reproduction: &Reproduction) {
        plots::draw(page, reproduction);
    }

    fn has_sensitivity(&self) -> bool {
        true
    }
}

fn scenario_of(workload: &str, configuration: &str) -> String {
    format!("{workload}-{}", if configuration == "solo" { "solo" } else { "swaptions" })
}

fn shootdown_us(report: &RunReport, number: &str) -> f64 {
    let waits = &target(report).tlb_sync;
    let ns = match number {
        "avg" => waits.mean(),
        "min" => waits.min().map(|ns| ns as f64),
        _ => waits.max().map(|ns| ns as f64),
    };
    ns.map_or(f64::NAN, |ns| ns / 1e3)
}

/// Throughput comes from the TCP stream, jitter from the UDP stream, as iPerf reports them.
fn iperf(runs: &RunTable, configuration: &str, policy: &str, number: &str) -> Vec<f64> {
    let network = |report: &RunReport| target(report).network.clone();
    match number {
        "jitter_ms" => runs.each(&format!("iperf-udp-{configuration}"), policy, |report| {
            network(report).map_or(f64::NAN, |network| jitter_ms(&network))
        }),
        _ => runs.each(&format!("iperf-tcp-{configuration}"), policy, |report| {
            network(report).map_or(f64::NAN, |network| network.throughput_mbps)
        }),
    }
}

/// Infinite if nothing arrived.
pub fn jitter_ms(network: &NetworkReport) -> f64 {
    if network.packets > 0 { network.jitter_ms } else { f64::INFINITY }
}

/// A number that compares a policy with the baseline on one pair of VMs.
fn relative_figure(runs: &RunTable, scenario: &str, policy: &str, number: &str) -> Vec<f64> {
    let target = runs.relative(scenario, policy, BASELINE, target_time);
    let corunner = runs.relative(scenario, policy, BASELINE, corunner_time);
    match number {
        "combined_throughput_gain" | "aggregate_gain" => {
            let pairs = target.iter().zip(&corunner);
            pairs.map(|(&target, &corunner)| combined_gain(target, corunner)).collect()
        }
        "target_time_reduction" => made_of(&target, |time| 1.0 - time),
        "target_yield_time_reduction" => {
            let spinning = |report: &RunReport| over_one_run(report, report.vms[0].spin_ns);
            made_of(&runs.relative(scenario, policy, BASELINE, spinning), |time| 1.0 - time)
        }
        "swaptions_time_increase" => made_of(&corunner, |time| time - 1.0),
        "target_gain" | "throughput_ratio" | "swaptions_gain" => {
            let times = if number == "swaptions_gain" { &corunner } else { &target };
            let minus = if number == "throughput_ratio" { 0.0 } else { 1.0 };
            made_of(times, |time| 1.0 / time - minus)
        }
        _ => Vec::new(),
    }
}

/// What is made of each time; an infinite one stays that, so that a run without progress isn't one of many.
fn made_of(times: &[f64], value: impl Fn(f64) -> f64) -> Vec<f64> {
    times.iter().map(|&time| if time.is_infinite() { time } else { value(time) }).collect()
}

/// Mean of both VMs' speeds relative to the baseline, less one: the paper's "combined throughput improvement"
/// (it agrees with its other numbers for dedup: 1.14 times the time for swaptions and 0.45 for dedup give 56
/// %).
pub fn combined_gain(target_time: f64, corunner_time: f64) -> f64 {
    if target_time.is_infinite() || corunner_time.is_infinite() {
        return f64::INFINITY;
    }
    (1.0 / target_time + 1.0 / corunner_time) / 2.0 - 1.0
}

fn dynamic_figure(runs: &RunTable, number: &str) -> Vec<f64> {
    let Some((workload, number)) = number.split_once('_') else { return Vec::new() };
    let scenario = format!("{workload}-swaptions");
    let Some(best) = runs.best_static(&scenario) else { return Vec::new() };
    let against_best = runs.relative(&scenario, DYNAMIC, best, target_time);
    match number {
        "loss_vs_static" => made_of(&against_best, |time| time - 1.0),
        "vs_static" => made_of(&against_best, |time| 1.0 / time),
        _ => relative_figure(runs, &scenario, DYNAMIC, number),
    }
}

/// Mean overhead of the dynamic policy over all unaffected programs.
fn overhead(runs: &RunTable) -> Vec<f64> {
    let each = UNAFFECTED.map(|scenario| runs.relative(scenario, DYNAMIC, BASELINE, target_time));
    let seeds = each.iter().map(Vec::len).min().unwrap_or(0);
    (0..seeds)
        .map(|seed| each.iter().map(|times| times[seed] - 1.0).sum::<f64>() / each.len() as f64)
        .collect()
}

/// The paper's parameters are ours; read back from the configuration that is run.
fn parameter(name: &str) -> Option<f64> {
    let overrides = microslice_experiments::scenario::Overrides {
        policy: Some(DYNAMIC.to_owned()),
        ..microslice_experiments::scenario::Overrides::default()
    };
    let config: SimulationConfig =
        microslice_experiments::scenario::load("gmake-swaptions", &overrides).ok()?.config;
    let SchedulerKind::MicroSliced(micro) = config.scheduler else { return None };
    let PoolSize::Auto { profile_interval_ns, epoch_interval_ns, .. } = micro.pool else { return None };
    match name {
        "micro_slice_us" => Some(micro.micro_slice_ns as f64 / 1e3),
        "normal_slice_ms" => Some(micro.normal.slice_ns() as f64 / 1e6),
        "profile_interval_ms" => Some(profile_interval_ns as f64 / 1e6),
        "epoch_interval_ms" => Some(epoch_interval_ns as f64 / 1e6),
        // The host model gives every micro-sliced pCPU a queue of one.
        "micro_runqueue_length_limit" => Some(1.0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduction::published::published;

    #[test]
    fn combined_gain_agrees_with_the_papers_numbers_for_dedup() {
        assert!((combined_gain(0.4462, 1.14) - 0.56).abs() < 0.001);
    }

    #[test]
    fn what_is_made_of_the_time_of_a_run_without_progress_stays_infinite() {
        assert_eq!(made_of(&[2.0, f64::INFINITY], |time| 1.0 / time), [0.5, f64::INFINITY]);
        assert_eq!(combined_gain(f64::INFINITY, 1.0), f64::INFINITY);
        assert_eq!(combined_gain(1.0, f64::INFINITY), f64::INFINITY);
    }

    #[test]
    fn a_stream_of_which_nothing_arrives_has_no_jitter_of_zero() {
        assert_eq!(jitter_ms(&NetworkReport::default()), f64::INFINITY);
        assert_eq!(jitter_ms(&NetworkReport { packets: 2, jitter_ms: 0.1, ..NetworkReport::default() }), 0.1);
    }

    #[test]
    fn every_group_but_the_parameters_names_its_experiments_and_they_exist() {
        let mut groups: Vec<String> =
            published(&Eurosys18).iter().map(|number| group_of(&number.id).to_owned()).collect();
        groups.dedup();
        for group in groups.iter().filter(|group| *group != "parameters") {
            let experiments = Eurosys18.experiments_of(group);
            assert!(!experiments.is_empty(), "{group}");
            for experiment in experiments {
                let overrides = microslice_experiments::scenario::Overrides {
                    policy: Some(experiment.policy.clone()),
                    ..microslice_experiments::scenario::Overrides::default()
                };
                microslice_experiments::scenario::load(&experiment.scenario, &overrides)
                    .expect("a built-in scenario");
            }
        }
    }
}
