//! Figures as JSON: one object per entry, units and kinds named, so that a script needs no table of its own.

use crate::histogram::Histogram;
use crate::snapshot::{Entry, Snapshot, Value};
use serde_json::{Map, Value as Json, json};

/// Percentiles that every histogram shows.
pub const PERCENTILES: [f64; 4] = [50.0, 90.0, 99.0, 99.9];

/// `[{"figure", "kind", "unit", "labels": {…}, "value": …}, …]`, in the snapshot's order.
///
/// `value` is a number for counters and gauges, `{count, sum, min, max, mean, p50, p90, p99, p999, buckets:
/// [[lower, upper, count], …]}` for histograms, `[[time_ns, value], …]` for series. Numbers that don't exist
/// are `null`.
pub fn of_snapshot(snapshot: &Snapshot) -> Json {
    Json::Array(snapshot.entries().iter().map(of_entry).collect())
}

/// The same for many runs: one number per entry as `value`, of a histogram its mean, and `count`, `p50`,
/// `p99` and `max`.
pub fn numbers_of_snapshot(snapshot: &Snapshot) -> Json {
    Json::Array(snapshot.entries().iter().map(numbers_of_entry).collect())
}

fn numbers_of_entry(entry: &Entry) -> Json {
    let mut numbers = json!({ "figure": entry.figure.id, "labels": labels_of(entry) });
    match &entry.value {
        Value::Counter(count) => numbers["value"] = json!(count),
        value => numbers["value"] = json!(value.number()),
    }
    if let Value::Histogram(histogram) = &entry.value {
        numbers["count"] = json!(histogram.count());
        numbers["p50"] = json!(histogram.percentile(50.0));
        numbers["p99"] = json!(histogram.percentile(99.0));
        numbers["max"] = json!(histogram.max());
    }
    numbers
}

fn labels_of(entry: &Entry) -> Map<String, Json> {
    let pairs = entry.figure.labels.iter().zip(&entry.labels);
    pairs.map(|(key, value)| ((*key).to_owned(), Json::from(value.as_str()))).collect()
}

fn of_entry(entry: &Entry) -> Json {
    json!({
        "figure": entry.figure.id,
        "kind": entry.figure.kind.name(),
        "unit": entry.figure.unit.symbol(),
        "labels": labels_of(entry),
        "value": of_value(&entry.value),
    })
}

fn of_value(value: &Value) -> Json {
    match value {
        Value::Counter(count) => json!(count),
        Value::Gauge(number) => json!(number),
        Value::Histogram(histogram) => of_histogram(histogram),
        Value::Series(points) => json!(points),
    }
}

/// A histogram's summary and its non-empty buckets.
pub fn of_histogram(histogram: &Histogram) -> Json {
    let [p50, p90, p99, p999] = PERCENTILES.map(|percent| histogram.percentile(percent));
    let buckets: Vec<_> =
        histogram.buckets().map(|bucket| (bucket.lower, bucket.upper, bucket.count)).collect();
    json!({
        "count": histogram.count(),
        "sum": histogram.sum() as f64,
        "min": histogram.min(),
        "max": histogram.max(),
        "mean": histogram.mean(),
        "p50": p50, "p90": p90, "p99": p99, "p999": p999,
        "buckets": buckets,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{ACCELERATIONS, FAIRNESS_ERROR, SHOOTDOWN_WAIT};

    #[test]
    fn every_entry_says_figure_kind_unit_and_labels() {
        let mut snapshot = Snapshot::new();
        snapshot.counter(&ACCELERATIONS, &["lock_holder", "ple"], 7);
        snapshot.gauge(&FAIRNESS_ERROR, &[], f64::NAN);
        let json = of_snapshot(&snapshot);
        assert_eq!(
            json[0].to_string(),
            r#"{"figure":"accelerations","kind":"counter","unit":"count","labels":{"guest_class":"lock_holder","cause":"ple"},"value":7}"#
        );
        assert!(json[1]["value"].is_null());
    }

    #[test]
    fn a_histogram_carries_its_summary_and_its_buckets() {
        let mut histogram = Histogram::new();
        histogram.record_many(5, 3);
        let mut snapshot = Snapshot::new();
        snapshot.histogram(&SHOOTDOWN_WAIT, &["vm1"], histogram);
        let value = &of_snapshot(&snapshot)[0]["value"];
        assert_eq!((value["count"].as_u64(), value["p99"].as_u64()), (Some(3), Some(5)));
        assert_eq!(value["buckets"].to_string(), "[[5,5,3]]");
        assert_eq!(
            numbers_of_snapshot(&snapshot)[0].to_string(),
            r#"{"figure":"shootdown_wait","labels":{"vm":"vm1"},"value":5.0,"count":3,"p50":5,"p99":5,"max":5}"#
        );
    }
}
