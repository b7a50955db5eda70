//! Where a kernel's text lies in a stretch of memory, told by its calls.
//!
//! Problem.   kallsyms says where functions are linked or run, not where their bytes lie. A kernel that was
//!            built without `CONFIG_KALLSYMS_ALL` names no data, so that there is no banner to find the place
//!            by.
//! Mechanism. A direct call holds a distance, which no slide changes. At the right place most calls lead to
//!            the start of a function that kallsyms knows; at a wrong one nearly none does (one address in
//!            100 to 200 is such a start).
//! Limits.    Places are tried page by page, downwards from the table: the text of its own kernel lies before
//!            it.

use crate::{Symbol, SymbolTable, TextBounds};

const PAGE_BYTES: usize = 4096;
/// Functions that are looked at, spread over the text.
const FUNCTIONS: usize = 96;
/// How far into a function its first call is looked for.
const FUNCTION_BYTES: usize = 96;
/// `call rel32`; the byte also occurs inside other instructions, which is why not all need fit.
const CALL: u8 = 0xe8;
const CALL_BYTES: usize = 5;
/// Calls that must be there to tell.
const CALLS_MIN: usize = 16;

/// Offset in `window` of the byte at `text`, the lowest address of `symbols`' text; `table_offset`: where
/// kallsyms is.
pub(super) fn offset_by_calls(
    window: &[u8],
    symbols: &SymbolTable,
    text: u64,
    table_offset: usize,
) -> Option<i64> {
    let calls = Calls::of(window, symbols, text)?;
    let last = table_offset.checked_sub(calls.text_bytes)? & !(PAGE_BYTES - 1);
    let place =
        (0..=last / PAGE_BYTES).rev().map(|page| page * PAGE_BYTES).find(|&place| calls.fit(place))?;
    i64::try_from(place).ok()
}

struct Calls<'w> {
    window: &'w [u8],
    symbols: &'w SymbolTable,
    bounds: TextBounds,
    text: u64,
    text_bytes: usize,
    /// Distances from `text`.
    functions: Vec<usize>,
}

impl<'w> Calls<'w> {
    fn of(window: &'w [u8], symbols: &'w SymbolTable, text: u64) -> Option<Self> {
        let bounds = symbols.text_bounds()?;
        let text_bytes = usize::try_from(bounds.end.checked_sub(text)?).ok()?;
        if text_bytes > window.len() || !text.is_multiple_of(PAGE_BYTES as u64) {
            return None;
        }
        let is_function = |symbol: &Symbol<'_>| symbol.is_text() && bounds.contains(symbol.address);
        let all: Vec<u64> = symbols.iter().filter(is_function).map(|symbol| symbol.address).collect();
        let step = (all.len() / FUNCTIONS).max(1);
        let functions = all
            .iter()
            .step_by(step)
            .filter_map(|address| usize::try_from(address.checked_sub(text)?).ok())
            .filter(|distance| distance + FUNCTION_BYTES + CALL_BYTES <= text_bytes)
            .collect();
        Some(Self { window, symbols, bounds, text, text_bytes, functions })
    }

    /// Do most of the calls lead to functions if the text starts at `place`?
    fn fit(&self, place: usize) -> bool {
        let (mut calls, mut fitting) = (0, 0);
        for &distance in &self.functions {
            let Some(target) = self.first_call(place, distance) else { continue };
            calls += 1;
            fitting += usize::from(self.symbols.lookup(target).is_some_and(|hit| hit.offset == 0));
            if calls == CALLS_MIN && fitting * 2 < calls {
                return false;
            }
        }
        calls >= CALLS_MIN && fitting * 2 >= calls
    }

    /// Where the first call near the start of a function leads, if that is in the text.
    fn first_call(&self, place: usize, distance: usize) -> Option<u64> {
        let start = place.checked_add(distance)?;
        let code = self.window.get(start..start.checked_add(FUNCTION_BYTES + CALL_BYTES)?)?;
        let at = memchr::memchr(CALL, &code[..FUNCTION_BYTES])?;
        let relative = i32::from_le_bytes(*code[at + 1..].first_chunk()?);
        let behind = self.text.wrapping_add((distance + at + CALL_BYTES) as u64);
        let target = behind.wrapping_add_signed(i64::from(relative));
        self.bounds.contains(target).then_some(target)
    }
}
