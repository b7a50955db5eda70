//! `microslice testbed campaign`: faults drawn by a seed, and whether what is promised still holds.

use crate::failure::Failure;
use crate::interrupt;
use crate::output::{self, OutputFile};
use clap::{Args, ValueEnum};
use microslice_testbed::campaign::{self, BootReport, Plan, Scheduler};
use microslice_testbed::{Error, Testbed, kernels};
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Schedulers {
    Microslice,
    Coordinated,
    None,
}

/// Do faults to emulated hosts, drawn by a seed, and look after each whether what is promised still holds
#[derive(Args)]
#[command(after_help = "Examples:
  microslice testbed campaign --minutes 30              boots one host after the other for half an hour
  microslice testbed campaign --seed 7 --boots 1        one boot; the same seed gives the same faults
  microslice testbed campaign --scheduler none          the same faults under the kernel's own scheduler
  microslice testbed campaign --seed 7 --boots 2 --dry-run --json
                                                        what would be done
Faults: SIGKILL and SIGSTOP of the daemon, pCPUs and cgroups that come and go, VMs by tens, real-time tasks, memory that runs out, jumps
of the clock, changed affinities, and guests that mean ill. After each: guests' hearts beat, nobody runnable waited for more than 10 s,
equal guests have equal shares within 1 %, the kernel's own scheduler was back if ours was killed, and the kernel didn't complain.
A finding ends with exit code 1. A machine that emulation lost is told, and is no finding (docs/explanation/testbed.md, The campaign).")]
pub struct Campaign {
    /// Begin no fault after so many minutes
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=10_080))]
    minutes: u64,
    /// Boot at most so many hosts
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    boots: Option<u32>,
    /// Faults per boot
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=100))]
    faults: u32,
    /// Which faults are drawn
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The scheduler: one of ours, or the kernel's own
    #[arg(long, value_enum, default_value_t = Schedulers::Microslice)]
    scheduler: Schedulers,
    /// The host's kernel series
    #[arg(long, default_value = kernels::DEFAULT_HOST)]
    kernel: String,
    /// Print the faults, and boot nothing (needs --boots)
    #[arg(long, requires = "boots")]
    dry_run: bool,
    /// Print one JSON object at the end: every fault, what was seen, and what was found
    #[arg(long)]
    json: bool,
    /// Write the same to a file
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub fn run(args: &Campaign) -> Result<(), Failure> {
    Testbed::new(&args.kernel).map_err(Failure::bad_input)?;
    let plan = Plan {
        time: Duration::from_secs(args.minutes * 60),
        boots: args.boots.map(|boots| boots as usize),
        faults_per_boot: args.faults as usize,
        seed: args.seed,
        scheduler: match args.scheduler {
            Schedulers::Microslice => Scheduler::Microslice,
            Schedulers::Coordinated => Scheduler::Coordinated,
            Schedulers::None => Scheduler::None,
        },
        kernel: args.kernel.clone(),
        binary: std::env::current_exe().map_err(Failure::broken)?,
    };
    if args.dry_run {
        return print_plan(&plan, args.json);
    }
    let file = OutputFile::wanted(args.output.as_deref(), &[])?;
    // Emulators die with this process.
    interrupt::on_signal(Some(Duration::ZERO), || ())?;
    let (began, mut number) = (Instant::now(), 0);
    let progress =
        |what: &str| output::say(format_args!("campaign: {:>5} s  {what}", began.elapsed().as_secs()));
    let mut print_boot = |boot: &BootReport| {
        number += 1;
        if args.json {
            return Ok(());
        }
        output::print(&format!("{}\n", boot.to_text(number)))
            .map_err(|_| Error::file("standard output", "broken"))
    };
    let boots = campaign::run(&plan, &progress, &mut print_boot).map_err(Failure::broken)?;
    let json = campaign::to_json(&plan, &boots);
    if let Some(file) = file {
        file.finish_with(&format!("{json:#}\n"))?;
    }
    if args.json {
        output::print_json(&json)?
    } else {
        output::print(&campaign::to_text(&boots))?
    }
    match campaign::findings(&boots) {
        0 => Ok(()),
        count => Err(Failure::broken(format_args!("{count} findings, with seed {}", plan.seed))),
    }
}

fn print_plan(plan: &Plan, json: bool) -> Result<(), Failure> {
    let boots: Vec<_> = plan.boots().take(plan.boots.unwrap_or(0)).collect();
    if json {
        return output::print_json(&serde_json::json!({ "seed": plan.seed, "boots": boots }));
    }
    boots.iter().enumerate().try_for_each(|(at, boot)| {
        let exits = if boot.pause_exits { ", PAUSE exits" } else { "" };
        let faults: String = boot.faults.iter().map(|fault| format!("  {fault}\n")).collect();
        output::print(&format!("boot {}{exits}\n{faults}", at + 1))
    })
}
