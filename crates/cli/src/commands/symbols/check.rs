//! `microslice symbols check`.

use super::addresses::CatalogueArgs;
use super::kernel::KernelArgs;
use super::output;
use crate::failure::Failure;
use clap::Args;
use microslice_symbols::critical::{Check as Checked, EntryCheck, MatchedSymbol};
use std::io::{self, Write};

/// Explain every row of the paper's Table 3 on a kernel: which symbols it matches, or why none
#[derive(Args)]
#[command(after_help = "Examples:
  microslice symbols check --kernel /boot/vmlinuz-6.1.0-50-amd64
  microslice symbols check --kernel vmlinuz --json | jq '.rows[] | select(.matched == []) | .reason'
  microslice symbols check --kernel vmlinuz --critical my-linux.toml
Ranges are linked addresses, end exclusive. The last line is the coverage. Exit code 0 also when
rows match nothing: a reason stands with each. docs/reference/critical-classes.md says how to add a kernel
generation.")]
pub struct Check {
    #[command(flatten)]
    kernel: KernelArgs,

    #[command(flatten)]
    catalogue: CatalogueArgs,

    /// One JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: Check) -> Result<(), Failure> {
    let catalogue = args.catalogue.read()?;
    let source = args.kernel.open()?;
    let checked = catalogue.check(&source.kernel.symbols);
    if args.json {
        let value = serde_json::to_value(&checked).map_err(Failure::broken)?;
        return output::json(&value);
    }
    output::to_stdout(|out| write_text(out, &checked))
}

fn write_text(out: &mut impl Write, checked: &Checked) -> io::Result<()> {
    writeln!(
        out,
        "kernel {}, build ID {}, {} symbols",
        checked.release.as_deref().unwrap_or("of unknown release"),
        checked.build_id.as_deref().unwrap_or("unknown"),
        checked.symbols
    )?;
    writeln!(out, "\nTable 3 of the paper")?;
    checked.rows.iter().try_for_each(|row| write_entry(out, row))?;
    writeln!(out, "\nBeyond the table")?;
    checked.companions.iter().try_for_each(|entry| write_entry(out, entry))?;
    writeln!(out, "\n{}", checked.coverage)
}

fn write_entry(out: &mut impl Write, entry: &EntryCheck) -> io::Result<()> {
    writeln!(out, "  {:<9} {:<29} {}", entry.module, entry.paper, entry.class)?;
    for MatchedSymbol { name, start, end } in &entry.matched {
        writeln!(out, "      {start:016x}-{end:016x} {name}")?;
    }
    if let Some(reason) = &entry.reason {
        let heading = if entry.matched.is_empty() { "none" } else { "in its place" };
        writeln!(out, "      {heading}: {reason}")?;
    }
    for left_out in &entry.left_out {
        let callers = |name: &String| if name == "*" { "every caller".to_owned() } else { name.clone() };
        let names: Vec<String> = left_out.symbols.iter().map(callers).collect();
        writeln!(out, "      left out: {}: {}", names.join(", "), left_out.reason)?;
    }
    Ok(())
}
