//! The values of one run (or of one moment of a real run), in a fixed order.

use crate::figure::{Figure, Kind};
use crate::figures::SUMS;
use crate::histogram::Histogram;

/// The value of a figure for one combination of labels.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Of a [`Kind::Counter`].
    Counter(u64),
    /// Of a [`Kind::Gauge`].
    Gauge(f64),
    /// Of a [`Kind::Histogram`].
    Histogram(Histogram),
    /// Of a [`Kind::Series`]: (time in ns, value), ascending in time.
    Series(Vec<(u64, f64)>),
}

impl Value {
    /// The value as one number: a histogram's is its mean, a series' its last value.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Counter(count) => Some(*count as f64),
            Self::Gauge(value) => value.is_finite().then_some(*value),
            Self::Histogram(histogram) => histogram.mean(),
            Self::Series(points) => points.last().map(|(_, value)| *value),
        }
    }
}

/// One figure, one combination of labels, one value.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub figure: &'static Figure,
    /// Values of the figure's labels, in the order of [`Figure::labels`].
    pub labels: Vec<String>,
    pub value: Value,
}

impl Entry {
    /// `lock_wait{lock="dentry"}`: how tables and errors name the entry.
    pub fn name(&self) -> String {
        if self.labels.is_empty() {
            return self.figure.id.to_owned();
        }
        let pairs: Vec<String> = self
            .figure
            .labels
            .iter()
            .zip(&self.labels)
            .map(|(key, value)| format!("{key}=\"{value}\""))
            .collect();
        format!("{}{{{}}}", self.figure.id, pairs.join(","))
    }
}

/// A broken promise of [`crate::figures::SUMS`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnbalancedSum {
    pub total: &'static str,
    pub total_value: u64,
    pub parts_value: u64,
}

impl std::fmt::Display for UnbalancedSum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is {}, its parts add up to {}", self.total, self.total_value, self.parts_value)
    }
}

/// Values in the order in which they were put in. Filling one with a label count or a kind that the figure
/// doesn't have is a programming error and panics.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    entries: Vec<Entry>,
}

impl Snapshot {
    /// Without any value.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts a counter's value in.
    pub fn counter(&mut self, figure: &'static Figure, labels: &[&str], value: u64) {
        self.put(figure, Kind::Counter, labels, Value::Counter(value));
    }

    /// Puts a gauge's value in.
    pub fn gauge(&mut self, figure: &'static Figure, labels: &[&str], value: f64) {
        self.put(figure, Kind::Gauge, labels, Value::Gauge(value));
    }

    /// Puts a histogram in.
    pub fn histogram(&mut self, figure: &'static Figure, labels: &[&str], value: Histogram) {
        self.put(figure, Kind::Histogram, labels, Value::Histogram(value));
    }

    /// Puts a series of (time in ns, value) in.
    pub fn series(&mut self, figure: &'static Figure, labels: &[&str], points: Vec<(u64, f64)>) {
        self.put(figure, Kind::Series, labels, Value::Series(points));
    }

    fn put(&mut self, figure: &'static Figure, kind: Kind, labels: &[&str], value: Value) {
        assert_eq!(figure.kind, kind, "kind of {}", figure.id);
        assert_eq!(figure.labels.len(), labels.len(), "labels of {}: {labels:?}", figure.id);
        let labels = labels.iter().map(|&label| label.to_owned()).collect();
        self.entries.push(Entry { figure, labels, value });
    }

    /// All entries, in order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The entries of one figure, in order.
    pub fn of(&self, figure: &Figure) -> impl Iterator<Item = &Entry> {
        let id = figure.id;
        self.entries.iter().filter(move |entry| entry.figure.id == id)
    }

    /// The value of one figure for one combination of labels.
    pub fn get(&self, figure: &Figure, labels: &[&str]) -> Option<&Value> {
        self.of(figure).find(|entry| entry.labels == labels).map(|entry| &entry.value)
    }

    /// A counter's (or a gauge's) total over all its labels.
    pub fn total(&self, figure: &Figure) -> f64 {
        self.of(figure).filter_map(|entry| entry.value.number()).sum()
    }

    /// The sums of [`crate::figures::SUMS`] that don't hold here. A sum whose total is absent is not checked.
    pub fn unbalanced_sums(&self) -> Vec<UnbalancedSum> {
        SUMS.iter()
            .filter(|sum| self.of(sum.total).next().is_some())
            .map(|sum| UnbalancedSum {
                total: sum.total.id,
                total_value: self.count_of(sum.total),
                parts_value: sum.parts.iter().map(|part| self.count_of(part)).sum(),
            })
            .filter(|sum| sum.total_value != sum.parts_value)
            .collect()
    }

    fn count_of(&self, figure: &Figure) -> u64 {
        self.of(figure)
            .map(|entry| match &entry.value {
                Value::Counter(count) => *count,
                Value::Gauge(value) => *value as u64,
                Value::Histogram(histogram) => histogram.count(),
                Value::Series(points) => points.len() as u64,
            })
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{ACCELERATION_REQUESTS, ACCELERATIONS, FAILED_PULLS, LOCK_WAIT};

    #[test]
    fn a_request_that_ends_nowhere_is_found() {
        let mut snapshot = Snapshot::new();
        snapshot.counter(&ACCELERATION_REQUESTS, &["ple"], 10);
        snapshot.counter(&ACCELERATIONS, &["lock_holder", "ple"], 6);
        snapshot.counter(&FAILED_PULLS, &["left_queue"], 3);
        let broken = snapshot.unbalanced_sums();
        assert_eq!(broken[0].to_string(), "acceleration_requests is 10, its parts add up to 9");
    }

    #[test]
    fn an_entry_is_named_with_its_labels() {
        let mut snapshot = Snapshot::new();
        snapshot.histogram(&LOCK_WAIT, &["vm1", "dentry"], Histogram::new());
        assert_eq!(snapshot.entries()[0].name(), "lock_wait{vm=\"vm1\",lock=\"dentry\"}");
    }

    #[test]
    #[should_panic(expected = "labels of lock_wait")]
    fn a_missing_label_is_refused() {
        Snapshot::new().histogram(&LOCK_WAIT, &[], Histogram::new());
    }
}
