//! `microslice testbed`: the emulated host, by hand.

use crate::failure::Failure;
use clap::{Args, Subcommand};
use microslice_testbed::cache::Cache;
use microslice_testbed::kernels::{self, Kernel, Rule};
use microslice_testbed::say;

#[derive(Args)]
pub struct Testbed {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Kernels(Kernels),
}

/// Fetch the stock Debian kernels that testbed, demo and tests run (a second run touches no network)
#[derive(Args)]
#[command(after_help = "Examples:
  microslice testbed kernels                   fetch what tests and demo need
  microslice testbed kernels 6.18 6.12-cloud   only these series, whatever their BTF
  microslice testbed kernels --json            where they are, for scripts")]
struct Kernels {
    /// Series to fetch, as 6.18 or 6.12-cloud; all that tests and demo use if none is named
    series: Vec<String>,
    /// Print one JSON object per kernel: rule, release, image, modules
    #[arg(long)]
    json: bool,
}

pub fn run(args: Testbed) -> Result<(), Failure> {
    match args.command {
        Command::Kernels(args) => fetch_kernels(&args),
    }
}

fn fetch_kernels(args: &Kernels) -> Result<(), Failure> {
    let rules = match args.series.as_slice() {
        [] => kernels::all_rules(),
        named => named
            .iter()
            .map(|name| Rule::guest(name))
            .collect::<Result<_, _>>()
            .map_err(Failure::bad_input)?,
    };
    let cache = Cache::locate().map_err(Failure::broken)?;
    for rule in rules {
        match kernels::obtain(&cache, &rule) {
            Ok(kernel) => print_kernel(&rule, &kernel, args.json),
            // The archive drops kernels as it likes: the others are still worth having, and tests that miss one say so.
            Err(error @ microslice_testbed::Error::Kernel { .. }) if args.series.is_empty() => say(&error),
            Err(error) => return Err(Failure::broken(error)),
        }
    }
    Ok(())
}

fn print_kernel(rule: &Rule, kernel: &Kernel, json: bool) {
    if json {
        let Kernel { release, image, modules } = kernel;
        println!(
            "{}",
            serde_json::json!({"rule": rule.to_string(), "release": release, "image": image, "modules": modules})
        );
    } else {
        println!("{:<28} {:<30} {}", rule.to_string(), kernel.release, kernel.image.display());
    }
}
