//! `microslice symbols store`.

use super::kernel::StoreArgs;
use super::output::{self, Progress};
use crate::failure::Failure;
use crate::output::print;
use clap::Args;
use microslice_symbols::{Identity, StoredKernel};
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;

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

/// What is shown of a stored kernel: its symbols are megabytes, and there may be thousands of kernels.
struct Row {
    identity: Identity,
    symbols: usize,
    halt_sites: Vec<u64>,
    path: PathBuf,
}

impl From<StoredKernel> for Row {
    fn from(kernel: StoredKernel) -> Self {
        let StoredKernel { symbols, halt_sites, path } = kernel;
        Self { identity: symbols.identity().clone(), symbols: symbols.len(), halt_sites, path }
    }
}

pub fn run(args: ListStore) -> Result<(), Failure> {
    let store = args.store.open();
    let (mut stored, mut damaged) = (Vec::new(), Vec::new());
    let mut progress = Progress::new();
    for listed in store.list() {
        match listed {
            Ok(kernel) => stored.push(Row::from(kernel)),
            Err(error) => damaged.push(error),
        }
        progress.show(|| format!("{}: {} kernels read", store.directory().display(), stored.len()));
    }
    drop(progress);
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

fn print_table(stored: &[Row]) -> Result<(), Failure> {
    output::to_stdout(|out| {
        writeln!(out, "{:<36} {:<40} {:>8} {:>5}", "RELEASE", "BUILD ID", "SYMBOLS", "HALTS")?;
        stored.iter().try_for_each(|kernel| {
            let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".into());
            let (release, build_id) = (text(&kernel.identity.release), text(&kernel.identity.build_id));
            writeln!(out, "{release:<36} {build_id:<40} {:>8} {:>5}", kernel.symbols, kernel.halt_sites.len())
        })
    })
}

fn to_json(kernel: &Row) -> Value {
    let identity = &kernel.identity;
    json!({
        "release": identity.release,
        "build_id": identity.build_id,
        "symbols": kernel.symbols,
        "halt_sites": kernel.halt_sites.iter().map(|site| format!("{site:#x}")).collect::<Vec<_>>(),
        "path": kernel.path,
    })
}
