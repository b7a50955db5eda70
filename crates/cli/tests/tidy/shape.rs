//! Checks of the lengths of files and functions. In formatted code the closing brace of a function has the
//! indent of its first line.

use crate::tree::{Language, Source};

const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;

pub fn long_file(source: &Source) -> Vec<String> {
    let lines = source.text.lines().count();
    let is_long = lines > FILE_LINES_MAX;
    is_long.then(|| source.at(1, format!("{lines} lines"))).into_iter().collect()
}

pub fn long_functions(source: &Source) -> Vec<String> {
    let lines: Vec<&str> = source.text.lines().collect();
    let length = |at: usize| match source.language {
        Language::Rust => rust_function(&lines[at..]),
        Language::C => c_function(&lines[at..]),
        Language::Shell => None,
    };
    let long = |at| length(at).filter(|&lines| lines > FUNCTION_LINES_MAX).map(|lines| (at, lines));
    (0..lines.len())
        .filter_map(long)
        .map(|(at, lines)| source.at(at + 1, format!("a function of {lines} lines")))
        .collect()
}

/// Returns the length of the function that begins on the first of these lines, if one does.
fn rust_function(lines: &[&str]) -> Option<usize> {
    let code = lines[0].trim_start();
    let indent = &lines[0][..lines[0].len() - code.len()];
    let mut words = code.split(' ').skip_while(|word| {
        word.starts_with("pub")
            || word.starts_with("in ")
            || ["const", "async", "unsafe", "extern", "\"C\""].contains(word)
    });
    if words.next() != Some("fn") {
        return None;
    }
    let signature = lines.iter().position(|line| line.ends_with(['{', ';', '}']))?;
    if !lines[signature].ends_with('{') {
        return None;
    }
    let end = lines.iter().position(|line| line.strip_prefix(indent) == Some("}"))?;
    Some(end + 1)
}

/// Returns the length of the C function that begins on the first of these lines, if one does. Its opening
/// brace is alone in the first column, below the signature.
fn c_function(lines: &[&str]) -> Option<usize> {
    let is_first = lines[0].starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    let open = lines.iter().position(|line| *line == "{" || line.is_empty() || line.ends_with([';', '}']))?;
    if !is_first || lines[open] != "{" {
        return None;
    }
    lines.iter().position(|line| *line == "}").map(|end| end + 1)
}

#[test]
fn functions_extend_from_their_names_to_their_braces() {
    let rust = [
        "    pub(crate) fn f(",
        "        a: u32,",
        "    ) {",
        "        if a > 0 {",
        "        }",
        "    }",
        "}",
    ];
    assert_eq!(rust_function(&rust), Some(6));
    assert_eq!(rust_function(&rust[1..]), None);
    assert_eq!(rust_function(&["fn f();", "}"]), None);
    let c = ["static int f(int a,", "\t     int b)", "{", "\tif (a) {", "\t}", "}"];
    assert_eq!(c_function(&c), Some(6));
    assert_eq!(c_function(&["int x;", "static int f(void)", "{", "}"]), None);
}
