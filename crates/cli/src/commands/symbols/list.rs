//! `microslice symbols list`.

use super::kernel::KernelArgs;
use super::output;
use crate::failure::Failure;
use clap::{Args, ValueEnum};
use microslice_symbols::{Symbol, SymbolTable};
use std::io::{self, Write};

/// Print every symbol of a kernel
#[derive(Args)]
#[command(after_help = "Examples:
  microslice symbols list --kernel /boot/vmlinuz-6.1.0-50-amd64 > System.map
  microslice symbols list --kernel vmlinuz --format json | jq -r '.symbols[] | select(.kind == \"T\") | .name'
  microslice symbols list --pid $(pidof qemu-system-x86_64) --running
Addresses are as linked. --running adds the slide of a running guest: what its own /proc/kallsyms says.")]
pub struct List {
    #[command(flatten)]
    kernel: KernelArgs,

    #[arg(long, value_enum, default_value = "system-map")]
    format: Format,

    /// The same as --format json
    #[arg(long)]
    json: bool,

    /// Addresses as they run, not as they are linked; needs a source that tells the slide
    #[arg(long)]
    running: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// `address type name`, as in System.map
    SystemMap,
    /// One object: release, build ID, banner, symbols
    Json,
}

pub fn run(args: List) -> Result<(), Failure> {
    let source = args.kernel.open()?;
    let slide = match (args.running, source.slide) {
        (false, _) => 0,
        (true, Some(slide)) => slide,
        (true, None) => {
            return Err(Failure::bad_input(
                "--running: this source doesn't tell how far the kernel is moved",
            ));
        }
    };
    let symbols = source.kernel.symbols.moved_by(slide);
    if args.json || args.format == Format::Json {
        output::to_stdout(|out| write_json(out, &symbols))
    } else {
        output::to_stdout(|out| write_system_map(out, &symbols))
    }
}

fn write_system_map(out: &mut impl Write, symbols: &SymbolTable) -> io::Result<()> {
    symbols
        .iter()
        .try_for_each(|symbol| writeln!(out, "{:016x} {} {}", symbol.address, symbol.kind, symbol.name))
}

/// One symbol a line: 200,000 of them never stand in memory as JSON.
fn write_json(out: &mut impl Write, symbols: &SymbolTable) -> io::Result<()> {
    let identity = symbols.identity();
    let text = |value: &Option<String>| serde_json::json!(value);
    writeln!(
        out,
        "{{\"release\": {}, \"build_id\": {}, \"banner\": {}, \"symbols\": [",
        text(&identity.release),
        text(&identity.build_id),
        text(&identity.banner)
    )?;
    for (index, symbol) in symbols.iter().enumerate() {
        let separator = if index == 0 { "" } else { ",\n" };
        write!(out, "{separator}{}", symbol_json(symbol))?;
    }
    writeln!(out, "\n]}}")
}

fn symbol_json(symbol: Symbol<'_>) -> serde_json::Value {
    serde_json::json!({
        "address": format!("{:#x}", symbol.address),
        "end": format!("{:#x}", symbol.end),
        "kind": symbol.kind.to_string(),
        "name": symbol.name,
    })
}
