//! `rules = "paper"` of a policy `micro-sliced`: the simulator's twin of `microslice run --rules paper`.

use super::error::{Place, ScenarioError};
use super::policy::{PAPER, blamed, is_prototype};
use super::reader::TableReader;
use super::tree::{Node, NodeValue};
use microslice_policy::FairShareConfig;
use std::borrow::Cow;

/// Keys of the project's rules, and of what has another value by the paper's.
const RULED: [&str; 7] =
    ["grace", "call_function_ipi", "patience", "lend", "home_slices", "second_looks", "grow_when_busy"];

/// A policy with `rules = "paper"` hasn't what built-in files say of the project's rules, and its turns are
/// the paper's. Whoever says one of these himself is refused, but for the length of turns.
pub fn applied(policy: &Node) -> Result<Cow<'_, Node>, ScenarioError> {
    let NodeValue::Table(table) = &policy.value else { return Ok(Cow::Borrowed(policy)) };
    let is_paper = |(_, rules): &(Place, Node)| rules.value == NodeValue::String(PAPER.into());
    let is_sliced = |(_, word): &(Place, Node)| word.value == NodeValue::String("micro-sliced".into());
    if !table.get("rules").is_some_and(is_paper) || !table.get("scheduler").is_some_and(is_sliced) {
        return Ok(Cow::Borrowed(policy));
    }
    let mut table = table.clone();
    for key in RULED {
        if let Some((_, node)) = table.remove(key)
            && !node.place.is_built_in()
        {
            return Err(ScenarioError::new(&node.place, format!("`{key}` is of the project's rules alone")));
        }
    }
    if let Some((_, slice)) = table.get_mut("slice")
        && slice.place.is_built_in()
    {
        slice.value = NodeValue::String(format!("{} ms", FairShareConfig::PAPER.slice_ns / 1_000_000));
    }
    Ok(Cow::Owned(Node { place: policy.place.clone(), value: NodeValue::Table(table) }))
}

/// By the words of `microslice run --rules`.
pub fn are_on(table: &TableReader<'_>) -> Result<bool, ScenarioError> {
    let has = table.choice("rules", &[("project", false), (PAPER, true)])?.unwrap_or(false);
    match table.get("rules") {
        Some(node) if has && is_prototype(table)? => {
            let cause = "mechanics `xen-prototype` has rules of its own";
            Err(ScenarioError::new(blamed(node, table.get("mechanics")), cause))
        }
        _ => Ok(has),
    }
}
