//! Runs that the kernel left out: a program whose earlier run on the same pCPU hasn't ended isn't run a
//! second time.
//!
//! Problem.   A hint that is left out is lost, and nothing but the kernel's own counter shows it.
//! Mechanism. `recursion_misses` of `struct bpf_prog_info` (`kernel/bpf/trampoline.c`,
//!            `bpf_prog_inc_misses_counter`), which the kernel always counts.

use crate::bpf::program_costs::program_info;
use libbpf_rs::Object;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// By the program's name; only programs that were left out at least once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecursionMisses(BTreeMap<String, u64>);

impl RecursionMisses {
    /// Reads the misses of all programs of an object since it was loaded.
    pub fn of_object(object: &Object) -> Self {
        let misses = object.progs().filter_map(|program| {
            let count = program_info(&program)?.recursion_misses;
            Some((program.name().to_string_lossy().into_owned(), count))
        });
        misses.collect()
    }

    /// Both together: of an object, and of the one that was loaded before it.
    pub fn plus(&self, other: &Self) -> Self {
        let of = |name: &String| self.of(name) + other.of(name);
        self.0.keys().chain(other.0.keys()).map(|name| (name.clone(), of(name))).collect()
    }

    /// Returns the misses since `before`.
    pub fn since(&self, before: &Self) -> Self {
        self.0.iter().map(|(name, count)| (name.clone(), count.saturating_sub(before.of(name)))).collect()
    }

    fn of(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    pub fn to_json(&self) -> Value {
        json!({"total": self.total(), "by_program": self.0})
    }

    /// One line of a report.
    pub fn line(&self) -> String {
        let each: Vec<_> = self.0.iter().map(|(name, count)| format!("{name} {count}")).collect();
        let list = if each.is_empty() { "none".to_owned() } else { each.join(", ") };
        format!("runs left out   {list}\n")
    }
}

impl FromIterator<(String, u64)> for RecursionMisses {
    fn from_iter<I: IntoIterator<Item = (String, u64)>>(counts: I) -> Self {
        Self(counts.into_iter().filter(|(_, count)| *count > 0).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn misses(counts: &[(&str, u64)]) -> RecursionMisses {
        counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    #[test]
    fn programs_that_were_never_left_out_are_not_named() {
        let some = misses(&[("on_spin", 3), ("on_exit", 0)]);
        assert_eq!(some.to_json(), json!({"total": 3, "by_program": {"on_spin": 3}}));
        assert_eq!(some.line(), "runs left out   on_spin 3\n");
        assert_eq!(misses(&[]).line(), "runs left out   none\n");
    }

    #[test]
    fn misses_before_a_restart_count_and_intervals_are_differences() {
        let before = misses(&[("on_spin", 3), ("on_exit", 1)]);
        let after = misses(&[("on_spin", 2), ("on_svm_interrupt", 5)]);
        let all = before.plus(&after);
        assert_eq!(all, misses(&[("on_exit", 1), ("on_spin", 5), ("on_svm_interrupt", 5)]));
        assert_eq!(all.since(&before), after);
    }
}
