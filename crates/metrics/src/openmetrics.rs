//! Figures as OpenMetrics text (the format that Prometheus scrapes): version 1.0.0 of the specification.

use crate::figure::{Figure, Kind};
use crate::histogram::Histogram;
use crate::snapshot::{Entry, Snapshot, Value};
use std::fmt::Write;

/// Upper limits of the exported histogram buckets, in ns: 1 us to 10 s in steps of about 3; finer ones would flood a
/// monitoring system.
const BUCKET_LIMITS_NS: [u64; 15] = [
    1_000,
    3_000,
    10_000,
    30_000,
    100_000,
    300_000,
    1_000_000,
    3_000_000,
    10_000_000,
    30_000_000,
    100_000_000,
    300_000_000,
    1_000_000_000,
    3_000_000_000,
    10_000_000_000,
];

/// The whole exposition, `# EOF` included. Families come in the order of their first entry; a series shows its latest
/// value, as monitoring keeps the history itself.
pub fn of_snapshot(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    let mut seen: Vec<&str> = Vec::new();
    for entry in snapshot.entries() {
        if seen.contains(&entry.figure.id) {
            continue;
        }
        seen.push(entry.figure.id);
        family(&mut text, entry.figure, snapshot);
    }
    text.push_str("# EOF\n");
    text
}

fn family(text: &mut String, figure: &'static Figure, snapshot: &Snapshot) {
    let (suffix, units_per_base) = figure.unit.openmetrics();
    let name = format!("microslice_{}{suffix}", figure.id);
    let kind = match figure.kind {
        Kind::Counter => "counter",
        Kind::Histogram => "histogram",
        Kind::Gauge | Kind::Series => "gauge",
    };
    // Writing into a String can't fail.
    let _ = writeln!(text, "# TYPE {name} {kind}");
    if let Some(unit) = suffix.strip_prefix('_') {
        let _ = writeln!(text, "# UNIT {name} {unit}");
    }
    let _ = writeln!(text, "# HELP {name} {}", escaped(figure.description));
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
    for limit in BUCKET_LIMITS_NS {
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
    fn histogram_buckets_are_cumulative_and_end_at_infinity() {
        let mut histogram = Histogram::new();
        histogram.record(500);
        histogram.record(50_000_000);
        let mut snapshot = Snapshot::new();
        snapshot.histogram(&LOCK_WAIT, &["vm1", "dentry"], histogram);
        let text = of_snapshot(&snapshot);
        assert!(text.contains("_bucket{vm=\"vm1\",lock=\"dentry\",le=\"0.000001\"} 1\n"), "{text}");
        assert!(text.contains("_bucket{vm=\"vm1\",lock=\"dentry\",le=\"+Inf\"} 2\n"));
        assert!(text.contains("_count{vm=\"vm1\",lock=\"dentry\"} 2\n"));
    }
}
