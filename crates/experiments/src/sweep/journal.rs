//! What runs have been made: journals, which grow by a line a run, and what they are together.
//!
//! Mechanism. A journal's first line says of which sweep it is. A line counts if it is whole: it ends, its
//!            checksum is that of a line of this sweep, and it names a run as the sweep does. So a process
//!            may be killed at any instant, and a disk may damage what it holds. The process that goes on
//!            cuts off half a line at the end. Runs of lines that don't count are made again. One process at
//!            a time writes a journal, and any may read it.

use super::file::RUNS_MAX;
use super::{FORMAT, RunName, Sweep, SweepError, lock};
use microslice_metrics::checksum::{self, Seal};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value as Json;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Mutex;

/// A run of 16,384 VMs has a tenth of it.
const LINE_MAX: u64 = 512 << 20;
/// Longer than any.
pub const FIRST_LINE_MAX: usize = 4_096;

/// Every `of`th run, from `number` (from 1) on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    pub number: usize,
    pub of: usize,
}

impl Part {
    pub const WHOLE: Self = Self { number: 1, of: 1 };

    pub fn has(self, run: usize) -> bool {
        run % self.of == self.number - 1
    }

    /// Of the journal, beside the results.
    pub fn path(self, results: &Path) -> PathBuf {
        let mut path = results.as_os_str().to_owned();
        path.push(format!(".part-{}-of-{}", self.number, self.of));
        path.into()
    }

    /// The reverse.
    fn of_path(path: &Path, results: &Path) -> Option<Self> {
        let (name, results) = (path.file_name()?.as_bytes(), results.file_name()?.as_bytes());
        let behind = name.strip_prefix(results)?.strip_prefix(b".part-")?;
        let (number, of) = std::str::from_utf8(behind).ok()?.split_once("-of-")?;
        format!("{number}/{of}").parse().ok()
    }
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse().ok().filter(|number| (1..=RUNS_MAX).contains(number));
        let parts = text.split_once('/').and_then(|(part, of)| Some((number(part)?, number(of)?)));
        match parts {
            Some((number, of)) if number <= of => Ok(Self { number, of }),
            _ => Err(format!("expected K/N, K from 1 to N, N at most {RUNS_MAX}")),
        }
    }
}

impl std::fmt::Display for Part {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}/{}", self.number, self.of)
    }
}

/// Where one process writes what its runs are.
pub struct Journal {
    path: PathBuf,
    /// The file, and where its last whole line ends.
    end: Mutex<(File, u64)>,
}

impl Journal {
    /// Goes on with the journal of that part, or begins it. Says whether it ended in half a line, which is
    /// cut off.
    pub fn open(sweep: &Sweep, results: &Path, part: Part) -> Result<(Self, bool), SweepError> {
        let path = part.path(results);
        let refuse = |error: io::Error| SweepError::of_file(&path, error);
        refuse_special(&path)?;
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(refuse)?;
        // Not every file system has locks.
        if flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
            return Err(SweepError::of_file(&path, "another process writes this part of the sweep"));
        }
        let end = read_lines(sweep, &path, &file, |_| Ok(()))?;
        let had_half_a_line = file.metadata().map_err(refuse)?.len() > end;
        file.set_len(end).map_err(refuse)?;
        let journal = Self { path, end: Mutex::new((file, end)) };
        if end == 0 {
            journal.append(sweep.first_line())?;
        }
        Ok((journal, had_half_a_line))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Puts a whole line in, or none.
    pub fn append(&self, line: &str) -> Result<(), SweepError> {
        let mut journal = lock(&self.end);
        let (file, end) = &mut *journal;
        let bytes = format!("{line}\n").into_bytes();
        if let Err(error) = file.write_all_at(&bytes, *end) {
            // If this fails, too, the process that goes on cuts it off.
            let _ = file.set_len(*end);
            return Err(SweepError::of_file(&self.path, error));
        }
        *end += bytes.len() as u64;
        Ok(())
    }
}

/// All journals of a sweep, and where each run's line is.
pub struct Journals<'s> {
    sweep: &'s Sweep,
    files: Vec<(PathBuf, File, Part)>,
    lines: Vec<Option<Line>>,
    /// Whole lines that are of no run.
    damaged: usize,
}

#[derive(Clone, Copy)]
struct Line {
    /// Of `files`.
    file: u32,
    bytes: u32,
    offset: u64,
}

impl<'s> Journals<'s> {
    /// Reads those that lie beside the results.
    pub fn scan(sweep: &'s Sweep, results: &Path) -> Result<Self, SweepError> {
        let mut journals = Self { sweep, files: Vec::new(), lines: vec![None; sweep.runs()], damaged: 0 };
        for (part, path) in paths_beside(results)? {
            refuse_special(&path)?;
            match File::open(&path) {
                Ok(file) => journals.read(path, file, part)?,
                // The process that has completed the results meanwhile has removed it.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(SweepError::of_file(&path, error)),
            }
        }
        Ok(journals)
    }

    fn read(&mut self, path: PathBuf, file: File, part: Part) -> Result<(), SweepError> {
        let number = self.files.len() as u32;
        read_lines(self.sweep, &path, &file, |FileLine { number: at, offset, bytes, run }| {
            let Some(run) = run else {
                self.damaged += 1;
                return Ok(());
            };
            let Some(line) = self.lines[run] else {
                self.lines[run] = Some(Line { file: number, bytes: bytes.len() as u32, offset });
                return Ok(());
            };
            // A run may have been made twice, and is the same then.
            let (other, known_in) = match self.files.get(line.file as usize) {
                Some((path, file, _)) => (path, file),
                None => (&path, &file),
            };
            let mut known = Vec::new();
            copy(line, known_in, &mut known).map_err(|error| SweepError::of_file(other, error))?;
            if known == bytes {
                return Ok(());
            }
            let cause =
                format!("run {} isn't what it is in {}: remove one of them", run + 1, other.display());
            Err(SweepError::at_line(&path, at, cause))
        })?;
        self.files.push((path, file, part));
        Ok(())
    }

    /// Whole lines that are of no run; these are made again.
    pub fn damaged(&self) -> usize {
        self.damaged
    }

    /// Runs of that part that nobody has made, by index.
    pub fn left(&self, part: Part) -> Vec<usize> {
        let is_left = |&run: &usize| self.lines[run].is_none() && part.has(run);
        (0..self.lines.len()).filter(is_left).collect()
    }

    /// Parts of so many, by number, in which runs are left.
    pub fn unfinished(&self, of: usize) -> Vec<usize> {
        let left = self.left(Part::WHOLE).into_iter();
        left.map(|run| run % of + 1).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The first line and every run's, in order.
    pub fn write(&self, out: &mut impl Write, is_stopped: impl Fn() -> bool) -> Result<(), WriteError> {
        writeln!(out, "{}", self.sweep.first_line())?;
        for (run, line) in self.lines.iter().enumerate() {
            if is_stopped() {
                return Err(SweepError::Stopped.into());
            }
            let line = line.ok_or_else(|| self.missing())?;
            let (path, file, _) = &self.files[line.file as usize];
            let mut bytes = Vec::with_capacity(line.bytes as usize + 1);
            copy(line, file, &mut bytes).map_err(|error| SweepError::of_file(path, error))?;
            // Nobody but the process that writes it changes a journal, and that one only adds to it.
            if run_of(self.sweep, &bytes) != Some(run) {
                return Err(SweepError::of_file(path, "another process changed it meanwhile").into());
            }
            bytes.push(b'\n');
            out.write_all(&bytes)?;
        }
        Ok(())
    }

    /// Says which runs are nowhere.
    pub fn missing(&self) -> SweepError {
        let left = self.left(Part::WHOLE);
        let Some(&first) = left.first() else { return SweepError::Missing("no run is missing".to_owned()) };
        let RunName { number, scenario, setting, policy, seed } = self.sweep.name(first);
        let mut text = format!(
            "{} of {} runs are missing, the first is run {number} ({scenario}, {setting}, {policy}, seed {seed})",
            left.len(),
            self.lines.len()
        );
        if let [of] = self.divisions()[..] {
            text += &format!("; unfinished parts of {of}: {}", ranges(&self.unfinished(of)));
        }
        SweepError::Missing(text)
    }

    /// Into how many parts the sweep was divided, by the processes that left a journal.
    fn divisions(&self) -> Vec<usize> {
        let mut divisions: Vec<usize> = self.files.iter().map(|(_, _, part)| part.of).collect();
        divisions.sort_unstable();
        divisions.dedup();
        divisions
    }

    /// When everything is in the results.
    pub fn remove(self) -> Result<(), SweepError> {
        for (path, _, _) in &self.files {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(SweepError::of_file(path, error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// What is at fault: what was read, or where it was written.
pub enum WriteError {
    Read(SweepError),
    Write(io::Error),
}

impl From<SweepError> for WriteError {
    fn from(error: SweepError) -> Self {
        Self::Read(error)
    }
}

impl From<io::Error> for WriteError {
    fn from(error: io::Error) -> Self {
        Self::Write(error)
    }
}

/// Numbers as job arrays have them: `1-3,7`.
pub fn ranges(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|one, next| one + 1 == *next);
    let text = runs.map(|run| match run {
        [one] => one.to_string(),
        run => format!("{}-{}", run[0], run[run.len() - 1]),
    });
    text.collect::<Vec<_>>().join(",")
}

fn paths_beside(results: &Path) -> Result<Vec<(Part, PathBuf)>, SweepError> {
    let folder = results.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let refuse = |error: io::Error| SweepError::of_file(folder, error);
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(refuse)? {
        let path = folder.join(entry.map_err(refuse)?.file_name());
        paths.extend(Part::of_path(&path, results).map(|part| (part, part.path(results))));
    }
    paths.sort_unstable();
    Ok(paths)
}

/// To open a pipe may take for ever.
fn refuse_special(path: &Path) -> Result<(), SweepError> {
    match std::fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => Err(SweepError::of_file(path, "isn't a file")),
        _ => Ok(()),
    }
}

/// The run's line begins with its name, and has figures or a cause why there are none.
#[derive(Deserialize)]
struct Head<'l> {
    run: usize,
    #[serde(borrow)]
    scenario: std::borrow::Cow<'l, str>,
    #[serde(borrow)]
    setting: std::borrow::Cow<'l, str>,
    #[serde(borrow)]
    policy: std::borrow::Cow<'l, str>,
    seed: u64,
    figures: Option<IgnoredAny>,
    failed: Option<IgnoredAny>,
}

/// Of which run (by index) a line is; `None` if it is of none, or not what was written.
pub fn run_of(sweep: &Sweep, line: &[u8]) -> Option<usize> {
    let Seal::Whole(_) = checksum::check(line, sweep.first_line().as_bytes()) else { return None };
    let head: Head<'_> = serde_json::from_slice(line).ok()?;
    let run = head.run.checked_sub(1).filter(|&run| run < sweep.runs())?;
    let name = RunName {
        number: head.run,
        scenario: &head.scenario,
        setting: &head.setting,
        policy: &head.policy,
        seed: head.seed,
    };
    (name == sweep.name(run) && head.figures.is_some() != head.failed.is_some()).then_some(run)
}

fn copy(line: Line, file: &File, into: &mut Vec<u8>) -> io::Result<()> {
    into.resize(line.bytes as usize, 0);
    file.read_exact_at(into, line.offset)
}

/// A whole line of a journal or of results.
pub struct FileLine<'l> {
    /// From 1.
    pub number: usize,
    /// Where it begins.
    pub offset: u64,
    /// Without the end.
    pub bytes: &'l [u8],
    /// By index; `None` if the line doesn't count.
    pub run: Option<usize>,
}

/// Hands every whole line behind the first one on. Returns where the last one ends: 0 if not even the first
/// is whole. A damaged first line does no harm if another line counts: each is of one sweep only.
pub fn read_lines(
    sweep: &Sweep,
    path: &Path,
    file: &File,
    mut each: impl FnMut(FileLine<'_>) -> Result<(), SweepError>,
) -> Result<u64, SweepError> {
    let (mut reader, mut line, mut end) = (BufReader::new(file), Vec::new(), 0);
    let first = sweep.first_line();
    let (mut damaged_first, mut is_ours) = (None, false);
    for number in 1.. {
        line.clear();
        let bytes = reader.by_ref().take(LINE_MAX).read_until(b'\n', &mut line);
        let bytes = bytes.map_err(|error| SweepError::of_file(path, error))? as u64;
        let is_whole = line.pop_if(|last| *last == b'\n').is_some();
        if bytes == LINE_MAX && !is_whole {
            return Err(SweepError::at_line(path, number, "no line of a sweep's results is that long"));
        }
        if number == 1 && !(is_whole && line == first.as_bytes()) {
            let is_half = !is_whole && first.as_bytes().starts_with(&line);
            if is_half {
                return Ok(0);
            }
            if let Seal::Whole(_) = checksum::check(&line, b"") {
                return Err(of_another(path, &line));
            }
            line.truncate(FIRST_LINE_MAX);
            damaged_first = Some(line.clone());
        }
        if !is_whole {
            break;
        }
        if number > 1 {
            let run = run_of(sweep, &line);
            is_ours |= run.is_some();
            each(FileLine { number, offset: end, bytes: &line, run })?;
        }
        end += bytes;
    }
    match damaged_first {
        Some(first) if !is_ours => Err(of_another(path, &first)),
        _ => Ok(end),
    }
}

/// Why a file with that first line isn't one of this sweep.
pub fn of_another(path: &Path, line: &[u8]) -> SweepError {
    let said = serde_json::from_slice::<Json>(line).unwrap_or_default();
    let cause = match said.get("microslice_sweep").and_then(Json::as_u64) {
        None => "isn't a file of a sweep's results",
        Some(FORMAT) if said["model"] == super::MODEL => {
            "results of another sweep: scenarios, settings, policies or seeds differ, or a file that they name"
        }
        Some(FORMAT) => "results of another version of the simulator",
        Some(_) => "results in another format",
    };
    SweepError::at_line(path, 1, format!("{cause}; name another file by --results, or move this one away"))
}
