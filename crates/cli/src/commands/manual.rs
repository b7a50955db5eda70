//! `microslice manual`: a man page for each command, as the package has them.

use crate::Cli;
use crate::failure::Failure;
use clap::{Args, CommandFactory};
use std::path::{Path, PathBuf};

/// Write a man page for each command into a directory
#[derive(Args)]
pub struct Manual {
    directory: PathBuf,
}

pub fn run(args: Manual) -> Result<(), Failure> {
    let failed =
        |path: &Path, cause: std::io::Error| Failure::bad_input(format_args!("{}: {cause}", path.display()));
    std::fs::create_dir_all(&args.directory).map_err(|cause| failed(&args.directory, cause))?;
    let mut cli = Cli::command();
    // Names of pages and of what they refer to come with their parents: microslice-run.
    cli.build();
    write_pages(&cli, &args.directory).map_err(|cause| failed(&args.directory, cause))
}

/// Of a command and of those within it, but for what help doesn't show.
fn write_pages(command: &clap::Command, directory: &Path) -> std::io::Result<()> {
    let page = clap_mangen::Man::new(command.clone());
    let path = directory.join(page.get_filename());
    let mut text = Vec::new();
    page.render(&mut text)?;
    std::fs::write(path, text)?;
    let shown = |command: &&clap::Command| !command.is_hide_set() && command.get_name() != "help";
    command.get_subcommands().filter(shown).try_for_each(|command| write_pages(command, directory))
}
