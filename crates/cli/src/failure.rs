//! How a command fails: one line on standard error and an exit code that scripts can rely on.

use crate::output;
use std::borrow::Cow;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

/// Why a command stopped, as its user reads it.
///
/// The message is one line that names the file, the place in it and the cause, and says what to do
/// where that isn't obvious.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// What shells give for Ctrl-C.
    pub const INTERRUPTED: u8 = 130;

    /// The input is at fault (a file, a flag, a scenario, a host that can't do it): exit code 2.
    pub fn bad_input(cause: impl std::fmt::Display) -> Self {
        Self { code: 2, message: one_line(cause) }
    }

    /// Something broke while the work was under way: exit code 1.
    pub fn broken(cause: impl std::fmt::Display) -> Self {
        Self { code: 1, message: one_line(cause) }
    }

    /// The user stopped it (Ctrl-C).
    pub fn interrupted() -> Self {
        Self { code: Self::INTERRUPTED, message: "interrupted".to_owned() }
    }

    /// The user stopped it, and may want to know what becomes of what was done.
    pub fn interrupted_with(what_now: impl std::fmt::Display) -> Self {
        Self { code: Self::INTERRUPTED, message: format!("interrupted: {}", one_line(what_now)) }
    }

    /// The same, as the fault of what the user gave: an output that can't be written, too.
    pub fn into_bad_input(self) -> Self {
        Self { code: 2, ..self }
    }

    /// Prints the line and returns the exit code.
    pub fn report(&self) -> ExitCode {
        // The worker and the waiter for its end may both find that it was stopped.
        static INTERRUPTED_SAID: AtomicBool = AtomicBool::new(false);
        if self.code != Self::INTERRUPTED || !INTERRUPTED_SAID.swap(true, Ordering::Relaxed) {
            output::say(format_args!("microslice: {self}"));
        }
        ExitCode::from(self.code)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.message)
    }
}

/// A cause that spans lines (a kernel log, a parser's drawing) is folded: scripts read one line per error.
fn one_line(cause: impl std::fmt::Display) -> String {
    let cause = cause.to_string();
    let lines = cause.split('\n').map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>();
    lines.join("; ").split(' ').map(shortened).collect::<Vec<_>>().join(" ")
}

/// Longer than any path that a system takes as a rule, and than any name.
const WORD_CHARS_MAX: usize = 1_000;
const ENDS_CHARS: usize = 60;

/// Nobody reads a word of thousands of characters, of which a terminal or a journal has a page then. Its ends
/// tell whose it is, and the place behind it.
fn shortened(word: &str) -> Cow<'_, str> {
    let chars = word.chars().count();
    if chars <= WORD_CHARS_MAX {
        return word.into();
    }
    let begin: String = word.chars().take(ENDS_CHARS).collect();
    let end: String = word.chars().skip(chars - ENDS_CHARS).collect();
    format!("{begin}…{end}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_of_several_lines_is_reported_as_one() {
        assert_eq!(one_line("first\n   second\n\n third"), "first; second; third");
    }

    #[test]
    fn a_name_of_thousands_of_characters_is_shortened() {
        let said = one_line(format!("no scheduler {}: one of two", "é".repeat(10_000)));
        assert_eq!(said, format!("no scheduler {0}…{1}: one of two", "é".repeat(60), "é".repeat(59)));
        let path = "/folder".repeat(100);
        assert_eq!(one_line(&path), path);
    }
}
