//! The paper's plots, drawn from our runs: Figures 4 to 9 and Tables 2 and 4, published values as diamonds.

use super::{Eurosys18, UNAFFECTED, jitter_ms};
use crate::reproduction::plots::{bar, section, series};
use crate::reproduction::published::published;
use crate::reproduction::runs::{
    BASELINE, DYNAMIC, RunTable, STATIC, corunner_time, over_one_run, target, target_time,
};
use crate::reproduction::{FigureResult, Reproduction};
use microslice_engine::report::RunReport;
use microslice_metrics::html::Page;
use microslice_metrics::plot::{Bar, BarChart};

const EXECUTION_TIME_PAIRS: [&str; 4] = ["gmake", "memclone", "dedup", "vips"];
const THROUGHPUT_PAIRS: [&str; 2] = ["exim", "psearchy"];

pub fn draw(page: &mut Page, reproduction: &Reproduction) {
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
    let numbers = published(&Eurosys18).into_iter().filter(|number| of_pair(&number.id));
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
}
