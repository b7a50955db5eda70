//! Checks of names: keys, settings, results and fields shared by C and Rust that are defined but not used,
//! and test functions with long names.

use crate::tree::{Language, Source, sources};
use std::collections::{BTreeMap, BTreeSet};

const BORDER: &str = "bpf/core/intf.h";
const TEST_NAME_WORDS_MAX: usize = 10;
/// The number of test functions that still have longer names. It only falls.
pub const LONG_TEST_NAMES_MAX: usize = 654;

fn without_comments(code: &str) -> String {
    let lines = code.lines().map(|line| {
        let text = line.trim_start();
        let is_comment = text.starts_with("//") || text.starts_with("/*") || text.starts_with('*');
        if is_comment { "" } else { line.split("/*").next().unwrap_or(line) }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the test functions whose names are too long.
pub fn long_test_names(source: &Source) -> Vec<String> {
    if source.language != Language::Rust {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut is_test = false;
    for (at, line) in source.text.lines().enumerate() {
        let line = line.trim_start();
        let name = line.strip_prefix("fn ").and_then(|declared| declared.split(['(', '<']).next());
        if line.starts_with("#[test]") {
            is_test = true;
        } else if let Some(name) = name.filter(|_| std::mem::take(&mut is_test)) {
            let words = name.split('_').count();
            let is_long = words > TEST_NAME_WORDS_MAX;
            found.extend(is_long.then(|| source.at(at + 1, format!("{words} words: {name}"))));
        }
    }
    found
}

/// Returns all words in the code of these files, without tests.
fn words_of(is_wanted: impl Fn(&Source) -> bool) -> impl Iterator<Item = String> {
    let wanted = sources().iter().filter(move |source| is_wanted(source) && !source.is_test());
    wanted.flat_map(|source| {
        let code = without_comments(source.code());
        let words = code.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        words.map(str::to_owned).collect::<Vec<_>>()
    })
}

/// Returns the names of the public fields that these files define.
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

/// Returns keys that a reader accepts but doesn't look up.
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

/// Returns fields of the simulator's configuration that only its readers use.
pub fn settings_that_nothing_uses() -> Vec<String> {
    let used = words_of(|source| {
        let path = &source.path;
        is_simulator(path) && !path.starts_with("crates/experiments/src/scenario/") && !is_configuration(path)
    })
    .collect();
    rust_fields(is_configuration).difference(&used).cloned().collect()
}

/// Returns fields of a run's report that are named only in their definition.
pub fn simulated_results_that_nothing_fills() -> Vec<String> {
    let fields =
        rust_fields(|path| ["crates/engine/src/report.rs", "crates/model/src/counters.rs"].contains(&path));
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    for word in words_of(|source| is_simulator(&source.path)) {
        *times.entry(word).or_default() += 1;
    }
    fields.into_iter().filter(|field| times.get(field).is_none_or(|times| *times < 2)).collect()
}

/// Returns fields shared with the daemon that no BPF program fills or reads.
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
fn a_test_name_of_eleven_words_is_too_long() {
    let names = ["a_b_c_d_e_f_g_h_i_j", "a_b_c_d_e_f_g_h_i_j_k"];
    let functions = names.map(|name| format!("    #[test]\n    #[ignore]\n    fn {name}() {{}}\n"));
    let text = functions.concat() + "fn a_b_c_d_e_f_g_h_i_j_k_l() {}\n";
    let source = Source { path: "a.rs".into(), language: Language::Rust, text };
    assert_eq!(long_test_names(&source), ["a.rs:6: 11 words: a_b_c_d_e_f_g_h_i_j_k"]);
}
