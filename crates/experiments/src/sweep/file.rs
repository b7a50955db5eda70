//! The file of a sweep: what it may say, and what it says.

use crate::scenario::{Library, Node, NodeValue, ScenarioError, TableReader, name, string, written_setting};
use std::path::PathBuf;

const KEYS: [&str; 7] = ["scenarios", "policies", "seeds", "seed", "set", "setting", "check"];
const SETTING_KEYS: [&str; 2] = ["name", "set"];

const SCENARIOS_MAX: usize = 10_000;
const POLICIES_MAX: usize = 100;
const SETTINGS_MAX: usize = 10_000;
/// Changes of a scenario: by all runs, and by one setting.
const CHANGES_MAX: usize = 1_000;
const SEEDS_MAX: u64 = 10_000;
const SEEDS_DEFAULT: u64 = 5;
/// The place of each run's line is kept in memory, and little more.
pub const RUNS_MAX: usize = 1_000_000;

/// What a sweep without settings calls the only one.
const AS_IT_IS: &str = "as-it-is";

/// Of what runs are made.
#[derive(Debug, Clone)]
pub struct Axes {
    pub description: String,
    pub scenarios: Vec<Node>,
    pub settings: Vec<Setting>,
    pub policies: Vec<Node>,
    pub seeds: Vec<u64>,
    /// Verify the model's invariants.
    pub check: bool,
    /// Of the disk, that it was read from.
    pub files: Vec<PathBuf>,
    /// Where names of scenarios and policies are looked up.
    pub library: Library,
}

/// A way in which scenarios are changed.
#[derive(Debug, Clone)]
pub struct Setting {
    pub name: String,
    /// Paths and their values; those of all runs come first.
    pub changes: Vec<(String, Node)>,
}

impl Axes {
    pub fn read(path: &str) -> Result<Self, ScenarioError> {
        let mut library = Library::default();
        let document = library.of_scenarios(path)?;
        let table = TableReader::open(&document, "a sweep", &KEYS)?;
        let scenarios = names(&table, "scenarios", SCENARIOS_MAX, "such as [\"gmake-swaptions\"]")?;
        let policies = names(&table, "policies", POLICIES_MAX, "such as [\"eevdf\", \"microslice\"]")?;
        let settings = settings(&table)?;
        let seeds = seeds(&table)?;
        let runs = [scenarios.len(), settings.len(), policies.len(), seeds.len()];
        let runs = runs.into_iter().fold(1, usize::saturating_mul);
        if runs > RUNS_MAX {
            let cause = format!("{runs} runs; at most {RUNS_MAX} are one sweep");
            return Err(ScenarioError::new(table.place(), cause));
        }
        Ok(Self {
            description: table.string("description")?.unwrap_or_default().to_owned(),
            check: table.boolean("check")?.unwrap_or(false),
            files: library.clone().into_files(),
            scenarios,
            settings,
            policies,
            seeds,
            library,
        })
    }
}

/// A list of texts, each there once.
fn names(
    table: &TableReader<'_>,
    key: &str,
    limit: usize,
    example: &str,
) -> Result<Vec<Node>, ScenarioError> {
    let list = table.list(key, limit)?;
    if list.is_empty() {
        return Err(table.missing(key, example));
    }
    for (at, node) in list.iter().enumerate() {
        let name = string(node)?;
        if list[..at].iter().any(|earlier| string(earlier) == Ok(name)) {
            return Err(ScenarioError::new(&node.place, format!("`{key}`: {name:?} is named twice")));
        }
    }
    Ok(list.to_vec())
}

fn changes(table: &TableReader<'_>) -> Result<Vec<(String, Node)>, ScenarioError> {
    let change = |node: &Node| match written_setting(node)? {
        (path, _) if path.trim_matches('"') == "seed" => {
            let cause = "each run has a seed of its own: `seed` and `seeds` of the sweep say which";
            Err(ScenarioError::new(&node.place, cause))
        }
        change => Ok(change),
    };
    table.list("set", CHANGES_MAX)?.iter().map(change).collect()
}

fn settings(table: &TableReader<'_>) -> Result<Vec<Setting>, ScenarioError> {
    let of_all = changes(table)?;
    if let Some(node) = table.get("setting").filter(|node| matches!(node.value, NodeValue::Table(_))) {
        let cause = "`setting` is a list: write [[setting]], not [setting]";
        return Err(ScenarioError::new(&node.place, cause));
    }
    let mut settings: Vec<Setting> = Vec::new();
    for node in table.list("setting", SETTINGS_MAX)? {
        let own = TableReader::open(node, "a setting", &SETTING_KEYS)?;
        let name_node = own.get("name").ok_or_else(|| own.missing("name", "such as \"crowded\""))?;
        let name = name(name_node, "a setting")?;
        if settings.iter().any(|earlier| earlier.name == name) {
            return Err(ScenarioError::new(&name_node.place, format!("two settings are named `{name}`")));
        }
        settings.push(Setting { name, changes: [of_all.clone(), changes(&own)?].concat() });
    }
    if settings.is_empty() {
        settings.push(Setting { name: AS_IT_IS.to_owned(), changes: of_all });
    }
    Ok(settings)
}

fn seeds(table: &TableReader<'_>) -> Result<Vec<u64>, ScenarioError> {
    let count = table.integer("seeds", 1..=SEEDS_MAX)?.unwrap_or(SEEDS_DEFAULT);
    let first = table.integer("seed", 0..=i64::MAX as u64 - SEEDS_MAX)?.unwrap_or(1);
    Ok((first..first + count).collect())
}
