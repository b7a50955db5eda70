//! The paper's plots, drawn from our runs: Figures 4 to 9 and Tables 2 and 4, published values as diamonds.

use super::measures::{UNAFFECTED, jitter_ms};
use super::paper::{Paper, published};
use super::runs::{
    BASELINE, DYNAMIC, RunTable, STATIC, corunner_time, estimate, over_one_run, target, target_time,
};
use super::{FigureResult, Reproduction, apsys15, asplos13, li2026, vm04};
use microslice_engine::report::RunReport;
use microslice_metrics::html::Page;
use microslice_metrics::plot::{Bar, BarChart, BarSeries};
use microslice_metrics::table::Table;

const EXECUTION_TIME_PAIRS: [&str; 4] = ["gmake", "memclone", "dedup", "vips"];
const THROUGHPUT_PAIRS: [&str; 2] = ["exim", "psearchy"];

/// What the two kinds of a paper's numbers are.
pub fn kinds(paper: Paper) -> &'static str {
    match paper {
        Paper::Eurosys18 => KINDS,
        Paper::Asplos13 => {
            "Calibrated: the model was fitted to it, or it is a parameter. Predicted: nothing was fitted to it; dedup, vips and swaptions are \
             those of eurosys18."
        }
        Paper::Vm04 => vm04::KINDS,
        Paper::Apsys15 => apsys15::KINDS,
        Paper::Li2026 => li2026::KINDS,
    }
}

const KINDS: &str = "Calibrated: the model was fitted to it, or it is a parameter. Predicted: of two VMs, and nothing was fitted to it; but \
     programs and mechanics of the model were chosen with some of these numbers in view, which docs/explanation/reproduction.md lists (What was \
     fitted, and to what).";

/// One self-contained page.
pub fn page(reproduction: &Reproduction) -> String {
    let mut page = Page::new(&format!("{}, reproduced in simulation", reproduction.paper.title()));
    match reproduction.paper {
        Paper::Eurosys18 => eurosys18_plots(&mut page, reproduction),
        Paper::Asplos13 => asplos13_plots(&mut page, reproduction),
        Paper::Vm04 => vm04::draw(&mut page, reproduction),
        Paper::Apsys15 => apsys15::draw(&mut page, reproduction),
        Paper::Li2026 => li2026::draw(&mut page, reproduction),
    }
    page.heading("Every published number");
    page.paragraph(kinds(reproduction.paper));
    page.table(&table(&reproduction.figures));
    page.heading("Shapes");
    page.table(&shape_table(reproduction));
    page.render()
}

fn asplos13_plots(page: &mut Page, reproduction: &Reproduction) {
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
    section(page, "Table 1: what programs wait for beside streamcluster", vec![shares]);
    let runs = &reproduction.runs;
    section(
        page,
        "Figure 2: kernel time, alone and beside streamcluster",
        vec![asplos13::kernel_times(runs)],
    );
    section(page, "Figure 7a: Resched-DP by its delay", vec![asplos13::delays(runs)]);
    section(page, "Figures 7b and 7c: urgent slice and urgent allowance", asplos13::slices(runs));
    section(page, "Figure 8: a parallel program beside four single-vCPU VMs", asplos13::singles(runs));
    section(page, "Figure 9: two parallel programs", asplos13::mixes(runs));
    section(page, "Figure 10: streamcluster beside bodytrack", asplos13::barriers(runs));
    section(page, "Figure 11 and Table 2: with pause-loop exits", asplos13::exits(runs));
}

/// A series for each part of an id, a bar for each program that has such a number.
fn figure_chart(figures: &[FigureResult], title: &str, y_label: &str, parts: &[(&str, &str)]) -> BarChart {
    let of = |part: &str| figures.iter().filter(|figure| figure.id.contains(part)).collect::<Vec<_>>();
    let bar_of = |figure: &&FigureResult| {
        let ours = figure.ours?;
        let interval = (ours.count > 1).then_some((ours.low, ours.high));
        Some(Bar { value: ours.mean, interval, published: Some(figure.paper) })
    };
    let programs = of(parts[0].1).into_iter().filter_map(|figure| asplos13::program_of(&figure.id));
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

fn eurosys18_plots(page: &mut Page, reproduction: &Reproduction) {
    let runs = &reproduction.runs;
    page.paragraph(&format!(
        "Bars are means over {} seed(s) with 95 % confidence intervals; red diamonds are the paper's numbers where its text \
         gives one. B: baseline (Xen's credit scheduler, 30 ms), 1 to 6: static micro-sliced pCPUs, S: best static, D: \
         dynamic (Algorithm 1).",
        reproduction.seeds.len()
    ));
    section(page, "Figure 4: execution time by the number of micro-sliced pCPUs", figure4(runs));
    section(page, "Figure 5: throughput by the number of micro-sliced pCPUs", figure5(runs));
    section(page, "Figure 6: best static against dynamic", figure6(runs));
    section(page, "Figure 7: yields by cause over one run", figure7(runs));
    section(page, "Figure 8: programs that use no critical services", figure8(runs));
    section(page, "Figure 9: mixed I/O on one vCPU (the paper's text has bounds only)", figure9(runs));
    section(page, "Tables 2 and 4: solo against co-run", tables(&reproduction.figures));
}

pub fn section(page: &mut Page, title: &str, charts: Vec<BarChart>) {
    let drawn: Vec<String> = charts
        .iter()
        .filter(|chart| chart.series.iter().any(|series| series.bars.iter().any(Option::is_some)))
        .map(BarChart::to_svg)
        .collect();
    if !drawn.is_empty() {
        page.heading(title);
        page.plots(&drawn);
    }
}

/// Paper, ours, ratio, kind: for people.
pub fn table(figures: &[FigureResult]) -> Table {
    let mut table = Table::new(&["figure", "unit", ">paper", ">ours", ">ci95", ">ratio", "kind"]);
    for figure in figures {
        let paper = number(figure.paper);
        let paper = figure.relation.as_ref().map_or(paper.clone(), |relation| format!("{relation} {paper}"));
        let ours = figure.ours.map_or("-".to_owned(), |ours| number(ours.mean));
        let ours = figure.remark().map_or(ours.clone(), |remark| format!("{ours} ({remark})"));
        let half =
            figure.ours.filter(|ours| ours.count > 1).map(|ours| format!("± {}", number(ours.half_width())));
        table.row([
            figure.id.as_str(),
            figure.unit,
            &paper,
            &ours,
            &half.unwrap_or_default(),
            &ratio(figure),
            figure.kind(),
        ]);
    }
    table
}

/// Ours divided by the paper's; of a limit, whether it is kept.
fn ratio(figure: &FigureResult) -> String {
    match (&figure.relation, figure.ratio()) {
        (Some(_), _) if figure.holds() => "holds".to_owned(),
        (Some(_), _) => "MISS".to_owned(),
        (None, Some(ratio)) => format!("{ratio:.2}"),
        (None, None) => "-".to_owned(),
    }
}

/// Claims and verdicts.
pub fn shape_table(reproduction: &Reproduction) -> Table {
    let mut table = Table::new(&["", "shape", "seen"]);
    for shape in &reproduction.shapes {
        let verdict = if shape.holds == Some(true) { "pass" } else { "MISS" };
        table.row([verdict, &shape.claim, &shape.seen]);
    }
    table
}

/// Three significant digits, thousands apart.
fn number(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    match value.abs() {
        v if v >= 1000.0 => microslice_metrics::Unit::Count.show(value.round()),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 0.01 || v == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

pub fn bar(values: &[f64], published: Option<f64>) -> Option<Bar> {
    let estimate = estimate(values)?;
    let interval = (estimate.count > 1).then_some((estimate.low, estimate.high));
    Some(Bar { value: estimate.mean, interval, published })
}

pub fn series(name: &str, bars: Vec<Option<Bar>>) -> BarSeries {
    BarSeries { name: name.to_owned(), bars }
}

fn counts() -> Vec<String> {
    ["B", "1", "2", "3", "4", "5", "6"].map(str::to_owned).to_vec()
}

fn policies() -> impl Iterator<Item = &'static str> {
    [BASELINE].into_iter().chain(STATIC)
}

/// What the paper's text says about a bar of Figures 4 and 5, as a time relative to the baseline.
fn published_time(workload: &str, policy: &str, of_target: bool) -> Option<f64> {
    let count = policy.strip_prefix("micro-xen:")?;
    let pair = format!("{workload}_{count}core{}", if count == "1" { "" } else { "s" });
    let of_pair = |id: &str| id.split('.').nth(1) == Some(pair.as_str());
    let numbers = published(Paper::Eurosys18).into_iter().filter(|number| of_pair(&number.id));
    numbers.into_iter().find_map(|number| match (number.id.rsplit('.').next()?, of_target) {
        ("target_time_reduction", true) => Some(1.0 - number.value),
        ("target_gain", true) | ("swaptions_gain", false) => Some(1.0 / (1.0 + number.value)),
        ("throughput_ratio", true) => Some(1.0 / number.value),
        ("swaptions_time_increase", false) => Some(1.0 + number.value),
        _ => None,
    })
}

fn figure4(runs: &RunTable) -> Vec<BarChart> {
    EXECUTION_TIME_PAIRS
        .iter()
        .map(|workload| {
            let scenario = format!("{workload}-swaptions");
            let bars = |of_target: bool, time: fn(&RunReport) -> f64| {
                let values = |policy| runs.relative(&scenario, policy, BASELINE, time);
                policies().map(|p| bar(&values(p), published_time(workload, p, of_target))).collect()
            };
            BarChart {
                title: format!("{workload} and swaptions"),
                y_label: "execution time, baseline = 1".to_owned(),
                categories: counts(),
                series: vec![
                    series(workload, bars(true, target_time)),
                    series("swaptions", bars(false, corunner_time)),
                ],
                reference: Some(1.0),
                ..BarChart::default()
            }
        })
        .collect()
}

fn figure5(runs: &RunTable) -> Vec<BarChart> {
    let published =
        |workload: &str, policy: &str| published_time(workload, policy, true).map(|time| 1.0 / time);
    THROUGHPUT_PAIRS
        .iter()
        .map(|workload| {
            let scenario = format!("{workload}-swaptions");
            let gain = |policy: &str| -> Vec<f64> {
                runs.relative(&scenario, policy, BASELINE, target_time)
                    .iter()
                    .map(|time| 1.0 / time)
                    .collect()
            };
            let corunner = |policy: &str| runs.relative(&scenario, policy, BASELINE, corunner_time);
            BarChart {
                title: format!("{workload} and swaptions"),
                y_label: "baseline = 1".to_owned(),
                categories: counts(),
                series: vec![
                    series(
                        &format!("{workload} throughput"),
                        policies().map(|p| bar(&gain(p), published(workload, p))).collect(),
                    ),
                    series(
                        "swaptions time",
                        policies().map(|p| bar(&corunner(p), published_time(workload, p, false))).collect(),
                    ),
                ],
                reference: Some(1.0),
                ..BarChart::default()
            }
        })
        .collect()
}

fn figure6(runs: &RunTable) -> Vec<BarChart> {
    let workloads = [EXECUTION_TIME_PAIRS.as_slice(), THROUGHPUT_PAIRS.as_slice()].concat();
    let bars = |dynamic: bool, time: fn(&RunReport) -> f64| {
        let value = |workload: &&str| {
            let scenario = format!("{workload}-swaptions");
            let policy = if dynamic { Some(DYNAMIC) } else { runs.best_static(&scenario) };
            policy.and_then(|policy| bar(&runs.relative(&scenario, policy, BASELINE, time), None))
        };
        workloads.iter().map(value).collect::<Vec<_>>()
    };
    let chart = |title: &str, time: fn(&RunReport) -> f64| BarChart {
        title: title.to_owned(),
        y_label: "execution time, baseline = 1".to_owned(),
        categories: workloads.iter().map(|workload| (*workload).to_owned()).collect(),
        series: vec![series("static", bars(false, time)), series("dynamic", bars(true, time))],
        reference: Some(1.0),
        ..BarChart::default()
    };
    vec![chart("target", target_time), chart("swaptions", corunner_time)]
}

fn figure7(runs: &RunTable) -> Vec<BarChart> {
    type Count = fn(&RunReport) -> u64;
    let causes: [(&str, Count); 3] = [
        ("IPI", |report| target(report).yields.ipi),
        ("spinlock (PLE)", |report| target(report).yields.ple),
        ("halt", |report| target(report).yields.halt),
    ];
    let workloads = [EXECUTION_TIME_PAIRS.as_slice(), &["exim"]].concat();
    workloads
        .iter()
        .map(|workload| {
            let scenario = format!("{workload}-swaptions");
            let policies = [Some(BASELINE), runs.best_static(&scenario), Some(DYNAMIC)];
            let bars = |cause: fn(&RunReport) -> u64| {
                let values =
                    |policy: &str| runs.each(&scenario, policy, |report| over_one_run(report, cause(report)));
                policies.iter().map(|policy| policy.and_then(|policy| bar(&values(policy), None))).collect()
            };
            BarChart {
                title: (*workload).to_owned(),
                y_label: "yields".to_owned(),
                categories: ["B", "S", "D"].map(str::to_owned).to_vec(),
                series: causes.iter().map(|(name, cause)| series(name, bars(*cause))).collect(),
                stacked: true,
                ..BarChart::default()
            }
        })
        .collect()
}

fn figure8(runs: &RunTable) -> Vec<BarChart> {
    let value = |scenario: &&str| bar(&runs.relative(scenario, DYNAMIC, BASELINE, target_time), None);
    vec![BarChart {
        title: "dynamic".to_owned(),
        y_label: "execution time, baseline = 1".to_owned(),
        categories: UNAFFECTED
            .iter()
            .map(|scenario| scenario.trim_end_matches("-swaptions").to_owned())
            .collect(),
        series: vec![series("execution time", UNAFFECTED.iter().map(value).collect())],
        reference: Some(1.0),
        ..BarChart::default()
    }]
}

fn figure9(runs: &RunTable) -> Vec<BarChart> {
    let chart = |title: &str,
                 unit: &str,
                 scenario: &str,
                 value: fn(&microslice_engine::report::NetworkReport) -> f64| {
        let values = |policy: &str| {
            runs.each(scenario, policy, |report| target(report).network.as_ref().map_or(f64::NAN, value))
        };
        BarChart {
            title: title.to_owned(),
            y_label: unit.to_owned(),
            categories: ["baseline", "micro-sliced"].map(str::to_owned).to_vec(),
            series: vec![series(title, vec![bar(&values(BASELINE), None), bar(&values(DYNAMIC), None)])],
            ..BarChart::default()
        }
    };
    vec![
        chart("TCP throughput", "Mbit/s", "iperf-tcp-mixed", |network| network.throughput_mbps),
        chart("UDP jitter", "ms", "iperf-udp-mixed", jitter_ms),
    ]
}

/// Solo and co-run side by side on a logarithmic scale: the numbers differ by up to four decades.
fn tables(figures: &[FigureResult]) -> Vec<BarChart> {
    let chart = |title: &str, unit: &str, rows: &[(&str, &str, &str)]| {
        let find = |id: &str| figures.iter().find(|figure| figure.id == id);
        let bar_of = |id: &str| {
            find(id).and_then(|figure| {
                let interval = figure.ours.filter(|ours| ours.count > 1).map(|ours| (ours.low, ours.high));
                figure.ours.map(|ours| Bar { value: ours.mean, interval, published: Some(figure.paper) })
            })
        };
        BarChart {
            title: title.to_owned(),
            y_label: unit.to_owned(),
            categories: rows.iter().map(|(name, ..)| (*name).to_owned()).collect(),
            series: vec![
                series("solo", rows.iter().map(|(_, solo, _)| bar_of(solo)).collect()),
                series("co-run", rows.iter().map(|(.., corun)| bar_of(corun)).collect()),
            ],
            logarithmic: true,
            ..BarChart::default()
        }
    };
    vec![
        chart(
            "Table 2: yields",
            "yields of one run",
            &[
                ("exim", "table2.exim.solo", "table2.exim.corun"),
                ("gmake", "table2.gmake.solo", "table2.gmake.corun"),
                ("dedup", "table2.dedup.solo", "table2.dedup.corun"),
                ("vips", "table2.vips.solo", "table2.vips.corun"),
            ],
        ),
        chart(
            "Table 4a: lock waits of gmake",
            "us",
            &[
                ("page reclaim", "table4a.page_reclaim.solo", "table4a.page_reclaim.corun"),
                ("allocator", "table4a.page_allocator.solo", "table4a.page_allocator.corun"),
                ("dentry", "table4a.dentry.solo", "table4a.dentry.corun"),
                ("runqueue", "table4a.runqueue.solo", "table4a.runqueue.corun"),
            ],
        ),
        chart(
            "Table 4b: TLB synchronization",
            "us, mean",
            &[
                ("dedup", "table4b.dedup.solo.avg", "table4b.dedup.corun.avg"),
                ("vips", "table4b.vips.solo.avg", "table4b.vips.corun.avg"),
            ],
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduction::runs;

    #[test]
    fn bars_have_the_papers_numbers_as_times_relative_to_the_baseline() {
        let close = |found: Option<f64>, time: f64| (found.expect("published") - time).abs() < 1e-9;
        assert!(close(published_time("memclone", "micro-xen:1", true), 1.0 - 0.91));
        assert!(close(published_time("memclone", "micro-xen:1", false), 1.06));
        assert!(close(published_time("dedup", "micro-xen:3", false), 1.14));
        assert!(close(published_time("vips", "micro-xen:3", true), 1.0 / 1.17));
        assert!(close(published_time("vips", "micro-xen:3", false), 1.0 / 1.07));
        assert!(close(published_time("exim", "micro-xen:1", true), 1.0 / 3.9));
        assert!(close(published_time("exim", "micro-xen:1", false), 1.10));
    }

    #[test]
    fn what_the_paper_does_not_say_has_no_diamond() {
        assert_eq!(published_time("gmake", "micro-xen:1", true), None, "a gain of both VMs together");
        assert_eq!(published_time("dedup", "micro-xen:2", true), None);
        assert_eq!(published_time("dedup", BASELINE, true), None);
        let drawn = figure9(&RunTable::default());
        let bars = drawn.iter().flat_map(|chart| &chart.series).flat_map(|series| &series.bars).flatten();
        assert!(bars.into_iter().all(|bar| bar.published.is_none()));
    }

    #[test]
    fn a_limit_is_judged_and_a_figure_of_some_runs_only_says_so() {
        let figure = |relation: Option<&str>, values: &[f64]| FigureResult {
            id: "figure6.dynamic.exim_vs_static".to_owned(),
            unit: "ratio",
            paper: 1.0,
            relation: relation.map(str::to_owned),
            ours: runs::estimate(values),
            runs: values.len(),
            stalled: runs::stalled(values),
            calibrated: false,
        };
        let shown = |figure| table(&[figure]).to_string();
        assert!(shown(figure(Some(">="), &[1.0])).contains("holds"));
        assert!(shown(figure(Some(">="), &[0.97])).contains("MISS"));
        assert!(shown(figure(None, &[1.0, f64::NAN])).contains("1.00 (1 of 2 runs)"));
        assert!(shown(figure(None, &[1.0, f64::INFINITY])).contains("- (1 of 2 without progress)"));
    }
}
