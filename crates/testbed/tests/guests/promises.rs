//! The promise table (`crates/promises`): the rows that the testbed is said to run are those that behaviours
//! name.

use microslice_promises::{ALL, World};
use std::path::Path;

fn sources(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let of = |path: std::path::PathBuf| match path.is_dir() {
        true => sources(&path),
        false => vec![std::fs::read_to_string(path).expect("a source")],
    };
    entries.flat_map(of).collect()
}

#[test]
fn behaviours_run_the_rows_that_the_testbed_is_said_to_run_and_no_other() {
    let sources = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/behaviours"));
    let words: Vec<&str> = sources
        .iter()
        .flat_map(|text| text.split(|letter: char| !letter.is_alphanumeric() && letter != '_'))
        .collect();
    for (name, row) in ALL {
        // Where it is imported, and where it is run.
        let is_run = words.iter().filter(|word| *word == name).count() >= 2;
        assert_eq!(is_run, matches!(row.testbed, World::Runs { .. }), "{name}: {:?}", row.testbed);
    }
}
