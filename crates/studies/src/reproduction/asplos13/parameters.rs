//! Figures 7b and 7c: urgent slice and urgent allowance. The text has no number of them but those that the
//! paper chose.

use super::coordination::beside;
use super::{BASELINE, shootdown_share, solo};
use crate::reproduction::runs::{Experiment, RunTable, corunner_time, mean, target, target_time};
use crate::reproduction::study::Shape;
use microslice_engine::report::RunReport;

/// Figure 7b: urgent slices in us, and the policies that have them. The third is the one that the paper
/// chose.
pub const SLICES: [(u32, &str); 4] = [
    (100, "coordinated+urgent_slice=100 us"),
    (300, "coordinated+urgent_slice=300 us"),
    (500, "coordinated"),
    (1000, "coordinated+urgent_slice=1000 us"),
];
const SLICE_CHOSEN: usize = 2;
/// Figure 7c: urgent allowances in ms; likewise the fourth.
pub const ALLOWANCES: [(u32, &str); 5] = [
    (0, "coordinated+urgent_allowance=0 ms"),
    (6, "coordinated+urgent_allowance=6 ms"),
    (12, "coordinated+urgent_allowance=12 ms"),
    (18, "coordinated"),
    (24, "coordinated+urgent_allowance=24 ms"),
];
const ALLOWANCE_CHOSEN: usize = 3;
/// "While not sacrificing": our number.
const NOT_SACRIFICED: f64 = 1.1;

pub fn experiments_of(group: &str) -> Vec<Experiment> {
    let each = |scenario: &str, policies: &[&str]| -> Vec<Experiment> {
        policies.iter().map(|policy| Experiment::new(scenario, policy)).collect()
    };
    if group == "figure7b" {
        return each(&beside("vips", "thrice"), &SLICES.map(|(_, policy)| policy));
    }
    let alone = ["vips", "facesim"].map(|program| Experiment::new(&solo(program), BASELINE));
    [each(&beside("vips", "facesim"), &ALLOWANCES.map(|(_, policy)| policy)), alone.to_vec()].concat()
}

/// Figure 7b: time of vips, that with the paper's slice 1.
pub fn slice_times(runs: &RunTable, policy: &str) -> Vec<f64> {
    runs.relative(&beside("vips", "thrice"), policy, SLICES[SLICE_CHOSEN].1, target_time)
}

/// And the part of its CPU time that waits for shootdowns.
pub fn slice_shares(runs: &RunTable, policy: &str) -> Vec<f64> {
    runs.each(&beside("vips", "thrice"), policy, |report| shootdown_share(target(report)))
}

/// Figure 7c: slowdowns of vips and of facesim, relative to either alone.
pub fn allowance_slowdowns(runs: &RunTable, policy: &str) -> [Vec<f64>; 2] {
    type Time = fn(&RunReport) -> f64;
    let times: [(&str, Time); 2] = [("vips", target_time), ("facesim", corunner_time)];
    times.map(|(program, time)| {
        let alone = runs.each(&solo(program), BASELINE, target_time);
        let beside = runs.each(&beside("vips", "facesim"), policy, time);
        std::iter::zip(beside, alone).map(|(beside, alone)| beside / alone).collect()
    })
}

pub fn shapes(runs: &RunTable) -> [Shape; 3] {
    [share_shape(runs), switch_shape(runs), allowance_shape(runs)]
}

fn share_shape(runs: &RunTable) -> Shape {
    let shares: Option<Vec<f64>> =
        SLICES.iter().map(|(_, policy)| mean(&slice_shares(runs, policy))).collect();
    Shape {
        claim:
            "Figure 7b: with the shortest urgent slice vips waits least for shootdowns, with the longest most"
                .to_owned(),
        holds: shares.as_ref().map(|shares| {
            let inner = || shares[1..SLICES.len() - 1].iter();
            inner().all(|share| shares[0] < *share) && inner().all(|share| *share < shares[SLICES.len() - 1])
        }),
        seen: shares.map_or(String::new(), |shares| {
            let percents: Vec<String> =
                shares.iter().map(|share| format!("{:.3} %", share * 100.0)).collect();
            format!("100, 300, 500, 1,000 us: {}", percents.join(" "))
        }),
    }
}

fn switch_shape(runs: &RunTable) -> Shape {
    let time = mean(&slice_times(runs, SLICES[0].1));
    Shape {
        claim: "Figure 7b: with 100 us vips is slower than with 500 us all the same".to_owned(),
        holds: time.map(|time| time > 1.0),
        seen: time.map_or(String::new(), |time| format!("{time:.3} times its time")),
    }
}

fn allowance_shape(runs: &RunTable) -> Shape {
    let of = |policy: &str| {
        let [vips, facesim] = allowance_slowdowns(runs, policy);
        mean(&vips).zip(mean(&facesim))
    };
    let slowdowns: Option<Vec<(f64, f64)>> = ALLOWANCES.iter().map(|(_, policy)| of(policy)).collect();
    Shape {
        claim: format!(
            "Figure 7c: with 18 ms vips is faster than without, and facesim not slower (less than {NOT_SACRIFICED} times)"
        ),
        holds: slowdowns.as_ref().map(|slowdowns| {
            let (none, chosen) = (slowdowns[0], slowdowns[ALLOWANCE_CHOSEN]);
            chosen.0 < none.0 && chosen.1 < none.1 * NOT_SACRIFICED
        }),
        seen: slowdowns.map_or(String::new(), |slowdowns| {
            let (vips, facesim): (Vec<f64>, Vec<f64>) = slowdowns.into_iter().unzip();
            format!("{}; facesim {}", listed("0, 6, 12, 18, 24 ms: vips", &vips), numbers(&facesim))
        }),
    }
}

fn listed(of: &str, values: &[f64]) -> String {
    format!("{of} {}", numbers(values))
}

fn numbers(values: &[f64]) -> String {
    values.iter().map(|value| format!("{value:.2}")).collect::<Vec<_>>().join(" ")
}
