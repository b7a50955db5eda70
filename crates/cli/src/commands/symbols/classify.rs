//! `microslice symbols classify`.

use super::addresses::{self, CatalogueArgs};
use super::kernel::KernelArgs;
use super::output;
use crate::failure::Failure;
use clap::Args;
use microslice_symbols::{ClassMap, CodeClass, SymbolTable};
use serde_json::{Value, json};
use std::io::Write;

/// Say what a guest does at an address: its symbol and its class, one JSON line per address
#[derive(Args)]
#[command(after_help = "Examples:
  microslice symbols classify --kernel /boot/vmlinuz-6.1.0-50-amd64 0xffffffff81a4e8ca
  microslice symbols classify --kernel vmlinuz --slide 0x2800000 ffffffff8402e8ca 7f0123456789
  microslice symbols classify --pid $(pidof qemu-system-x86_64) 0xffffffff9a24e8ca
Classes: lock_holder, lock_waiter, tlb_shootdown, resched_ipi, irq_handler, idle; user for the
lower half of the address space, kernel_other for the rest of the kernel's text, else unknown.
Addresses are as the guest runs. The slide is 0 if not given (nokaslr, or addresses as linked);
a running guest's is found in its memory.")]
pub struct Classify {
    #[command(flatten)]
    kernel: KernelArgs,

    /// How far KASLR moved the kernel: running address minus linked address (`microslice symbols slide` finds
    /// it)
    #[arg(long, value_name = "HEX", value_parser = addresses::parse)]
    slide: Option<u64>,

    #[command(flatten)]
    catalogue: CatalogueArgs,

    /// Instruction pointers, hexadecimal
    #[arg(value_name = "ADDRESS", required = true, value_parser = addresses::parse)]
    addresses: Vec<u64>,

    /// One JSON object a line; it has no other form
    #[arg(long)]
    json: bool,
}

pub fn run(args: Classify) -> Result<(), Failure> {
    let catalogue = args.catalogue.read()?;
    let source = args.kernel.open()?;
    let slide = args.slide.or(source.slide).unwrap_or(0);
    let symbols = &source.kernel.symbols;
    let classes = catalogue.class_map(symbols);
    output::to_stdout(|out| {
        args.addresses
            .iter()
            .try_for_each(|&address| writeln!(out, "{}", classified(symbols, &classes, address, slide)))
    })
}

fn classified(symbols: &SymbolTable, classes: &ClassMap, address: u64, slide: u64) -> Value {
    let class = classes.classify(address, Some(slide));
    let hit = match class {
        CodeClass::User => None,
        // Per-CPU symbols of old layouts lie at the bottom of the address space: the last of them isn't near
        // a kernel address.
        _ => symbols.lookup(address.wrapping_sub(slide)).filter(|hit| hit.symbol.address >> 63 == 1),
    };
    json!({
        "address": format!("{address:#x}"),
        "symbol": hit.map(|hit| hit.symbol.name),
        "offset": hit.map(|hit| hit.offset),
        "class": class,
    })
}
