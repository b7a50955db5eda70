//! Plots as self-contained SVG: bars (grouped or stacked, with error bars and marks for published values) and
//! steps.
//!
//! The drawings carry their own colours and sizes, take no script and no font from elsewhere, and escape
//! every text.

use crate::html::plain;
use std::fmt::Write;

/// A figure's height in pixels; the width follows the number of bars.
const HEIGHT: f64 = 260.0;
const MARGIN_LEFT: f64 = 64.0;
const MARGIN_RIGHT: f64 = 12.0;
const MARGIN_TOP: f64 = 46.0;
const MARGIN_BOTTOM: f64 = 44.0;
/// Colours that people with colour-vision deficiency can tell apart (Okabe and Ito).
const COLOURS: [&str; 7] = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999"];

/// One bar: its height, its error bar, and a published value to mark.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Bar {
    pub value: f64,
    /// Ends of the error bar, if there is one.
    pub interval: Option<(f64, f64)>,
    /// A published value, drawn as a diamond.
    pub published: Option<f64>,
}

/// Bars of one colour, one per category; `None` leaves a gap.
#[derive(Debug, Clone, PartialEq)]
pub struct BarSeries {
    pub name: String,
    pub bars: Vec<Option<Bar>>,
}

/// A bar chart.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BarChart {
    pub title: String,
    /// What the vertical axis shows, with its unit.
    pub y_label: String,
    pub categories: Vec<String>,
    pub series: Vec<BarSeries>,
    /// Bars of a category stand on each other instead of side by side (error bars are left out then).
    pub stacked: bool,
    /// A horizontal line to compare with, such as 1 for "as the baseline".
    pub reference: Option<f64>,
    /// Heights on a logarithmic scale, for values that span decades.
    pub logarithmic: bool,
}

/// Steps over time: lines that hold their value until the next point.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepChart {
    pub title: String,
    pub y_label: String,
    /// Name and (time in ns, value) points of each line, ascending in time.
    pub lines: Vec<(String, Vec<(u64, f64)>)>,
}

impl BarChart {
    /// The chart as one `<svg>` element.
    pub fn to_svg(&self) -> String {
        let bars_per_category = if self.stacked { 1 } else { self.series.len().max(1) };
        let bar_width = if bars_per_category > 4 { 12.0 } else { 20.0 };
        let label_width = self.categories.iter().map(|name| text_width(name)).fold(0.0, f64::max) + 10.0;
        let category_width = (bars_per_category as f64 * bar_width + 16.0).max(56.0).max(label_width);
        let legend_width: f64 = self.series.iter().map(|series| legend_width(&series.name)).sum();
        let plot_width = (category_width * self.categories.len() as f64)
            .max(180.0)
            .max(legend_width)
            .max(text_width(&self.title) * 1.2);
        let axis = Axis::over(self.heights(), self.logarithmic);
        let mut svg = frame(plot_width, &self.title, &self.y_label, &axis);
        for (place, category) in self.categories.iter().enumerate() {
            let left = MARGIN_LEFT + place as f64 * category_width;
            let middle = left + category_width / 2.0;
            text(&mut svg, middle, HEIGHT - MARGIN_BOTTOM + 16.0, "middle", 11, category);
            let first = middle - bars_per_category as f64 * bar_width / 2.0;
            self.draw_category(&mut svg, place, first, bar_width, &axis);
        }
        if let Some(reference) = self.reference {
            let y = axis.y(reference);
            let _ = write!(
                svg,
                r##"<line x1="{MARGIN_LEFT}" x2="{:.1}" y1="{y:.1}" y2="{y:.1}" stroke="#444" stroke-dasharray="4 3"/>"##,
                MARGIN_LEFT + plot_width
            );
        }
        legend(&mut svg, self.series.iter().map(|series| series.name.as_str()));
        svg.push_str("</svg>");
        svg
    }

    fn heights(&self) -> Vec<f64> {
        let mut heights: Vec<f64> = self.reference.into_iter().collect();
        for place in 0..self.categories.len() {
            let bars = self.series.iter().filter_map(|series| series.bars.get(place).copied().flatten());
            if self.stacked {
                heights.push(bars.map(|bar| bar.value).sum());
                continue;
            }
            for bar in bars {
                heights.push(bar.value);
                heights.extend(bar.published);
                heights.extend(bar.interval.map(|(_, high)| high));
            }
        }
        heights.retain(|height| height.is_finite());
        heights
    }

    fn draw_category(&self, svg: &mut String, place: usize, first: f64, bar_width: f64, axis: &Axis) {
        let mut below = 0.0;
        for (index, series) in self.series.iter().enumerate() {
            let Some(bar) = series.bars.get(place).copied().flatten() else { continue };
            if !bar.value.is_finite() {
                continue;
            }
            let x = if self.stacked { first } else { first + index as f64 * bar_width };
            let (bottom, top) = (axis.y(below), axis.y(below + bar.value));
            let _ = write!(
                svg,
                r#"<rect x="{x:.1}" y="{:.1}" width="{:.1}" height="{:.1}" fill="{}"><title>{}: {:.4}</title></rect>"#,
                top.min(bottom),
                bar_width - 2.0,
                (bottom - top).abs(),
                COLOURS[index % COLOURS.len()],
                escape(&series.name),
                bar.value
            );
            if self.stacked {
                below += bar.value;
                continue;
            }
            let middle = x + bar_width / 2.0 - 1.0;
            if let Some((low, high)) = bar.interval.filter(|(low, high)| low.is_finite() && high.is_finite())
            {
                error_bar(svg, middle, axis.y(low), axis.y(high));
            }
            if let Some(published) = bar.published.filter(|value| value.is_finite()) {
                diamond(svg, middle, axis.y(published), published);
            }
        }
    }
}

impl StepChart {
    /// The chart as one `<svg>` element.
    pub fn to_svg(&self) -> String {
        let plot_width = 420.0;
        let points = || self.lines.iter().flat_map(|(_, points)| points);
        let end_ns = points().map(|(time, _)| *time).max().unwrap_or(0).max(1);
        let axis =
            Axis::over(points().map(|(_, value)| *value).filter(|value| value.is_finite()).collect(), false);
        let mut svg = frame(plot_width, &self.title, &self.y_label, &axis);
        let x = |time: u64| MARGIN_LEFT + time as f64 / end_ns as f64 * plot_width;
        for (index, (_, points)) in self.lines.iter().enumerate() {
            let mut path = String::new();
            for (time, value) in points {
                let command = if path.is_empty() { "M" } else { "H" };
                match command {
                    "M" => write!(path, "M{:.1} {:.1}", x(*time), axis.y(*value)),
                    _ => write!(path, "H{:.1}V{:.1}", x(*time), axis.y(*value)),
                }
                .unwrap_or_default();
            }
            let colour = COLOURS[index % COLOURS.len()];
            let _ = write!(svg, r#"<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>"#);
        }
        let label = format!("time (0 to {})", crate::Unit::Nanoseconds.show(end_ns as f64));
        text(&mut svg, MARGIN_LEFT + plot_width / 2.0, HEIGHT - MARGIN_BOTTOM + 16.0, "middle", 11, &label);
        legend(&mut svg, self.lines.iter().map(|(name, _)| name.as_str()));
        svg.push_str("</svg>");
        svg
    }
}

/// The vertical axis: from values to pixels, and where its ticks are.
struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
    ticks: Vec<f64>,
}

impl Axis {
    fn over(values: Vec<f64>, logarithmic: bool) -> Self {
        let positive = values.iter().copied().filter(|value| *value > 0.0);
        if logarithmic && positive.clone().next().is_some() {
            let low = positive.clone().fold(f64::INFINITY, f64::min).log10().floor() - 1.0;
            let high = positive.fold(0.0, f64::max).log10().ceil().max(low + 1.0);
            let decades = (high - low) as i32;
            let ticks = (0..=decades).step_by((decades / 6 + 1) as usize);
            let ticks = ticks.map(|step| 10f64.powf(low + f64::from(step))).collect();
            return Self { low: 10f64.powf(low), high: 10f64.powf(high), logarithmic: true, ticks };
        }
        let top = values.iter().copied().fold(0.0, f64::max);
        let bottom = values.iter().copied().fold(0.0, f64::min);
        let step = tick_step(if top > bottom { top - bottom } else { 1.0 });
        let (low, high) = ((bottom / step).floor() * step, ((top * 1.02 / step).ceil() * step).max(step));
        let count = ((high - low) / step).round() as i32;
        Self {
            low,
            high,
            logarithmic: false,
            ticks: (0..=count).map(|i| low + f64::from(i) * step).collect(),
        }
    }

    /// Pixels from the top for a value; values outside of the axis stay at its ends.
    fn y(&self, value: f64) -> f64 {
        let place = if self.logarithmic {
            (value.max(self.low).log10() - self.low.log10()) / (self.high.log10() - self.low.log10())
        } else {
            (value - self.low) / (self.high - self.low)
        };
        HEIGHT - MARGIN_BOTTOM - place.clamp(0.0, 1.0) * (HEIGHT - MARGIN_TOP - MARGIN_BOTTOM)
    }
}

/// A step of 1, 2 or 5 times a power of ten that cuts `range` into about five.
fn tick_step(range: f64) -> f64 {
    let rough = range / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    power * [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| power * factor >= rough).unwrap_or(10.0)
}

fn frame(plot_width: f64, title: &str, y_label: &str, axis: &Axis) -> String {
    let width = MARGIN_LEFT + plot_width + MARGIN_RIGHT;
    let mut svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width:.0}" height="{HEIGHT:.0}" viewBox="0 0 {width:.0} {HEIGHT:.0}" font-family="sans-serif">"#
    );
    let _ = write!(svg, "<title>{}</title>", escape(title));
    text(&mut svg, MARGIN_LEFT, 14.0, "start", 13, title);
    for tick in &axis.ticks {
        let y = axis.y(*tick);
        let _ = write!(
            svg,
            r##"<line x1="{MARGIN_LEFT}" x2="{:.1}" y1="{y:.1}" y2="{y:.1}" stroke="#ddd"/>"##,
            MARGIN_LEFT + plot_width
        );
        text(&mut svg, MARGIN_LEFT - 6.0, y + 4.0, "end", 10, &tick_text(*tick));
    }
    let middle = (HEIGHT + MARGIN_TOP - MARGIN_BOTTOM) / 2.0;
    let _ = write!(
        svg,
        r#"<text transform="translate(12 {middle:.0}) rotate(-90)" text-anchor="middle" font-size="11">{}</text>"#,
        escape(y_label)
    );
    svg
}

fn tick_text(tick: f64) -> String {
    match tick.abs() {
        0.0 => "0".to_owned(),
        v if v >= 1e6 => format!("{}M", trimmed(tick / 1e6)),
        v if v >= 1e4 => format!("{}k", trimmed(tick / 1e3)),
        v if v < 1e-3 => format!("{tick:.0e}"),
        _ => trimmed(tick),
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn legend<'a>(svg: &mut String, names: impl Iterator<Item = &'a str>) {
    let mut x = MARGIN_LEFT;
    for (index, name) in names.enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let _ = write!(svg, r#"<rect x="{x:.0}" y="22" width="10" height="10" fill="{colour}"/>"#);
        text(svg, x + 14.0, 31.0, "start", 11, name);
        x += legend_width(name);
    }
}

/// Roughly, for a sans-serif font at the labels' size.
fn text_width(text: &str) -> f64 {
    6.5 * text.chars().count() as f64
}

fn legend_width(name: &str) -> f64 {
    26.0 + text_width(name)
}

fn error_bar(svg: &mut String, x: f64, low: f64, high: f64) {
    let (left, right) = (x - 3.0, x + 3.0);
    let _ = write!(
        svg,
        r##"<path d="M{left:.1} {high:.1}H{right:.1}M{x:.1} {high:.1}V{low:.1}M{left:.1} {low:.1}H{right:.1}" stroke="#000" fill="none"/>"##
    );
}

fn diamond(svg: &mut String, x: f64, y: f64, value: f64) {
    let _ = write!(
        svg,
        r##"<path d="M{x:.1} {:.1}l4 4l-4 4l-4 -4z" fill="#fff" stroke="#c00" stroke-width="1.5"><title>published: {value}</title></path>"##,
        y - 4.0
    );
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, size: u32, content: &str) {
    let _ = write!(
        svg,
        r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" font-size="{size}">{}</text>"#,
        escape(content)
    );
}

/// Text that can't end an element or an attribute.
pub(crate) fn escape(text: &str) -> String {
    plain(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(value: f64) -> BarChart {
        BarChart {
            title: "gmake <1>".to_owned(),
            y_label: "relative time".to_owned(),
            categories: vec!["B".to_owned(), "1".to_owned()],
            series: vec![BarSeries {
                name: "gmake".to_owned(),
                bars: vec![
                    Some(Bar { value, interval: Some((value * 0.9, value * 1.1)), published: Some(1.2) }),
                    None,
                ],
            }],
            reference: Some(1.0),
            ..BarChart::default()
        }
    }

    #[test]
    fn a_bar_carries_its_error_bar_and_its_published_value() {
        let svg = chart(0.8).to_svg();
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>"));
        assert_eq!(svg.matches("<rect ").count(), 2, "one bar and its legend");
        assert!(svg.contains("published: 1.2") && svg.contains("stroke=\"#000\""));
        assert!(svg.contains("gmake &lt;1&gt;") && !svg.contains("gmake <1>"));
    }

    #[test]
    fn values_that_are_no_numbers_leave_a_gap_instead_of_breaking_the_drawing() {
        for value in [f64::NAN, f64::INFINITY, 0.0, -3.0, 1e18] {
            let svg = chart(value).to_svg();
            assert!(!svg.contains("NaN") && !svg.contains("inf\""), "{value}: {svg}");
        }
    }

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(tick_step(1.4), 0.5);
        assert_eq!(tick_step(4.9), 1.0);
        assert_eq!(Axis::over(vec![0.0, 1.3], false).ticks, vec![0.0, 0.5, 1.0, 1.5]);
    }

    #[test]
    fn a_logarithmic_axis_spans_whole_decades() {
        let axis = Axis::over(vec![28.0, 6354.0], true);
        assert_eq!((axis.low, axis.high), (1.0, 10_000.0));
    }

    #[test]
    fn steps_hold_their_value_until_the_next_point() {
        let lines = vec![("pool".to_owned(), vec![(0, 0.0), (50, 2.0), (100, 2.0)])];
        let svg = StepChart { title: "pool".to_owned(), y_label: "pCPUs".to_owned(), lines }.to_svg();
        assert!(svg.contains("M64.0") && svg.contains("H274.0V"), "{svg}");
    }
}
