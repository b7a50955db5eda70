//! Where the files of a scenario come from: the disk, next to the file that names them, or the copies in the
//! binary.

use super::built_in::{built_in, names_in};
use super::error::{Place, ScenarioError, clipped_path, listed, quoted};
use super::reader;
use super::tree::{FILE_SIZE_MAX, Node, NodeValue, overlay, parse};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

/// What names of built-in files begin with.
pub const BUILT_IN_PREFIX: &str = "(built in) ";

/// More files than this in one scenario are a mistake or an attack.
const FILES_MAX: usize = 8_192;
/// Each name in a scenario gets a copy of its file.
const BYTES_MAX: usize = 256 << 20;
/// Longest chain of `extends`.
const DEPTH_MAX: usize = 16;

/// Kinds of files, each in its own folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shelf {
    Scenario,
    Host,
    /// What boosts take on a host.
    Boosts,
    Kernel,
    Workload,
    Nic,
    Policy,
}

impl Shelf {
    fn folder(self) -> &'static str {
        match self {
            Self::Scenario => "",
            Self::Host => "hosts/",
            Self::Boosts => "boosts/",
            Self::Kernel => "kernels/",
            Self::Workload => "workloads/",
            Self::Nic => "nics/",
            Self::Policy => "policies/",
        }
    }

    fn noun(self) -> &'static str {
        match self {
            Self::Scenario => "scenario",
            Self::Host => "host",
            Self::Boosts => "table of boosts",
            Self::Kernel => "kernel",
            Self::Workload => "workload",
            Self::Nic => "NIC",
            Self::Policy => "policy",
        }
    }

    /// Names of the built-in files of this kind.
    pub fn built_in_names(self) -> Vec<&'static str> {
        names_in(self.folder())
    }

    /// Returns the names of the built-in files of this kind, each with its description.
    pub fn built_in_descriptions(self) -> Vec<(&'static str, String)> {
        let described = |name| {
            let text = built_in(&format!("{}{name}.toml", self.folder())).unwrap_or_default();
            let table = text.parse::<toml::Table>().unwrap_or_default();
            let description = table.get("description").and_then(toml::Value::as_str).unwrap_or_default();
            (name, description.to_owned())
        };
        self.built_in_names().into_iter().map(described).collect()
    }
}

/// Loads files and remembers where each came from, as names inside a file are looked up next to it first.
#[derive(Debug, Clone, Default)]
pub struct Library {
    /// File name as in places -> its folder on the disk.
    folders: BTreeMap<String, PathBuf>,
    /// Folder of the scenario itself: where names from the command line are looked up.
    home: Option<PathBuf>,
    files: Vec<PathBuf>,
    files_loaded: usize,
    /// What all of them take in memory.
    bytes_loaded: usize,
}

struct SourceText {
    file: String,
    text: String,
    /// On the disk.
    path: Option<PathBuf>,
}

impl SourceText {
    /// Where names in it are looked up.
    fn folder(&self) -> Option<PathBuf> {
        let folder = self.path.as_ref()?.parent()?;
        Some(if folder == Path::new("") { Path::new(".") } else { folder }.to_path_buf())
    }
}

impl Library {
    /// A scenario by the path or the built-in name that the user gave.
    pub fn scenario(&mut self, reference: &str) -> Result<Node, ScenarioError> {
        let path = Path::new(reference);
        let place = Place::whole(reference);
        let source = if path.is_file() || looks_like_path(reference) {
            read_file(path, &place)?
        } else {
            self.on_shelf(Shelf::Scenario, reference, &place)?
        };
        self.home = source.folder();
        self.layered(Shelf::Scenario, source, &place, &mut Vec::new())
    }

    /// A file that names scenarios, which are looked up next to it.
    pub fn of_scenarios(&mut self, path: &str) -> Result<Node, ScenarioError> {
        let place = Place::whole(path);
        let source = read_file(Path::new(path), &place)?;
        self.layered(Shelf::Scenario, source, &place, &mut Vec::new())
    }

    /// A document that isn't in a file (tests, standard input), with its includes looked up in the binary
    /// only.
    pub fn document(&mut self, file: &str, text: &str) -> Result<Node, ScenarioError> {
        let source = SourceText { file: file.to_owned(), text: text.to_owned(), path: None };
        self.layered(Shelf::Scenario, source, &Place::whole(file), &mut Vec::new())
    }

    /// Every file of the disk that was read.
    pub fn into_files(self) -> Vec<PathBuf> {
        self.files
    }

    /// What `reference` (a name, or a path relative to the file that contains it) at `place` means.
    pub fn find(&mut self, shelf: Shelf, reference: &str, place: &Place) -> Result<Node, ScenarioError> {
        self.find_below(shelf, reference, place, &mut Vec::new())
    }

    /// Lays `table` over the file that its `extends` names, if it has one.
    pub fn extended(&mut self, shelf: Shelf, table: Node) -> Result<Node, ScenarioError> {
        self.extend_below(shelf, table, &mut Vec::new())
    }

    fn find_below(
        &mut self,
        shelf: Shelf,
        reference: &str,
        place: &Place,
        chain: &mut Vec<String>,
    ) -> Result<Node, ScenarioError> {
        let source = if looks_like_path(reference) {
            let Some(path) = self.path(reference, place) else {
                let cause =
                    format!("{} is a path, but this text is in no folder of the disk", quoted(reference));
                return Err(ScenarioError::new(place, cause));
            };
            read_file(&path, place)?
        } else {
            self.on_shelf(shelf, reference, place)?
        };
        self.layered(shelf, source, place, chain)
    }

    fn layered(
        &mut self,
        shelf: Shelf,
        source: SourceText,
        named_at: &Place,
        chain: &mut Vec<String>,
    ) -> Result<Node, ScenarioError> {
        self.files_loaded += 1;
        if self.files_loaded > FILES_MAX {
            return Err(ScenarioError::new(named_at, format!("more than {FILES_MAX} files in one scenario")));
        }
        if let (Some(folder), Some(path)) = (source.folder(), &source.path) {
            // A file that is named again and again is kept once.
            if self.folders.insert(source.file.clone(), folder).is_none() {
                self.files.push(path.clone());
            }
        }
        let node = parse(&source.file, &source.text)?;
        self.bytes_loaded += node.bytes();
        if self.bytes_loaded > BYTES_MAX {
            let cause = format!(
                "{}: with it the files of this scenario take more than {} MiB of memory (whoever is named twice \
                 counts twice)",
                source.file,
                BYTES_MAX >> 20
            );
            return Err(ScenarioError::new(named_at, cause));
        }
        chain.push(source.file);
        let node = self.extend_below(shelf, node, chain);
        chain.pop();
        node
    }

    fn extend_below(
        &mut self,
        shelf: Shelf,
        mut node: Node,
        chain: &mut Vec<String>,
    ) -> Result<Node, ScenarioError> {
        let NodeValue::Table(table) = &mut node.value else { return Ok(node) };
        let Some((_, base)) = table.remove("extends") else { return Ok(node) };
        let reference = reader::string(&base)?;
        if chain.len() >= DEPTH_MAX {
            let cause = format!("a chain of more than {DEPTH_MAX} `extends`: {}", chain.join(" -> "));
            return Err(ScenarioError::new(&base.place, cause));
        }
        let below = match self.peek(shelf, reference, &base.place) {
            Some(file) if chain.iter().any(|seen| is_same_file(seen, &file)) => {
                let cause = format!("`extends` leads back to itself: {} -> {file}", chain.join(" -> "));
                return Err(ScenarioError::new(&base.place, cause));
            }
            _ => self.find_below(shelf, reference, &base.place, chain)?,
        };
        Ok(overlay(below, node))
    }

    /// The file name that a reference would load, to see a cycle before it is walked.
    fn peek(&self, shelf: Shelf, reference: &str, place: &Place) -> Option<String> {
        if looks_like_path(reference) {
            return self.path(reference, place).map(|path| path.display().to_string());
        }
        self.on_shelf(shelf, reference, place).ok().map(|source| source.file)
    }

    /// Where a path leads: from the file that contains it, or from the working directory if it is from the
    /// command line.
    fn path(&self, reference: &str, place: &Place) -> Option<PathBuf> {
        if place.is_command_line() || Path::new(reference).is_absolute() {
            return Some(PathBuf::from(reference));
        }
        Some(self.folders.get(place.file.as_ref())?.join(reference))
    }

    fn on_shelf(&self, shelf: Shelf, reference: &str, place: &Place) -> Result<SourceText, ScenarioError> {
        let below = format!("{}{reference}.toml", shelf.folder());
        if reference.chars().all(|c| c.is_ascii_alphanumeric() || "-_.+".contains(c)) {
            let own = self.folders.get(place.file.as_ref());
            if let Some(folder) = own.or(self.home.as_ref().filter(|_| place.is_command_line())) {
                let candidates = [folder.join(&below), folder.join("..").join(&below)];
                if let Some(path) = candidates.iter().find(|path| path.is_file()) {
                    return read_file(path, place);
                }
            }
            if let Some(text) = built_in(&below) {
                let file = format!("{BUILT_IN_PREFIX}{below}");
                return Ok(SourceText { file, text: text.to_owned(), path: None });
            }
        }
        // Those that begin like it first: a long list is cut.
        let mut names = shelf.built_in_names();
        let alike =
            |name: &str| name.bytes().zip(reference.bytes()).take_while(|(one, other)| one == other).count();
        names.sort_by_key(|name| std::cmp::Reverse(alike(name)));
        let cause = format!(
            "no {} {}; built in: {}; or name a file that ends in .toml",
            shelf.noun(),
            quoted(reference),
            listed(names)
        );
        Err(ScenarioError::new(place, cause))
    }
}

/// Whether two names (`a.toml`, `hosts/../a.toml`, a link to it) mean one file.
fn is_same_file(left: &str, right: &str) -> bool {
    let real = |name: &str| std::fs::canonicalize(name).ok();
    left == right || real(left).is_some_and(|path| real(right) == Some(path))
}

fn looks_like_path(reference: &str) -> bool {
    reference.ends_with(".toml") || reference.contains('/')
}

/// A file's text; `place` is where its name was written.
fn read_file(path: &Path, place: &Place) -> Result<SourceText, ScenarioError> {
    let file = path.display().to_string();
    let refuse = |cause: String| {
        let named = place.line == 0 && *place.file == *file;
        ScenarioError::new(place, if named { cause } else { format!("{}: {cause}", clipped_path(&file)) })
    };
    let opened = microslice_metrics::input::open(path).map_err(|error| refuse(error.to_string()))?;
    let mut bytes = Vec::new();
    opened
        .take(FILE_SIZE_MAX as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| refuse(error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let valid = String::from_utf8_lossy(&error.as_bytes()[..error.utf8_error().valid_up_to()]);
        let place = Place::at(&file.as_str().into(), &valid, valid.len());
        ScenarioError::new(&place, "not UTF-8 text")
    })?;
    Ok(SourceText { file, text, path: Some(path.to_owned()) })
}
