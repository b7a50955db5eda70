//! `microslice trial`: which scheduler is better for the VMs of this host, measured.

mod compare;

use super::observe::time;
use super::run::{failure, pair};
use crate::failure::Failure;
use crate::interrupt;
use crate::output::{self, OutputFile};
use crate::progress::ProgressLine;
use clap::Args;
use microslice_host::settings::Settings;
use microslice_host::trial::report::Verdicts;
use microslice_host::trial::{self, Arm, Asked, Guards, Plan, Requirement};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Which scheduler is better for the VMs that run here: arms take turns, and each is compared with the first
#[derive(Args)]
#[command(after_help = "Examples:
  microslice trial                                 the kernel's own scheduler and `run --scheduler beside` by turns, for 20 minutes
  microslice trial --for 1h --arm kernel --arm beside --arm 'microslice slice-us=3000'
                                                   three arms; settings are flags of `run` without dashes
  microslice trial --outcome 'requests=curl -s http://10.0.0.7/rate' --html trial.html
                                                   a service's own figure, too, and a page with pictures
  microslice trial --require 'felt wait <= 1.25'   exit code 1 unless no VM's waits are a quarter longer
  microslice trial --output host-a.json            a file for others: VMs are numbered in it
  microslice trial --compare host-a.json host-b.json
                                                   what two trials say, side by side

Each change is undone at the end, at Ctrl-C, when a guard is broken, and when the command is killed. Guests
aren't changed or asked. An interval of 95 % stands beside each ratio; what it can't tell from 1 is said.")]
pub struct Trial {
    /// What takes turns: `kernel`, `beside`, `microslice` or `coordinated`, and settings of `run`
    /// [default: kernel, beside]
    #[arg(long = "arm", value_name = "ARM", value_parser = Arm::parse)]
    arms: Vec<Arm>,
    /// About how long it takes
    #[arg(long = "for", value_name = "TIME", value_parser = time, default_value = "20min")]
    length: Duration,
    /// Measured time of a block
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "5s")]
    block: Duration,
    /// After each change, until it counts
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "2s")]
    settle: Duration,
    /// Draws the order of blocks
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// A command that prints a number above zero at the end of each block; more is better
    #[arg(long = "outcome", value_name = "NAME=COMMAND", value_parser = Asked::parse)]
    outcomes: Vec<Asked>,
    /// Exit with code 1 unless this holds for each VM in each arm: `FIGURE <= NUMBER` or
    /// `FIGURE >= NUMBER`, times the first arm's
    #[arg(long, value_name = "FIGURE <= NUMBER", value_parser = Requirement::parse)]
    require: Vec<Requirement>,
    /// A longer wait of a VM for a pCPU ends an arm for good
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "1s")]
    guard_wait: Duration,
    /// A smaller part of the share that a VM has in the first arm ends an arm for good, if it comes twice
    #[arg(long, value_name = "PART", value_parser = part, default_value = "0.5")]
    guard_share: f64,
    /// Call VMs by their names in the file of --output, too
    #[arg(long)]
    names: bool,
    /// Everything as JSON
    #[arg(long)]
    json: bool,
    /// Write the JSON to a file, for `--compare` and for others: it has no names of VMs
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write a page for a browser, with a picture per figure
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Say what two trials' files have in common, and measure nothing
    #[arg(long, num_args = 2, value_names = ["FILE", "OTHER"], conflicts_with_all = ["arms", "outcomes", "require", "output", "html"])]
    compare: Option<Vec<PathBuf>>,
    /// Kernel image of a running VM; may be given more than once
    #[arg(long = "guest", value_name = "NAME=VMLINUZ")]
    guests: Vec<String>,
    /// Never look into a guest's memory for its kernel
    #[arg(long)]
    no_guest_memory: bool,
    /// Configuration file [default: /etc/microslice.toml if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

fn part(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..1.0).contains(number));
    number.ok_or_else(|| "must be a number from 0, which is no guard, to below 1".to_owned())
}

pub fn run(args: Trial) -> Result<(), Failure> {
    if let Some(files) = &args.compare {
        return compare::run(&files[0], &files[1], args.json);
    }
    let settings = settings_of(&args)?;
    let plan = plan_of(&args)?;
    plan.rounds().map_err(failure)?;
    args.require.iter().try_for_each(|one| one.check(&plan)).map_err(failure)?;
    output::refuse_same_file(args.html.as_deref(), args.output.as_deref())?;
    let html = OutputFile::wanted(args.html.as_deref(), &[])?;
    let file = OutputFile::wanted(args.output.as_deref(), &[])?;
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    interrupt::on_signal(None, move || flag.store(true, Ordering::Relaxed))?;
    let doing = Arc::new(Mutex::new(String::new()));
    let shown = Arc::clone(&doing);
    let progress = ProgressLine::show("trial".into(), move || Some(lock(&shown).clone()));
    let tell = |what: &str| what.clone_into(&mut lock(&doing));
    let say = |line: &str| output::say(format_args!("microslice: {line}"));
    let measured = trial::run(&settings, &plan, &stop, &trial::Output { progress: &tell, say: &say });
    drop(progress);
    let measured = match measured {
        Err(_) if stop.load(Ordering::Relaxed) => {
            return Err(Failure::interrupted_with("nothing was measured"));
        }
        other => other.map_err(failure)?,
    };
    if measured.was_stopped && measured.rounds.is_empty() {
        return Err(Failure::interrupted_with("no round was over"));
    }
    let verdicts = Verdicts::of(&plan, &measured, true);
    // Each is worth having without the others.
    let version = env!("CARGO_PKG_VERSION");
    let for_others = || Verdicts::of(&plan, &measured, args.names).to_json(version);
    let written = [
        file.map_or(Ok(()), |file| file.finish_with(&format!("{:#}\n", for_others()))),
        html.map_or(Ok(()), |html| html.finish_with(&verdicts.to_html())),
        if args.json {
            output::print_json(&verdicts.to_json(version))
        } else {
            output::print(&verdicts.to_text())
        },
    ];
    written.into_iter().collect::<Result<(), _>>()?;
    if measured.was_stopped {
        return Err(Failure::interrupted_with("the verdict is of the rounds until then"));
    }
    let ended = (0..plan.arms.len()).filter_map(|arm| {
        Some(format!("arm {:?} was ended: {}", plan.arms[arm].name, verdicts.why_ended(arm)?))
    });
    let broken: Vec<String> = match args.require.is_empty() {
        true => ended.collect(),
        false => args.require.iter().filter_map(|one| one.broken_by(&verdicts)).collect(),
    };
    if broken.is_empty() { Ok(()) } else { Err(Failure::broken(broken.join("; "))) }
}

fn lock(text: &Mutex<String>) -> std::sync::MutexGuard<'_, String> {
    text.lock().unwrap_or_else(PoisonError::into_inner)
}

fn plan_of(args: &Trial) -> Result<Plan, Failure> {
    let default = || ["kernel", "beside"].map(Arm::parse).into_iter().collect::<Result<Vec<_>, _>>();
    let arms = if args.arms.is_empty() { default().map_err(Failure::broken)? } else { args.arms.clone() };
    Ok(Plan {
        arms,
        length: args.length,
        block: args.block,
        settle: args.settle,
        seed: args.seed,
        guards: Guards { longest_wait: args.guard_wait, least_share: args.guard_share },
        asked: args.outcomes.clone(),
        program: std::env::current_exe().map_err(Failure::broken)?,
        common: common_arguments(args),
    })
}

/// What holds for the observer and for all arms.
fn common_arguments(args: &Trial) -> Vec<Vec<String>> {
    let config = args.config.iter().map(|path| vec!["--config".to_owned(), path.display().to_string()]);
    let memory = args.no_guest_memory.then(|| vec!["--no-guest-memory".to_owned()]);
    let guests = args.guests.iter().map(|guest| vec!["--guest".to_owned(), guest.clone()]);
    config.chain(memory).chain(guests).collect()
}

/// The observer's: flags over file over defaults. It serves nobody.
fn settings_of(args: &Trial) -> Result<Settings, Failure> {
    let mut settings = Settings::from_file(args.config.as_deref()).map_err(failure)?;
    settings.guest_memory &= !args.no_guest_memory;
    settings.metrics_listen = None;
    for guest in &args.guests {
        let (name, path) = pair(guest, "guest", "NAME=VMLINUZ")?;
        settings.guests.insert(name.to_owned(), PathBuf::from(path));
        settings.guests_must_run.push(name.to_owned());
    }
    Ok(settings)
}
