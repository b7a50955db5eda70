//! `microslice testbed peers`: ours beside schedulers that people run.

use super::demo::{PHASES, emulated, stretched};
use crate::failure::Failure;
use crate::interrupt;
use crate::output::{self, OutputFile};
use clap::Args;
use clap::builder::PossibleValuesParser;
use microslice_testbed::cache::Cache;
use microslice_testbed::demo::{self, Plan, Round, Scheduler};
use microslice_testbed::peers::{self, Boot, Comparison, Peer};
use microslice_testbed::{Host, Pv, Testbed, kernels};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Of the demo's phases, those that peers run beside: the kernel's own, ours with the pool off, and our
/// default.
const OURS: [&str; 3] = ["kernel", "off", "auto"];

/// Compare ours with schedulers that people run: the same guests, in one boot after the other
#[derive(Args)]
#[command(after_help = "Examples:
  microslice testbed peers                        three boots, half an hour (the first run builds the peers, some minutes)
  microslice testbed peers --peers lavd --boots 1 one peer, one boot
  microslice testbed peers --peers none --pv on   only the kernel's own and ours, with the guests' PV helpers
  microslice testbed peers --json --output peers.json

Each boot begins with each guest alone; all else is told as times that. Peers are scx_bpfland, scx_lavd, scx_rusty and scx_flash, as
their authors publish them, with slices stretched as all others. A peer that can't be built, or that doesn't load, is a row that says
why.")]
pub struct Peers {
    /// Which peers; `none` for none of them
    #[arg(
        long,
        value_name = "NAME,…",
        value_delimiter = ',',
        default_value = "bpfland,lavd,rusty,flash",
        value_parser = PossibleValuesParser::new(["bpfland", "lavd", "rusty", "flash", "none"])
    )]
    peers: Vec<String>,
    /// How many boots
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    boots: u32,
    /// Measured seconds per phase
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(5..=3600))]
    seconds: u64,
    /// Series of the emulated host's kernel
    #[arg(long, default_value = kernels::DEFAULT_HOST)]
    kernel: String,
    /// The guests' kernel, as 6.12 or 6.12-cloud
    #[arg(long, default_value = kernels::DEFAULT_GUEST)]
    guest_kernel: String,
    /// PV helpers of the guests (TLB flush, IPI, sched-yield, spinlock)
    #[arg(long, default_value = "off", value_parser = ["on", "off"])]
    pv: String,
    /// Spinning guests exit (PLE)
    #[arg(long)]
    pause_exits: bool,
    /// Stretch the slices of all schedulers
    #[arg(
        long,
        value_name = "TIMES",
        default_value_t = demo::EMULATED_DILATION,
        value_parser = clap::value_parser!(u32).range(1..=30)
    )]
    dilation: u32,
    /// Print one JSON object at the end: each phase of each boot, and figures over what guests have alone
    #[arg(long)]
    json: bool,
    /// Write the same to a file
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub fn run(args: &Peers) -> Result<(), Failure> {
    let wanted = wanted(&args.peers)?;
    let round = Round { pv: if args.pv == "on" { Pv::On } else { Pv::Off }, pause_exits: args.pause_exits };
    kernels::Rule::guest(&args.guest_kernel).map_err(Failure::bad_input)?;
    Testbed::new(&args.kernel).map_err(Failure::bad_input)?;
    let file = OutputFile::wanted(args.output.as_deref(), &[])?;
    // Whatever runs for us dies with this process.
    interrupt::on_signal(Some(Duration::ZERO), || ())?;
    let start = Instant::now();
    let progress =
        |what: &str| output::say(format_args!("peers: {:>5} s  {what}", start.elapsed().as_secs()));
    let built = build(&wanted, &progress)?;
    let plan = plan(args, &wanted, round);
    let boot = || host(args, &built);
    let mut boots: Vec<Boot> = Vec::new();
    let comparison = Comparison {
        plan: &plan,
        boots: args.boots,
        missing: &built.missing,
        boot: &boot,
        progress: &progress,
    };
    let outcome = peers::run(&comparison, &mut |boot| boots.push(boot));
    // Boots before the one that failed are worth having.
    if outcome.is_ok() || !boots.is_empty() {
        report(args, &plan, &boots, round, file)?;
    }
    outcome.map_err(Failure::broken)
}

fn report(
    args: &Peers,
    plan: &Plan,
    boots: &[Boot],
    round: Round,
    file: Option<OutputFile>,
) -> Result<(), Failure> {
    let json = peers::to_json(plan, boots);
    if let Some(file) = file {
        file.finish_with(&format!("{json:#}\n"))?;
    }
    match args.json {
        true => output::print_json(&json),
        false => output::print(&peers::to_text(plan, boots, round.name())),
    }
}

fn wanted(names: &[String]) -> Result<Vec<Peer>, Failure> {
    let mut wanted = Vec::new();
    for name in names.iter().filter(|name| *name != "none") {
        let peer = Peer::ALL.into_iter().find(|peer| peer.name() == name);
        let peer =
            peer.ok_or_else(|| Failure::bad_input(format_args!("--peers: no peer is called {name}")))?;
        if wanted.contains(&peer) {
            return Err(Failure::bad_input(format_args!("--peers: {name} is there twice")));
        }
        wanted.push(peer);
    }
    if !wanted.is_empty() && wanted.len() < names.len() {
        return Err(Failure::bad_input("--peers: `none` stands alone"));
    }
    Ok(wanted)
}

/// Peers that were built, and those that can't be.
#[derive(Default)]
struct Built {
    programs: Vec<(Peer, PathBuf)>,
    missing: Vec<(Peer, String)>,
}

fn build(wanted: &[Peer], progress: &dyn Fn(&str)) -> Result<Built, Failure> {
    let cache = Cache::locate().map_err(Failure::broken)?;
    let mut built = Built::default();
    for &peer in wanted {
        match peers::obtain(&cache, peer, progress) {
            Ok(program) => built.programs.push((peer, program)),
            Err(error) => {
                progress(&error.to_string());
                built.missing.push((peer, error.to_string()));
            }
        }
    }
    Ok(built)
}

fn plan(args: &Peers, wanted: &[Peer], round: Round) -> Plan {
    let peers = wanted.iter().map(|&peer| Scheduler::Peer(peer));
    let named = |name: &str| PHASES.iter().find(|(phase, _)| *phase == name).map(|&(_, scheduler)| scheduler);
    let ours: Vec<Scheduler> = OURS.into_iter().filter_map(named).collect();
    let (kernel, ours) = ours.split_at(1);
    Plan {
        seconds: args.seconds,
        guest_kernel: args.guest_kernel.clone(),
        schedulers: kernel.iter().copied().chain(peers).chain(ours.iter().copied()).collect(),
        rounds: vec![round],
        ..stretched(args.dilation)
    }
}

fn host(args: &Peers, built: &Built) -> microslice_testbed::Result<Host> {
    let testbed = emulated(&args.kernel, &args.guest_kernel, args.pause_exits)?;
    let with =
        |testbed: Testbed, (peer, program): &(Peer, PathBuf)| testbed.with_program(peer.program(), program);
    built.programs.iter().fold(testbed, with).boot()
}
