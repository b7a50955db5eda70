//! `microslice observe`: what overcommit costs each VM of this host.

use super::run::{failure, listen, pair, show_line};
use super::trace_args::TraceArgs;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::{self, OutputFile};
use crate::printer::Printer;
use crate::progress::ProgressLine;
use clap::Args;
use microslice_host::observe::report::Report;
use microslice_host::observe::{self, Output, Span};
use microslice_host::settings::Settings;
use microslice_host::settings::listen::{Address, Listen};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long the end waits for a reader that takes nothing.
const READERS_PATIENCE: Duration = Duration::from_secs(5);
/// A shorter interval says nothing of waits.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// See what overcommit costs each VM of this host, without changing what runs: waits for a pCPU (as %RDY),
/// and what waited for it
#[derive(Args)]
#[command(after_help = "Examples:
  microslice observe --for 60s                       a table per VM and vCPU, and a line of judgement for each VM
  microslice observe --interval 5                    a line per VM every 5 s, until Ctrl-C, then the tables
  microslice observe --for 10min --html waits.html   a page for a browser, too
  microslice observe --for 60s --json                one JSON object
  microslice observe --for 5s --trace host.pftrace   who runs where, too, to be opened in https://ui.perfetto.dev
  microslice observe --for 10min --settle 30s --profile p.json
                                                     what a model needs, for `microslice simulate --profile` (docs/how-to/what-if.md)
  microslice observe --metrics-listen                figures for Prometheus (docs/how-to/monitor.md)
  microslice observe --guest web=/srv/web/vmlinuz    the kernel image of a VM that boots from its own disk

Works with or without sched_ext, and beside `microslice run`. Tried on Linux 6.1, 6.12 and 6.18. Ctrl-C or SIGTERM print what was seen until
then. Nothing stays loaded, however it ends. What was critical, or held a lock, is known of guests whose kernel is known: /etc/microslice.toml
names images as for `run`.")]
pub struct Observe {
    /// Observe for so long: `60s`, `10min`, `1h` [default: until Ctrl-C]
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    length: Option<Duration>,
    /// Look for so long before counting, while guests' kernels are read
    #[arg(long, value_name = "TIME", value_parser = time)]
    settle: Option<Duration>,
    /// Print a line for each VM every so many seconds; with --json, an object
    #[arg(long, value_name = "SEC", value_parser = seconds)]
    interval: Option<Duration>,
    /// Everything as JSON, one object per line
    #[arg(long)]
    json: bool,
    /// Write the report of the whole time as an HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    trace: TraceArgs,
    /// Write what a model of this host needs: rates and sums of each VM, no addresses
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Leave the names of VMs, and their kernels', out of the profile
    #[arg(long, requires = "profile")]
    no_names: bool,
    /// Serve figures for Prometheus at this address: unix:/PATH, IP:PORT, or off; without one, at
    /// unix:/run/microslice/metrics.sock
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = Address::DEFAULT)]
    metrics_listen: Option<Listen>,
    /// Kernel image of a running VM; may be given more than once
    #[arg(long = "guest", value_name = "NAME=VMLINUZ")]
    guests: Vec<String>,
    /// Never look into a guest's memory for its kernel
    #[arg(long)]
    no_guest_memory: bool,
    /// Critical functions of guest kernels from this file instead of those that the program carries
    #[arg(long, value_name = "FILE")]
    critical: Option<PathBuf>,
    /// Configuration file [default: /etc/microslice.toml if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Show what the kernel and libbpf say when loading fails
    #[arg(short, long)]
    verbose: bool,
    /// Measure what the BPF programs cost, too: the kernel then reads its clock around each run
    #[arg(long)]
    program_costs: bool,
    /// Trace no function of the kernel: use tracepoints alone, as where no function can be traced
    #[arg(long)]
    tracepoints: bool,
    /// Load, print the verifier's instruction count of each program as TOML, and unload
    #[arg(long, hide = true)]
    instruction_counts: bool,
}

pub fn run(args: Observe) -> Result<(), Failure> {
    let settings = settings_of(&args)?;
    if args.instruction_counts {
        for (program, count) in observe::instruction_counts(&settings).map_err(failure)? {
            output::print(&format!("{program} = {count}\n"))?;
        }
        return Ok(());
    }
    let trace = settings.trace.as_ref().map(|trace| trace.path.as_path());
    output::refuse_same_file(trace, args.html.as_deref())?;
    output::refuse_same_file(trace, args.profile.as_deref())?;
    output::refuse_same_file(args.html.as_deref(), args.profile.as_deref())?;
    let html = OutputFile::wanted(args.html.as_deref(), &[])?;
    let profile_file = OutputFile::wanted(args.profile.as_deref(), &[])?;
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    interrupt::on_signal(None, move || flag.store(true, Ordering::Relaxed))?;
    let statistics = Printer::start("standard output", show).map_err(Failure::broken)?;
    let lines = Printer::start("standard error", show_line).map_err(Failure::broken)?;
    let (mut page, mut profile) = (None, None);
    let mut report = |report: &Report| {
        let text = match (args.json, report.is_final) {
            (true, _) => format!("{}\n", report.to_json()),
            (false, true) => report.to_text(),
            (false, false) => report.to_lines(),
        };
        let text = output::plain(&text);
        if report.is_final {
            page = html.is_some().then(|| report.to_html());
            profile = report.to_profile();
            statistics.print_last(text);
        } else {
            statistics.print(text);
        }
    };
    let mut say = |line: &str| lines.print(line.to_owned());
    let settle = args.settle.unwrap_or_default();
    let span = Span { settle, length: args.length, interval: args.interval };
    // A host that is refused has one line.
    let mut progress = None;
    let mut begin = || progress = progress_line(&args);
    let mut output = Output { report: &mut report, say: &mut say, begin: &mut begin };
    let result = observe::run(&settings, span, &stop, &mut output);
    drop(progress);
    // Nothing is loaded any more, whether its output is read or not.
    let shown = statistics.finish(READERS_PATIENCE);
    let _ = lines.finish(READERS_PATIENCE);
    result.map_err(failure)?;
    if let (Some(file), Some(page)) = (html, page) {
        file.finish_with(&page)?;
    }
    if let (Some(file), Some(profile)) = (profile_file, profile) {
        if profile.vms.is_empty() {
            return Err(Failure::broken("no VM ran in that time: no profile was written"));
        }
        let profile = if args.no_names { profile.without_names() } else { profile };
        file.finish_with(&profile.to_text())?;
    }
    shown
}

/// A reader of lines of each interval needs none.
fn progress_line(args: &Observe) -> Option<ProgressLine> {
    if args.interval.is_some() {
        return None;
    }
    let settle = args.settle.unwrap_or_default();
    let (began, length) = (Instant::now(), args.length.map(|length| length + settle));
    Some(ProgressLine::show("observing".into(), move || {
        let all = length.map(|length| length.as_secs_f64());
        all.map(|all| format!("{:.0} % of {all} s", began.elapsed().as_secs_f64().min(all) / all * 100.0))
    }))
}

fn show(text: &str, left_out: u64) -> Result<(), Failure> {
    if left_out > 0 {
        output::say(format_args!("microslice: nobody read standard output: {left_out} reports left out"));
    }
    output::print_as_it_is(text)
}

/// Flags over file over defaults.
fn settings_of(args: &Observe) -> Result<Settings, Failure> {
    let mut settings = Settings::from_file(args.config.as_deref()).map_err(failure)?;
    settings.guest_memory &= !args.no_guest_memory;
    if args.critical.is_some() {
        settings.critical.clone_from(&args.critical);
        settings.places.remove("critical");
    }
    listen(&mut settings, args.metrics_listen.clone())?;
    settings.trace = args.trace.settings();
    settings.verbose = args.verbose;
    settings.program_costs = args.program_costs;
    settings.by_tracepoints = args.tracepoints;
    for guest in &args.guests {
        let (name, path) = pair(guest, "guest", "NAME=VMLINUZ")?;
        settings.guests.insert(name.to_owned(), PathBuf::from(path));
        settings.guests_must_run.push(name.to_owned());
    }
    Ok(settings)
}

/// `60s`, `1.5min`, `2h`.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    const UNITS: [(&str, f64); 5] = [("ms", 1e-3), ("s", 1.0), ("min", 60.0), ("m", 60.0), ("h", 3600.0)];
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = UNITS.iter().find(|(name, _)| *name == unit.trim()).map(|(_, factor)| factor);
    let seconds = number.parse::<f64>().ok().zip(factor).map(|(number, factor)| number * factor);
    let seconds = seconds.ok_or("must be a time with its unit: 60s, 10min, 1h")?;
    within_limits(seconds)
}

fn seconds(text: &str) -> Result<Duration, String> {
    within_limits(text.parse().map_err(|_| "must be a number of seconds".to_owned())?)
}

fn within_limits(seconds: f64) -> Result<Duration, String> {
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|time| (SHORTEST..=LONGEST).contains(time))
        .ok_or_else(|| "must be a tenth of a second at least, and a year at most".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_its_unit_and_its_limits() {
        assert_eq!(time("60s"), Ok(Duration::from_secs(60)));
        assert_eq!(time("1.5min"), Ok(Duration::from_secs(90)));
        assert_eq!(time("2 h"), Ok(Duration::from_secs(7200)));
        for wrong in ["60", "s", "", "-1s", "1e3s", "10 parsecs", "0s", "9999999h", "NaNs", "1ms"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["NaN", "inf", "-1", "0", "5s"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
