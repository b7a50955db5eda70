//! `microslice replay`: the parity of kernel and simulator, shown on a recording.

use crate::failure::Failure;
use crate::output::print;
use crate::progress::ProgressLine;
use clap::Args;
use microslice_metrics::input::{self, Input};
use microslice_policy::Coded;
use microslice_policy::RecordKind;
use microslice_policy::replay::{UrgentEvents, Waits, replay};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Make every decision of a recording again, natively, and compare it with the kernel's, bit for bit
#[derive(Args)]
#[command(after_help = "Examples:
  microslice run --record run.rec      (elsewhere, then Ctrl-C)
  microslice replay run.rec            exit code 0: every decision came out the same; 1: one differs; 2: no recording")]
pub struct Replay {
    /// A file that `microslice run --record` wrote
    recording: PathBuf,
    /// The counts as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Replay) -> Result<(), Failure> {
    let named =
        |cause: &dyn std::fmt::Display| Failure::bad_input(format!("{}: {cause}", args.recording.display()));
    let file = input::open(&args.recording).map_err(|cause| named(&cause))?;
    let result = {
        let read = Arc::new(AtomicU64::new(0));
        let _line = progress_line(&args.recording, &file, read.clone());
        replay(Counted { source: BufReader::new(file), read }).map_err(|cause| named(&cause))?
    };
    let counts: serde_json::Map<_, _> = RecordKind::ALL
        .iter()
        .zip(result.replayed_count)
        .map(|(kind, count)| (kind.name().to_owned(), count.into()))
        .collect();
    let Waits { begun, continued, wrong } = result.waits;
    let UrgentEvents { shown, decided } = result.urgent_events;
    let (decisions, differences) = (result.total_count(), result.difference_count);
    if args.json {
        let json = serde_json::json!({
            "decisions": decisions,
            "by_kind": counts,
            "differences": differences,
            "waits": {"begun": begun, "continued": continued, "wrong": wrong},
            "urgent_events": {"shown": by_event(shown), "decided": by_event(decided)},
        });
        print(&format!("{json}\n"))?;
    } else {
        let kinds: String = counts.iter().map(|(kind, count)| format!("{kind:12} {count}\n")).collect();
        print(&format!(
            "{kinds}{decisions} decisions, {differences} differ\n\
             exits of spinners: {begun} began to wait, {continued} went on, {wrong} disagree with the clock\n\
             urgent events (IPI, PLE, IRQ): Algorithm 1 was shown {shown:?}, decisions say {decided:?}\n"
        ))?;
    }
    match result.first_difference {
        None => Ok(()),
        Some(first) => Err(Failure::broken(format!(
            "{}: record {} ({}): the kernel decided {}, natively it is {}",
            args.recording.display(),
            first.index,
            first.kind.name(),
            first.recorded,
            first.replayed
        ))),
    }
}

fn by_event([ipi, ple, irq]: [u64; 3]) -> serde_json::Value {
    serde_json::json!({"ipi": ipi, "ple": ple, "irq": irq})
}

fn progress_line(recording: &Path, file: &Input, read: Arc<AtomicU64>) -> ProgressLine {
    let size = file.metadata().map_or(0, |metadata| metadata.len());
    ProgressLine::show(format!("replaying {}", recording.display()), move || {
        let read = read.load(Ordering::Relaxed);
        (size > 0).then(|| format!("{} of {} MiB", read >> 20, size >> 20))
    })
}

/// A source that tells another thread how much of it was read.
struct Counted<R> {
    source: R,
    read: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.source.read(into)?;
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}
