//! The table of rules that the paper doesn't have: `policy/`, both worlds and the page say the same.

use microslice_policy::rules::{Gate, RULES, Rule, keys};
use microslice_policy::*;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All text below a folder.
fn text_below(folder: &str) -> String {
    let mut folders = vec![root().join(folder)];
    let mut text = String::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                text += &fs::read_to_string(path).unwrap_or_default();
            }
        }
    }
    text
}

/// Functions of `policy/` that read `paper_rules`.
fn readers() -> BTreeSet<String> {
    let mut readers = BTreeSet::new();
    let mut function = None;
    for line in text_below("policy").lines() {
        if let Some(signature) = line.strip_prefix("POLICY ") {
            let name = signature.split('(').next().unwrap();
            function = Some(name.rsplit([' ', '*']).next().unwrap().to_owned());
        }
        if line.contains("paper_rules") {
            let is_told = line.trim_start().starts_with(['*', '/']) || line.contains("u32 paper_rules;");
            assert!(function.is_some() || is_told, "which function reads it? {line}");
            readers.extend(function.clone());
        }
        if line == "}" {
            function = None;
        }
    }
    readers
}

fn gated(rule: &Rule) -> &'static [(&'static str, rules::Case)] {
    match rule.gate {
        Gate::Word(functions) => functions,
        Gate::Value(_) | Gate::Stays(_) => &[],
    }
}

#[test]
fn each_reader_of_the_word_has_a_row() {
    let gates = RULES.iter().flat_map(gated);
    let named = gates.clone().map(|(function, _)| (*function).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(readers(), named);
    for (function, case) in gates {
        let word = |paper_rules| case(&AccelerateConfig { paper_rules, ..AccelerateConfig::DEFAULT });
        assert_ne!(word(0), word(1), "{function} decides the same");
    }
}

#[test]
fn both_worlds_ask_each_function_that_reads_the_word() {
    let (policy, worlds) = (text_below("policy"), ["bpf", "crates/model/src"].map(text_below));
    for (function, _) in RULES.iter().flat_map(gated) {
        let call = format!("{function}(");
        let is_inner = policy.matches(&call).count() > 1;
        assert!(is_inner || worlds.iter().all(|world| world.contains(&call)), "{function}");
    }
}

/// `grace_max` of a configuration is `grace` of policies.
fn key_of(field: &str) -> &str {
    ["_max", "_ns", "_percent"].iter().fold(field, |key, unit| key.strip_suffix(unit).unwrap_or(key))
}

#[test]
fn each_value_that_the_paper_has_otherwise_has_a_row() {
    let fields = |config: String| config.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>();
    let differing = |ours: String, papers: String| {
        let pairs = fields(ours).into_iter().zip(fields(papers)).filter(|(our, paper)| our != paper);
        pairs.map(|(our, _)| our.split(':').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let mut names =
        differing(format!("{:#?}", AccelerateConfig::DEFAULT), format!("{:#?}", AccelerateConfig::PAPER));
    names.extend(differing(
        format!("{:#?}", PoolSizeConfig::DEFAULT),
        format!("{:#?}", PoolSizeConfig::PAPER),
    ));
    names.retain(|name| name != "paper_rules");
    assert_eq!(names.len(), 6, "{names:?}");
    for name in names {
        assert!(keys().any(|key| key == key_of(&name)), "{name}");
    }
}

#[test]
fn the_page_has_the_same_rows_in_the_same_order() {
    let page = fs::read_to_string(root().join("docs/explanation/differences.md")).unwrap();
    let rows = RULES.iter().map(|rule| {
        let name = rule.name;
        match rule.gate {
            Gate::Word(functions) => {
                let functions = functions.iter().map(|(function, _)| format!("`{function}`"));
                format!("| {name} | {} |", functions.collect::<Vec<_>>().join(", "))
            }
            Gate::Value(key) => format!("| {name} | `{key}` |"),
            Gate::Stays(why) => format!("| {name} | stays: {why} |"),
        }
    });
    let expected = rows.collect::<Vec<_>>().join("\n");
    assert!(page.contains(&expected), "the page's table must be:\n{expected}");
}
