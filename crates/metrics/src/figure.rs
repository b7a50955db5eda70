//! What a figure is: an id, a kind, a unit, the labels that split it, and one sentence that says what it
//! counts.

/// How a figure behaves over a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only ever grows; a rate is the difference of two readings.
    Counter,
    /// A value at one moment, or of a whole run.
    Gauge,
    /// How often which duration occurred.
    Histogram,
    /// A value over time: (time, value) pairs.
    Series,
}

impl Kind {
    /// The kind's name in JSON and in documentation.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Series => "series",
        }
    }
}

/// What one step of a figure's value means. Values are kept in these units and only scaled when shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A number of events or things.
    Count,
    /// Host time; shown in the SI prefix that fits.
    Nanoseconds,
    /// A quotient, 1 meaning "all" or "the same".
    Ratio,
    /// Payload bits per second of host time.
    BitsPerSecond,
    /// Events (jobs, messages, operations) per second of host time.
    PerSecond,
}

impl Unit {
    /// The unit's symbol in JSON.
    pub fn symbol(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Nanoseconds => "ns",
            Self::Ratio => "ratio",
            Self::BitsPerSecond => "bit/s",
            Self::PerSecond => "1/s",
        }
    }

    /// The unit's OpenMetrics suffix and how many of our units make one of its base units.
    pub fn openmetrics(self) -> (&'static str, f64) {
        match self {
            Self::Count => ("", 1.0),
            Self::Nanoseconds => ("_seconds", 1e9),
            Self::Ratio => ("_ratio", 1.0),
            Self::BitsPerSecond => ("_bits_per_second", 1.0),
            Self::PerSecond => ("_per_second", 1.0),
        }
    }

    /// A value of this unit as people read it: `12.3 us`, `935.1 Mbit/s`, `1,204`.
    pub fn show(self, value: f64) -> String {
        if !value.is_finite() {
            return "-".to_owned();
        }
        match self {
            Self::Count => grouped(value),
            Self::Nanoseconds => scaled(value, &[(1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns")]),
            Self::Ratio => format!("{value:.3}"),
            Self::BitsPerSecond => {
                scaled(value, &[(1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1.0, "bit/s")])
            }
            Self::PerSecond => format!("{}/s", grouped(value)),
        }
    }
}

/// `value` in the largest of `steps` (largest first) that leaves at least 1 before the point.
fn scaled(value: f64, steps: &[(f64, &str)]) -> String {
    let (factor, symbol) = steps
        .iter()
        .find(|(factor, _)| value.abs() >= *factor)
        .or(steps.last())
        .copied()
        .unwrap_or((1.0, ""));
    format!("{} {symbol}", digits(value / factor))
}

/// Four significant digits, no needless zeros after the point.
fn digits(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 1000.0 => 0,
        v if v >= 100.0 => 1,
        v if v >= 10.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Thousands set apart, and decimals only where the value is small.
fn grouped(value: f64) -> String {
    if value.abs() < 1000.0 && value.fract() != 0.0 {
        return digits(value);
    }
    let whole = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (place, digit) in whole.chars().enumerate() {
        if place > 0 && (whole.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if value <= -0.5 { format!("-{text}") } else { text }
}

/// Definition of one figure. All of them are constants of [`crate::figures`].
#[derive(Debug, PartialEq, Eq)]
pub struct Figure {
    /// Name in JSON, and behind `microslice_` in OpenMetrics: `[a-z_]+`, the unit not included.
    pub id: &'static str,
    /// How the figure behaves.
    pub kind: Kind,
    /// What one step of its value means.
    pub unit: Unit,
    /// Names of the labels that each value carries, in order.
    pub labels: &'static [&'static str],
    /// What is counted or measured, when, and from where: one sentence or two.
    pub description: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_in_the_prefix_that_fits() {
        assert_eq!(Unit::Nanoseconds.show(12_345.0), "12.35 us");
        assert_eq!(Unit::Nanoseconds.show(0.0), "0 ns");
        assert_eq!(Unit::Nanoseconds.show(30e6), "30 ms");
        assert_eq!(Unit::BitsPerSecond.show(936.3e6), "936.3 Mbit/s");
        assert_eq!(Unit::Count.show(295_262_662.0), "295,262,662");
        assert_eq!(Unit::Count.show(-1_234.0), "-1,234");
        assert_eq!(Unit::Ratio.show(f64::NAN), "-");
    }
}
