//! What the results say: estimates over seeds, for each scenario under each setting.

use super::journal::{FIRST_LINE_MAX, FileLine, Part, of_another, read_lines};
use super::{Sweep, SweepError};
use crate::rows::{Numbers, Row, RowKeys};
use microslice_metrics::{Figure, figures, input};
use serde_json::Value as Json;
use std::borrow::Cow;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::Path;

/// A scenario under a setting.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    pub scenario: String,
    pub setting: String,
    pub rows: Vec<Row>,
}

/// A run without figures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedRun {
    /// Index of the run.
    pub run: usize,
    /// `config`, `deadlock`, `check` or `panic`.
    pub kind: String,
    pub cause: String,
}

/// Whether results are there, of this very sweep; they have their name only when they are complete. Other
/// files are refused.
pub fn are_there(sweep: &Sweep, results: &Path) -> Result<bool, SweepError> {
    match std::fs::metadata(results) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(SweepError::of_file(results, error)),
        Ok(metadata) if !metadata.is_file() => return Err(SweepError::of_file(results, "isn't a file")),
        Ok(_) => {}
    }
    let file = input::open(results).map_err(|error| SweepError::of_file(results, error))?;
    let expected = format!("{}\n", sweep.first_line()).into_bytes();
    let mut first = Vec::new();
    let read = BufReader::new(file).take(FIRST_LINE_MAX as u64).read_until(b'\n', &mut first);
    read.map_err(|error| SweepError::of_file(results, error))?;
    if first == expected {
        return Ok(true);
    }
    // All of another file isn't read, whatever it is.
    if !is_nearly(&first, &expected) {
        return Err(of_another(results, &first));
    }
    let file = File::open(results).map_err(|error| SweepError::of_file(results, error))?;
    match read_lines(sweep, results, &file, |_| Ok(()))? {
        0 => Err(of_another(results, &first)),
        _ => Err(damaged(results, 1, "the first line isn't what was written")),
    }
}

/// A line with some damage, or with another one behind it.
fn is_nearly(line: &[u8], expected: &[u8]) -> bool {
    let alike = |(one, other): &(&u8, &u8)| one == other;
    let before = line.iter().zip(expected).take_while(alike).count();
    let behind = line.iter().rev().zip(expected.iter().rev()).take_while(alike).count();
    before + behind >= expected.len() / 2
}

/// Results are a journal, too, of which only damaged lines are lost.
fn damaged(results: &Path, line: usize, cause: &str) -> SweepError {
    let journal = Part::WHOLE.path(results);
    let advice =
        format!("rename it to {}, and run the sweep again: it makes what is damaged", journal.display());
    SweepError::at_line(results, line, format!("damaged: {cause}; {advice}"))
}

/// Reads the results line by line, of which those of one scenario under one setting are kept at a time.
pub fn groups(sweep: &Sweep, results: &Path) -> Result<(Vec<Group>, Vec<FailedRun>), SweepError> {
    let file = File::open(results).map_err(|error| SweepError::of_file(results, error))?;
    let seeds = sweep.seeds().len();
    let per_group = sweep.policies().len() * seeds;
    let (mut groups, mut failed) = (Vec::new(), Vec::new());
    let (mut keys, mut numbers) = (RowKeys::default(), Vec::<Option<Numbers>>::new());
    let mut run = 0;
    let expected = |line, run| damaged(results, line, &format!("the line of run {run} is expected here"));
    read_lines(sweep, results, &file, |FileLine { number: line, bytes, run: found, .. }| {
        let refuse = || expected(line, run + 1);
        let value: Json = serde_json::from_slice(bytes).map_err(|_| refuse())?;
        if found != Some(run) {
            return Err(refuse());
        }
        let entries = value["figures"].as_array().map(|figures| figures.iter().map(entry_of).collect());
        let entries: Option<Option<Vec<_>>> = entries;
        numbers.push(match entries {
            Some(entries) => {
                let entries = entries.ok_or_else(refuse)?;
                Some(keys.numbers_of(numbers.len(), entries.into_iter()))
            }
            None => {
                let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
                failed.push(FailedRun { run, kind: text("failed"), cause: text("cause") });
                None
            }
        });
        if numbers.len() == per_group {
            let by_policy: Vec<_> = numbers.chunks(seeds).collect();
            let rows = std::mem::take(&mut keys).rows(&by_policy);
            let name = sweep.name(run);
            groups.push(Group { scenario: name.scenario.to_owned(), setting: name.setting.to_owned(), rows });
            numbers.clear();
        }
        run += 1;
        Ok(())
    })?;
    if run == sweep.runs() { Ok((groups, failed)) } else { Err(expected(run + 2, run + 1)) }
}

/// A figure as a line has it; `None` if there is no such figure.
fn entry_of(json: &Json) -> Option<(&'static Figure, Cow<'static, [String]>, f64)> {
    let id = json["figure"].as_str()?;
    let figure = *figures::ALL.iter().find(|figure| figure.id == id)?;
    let label = |label: &&'static str| json["labels"][*label].as_str().map(str::to_owned);
    let labels = figure.labels.iter().map(label).collect::<Option<Vec<_>>>()?;
    let value = match &json["value"] {
        Json::Null => f64::NAN,
        value => value.as_f64()?,
    };
    Some((figure, Cow::Owned(labels), value))
}
