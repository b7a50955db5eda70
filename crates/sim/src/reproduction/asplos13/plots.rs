//! The plots of the paper's own scheduler: Figures 7a, 8a, 8b, 9a and 9b. Their text has no number per bar.

use super::coordination::{
    DELAYED, DELAYS, FIGURE8, LOAD_CONSCIOUS, MIXED, POLICIES, all_preempted_holders, beside,
    single_slowdown, weighted_speedup,
};
use super::{BASELINE, COMMUNICATING};
use crate::reproduction::plots::{bar, series};
use crate::reproduction::runs::{RunTable, target_time};
use microslice_metrics::plot::{BarChart, BarSeries};

/// Figure 7a.
pub fn delays(runs: &RunTable) -> BarChart {
    let policies = DELAYS.map(|(_, policy)| policy);
    let policies = [LOAD_CONSCIOUS].into_iter().chain(policies);
    let bars = policies.map(|policy| bar(&all_preempted_holders(runs, policy), None)).collect();
    let delays = DELAYS.iter().map(|(us, _)| format!("{us} us"));
    BarChart {
        title: format!("{} together, beside dedup", DELAYED.join(", ")),
        y_label: "preempted holders of a futex's queue, over a run".to_owned(),
        categories: ["none".to_owned()].into_iter().chain(delays).collect(),
        series: vec![series("Resched-DP with this delay", bars)],
        ..BarChart::default()
    }
}

/// Figures 8a and 8b.
pub fn singles(runs: &RunTable) -> Vec<BarChart> {
    let time = |program: &str, policy: &str| {
        runs.relative(&beside(program, "single"), policy, BASELINE, target_time)
    };
    let slowdown = |program: &str, policy: &str| single_slowdown(runs, program, policy);
    vec![
        chart("beside four single-vCPU VMs", "time, baseline 1", &COMMUNICATING, &FIGURE8, time),
        chart("the single-vCPU VMs", "time, alone 1", &COMMUNICATING, &FIGURE8, slowdown),
    ]
}

/// Figures 9a and 9b.
pub fn mixes(runs: &RunTable) -> Vec<BarChart> {
    let of = |other: &'static str| {
        let speedup = move |program: &str, policy: &str| weighted_speedup(runs, program, other, policy);
        chart(&format!("beside {other}"), "weighted speedup", &MIXED, &POLICIES, speedup)
    };
    vec![of("freqmine"), of("dedup")]
}

/// A bar for each program, a series for each policy.
fn chart(
    title: &str,
    y_label: &str,
    programs: &[&str],
    policies: &[&str],
    values: impl Fn(&str, &str) -> Vec<f64>,
) -> BarChart {
    let of_policy = |policy: &&str| -> BarSeries {
        series(policy, programs.iter().map(|program| bar(&values(program, policy), None)).collect())
    };
    BarChart {
        title: title.to_owned(),
        y_label: y_label.to_owned(),
        categories: programs.iter().map(|program| (*program).to_owned()).collect(),
        series: policies.iter().map(of_policy).collect(),
        ..BarChart::default()
    }
}
