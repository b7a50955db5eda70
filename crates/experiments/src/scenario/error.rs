//! Where and why a scenario can't be run, in one line.

use super::library::BUILT_IN_PREFIX;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// Longer names of files are cut in errors.
const PATH_SHOWN: usize = 512;

/// A place in a file, or the name of what else a value came from (`--set host.pcpus`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// File name as the user gave it, or `(built in) workloads/gmake.toml`.
    pub file: Arc<str>,
    /// Line and column, both from 1; 0 where there is no text.
    pub line: usize,
    pub column: usize,
}

impl Place {
    /// The place of a byte offset in a text.
    pub fn at(file: &Arc<str>, text: &str, offset: usize) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |position| position + 1);
        Self {
            file: file.clone(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }

    /// Whether it is an option of the command line (`--policy`, `--set host`), not a file.
    pub fn is_command_line(&self) -> bool {
        self.line == 0 && self.file.starts_with("--")
    }

    /// Whether it is in a file that the binary carries along.
    pub fn is_built_in(&self) -> bool {
        self.file.starts_with(BUILT_IN_PREFIX)
    }

    /// A place without lines.
    pub fn whole(file: &str) -> Self {
        Self { file: file.into(), line: 0, column: 0 }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = clipped_path(&self.file);
        match self.line {
            0 => write!(f, "{file}"),
            line => write!(f, "{file}:{line}:{}", self.column),
        }
    }
}

/// Why a scenario was refused. Displays as `file:line:column: cause`, the cause saying what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {cause}")]
pub struct ScenarioError {
    pub place: Place,
    pub cause: String,
}

impl ScenarioError {
    pub(crate) fn new(place: &Place, cause: impl Into<String>) -> Self {
        Self { place: place.clone(), cause: cause.into() }
    }
}

/// A list for people: `a, b, c`, cut where it gets long.
pub(super) fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    const SHOWN: usize = 40;
    let names: Vec<&str> = names.into_iter().collect();
    match names.len() {
        0 => "none".to_owned(),
        count if count > SHOWN => format!("{}, and {} more", names[..SHOWN].join(", "), count - SHOWN),
        _ => names.join(", "),
    }
}

/// User text inside a message: cut, so that a megabyte of key doesn't become a megabyte of error.
pub fn quoted(text: &str) -> String {
    format!("`{}`", clipped(text))
}

/// The same without quotes.
pub(super) fn clipped(text: &str) -> String {
    const SHOWN: usize = 60;
    clipped_to(text, SHOWN).chars().flat_map(char::escape_debug).collect()
}

/// A file's name inside a message.
pub(super) fn clipped_path(path: &str) -> Cow<'_, str> {
    clipped_to(path, PATH_SHOWN)
}

fn clipped_to(text: &str, shown: usize) -> Cow<'_, str> {
    match text.char_indices().nth(shown) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    }
}
