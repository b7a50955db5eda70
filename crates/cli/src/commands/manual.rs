//! `microslice manual`: a man page for each command, as the package has them.

use crate::Cli;
use crate::failure::Failure;
use clap::{Args, Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Write a man page for each command into a directory
#[derive(Args)]
pub struct Manual {
    directory: PathBuf,
}

/// What exit codes mean, the same for all commands (docs/reference/refusals.md).
const EXIT_CODES: [(&str, &str); 4] = [
    ("0", "Done; for run and observe also: ended by Ctrl-C or SIGTERM."),
    ("1", "Something failed while it ran; the line on standard error has the cause."),
    (
        "2",
        "Refused: a line on standard error names the flag, file, host or kernel. Nothing was loaded or changed.",
    ),
    ("130", "A simulation or a trial that Ctrl-C ended."),
];

const CONFIGURATION: (&str, &str) =
    ("/etc/microslice.toml", "Settings of the host and of single VMs; a flag goes before it.");
const SOCKET: (&str, &str) =
    ("/run/microslice/metrics.sock", "Figures for Prometheus and for microslice-top(1).");
const CATALOGUE: (&str, &str) =
    ("/usr/share/microslice/critical/linux.toml", "Critical functions by class, for --critical FILE.");
const SCENARIOS: (&str, &str) =
    ("/usr/share/microslice/scenarios", "The scenarios that the program has, as files to change.");
const STORE: (&str, &str) = ("/var/lib/microslice/symbols", "Symbols of guest kernels that were imported.");

/// What a command reads or serves, apart from what its flags name.
fn files(command: &str) -> &'static [(&'static str, &'static str)] {
    match command {
        "microslice-run" => &[CONFIGURATION, SOCKET, CATALOGUE, STORE],
        "microslice-observe" | "microslice-trial" => &[CONFIGURATION, SOCKET, CATALOGUE],
        "microslice-top" => &[SOCKET],
        "microslice-simulate" | "microslice-compare" | "microslice-sweep" => &[SCENARIOS],
        _ => &[],
    }
}

/// Commands that are used before or after a command.
fn related(command: &str) -> &'static [&'static str] {
    match command {
        "microslice-run" => &["check", "observe", "top", "trial", "boost-latency", "replay"],
        "microslice-check" => &["observe", "run"],
        "microslice-observe" => &["check", "run", "simulate", "top", "trial"],
        "microslice-top" | "microslice-trial" => &["observe", "run"],
        "microslice-boost-latency" | "microslice-replay" => &["run"],
        "microslice-simulate" => &["compare", "observe", "regret", "sweep"],
        "microslice-compare" | "microslice-sweep" | "microslice-reproduce" => &["regret", "simulate"],
        "microslice-regret" => &["compare", "simulate"],
        _ => &[],
    }
}

pub fn run(args: Manual) -> Result<(), Failure> {
    let failed =
        |path: &Path, cause: std::io::Error| Failure::bad_input(format_args!("{}: {cause}", path.display()));
    std::fs::create_dir_all(&args.directory).map_err(|cause| failed(&args.directory, cause))?;
    let mut cli = Cli::command();
    // Names of pages and of what they refer to come with their parents: microslice-run.
    cli.build();
    write_pages(&cli, None, &args.directory).map_err(|cause| failed(&args.directory, cause))
}

/// Of a command and of those within it, but for what help doesn't show.
fn write_pages(command: &Command, parent: Option<&str>, directory: &Path) -> std::io::Result<()> {
    let page = Man::new(command.clone());
    let path = directory.join(page.get_filename());
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        page.render_options_section(&mut text)?;
    }
    let shown = |command: &&Command| !command.is_hide_set() && command.get_name() != "help";
    if command.get_subcommands().any(|command| shown(&command)) {
        page.render_subcommands_section(&mut text)?;
    }
    write_extra(command, &mut text)?;
    write_entries("EXIT STATUS", &EXIT_CODES, &mut text)?;
    write_entries("FILES", files(name), &mut text)?;
    write_see_also(name, parent, &mut text)?;
    std::fs::write(path, text)?;
    command
        .get_subcommands()
        .filter(shown)
        .try_for_each(|command| write_pages(command, Some(name), directory))
}

/// Writes what stands behind the flags in help: examples, and what follows them.
fn write_extra(command: &Command, out: &mut dyn Write) -> std::io::Result<()> {
    let text = command.get_after_long_help().or_else(|| command.get_after_help());
    let text = text.map(ToString::to_string).unwrap_or_default();
    let (examples, notes) = match text.strip_prefix("Examples:\n") {
        Some(rest) => rest.split_once("\n\n").unwrap_or((rest, "")),
        None => ("", text.as_str()),
    };
    if !examples.is_empty() {
        let mut page = Roff::new();
        page.control("SH", ["EXAMPLES"]).control("nf", []);
        examples.lines().for_each(|line| {
            page.text([roman(line)]);
        });
        page.control("fi", []).to_writer(out)?;
    }
    let mut page = Roff::new();
    for (at, paragraph) in notes.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()).enumerate() {
        page.control(if at == 0 { "SH" } else { "PP" }, if at == 0 { vec!["NOTES"] } else { vec![] });
        page.text([roman(paragraph)]);
    }
    page.to_writer(out)
}

/// Writes a section of names and what each is; nothing, of none.
fn write_entries(title: &str, entries: &[(&str, &str)], out: &mut dyn Write) -> std::io::Result<()> {
    let mut page = Roff::new();
    if !entries.is_empty() {
        page.control("SH", [title]);
    }
    for (name, meaning) in entries {
        page.control("TP", []).text([bold(*name)]).text([roman(*meaning)]);
    }
    page.to_writer(out)
}

fn write_see_also(name: &str, parent: Option<&str>, out: &mut dyn Write) -> std::io::Result<()> {
    let pages = parent.map(str::to_owned).into_iter();
    let pages = pages.chain(related(name).iter().map(|related| format!("microslice-{related}")));
    let mut words: Vec<String> = pages.map(|page| format!("{page}(1)")).collect();
    words.push("/usr/share/doc/microslice/docs/README.md".to_owned());
    let mut page = Roff::new();
    page.control("SH", ["SEE ALSO"]).text([roman(words.join(", "))]);
    page.to_writer(out)
}
