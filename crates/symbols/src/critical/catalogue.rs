//! The catalogue: `critical/linux.toml` as typed values, checked on reading.

use super::{CodeClass, KernelVersion, VersionRange};
use crate::{Cause, Error, Place};
use serde::Deserialize;
use std::collections::HashMap;
use std::io::Read;
use std::path::Path;

/// The catalogue that the binary carries.
const LINUX: &str = include_str!("../../../../critical/linux.toml");
/// The only format of the file so far.
const FORMAT: u32 = 1;
/// Largest catalogue, in bytes; ours has 40 kB.
const CATALOGUE_BYTES_MAX: usize = 1 << 20;
/// Most names that all entries together may hold.
pub const NAMES_MAX: usize = 4096;
/// Longest function name (`KSYM_NAME_LEN` in include/linux/kallsyms.h, 6.1).
const NAME_BYTES_MAX: usize = 512;

/// Which functions of a guest family are critical, and why.
#[derive(Debug, Clone)]
pub struct Catalogue {
    pub family: String,
    pub architecture: String,
    /// First and last kernel version whose sources the entries were checked against.
    pub reviewed: VersionRange,
    /// Table 3 of the paper, in its order.
    pub rows: Vec<Entry>,
    /// Code that the paper's text needs but its table doesn't name.
    pub companions: Vec<Entry>,
}

/// One row of Table 3, or a companion of the table.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The operation as the paper names it, without parentheses.
    pub paper: String,
    pub module: String,
    pub file: String,
    pub meaning: String,
    pub class: CodeClass,
    pub successors: Vec<Successor>,
    pub left_out: Vec<LeftOut>,
    pub absences: Vec<Absence>,
}

/// How a function carries on the work of the entry it stands under.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// The paper's own function.
    Same,
    /// The same function under another name.
    Renamed,
    /// A part of it that became, or sometimes is, a function.
    Split,
    /// It is inlined into, or framed by, this function.
    Caller,
    /// It has become, or always was, a call of this function.
    Callee,
    /// The same work for another case: paravirtual, real-time, another lock.
    Variant,
    /// Entry code that leads only here.
    Entry,
}

/// Functions that carry the work of an entry in some range of versions.
#[derive(Debug, Clone)]
pub struct Successor {
    pub symbols: Vec<String>,
    pub how: How,
    /// The versions that have it, as far as it was checked. It explains; it never hides a symbol that is
    /// there, because distributions carry code back.
    pub versions: VersionRange,
    /// Where it can be read: kernel source file and version.
    pub file: String,
    pub read_in: KernelVersion,
    pub why: String,
}

/// Functions that carry the work too, and are left out on purpose.
#[derive(Debug, Clone)]
pub struct LeftOut {
    pub symbols: Vec<String>,
    pub condition: Condition,
    pub why: String,
}

/// A reason why no symbol of an entry is found.
#[derive(Debug, Clone)]
pub struct Absence {
    pub condition: Condition,
    pub why: String,
}

/// When a reason applies: the version is in range, every symbol of `has` and none of `lacks` is in the table.
#[derive(Debug, Clone, Default)]
pub struct Condition {
    pub versions: VersionRange,
    pub has: Vec<String>,
    pub lacks: Vec<String>,
}

impl Condition {
    /// A bound on versions never holds for a kernel whose version isn't known.
    pub fn holds(&self, version: Option<KernelVersion>, has_symbol: impl Fn(&str) -> bool) -> bool {
        (self.versions.is_unbounded() || version.is_some_and(|version| self.versions.contains(version)))
            && self.has.iter().all(|name| has_symbol(name))
            && !self.lacks.iter().any(|name| has_symbol(name))
    }
}

impl Catalogue {
    /// The catalogue for Linux guests that the binary carries.
    pub fn linux() -> Self {
        Self::from_toml(LINUX).expect("critical/linux.toml is checked by this crate's tests")
    }

    /// Reads a catalogue in place of the one that the binary carries.
    ///
    /// # Errors
    /// The line, and what is wrong there: TOML that doesn't parse; a field that is missing, unknown or of the
    /// wrong kind; a class that a function can't have; a function with two classes; a format of another
    /// version.
    pub fn from_toml(text: &str) -> Result<Self, Error> {
        if text.len() > CATALOGUE_BYTES_MAX {
            return Err(Error::too_large("bytes in a catalogue", CATALOGUE_BYTES_MAX as u64));
        }
        let raw: RawCatalogue = toml::from_str(text).map_err(|error| {
            at_offset(text, error.span().map_or(0, |span| span.start), error.message().to_owned())
        })?;
        raw.checked(text)
    }

    /// Reads such a catalogue from a regular file: opening a FIFO could block for ever.
    ///
    /// # Errors
    /// The file, and what is wrong with it; of its text, with the line: see [`Catalogue::from_toml`].
    pub fn from_file(path: &Path) -> Result<Self, String> {
        let of_file = |cause: &dyn std::fmt::Display| format!("{}: {cause}", path.display());
        let metadata = std::fs::metadata(path).map_err(|error| of_file(&error))?;
        if !metadata.is_file() {
            return Err(of_file(&"isn't a regular file"));
        }
        let mut bytes = Vec::new();
        let file = crate::open_to_end(path).map_err(|error| of_file(&error))?;
        file.take(CATALOGUE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(|error| of_file(&error))?;
        let text = String::from_utf8(bytes).map_err(|error| {
            of_file(&format_args!("offset {:#x}: isn't text", error.utf8_error().valid_up_to()))
        })?;
        Self::from_toml(&text).map_err(|error| error.of(path.display()).to_string())
    }

    /// Rows, then companions: from the entry that keeps its ranges longest to the first that loses them.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.rows.iter().chain(&self.companions)
    }
}

fn at_offset(text: &str, offset: usize, cause: String) -> Error {
    let before = text.as_bytes().get(..offset).unwrap_or_default();
    let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count() as u64;
    Error::new(Place::Line(line), Cause::Malformed(cause.replace('\n', " ")))
}

/// The file as it is written. Fields that aren't known are errors: a misspelt `util` would silently mean
/// something else.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCatalogue {
    format: u32,
    family: String,
    architecture: String,
    reviewed_first: KernelVersion,
    reviewed_last: KernelVersion,
    #[serde(rename = "row", default)]
    rows: Vec<RawEntry>,
    #[serde(rename = "companion", default)]
    companions: Vec<RawEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEntry {
    paper: toml::Spanned<String>,
    module: String,
    file: String,
    meaning: String,
    class: CodeClass,
    #[serde(rename = "successor", default)]
    successors: Vec<RawSuccessor>,
    #[serde(default)]
    left_out: Vec<RawReason>,
    #[serde(rename = "absence", default)]
    absences: Vec<RawReason>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSuccessor {
    symbols: Vec<toml::Spanned<String>>,
    how: How,
    since: KernelVersion,
    until: Option<KernelVersion>,
    file: String,
    version: KernelVersion,
    why: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawReason {
    #[serde(default)]
    symbols: Vec<String>,
    since: Option<KernelVersion>,
    until: Option<KernelVersion>,
    #[serde(default)]
    has: Vec<String>,
    #[serde(default)]
    lacks: Vec<String>,
    why: String,
}

impl RawCatalogue {
    fn checked(self, text: &str) -> Result<Catalogue, Error> {
        if self.format != FORMAT {
            let cause = format!("format {} isn't {FORMAT}, the one that this program reads", self.format);
            return Err(at_offset(text, 0, cause));
        }
        let mut classes = Classes { of_name: HashMap::new(), text };
        let rows = self.rows.into_iter().map(|row| row.checked(&mut classes)).collect::<Result<_, _>>()?;
        let companions =
            self.companions.into_iter().map(|entry| entry.checked(&mut classes)).collect::<Result<_, _>>()?;
        if classes.of_name.is_empty() {
            return Err(at_offset(text, 0, "no [[row]] with a successor: nothing would be critical".into()));
        }
        Ok(Catalogue {
            family: self.family,
            architecture: self.architecture,
            reviewed: VersionRange { since: Some(self.reviewed_first), until: Some(self.reviewed_last) },
            rows,
            companions,
        })
    }
}

/// Which class each function has so far: one function has one class, whatever entries it stands under.
struct Classes<'t> {
    of_name: HashMap<String, CodeClass>,
    text: &'t str,
}

impl Classes<'_> {
    fn claim(&mut self, name: &toml::Spanned<String>, class: CodeClass) -> Result<String, Error> {
        let at_name = |cause| at_offset(self.text, name.span().start, cause);
        let plain = name.get_ref();
        let letters = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if plain.is_empty() || plain.len() > NAME_BYTES_MAX || !plain.bytes().all(letters) {
            return Err(at_name(format!("{:?} isn't the name of a function", clipped(plain))));
        }
        match self.of_name.get(plain) {
            Some(&other) if other != class => {
                return Err(at_name(format!(
                    "{plain} is {class} here and {other} above: one class a function"
                )));
            }
            Some(_) => {}
            None if self.of_name.len() == NAMES_MAX => {
                return Err(at_name(format!("more than {NAMES_MAX} functions: refused")));
            }
            None => {
                self.of_name.insert(plain.clone(), class);
            }
        }
        Ok(plain.clone())
    }
}

fn clipped(text: &str) -> String {
    text.chars().take(64).collect()
}

impl RawEntry {
    fn checked(self, classes: &mut Classes<'_>) -> Result<Entry, Error> {
        let class = self.class;
        let at_entry = |cause: &str| Err(at_offset(classes.text, self.paper.span().start, cause.into()));
        if !class.is_named_by_catalogue() {
            return at_entry(&format!("{class} follows from the address alone, no function can have it"));
        }
        if self.successors.is_empty() {
            return at_entry("has no [[….successor]]: name at least the function of the paper");
        }
        if self.successors.iter().any(|successor| successor.symbols.is_empty()) {
            return at_entry("has a successor with no symbols");
        }
        let successors = self
            .successors
            .into_iter()
            .map(|raw| {
                let symbols =
                    raw.symbols.iter().map(|name| classes.claim(name, class)).collect::<Result<_, _>>();
                Ok(Successor {
                    symbols: symbols?,
                    how: raw.how,
                    versions: VersionRange { since: Some(raw.since), until: raw.until },
                    file: raw.file,
                    read_in: raw.version,
                    why: raw.why,
                })
            })
            .collect::<Result<_, Error>>()?;
        Ok(Entry {
            paper: self.paper.into_inner(),
            module: self.module,
            file: self.file,
            meaning: self.meaning,
            class,
            successors,
            left_out: self.left_out.into_iter().map(RawReason::left_out).collect(),
            absences: self.absences.into_iter().map(RawReason::absence).collect(),
        })
    }
}

impl RawReason {
    fn left_out(self) -> LeftOut {
        let versions = VersionRange { since: self.since, until: self.until };
        let condition = Condition { versions, has: self.has, lacks: self.lacks };
        LeftOut { symbols: self.symbols, condition, why: self.why }
    }

    fn absence(self) -> Absence {
        let LeftOut { condition, why, .. } = self.left_out();
        Absence { condition, why }
    }
}
