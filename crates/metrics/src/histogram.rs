//! A histogram of durations over all of `u64`, in 4 KiB, with a bounded relative error.
//!
//! Problem: waits span nine decades (a lock hand-over takes 100 ns, a preempted holder 100 ms), and both the
//! tail and the middle matter.
//! Mechanism: logarithmic octaves, each cut into eight equal buckets; recording is a shift and an add.
//! Formula: a value `v >= 8` of octave `e = floor(log2 v)` lands in bucket `8 (e - 2) + (v >> (e - 3)) mod
//! 8`. Limits: a percentile is off by at most one bucket's width (12.5 %); count, sum, minimum and maximum
//! are exact. `hdrhistogram` has no exact sum, and other buckets than files of earlier runs have.

const SUB_BUCKET_BITS: u32 = 3;
const SUB_BUCKETS: u64 = 1 << SUB_BUCKET_BITS;
const BUCKET_COUNT: usize = ((64 - SUB_BUCKET_BITS as usize) << SUB_BUCKET_BITS) + SUB_BUCKETS as usize;

/// Counts of values by size. See the module's header for shape and error.
#[derive(Clone, PartialEq, Eq)]
pub struct Histogram {
    /// Empty until the first value: thousands of vCPUs and locks have one, few use it.
    counts: Vec<u64>,
    count: u64,
    sum: u128,
    min: u64,
    max: u64,
}

/// As `{count, sum, min, max, mean, p50, p90, p99, p999, buckets}`: what [`crate::json::of_histogram`] gives.
impl serde::Serialize for Histogram {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        crate::json::of_histogram(self).serialize(serializer)
    }
}

/// One non-empty bucket: values in `lower..=upper`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    pub lower: u64,
    pub upper: u64,
    pub count: u64,
}

impl Histogram {
    /// An empty histogram.
    pub fn new() -> Self {
        Self { counts: Vec::new(), count: 0, sum: 0, min: u64::MAX, max: 0 }
    }

    /// From power-of-two buckets as a BPF program keeps them: `buckets[i]` counts values in `2^i..2^(i+1)`
    /// (bucket 0 also holds zero), `sum` is the exact sum of all values. Inside a bucket values are put at
    /// its middle, so percentiles are only as fine as the source.
    pub fn from_log2(buckets: &[u64], sum: u64) -> Self {
        Self::from_log2_of(1, buckets, sum)
    }

    /// Likewise of buckets in a larger unit: `buckets[i]` counts values in `unit * 2^i..unit * 2^(i+1)`,
    /// `sum` is in the small one.
    pub fn from_log2_of(unit: u64, buckets: &[u64], sum: u64) -> Self {
        let mut histogram = Self::new();
        for (exponent, &count) in buckets.iter().enumerate().take(64) {
            let lower = unit.saturating_mul(1 << exponent);
            let middle = if unit == 1 && exponent == 0 { 1 } else { lower.saturating_add(lower / 2) };
            histogram.record_many(middle, count);
        }
        histogram.with_exact(sum, histogram.max)
    }

    /// The same counts with the sum and the largest value that their source knows exactly.
    #[must_use]
    pub fn with_exact(&self, sum: u64, max: u64) -> Self {
        Self { sum: u128::from(sum), max, ..self.clone() }
    }

    /// Counts one value.
    #[inline]
    pub fn record(&mut self, value: u64) {
        self.record_many(value, 1);
    }

    /// Counts `times` occurrences of `value`; counts saturate instead of overflowing.
    #[inline]
    pub fn record_many(&mut self, value: u64, times: u64) {
        if times == 0 {
            return;
        }
        if self.counts.is_empty() {
            self.counts = vec![0; BUCKET_COUNT];
        }
        let slot = &mut self.counts[bucket_of(value)];
        *slot = slot.saturating_add(times);
        self.count = self.count.saturating_add(times);
        self.sum = self.sum.saturating_add(u128::from(value) * u128::from(times));
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// Adds everything that `other` counted.
    pub fn merge(&mut self, other: &Self) {
        if self.counts.is_empty() {
            self.counts = other.counts.clone();
            (self.count, self.sum, self.min, self.max) = (other.count, other.sum, other.min, other.max);
            return;
        }
        for (mine, theirs) in self.counts.iter_mut().zip(other.counts.iter()) {
            *mine = mine.saturating_add(*theirs);
        }
        self.count = self.count.saturating_add(other.count);
        self.sum = self.sum.saturating_add(other.sum);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// How many values were counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Exact sum of all values.
    pub fn sum(&self) -> u128 {
        self.sum
    }

    /// Smallest value, unless nothing was counted.
    pub fn min(&self) -> Option<u64> {
        (self.count > 0).then_some(self.min)
    }

    /// Largest value, unless nothing was counted.
    pub fn max(&self) -> Option<u64> {
        (self.count > 0).then_some(self.max)
    }

    /// Arithmetic mean, unless nothing was counted.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64)
    }

    /// The value below or at which `percent` (0 to 100) of all values lie, interpolated inside its bucket and
    /// never outside of `min..=max`.
    pub fn percentile(&self, percent: f64) -> Option<u64> {
        if self.count == 0 || percent.is_nan() {
            return None;
        }
        let rank = (percent.clamp(0.0, 100.0) / 100.0 * self.count as f64).max(1.0);
        let mut below = 0u64;
        for bucket in self.buckets() {
            if (below + bucket.count) as f64 >= rank {
                let inside = (rank - below as f64) / bucket.count as f64;
                let width = (bucket.upper - bucket.lower) as f64;
                let value = bucket.lower.saturating_add((inside * width) as u64);
                return Some(value.clamp(self.min, self.max));
            }
            below += bucket.count;
        }
        Some(self.max)
    }

    /// Returns the same values, each as often as it is large: a percentile of it says in how long values that
    /// part of their sum is.
    #[must_use]
    pub fn by_length(&self) -> Self {
        let mut lengths = Self::new();
        for bucket in self.buckets() {
            let middle = bucket.lower + (bucket.upper - bucket.lower) / 2;
            lengths.record_many(middle.clamp(self.min, self.max), bucket.count.saturating_mul(middle));
        }
        lengths
    }

    /// How many values were at most `limit`; exact at bucket limits, else rounded down to the bucket below.
    pub fn count_up_to(&self, limit: u64) -> u64 {
        self.buckets().take_while(|bucket| bucket.upper <= limit).map(|bucket| bucket.count).sum()
    }

    /// The non-empty buckets, smallest values first.
    pub fn buckets(&self) -> impl Iterator<Item = Bucket> + '_ {
        self.counts.iter().enumerate().filter(|(_, count)| **count > 0).map(|(index, &count)| {
            let (lower, upper) = limits_of(index);
            Bucket { lower, upper, count }
        })
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Histogram {{ count: {}, sum: {}, buckets: ", self.count, self.sum)?;
        f.debug_list().entries(self.buckets()).finish()?;
        write!(f, " }}")
    }
}

#[inline]
fn bucket_of(value: u64) -> usize {
    if value < SUB_BUCKETS {
        return value as usize;
    }
    let octave = 63 - value.leading_zeros();
    let sub_bucket = (value >> (octave - SUB_BUCKET_BITS)) & (SUB_BUCKETS - 1);
    (((octave - SUB_BUCKET_BITS + 1) as usize) << SUB_BUCKET_BITS) + sub_bucket as usize
}

/// Smallest and largest value of a bucket: the inverse of [`bucket_of`].
fn limits_of(index: usize) -> (u64, u64) {
    let index = index as u64;
    if index < SUB_BUCKETS {
        return (index, index);
    }
    let shift = (index >> SUB_BUCKET_BITS) - 1;
    let lower = (SUB_BUCKETS + (index & (SUB_BUCKETS - 1))) << shift;
    (lower, lower + ((1u64 << shift) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_empty_histogram_has_no_mean_and_no_percentile() {
        let histogram = Histogram::new();
        assert_eq!((histogram.mean(), histogram.percentile(50.0), histogram.max()), (None, None, None));
    }

    #[test]
    fn by_length_a_value_counts_as_often_as_its_size() {
        let mut histogram = Histogram::new();
        histogram.record_many(1_000, 999);
        histogram.record(1_000_000);
        assert!(histogram.percentile(99.0).is_some_and(|value| value < 1_100));
        let lengths = histogram.by_length();
        assert!(lengths.percentile(99.0).is_some_and(|value| value > 900_000), "{lengths:?}");
        assert!(lengths.percentile(40.0).is_some_and(|value| value < 1_100), "{lengths:?}");
        assert_eq!(Histogram::new().by_length().count(), 0);
    }

    #[test]
    fn the_largest_value_fits_into_the_last_bucket() {
        assert_eq!(bucket_of(u64::MAX), BUCKET_COUNT - 1);
        assert_eq!(limits_of(BUCKET_COUNT - 1).1, u64::MAX);
    }

    #[test]
    fn log2_buckets_of_a_bpf_map_keep_their_counts_and_their_exact_sum() {
        let histogram = Histogram::from_log2(&[1, 0, 0, 4], 45);
        assert_eq!((histogram.count(), histogram.sum()), (5, 45));
        assert_eq!(histogram.percentile(90.0), Some(12));
        let microseconds = Histogram::from_log2_of(1_000, &[1, 0, 0, 4], 45_000);
        assert_eq!((microseconds.count(), microseconds.sum()), (5, 45_000));
        assert_eq!((microseconds.min(), microseconds.max()), (Some(1_500), Some(12_000)));
    }

    proptest! {
        #[test]
        fn every_value_lies_within_the_limits_of_its_bucket(value: u64) {
            let (lower, upper) = limits_of(bucket_of(value));
            prop_assert!(lower <= value && value <= upper);
            prop_assert!(value < SUB_BUCKETS || (upper - lower) as f64 <= value as f64 / SUB_BUCKETS as f64);
        }

        #[test]
        fn a_percentile_is_within_an_eighth_of_the_exact_one(mut values in prop::collection::vec(0u64..1 << 40, 1..200), percent in 0.0f64..100.0) {
            let mut histogram = Histogram::new();
            values.iter().for_each(|value| histogram.record(*value));
            values.sort_unstable();
            let rank = ((percent / 100.0 * values.len() as f64).max(1.0).ceil() as usize).min(values.len());
            let exact = values[rank - 1] as f64;
            let found = histogram.percentile(percent).unwrap_or(0) as f64;
            prop_assert!((found - exact).abs() <= exact / 8.0 + 1.0, "exact {exact}, found {found}");
        }

        #[test]
        fn merging_equals_recording_everything_in_one(left in prop::collection::vec(any::<u64>(), 0..50), right in prop::collection::vec(any::<u64>(), 0..50)) {
            let fill = |values: &[u64]| {
                let mut histogram = Histogram::new();
                values.iter().for_each(|value| histogram.record(*value));
                histogram
            };
            let mut merged = fill(&left);
            merged.merge(&fill(&right));
            prop_assert_eq!(merged, fill(&[left, right].concat()));
        }
    }
}
