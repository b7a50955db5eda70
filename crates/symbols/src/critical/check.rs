//! Matching: which symbols of one kernel the catalogue names, and why others are missing.

use super::catalogue::{Catalogue, Entry, How, LeftOut};
use super::names::function_of;
use super::ranges::{ClassMap, ClassRange, RANGES_MAX, RankedRange, text_of};
use super::{CodeClass, KernelVersion};
use crate::SymbolTable;
use serde::{Serialize, Serializer};
use std::collections::{BTreeSet, HashMap};

/// Most symbols that one function of the catalogue may match. Static functions share names and compilers
/// clone them; the most that was seen is 4. Beyond it the lowest addresses stay.
pub const SYMBOLS_PER_FUNCTION_MAX: usize = 64;

/// What the catalogue says about one kernel: the ranges for the scheduler and the explanation for its
/// operator.
#[derive(Debug, Clone, Serialize)]
pub struct Check {
    pub release: Option<String>,
    pub build_id: Option<String>,
    /// Symbols in the table, of every kind.
    pub symbols: usize,
    /// Table 3, row by row.
    pub rows: Vec<EntryCheck>,
    /// What the paper's text needs beyond its table.
    pub companions: Vec<EntryCheck>,
    pub coverage: Coverage,
    #[serde(skip)]
    pub map: ClassMap,
}

/// One row of Table 3, or one companion, on one kernel.
#[derive(Debug, Clone, Serialize)]
pub struct EntryCheck {
    pub paper: String,
    pub module: String,
    pub class: CodeClass,
    pub matched: Vec<MatchedSymbol>,
    /// Why nothing matched; or, where the paper's own function isn't among what matched, what stands for it.
    pub reason: Option<String>,
    /// Functions that carry this work too and have no class on purpose.
    pub left_out: Vec<LeftOutCheck>,
}

/// A symbol that the catalogue names: `[start, end)`, at linked addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MatchedSymbol {
    pub name: String,
    #[serde(serialize_with = "hex")]
    pub start: u64,
    #[serde(serialize_with = "hex")]
    pub end: u64,
}

#[derive(Debug, Clone, Serialize)]
pub struct LeftOutCheck {
    pub symbols: Vec<String>,
    pub reason: String,
}

/// How much of the table was found, for one line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Coverage {
    pub rows: usize,
    pub rows_matched: usize,
    /// Rows without a symbol whose absence the catalogue explains.
    pub rows_explained: usize,
    /// Rows without a symbol that it can't explain: the catalogue should be looked at.
    pub rows_unexplained: usize,
    pub ranges: usize,
    pub ranges_max: usize,
    /// Entries whose ranges were given up to stay under `ranges_max`.
    pub entries_given_up: usize,
    pub classed_bytes: u64,
    pub text_bytes: u64,
}

/// JSON numbers lose the low bits of a kernel address in many readers.
fn hex<S: Serializer>(address: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{address:#x}"))
}

impl std::fmt::Display for Coverage {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "{} of {} rows of Table 3 matched, {} absent and explained, {} unexplained; \
             {} ranges (at most {}), {} of {} bytes of text",
            self.rows_matched,
            self.rows,
            self.rows_explained,
            self.rows_unexplained,
            self.ranges,
            self.ranges_max,
            self.classed_bytes,
            self.text_bytes,
        )?;
        if self.entries_given_up > 0 {
            write!(out, "; {} entries given up to stay under the limit", self.entries_given_up)?;
        }
        Ok(())
    }
}

impl Catalogue {
    /// Matches every entry against the symbols of one kernel.
    pub fn check(&self, table: &SymbolTable) -> Check {
        let found = Found::collect(self, table);
        let release = table.identity().release.clone();
        let kernel = KernelUnderCheck {
            catalogue: self,
            found: &found,
            table,
            version: release.as_deref().and_then(KernelVersion::of_release),
        };
        let rows: Vec<_> = self.rows.iter().map(|entry| kernel.check(entry)).collect();
        let map = ClassMap::build(text_of(table), &found.ranked(self));
        let coverage = coverage(&rows, &map);
        Check {
            release,
            build_id: table.identity().build_id.clone(),
            symbols: table.len(),
            companions: self.companions.iter().map(|entry| kernel.check_companion(entry)).collect(),
            rows: rows.into_iter().map(|(row, _)| row).collect(),
            coverage,
            map,
        }
    }

    /// Only the ranges: what the scheduler needs.
    pub fn class_map(&self, table: &SymbolTable) -> ClassMap {
        ClassMap::build(text_of(table), &Found::collect(self, table).ranked(self))
    }
}

/// Is the reason for a missing row known?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Explained {
    Matched,
    Yes,
    No,
}

fn coverage(rows: &[(EntryCheck, Explained)], map: &ClassMap) -> Coverage {
    let count = |wanted| rows.iter().filter(|(_, explained)| *explained == wanted).count();
    let (text_start, text_end) = map.text();
    Coverage {
        rows: rows.len(),
        rows_matched: count(Explained::Matched),
        rows_explained: count(Explained::Yes),
        rows_unexplained: count(Explained::No),
        ranges: map.ranges().len(),
        ranges_max: RANGES_MAX,
        entries_given_up: map.given_up_entry_count(),
        classed_bytes: map.classed_bytes(),
        text_bytes: text_end - text_start,
    }
}

/// The symbols of one table by the catalogue's function that they are, or are a part of.
struct Found {
    of_function: HashMap<String, Vec<MatchedSymbol>>,
}

impl Found {
    fn collect(catalogue: &Catalogue, table: &SymbolTable) -> Self {
        let mut of_function: HashMap<&str, Vec<MatchedSymbol>> = catalogue
            .entries()
            .flat_map(|entry| &entry.successors)
            .flat_map(|successor| &successor.symbols)
            .map(|name| (name.as_str(), Vec::new()))
            .collect();
        let (text_start, text_end) = text_of(table);
        let in_text = |address| (text_start..text_end).contains(&address);
        for symbol in table.iter().filter(|symbol| symbol.is_text() && in_text(symbol.address)) {
            if let Some(symbols) = of_function.get_mut(function_of(symbol.name))
                && symbols.len() < SYMBOLS_PER_FUNCTION_MAX
            {
                symbols.push(MatchedSymbol {
                    name: symbol.name.to_owned(),
                    start: symbol.address,
                    end: symbol.end.min(text_end),
                });
            }
        }
        Self { of_function: of_function.into_iter().map(|(name, found)| (name.to_owned(), found)).collect() }
    }

    fn of(&self, function: &str) -> &[MatchedSymbol] {
        self.of_function.get(function).map_or(&[], Vec::as_slice)
    }

    fn ranked(&self, catalogue: &Catalogue) -> Vec<RankedRange> {
        let mut ranked = Vec::new();
        for (rank, entry) in catalogue.entries().enumerate() {
            for name in entry.successors.iter().flat_map(|successor| &successor.symbols) {
                ranked.extend(self.of(name).iter().map(|symbol| RankedRange {
                    range: ClassRange { start: symbol.start, end: symbol.end, class: entry.class },
                    rank,
                }));
            }
        }
        ranked
    }
}

/// One kernel, while its entries are checked one by one.
struct KernelUnderCheck<'k> {
    catalogue: &'k Catalogue,
    found: &'k Found,
    table: &'k SymbolTable,
    version: Option<KernelVersion>,
}

impl KernelUnderCheck<'_> {
    fn check(&self, entry: &Entry) -> (EntryCheck, Explained) {
        let functions: Vec<&str> =
            entry.successors.iter().flat_map(|successor| &successor.symbols).map(String::as_str).collect();
        let matched: Vec<MatchedSymbol> =
            functions.iter().flat_map(|name| self.found.of(name)).cloned().collect();
        let (reason, explained) = if matched.is_empty() {
            let (why, explained) = self.why_absent(entry);
            (Some(why), explained)
        } else {
            (self.what_stands_for(entry), Explained::Matched)
        };
        let checked = EntryCheck {
            paper: entry.paper.clone(),
            module: entry.module.clone(),
            class: entry.class,
            matched,
            reason,
            left_out: entry.left_out.iter().filter_map(|left_out| self.left_out(left_out)).collect(),
        };
        (checked, explained)
    }

    /// A companion has no function of the paper that others could stand for.
    fn check_companion(&self, entry: &Entry) -> EntryCheck {
        let (checked, explained) = self.check(entry);
        let reason = checked.reason.filter(|_| explained != Explained::Matched);
        EntryCheck { reason, ..checked }
    }

    /// Which functions matched in place of the paper's own, and why they do.
    fn what_stands_for(&self, entry: &Entry) -> Option<String> {
        let is_found = |name: &String| !self.found.of(name).is_empty();
        let found: Vec<_> =
            entry.successors.iter().filter(|successor| successor.symbols.iter().any(is_found)).collect();
        if found.iter().any(|successor| successor.how == How::Same) {
            return None;
        }
        let phrases: Vec<String> = found
            .into_iter()
            .map(|successor| {
                let names: Vec<&str> =
                    successor.symbols.iter().filter(|name| is_found(name)).map(String::as_str).collect();
                format!("{}: {} ({} {})", names.join(", "), successor.why, successor.file, successor.read_in)
            })
            .collect();
        Some(phrases.join("; "))
    }

    fn why_absent(&self, entry: &Entry) -> (String, Explained) {
        let told = entry.absences.iter().find(|absence| self.holds(&absence.condition));
        if let Some(absence) = told {
            return (absence.why.clone(), Explained::Yes);
        }
        (self.what_was_looked_for(entry), Explained::No)
    }

    /// For want of a reason in the catalogue: what should be in a kernel of this version, and isn't.
    fn what_was_looked_for(&self, entry: &Entry) -> String {
        let Some(version) = self.version else {
            let names: BTreeSet<&str> = entry
                .successors
                .iter()
                .flat_map(|successor| &successor.symbols)
                .map(String::as_str)
                .collect();
            let names: Vec<&str> = names.into_iter().collect();
            return format!(
                "none of {} is in the table; the kernel's version isn't known, so that it can't be said which should be",
                names.join(", ")
            );
        };
        let reviewed = self.catalogue.reviewed;
        let expected: Vec<&str> = entry
            .successors
            .iter()
            .filter(|successor| successor.versions.contains(version))
            .flat_map(|successor| &successor.symbols)
            .map(String::as_str)
            .collect();
        let beyond = if reviewed.contains(version) {
            "the compiler inlined it, or this build leaves it out".to_owned()
        } else {
            format!("{version} is outside the versions that the catalogue was checked against, {reviewed}")
        };
        if expected.is_empty() {
            let ranges: BTreeSet<String> = entry
                .successors
                .iter()
                .flat_map(|successor| successor.symbols.iter().map(|name| (name, successor.versions)))
                .map(|(name, versions)| format!("{name} ({versions})"))
                .collect();
            let ranges: Vec<String> = ranges.into_iter().collect();
            return format!("no function does this in {version}; known are {}", ranges.join(", "));
        }
        match *expected.as_slice() {
            [one] => format!("{one} isn't in the table: {beyond}"),
            _ => format!("none of {} is in the table: {beyond}", expected.join(", ")),
        }
    }

    fn left_out(&self, left_out: &LeftOut) -> Option<LeftOutCheck> {
        if !self.holds(&left_out.condition) {
            return None;
        }
        let present = left_out.symbols.iter().filter(|name| *name == "*" || self.has(name));
        let symbols: Vec<String> = present.cloned().collect();
        (!symbols.is_empty()).then(|| LeftOutCheck { symbols, reason: left_out.why.clone() })
    }

    fn holds(&self, condition: &super::catalogue::Condition) -> bool {
        condition.holds(self.version, |name| self.has(name))
    }

    /// Is the function in the table, itself or as a clone that the catalogue matched?
    fn has(&self, function: &str) -> bool {
        !self.found.of(function).is_empty() || self.table.by_name(function).next().is_some()
    }
}
