//! Each promise of the specification names what holds it, and that is there.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The last cell of each promise's row, with the promise.
fn promises(text: &str) -> Vec<(&str, &str)> {
    text.lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.rsplit_once(" | "))
        .filter(|(_, cell)| *cell != "held by")
        .collect()
}

/// What stands between backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Whether `name` is a test of that file: by itself, or drawn by proptest.
fn is_test(source: &str, name: &str) -> bool {
    let Some((before, _)) = source.split_once(&format!("fn {name}(")) else { return false };
    let attributes = before.rsplit_once('\n').map_or("", |(lines, _)| lines).lines().rev();
    attributes.take_while(|line| line.trim_start().starts_with("#[")).any(|line| line.trim() == "#[test]")
}

/// What doesn't hold of one row.
fn missing(cell: &str, is_command: impl Fn(&[&str]) -> bool) -> Result<(), String> {
    let mut source: Option<String> = None;
    let mut holds = 0;
    for token in quoted(cell) {
        let words: Vec<&str> = token.split(' ').collect();
        match words[..] {
            ["microslice", ..] if is_command(&words[1..]) => holds += 1,
            ["microslice", ..] => return Err(format!("no command {token}")),
            [path] if path.ends_with(".rs") => {
                let text = std::fs::read_to_string(repository().join(path));
                source = Some(text.map_err(|error| format!("{path}: {error}"))?);
            }
            [name] if source.as_deref().is_some_and(|source| is_test(source, name)) => holds += 1,
            _ => return Err(format!("no test {token}")),
        }
    }
    if holds == 0 { Err("nothing holds it".into()) } else { Ok(()) }
}

/// Whether the command has that help, and its help each of these flags.
fn has_command(words: &[&str]) -> bool {
    let flags = words.iter().position(|word| word.starts_with('-')).unwrap_or(words.len());
    let help = Command::new(env!("CARGO_BIN_EXE_microslice")).args(&words[..flags]).arg("--help").output();
    let help = help.expect("microslice runs");
    let text = String::from_utf8_lossy(&help.stdout);
    help.status.success()
        && words[flags..].iter().filter(|word| word.starts_with('-')).all(|flag| text.contains(flag))
}

#[test]
fn each_promise_is_held_by_a_test_or_a_command_that_exists() {
    let text = std::fs::read_to_string(repository().join("docs/reference/specification.md")).expect("read");
    let promises = promises(&text);
    assert!(promises.len() > 30, "{} promises found", promises.len());
    let lost: Vec<String> = promises
        .iter()
        .filter_map(|(promise, cell)| {
            missing(cell, has_command).err().map(|cause| format!("{promise} {cause}"))
        })
        .collect();
    assert!(lost.is_empty(), "{}", lost.join("\n"));
}

#[test]
fn a_promise_without_a_test_or_by_a_test_that_is_not_there_is_found() {
    let command = |words: &[&str]| words == ["run"];
    let this = "`crates/cli/tests/commands/specification.rs`";
    let itself = "each_promise_is_held_by_a_test_or_a_command_that_exists";
    assert_eq!(missing(&format!("{this}: `{itself}`; `microslice run`"), command), Ok(()));
    for (cell, cause) in [
        ("our word".to_owned(), "nothing holds it"),
        (format!("`{itself}`"), "no test each_promise"),
        (format!("{this}: `is_test`"), "no test is_test"),
        (format!("{this}: `gone`"), "no test gone"),
        ("`crates/cli/tests/gone.rs`".to_owned(), "crates/cli/tests/gone.rs: No such file"),
        ("`microslice fly`".to_owned(), "no command microslice fly"),
    ] {
        let found = missing(&cell, command).expect_err(cause);
        assert!(found.starts_with(cause), "{cell}: {found}");
    }
}
