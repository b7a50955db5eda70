//! `microslice replay`: the parity of kernel and simulator, shown on a recording.

use crate::failure::Failure;
use crate::output::print;
use clap::Args;
use microslice_policy::Coded;
use microslice_policy::RecordKind;
use microslice_policy::replay::{Waits, replay};
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

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
    let file = File::open(&args.recording).map_err(|cause| named(&cause))?;
    let result = replay(BufReader::new(file)).map_err(|cause| named(&cause))?;
    let counts: serde_json::Map<_, _> = RecordKind::ALL
        .iter()
        .zip(result.replayed_count)
        .map(|(kind, count)| (kind.name().to_owned(), count.into()))
        .collect();
    let Waits { begun, continued, wrong } = result.waits;
    let (decisions, differences) = (result.total_count(), result.difference_count);
    if args.json {
        let json = serde_json::json!({
            "decisions": decisions,
            "by_kind": counts,
            "differences": differences,
            "waits": {"begun": begun, "continued": continued, "wrong": wrong},
        });
        print(&format!("{json}\n"))?;
    } else {
        let kinds: String = counts.iter().map(|(kind, count)| format!("{kind:12} {count}\n")).collect();
        print(&format!(
            "{kinds}{decisions} decisions, {differences} differ\n\
             exits of spinners: {begun} began to wait, {continued} went on, {wrong} disagree with the clock\n"
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
