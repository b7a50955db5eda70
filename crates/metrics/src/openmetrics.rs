//! Figures as text that Prometheus scrapes: OpenMetrics, version 1.0.0 of the specification, and the older
//! format that tools like `promtool check metrics` read.

use crate::figure::{Figure, Kind};
use crate::histogram::Histogram;
use crate::snapshot::{Entry, Snapshot, Value};
use std::fmt::Write;

/// The exported histogram buckets end at `2^n - 1` ns, 1 us to 17 s in steps of 4: finer ones would flood a
/// monitoring system. At these limits buckets of [`Histogram`] end, and those of `microslice observe`, so
/// that counts are exact. Those of `run` end at powers of two of microseconds: what took up to 2.4 % less
/// than a limit may be counted by the next one.
const BUCKET_LIMIT_BITS: [u32; 13] = [10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34];

/// Which of the two formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// OpenMetrics 1.0.0: a counter's family has its name without `_total`, units are said, the text has an
    /// end.
    OpenMetrics,
    /// Prometheus' text format 0.0.4: a family has the name of its samples.
    Text,
}

impl Format {
    /// What HTTP's `Content-Type` says.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// What a client's `Accept` asks for. A client that doesn't know OpenMetrics gets the older format.
    pub fn accepted_by(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") { Self::OpenMetrics } else { Self::Text }
    }
}

/// The whole exposition as OpenMetrics, `# EOF` included. Families come in the order of their first entry; a
/// series shows its latest value, as monitoring keeps the history itself.
pub fn of_snapshot(snapshot: &Snapshot) -> String {
    in_format(snapshot, Format::OpenMetrics)
}

/// Likewise in either format.
pub fn in_format(snapshot: &Snapshot, format: Format) -> String {
    let mut text = String::new();
    let mut seen: Vec<&str> = Vec::new();
    for entry in snapshot.entries() {
        if seen.contains(&entry.figure.id) {
            continue;
        }
        seen.push(entry.figure.id);
        family(&mut text, entry.figure, snapshot, format);
    }
    if format == Format::OpenMetrics {
        text.push_str("# EOF\n");
    }
    text
}

fn family(text: &mut String, figure: &'static Figure, snapshot: &Snapshot, format: Format) {
    let (suffix, units_per_base) = figure.unit.openmetrics();
    let name = format!("microslice_{}{suffix}", figure.id);
    let kind = match figure.kind {
        Kind::Counter => "counter",
        Kind::Histogram => "histogram",
        Kind::Gauge | Kind::Series => "gauge",
    };
    let of_samples = if figure.kind == Kind::Counter { "_total" } else { "" };
    let family = match format {
        Format::OpenMetrics => name.clone(),
        Format::Text => format!("{name}{of_samples}"),
    };
    // Writing into a String can't fail.
    let _ = writeln!(text, "# TYPE {family} {kind}");
    if let (Some(unit), Format::OpenMetrics) = (suffix.strip_prefix('_'), format) {
        let _ = writeln!(text, "# UNIT {family} {unit}");
    }
    let _ = writeln!(text, "# HELP {family} {}", escaped(figure.description));
    for entry in snapshot.of(figure) {
        samples(text, &name, units_per_base, entry);
    }
}

fn samples(text: &mut String, name: &str, units_per_base: f64, entry: &Entry) {
    match &entry.value {
        Value::Counter(count) if units_per_base == 1.0 => {
            let _ = writeln!(text, "{name}_total{} {count}", label_set(entry, None));
        }
        Value::Counter(count) => {
            let _ =
                writeln!(text, "{name}_total{} {}", label_set(entry, None), *count as f64 / units_per_base);
        }
        Value::Gauge(_) | Value::Series(_) => {
            if let Some(value) = entry.value.number() {
                let _ = writeln!(text, "{name}{} {}", label_set(entry, None), value / units_per_base);
            }
        }
        Value::Histogram(histogram) => histogram_samples(text, name, units_per_base, entry, histogram),
    }
}

fn histogram_samples(
    text: &mut String,
    name: &str,
    units_per_base: f64,
    entry: &Entry,
    histogram: &Histogram,
) {
    for limit in BUCKET_LIMIT_BITS.map(|bits| (1 << bits) - 1) {
        let le = (limit as f64 / units_per_base).to_string();
        let _ = writeln!(
            text,
            "{name}_bucket{} {}",
            label_set(entry, Some(("le", &le))),
            histogram.count_up_to(limit)
        );
    }
    let _ = writeln!(text, "{name}_bucket{} {}", label_set(entry, Some(("le", "+Inf"))), histogram.count());
    let _ =
        writeln!(text, "{name}_sum{} {}", label_set(entry, None), histogram.sum() as f64 / units_per_base);
    let _ = writeln!(text, "{name}_count{} {}", label_set(entry, None), histogram.count());
}

fn label_set(entry: &Entry, extra: Option<(&str, &str)>) -> String {
    let own = entry.figure.labels.iter().copied().zip(entry.labels.iter().map(String::as_str));
    let pairs: Vec<String> =
        own.chain(extra).map(|(key, value)| format!("{key}=\"{}\"", escaped(value))).collect();
    if pairs.is_empty() { String::new() } else { format!("{{{}}}", pairs.join(",")) }
}

/// Guests and files name VMs and locks: quotes, backslashes and line ends must not break the format.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{ACCELERATIONS, CPU_TIME, LOCK_WAIT, MICRO_POOL_SIZE};
    use proptest::prelude::*;

    #[test]
    fn an_exposition_has_types_units_help_and_an_end() {
        let mut snapshot = Snapshot::new();
        snapshot.counter(&ACCELERATIONS, &["lock_holder", "ple"], 7);
        snapshot.counter(&CPU_TIME, &["vm \"one\"\\"], 1_500_000_000);
        snapshot.counter(&ACCELERATIONS, &["resched_ipi", "ipi"], 2);
        snapshot.series(&MICRO_POOL_SIZE, &[], vec![(0, 0.0), (10, 3.0)]);
        let text = of_snapshot(&snapshot);
        assert!(
            text.starts_with("# TYPE microslice_accelerations counter\n# HELP microslice_accelerations ")
        );
        assert!(
            text.contains("microslice_accelerations_total{guest_class=\"resched_ipi\",cause=\"ipi\"} 2\n")
        );
        assert!(text.contains("# UNIT microslice_cpu_time_seconds seconds\n"));
        assert!(text.contains("microslice_cpu_time_seconds_total{vm=\"vm \\\"one\\\"\\\\\"} 1.5\n"));
        assert!(text.contains("microslice_micro_pool_size 3\n"));
        assert!(text.ends_with("# EOF\n"));
        assert_eq!(text.matches("# TYPE microslice_accelerations ").count(), 1);
    }

    #[test]
    fn the_older_format_calls_a_family_as_its_samples_and_has_neither_units_nor_an_end() {
        let mut snapshot = Snapshot::new();
        snapshot.counter(&CPU_TIME, &["a"], 1_500_000_000);
        let text = in_format(&snapshot, Format::Text);
        assert!(text.starts_with("# TYPE microslice_cpu_time_seconds_total counter\n# HELP "), "{text}");
        assert!(text.contains("\nmicroslice_cpu_time_seconds_total{vm=\"a\"} 1.5\n"), "{text}");
        assert!(!text.contains("# UNIT") && !text.contains("# EOF"), "{text}");
    }

    #[test]
    fn a_client_has_openmetrics_if_it_asks_for_it() {
        let prometheus =
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(Format::accepted_by(prometheus), Format::OpenMetrics);
        assert_eq!(Format::accepted_by("*/*"), Format::Text);
    }

    #[test]
    fn histogram_buckets_are_cumulative_and_end_at_infinity() {
        let mut histogram = Histogram::new();
        histogram.record(1_023);
        histogram.record_many(100_000, 3);
        histogram.record(50_000_000);
        let mut snapshot = Snapshot::new();
        snapshot.histogram(&LOCK_WAIT, &["vm1", "dentry"], histogram);
        let text = of_snapshot(&snapshot);
        assert!(text.contains("_bucket{vm=\"vm1\",lock=\"dentry\",le=\"0.000001023\"} 1\n"), "{text}");
        assert!(text.contains("_bucket{vm=\"vm1\",lock=\"dentry\",le=\"0.000065535\"} 1\n"));
        assert!(text.contains("_bucket{vm=\"vm1\",lock=\"dentry\",le=\"0.000262143\"} 4\n"));
        assert!(text.contains("_bucket{vm=\"vm1\",lock=\"dentry\",le=\"+Inf\"} 5\n"));
        assert!(text.contains("_count{vm=\"vm1\",lock=\"dentry\"} 5\n"));
    }

    proptest! {
        #[test]
        fn a_bucket_counts_exactly_the_values_that_are_at_most_its_limit(mut values in prop::collection::vec(0u64..1 << 36, 1..50)) {
            let limits = BUCKET_LIMIT_BITS.map(|bits| (1u64 << bits) - 1);
            values.extend(limits.iter().flat_map(|limit| [*limit, limit + 1]));
            let mut histogram = Histogram::new();
            values.iter().for_each(|value| histogram.record(*value));
            let exact = |limit: &u64| values.iter().filter(|value| *value <= limit).count() as u64;
            let mut snapshot = Snapshot::new();
            snapshot.histogram(&LOCK_WAIT, &["vm1", "dentry"], histogram);
            let text = of_snapshot(&snapshot);
            let counts: Vec<u64> = text
                .lines()
                .filter(|line| line.contains("le=\"0.") || line.contains("le=\"1") || line.contains("le=\"4"))
                .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
                .collect();
            prop_assert_eq!(counts, limits.iter().map(exact).collect::<Vec<_>>());
        }
    }
}
