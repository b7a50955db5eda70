//! Figures of several runs: a row for each figure and its labels, an estimate for each policy.

use microslice_metrics::{Estimate, Figure, Kind, Snapshot, figures};
use std::borrow::Cow;
use std::collections::HashMap;

/// One figure under each policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub figure: &'static Figure,
    pub labels: Vec<String>,
    /// In the order of the policies; `None` where no run has the figure.
    pub estimates: Vec<Option<Estimate>>,
    /// The same relative to the first policy, seed by seed; `None` where no seed has both, or only zeros to
    /// divide by.
    pub ratios: Vec<Option<Estimate>>,
}

/// Figures that a table shows first; the others are for `--all` and JSON.
const MAIN_FIGURES: [&Figure; 13] = [
    &figures::EXECUTION_TIME,
    &figures::THROUGHPUT,
    &figures::BANDWIDTH,
    &figures::JITTER,
    &figures::SHARE_RECEIVED,
    &figures::FAIRNESS_ERROR,
    &figures::YIELDS,
    &figures::LOCK_WAIT,
    &figures::SHOOTDOWN_WAIT,
    &figures::WAIT_TO_RUN,
    &figures::TIMER_LATENESS,
    &figures::ACCELERATIONS,
    &figures::MICRO_POOL_MEAN,
];

impl Row {
    /// Whether people want to see it without asking.
    pub fn is_main(&self) -> bool {
        MAIN_FIGURES.iter().any(|figure| figure.id == self.figure.id)
    }
}

/// Of one run: a number for each row, NaN where it has none. Rows that later runs brought are missing at the
/// end.
pub type Numbers = Vec<f64>;

/// Every (figure, labels) that any run has, numbered as runs mention them. Runs end in any order.
#[derive(Default)]
pub struct RowKeys {
    numbers: HashMap<&'static str, HashMap<Vec<String>, usize>>,
    keys: Vec<RowKey>,
}

struct RowKey {
    figure: &'static Figure,
    labels: Vec<String>,
    /// The first job that has it, and where among its figures.
    first: (usize, usize),
}

impl RowKeys {
    /// Of that job: each figure, its labels, and its number.
    pub fn numbers_of<'e>(
        &mut self,
        job: usize,
        entries: impl Iterator<Item = (&'static Figure, Cow<'e, [String]>, f64)>,
    ) -> Numbers {
        let mut numbers = vec![f64::NAN; self.keys.len()];
        for (at, (figure, labels, number)) in entries.enumerate() {
            let row = self.row_of(figure, labels);
            let first = &mut self.keys[row].first;
            *first = (*first).min((job, at));
            numbers.resize(self.keys.len(), f64::NAN);
            numbers[row] = number;
        }
        numbers
    }

    fn row_of(&mut self, figure: &'static Figure, labels: Cow<'_, [String]>) -> usize {
        let of_figure = self.numbers.entry(figure.id).or_default();
        if let Some(&row) = of_figure.get(labels.as_ref()) {
            return row;
        }
        let labels = labels.into_owned();
        of_figure.insert(labels.clone(), self.keys.len());
        self.keys.push(RowKey { figure, labels, first: (usize::MAX, 0) });
        self.keys.len() - 1
    }

    /// In the figures' order, then by first appearance in the order of jobs. A run that failed has no numbers
    /// at all.
    pub fn rows(self, by_policy: &[&[Option<Numbers>]]) -> Vec<Row> {
        let place = |figure: &Figure| figures::ALL.iter().position(|other| other.id == figure.id);
        let mut rows: Vec<(usize, RowKey)> = self.keys.into_iter().enumerate().collect();
        rows.sort_by_key(|(_, key)| (place(key.figure), key.first));
        rows.into_iter().map(|(row, key)| key.row(row, by_policy)).collect()
    }
}

impl RowKey {
    fn row(self, row: usize, by_policy: &[&[Option<Numbers>]]) -> Row {
        let values: Vec<Vec<f64>> = by_policy.iter().map(|runs| self.values(row, runs)).collect();
        let estimates = values.iter().map(|values| Estimate::of(values)).collect();
        let ratios = values.iter().map(|own| relative(own, &values[0])).collect();
        Row { figure: self.figure, labels: self.labels, estimates, ratios }
    }

    /// One per seed. A counter that a run doesn't mention is zero there; other figures are simply absent
    /// (NaN).
    fn values(&self, row: usize, runs: &[Option<Numbers>]) -> Vec<f64> {
        let absent = if self.figure.kind == Kind::Counter { 0.0 } else { f64::NAN };
        let value = |numbers: &Numbers| numbers.get(row).copied().filter(|value| !value.is_nan());
        let of_run =
            |run: &Option<Numbers>| run.as_ref().map_or(f64::NAN, |run| value(run).unwrap_or(absent));
        runs.iter().map(of_run).collect()
    }
}

/// Seed by seed: what all policies have in common with a seed (when each thread starts) takes no part in the
/// interval.
fn relative(values: &[f64], to: &[f64]) -> Option<Estimate> {
    Estimate::of(&values.iter().zip(to).map(|(value, to)| value / to).collect::<Vec<_>>())
}

/// What a snapshot's rows are made of.
pub fn entries_of(snapshot: &Snapshot) -> impl Iterator<Item = (&'static Figure, Cow<'_, [String]>, f64)> {
    snapshot.entries().iter().map(|entry| {
        (entry.figure, Cow::Borrowed(entry.labels.as_slice()), entry.value.number().unwrap_or(f64::NAN))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(time_ns: f64, ple: Option<u64>) -> Snapshot {
        let mut snapshot = Snapshot::new();
        if let Some(count) = ple {
            snapshot.counter(&figures::YIELDS, &["vm", "ple"], count);
        }
        snapshot.gauge(&figures::EXECUTION_TIME, &["vm", "gmake"], time_ns);
        snapshot
    }

    /// All policies' runs, which end in the opposite order of the jobs.
    fn rows_of(by_policy: &[Vec<Snapshot>]) -> Vec<Row> {
        let mut keys = RowKeys::default();
        let jobs: Vec<&Snapshot> = by_policy.iter().flatten().collect();
        let jobs = jobs.into_iter().enumerate().rev();
        let numbers_of = |(job, snapshot)| Some(keys.numbers_of(job, entries_of(snapshot)));
        let mut numbers: Vec<_> = jobs.map(numbers_of).collect();
        numbers.reverse();
        keys.rows(&numbers.chunks(by_policy[0].len()).collect::<Vec<_>>())
    }

    #[test]
    fn rows_follow_the_figures_order_and_absent_counters_are_zero() {
        let rows = rows_of(&[
            vec![snapshot(10.0, Some(4)), snapshot(14.0, Some(6))],
            vec![snapshot(6.0, None), snapshot(6.0, None)],
        ]);
        let names: Vec<_> = rows.iter().map(|row| row.figure.id).collect();
        assert_eq!(names, ["execution_time", "yields"]);
        let means = |row: &Row| row.estimates.iter().map(|e| e.map(|e| e.mean)).collect::<Vec<_>>();
        assert_eq!(means(&rows[0]), [Some(12.0), Some(6.0)]);
        assert_eq!(means(&rows[1]), [Some(5.0), Some(0.0)]);
    }

    #[test]
    fn rows_of_a_figure_come_in_the_order_in_which_jobs_mention_them_whichever_ends_first() {
        let run = |vms: &[&str]| {
            let mut snapshot = Snapshot::new();
            vms.iter().for_each(|vm| snapshot.counter(&figures::IPIS, &[vm], 1));
            snapshot
        };
        let rows = rows_of(&[vec![run(&["b"]), run(&["c", "b"])], vec![run(&["d", "a"]), run(&[])]]);
        assert_eq!(rows.iter().map(|row| row.labels.concat()).collect::<Vec<_>>(), ["b", "c", "d", "a"]);
    }

    #[test]
    fn ratios_are_of_the_same_seed_and_absent_where_there_is_nothing_to_divide_by() {
        let rows = rows_of(&[
            vec![snapshot(10.0, None), snapshot(20.0, Some(4))],
            vec![snapshot(20.0, Some(1)), snapshot(40.0, Some(6))],
            vec![snapshot(5.0, None), snapshot(20.0, None)],
        ]);
        let exact = |mean| Some(Estimate { mean, low: mean, high: mean, count: 2 });
        assert_eq!(
            rows[0].ratios[..2],
            [exact(1.0), exact(2.0)],
            "execution times, twice as long with both seeds"
        );
        assert_eq!(rows[0].ratios[2].map(|ratio| ratio.mean), Some(0.75));
        let yields: Vec<_> = rows[1].ratios.iter().map(|ratio| ratio.map(|r| (r.mean, r.count))).collect();
        assert_eq!(
            yields,
            [Some((1.0, 1)), Some((1.5, 1)), Some((0.0, 1))],
            "the first seed has none to divide by"
        );
    }

    #[test]
    fn a_run_that_failed_counts_for_nothing_not_even_for_zero() {
        let mut keys = RowKeys::default();
        let run = keys.numbers_of(0, entries_of(&snapshot(10.0, Some(4))));
        let rows = keys.rows(&[&[Some(run), None]]);
        let counts: Vec<_> = rows.iter().map(|row| row.estimates[0].map(|e| (e.mean, e.count))).collect();
        assert_eq!(counts, [Some((10.0, 1)), Some((4.0, 1))]);
    }
}
