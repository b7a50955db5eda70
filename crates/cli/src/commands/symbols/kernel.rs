//! Which kernel a command is about: `--kernel` or `--pid`, the same for every subcommand.

use super::output::Progress;
use crate::failure::Failure;
use clap::Args;
use microslice_symbols::memory::process::{self, ProcessMemory};
use microslice_symbols::memory::{self, MemoryKernel, ScanLimits};
use microslice_symbols::{Kernel, Source, SourceKind, Store, source};
use std::path::{Path, PathBuf};

/// A kernel by file, by name in the store, or as it runs.
#[derive(Args)]
pub struct KernelArgs {
    /// Kernel image, vmlinux, memory dump, System.map or kallsyms text; or release or build ID of a stored kernel
    #[arg(long, value_name = "FILE", required_unless_present = "pid", conflicts_with = "pid")]
    pub kernel: Option<PathBuf>,

    /// The guest that this VMM process runs (root)
    #[arg(long)]
    pub pid: Option<u32>,

    #[command(flatten)]
    pub store: StoreArgs,
}

/// Where the symbol store is.
#[derive(Args)]
pub struct StoreArgs {
    /// Symbol store
    #[arg(
        long = "store",
        value_name = "DIR",
        env = "MICROSLICE_SYMBOL_STORE",
        default_value = "/var/lib/microslice/symbols"
    )]
    pub directory: PathBuf,
}

impl StoreArgs {
    pub fn open(&self) -> Store {
        Store::new(&self.directory)
    }
}

impl KernelArgs {
    /// Reads the kernel.
    pub fn open(&self) -> Result<Source, Failure> {
        match (&self.kernel, self.pid) {
            (_, Some(pid)) => open_running(pid).map(|found| Source {
                kind: SourceKind::MemoryDump,
                kernel: found.kernel,
                slide: found.slide,
            }),
            (Some(path), None) => open_file_or_stored(path, &self.store.open()),
            (None, None) => Err(Failure::bad_input("give --kernel FILE or --pid PID")),
        }
    }
}

/// A file as it is; a name that is no file is looked up in the store.
fn open_file_or_stored(path: &Path, store: &Store) -> Result<Source, Failure> {
    if path.exists() || path.components().count() != 1 {
        return source::open(path).map_err(Failure::bad_input);
    }
    let key = path.to_string_lossy();
    match store.find(&key).map_err(Failure::bad_input)? {
        Some(stored) => Ok(Source {
            kind: SourceKind::Stored,
            kernel: Kernel {
                symbols: stored.symbols,
                code: None,
                halt_sites: stored.halt_sites,
                notices: Vec::new(),
            },
            slide: None,
        }),
        None => Err(Failure::bad_input(format!(
            "{key}: no such file, and no kernel of that release or build ID in {}",
            store.directory().display()
        ))),
    }
}

/// Finds the kernel in the memory of a VMM.
pub fn open_running(pid: u32) -> Result<MemoryKernel, Failure> {
    let memory = ProcessMemory::of_mappings(pid).map_err(Failure::bad_input)?;
    let mut progress = Progress::new();
    let found = memory::find_kernel(&memory, &ScanLimits::default(), &mut |scan| {
        progress.show(|| {
            let looking_for = if scan.found_kernel {
                "kernel found, looking for VMCOREINFO"
            } else {
                "looking for a kernel"
            };
            format!(
                "process {pid}: {looking_for}, {} of {} MiB",
                scan.scanned_bytes >> 20,
                scan.total_bytes >> 20
            )
        });
    });
    found.map_err(|error| {
        let hint = match process::is_kvm_process(pid) {
            Some(false) => " (and the process holds no KVM machine)",
            _ => "",
        };
        Failure::bad_input(format!("{}{hint}", error.of(format!("process {pid}"))))
    })
}
