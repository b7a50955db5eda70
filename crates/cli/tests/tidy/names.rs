//! Names that are defined and then forgotten: keys, settings, results, and fields of the border of C and
//! Rust. And the words of functions' names.

use crate::comments::OLD_WORDS;
use crate::tree::{Language, Source, sources};
use std::collections::{BTreeMap, BTreeSet};

const BORDER: &str = "bpf/core/intf.h";

fn without_comments(code: &str) -> String {
    let lines = code.lines().map(|line| {
        let text = line.trim_start();
        let is_comment = text.starts_with("//") || text.starts_with("/*") || text.starts_with('*');
        if is_comment { "" } else { line.split("/*").next().unwrap_or(line) }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Functions of Rust, tests first of all, whose names stand in for a role that has a noun.
pub fn of_old_words(source: &Source) -> Vec<String> {
    if source.language != Language::Rust {
        return Vec::new();
    }
    let name = |line: &str| {
        let (_, declared) = line.split_once("fn ").filter(|(before, _)| !before.contains(['/', '"']))?;
        declared.split(['(', '<']).next().map(str::to_owned)
    };
    let is_old = |name: &String| name.split('_').any(|word| OLD_WORDS.contains(&word));
    let lines = source.text.lines().enumerate();
    lines.filter_map(|(at, line)| name(line).filter(is_old).map(|name| source.at(at + 1, name))).collect()
}

/// All words of the code of these files, tests aside.
fn words_of(is_wanted: impl Fn(&Source) -> bool) -> impl Iterator<Item = String> {
    let wanted = sources().iter().filter(move |source| is_wanted(source) && !source.is_test());
    wanted.flat_map(|source| {
        let code = without_comments(source.code());
        let words = code.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        words.map(str::to_owned).collect::<Vec<_>>()
    })
}

/// Names of the public fields that these files define.
fn rust_fields(is_wanted: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let wanted = sources().iter().filter(|source| is_wanted(&source.path) && !source.is_test());
    let fields = wanted.flat_map(|source| source.code().lines()).filter_map(|line| {
        let (name, _) = line.trim_start().strip_prefix("pub ")?.split_once(": ")?;
        name.chars().all(|letter| letter.is_alphanumeric() || letter == '_').then(|| name.to_owned())
    });
    let fields: BTreeSet<String> = fields.collect();
    assert!(!fields.is_empty(), "the files have moved");
    fields
}

/// Whether a file is a source of the simulator.
fn is_simulator(path: &str) -> bool {
    ["model", "engine", "experiments", "studies"]
        .iter()
        .any(|name| path.starts_with(&format!("crates/{name}/src/")))
}

fn is_configuration(path: &str) -> bool {
    path == "crates/model/src/config.rs" || path.starts_with("crates/model/src/config/")
}

/// Keys that a reader accepts, but doesn't ask its table for.
pub fn keys_that_nothing_reads() -> Vec<String> {
    let readers = ["crates/experiments/src/scenario/", "crates/experiments/src/sweep/"];
    let mut listed = BTreeSet::new();
    let mut readers_code = String::new();
    for source in
        sources().iter().filter(|source| readers.iter().any(|folder| source.path.starts_with(folder)))
    {
        let code = if source.is_test() { continue } else { without_comments(source.code()) };
        for list in code.split("KEYS: [&str; ").skip(1).filter_map(|list| list.split(';').next()) {
            listed.extend(list.split('"').skip(1).step_by(2).map(str::to_owned));
        }
        readers_code.push_str(&code);
    }
    assert!(listed.len() > 50, "{} keys are not all", listed.len());
    let times = |key: &String| readers_code.matches(&format!("\"{key}\"")).count();
    listed.into_iter().filter(|key| times(key) < 2).collect()
}

/// Fields of the simulator's configuration that only its readers know.
pub fn settings_that_nothing_uses() -> Vec<String> {
    let used = words_of(|source| {
        let path = &source.path;
        is_simulator(path) && !path.starts_with("crates/experiments/src/scenario/") && !is_configuration(path)
    })
    .collect();
    rust_fields(is_configuration).difference(&used).cloned().collect()
}

/// Fields of a run's report that are named once: where they are defined.
pub fn simulated_results_that_nothing_fills() -> Vec<String> {
    let fields =
        rust_fields(|path| ["crates/engine/src/report.rs", "crates/model/src/counters.rs"].contains(&path));
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    for word in words_of(|source| is_simulator(&source.path)) {
        *times.entry(word).or_default() += 1;
    }
    fields.into_iter().filter(|field| times.get(field).is_none_or(|times| *times < 2)).collect()
}

/// Fields that BPF programs and the daemon share, but no BPF program fills or reads.
pub fn border_fields_that_no_program_uses() -> Vec<String> {
    let border = sources().iter().find(|source| source.path == BORDER).expect("the border's header");
    let code = without_comments(&border.text);
    let fields = code.lines().filter_map(|line| {
        let declared = line.trim_end().strip_prefix('\t')?.strip_suffix(';')?.split('[').next()?.trim_end();
        declared.rsplit([' ', '*', '\t']).next().filter(|name| !name.starts_with('}')).map(str::to_owned)
    });
    let fields: BTreeSet<String> = fields.collect();
    assert!(fields.len() > 50, "{} fields are not all", fields.len());
    let used = words_of(|source| source.path.starts_with("bpf/") && source.path != BORDER).collect();
    fields.difference(&used).cloned().collect()
}

#[test]
fn a_name_of_the_old_vocabulary_is_found_at_its_place() {
    let text = "// fn who()\n    fn of_who<T>(who: T) {}\nfn of_a_waiter() {}\n".to_owned();
    let source = Source { path: "a.rs".into(), language: Language::Rust, text };
    assert_eq!(of_old_words(&source), ["a.rs:2: of_who"]);
}
