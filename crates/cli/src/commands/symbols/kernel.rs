//! Which kernel a command is about: `--kernel` or `--pid`, the same for every subcommand.

use super::output::Progress;
use crate::failure::Failure;
use crate::output::say;
use crate::progress::ProgressLine;
use clap::Args;
#[cfg(feature = "host")]
use microslice_host::guests::memory_slots;
use microslice_symbols::memory::process::{self, ProcessMemory};
use microslice_symbols::memory::{self, MemoryKernel, ScanLimits};
use microslice_symbols::preempt_count::{Counter, CounterSymbols};
use microslice_symbols::{Kernel, Source, SourceKind, Store, source};
use std::path::{Path, PathBuf};

/// A kernel by file, by name in the store, or as it runs.
#[derive(Args)]
pub struct KernelArgs {
    /// Kernel image, vmlinux, memory dump, System.map or kallsyms text; or release or build ID of a stored
    /// kernel
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
            (_, Some(pid)) => {
                let found = open_running(pid)?.said();
                Ok(Source { kind: SourceKind::MemoryDump, kernel: found.kernel, slide: found.slide })
            }
            (Some(path), None) => open_file_or_stored(path, &self.store.open()),
            (None, None) => Err(Failure::bad_input("give --kernel FILE or --pid PID")),
        }
    }
}

/// Reads the kernel in a file, which takes a while if it is a large guest's memory.
pub fn open_file(path: &Path) -> Result<Source, Failure> {
    let _line = ProgressLine::show(format!("reading {}", path.display()), || None);
    source::open(path).map_err(Failure::bad_input)
}

/// A file as it is; a name that is no file is looked up in the store.
fn open_file_or_stored(path: &Path, store: &Store) -> Result<Source, Failure> {
    if path.exists() || path.components().count() != 1 {
        return open_file(path);
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

/// Each CPU's preemption counter and what it counts at the moment, or why they aren't known.
pub type CountersNow = Result<Vec<(Counter, Option<u32>)>, String>;

/// A kernel found in the memory of a VMM, and how that memory was found.
pub struct RunningKernel {
    pub found: MemoryKernel,
    pub memory: GuestMemory,
    pub counters: CountersNow,
    /// Why it isn't KVM's memory slots, if it isn't.
    pub notice: Option<String>,
}

impl RunningKernel {
    /// The kernel; what there is to note goes to standard error.
    pub fn said(self) -> MemoryKernel {
        if let Some(notice) = self.notice {
            say(format_args!("note: {notice}"));
        }
        self.found
    }
}

/// The source that said where the guest's memory is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum GuestMemory {
    /// KVM: exactly the guest's, by its physical addresses.
    Slots,
    /// The process's large writable mappings: a guess.
    Mappings,
}

impl GuestMemory {
    pub fn name(self) -> &'static str {
        match self {
            Self::Slots => "KVM's memory slots",
            Self::Mappings => "the process's mappings",
        }
    }
}

/// Finds the kernel in the memory of a VMM.
pub fn open_running(pid: u32) -> Result<RunningKernel, Failure> {
    let (memory, way, notice) = open_guest_memory(pid)?;
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
    let found = found.map_err(|error| {
        let hint = match process::is_kvm_process(pid) {
            Some(false) => " (and the process holds no KVM machine)",
            _ => "",
        };
        Failure::bad_input(format!("{}{hint}", error.of(format!("process {pid}"))))
    })?;
    let counters = match way {
        GuestMemory::Slots => counters(&memory, &found),
        GuestMemory::Mappings => Err("the guest's physical addresses aren't known".to_owned()),
    };
    Ok(RunningKernel { found, memory: way, counters, notice })
}

fn counters(memory: &ProcessMemory, found: &MemoryKernel) -> CountersNow {
    let symbols = CounterSymbols::of(&found.kernel.symbols);
    let symbols = symbols.map_err(|name| format!("its kernel names no {name}"))?;
    let found = symbols.find(memory, found.slide)?;
    Ok(found.counters.into_iter().map(|counter| (counter, counter.read(memory))).collect())
}

/// Stands in for what KVM says.
#[cfg(not(feature = "host"))]
mod memory_slots {
    use microslice_symbols::memory::process::MemorySlot;

    pub fn of_process(_pid: u32) -> Result<Vec<MemorySlot>, &'static str> {
        Err("this program has the simulator alone")
    }
}

/// KVM's memory slots; where they can't be had, the mappings and why.
fn open_guest_memory(pid: u32) -> Result<(ProcessMemory, GuestMemory, Option<String>), Failure> {
    let cause = match memory_slots::of_process(pid) {
        Ok(slots) if !slots.is_empty() => {
            let memory = ProcessMemory::of_slots(pid, &slots).map_err(Failure::bad_input)?;
            return Ok((memory, GuestMemory::Slots, None));
        }
        Ok(_) => "it made no KVM machine".to_owned(),
        Err(error) => error.to_string(),
    };
    let memory = ProcessMemory::of_mappings(pid).map_err(Failure::bad_input)?;
    let notice =
        format!("guest memory guessed from the process's mappings, not from KVM's memory slots: {cause}");
    Ok((memory, GuestMemory::Mappings, Some(notice)))
}
