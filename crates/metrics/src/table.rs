//! Aligned text tables for people. Not `comfy-table`, for twenty lines less: HTML needs the same rows.

use crate::snapshot::{Entry, Snapshot, Value};

/// Which side a column leans to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// Rows of text under a header. A row may be shorter than the header, never longer.
#[derive(Debug, Clone, Default)]
pub struct Table {
    header: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// With these columns: a name that starts with `>` makes a right-aligned column.
    pub fn new(columns: &[&str]) -> Self {
        let header = columns
            .iter()
            .map(|column| match column.strip_prefix('>') {
                Some(name) => (name.to_owned(), Align::Right),
                None => ((*column).to_owned(), Align::Left),
            })
            .collect();
        Self { header, rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        let cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        assert!(
            cells.len() <= self.header.len(),
            "row of {} cells in {} columns",
            cells.len(),
            self.header.len()
        );
        self.rows.push(cells);
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Column names, for other renderers.
    pub fn columns(&self) -> impl Iterator<Item = (&str, Align)> {
        self.header.iter().map(|(name, align)| (name.as_str(), *align))
    }

    /// Rows, for other renderers.
    pub fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.chain([&self.header[column].0]).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.header.len()).map(width).collect();
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let mut text = String::new();
            for ((cell, width), (_, align)) in cells.zip(&widths).zip(&self.header) {
                match align {
                    Align::Left => text.push_str(&format!("{cell:<width$}  ")),
                    Align::Right => text.push_str(&format!("{cell:>width$}  ")),
                }
            }
            text.trim_end().to_owned()
        };
        writeln!(f, "{}", line(&mut self.header.iter().map(|(name, _)| name.as_str())))?;
        let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
        writeln!(f, "{}", line(&mut rule.iter().map(String::as_str)))?;
        for row in &self.rows {
            writeln!(f, "{}", line(&mut row.iter().map(String::as_str)))?;
        }
        Ok(())
    }
}

/// One row per entry: figure, labels, value (a histogram's mean) and, for histograms, percentiles.
pub fn of_snapshot(snapshot: &Snapshot) -> Table {
    let mut table = Table::new(&["figure", "labels", ">value", ">count", ">p50", ">p99", ">max"]);
    for entry in snapshot.entries() {
        table.row(cells_of(entry));
    }
    table
}

fn cells_of(entry: &Entry) -> Vec<String> {
    let unit = entry.figure.unit;
    let labels = entry.labels.join(" ");
    let value = entry.value.number().map_or("-".to_owned(), |value| unit.show(value));
    let mut cells = vec![entry.figure.id.to_owned(), labels, value];
    if let Value::Histogram(histogram) = &entry.value {
        let show = |value: Option<u64>| value.map_or("-".to_owned(), |value| unit.show(value as f64));
        cells.push(crate::Unit::Count.show(histogram.count() as f64));
        cells.extend([histogram.percentile(50.0), histogram.percentile(99.0), histogram.max()].map(show));
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{LOCK_WAIT, YIELDS};
    use crate::histogram::Histogram;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["figure", ">paper"]);
        table.row(["table4b.dedup.corun.avg", "6,354"]);
        table.row(["x", "28"]);
        let expected = "figure                   paper\n\
                        -----------------------  -----\n\
                        table4b.dedup.corun.avg  6,354\n\
                        x                           28\n";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn histograms_show_their_tail() {
        let mut histogram = Histogram::new();
        histogram.record(2_000);
        let mut snapshot = Snapshot::new();
        snapshot.histogram(&LOCK_WAIT, &["vm1", "dentry"], histogram);
        snapshot.counter(&YIELDS, &["vm1", "ple"], 12_345);
        let text = of_snapshot(&snapshot).to_string();
        assert!(text.contains("lock_wait  vm1 dentry    2 us      1  2 us  2 us  2 us"), "{text}");
        assert!(text.contains("12,345"));
    }
}
