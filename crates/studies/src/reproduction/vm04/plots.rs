//! Tables 1 and 2 and Figures 2, 3 and 6 to 9 of VM'04, drawn from our runs.

use super::*;
use crate::reproduction::Reproduction;
use crate::reproduction::plots::{bar, section, series};
use microslice_metrics::Histogram;
use microslice_metrics::html::Page;
use microslice_metrics::plot::{BarChart, StepChart};

type Value = fn(&RunReport) -> f64;

/// Where Figures 2 and 3 have their points, in us.
const LIMITS_US: [u64; 8] = [2, 5, 10, 20, 50, 200, 1_000, 10_000];

pub fn draw(page: &mut Page, reproduction: &Reproduction) {
    let runs = &reproduction.runs;
    page.paragraph(&format!(
        "Bars are means over {} seed(s) with 95 % confidence intervals. Where the paper's text gives numbers, they stand in the table below.",
        reproduction.seeds.len()
    ));
    section(page, "Tables 1 and 2: how long locks are held, and guests unsafe", vec![means(runs)]);
    let parts = [("locks held for at most so long", true), ("unsafe for at most so long", false)];
    section(
        page,
        "Figures 2 and 3: how long locks are held, and guests unsafe",
        parts.map(|(title, holds)| distribution(runs, title, holds)).to_vec(),
    );
    section(page, "Figure 6: throughput of two web servers", webs(runs, "files/s", web_throughput));
    let kinds: [(&str, Value); 2] = [
        ("held for more than 1 ms, part of the time", extended_holds),
        ("waited for more than 1 ms, part of the time", extended_waits),
    ];
    let charts = kinds.into_iter().flat_map(|(unit, value)| webs(runs, unit, value)).collect();
    section(page, "Figures 7 and 8: locks that are held, and waited for, for long", charts);
    let drawn: Vec<String> = Guest::ALL
        .into_iter()
        .filter_map(|guest| runs.first(&balloon(guest)).map(|report| over_time(guest, report).to_svg()))
        .collect();
    if !drawn.is_empty() {
        page.heading("Figure 9: a VM that loses 70 % of a pCPU from 7 s to 35 s");
        page.plots(&drawn);
    }
}

const TRACED: [(&str, &str); 3] = [("povray", POVRAY), ("kernel build", BUILD), ("apache2", APACHE)];

fn means(runs: &RunTable) -> BarChart {
    let of = |value: fn(&GuestTimes) -> &Histogram| {
        let mean = |(_, scenario): (&str, &str)| {
            let ns = |report: &RunReport| value(times(report)).mean().map_or(f64::NAN, |ns| ns / 1e3);
            bar(&runs.each(scenario, PLAIN, ns), None)
        };
        TRACED.map(mean).to_vec()
    };
    BarChart {
        title: "alone".to_owned(),
        y_label: "us, mean".to_owned(),
        categories: TRACED.map(|(name, _)| name.to_owned()).to_vec(),
        series: vec![
            series("locks held", of(|times| &times.lock_holds)),
            series("unsafe", of(|times| &times.unsafe_times)),
        ],
        logarithmic: true,
        ..BarChart::default()
    }
}

fn distribution(runs: &RunTable, title: &str, holds: bool) -> BarChart {
    let bars = |scenario: &str| {
        let part = |us: u64| {
            let value = |report: &RunReport| {
                let times = times(report);
                part_up_to(if holds { &times.lock_holds } else { &times.unsafe_times }, us)
            };
            bar(&runs.each(scenario, PLAIN, value), None)
        };
        LIMITS_US.map(part).to_vec()
    };
    BarChart {
        title: title.to_owned(),
        y_label: "part of all".to_owned(),
        categories: LIMITS_US.map(|us| format!("{us} us")).to_vec(),
        series: TRACED.map(|(name, scenario)| series(name, bars(scenario))).to_vec(),
        ..BarChart::default()
    }
}

/// A chart for each number of pCPUs.
fn webs(runs: &RunTable, y_label: &str, value: Value) -> Vec<BarChart> {
    let chart = |pcpus: u32| {
        let bars =
            |scheme| SHARES.map(|share| bar(&runs.of(&web(scheme, pcpus, share), value), None)).to_vec();
        BarChart {
            title: format!("{pcpus} processors"),
            y_label: y_label.to_owned(),
            categories: SHARES.map(|share| format!("{share} %")).to_vec(),
            series: Scheme::ALL.map(|scheme| series(scheme.name(), bars(scheme))).to_vec(),
            ..BarChart::default()
        }
    };
    PCPUS.map(chart).to_vec()
}

/// Threads on A's vCPUs, and what they were given.
fn over_time(guest: Guest, report: &RunReport) -> StepChart {
    let samples = &report.vms[0].balance;
    let line = |value: fn(&BalanceSample) -> f64| {
        samples.iter().map(|sample| (sample.time_ns, value(sample))).collect()
    };
    StepChart {
        title: guest.name().to_owned(),
        y_label: "threads; tenths of a pCPU".to_owned(),
        lines: vec![
            ("threads on CPU 0".to_owned(), line(|sample| sample.threads[0] as f64)),
            ("threads on CPU 1".to_owned(), line(|sample| sample.threads[1] as f64)),
            ("share of CPU 0".to_owned(), line(|sample| sample.shares[0] as f64 / 100.0)),
        ],
    }
}
