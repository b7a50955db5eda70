//! Typed access to the keys of a table: every refusal names the place and what is allowed there.

use super::error::{Place, ScenarioError, listed, quoted};
use super::tree::{Node, NodeValue, Table};
use super::units;
use microslice_model::config::Duration;
use std::ops::RangeInclusive;

/// Keys that any table may carry for its readers: what it is, where a number comes from, what it was fitted
/// to.
const NOTES: [&str; 4] = ["description", "comment", "source", "fitted_to"];

/// One table of a scenario.
pub struct TableReader<'n> {
    place: &'n Place,
    what: &'static str,
    table: &'n Table,
}

impl<'n> TableReader<'n> {
    /// Opens a table with these keys; any other key is refused, before anything else is looked at.
    pub fn open(node: &'n Node, what: &'static str, keys: &[&str]) -> Result<Self, ScenarioError> {
        let NodeValue::Table(table) = &node.value else {
            let cause = format!(
                "{what} is a table with the keys {}, not {}",
                listed(keys.iter().copied()),
                node.kind()
            );
            return Err(ScenarioError::new(&node.place, cause));
        };
        for (key, (place, note)) in table {
            if NOTES.contains(&key.as_str()) {
                string(note)?;
            } else if !keys.contains(&key.as_str()) {
                let cause = format!(
                    "unknown key {} in {what}; allowed: {}",
                    quoted(key),
                    listed(keys.iter().copied())
                );
                return Err(ScenarioError::new(place, cause));
            }
        }
        Ok(Self { place: &node.place, what, table })
    }

    /// Where the table begins.
    pub fn place(&self) -> &'n Place {
        self.place
    }

    /// The value of a key, if it is there.
    pub fn get(&self, key: &str) -> Option<&'n Node> {
        self.table.get(key).map(|(_, node)| node)
    }

    /// An error that says a key is missing.
    pub fn missing(&self, key: &str, expected: &str) -> ScenarioError {
        ScenarioError::new(self.place, format!("{} needs `{key}` ({expected})", self.what))
    }

    /// Text.
    pub fn string(&self, key: &str) -> Result<Option<&'n str>, ScenarioError> {
        let read = |node: &'n Node| match &node.value {
            NodeValue::String(text) => Ok(text.as_str()),
            _ => Err(ScenarioError::new(&node.place, format!("`{key}` is text, not {}", node.kind()))),
        };
        self.get(key).map(read).transpose()
    }

    /// true or false.
    pub fn boolean(&self, key: &str) -> Result<Option<bool>, ScenarioError> {
        let read = |node: &Node| match node.value {
            NodeValue::Boolean(value) => Ok(value),
            _ => {
                Err(ScenarioError::new(&node.place, format!("`{key}` is true or false, not {}", node.kind())))
            }
        };
        self.get(key).map(read).transpose()
    }

    /// A whole number within limits.
    pub fn integer(&self, key: &str, allowed: RangeInclusive<u64>) -> Result<Option<u64>, ScenarioError> {
        self.get(key).map(|node| integer(node, key, allowed)).transpose()
    }

    /// A time in ns, within limits.
    pub fn time(&self, key: &str, allowed: RangeInclusive<u64>) -> Result<Option<u64>, ScenarioError> {
        self.parsed(key, |text| units::time_ns(text, None, &allowed))
    }

    /// A distribution of times.
    pub fn distribution(&self, key: &str) -> Result<Option<Duration>, ScenarioError> {
        self.parsed(key, units::distribution)
    }

    /// Text that `parse` understands; its complaint is put behind the value's place.
    pub fn parsed<T>(
        &self,
        key: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, ScenarioError> {
        let read = |node: &'n Node| match &node.value {
            NodeValue::String(text) => {
                parse(text).map_err(|cause| ScenarioError::new(&node.place, format!("`{key}`: {cause}")))
            }
            // A number without its unit, or one that isn't the word or name that it should be.
            NodeValue::Integer(_) | NodeValue::Float(_) => {
                let cause = parse("1").err().unwrap_or_else(|| "expected text".to_owned());
                let cause = cause.replace("`1` has no unit", "a bare number has no unit");
                let cause = cause.replace("`1`", node.kind());
                Err(ScenarioError::new(&node.place, format!("`{key}`: {cause}")))
            }
            _ => Err(ScenarioError::new(&node.place, format!("`{key}` is text, not {}", node.kind()))),
        };
        self.get(key).map(read).transpose()
    }

    /// One of some words.
    pub fn choice<T: Copy>(&self, key: &str, choices: &[(&str, T)]) -> Result<Option<T>, ScenarioError> {
        self.parsed(key, |text| {
            choices.iter().find(|(name, _)| *name == text).map(|(_, value)| *value).ok_or_else(|| {
                format!(
                    "unknown {}; allowed: {}",
                    quoted(text),
                    listed(choices.iter().map(|(name, _)| *name))
                )
            })
        })
    }

    /// The entries of a list, at most `limit`; an absent list is empty.
    pub fn list(&self, key: &str, limit: usize) -> Result<&'n [Node], ScenarioError> {
        match self.get(key) {
            None => Ok(&[]),
            Some(node) => match &node.value {
                NodeValue::Array(items) if items.len() <= limit => Ok(items),
                NodeValue::Array(items) => {
                    let cause = format!("`{key}` has {} entries; at most {limit} are allowed", items.len());
                    Err(ScenarioError::new(&node.place, cause))
                }
                _ => Err(ScenarioError::new(&node.place, format!("`{key}` is a list, not {}", node.kind()))),
            },
        }
    }
}

/// Text.
pub fn string(node: &Node) -> Result<&str, ScenarioError> {
    match &node.value {
        NodeValue::String(text) => Ok(text),
        _ => Err(ScenarioError::new(&node.place, format!("expected text, found {}", node.kind()))),
    }
}

/// A whole number within limits.
pub fn integer(node: &Node, key: &str, allowed: RangeInclusive<u64>) -> Result<u64, ScenarioError> {
    let refuse = |found: String| {
        let (low, high) = (allowed.start(), allowed.end());
        let cause = format!("`{key}` is a whole number from {low} to {high}, not {found}");
        Err(ScenarioError::new(&node.place, cause))
    };
    match node.value {
        NodeValue::Integer(value) => match u64::try_from(value) {
            Ok(number) if allowed.contains(&number) => Ok(number),
            _ => refuse(value.to_string()),
        },
        _ => refuse(node.kind().to_owned()),
    }
}

/// A name for people and files: letters, digits and `-_.+#`, 1 to 64 characters.
pub fn name(node: &Node, what: &str) -> Result<String, ScenarioError> {
    let text = string(node)?;
    let fits = !text.is_empty()
        && text.chars().count() <= 64
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.+#".contains(c));
    if !fits {
        let cause = format!("{} can't name {what}; allowed: 1 to 64 letters, digits and -_.+#", quoted(text));
        return Err(ScenarioError::new(&node.place, cause));
    }
    Ok(text.to_owned())
}
