//! Figure 12: guests that send reschedule IPIs after they have released the lock of the wait queue
//! (section 5). The paper changed futexes alone; here `wait_lists = "after-lock"` is of all lists.

use super::BASELINE;
use super::coordination::{LOAD_CONSCIOUS, RESCHED_DP, beside};
use crate::reproduction::runs::{Experiment, RunTable, mean, target_time};
use crate::reproduction::study::Shape;

const PROGRAMS: [&str; 2] = ["streamcluster", "facesim"];
/// "Comparable": our number.
const COMPARABLE: f64 = 0.1;

fn as_it_is(program: &str, policy: &str) -> Experiment {
    Experiment::new(&beside(program, "single"), policy)
}

fn delayed(program: &str, policy: &str) -> Experiment {
    as_it_is(program, policy).set("vm.target.kernel.wait_lists", "\"after-lock\"")
}

pub fn experiments() -> Vec<Experiment> {
    PROGRAMS.iter().flat_map(|program| experiments_with(program)).collect()
}

fn experiments_with(program: &str) -> Vec<Experiment> {
    let of = |policy| [as_it_is(program, policy), delayed(program, policy)];
    let [baseline, balanced] = [BASELINE, LOAD_CONSCIOUS].map(of);
    baseline.into_iter().chain(balanced).chain([as_it_is(program, RESCHED_DP)]).collect()
}

/// The target's time relative to that of another experiment.
fn time_of(runs: &RunTable, experiment: &Experiment, to: &Experiment) -> Option<f64> {
    let [times, others] = [experiment, to].map(|experiment| runs.of(experiment, target_time));
    mean(&times.iter().zip(others).map(|(time, other)| time / other).collect::<Vec<f64>>())
}

pub fn shapes(runs: &RunTable) -> Vec<Shape> {
    PROGRAMS.iter().flat_map(|program| [gain_shape(runs, program), par_shape(runs, program)]).collect()
}

fn gain_shape(runs: &RunTable, program: &str) -> Shape {
    let of = |policy| time_of(runs, &delayed(program, policy), &as_it_is(program, policy));
    let times = of(BASELINE).zip(of(LOAD_CONSCIOUS));
    Shape {
        claim: format!("Figure 12: {program} gains by delayed reschedule IPIs, under both schedulers"),
        holds: times.map(|(baseline, balanced)| baseline < 1.0 && balanced < 1.0),
        seen: times.map_or(String::new(), |(baseline, balanced)| {
            format!("time relative to that without: baseline {baseline:.2}, load-conscious {balanced:.2}")
        }),
    }
}

fn par_shape(runs: &RunTable, program: &str) -> Shape {
    let time = time_of(runs, &delayed(program, LOAD_CONSCIOUS), &as_it_is(program, RESCHED_DP));
    Shape {
        claim: format!("Figure 12: for {program} they do about what Resched-DP does"),
        holds: time.map(|time| (time - 1.0).abs() < COMPARABLE),
        seen: time.map_or(String::new(), |time| format!("{time:.2} times its time")),
    }
}
