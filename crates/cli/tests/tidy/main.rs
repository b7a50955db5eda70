//! Mechanical checks of style: lengths of files, functions, comments and test names, and names that nothing
//! fills or reads.

mod comments;
mod names;
mod shape;
mod tree;

use tree::{Source, sources};

/// Panics with all offences of the tree's sources, each with its place.
fn assert_none(offences: impl Fn(&Source) -> Vec<String>) {
    let found: Vec<String> = sources().iter().flat_map(offences).collect();
    assert!(found.is_empty(), "{} offences:\n{}", found.len(), found.join("\n"));
}

#[test]
fn no_source_file_has_more_than_600_lines() {
    assert_none(shape::long_file);
}

#[test]
fn no_function_has_more_than_70_lines() {
    assert_none(shape::long_functions);
}

#[test]
fn comments_end_before_column_110() {
    assert_none(comments::wide);
}

#[test]
fn sentences_of_comments_have_at_most_25_words() {
    assert_none(comments::long_sentences);
}

#[test]
fn test_names_have_at_most_ten_words() {
    let found: Vec<String> = sources().iter().flat_map(names::long_test_names).collect();
    let allowed = names::LONG_TEST_NAMES_MAX;
    assert!(found.len() <= allowed, "{} of {allowed}:\n{}", found.len(), found.join("\n"));
}

#[test]
fn every_key_of_a_scenario_is_read_and_used() {
    assert_eq!(names::keys_that_nothing_reads(), Vec::<String>::new());
    assert_eq!(names::settings_that_nothing_uses(), Vec::<String>::new());
}

#[test]
fn everything_that_the_simulator_reports_is_filled() {
    assert_eq!(names::simulated_results_that_nothing_fills(), Vec::<String>::new());
}

#[test]
fn every_field_shared_with_the_daemon_is_used_by_programs() {
    assert_eq!(names::border_fields_that_no_program_uses(), Vec::<String>::new());
}
