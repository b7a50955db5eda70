//! `microslice symbols slide`.

use super::addresses;
use super::kernel::KernelArgs;
use super::output;
use crate::failure::Failure;
use clap::Args;
use microslice_symbols::SymbolTable;
use microslice_symbols::slide::{Landmarks, Observation, SlideFinder, SlideState, halt_sites_of};
use serde_json::{Value, json};
use std::io::Write;

/// Find how far KASLR moved a kernel, from the addresses where its vCPUs halted
#[derive(Args)]
#[command(after_help = "Examples:
  microslice symbols slide --kernel /boot/vmlinuz-6.1.0-50-amd64 0xffffffff8424e8ca
  microslice symbols slide --kernel vmlinuz --lstar 0xffffffff84400080 0xf0f6 0xffffffff8424e8ca --json
Halt addresses are what the tracepoint kvm:kvm_exit reports for the reason hlt. Addresses outside
the kernel image (firmware, modules) are ignored. Two witnesses that agree (two halts, or a halt
and --lstar) make the slide accepted, one makes it a candidate; a later one that contradicts it
drops it. Without a slide the exit code is 2.")]
pub struct Slide {
    #[command(flatten)]
    kernel: KernelArgs,

    /// MSR_LSTAR of a vCPU, a second witness
    #[arg(long, value_name = "HEX", value_parser = addresses::parse)]
    lstar: Option<u64>,

    /// KERNELOFFSET of the guest's VMCOREINFO, a check
    #[arg(long, value_name = "HEX", value_parser = addresses::parse)]
    kernel_offset: Option<u64>,

    /// Where vCPUs halted, hexadecimal, in the order of time
    #[arg(value_name = "ADDRESS", required_unless_present = "lstar", value_parser = addresses::parse)]
    addresses: Vec<u64>,

    /// One JSON object: slide, state, witnesses, what each address meant
    #[arg(long)]
    json: bool,
}

/// One observation, for the report.
struct Observed {
    what: &'static str,
    address: u64,
    meant: Observation,
}

pub fn run(args: Slide) -> Result<(), Failure> {
    let kernel = args.kernel.open()?.kernel;
    let mut finder = SlideFinder::new(Landmarks::new(&kernel.symbols, &halt_sites_of(&kernel)));
    let observed = observe(&mut finder, &args);
    let found = match finder.state() {
        SlideState::Accepted { slide } | SlideState::Candidate { slide: Some(slide) } => Ok(slide),
        state => Err(why_not(&finder, state, &observed)),
    };
    if args.json {
        output::json(&as_json(&finder, &found, &observed, &kernel.symbols))?;
    }
    let slide = found.map_err(Failure::bad_input)?;
    if args.json {
        return Ok(());
    }
    output::to_stdout(|out| writeln!(out, "{slide:#x} ({})", state_phrase(&finder, &observed)))
}

fn observe(finder: &mut SlideFinder, args: &Slide) -> Vec<Observed> {
    let halts = args.addresses.iter().map(|&address| {
        let meant = finder.observe_halt(address);
        Observed { what: "halt", address, meant }
    });
    let mut observed: Vec<Observed> = halts.collect();
    if let Some(address) = args.lstar {
        observed.push(Observed { what: "lstar", address, meant: finder.observe_lstar(address) });
    }
    if let Some(address) = args.kernel_offset {
        observed.push(Observed {
            what: "kernel_offset",
            address,
            meant: finder.observe_kernel_offset(address),
        });
    }
    observed
}

fn state_phrase(finder: &SlideFinder, observed: &[Observed]) -> String {
    let witnesses = finder.witnesses();
    let mut who = Vec::new();
    match witnesses.halt_count {
        0 => {}
        1 => who.push("1 halt".to_owned()),
        count => who.push(format!("{count} halts")),
    }
    if witnesses.lstar {
        who.push("MSR_LSTAR".into());
    }
    if witnesses.kernel_offset {
        who.push("VMCOREINFO".into());
    }
    let ignored = observed.iter().filter(|seen| seen.meant == Observation::Outside).count();
    let ignored =
        if ignored > 0 { format!("; {ignored} outside the kernel image ignored") } else { String::new() };
    format!("{}: {}{ignored}", state_name(finder.state()), who.join(" and "))
}

fn state_name(state: SlideState) -> &'static str {
    match state {
        SlideState::Unknown => "unknown",
        SlideState::Candidate { .. } => "candidate",
        SlideState::Accepted { .. } => "accepted",
        SlideState::Contradicted(_) => "contradicted",
    }
}

fn why_not(finder: &SlideFinder, state: SlideState, observed: &[Observed]) -> String {
    let why = match state {
        SlideState::Contradicted(contradiction) => contradiction.to_string(),
        SlideState::Candidate { .. } => {
            "the halts fit more than one slide; give --lstar, or halts at other addresses".to_owned()
        }
        _ if observed.iter().any(|seen| seen.meant == Observation::NoLandmark) => {
            "this source has neither code nor symbols to compare the address with; give the kernel image"
                .into()
        }
        _ => format!(
            "every address is outside the kernel image (firmware, user code, modules); none can be one of the \
             kernel's {} hlt instructions",
            finder.landmarks().halt_site_count()
        ),
    };
    format!("no slide: {why}")
}

fn as_json(
    finder: &SlideFinder,
    found: &Result<u64, String>,
    observed: &[Observed],
    symbols: &SymbolTable,
) -> Value {
    let meaning = |meant| match meant {
        Observation::Agrees => "agrees",
        Observation::Disagrees => "disagrees",
        Observation::Outside => "ignored",
        Observation::NoLandmark => "no_landmark",
        Observation::Compatible => "compatible",
    };
    let place = |address: u64| {
        let hit = symbols.lookup(address.wrapping_sub(*found.as_ref().ok()?))?;
        Some(format!("{}+{:#x}", hit.symbol.name, hit.offset))
    };
    let rows = observed.iter().map(|seen| {
        json!({
            "kind": seen.what,
            "address": format!("{:#x}", seen.address),
            "meaning": meaning(seen.meant),
            "place": if seen.meant == Observation::Agrees { place(seen.address) } else { None },
        })
    });
    let witnesses = finder.witnesses();
    json!({
        "slide": found.as_ref().ok().map(|slide| format!("{slide:#x}")),
        "state": state_name(finder.state()),
        "reason": found.as_ref().err(),
        "witnesses": {
            "halts": witnesses.halt_count,
            "lstar": witnesses.lstar,
            "kernel_offset": witnesses.kernel_offset,
        },
        "halt_sites": finder.landmarks().halt_site_count(),
        "addresses": rows.collect::<Vec<_>>(),
    })
}
