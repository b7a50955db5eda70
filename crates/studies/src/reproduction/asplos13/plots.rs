//! The plots of Figure 2 and of the paper's own scheduler: Figures 7a to 11. Where the text has a number of a
//! bar it is a diamond.

use super::coordination::{
    COORDINATED, DELAYED, DELAYS, EARLY, FIGURE8, LOAD_CONSCIOUS, MIXED, POLICIES, RESCHED_CO, SPINS,
    SPINS_SOLO, WITH_PLE, all_preempted_holders, beside, pause_loop_exits, single_slowdown, weighted_speedup,
};
use super::parameters::{ALLOWANCES, SLICES, allowance_slowdowns, slice_shares, slice_times};
use super::{
    Asplos13, BASELINE, COMMUNICATING, SILENT, corun, kernel_share, lock_share, program_of, shootdown_share,
    solo,
};
use crate::reproduction::plots::{bar, section, series};
use crate::reproduction::published::published;
use crate::reproduction::runs::{RunTable, over_one_run, target, target_time};
use crate::reproduction::{FigureResult, Reproduction, Study};
use microslice_engine::report::{BarrierWaits, RunReport};
use microslice_metrics::html::Page;
use microslice_metrics::plot::{Bar, BarChart, BarSeries};

pub fn draw(page: &mut Page, reproduction: &Reproduction) {
    page.paragraph(&format!(
        "Bars are means over {} seed(s) with 95 % confidence intervals; red diamonds are the paper's numbers. The baseline \
         is CFS of Linux 3.2.",
        reproduction.seeds.len()
    ));
    let figures = &reproduction.figures;
    let rates = figure_chart(figures, "shootdown IPIs, alone", "1/s and vCPU", &[("rate", "figure1.")]);
    section(page, "Figure 1: shootdown IPIs of programs alone", vec![rates]);
    let shares = [("waiting for shootdowns", ".tlb"), ("waiting for locks", ".lock")];
    let shares = figure_chart(figures, "beside streamcluster", "share of its CPU time", &shares);
    let of_kernel = [("waiting for shootdowns", ".kernel_tlb"), ("waiting for locks", ".kernel_lock")];
    let of_kernel = figure_chart(figures, "the same", "share of its time in the kernel", &of_kernel);
    section(page, "Table 1: what programs wait for beside streamcluster", vec![shares, of_kernel]);
    let runs = &reproduction.runs;
    section(page, "Figure 2: kernel time, alone and beside streamcluster", vec![kernel_times(runs)]);
    section(page, "Figure 7a: Resched-DP by its delay", vec![delays(runs)]);
    section(page, "Figures 7b and 7c: urgent slice and urgent allowance", slices(runs));
    section(page, "Figure 8: a parallel program beside four single-vCPU VMs", singles(runs));
    section(page, "Figure 9: two parallel programs", mixes(runs));
    section(page, "Figure 10: streamcluster beside bodytrack", barriers(runs));
    section(page, "Figure 11 and Table 2: with pause-loop exits", exits(runs));
}

/// A series for each part of an id, a bar for each program that has such a number.
fn figure_chart(figures: &[FigureResult], title: &str, y_label: &str, parts: &[(&str, &str)]) -> BarChart {
    let of = |part: &str| figures.iter().filter(|figure| figure.id.contains(part)).collect::<Vec<_>>();
    let bar_of = |figure: &&FigureResult| {
        let ours = figure.ours?;
        let interval = (ours.count > 1).then_some((ours.low, ours.high));
        Some(Bar { value: ours.mean, interval, published: Some(figure.paper) })
    };
    let programs = of(parts[0].1).into_iter().filter_map(|figure| program_of(&figure.id));
    let categories = programs.map(str::to_owned).collect();
    BarChart {
        title: title.to_owned(),
        y_label: y_label.to_owned(),
        categories,
        series: parts
            .iter()
            .map(|(name, part)| series(name, of(part).iter().map(bar_of).collect()))
            .collect(),
        ..BarChart::default()
    }
}

/// Figure 7a.
fn delays(runs: &RunTable) -> BarChart {
    let policies = DELAYS.map(|(_, policy)| policy);
    let policies = [LOAD_CONSCIOUS].into_iter().chain(policies).chain([EARLY]);
    let bars = policies.map(|policy| bar(&all_preempted_holders(runs, policy), None)).collect();
    let delays = DELAYS.iter().map(|(us, _)| format!("{us} us")).chain(["500 us, early".to_owned()]);
    BarChart {
        title: format!("{} together, beside dedup", DELAYED.join(", ")),
        y_label: "preempted holders of a futex's queue, over a run".to_owned(),
        categories: ["none".to_owned()].into_iter().chain(delays).collect(),
        series: vec![series("Resched-DP with this delay", bars)],
        ..BarChart::default()
    }
}

/// Figure 2: what isn't the programs' own work.
fn kernel_times(runs: &RunTable) -> BarChart {
    let programs = [&COMMUNICATING[..], &SILENT].concat();
    let bars = |scenario: fn(&str) -> String| {
        let value = |program: &&str| bar(&runs.each(&scenario(program), BASELINE, kernel_share), None);
        programs.iter().map(value).collect()
    };
    BarChart {
        title: "kernel time".to_owned(),
        y_label: "share of its CPU time".to_owned(),
        categories: programs.iter().map(|program| (*program).to_owned()).collect(),
        series: vec![series("alone", bars(solo)), series("beside streamcluster", bars(corun))],
        ..BarChart::default()
    }
}

/// Figures 7b and 7c.
fn slices(runs: &RunTable) -> Vec<BarChart> {
    let chart = |title: &str, y_label: &str, categories: Vec<String>, series| BarChart {
        title: title.to_owned(),
        y_label: y_label.to_owned(),
        categories,
        series,
        ..BarChart::default()
    };
    let of_slices = |values: fn(&RunTable, &str) -> Vec<f64>| {
        SLICES.iter().map(|(_, policy)| bar(&values(runs, policy), None)).collect()
    };
    let slices = || SLICES.iter().map(|(us, _)| format!("{us} us")).collect();
    let of_program = |at: usize| {
        ALLOWANCES.iter().map(|(_, policy)| bar(&allowance_slowdowns(runs, policy)[at], None)).collect()
    };
    let allowances = ALLOWANCES.iter().map(|(ms, _)| format!("{ms} ms")).collect();
    vec![
        chart(
            "7b: three VMs with vips, by urgent slice",
            "time, 500 us 1",
            slices(),
            vec![series("time", of_slices(slice_times))],
        ),
        chart(
            "7b: waiting for shootdowns",
            "share of its CPU time",
            slices(),
            vec![series("shootdowns", of_slices(slice_shares))],
        ),
        chart(
            "7c: vips beside two VMs with facesim, by urgent allowance",
            "time, alone 1",
            allowances,
            vec![series("vips", of_program(0)), series("facesim", of_program(1))],
        ),
    ]
}

/// Figures 10a and 10b.
fn barriers(runs: &RunTable) -> Vec<BarChart> {
    let gain = |number: &str| {
        let id = format!("figure10.streamcluster_with_bodytrack.{number}");
        let paper = published(&Asplos13).into_iter().find(|published| published.id == id);
        bar(&Asplos13.measure(&id, runs), paper.map(|published| published.value))
    };
    type Count = fn(&BarrierWaits) -> u64;
    let kinds: [(&str, Count); 4] = [
        ("arrival, spun", |waits| waits.arrival_spun),
        ("arrival, blocked", |waits| waits.arrival_slept),
        ("departure, spun", |waits| waits.departure_spun),
        ("departure, blocked", |waits| waits.departure_slept),
    ];
    let waits = |of: Count| {
        let value = |(scenario, policy): (&str, &str)| {
            let count = |report: &RunReport| over_one_run(report, of(&target(report).barrier_waits));
            bar(&runs.each(scenario, policy, count), None)
        };
        [(SPINS_SOLO, BASELINE), (SPINS, COORDINATED), (SPINS, RESCHED_CO)].map(value).to_vec()
    };
    vec![
        BarChart {
            title: "10a: off the time of streamcluster by Resched-Co".to_owned(),
            y_label: "part of its time".to_owned(),
            categories: ["spin, then block", "block"].map(str::to_owned).to_vec(),
            series: vec![series(
                "gain",
                vec![gain("resched_co_gain_spin_then_block"), gain("resched_co_gain_block")],
            )],
            ..BarChart::default()
        },
        BarChart {
            title: "10b: how waits at barriers end".to_owned(),
            y_label: "waits over a run".to_owned(),
            categories: ["alone", "without Resched-Co", "with it"].map(str::to_owned).to_vec(),
            series: kinds.iter().map(|(name, of)| series(name, waits(*of))).collect(),
            stacked: true,
            ..BarChart::default()
        },
    ]
}

/// Figure 11 and Table 2.
fn exits(runs: &RunTable) -> Vec<BarChart> {
    let time =
        |program: &str, policy: &str| runs.relative(&beside(program, "ple"), policy, BASELINE, target_time);
    let of_report = |value: fn(&RunReport) -> f64| {
        move |program: &str, policy: &str| runs.each(&beside(program, "ple"), policy, value)
    };
    let policies = [BASELINE, COORDINATED];
    let chart = |title: &str, y_label: &str, values: &dyn Fn(&str, &str) -> Vec<f64>| {
        chart(title, y_label, &WITH_PLE, &policies, values)
    };
    vec![
        chart("11: time", "baseline 1", &time),
        chart(
            "11: waiting for locks",
            "share of its CPU time",
            &of_report(|report| lock_share(target(report))),
        ),
        chart(
            "11: waiting for shootdowns",
            "share of its CPU time",
            &of_report(|report| shootdown_share(target(report))),
        ),
        chart("Table 2: pause-loop exits", "over a run", &of_report(pause_loop_exits)),
    ]
}

/// Figures 8a and 8b.
fn singles(runs: &RunTable) -> Vec<BarChart> {
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
fn mixes(runs: &RunTable) -> Vec<BarChart> {
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
