//! `microslice symbols identify`.

use super::kernel::{CountersNow, GuestMemory, StoreArgs, open_file, open_running};
use super::output;
use crate::failure::Failure;
use crate::output::plain;
use clap::Args;
use microslice_symbols::memory::MemoryKernel;
use microslice_symbols::preempt_count::Counter;
use microslice_symbols::{Identity, Kernel, SourceKind, Store};
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;

/// Say which kernel files or a running guest hold: release, build ID, banner; and whether they are the same
#[derive(Args)]
#[command(after_help = "Examples:
  microslice symbols identify /boot/vmlinuz-6.1.0-50-amd64
  microslice symbols identify --pid $(pidof qemu-system-x86_64) --json
  microslice symbols identify vmlinuz guest.dump      are these the same kernel?
Several sources are each compared with the first. A guest's memory is read, never written; the guest isn't stopped.")]
pub struct Identify {
    /// Kernel image, vmlinux, memory dump, System.map or kallsyms text
    #[arg(value_name = "FILE", required_unless_present = "pid")]
    files: Vec<PathBuf>,

    /// The guest that this VMM process runs (root)
    #[arg(long)]
    pid: Option<u32>,

    #[command(flatten)]
    store: StoreArgs,

    /// One JSON object: `sources` and `disagreements`
    #[arg(long)]
    json: bool,
}

struct Identified {
    name: String,
    kind: SourceKind,
    /// Of a running guest: the source of where its memory is.
    memory: Option<GuestMemory>,
    counters: Option<CountersNow>,
    identity: Identity,
    symbols: usize,
    slide: Option<u64>,
    witnesses: Vec<(&'static str, u64)>,
    stored: Option<PathBuf>,
    notices: Vec<String>,
}

pub fn run(args: Identify) -> Result<(), Failure> {
    let store = args.store.open();
    let mut sources = Vec::new();
    for path in &args.files {
        let source = open_file(path)?;
        let found = Identified {
            slide: source.slide,
            ..identified(path.display().to_string(), source.kind, source.kernel, &store)
        };
        sources.push(found);
    }
    if let Some(pid) = args.pid {
        let running = open_running(pid)?;
        let MemoryKernel { kernel, slide, witnesses, .. } = running.found;
        let mut identified = identified(format!("process {pid}"), SourceKind::MemoryDump, kernel, &store);
        identified.notices.extend(running.notice);
        let (memory, counters) = (Some(running.memory), Some(running.counters));
        sources.push(Identified { slide, witnesses, memory, counters, ..identified });
    }
    let disagreements = disagreements(&sources);
    if args.json {
        let sources: Vec<Value> = sources.iter().map(to_json).collect();
        return output::json(&json!({ "sources": sources, "disagreements": disagreements }));
    }
    output::to_stdout(|out| {
        for source in &sources {
            write_text(out, source)?;
        }
        disagreements.iter().try_for_each(|line| writeln!(out, "DISAGREE  {line}"))
    })
}

fn identified(name: String, kind: SourceKind, kernel: Kernel, store: &Store) -> Identified {
    let mut notices = kernel.notices;
    let stored = store.get(kernel.symbols.identity()).unwrap_or_else(|error| {
        notices.push(format!("the symbol store: {error}"));
        None
    });
    let (identity, symbols) = (kernel.symbols.identity().clone(), kernel.symbols.len());
    let stored = stored.map(|stored| stored.path);
    Identified {
        name,
        kind,
        memory: None,
        counters: None,
        identity,
        symbols,
        slide: None,
        witnesses: Vec::new(),
        stored,
        notices,
    }
}

fn disagreements(sources: &[Identified]) -> Vec<String> {
    let Some((first, others)) = sources.split_first() else { return Vec::new() };
    let lines = |other: &Identified| {
        let (name, first_name) = (other.name.clone(), &first.name);
        let phrases = first.identity.disagreements(&other.identity);
        phrases.into_iter().map(|phrase| format!("{first_name} and {name}: {phrase}")).collect::<Vec<_>>()
    };
    others.iter().flat_map(lines).collect()
}

fn to_json(source: &Identified) -> Value {
    let witnesses: serde_json::Map<String, Value> = source
        .witnesses
        .iter()
        .map(|(name, slide)| ((*name).to_owned(), json!(format!("{slide:#x}"))))
        .collect();
    json!({
        "source": source.name,
        "kind": source.kind.name(),
        "memory": source.memory.map(GuestMemory::name),
        "release": source.identity.release,
        "build_id": source.identity.build_id,
        "banner": source.identity.banner,
        "symbols": source.symbols,
        "slide": source.slide.map(|slide| format!("{slide:#x}")),
        "witnesses": witnesses,
        "preempt_counts": source.counters.as_ref().map(counters_to_json),
        "stored": source.stored,
        "notices": source.notices,
    })
}

fn counters_to_json(counters: &CountersNow) -> Value {
    let to_json = |(Counter { cpu, apic_id, word }, count): &(Counter, Option<u32>)| json!({ "cpu": cpu, "apic_id": apic_id, "guest_physical": format!("{word:#x}"), "count": count });
    match counters {
        Ok(counters) => json!({ "counters": counters.iter().map(to_json).collect::<Vec<_>>() }),
        Err(cause) => json!({ "unknown": cause }),
    }
}

fn write_text(out: &mut impl Write, source: &Identified) -> std::io::Result<()> {
    let unknown = || "unknown".to_owned();
    writeln!(out, "{} ({})", source.name, source.kind.name())?;
    if let Some(memory) = source.memory {
        writeln!(out, "  memory    by {}", memory.name())?;
    }
    let said = |text: &Option<String>| text.as_deref().map_or_else(unknown, plain);
    writeln!(out, "  release   {}", said(&source.identity.release))?;
    writeln!(out, "  build ID  {}", said(&source.identity.build_id))?;
    writeln!(out, "  banner    {}", said(&source.identity.banner))?;
    writeln!(out, "  symbols   {}", source.symbols)?;
    if let Some(slide) = source.slide {
        let witnesses = source.witnesses.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        writeln!(
            out,
            "  slide     {slide:#x}{}",
            if witnesses.is_empty() { witnesses } else { format!(" (by {witnesses})") }
        )?;
    }
    match &source.counters {
        Some(Ok(counters)) => writeln!(out, "  counters  preempt_count of {} CPUs", counters.len())?,
        Some(Err(cause)) => writeln!(out, "  counters  preempt_count unknown: {cause}")?,
        None => {}
    }
    if let Some(path) = &source.stored {
        writeln!(out, "  stored    {}", path.display())?;
    }
    source.notices.iter().try_for_each(|notice| writeln!(out, "  note      {notice}"))
}
