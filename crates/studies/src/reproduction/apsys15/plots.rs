//! Figures 2, 4 and 6 to 11 of APSys'15, drawn from our runs.

use super::*;
use crate::reproduction::Reproduction;
use crate::reproduction::plots::{bar, section, series};
use microslice_metrics::html::Page;
use microslice_metrics::plot::BarChart;

type Value = fn(&RunReport) -> f64;

pub fn draw(page: &mut Page, reproduction: &Reproduction) {
    let runs = &reproduction.runs;
    page.paragraph(&format!(
        "Bars are means over {} seed(s) with 95 % confidence intervals. The paper's text gives numbers of vCPUs, not heights.",
        reproduction.seeds.len()
    ));
    let lkc = |lines: &[Line], setup, vcpus: &[u32]| {
        chart(runs, "kernel compile", "compilations/s", LKC, lines, vcpus, setup, throughput)
    };
    section(
        page,
        "Figure 2: a kernel compile by the number of vCPUs",
        vec![lkc(&FIGURE2, Setup::Alone, &LKC_VCPUS)],
    );
    let halts = |program, title, lines: &[Line], vcpus: &[u32]| {
        chart(runs, title, "halts for a unit of work", program, lines, vcpus, Setup::Alone, halts_per_unit)
    };
    let two = [Line::Pvm, Line::Oticket];
    section(
        page,
        "Figure 4: halts of the kernel compile",
        vec![halts(LKC, "kernel compile", &two, &LKC_VCPUS)],
    );
    section(page, "Figure 6: oticket and its halves", vec![lkc(&FIGURE6, Setup::Alone, &LKC_VCPUS)]);
    let throughputs = [(EXIM, "messages/s"), (METIS, "phases/s")].map(|(program, unit)| {
        chart(runs, program, unit, program, &FIGURE2, &OTHER_VCPUS, Setup::Alone, throughput)
    });
    let halts = [EXIM, METIS].map(|program| halts(program, program, &two, &OTHER_VCPUS));
    section(
        page,
        "Figures 7 and 8: exim and metis, and their halts",
        throughputs.into_iter().chain(halts).collect(),
    );
    section(page, "Figure 9: other ways to spin", vec![lkc(&FIGURE9, Setup::Alone, &LKC_VCPUS)]);
    let with_longer = [&FIGURE10[..], &[Line::Longer]].concat();
    let others = |setup, vcpus: &[u32]| {
        [(EXIM, "messages/s"), (METIS, "phases/s")]
            .map(|(program, unit)| chart(runs, program, unit, program, &FIGURE10, vcpus, setup, throughput))
    };
    let first = lkc(&with_longer, Setup::Overcommitted, &SHARED_VCPUS);
    let overcommitted = [first].into_iter().chain(others(Setup::Overcommitted, &SHARED_VCPUS)).collect();
    section(page, "Figure 10: two VMs that share their pCPUs", overcommitted);
    let first = lkc(&FIGURE10, Setup::Small, &SMALL_VCPUS);
    let small = [first].into_iter().chain(others(Setup::Small, &SMALL_VCPUS)).collect();
    section(page, "Figure 11: the 32-core machine", small);
}

#[allow(clippy::too_many_arguments, reason = "a plot's title, axes, lines and points")]
fn chart(
    runs: &RunTable,
    title: &str,
    y_label: &str,
    program: &str,
    lines: &[Line],
    vcpus: &[u32],
    setup: Setup,
    value: Value,
) -> BarChart {
    let bars = |line: Line| {
        vcpus.iter().map(|&count| bar(&runs.of(&point(program, line, count, setup), value), None)).collect()
    };
    BarChart {
        title: title.to_owned(),
        y_label: y_label.to_owned(),
        categories: vcpus.iter().map(u32::to_string).collect(),
        series: lines.iter().map(|&line| series(line.name(), bars(line))).collect(),
        ..BarChart::default()
    }
}
