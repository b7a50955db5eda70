//! Kashyap et al., APSys'15: what its published numbers and the shapes of its plots are in simulated runs.
//!
//! Its text has few numbers: from how many vCPUs on something happens. Which difference is one, is ours to
//! say (the constants below).

mod plots;

use super::Reproduction;
use super::runs::{Experiment, RunTable, mean, target};
use super::study::{Shape, Study};
use microslice_engine::report::RunReport;
use microslice_metrics::html::Page;
use microslice_model::config::Halting;

/// The host's scheduler.
const HOST: &str = "cfs";

/// Kashyap et al.: opportunistic spinlocks.
#[derive(Debug)]
pub struct Apsys15;

impl Study for Apsys15 {
    fn name(&self) -> &'static str {
        "apsys15"
    }

    fn title(&self) -> &'static str {
        "APSys'15"
    }

    fn paper(&self) -> &'static str {
        r#"Kashyap et al., "Opportunistic Spinlocks: Achieving Virtual Machine Scalability in the Clouds""#
    }

    fn numbers(&self) -> &'static str {
        "paper-results/apsys15.toml"
    }

    fn kinds(&self) -> &'static str {
        "Calibrated: the cost of a halt was fitted to it, or it is a parameter. Predicted: nothing was fitted to it; the \
             kernel compile and exim are eurosys18's gmake and exim."
    }

    fn groups_without_numbers(&self) -> &'static [&'static str] {
        &["figure4", "figure11"]
    }

    fn unit(&self, id: &str) -> &'static str {
        match id {
            _ if id.starts_with("parameters.") || id.starts_with("figure8") => "count",
            _ if id.ends_with("contention") => "ratio",
            _ => "vCPUs",
        }
    }

    /// The cost of a halt was fitted to where the stock lock begins to suffer, of both programs.
    fn is_calibrated(&self, id: &str) -> bool {
        id.starts_with("parameters.") || id.ends_with("pvm_suffers_from_vcpus")
    }

    fn experiments_of(&self, group: &str) -> Vec<Experiment> {
        let all = |program: &str, lines: &[Line], vcpus: &[u32], setup: Setup| -> Vec<Experiment> {
            let of_line = |line: &Line| {
                vcpus.iter().map(|&count| point(program, *line, count, setup)).collect::<Vec<_>>()
            };
            lines.iter().flat_map(of_line).collect()
        };
        let both = [EXIM, METIS];
        match group {
            "figure1" => all(LKC, &[Line::Hvm], &CLOUD_VCPUS, Setup::Cloud),
            "figure2" => all(LKC, &FIGURE2, &LKC_VCPUS, Setup::Alone),
            "figure4" => all(LKC, &[Line::Pvm, Line::Oticket], &LKC_VCPUS, Setup::Alone),
            "figure6" => all(LKC, &FIGURE6, &LKC_VCPUS, Setup::Alone),
            "figure7" | "figure8" => {
                both.iter().flat_map(|program| all(program, &FIGURE2, &OTHER_VCPUS, Setup::Alone)).collect()
            }
            "figure9" => all(LKC, &FIGURE9, &LKC_VCPUS, Setup::Alone),
            "figure10" => {
                let longer = all(LKC, &[Line::Longer], &SHARED_VCPUS, Setup::Overcommitted);
                let programs = [LKC, EXIM, METIS];
                let others = programs
                    .iter()
                    .flat_map(|program| all(program, &FIGURE10, &SHARED_VCPUS, Setup::Overcommitted));
                longer.into_iter().chain(others).collect()
            }
            "figure11" => {
                let programs = [LKC, EXIM, METIS];
                programs
                    .iter()
                    .flat_map(|program| all(program, &FIGURE10, &SMALL_VCPUS, Setup::Small))
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    fn measure(&self, id: &str, runs: &RunTable) -> Vec<f64> {
        let parts: Vec<&str> = id.split('.').collect();
        let lkc = |which, setup, vcpus: &[u32]| line(runs, LKC, which, vcpus, setup);
        let alone = |which| lkc(which, Setup::Alone, &LKC_VCPUS);
        match parts.as_slice() {
            ["parameters", name] => parameter(name).into_iter().collect(),
            ["figure2", _, "pvm_suffers_from_vcpus"] => {
                first_vcpus(&LKC_VCPUS, &[alone(Line::Pvm), alone(Line::Oticket)], below(SUFFERS))
            }
            ["figure7", _, "pvm_suffers_from_vcpus"] => {
                let exim = |which| line(runs, EXIM, which, &OTHER_VCPUS, Setup::Alone);
                first_vcpus(&OTHER_VCPUS, &[exim(Line::Pvm), exim(Line::Oticket)], below(SUFFERS))
            }
            ["figure2", _, "pvm_collapsed_at_vcpus"] => {
                first_vcpus(&LKC_VCPUS, &[alone(Line::Pvm), alone(Line::Oticket)], below(COLLAPSED))
            }
            ["figure1", _] => scales_to(runs, Line::Hvm, &CLOUD_VCPUS, Setup::Cloud),
            ["figure2", _, "oticket_scales_to_vcpus"] => {
                scales_to(runs, Line::Oticket, &LKC_VCPUS, Setup::Alone)
            }
            ["figure6", "both_degrade_from_vcpus"] => {
                let halves = [alone(Line::Spinning), alone(Line::Wakeup)];
                // What each adds is less than what it had.
                first_vcpus(&LKC_VCPUS, &halves, |rows, at| {
                    at > 0
                        && rows.iter().all(|row| {
                            row[at] / f64::from(LKC_VCPUS[at]) < SCALES * row[0] / f64::from(LKC_VCPUS[0])
                        })
                })
            }
            ["figure8", _, which, at] => {
                let line = if *which == "pvm" { Line::Pvm } else { Line::Oticket };
                let vcpus = at.trim_start_matches("at_").parse().unwrap_or(0);
                runs.of(&point(EXIM, line, vcpus, Setup::Alone), halts_per_unit)
            }
            ["figure9", "longer_spinning_slightly_better_from_vcpus"] => {
                // And for all larger numbers.
                first_vcpus(&LKC_VCPUS, &[alone(Line::Longer), alone(Line::Oticket)], |rows, at| {
                    at > 0 && (at..rows[0].len()).all(|at| rows[0][at] > rows[1][at])
                })
            }
            ["figure10", _, "longer_spinning_degrades_from_vcpus"] => {
                let shared = |which| lkc(which, Setup::Overcommitted, &SHARED_VCPUS);
                first_vcpus(&SHARED_VCPUS, &[shared(Line::Longer), shared(Line::Oticket)], below(SUFFERS))
            }
            _ => Vec::new(),
        }
    }

    fn shapes(&self, runs: &RunTable) -> Vec<Shape> {
        let mut shapes = vec![
            collapse_shape(
                runs,
                "the stock PV ticket lock collapses between 30 and 50 vCPUs",
                Line::Pvm,
                [30, 50],
            ),
            collapse_shape(runs, "qspinlock also collapses", Line::Qspinlock, [30, 50]),
            scaling_shape(runs),
            iticket_shape(runs),
            halves_shape(runs),
            half_shape(runs, Line::Spinning),
            half_shape(runs, Line::Wakeup),
            halts_shape(runs),
            metis_shape(runs, Setup::Alone, &OTHER_VCPUS),
            metis_shape(runs, Setup::Overcommitted, &SHARED_VCPUS),
            longer_shape(runs),
        ];
        for program in [LKC, EXIM] {
            shapes.push(overcommitted_shape(runs, program));
            shapes.push(small_shape(runs, program));
        }
        shapes
    }

    fn draw(&self, page: &mut Page, reproduction: &Reproduction) {
        plots::draw(page, reproduction);
    }
}

/// A spinlock as one of the paper's lines has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// No hypervisor: no exits, and halts that cost nothing.
    Native,
    /// Tickets that spin, and pause-loop exits.
    Hvm,
    /// The stock paravirtual ticket lock.
    Pvm,
    Oticket,
    /// Its two halves (Figure 6).
    Spinning,
    Wakeup,
    /// Figure 9's.
    Longer,
    Iticket,
    Qspinlock,
}

impl Line {
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Hvm => "HVM",
            Self::Pvm => "PVM",
            Self::Oticket => "oticket",
            Self::Spinning => "opportunistic spinning",
            Self::Wakeup => "opportunistic wakeup",
            Self::Longer => "longer spinning",
            Self::Iticket => "iticket",
            Self::Qspinlock => "qspinlock",
        }
    }

    fn lock_kind(self) -> &'static str {
        match self {
            Self::Native | Self::Hvm => "ticket",
            Self::Pvm | Self::Longer => "pv-ticket",
            Self::Oticket => "oticket",
            Self::Spinning => "oticket-spin",
            Self::Wakeup => "oticket-wake",
            Self::Iticket => "iticket",
            Self::Qspinlock => "pv-queued",
        }
    }
}

/// Which VMs run beside which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setup {
    /// The 80-core machine, each vCPU with a hardware thread of its own.
    Alone,
    /// Two such VMs, which share them (5.3).
    Overcommitted,
    /// The 32-core machine (5.4).
    Small,
    /// The 16-core machine that has what clouds offer (Figure 1).
    Cloud,
}

pub const LKC: &str = "lkc";
pub const EXIM: &str = "exim";
pub const METIS: &str = "metis";

/// Where each plot has its points.
pub const LKC_VCPUS: [u32; 9] = [20, 30, 40, 50, 70, 80, 110, 130, 160];
pub const OTHER_VCPUS: [u32; 6] = [20, 30, 40, 70, 110, 160];
pub const SHARED_VCPUS: [u32; 3] = [20, 40, 80];
pub const SMALL_VCPUS: [u32; 3] = [16, 32, 64];
pub const CLOUD_VCPUS: [u32; 4] = [8, 16, 24, 32];

pub const FIGURE2: [Line; 4] = [Line::Native, Line::Hvm, Line::Pvm, Line::Oticket];
pub const FIGURE6: [Line; 3] = [Line::Oticket, Line::Spinning, Line::Wakeup];
pub const FIGURE9: [Line; 5] = [Line::Pvm, Line::Oticket, Line::Longer, Line::Iticket, Line::Qspinlock];
pub const FIGURE10: [Line; 3] = [Line::Hvm, Line::Pvm, Line::Oticket];

/// "Suffers", "degrades": our number, of what the better one makes.
const SUFFERS: f64 = 0.95;
/// "Collapsed": likewise.
const COLLAPSED: f64 = 0.5;
/// "Scales": a vCPU makes so much of what one of twenty does.
const SCALES: f64 = 0.85;
/// "The same": within so much.
const SAME: f64 = 0.05;

/// One point of a line. Jobs are twice the vCPUs (gmake), connections 160 (exim).
pub fn point(program: &str, line: Line, vcpus: u32, setup: Setup) -> Experiment {
    let twice = if setup == Setup::Overcommitted { "-twice" } else { "" };
    let scenario = format!("apsys15-{program}{twice}");
    let vms: &[&str] = if setup == Setup::Overcommitted { &["target", "other"] } else { &["target"] };
    let mut experiment = Experiment::new(&scenario, HOST);
    for vm in vms {
        experiment = experiment.set(&format!("vm.{vm}.vcpus"), vcpus);
        experiment = experiment.set(&format!("vm.{vm}.kernel.lock_kind"), quoted(line.lock_kind()));
        if program == LKC {
            experiment = experiment.set(&format!("vm.{vm}.workloads.gmake.threads"), 2 * vcpus);
        }
        if line == Line::Longer {
            experiment = experiment.set(&format!("vm.{vm}.kernel.pv_spin"), quoted("157 s"));
        }
    }
    let smaller = match setup {
        Setup::Small => Some((64, 16)),
        Setup::Cloud => Some((32, 16)),
        Setup::Alone | Setup::Overcommitted => None,
    };
    if let Some((pcpus, of_cache)) = smaller {
        experiment = experiment.set("host.pcpus", pcpus).set("host.llc_pcpus", of_cache);
        experiment = experiment.set("vm.host.vcpus", pcpus);
    }
    match line {
        Line::Native => {
            let free = quoted("0 us");
            experiment
                .set("host.costs.halt", &free)
                .set("host.costs.kick", &free)
                .set("host.costs.exit", &free)
                .set("host.ple.enabled", false)
        }
        _ => experiment,
    }
}

fn quoted(text: &str) -> String {
    format!("\"{text}\"")
}

/// Work a second, of all VMs that run it.
pub fn throughput(report: &RunReport) -> f64 {
    let programs = report.vms.iter().filter(|vm| vm.name != "host");
    programs.flat_map(|vm| &vm.workloads).map(|workload| workload.units_per_s).sum()
}

/// Halts for each unit of work.
pub fn halts_per_unit(report: &RunReport) -> f64 {
    let vm = target(report);
    vm.yields.halt as f64 / vm.workloads[0].units_done as f64
}

/// Throughputs of a line, a row for each number of vCPUs, seed by seed.
fn line(runs: &RunTable, program: &str, line: Line, vcpus: &[u32], setup: Setup) -> Vec<Vec<f64>> {
    vcpus.iter().map(|&count| runs.of(&point(program, line, count, setup), throughput)).collect()
}

/// Seed by seed the first number of vCPUs for which that holds, given the places of a row in all lines.
fn first_vcpus(vcpus: &[u32], lines: &[Vec<Vec<f64>>], holds: impl Fn(&[&[f64]], usize) -> bool) -> Vec<f64> {
    let seeds = lines.iter().flatten().map(Vec::len).min().unwrap_or(0);
    let of_seed = |seed: usize| {
        let values: Vec<Vec<f64>> =
            lines.iter().map(|line| line.iter().map(|row| row[seed]).collect()).collect();
        let rows: Vec<&[f64]> = values.iter().map(Vec::as_slice).collect();
        let found = (0..vcpus.len()).find(|&at| holds(&rows, at));
        found.map_or(f64::NAN, |at| f64::from(vcpus[at]))
    };
    (0..seeds).map(of_seed).collect()
}

/// The first line makes less than such a part of the second one.
fn below(part: f64) -> impl Fn(&[&[f64]], usize) -> bool {
    move |rows, at| rows[0][at] < part * rows[1][at]
}

/// The most vCPUs each of which makes what one of the fewest makes.
fn scales_to(runs: &RunTable, which: Line, vcpus: &[u32], setup: Setup) -> Vec<f64> {
    let rows = line(runs, LKC, which, vcpus, setup);
    let seeds = rows.iter().map(Vec::len).min().unwrap_or(0);
    let each = |seed: usize, at: usize| rows[at][seed] / f64::from(vcpus[at]);
    let of_seed = |seed: usize| {
        let most = (0..vcpus.len()).rev().find(|&at| each(seed, at) >= SCALES * each(seed, 0));
        most.map_or(f64::NAN, |at| f64::from(vcpus[at]))
    };
    (0..seeds).map(of_seed).collect()
}

/// The paper's parameters, as the lock kinds have them.
fn parameter(name: &str) -> Option<f64> {
    match name {
        "spin_threshold" => Some(f64::from(1u32 << Halting::STOCK_BITS)),
        "spin_max_threshold" => Some((1u64 << (Halting::STOCK_BITS + Halting::LONGEST_BITS)) as f64),
        "ticket_queue_wait" => Some(f64::from(Halting::NEAR)),
        "opportunistic_wakeup_vcpus" => Some(Halting::AHEAD as f64),
        _ => None,
    }
}

/// Mean throughput of one line relative to another one's, at so many vCPUs.
fn ratio(runs: &RunTable, program: &str, [of, to]: [Line; 2], vcpus: u32, setup: Setup) -> Option<f64> {
    let value = |which| mean(&runs.of(&point(program, which, vcpus, setup), throughput));
    Some(value(of)? / value(to)?)
}

fn collapse_shape(runs: &RunTable, claim: &str, which: Line, [from, to]: [u32; 2]) -> Shape {
    let at = |vcpus| ratio(runs, LKC, [which, Line::Oticket], vcpus, Setup::Alone);
    let ratios = at(from).zip(at(to));
    Shape {
        claim: format!("kernel compile: {claim}"),
        holds: ratios.map(|(before, after)| before >= SUFFERS && after < COLLAPSED),
        seen: ratios.map_or(String::new(), |(before, after)| {
            format!("of oticket's throughput {before:.2} with {from}, {after:.2} with {to} vCPUs")
        }),
    }
}

fn scaling_shape(runs: &RunTable) -> Shape {
    let most = mean(&scales_to(runs, Line::Oticket, &LKC_VCPUS, Setup::Alone));
    Shape {
        claim: "kernel compile: oticket scales to all 80 cores".to_owned(),
        holds: most.map(|most| most >= 80.0),
        seen: most.map_or(String::new(), |most| format!("to {most:.0} vCPUs")),
    }
}

fn iticket_shape(runs: &RunTable) -> Shape {
    let ratios: Option<Vec<f64>> = [40, 80]
        .into_iter()
        .map(|vcpus| ratio(runs, LKC, [Line::Iticket, Line::Oticket], vcpus, Setup::Alone))
        .collect();
    Shape {
        claim: "kernel compile: iticket is similar to oticket".to_owned(),
        holds: ratios.as_ref().map(|ratios| ratios.iter().all(|ratio| (ratio - 1.0).abs() <= 2.0 * SAME)),
        seen: ratios.map_or(String::new(), |ratios| {
            format!("of its throughput {:.2} with 40, {:.2} with 80 vCPUs", ratios[0], ratios[1])
        }),
    }
}

fn halves_shape(runs: &RunTable) -> Shape {
    let each: Option<Vec<f64>> = [Line::Spinning, Line::Wakeup]
        .into_iter()
        .map(|which| ratio(runs, LKC, [Line::Oticket, which], 80, Setup::Alone))
        .collect();
    Shape {
        claim: "kernel compile: with 80 vCPUs oticket is no worse than either of its halves".to_owned(),
        holds: each.as_ref().map(|each| each.iter().all(|ratio| *ratio >= 1.0 - SAME)),
        seen: each.map_or(String::new(), |each| {
            format!("{:.2} times spinning's, {:.2} times wakeup's throughput", each[0], each[1])
        }),
    }
}

fn half_shape(runs: &RunTable, which: Line) -> Shape {
    let most = mean(&scales_to(runs, which, &LKC_VCPUS, Setup::Alone));
    Shape {
        claim: format!("kernel compile: {} alone scales to all 80 cores", which.name()),
        holds: most.map(|most| most >= 80.0),
        seen: most.map_or(String::new(), |most| format!("to {most:.0} vCPUs")),
    }
}

fn halts_shape(runs: &RunTable) -> Shape {
    let halts = |which, vcpus| mean(&runs.of(&point(EXIM, which, vcpus, Setup::Alone), halts_per_unit));
    let seen = halts(Line::Pvm, 20).zip(halts(Line::Pvm, 70)).zip(halts(Line::Oticket, 70));
    Shape {
        claim:
            "exim: the stock lock's halts for a message soar from 20 to 70 vCPUs, oticket has a tenth of them"
                .to_owned(),
        holds: seen.map(|((few, many), oticket)| many > 10.0 * few && 10.0 * oticket <= many),
        seen: seen.map_or(String::new(), |((few, many), oticket)| {
            format!("{few:.2} with 20, {many:.1} with 70 vCPUs, oticket {oticket:.2}")
        }),
    }
}

fn metis_shape(runs: &RunTable, setup: Setup, vcpus: &[u32]) -> Shape {
    let ratios: Option<Vec<f64>> =
        vcpus.iter().map(|&vcpus| ratio(runs, METIS, [Line::Oticket, Line::Pvm], vcpus, setup)).collect();
    let farthest = |ratios: &[f64]| ratios.iter().map(|ratio| (ratio - 1.0).abs()).fold(0.0, f64::max);
    let how = if setup == Setup::Overcommitted { "overcommitted" } else { "alone" };
    Shape {
        claim: format!("metis, {how}: the lock makes no difference"),
        holds: ratios.as_ref().map(|ratios| farthest(ratios) <= SAME),
        seen: ratios
            .map_or(String::new(), |ratios| format!("at most {:.1} % apart", 100.0 * farthest(&ratios))),
    }
}

fn longer_shape(runs: &RunTable) -> Shape {
    let at = |vcpus, setup| ratio(runs, LKC, [Line::Longer, Line::Oticket], vcpus, setup);
    let ratios = at(80, Setup::Alone).zip(at(80, Setup::Overcommitted));
    Shape {
        claim: "kernel compile, 80 vCPUs: longer spinning does well alone, and hurts when overcommitted"
            .to_owned(),
        holds: ratios.map(|(alone, shared)| alone >= SUFFERS && shared < SUFFERS),
        seen: ratios.map_or(String::new(), |(alone, shared)| {
            format!("of oticket's throughput {alone:.2} alone, {shared:.2} overcommitted")
        }),
    }
}

fn overcommitted_shape(runs: &RunTable, program: &str) -> Shape {
    let ratio = ratio(runs, program, [Line::Oticket, Line::Pvm], 80, Setup::Overcommitted);
    Shape {
        claim: format!("{program}, overcommitted, 80 vCPUs: oticket beats the stock lock"),
        holds: ratio.map(|ratio| ratio > 1.0),
        seen: ratio.map_or(String::new(), |ratio| format!("{ratio:.2} times its throughput")),
    }
}

fn small_shape(runs: &RunTable, program: &str) -> Shape {
    let ratio = ratio(runs, program, [Line::Oticket, Line::Pvm], 64, Setup::Small);
    Shape {
        claim: format!("{program}, the 32-core machine, 64 vCPUs: oticket beats the stock lock there, too"),
        holds: ratio.map(|ratio| ratio > 1.0 + SAME),
        seen: ratio.map_or(String::new(), |ratio| format!("{ratio:.2} times its throughput")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduction::published::published;
    use microslice_experiments::scenario::load;

    #[test]
    fn all_experiments_exist_with_as_many_pinned_vcpus_as_they_say() {
        for group in [
            "figure1", "figure2", "figure4", "figure6", "figure7", "figure8", "figure9", "figure10",
            "figure11",
        ] {
            let experiments = Apsys15.experiments_of(group);
            assert!(!experiments.is_empty(), "{group}");
            for experiment in experiments {
                let config = load(&experiment.scenario, &experiment.overrides()).expect("built in").config;
                assert!(
                    config.vms.iter().all(|vm| !vm.pins.is_empty() && vm.vcpus <= config.host.pcpus),
                    "{experiment:?}"
                );
            }
        }
    }

    #[test]
    fn parameters_and_where_the_stock_lock_suffers_are_what_the_model_was_fitted_to() {
        let numbers = published(&Apsys15);
        let calibrated: Vec<_> = numbers.iter().filter(|number| Apsys15.is_calibrated(&number.id)).collect();
        assert_eq!((numbers.len(), calibrated.len()), (16, 6));
    }

    #[test]
    fn the_first_number_of_vcpus_is_found_seed_by_seed() {
        let lines = [vec![vec![1.0, 1.0], vec![0.4, 1.0]], vec![vec![1.0, 1.0], vec![1.0, 1.0]]];
        let found = first_vcpus(&[10, 20], &lines, |rows, at| rows[0][at] < 0.5 * rows[1][at]);
        assert_eq!(found[0], 20.0);
        assert!(found[1].is_nan(), "never with that seed");
    }
}
