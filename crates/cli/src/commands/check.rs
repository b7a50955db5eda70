//! `microslice check`: what this host has, and which commands it can have.

use crate::failure::Failure;
use crate::output;
use clap::{Args, ValueEnum};
use microslice_host::machine::survey::{Hint, Mode, Row, Survey};
use microslice_metrics::table::Table;
use serde_json::{Value, json};

/// What this host has, and whether `run` and `observe` can work on it
#[derive(Args)]
#[command(after_help = "Examples:
  microslice check                     everything at once; nothing is loaded or changed
  microslice check --require observe   exit code 2 if `observe` would refuse this host
  microslice check --json

Without --require the exit code is 0, whatever is found. What can't be read is a row that says so.")]
pub struct Check {
    /// Exit with code 2 unless this command can work here
    #[arg(long, value_name = "COMMAND")]
    require: Option<Required>,
    /// What was found as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Required {
    /// Beside the kernel's own scheduler
    #[value(alias = "beside")]
    Run,
    /// A scheduler in its place, `microslice` or `coordinated`: both want the same of a host
    #[value(alias = "coordinated")]
    Microslice,
    Observe,
}

impl Required {
    const fn mode(self) -> Mode {
        match self {
            Self::Run => Mode::Run,
            Self::Microslice => Mode::InPlace,
            Self::Observe => Mode::Observe,
        }
    }
}

pub fn run(args: Check) -> Result<(), Failure> {
    let survey = Survey::look();
    if args.json {
        output::print_json(&to_json(&survey))?;
    } else {
        output::print(&to_text(&survey))?;
    }
    let missing = args.require.map(Required::mode).and_then(|mode| Some((mode, survey.refusal(mode)?)));
    match missing {
        None => Ok(()),
        Some((mode, line)) => Err(Failure::bad_input(format_args!("{}: {line}", mode.command()))),
    }
}

fn to_text(survey: &Survey) -> String {
    let mut found = Table::new(&["host", "found", "refused by"]);
    for row in &survey.rows {
        let modes: Vec<_> = row.refused.iter().map(|(mode, _)| mode.command()).collect();
        found.row([row.what.to_owned(), row.found.clone(), modes.join(", ")]);
    }
    let mut text = format!("{found}\n");
    for note in survey.rows.iter().filter_map(|row| row.note.as_ref()) {
        text.push_str(&format!("{note}\n"));
    }
    if !survey.hints.is_empty() {
        let mut hints = Table::new(&["hint", "given", "by"]);
        for hint in &survey.hints {
            hints.row([hint.name, given(hint), &hint.by]);
        }
        text.push_str(&format!("\n{hints}\n"));
    }
    text.push('\n');
    for mode in Mode::ALL {
        let mut refusals = survey.refusals(mode).peekable();
        if refusals.peek().is_none() {
            text.push_str(&format!("microslice {}: can work here\n", mode.command()));
        }
        for refusal in refusals {
            text.push_str(&format!("microslice {}: {refusal}\n", mode.command()));
        }
    }
    text
}

fn given(hint: &Hint) -> &'static str {
    match hint.given {
        Some(true) => "yes",
        Some(false) => "no",
        None => "unknown",
    }
}

fn to_json(survey: &Survey) -> Value {
    let row = |row: &Row| {
        let refused =
            row.refused.iter().map(|(mode, line)| json!({ "command": mode.command(), "line": line }));
        json!({
            "what": row.what,
            "found": row.found,
            "refused": refused.collect::<Vec<_>>(),
            "note": row.note,
        })
    };
    let hint = |hint: &Hint| (hint.key.to_owned(), json!({ "given": hint.given, "by": hint.by }));
    let command = |mode: Mode| {
        let refusal = survey.refusal(mode);
        json!({ "command": mode.command(), "works": refusal.is_none(), "refusal": refusal })
    };
    json!({
        "commands": Mode::ALL.map(command),
        "host": survey.rows.iter().map(row).collect::<Vec<_>>(),
        "hints": survey.hints.iter().map(hint).collect::<serde_json::Map<_, _>>(),
    })
}
