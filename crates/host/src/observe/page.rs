//! A report as one page for a browser, without script and without the network.

use crate::interface::WaitStats;
use crate::observe::report::Report;
use microslice_metrics::counted;
use microslice_metrics::html::Page;
use microslice_metrics::plot::{Bar, BarChart, BarSeries};

pub fn of(report: &Report) -> String {
    let mut page = Page::new("What overcommit costs each VM");
    page.paragraph(&format!("{:.1} s, {}", report.seconds, counted(report.vms.len(), "VM")));
    for vm in &report.vms {
        page.paragraph(&vm.judgement(report.seconds));
    }
    page.heading("Waits for a pCPU");
    page.table(&report.wait_table());
    page.plots(&[ready_chart(report), percentile_chart(report)]);
    page.heading("Longest waits, and time beside vCPUs");
    page.table(&report.place_table());
    page.heading("What was interrupted, and what waited");
    page.table(&report.loss_table());
    page.heading("vCPUs");
    page.table(&report.vcpu_table());
    page.render()
}

fn bar(value: f64) -> Option<Bar> {
    Some(Bar { value, ..Bar::default() })
}

fn ready_chart(report: &Report) -> String {
    let bars = report.vms.iter().map(|vm| bar(vm.figures.ready_percent())).collect();
    chart(report, "Ready", "% of the time", vec![BarSeries { name: "ready".into(), bars }], false)
}

fn percentile_chart(report: &Report) -> String {
    let of = |name: &str, waits: &dyn Fn(&super::VmFigures) -> WaitStats| {
        let p99_ms = |vm: &super::report::VmReport| {
            waits(&vm.figures).percentile_ns(99.0).and_then(|ns| bar(ns as f64 / 1e6))
        };
        BarSeries { name: name.into(), bars: report.vms.iter().map(p99_ms).collect() }
    };
    let series = vec![
        of("turns", &super::VmFigures::waits),
        of("shootdowns", &|figures| figures.shootdowns),
        of("interrupts", &super::VmFigures::sent_interrupt_waits),
    ];
    chart(report, "Waits, p99", "ms", series, true)
}

fn chart(report: &Report, title: &str, y_label: &str, series: Vec<BarSeries>, logarithmic: bool) -> String {
    let categories = report.vms.iter().map(|vm| vm.name.clone()).collect();
    let chart = BarChart {
        title: title.into(),
        y_label: y_label.into(),
        categories,
        series,
        logarithmic,
        ..BarChart::default()
    };
    chart.to_svg()
}
