//! `microslice completions`: what a shell needs to complete this program's command lines.

use crate::Cli;
use crate::failure::Failure;
use crate::output;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

/// Completions of this program's command lines, for a shell
#[derive(Args)]
#[command(after_help = "Examples:
  microslice completions bash > /etc/bash_completion.d/microslice
  microslice completions zsh > ~/.zfunc/_microslice
  microslice completions fish > ~/.config/fish/completions/microslice.fish
The Debian package brings those of bash, zsh and fish along.")]
pub struct Completions {
    shell: Shell,
}

pub fn run(args: Completions) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "microslice", &mut script);
    output::print(&String::from_utf8(script).map_err(Failure::broken)?)
}
