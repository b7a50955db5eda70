//! The `microslice` binary: subcommands only. Each lives in `commands/`, parses its flags and calls one
//! crate.

// Printing macros panic where nobody reads; `output` has what is used in their place.
#![deny(clippy::print_stdout, clippy::print_stderr)]
#![cfg_attr(not(feature = "host"), allow(dead_code, reason = "parts that only commands with a host use"))]

mod commands;
mod failure;
mod interrupt;
mod output;
mod printer;
mod progress;
#[cfg(feature = "host")]
mod top;

use clap::{Parser, Subcommand};
use failure::Failure;
use std::io::Write;
use std::process::ExitCode;

/// Runs critical guest-kernel code at once: micro-sliced cores for KVM hosts, without changing guests.
#[derive(Parser)]
#[command(name = "microslice", version, disable_version_flag = true, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// Print version
    #[arg(short = 'V', long = "version", action = clap::ArgAction::Version, global = false)]
    version: (),
}

#[derive(Subcommand)]
enum Command {
    Run(Box<commands::run::Run>),
    Check(commands::check::Check),
    Observe(commands::observe::Observe),
    Top(commands::top::Top),
    Trial(Box<commands::trial::Trial>),
    BoostLatency(commands::boost_latency::BoostLatency),
    Replay(commands::replay::Replay),
    Demo(commands::demo::Demo),
    Simulate(commands::simulate::Simulate),
    Compare(commands::compare::Compare),
    Reproduce(commands::reproduce::Reproduce),
    Regret(commands::regret::Regret),
    Sweep(commands::sweep::Sweep),
    /// Guest kernels without configuration: symbols, critical classes, slides
    Symbols(commands::symbols::Symbols),
    /// The emulated host: its kernels, and commands run in it by hand
    Testbed(commands::testbed::Testbed),
    Completions(commands::completions::Completions),
    #[command(hide = true)]
    Manual(commands::manual::Manual),
}

fn main() -> ExitCode {
    interrupt::survive_file_size_limit();
    match parse().and_then(|cli| dispatch(cli.command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// The command line; help and version end the program, anything wrong is one line like every other error.
fn parse() -> Result<Cli, Failure> {
    use clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    Cli::try_parse().map_err(|error| {
        if error.kind() == DisplayHelpOnMissingArgumentOrSubcommand {
            error.exit();
        }
        if error.use_stderr() {
            return Failure::bad_input(format_args!("{} (see --help)", cause_of(&error.to_string())));
        }
        // clap's own exit doesn't say that nothing could be printed.
        match output::printed(error.print().and_then(|()| std::io::stdout().flush())) {
            Ok(()) => std::process::exit(0),
            Err(failure) => failure,
        }
    })
}

/// What is wrong, in one line, without the tips and the usage behind it. A value may have empty lines of its
/// own.
fn cause_of(text: &str) -> String {
    let ends =
        ["\n\n  tip:", "\n\nUsage:", "\n\nFor more information"].iter().filter_map(|end| text.rfind(end));
    let cause = &text[..ends.min().unwrap_or(text.len())];
    cause.trim_start_matches("error: ").split_whitespace().collect::<Vec<_>>().join(" ")
}

fn dispatch(command: Command) -> Result<(), Failure> {
    match command {
        Command::Run(args) => commands::run::run(*args),
        Command::Check(args) => commands::check::run(args),
        Command::Observe(args) => commands::observe::run(args),
        Command::Top(args) => commands::top::run(args),
        Command::Trial(args) => commands::trial::run(*args),
        Command::BoostLatency(args) => commands::boost_latency::run(args),
        Command::Replay(args) => commands::replay::run(args),
        Command::Demo(args) => commands::demo::run(args),
        Command::Simulate(args) => commands::simulate::run(args),
        Command::Compare(args) => commands::compare::run(args),
        Command::Reproduce(args) => commands::reproduce::run(args),
        Command::Regret(args) => commands::regret::run(args),
        Command::Sweep(args) => commands::sweep::run(args),
        Command::Symbols(args) => commands::symbols::run(args),
        Command::Testbed(args) => commands::testbed::run(args),
        Command::Completions(args) => commands::completions::run(args),
        Command::Manual(args) => commands::manual::run(args),
    }
}
