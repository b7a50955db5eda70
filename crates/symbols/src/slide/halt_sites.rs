//! Every `hlt` instruction of a kernel, by disassembly.

use crate::{Code, Kernel, SymbolTable};
use iced_x86::{Code as Opcode, Decoder, DecoderOptions, Instruction};

/// Most `hlt` instructions that are kept. Real kernels have 6 to 11; more are data that was taken for code.
pub const HALT_SITES_MAX: usize = 64;
/// The opcode. It is also a frequent byte of other instructions: only decoding from a known start tells them
/// apart.
const HLT: u8 = 0xf4;
/// Longest symbol that is decoded; the largest function of a kernel has some 60 kB.
const FUNCTION_BYTES_MAX: u64 = 1 << 20;

/// Linked addresses of all `hlt` instructions, rising: in the text and in the code that is freed after boot.
///
/// Decoding starts afresh at each symbol, so that data between functions can't shift what follows.
pub fn halt_sites(symbols: &SymbolTable, code: &Code) -> Vec<u64> {
    let Some(text) = symbols.text_bounds() else { return Vec::new() };
    let mut sites = Vec::new();
    let mut last_start = None;
    for symbol in symbols.iter().filter(|symbol| symbol.is_text() && text.contains(symbol.address)) {
        if last_start.replace(symbol.address) == Some(symbol.address) {
            continue;
        }
        let length = (symbol.end - symbol.address).min(FUNCTION_BYTES_MAX);
        if let Some(bytes) = code.at(symbol.address, length as usize) {
            halts_in(bytes, symbol.address, &mut sites);
        }
        if sites.len() >= HALT_SITES_MAX {
            sites.truncate(HALT_SITES_MAX);
            break;
        }
    }
    sites
}

/// The sites that the kernel's source has noted, or else those that its code shows.
pub fn halt_sites_of(kernel: &Kernel) -> Vec<u64> {
    match &kernel.code {
        Some(code) if kernel.halt_sites.is_empty() => halt_sites(&kernel.symbols, code),
        _ => kernel.halt_sites.clone(),
    }
}

fn halts_in(bytes: &[u8], address: u64, sites: &mut Vec<u64>) {
    let Some(last) = memchr::memrchr(HLT, bytes) else { return };
    let mut decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    while decoder.can_decode() && decoder.position() <= last {
        decoder.decode_out(&mut instruction);
        if instruction.code() == Opcode::Hlt {
            sites.push(instruction.ip());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_decoded_hlt_counts() {
        // mov eax, 0xf4f4f4f4; sti; hlt; ret; hlt
        let code = [0xb8, 0xf4, 0xf4, 0xf4, 0xf4, 0xfb, 0xf4, 0xc3, 0xf4];
        let mut sites = Vec::new();
        halts_in(&code, 0x1000, &mut sites);
        assert_eq!(sites, [0x1006, 0x1008]);
    }

    #[test]
    fn an_instruction_cut_off_by_the_end_isnt_read_past_it() {
        let mut sites = Vec::new();
        halts_in(&[0xf4, 0x48, 0xb8, 0xf4], 0x1000, &mut sites);
        assert_eq!(sites, [0x1000]);
    }
}
