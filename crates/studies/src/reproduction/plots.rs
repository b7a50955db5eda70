//! What is shown of every study: one page, tables, and the parts of charts.

use super::runs::estimate;
use super::{FigureResult, Reproduction};
use microslice_metrics::html::Page;
use microslice_metrics::plot::{Bar, BarChart, BarSeries};
use microslice_metrics::table::Table;

/// One self-contained page.
pub fn page(reproduction: &Reproduction) -> String {
    let mut page = Page::new(&format!("{}, reproduced in simulation", reproduction.study.title()));
    reproduction.study.draw(&mut page, reproduction);
    page.heading("Every published number");
    page.paragraph(reproduction.study.kinds());
    page.table(&table(&reproduction.figures));
    page.heading("Shapes");
    page.table(&shape_table(reproduction));
    page.render()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduction::runs;

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
