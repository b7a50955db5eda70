//! Kim et al., ASPLOS'13: what its published numbers and the shapes of its plots are in simulated runs.
//! Here those of its baseline; those of its own scheduler in `coordination.rs` and `parameters.rs`.

mod communication;
mod coordination;
mod delayed_ipis;
mod parameters;
mod plots;

use super::Reproduction;
use super::published::group_of;
use super::runs::{Experiment, RunTable, mean, target};
use super::study::{Shape, Study};
use microslice_engine::report::{RunReport, VmReport};
use microslice_experiments::scenario::{Overrides, load};
use microslice_metrics::html::Page;
use microslice_model::config::{CfsConfig, SchedulerKind};

/// The paper's baseline: CFS of Linux 3.2.
const BASELINE: &str = "cfs";

/// Of PARSEC, those that communicate: their kernel time is amplified beside streamcluster (Figure 2, Table
/// 1).
const COMMUNICATING: [&str; 10] = [
    "bodytrack",
    "canneal",
    "dedup",
    "facesim",
    "ferret",
    "fluidanimate",
    "streamcluster",
    "swaptions",
    "vips",
    "x264",
];
/// And those that don't.
const SILENT: [&str; 3] = ["blackscholes", "freqmine", "raytrace"];
/// Table 1's bold numbers: the programs that spin for shootdowns more than for locks.
const SHOOT_DOWN: [&str; 3] = ["dedup", "ferret", "vips"];
/// Those that meet at a futex's queue.
const OF_FUTEX: [&str; 6] = ["bodytrack", "canneal", "facesim", "fluidanimate", "streamcluster", "x264"];
/// "Largely amplified": the paper's word, our number.
const AMPLIFIED: f64 = 1.5;

/// Kim et al.: demand-based coordinated scheduling.
#[derive(Debug)]
pub struct Asplos13;

impl Study for Asplos13 {
    fn name(&self) -> &'static str {
        "asplos13"
    }

    fn title(&self) -> &'static str {
        "ASPLOS'13"
    }

    fn paper(&self) -> &'static str {
        r#"Kim et al., "Demand-Based Coordinated Scheduling for SMP VMs""#
    }

    fn numbers(&self) -> &'static str {
        "paper-results/asplos13.toml"
    }

    fn kinds(&self) -> &'static str {
        "Calibrated: the model was fitted to it, or it is a parameter. Predicted: nothing was fitted to it; dedup, vips and swaptions are \
             those of eurosys18."
    }

    fn groups_without_numbers(&self) -> &'static [&'static str] {
        &["figure3", "figure7b", "figure7c", "figure9", "figure12"]
    }

    fn unit(&self, id: &str) -> &'static str {
        match id.rsplit('.').next().unwrap_or_default() {
            "low" | "high" if group_of(id) == "section3" => "us",
            _ if group_of(id) == "figure1" => "1/s",
            last if last.ends_with("_us") => "us",
            last if last.ends_with("_ms") => "ms",
            _ => "ratio",
        }
    }

    /// dedup, vips and swaptions are those of EuroSys'18, unchanged: even their solo figures are predictions.
    fn is_calibrated(&self, id: &str) -> bool {
        id.starts_with("parameters.") || id == "figure1.tlb_ipi_per_s_per_vcpu.ferret"
    }

    fn experiments_of(&self, group: &str) -> Vec<Experiment> {
        let each = |programs: &[&str], scenario: fn(&str) -> String| -> Vec<Experiment> {
            programs.iter().map(|program| Experiment::new(&scenario(program), BASELINE)).collect()
        };
        match group {
            "figure1" => communication::experiments_of_figure1(),
            "figure3" => communication::experiments_of_figure3(),
            "table1" => each(&COMMUNICATING, corun),
            "figure2" => {
                let all = [&COMMUNICATING[..], &SILENT].concat();
                [each(&all, solo), each(&all, corun)].concat()
            }
            "section3" => each(&OF_FUTEX, corun),
            "figure12" => delayed_ipis::experiments(),
            _ => coordination::experiments_of(group),
        }
    }

    fn measure(&self, id: &str, runs: &RunTable) -> Vec<f64> {
        let parts: Vec<&str> = id.split('.').collect();
        match parts.as_slice() {
            ["figure1", _, program] => runs.each(&solo(program), BASELINE, |report| {
                let seconds = report.measured_ns as f64 / 1e9;
                target(report).call_function_ipis as f64 / seconds / target(report).vcpus as f64
            }),
            ["table1", program, "tlb"] => {
                runs.each(&corun(program), BASELINE, |report| shootdown_share(target(report)))
            }
            ["table1", program, "lock"] => {
                runs.each(&corun(program), BASELINE, |report| lock_share(target(report)))
            }
            ["table1", program, "kernel_tlb"] => runs.each(&corun(program), BASELINE, |report| {
                shootdown_share(target(report)) / kernel_share(report)
            }),
            ["table1", program, "kernel_lock"] => runs
                .each(&corun(program), BASELINE, |report| lock_share(target(report)) / kernel_share(report)),
            ["figure2", _] => extreme(&COMMUNICATING.map(|program| amplification(runs, program)), f64::max),
            ["section3", _, "low"] => extreme(&futex_waits_us(runs), f64::min),
            ["section3", _, "high"] => extreme(&futex_waits_us(runs), f64::max),
            ["parameters", name] => parameter(name).into_iter().collect(),
            other => coordination::measure(other, runs),
        }
    }

    fn shapes(&self, runs: &RunTable) -> Vec<Shape> {
        let amplified = COMMUNICATING.iter().map(|program| amplification_shape(runs, program, true));
        let silent = SILENT.iter().map(|program| amplification_shape(runs, program, false));
        let causes = COMMUNICATING.iter().map(|program| cause_shape(runs, program));
        let sent = communication::shapes(runs);
        let coordinated = coordination::shapes(runs).into_iter().chain(delayed_ipis::shapes(runs));
        amplified.chain(silent).chain(causes).chain(sent).chain(coordinated).collect()
    }

    fn draw(&self, page: &mut Page, reproduction: &Reproduction) {
        plots::draw(page, reproduction);
    }
}

fn solo(program: &str) -> String {
    format!("asplos13-{program}-solo")
}

fn corun(program: &str) -> String {
    format!("asplos13-{program}")
}

/// The communicating program that a number is about.
fn program_of(id: &str) -> Option<&'static str> {
    COMMUNICATING.into_iter().find(|program| id.split('.').any(|word| word == *program))
}

/// The paper's parameters, read back from the policy that has them.
fn parameter(name: &str) -> Option<f64> {
    let overrides = Overrides { policy: Some("coordinated".to_owned()), ..Overrides::default() };
    let config = load("asplos13-dedup", &overrides).ok()?.config;
    let SchedulerKind::Cfs(CfsConfig { coordination, .. }) = config.scheduler else { return None };
    match name {
        "preemption_delay_us" => Some(coordination.delay_ns as f64 / 1e3),
        "urgent_tslice_us" => Some(coordination.urgent_slice_ns as f64 / 1e3),
        "urgent_allowance_ms" => Some(coordination.urgent_allowance_ns as f64 / 1e6),
        _ => None,
    }
}

/// Of all the CPU time of a VM.
fn shootdown_share(vm: &VmReport) -> f64 {
    vm.shootdown_spin_ns as f64 / vm.run_ns as f64
}

/// With pause-loop exits those of shootdowns are in `shootdown_spin_ns` only, so a VM that waits for both has
/// a little more.
fn lock_share(vm: &VmReport) -> f64 {
    vm.spin_ns.saturating_sub(vm.shootdown_spin_ns) as f64 / vm.run_ns as f64
}

/// What isn't the programs' own work is the kernel's.
fn kernel_share(report: &RunReport) -> f64 {
    let vm = target(report);
    let computed_ns: u64 = vm.workloads.iter().map(|workload| workload.computed_ns).sum();
    1.0 - (computed_ns + vm.refill_ns) as f64 / vm.run_ns as f64
}

fn amplification(runs: &RunTable, program: &str) -> Vec<f64> {
    let [alone, beside] =
        [solo(program), corun(program)].map(|scenario| runs.each(&scenario, BASELINE, kernel_share));
    alone.iter().zip(beside).map(|(alone, beside)| beside / alone).collect()
}

fn futex_waits_us(runs: &RunTable) -> [Vec<f64>; OF_FUTEX.len()] {
    OF_FUTEX.map(|program| {
        runs.each(&corun(program), BASELINE, |report| {
            let waits = target(report).lock_waits.get("futex").and_then(|waits| waits.mean());
            waits.map_or(f64::NAN, |ns| ns / 1e3)
        })
    })
}

/// Seed by seed the least or the greatest of several programs' values.
fn extreme(values: &[Vec<f64>], choose: fn(f64, f64) -> f64) -> Vec<f64> {
    let seeds = values.iter().map(Vec::len).min().unwrap_or(0);
    (0..seeds).map(|seed| values.iter().map(|values| values[seed]).fold(f64::NAN, choose)).collect()
}

fn amplification_shape(runs: &RunTable, program: &str, amplified: bool) -> Shape {
    let times = mean(&amplification(runs, program));
    let [claim, holds] = if amplified {
        ["streamcluster amplifies its kernel time", "more"]
    } else {
        ["its kernel time stays about what it is alone", "less"]
    };
    Shape {
        claim: format!("{program}: {claim} ({holds} than {AMPLIFIED} times)"),
        holds: times.map(|times| times.is_finite() && (times > AMPLIFIED) == amplified),
        seen: times.map_or(String::new(), |times| format!("{times:.2} times")),
    }
}

fn cause_shape(runs: &RunTable, program: &str) -> Shape {
    let share =
        |of: fn(&VmReport) -> f64| mean(&runs.each(&corun(program), BASELINE, |report| of(target(report))));
    let shares = share(shootdown_share).zip(share(lock_share));
    let shoots = SHOOT_DOWN.contains(&program);
    let (more, less) = if shoots { ("shootdowns", "locks") } else { ("locks", "shootdowns") };
    Shape {
        claim: format!("{program}: waits for {more} take more time than for {less}"),
        holds: shares.map(|(shootdowns, locks)| if shoots { shootdowns > locks } else { locks > shootdowns }),
        seen: shares.map_or(String::new(), |(shootdowns, locks)| {
            format!("shootdowns {:.2} %, locks {:.2} %", shootdowns * 100.0, locks * 100.0)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduction::published::published;

    #[test]
    fn all_experiments_exist_and_have_the_papers_host() {
        for group in crate::reproduction::groups(&Asplos13) {
            let group = group.as_str();
            if group == "parameters" {
                continue;
            }
            let experiments = Asplos13.experiments_of(group);
            assert!(!experiments.is_empty(), "{group}");
            for Experiment { scenario, policy, .. } in experiments {
                let overrides = Overrides { policy: Some(policy), ..Overrides::default() };
                let config = load(&scenario, &overrides).expect("a built-in scenario").config;
                let vcpus = if scenario.contains("single-solo") { 1 } else { 8 };
                assert_eq!((config.host.pcpus, config.vms[0].vcpus), (8, vcpus), "{scenario}");
            }
        }
    }

    #[test]
    fn only_one_solo_figure_and_the_parameters_are_what_the_model_was_fitted_to() {
        let calibrated = published(&Asplos13).into_iter().filter(|number| Asplos13.is_calibrated(&number.id));
        let ids: Vec<String> = calibrated.map(|number| number.id).collect();
        assert_eq!(ids.len(), 4, "{ids:?}");
    }

    #[test]
    fn the_extreme_of_several_programs_is_chosen_seed_by_seed() {
        let values = [vec![1.0, 5.0], vec![3.0, 2.0]];
        assert_eq!(extreme(&values, f64::max), [3.0, 5.0]);
        assert_eq!(extreme(&values, f64::min), [1.0, 2.0]);
        assert!(extreme(&[vec![1.0], vec![]], f64::max).is_empty());
    }
}
