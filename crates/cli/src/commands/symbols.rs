//! `microslice symbols`: guest kernels without configuration. One file per subcommand in `symbols/`.

mod addresses;
mod check;
mod classify;
mod identify;
mod import;
mod kernel;
mod list;
mod output;
mod slide;
mod store;

use crate::failure::Failure;
use clap::{Args, Subcommand};

#[derive(Args)]
pub struct Symbols {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    List(list::List),
    Classify(classify::Classify),
    Check(check::Check),
    Slide(slide::Slide),
    Identify(identify::Identify),
    Import(import::Import),
    Store(store::ListStore),
}

pub fn run(symbols: Symbols) -> Result<(), Failure> {
    match symbols.command {
        Command::List(args) => list::run(args),
        Command::Classify(args) => classify::run(args),
        Command::Check(args) => check::run(args),
        Command::Slide(args) => slide::run(args),
        Command::Identify(args) => identify::run(args),
        Command::Import(args) => import::run(args),
        Command::Store(args) => store::run(args),
    }
}
