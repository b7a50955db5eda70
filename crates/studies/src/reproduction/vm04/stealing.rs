//! Section 4.2: balloons of a guest whose CPUs take their threads from one list. The paper measures nothing
//! of them.

use super::PLAIN;
use crate::reproduction::runs::{Experiment, RunTable};
use crate::reproduction::study::Shape;
use microslice_engine::report::RunReport;

const SCENARIO: &str = "vm04-stealing";
/// Of ten processes the one that has least has at least so much of what the one with most has; our number.
const LIKE: f64 = 0.7;

/// What the module does, by what it is called in the shape.
const MODULES: [(&str, bool, bool); 4] =
    [("nothing", false, false), ("balloons", true, false), ("plans", false, true), ("both", true, true)];

fn experiment((_, balloons, plans): (&str, bool, bool)) -> Experiment {
    Experiment::new(SCENARIO, PLAIN).set("vm.a.kernel.balloons", balloons).set("vm.a.kernel.plans", plans)
}

pub fn experiments() -> Vec<Experiment> {
    MODULES.map(experiment).to_vec()
}

/// What the process with least work has done, by that with most.
fn evenness(report: &RunReport) -> f64 {
    let work = || report.vms[0].workloads.iter().map(|workload| workload.units_per_s);
    work().fold(f64::INFINITY, f64::min) / work().fold(0.0, f64::max)
}

/// "The goal was to fairly distribute physical processor time between all processes" (5.6): in every run.
pub fn shape(runs: &RunTable) -> Shape {
    let least = MODULES.map(|module| {
        let each = runs.of(&experiment(module), evenness);
        each.into_iter().reduce(f64::min)
    });
    Shape {
        claim: "4.2: under work stealing a module makes ten processes' shares alike, in every run".to_owned(),
        holds: least[0].zip(least[3]).map(|(without, with)| without < LIKE && with > LIKE),
        seen: MODULES
            .iter()
            .zip(least)
            .filter_map(|((name, ..), least)| Some(format!("{name} {:.2}", least?)))
            .collect::<Vec<_>>()
            .join(", "),
    }
}
