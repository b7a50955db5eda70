//! `microslice symbols store`.

use super::kernel::StoreArgs;
use super::output;
use crate::failure::Failure;
use crate::output::print;
use clap::Args;
use microslice_symbols::StoredKernel;
use serde_json::{Value, json};
use std::io::Write;

/// List the symbol store
#[derive(Args)]
#[command(
    name = "store",
    after_help = "Examples:
  microslice symbols store
  microslice symbols store --store ./symbols --json"
)]
pub struct ListStore {
    #[command(flatten)]
    store: StoreArgs,

    /// A JSON array
    #[arg(long)]
    json: bool,
}

pub fn run(args: ListStore) -> Result<(), Failure> {
    let store = args.store.open();
    let (stored, damaged): (Vec<_>, Vec<_>) = store.list().into_iter().partition(Result::is_ok);
    let stored: Vec<StoredKernel> = stored.into_iter().flatten().collect();
    let damaged: Vec<_> = damaged.into_iter().filter_map(Result::err).collect();
    if args.json {
        output::json(&stored.iter().map(to_json).collect())?;
    } else if !stored.is_empty() {
        print_table(&stored)?;
    } else if damaged.is_empty() {
        let place = store.directory().display();
        print(&format!("{place}: empty; fill it with `microslice symbols import FILE…`\n"))?;
    }
    match damaged.as_slice() {
        [] => Ok(()),
        [one] => Err(Failure::bad_input(one)),
        [first, others @ ..] => Err(Failure::bad_input(format_args!("{first}; and {} more", others.len()))),
    }
}

fn print_table(stored: &[StoredKernel]) -> Result<(), Failure> {
    output::to_stdout(|out| {
        writeln!(out, "{:<36} {:<40} {:>8} {:>5}", "RELEASE", "BUILD ID", "SYMBOLS", "HALTS")?;
        stored.iter().try_for_each(|kernel| {
            let identity = kernel.symbols.identity();
            let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".into());
            let (release, build_id) = (text(&identity.release), text(&identity.build_id));
            writeln!(
                out,
                "{release:<36} {build_id:<40} {:>8} {:>5}",
                kernel.symbols.len(),
                kernel.halt_sites.len()
            )
        })
    })
}

fn to_json(kernel: &StoredKernel) -> Value {
    let identity = kernel.symbols.identity();
    json!({
        "release": identity.release,
        "build_id": identity.build_id,
        "symbols": kernel.symbols.len(),
        "halt_sites": kernel.halt_sites.iter().map(|site| format!("{site:#x}")).collect::<Vec<_>>(),
        "path": kernel.path,
    })
}
