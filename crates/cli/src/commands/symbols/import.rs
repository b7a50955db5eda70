//! `microslice symbols import`.

use super::kernel::{StoreArgs, open_file, open_running};
use super::output::{self, Progress};
use crate::failure::Failure;
use crate::interrupt;
use clap::Args;
use microslice_symbols::slide::halt_sites_of;
use microslice_symbols::store::debuginfod::Debuginfod;
use microslice_symbols::{Identity, Kernel, Store, SymbolTable};
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Put kernels into the symbol store, by build ID and release
#[derive(Args)]
#[command(after_help = "Examples:
  microslice symbols import /boot/vmlinuz-*
  microslice symbols import --release 5.4.0-custom System.map
  microslice symbols import --pid $(pidof qemu-system-x86_64)
  DEBUGINFOD_URLS=https://debuginfod.debian.net microslice symbols import --build-id 94a701c89b9d5013…
Either everything named is imported or, at the first error, nothing.")]
pub struct Import {
    /// Kernel image, vmlinux, memory dump, System.map or kallsyms text
    #[arg(value_name = "FILE", required_unless_present_any = ["pid", "build_id"])]
    files: Vec<PathBuf>,

    /// The guest that this VMM process runs (root)
    #[arg(long)]
    pid: Option<u32>,

    /// Fetch the symbols of this build from the servers in DEBUGINFOD_URLS
    #[arg(long, value_name = "HEX")]
    build_id: Option<String>,

    /// The release of a file that doesn't say it (System.map, kallsyms text)
    #[arg(long)]
    release: Option<String>,

    #[command(flatten)]
    store: StoreArgs,

    /// What was imported, as a JSON array
    #[arg(long)]
    json: bool,
}

pub fn run(args: Import) -> Result<(), Failure> {
    let stopped = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&stopped);
    interrupt::on_signal(Some(interrupt::GRACE), move || stop.store(true, Ordering::Relaxed))?;
    let release = args.release.as_deref();
    let store = args.store.open();
    store.check_writable().map_err(Failure::bad_input)?;
    let mut kernels = Vec::new();
    for path in &args.files {
        let name = path.display().to_string();
        kernels.push(Importable::of(name, open_file(path)?.kernel, release, &store)?);
    }
    if let Some(pid) = args.pid {
        let kernel = open_running(pid)?.said().kernel;
        kernels.push(Importable::of(format!("process {pid}"), kernel, release, &store)?);
    }
    if let Some(build_id) = &args.build_id {
        let symbols = fetch(build_id)?;
        let fetched = Kernel { symbols, code: None, halt_sites: Vec::new(), notices: Vec::new() };
        kernels.push(Importable::of(build_id.clone(), fetched, release, &store)?);
    }
    let imported = interrupt::undisturbed(|| put_all(&store, &kernels, &stopped))?;
    if args.json {
        let rows = imported.iter().map(|(identity, symbols, path)| {
            json!({ "release": identity.release, "build_id": identity.build_id, "symbols": symbols, "path": path })
        });
        return output::json(&rows.collect());
    }
    output::to_stdout(|out| {
        imported.iter().try_for_each(|(identity, symbols, path)| {
            let release = identity.release.as_deref().unwrap_or("unknown release");
            writeln!(out, "{release}: {symbols} symbols in {}", path.display())
        })
    })
}

/// Puts all of them into the store or, if one can't be or the user stops it, none.
fn put_all(store: &Store, kernels: &[Importable], stopped: &AtomicBool) -> Result<Vec<Imported>, Failure> {
    let mut staging = store.stage();
    let mut imported = Vec::new();
    for kernel in kernels {
        let path = staging.add(&kernel.symbols, &kernel.halt_sites).map_err(Failure::broken)?;
        imported.push((kernel.symbols.identity().clone(), kernel.symbols.len(), path));
        if stopped.load(Ordering::Relaxed) {
            return Err(Failure::interrupted());
        }
    }
    staging.commit().map_err(Failure::broken)?;
    Ok(imported)
}

/// Which kernel, how many symbols, and where they are.
type Imported = (Identity, usize, PathBuf);

/// What the store keeps of a kernel: a directory full of images must not stand in memory with all their code.
struct Importable {
    symbols: SymbolTable,
    halt_sites: Vec<u64>,
}

impl Importable {
    /// `name` is how its user calls the source.
    fn of(name: String, kernel: Kernel, release: Option<&str>, store: &Store) -> Result<Self, Failure> {
        let halt_sites = halt_sites_of(&kernel);
        let identity = kernel.symbols.identity();
        let release = identity.release.clone().or(release.map(str::to_owned));
        let identity = Identity { release, ..identity.clone() };
        store.check(&identity).map_err(|error| {
            Failure::bad_input(format!("{} (--release says it for sources that don't)", error.of(name)))
        })?;
        Ok(Self { symbols: kernel.symbols.with_identity(identity), halt_sites })
    }
}

fn fetch(build_id: &str) -> Result<SymbolTable, Failure> {
    let servers = Debuginfod::from_environment();
    if !servers.is_configured() {
        return Err(Failure::bad_input("--build-id: set DEBUGINFOD_URLS to the servers to ask"));
    }
    let mut progress = Progress::new();
    let build_id = build_id.to_lowercase();
    let fetched = servers
        .fetch(&build_id, &mut |bytes| progress.show(|| format!("{build_id}: {} MiB fetched", bytes >> 20)));
    fetched.map_err(Failure::bad_input)
}
