//! `microslice demo`: what micro-slicing brings, simulated and shown with real guests.

mod bars;
mod guests;
mod lab;
mod reading;
mod screen;
mod short;
pub(super) mod simulated;

use crate::failure::Failure;
use crate::interrupt;
use crate::output::{self, OutputFile};
use clap::Args;
use clap::builder::PossibleValuesParser;
use microslice_host::settings::{HOLD_US_MAX, Settings};
use microslice_testbed::demo::{self, Plan, Round, Scheduler};
use microslice_testbed::{Error, Host, Pv, Testbed, demo_report, kernels};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Per phase of `--full`.
const FULL_SECONDS: u64 = 20;
/// What a phase is called on the command line.
pub(super) const PHASES: [(&str, Scheduler); 8] = [
    ("kernel", Scheduler::Kernel),
    ("off", Scheduler::Static(0)),
    ("1", Scheduler::Static(1)),
    ("paper", Scheduler::StaticPaper(1)),
    ("auto", Scheduler::Auto),
    ("coordinated", Scheduler::Coordinated),
    ("beside", Scheduler::Beside),
    ("profile", Scheduler::Observed),
];

/// What micro-slicing brings, in seven minutes: simulated, on real vCPUs, with stock guests on a stock host
#[derive(Args)]
#[command(after_help = "Examples:
  microslice demo                           seven minutes and one screen (the first run fetches stock kernels)
  microslice demo --html demo.html --json demo.json
                                            the same, as a page too, and with everything that was measured
  microslice demo --here                    on this host, at full speed (needs root, KVM and sched_ext; --phases kernel,beside needs no sched_ext)
  microslice demo --kernel 7.2 --guest-kernel 6.1-cloud
  microslice demo --full                    every phase, a quarter of an hour
  microslice demo --pv off --seconds 60     of these, only the classic paths (no PV helpers), longer phases
  microslice demo --pv off --no-pause-exits --phases profile,1 --profile p.json
                                            what `simulate --profile p.json` is to predict, and what came of it
  microslice demo --pv off --no-pause-exits --phases kernel,beside,1,kernel,beside,1   by turns, as machines are not the same all the time

Real vCPUs take a minute, where /dev/kvm can be opened: four small VMs of ours at full speed, under the kernel's own
scheduler with boosts (`run --scheduler beside`) and without, by turns. Each ratio has its 95 % interval.

Of the stock guests, one runs a kernel-heavy mix (TLB shootdowns, a contended kernel lock, wake-ups, a network ping-pong), the
other hogs its vCPUs. In one boot: each guest alone, then both under the kernel's own scheduler, ours with the micro
pool off, and ours with one micro-sliced pCPU. Guests have no PV helpers.

With --full, or with an option that chooses among its phases (--pv, --phases, --coordinated, --beside,
--no-pause-exits): nothing is simulated, no guest runs alone, and a table has a row per phase. These are the kernel's own
scheduler, ours with the micro pool off, with one micro-sliced pCPU, the same by the paper's rules, and a pool that
adapts; with the guests' PV helpers on, then off, then off with spinning guests that exit (PLE).")]
pub struct Demo {
    /// Run on this host instead of an emulated one
    #[arg(long, conflicts_with = "kernel")]
    here: bool,
    /// Series of the emulated host's kernel [default: 6.18]
    #[arg(long)]
    kernel: Option<String>,
    /// The guests' kernel, as 6.12 or 6.12-cloud
    #[arg(long, default_value = kernels::DEFAULT_GUEST)]
    guest_kernel: String,
    /// Measured seconds per phase [default: 25; 20 with --full]
    #[arg(long, value_parser = clap::value_parser!(u64).range(5..=3600))]
    seconds: Option<u64>,
    /// Stretch the slices of all schedulers, the kernel's own too [default: 10 emulated, 1 with --here]
    #[arg(long, value_name = "TIMES", value_parser = clap::value_parser!(u32).range(1..=30), conflicts_with = "here")]
    dilation: Option<u32>,
    /// Length of a micro slice [default: 100, stretched]
    #[arg(long, value_name = "US")]
    micro_slice_us: Option<u64>,
    /// Every phase, in a table
    #[arg(long)]
    full: bool,
    /// PV helpers of the guests (TLB flush, IPI, sched-yield, spinlock) [default with --full: both]
    #[arg(long, value_parser = ["on", "off", "both"])]
    pv: Option<String>,
    /// Leave out the round in which spinning guests exit (PLE); with --here there is none, as hardware does
    /// it anyway
    #[arg(long)]
    no_pause_exits: bool,
    /// Add a phase with `run --scheduler coordinated` (ASPLOS'13) to each round
    #[arg(long)]
    coordinated: bool,
    /// Add a phase with `run --scheduler beside` (the kernel's own scheduler, and boosts) to each round
    #[arg(long)]
    beside: bool,
    /// Run these phases in each round, in this order, in place of the usual ones: kernel, off, 1, paper,
    /// auto, coordinated, beside, profile; one that comes several times is measured as often
    #[arg(
        long,
        value_name = "NAME,…",
        value_delimiter = ',',
        value_parser = PossibleValuesParser::new(PHASES.map(|(name, _)| name)),
        conflicts_with_all = ["coordinated", "beside"]
    )]
    phases: Vec<String>,
    /// Write what `microslice observe --profile` saw of the guests in the phase `profile`, which has to be
    /// one of --phases
    #[arg(long, value_name = "FILE", requires = "phases")]
    profile: Option<PathBuf>,
    /// Write what was measured to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the screen as a self-contained page with plots
    #[arg(long, value_name = "FILE", conflicts_with = "full")]
    html: Option<PathBuf>,
}

pub fn run(args: Demo) -> Result<(), Failure> {
    let chosen = phases_chosen_by(&args);
    if let (Some(option), true) = (chosen, args.html.is_some()) {
        return Err(Failure::bad_input(format_args!(
            "--html draws the screen of the short demo: {option} asks for phases of --full"
        )));
    }
    check_names(&args)?;
    if args.here {
        check_this_host(needs_sched_ext(&args))?;
    }
    match args.full || chosen.is_some() {
        true => run_full(&args),
        false => short::run(&args),
    }
}

/// The first option that only means something for the phases of `--full`.
fn phases_chosen_by(args: &Demo) -> Option<&'static str> {
    let options = [
        ("--phases", !args.phases.is_empty()),
        ("--pv", args.pv.is_some()),
        ("--coordinated", args.coordinated),
        ("--beside", args.beside),
        ("--no-pause-exits", args.no_pause_exits),
    ];
    options.into_iter().find(|(_, is_given)| *is_given).map(|(option, _)| option)
}

/// Every phase, or those that were chosen.
fn run_full(args: &Demo) -> Result<(), Failure> {
    if args.profile.is_some() && !args.phases.iter().any(|phase| phase == "profile") {
        return Err(Failure::bad_input("--profile: the phase `profile` isn't one of --phases"));
    }
    // Whatever runs for us dies with this process.
    interrupt::on_signal(Some(Duration::ZERO), || ())?;
    output::refuse_same_file(args.json.as_deref(), args.profile.as_deref())?;
    let json = OutputFile::wanted(args.json.as_deref(), &[])?;
    let profile = OutputFile::wanted(args.profile.as_deref(), &[])?;
    let plan = Plan { schedulers: schedulers(args), rounds: rounds(args), ..plan_of(args, FULL_SECONDS)? };
    let start = Instant::now();
    let progress = |what: &str| output::say(format_args!("demo: {:>4} s  {what}", start.elapsed().as_secs()));
    let boot = |pause_exits| host(args, pause_exits);
    let phases = demo::run(&plan, &boot, &progress).map_err(Failure::broken)?;
    if let (Some(file), Some(text)) = (profile, phases.iter().find_map(|phase| phase.profile.as_deref())) {
        file.finish_with(text)?;
    }
    // First: minutes of measuring shall not be lost to a full terminal log.
    if let Some(file) = json {
        file.finish_with(&format!("{:#}\n", demo_report::to_json(&phases)))?;
    }
    output::print(&format!("{}\n", demo_report::to_text(&phases, &plan, !args.here)))
}

/// A plan without schedulers and rounds.
fn plan_of(args: &Demo, seconds: u64) -> Result<Plan, Failure> {
    let dilation = if args.here { 1 } else { args.dilation.unwrap_or(demo::EMULATED_DILATION) };
    let plan = stretched(dilation);
    Ok(Plan {
        seconds: args.seconds.unwrap_or(seconds),
        micro_slice_us: args.micro_slice_us.unwrap_or(plan.micro_slice_us),
        guest_kernel: args.guest_kernel.clone(),
        own_cgroups: !args.here,
        microslice: if args.here { this_binary()?.display().to_string() } else { plan.microslice },
        ..plan
    })
}

/// All slices are so many times as long as those of `microslice run` on hardware; what else there is to
/// choose is the caller's.
pub(super) fn stretched(dilation: u32) -> Plan {
    // An emulated vCPU needs a micro slice to enter its guest (docs/explanation/testbed.md).
    let hardware = Settings::default();
    let times = u64::from(dilation);
    Plan {
        seconds: 0,
        dilation,
        slice_us: hardware.slice_us * times,
        micro_slice_us: hardware.micro_slice_us * times,
        urgent_slice_us: hardware.urgent_slice_us * times,
        urgent_allowance_us: (hardware.urgent_allowance_us * times).min(HOLD_US_MAX),
        urgent_answer_us: hardware.urgent_answer_us * times,
        boost_percent: hardware.boost_percent * dilation,
        guest_kernel: String::new(),
        own_cgroups: true,
        microslice: "microslice".into(),
        schedulers: Vec::new(),
        rounds: Vec::new(),
    }
}

fn schedulers(args: &Demo) -> Vec<Scheduler> {
    if !args.phases.is_empty() {
        let named = args.phases.iter().filter_map(|name| PHASES.iter().find(|(phase, _)| phase == name));
        return named.map(|&(_, scheduler)| scheduler).collect();
    }
    let more = [(args.coordinated, Scheduler::Coordinated), (args.beside, Scheduler::Beside)];
    let more = more.into_iter().filter(|(is_wanted, _)| *is_wanted).map(|(_, scheduler)| scheduler);
    demo::SCHEDULERS.into_iter().chain(more).collect()
}

/// Hardware has pause-loop exiting in every round; emulated, it gets one of its own.
fn rounds(args: &Demo) -> Vec<Round> {
    let helpers = match args.pv.as_deref() {
        Some("on") => &[Pv::On][..],
        Some("off") => &[Pv::Off],
        _ => &[Pv::On, Pv::Off],
    };
    let mut rounds: Vec<_> = helpers.iter().map(|&pv| Round { pv, pause_exits: false }).collect();
    if !args.here && !args.no_pause_exits && args.pv.as_deref() != Some("on") {
        rounds.push(Round { pv: Pv::Off, pause_exits: true });
    }
    rounds
}

/// The names are the user's: a wrong one is bad input, not a broken testbed.
fn check_names(args: &Demo) -> Result<(), Failure> {
    kernels::Rule::guest(&args.guest_kernel).map_err(Failure::bad_input)?;
    Testbed::new(series(args)).map(drop).map_err(Failure::bad_input)
}

fn series(args: &Demo) -> &str {
    args.kernel.as_deref().unwrap_or(kernels::DEFAULT_HOST)
}

fn host(args: &Demo, pause_exits: bool) -> microslice_testbed::Result<Host> {
    if args.here {
        return Host::here(&[&args.guest_kernel]);
    }
    emulated(series(args), &args.guest_kernel, pause_exits)?.boot()
}

/// A host of that series with guests of one kernel, and this program in it.
pub(super) fn emulated(
    series: &str,
    guest_kernel: &str,
    pause_exits: bool,
) -> microslice_testbed::Result<Testbed> {
    let testbed = Testbed::new(series)?.with_guest_kernels(&[guest_kernel])?;
    let testbed = if pause_exits { testbed.pause_exits() } else { testbed };
    let binary = std::env::current_exe().map_err(|error| Error::file("this program", error))?;
    Ok(testbed.with_binary(binary))
}

fn this_binary() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(Failure::broken)
}

/// The phases of the kernel's own scheduler don't.
fn needs_sched_ext(args: &Demo) -> bool {
    args.phases.is_empty()
        || args.phases.iter().any(|phase| !["kernel", "beside", "profile"].contains(&phase.as_str()))
}

/// What `--here` needs of this host, before anything is started; `microslice run` looks closer.
fn check_this_host(needs_sched_ext: bool) -> Result<(), Failure> {
    let instead = "without --here the demo emulates a host that can";
    let needs = [("/sys/kernel/sched_ext/state", "sched_ext", needs_sched_ext), ("/dev/kvm", "KVM", true)];
    for (path, what, is_needed) in needs {
        if is_needed && !Path::new(path).exists() {
            return Err(Failure::bad_input(format_args!(
                "this host has no {what} ({path} is missing); {instead}"
            )));
        }
    }
    std::fs::File::open("/dev/kvm")
        .map(drop)
        .map_err(|cause| Failure::bad_input(format_args!("/dev/kvm: {cause}: run as root; {instead}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        demo: Demo,
    }

    fn parsed(line: &str) -> Result<Demo, clap::Error> {
        Line::try_parse_from(["demo"].into_iter().chain(line.split_whitespace())).map(|line| line.demo)
    }

    #[test]
    fn phases_of_the_kernels_own_scheduler_need_no_sched_ext() {
        for (line, needs) in [("", true), ("--phases kernel,beside", false), ("--phases kernel,1", true)] {
            assert_eq!(needs_sched_ext(&parsed(line).expect(line)), needs, "{line}");
        }
    }

    fn chosen(line: &str) -> Option<&'static str> {
        phases_chosen_by(&parsed(line).expect(line))
    }

    #[test]
    fn options_that_choose_among_all_phases_ask_for_these() {
        for line in
            ["", "--seconds 30", "--here --json a", "--kernel 7.2 --guest-kernel 6.1 --html b", "--full"]
        {
            assert_eq!(chosen(line), None, "{line}");
        }
        for option in ["--pv", "--phases", "--coordinated", "--beside", "--no-pause-exits"] {
            let value = if option == "--pv" { "off" } else { "" };
            let value = if option == "--phases" { "kernel,1" } else { value };
            assert_eq!(chosen(&format!("{option} {value}")), Some(option));
            assert_eq!(chosen(&format!("--full {option} {value}")), Some(option), "both mean the same");
        }
    }

    #[test]
    fn a_page_of_the_short_demo_and_phases_of_the_full_one_contradict_each_other() {
        assert!(parsed("--full --html a.html").is_err());
        let refused =
            run(parsed("--pv off --html a.html").expect("for clap it is right")).expect_err("refused");
        let text = refused.to_string();
        assert!(text.starts_with("--html ") && text.contains("--pv asks for phases of --full"), "{text}");
        assert!(parsed("--profile p.json").is_err(), "only a chosen phase has a profile");
    }

    #[test]
    fn without_a_choice_the_full_demo_has_three_rounds_of_five_phases() {
        let all = parsed("--full").expect("valid");
        assert_eq!((rounds(&all).len(), schedulers(&all).len()), (3, 5));
        let off = parsed("--pv off").expect("valid");
        assert_eq!((rounds(&off).len(), rounds(&off)[1].pause_exits), (2, true));
        assert_eq!(rounds(&parsed("--pv on").expect("valid")).len(), 1);
        assert_eq!(rounds(&parsed("--full --here").expect("valid")).len(), 2);
    }
}
