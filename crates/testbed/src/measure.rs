//! What guests measured of themselves, cut out by time.
//!
//! A guest reports windows of its own time, each with counters and histograms (`testbed/guest/stats.c`). A
//! window counts for a phase if all of it lies inside, so phases can be told apart while the guest runs on.

use crate::guest::Guest;
use crate::link::Line;
use microslice_metrics::Histogram;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Latencies of one kind, in nanoseconds.
#[derive(Debug, Clone, Default)]
pub struct Latency {
    histogram: Histogram,
    max_ns: u64,
}

/// The sum of some windows of one guest.
#[derive(Debug, Clone, Default)]
pub struct Measurement {
    /// How many windows there are.
    pub windows: u32,
    /// Guest time in them.
    pub seconds: f64,
    /// Units of work by load: rounds of the kernel-heavy mix, or fixed computations of a hog.
    pub work: BTreeMap<String, u64>,
    /// `shootdown`, `lock`, `wake`, `pingpong`.
    pub latency: BTreeMap<String, Latency>,
}

impl Latency {
    /// The latency below or at which `percent` of all lie, in microseconds; `None` if there are none.
    pub fn percentile_us(&self, percent: f64) -> Option<f64> {
        Some(self.histogram.percentile(percent)?.min(self.max_ns) as f64 / 1000.0)
    }

    /// The longest, in microseconds.
    pub fn max_us(&self) -> Option<f64> {
        (self.histogram.count() > 0).then_some(self.max_ns as f64 / 1000.0)
    }

    pub fn count(&self) -> u64 {
        self.histogram.count()
    }

    /// `{"p50", "p99", "max", "count"}` in microseconds; `null` where nothing was measured.
    pub fn to_json(&self) -> Value {
        json!({
            "p50": self.percentile_us(50.0),
            "p99": self.percentile_us(99.0),
            "max": self.max_us(),
            "count": self.count(),
        })
    }
}

/// Of single ones, in nanoseconds.
impl FromIterator<u64> for Latency {
    fn from_iter<I: IntoIterator<Item = u64>>(all_ns: I) -> Self {
        let mut sum = Self::default();
        for ns in all_ns {
            sum.histogram.record(ns);
            sum.max_ns = sum.max_ns.max(ns);
        }
        sum
    }
}

impl Measurement {
    /// The windows of `guest` that lie inside `from..to` of the harness's time.
    pub fn of(guest: &Guest, from: Instant, to: Instant) -> Self {
        Self::of_lines(&guest.lines(0), from, to)
    }

    pub(crate) fn of_lines(lines: &[Line], from: Instant, to: Instant) -> Self {
        let mut sum = Self::default();
        for line in lines.iter().filter(|line| line.at <= to && line.text.starts_with("{\"window\"")) {
            // A line torn by the guest's end is no window.
            let Ok(window) = serde_json::from_str::<Value>(&line.text) else { continue };
            let length = Duration::from_nanos(window["length_ns"].as_u64().unwrap_or(0));
            let inside = line.at.checked_sub(length).is_some_and(|began| began >= from);
            if inside && !length.is_zero() {
                sum.add(&window, length);
            }
        }
        sum
    }

    fn add(&mut self, window: &Value, length: Duration) {
        self.windows += 1;
        self.seconds += length.as_secs_f64();
        for (load, amount) in window["work"].as_object().into_iter().flatten() {
            *self.work.entry(load.clone()).or_default() += amount.as_u64().unwrap_or(0);
        }
        for (kind, counts) in window["latency"].as_object().into_iter().flatten() {
            let latency = self.latency.entry(kind.clone()).or_default();
            latency.max_ns = latency.max_ns.max(counts["max_ns"].as_u64().unwrap_or(0));
            for bucket in counts["buckets"].as_array().into_iter().flatten() {
                if let (Some(index), Some(count)) = (bucket[0].as_u64(), bucket[1].as_u64()) {
                    latency.histogram.record_many(middle_of(index), count);
                }
            }
        }
    }

    /// All work, whatever load did it.
    pub fn work_done(&self) -> u64 {
        self.work.values().sum()
    }

    /// Work per second of guest time.
    pub fn work_rate(&self) -> f64 {
        if self.seconds > 0.0 { self.work_done() as f64 / self.seconds } else { 0.0 }
    }

    /// Latencies of a kind; empty if the guest measured none.
    pub fn latency(&self, kind: &str) -> Latency {
        self.latency.get(kind).cloned().unwrap_or_default()
    }
}

/// The middle of a bucket as `testbed/guest/stats.c` counts: octaves of eight.
fn middle_of(index: u64) -> u64 {
    if index < 8 {
        return index;
    }
    let shift = (index / 8 - 1).min(60) as u32;
    let lower = (8 + index % 8) << shift;
    lower + (1u64 << shift) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(at: Instant, length_ms: u64, worker: u64) -> Line {
        let text = json!({
            "window": 0, "length_ns": length_ms * 1_000_000, "work": {"worker": worker, "hog": 0},
            "latency": {"lock": {"max_ns": 900, "buckets": [[50, 3]]}},
        });
        Line { at, text: text.to_string() }
    }

    #[test]
    fn only_windows_that_lie_wholly_inside_count() {
        let start = Instant::now() + Duration::from_secs(100);
        let at = |ms| start + Duration::from_millis(ms);
        let lines = [
            line(at(500), 1000, 1),
            line(at(1500), 1000, 10),
            line(at(2500), 1000, 100),
            line(at(3500), 1000, 1000),
        ];
        let sum = Measurement::of_lines(&lines, start, at(3000));
        assert_eq!((sum.windows, sum.work_done()), (2, 110));
        assert_eq!(sum.latency("lock").count(), 6);
    }

    #[test]
    fn a_percentile_never_exceeds_the_longest_latency() {
        let start = Instant::now() + Duration::from_secs(100);
        let sum = Measurement::of_lines(
            &[line(start + Duration::from_secs(1), 1000, 1)],
            start,
            start + Duration::from_secs(2),
        );
        let latency = sum.latency("lock");
        assert!(latency.percentile_us(99.0) <= latency.max_us());
    }

    #[test]
    fn buckets_are_the_histograms_own() {
        for index in 0..480u64 {
            let mut histogram = Histogram::new();
            histogram.record_many(middle_of(index), 1);
            let bucket = histogram.buckets().next().expect("one bucket");
            let octave_start = if index < 8 { index } else { (8 + index % 8) << (index / 8 - 1) };
            assert_eq!(bucket.lower, octave_start, "bucket {index}");
        }
    }

    #[test]
    fn torn_lines_and_boot_messages_are_no_windows() {
        let now = Instant::now() + Duration::from_secs(10);
        let lines = ["{\"window\":3,\"len", "{\"ready\":\"mix\"}", "[    0.1] Linux"]
            .map(|text| Line { at: now, text: text.into() });
        assert_eq!(Measurement::of_lines(&lines, now - Duration::from_secs(5), now).windows, 0);
    }
}
