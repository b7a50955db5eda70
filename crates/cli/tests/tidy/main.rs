//! What a machine can hold of the house's style: lengths, comments, and names that nothing fills or reads.
//!
//! Where the tree isn't there yet, `ratchet.rs` lists how many offences a folder still has. A listed count
//! may only fall.

mod comments;
mod names;
mod ratchet;
mod shape;
mod tree;

use ratchet::{Offence, check};
use tree::{Source, sources};

fn offences(of: impl Fn(&Source) -> Vec<Offence>) -> Vec<Offence> {
    sources().iter().flat_map(of).collect()
}

#[test]
fn no_source_file_has_more_than_600_lines() {
    check("file_lines", &offences(shape::long_file));
}

#[test]
fn no_function_has_more_than_70_lines() {
    check("function_lines", &offences(shape::long_functions));
}

#[test]
fn comments_end_before_column_110() {
    check("comment_columns", &offences(comments::wide));
}

#[test]
fn comments_have_no_word_of_the_old_vocabulary() {
    check("old_words", &offences(comments::old_words));
}

#[test]
fn sentences_of_comments_have_at_most_25_words() {
    check("sentence_words", &offences(comments::long_sentences));
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
fn every_field_that_programs_and_daemon_share_is_used_by_a_program() {
    assert_eq!(names::border_fields_that_no_program_uses(), Vec::<String>::new());
}
