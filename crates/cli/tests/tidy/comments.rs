//! Checks of comments: their width, and the length of their sentences.

use crate::tree::{Language, Source};

const COLUMNS_MAX: usize = 110;
const TAB_COLUMNS: usize = 8;
const SENTENCE_WORDS_MAX: usize = 25;

/// A line that has a comment.
struct Line<'a> {
    number: usize,
    text: &'a str,
    is_beside_code: bool,
    whole: &'a str,
}

/// Returns where the comment of a line begins. Markers inside strings don't count.
fn comment_start(line: &str, markers: &[&str]) -> Option<usize> {
    let starts = markers.iter().flat_map(|marker| line.match_indices(marker)).map(|(at, _)| at);
    let is_code = |at: &usize| {
        let before = &line[..*at];
        let quotes = before.matches('"').count() - before.matches("\\\"").count();
        quotes.is_multiple_of(2) && (before.is_empty() || before.ends_with([' ', '\t']))
    };
    starts.filter(is_code).min()
}

/// Returns the text of a comment without its markers.
fn bare(comment: &str) -> &str {
    let text = comment.trim().trim_start_matches(['/', '*', '!', '#']);
    text.trim_end_matches("*/").trim()
}

fn lines(source: &Source) -> Vec<Line<'_>> {
    let markers: &[&str] = if source.language == Language::Shell { &["#"] } else { &["//", "/*"] };
    let mut in_block = false;
    let mut found = Vec::new();
    for (at, whole) in source.text.lines().enumerate() {
        let start = if in_block { Some(0) } else { comment_start(whole, markers) };
        let Some(start) = start else { continue };
        let comment = &whole[start..];
        if !comment.trim_start().starts_with("//") {
            in_block = source.language == Language::C
                && (in_block || comment.starts_with("/*"))
                && !comment.contains("*/");
        }
        let is_beside_code = !whole[..start].trim().is_empty();
        found.push(Line { number: at + 1, text: bare(comment), is_beside_code, whole });
    }
    found
}

fn columns(line: &str) -> usize {
    let next_stop = |column: usize| (column / TAB_COLUMNS + 1) * TAB_COLUMNS;
    line.chars().fold(0, |column, letter| if letter == '\t' { next_stop(column) } else { column + 1 })
}

pub fn wide(source: &Source) -> Vec<String> {
    let wide = lines(source).into_iter().filter(|line| columns(line.whole) > COLUMNS_MAX);
    wide.map(|line| source.at(line.number, format!("{} columns", columns(line.whole)))).collect()
}

/// True for a row of a table or a formula, which has aligned columns. A label ("Races.   ") isn't a row.
fn is_row(text: &str) -> bool {
    let behind_label = text.split_once(".  ").map_or(text, |(_, text)| text.trim_start());
    behind_label.starts_with('|')
        || behind_label.contains("  ")
        || behind_label.contains(" -> ")
        || behind_label.contains(" = ")
}

/// Returns the paragraphs of comments, each with its first line. A paragraph ends at code, an empty line, a
/// list item or a row of a table.
fn paragraphs(source: &Source) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut next = 0;
    for line in lines(source).into_iter().filter(|line| !is_row(line.text)) {
        let goes_on = line.number == next && !line.is_beside_code;
        let is_item = line.text.is_empty() || line.text.starts_with("- ");
        match found.last_mut() {
            Some((_, text)) if goes_on && !is_item => {
                text.push(' ');
                text.push_str(line.text);
            }
            _ => found.push((line.number, line.text.to_owned())),
        }
        // A comment beside code is complete.
        next = if line.is_beside_code { 0 } else { line.number + 1 };
    }
    found
}

/// Splits a text into sentences. They end with a full stop, a question mark, a colon or a semicolon before a
/// space.
fn sentences(text: &str) -> impl Iterator<Item = &str> {
    let ends = |text: &&str| text.ends_with(['.', '?', ':', ';']);
    let mut words = text.split_inclusive(' ').peekable();
    let mut from = 0;
    std::iter::from_fn(move || {
        let mut to = from;
        words.peek()?;
        for word in words.by_ref() {
            to += word.len();
            if ends(&word.trim_end()) {
                break;
            }
        }
        let sentence = &text[from..to];
        from = to;
        Some(sentence)
    })
}

pub fn long_sentences(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    for (line, text) in paragraphs(source) {
        for sentence in sentences(&text) {
            let count =
                sentence.split_whitespace().filter(|word| word.chars().any(char::is_alphanumeric)).count();
            if count > SENTENCE_WORDS_MAX {
                found.push(source.at(line, format!("{count} words: {sentence}")));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_c(text: &str) -> Source {
        Source { path: "bpf/core/x.h".into(), language: Language::C, text: text.into() }
    }

    #[test]
    fn comments_are_told_from_strings_and_addresses() {
        assert_eq!(comment_start("a = 1; // b", &["//"]), Some(7));
        assert_eq!(comment_start("a = \"x // y\";", &["//"]), None);
        assert_eq!(comment_start("see https://x", &["//"]), None);
    }

    #[test]
    fn a_block_goes_on_until_it_is_closed() {
        let source = of_c("/* It\n * waits. */\nint it;\n");
        assert_eq!(lines(&source).len(), 2);
        assert_eq!(paragraphs(&source), [(1, "It waits.".to_owned())]);
    }

    #[test]
    fn tabs_count_as_eight_columns() {
        assert_eq!(wide(&of_c(&format!("\t// {}\n", "x".repeat(98)))).len(), 0);
        assert_eq!(wide(&of_c(&format!("\t// {}\n", "x".repeat(100)))).len(), 1);
    }

    #[test]
    fn a_comment_beside_code_ends_on_its_line() {
        let source = of_c("\tu32 a; /* one */\n\t/* Two.\n\t * Three? Four */\n");
        assert_eq!(paragraphs(&source), [(1, "one".to_owned()), (2, "Two. Three? Four".to_owned())]);
        assert_eq!(sentences("Two. Three? Four").collect::<Vec<_>>(), ["Two. ", "Three? ", "Four"]);
    }

    #[test]
    fn a_sentence_of_26_words_is_too_long() {
        let of_words = |count: usize| of_c(&format!("// {}.\n", vec!["a"; count].join(" ")));
        assert_eq!(long_sentences(&of_words(25)).len(), 0);
        assert_eq!(long_sentences(&of_words(26)).len(), 1);
    }
}
