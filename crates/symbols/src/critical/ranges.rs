//! From matched functions to the ranges that the scheduler searches.

use super::CodeClass;
use crate::SymbolTable;

/// Most ranges of one kernel: `CLASS_RANGES_MAX` in `policy/classify.h`. Real kernels need 110 to 200.
pub const RANGES_MAX: usize = 512;
/// No function reaches further. The largest critical one has 10 kB; a table with few symbols, or a forged
/// one, would otherwise let one name cover the kernel.
const FUNCTION_BYTES_MAX: u64 = 64 << 10;

/// Code of one class, `[start, end)`, at linked addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassRange {
    pub start: u64,
    pub end: u64,
    pub class: CodeClass,
}

/// One function, and which entry of the catalogue names it.
#[derive(Debug, Clone, Copy)]
pub(super) struct RankedRange {
    pub range: ClassRange,
    /// Position of its entry in the catalogue: the later, the sooner it is given up.
    pub rank: usize,
}

/// What every address of one kernel means: sorted, disjoint ranges inside the kernel's text, at linked
/// addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassMap {
    text_start: u64,
    text_end: u64,
    ranges: Vec<ClassRange>,
    given_up_entry_count: usize,
}

impl ClassMap {
    /// Merges what touches and has one class. An address that two entries name belongs to the one that stands
    /// first in the catalogue. Beyond [`RANGES_MAX`], whole entries lose their ranges, the catalogue's last
    /// entry first; if even its first entry has too many, its lowest addresses stay.
    pub(super) fn build(text: (u64, u64), matched: &[RankedRange]) -> Self {
        let (text_start, text_end) = text;
        let mut clipped: Vec<RankedRange> =
            matched.iter().filter_map(|ranked| clip(*ranked, text_start, text_end)).collect();
        clipped.sort_by_key(|ranked| (ranked.range.start, ranked.rank));

        let mut ranks: Vec<usize> = clipped.iter().map(|ranked| ranked.rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        let mut ranges = merge(&clipped, usize::MAX);
        let mut given_up_entry_count = 0;
        while ranges.len() > RANGES_MAX && ranks.len() > 1 {
            let given_up = ranks.pop().expect("there are two ranks");
            ranges = merge(&clipped, given_up);
            given_up_entry_count += 1;
        }
        ranges.truncate(RANGES_MAX);
        Self { text_start, text_end, ranges, given_up_entry_count }
    }

    /// Sorted by address, disjoint, at most [`RANGES_MAX`].
    pub fn ranges(&self) -> &[ClassRange] {
        &self.ranges
    }

    /// Linked bounds of the kernel's text, `[start, end)`.
    pub fn text(&self) -> (u64, u64) {
        (self.text_start, self.text_end)
    }

    /// Entries of the catalogue whose ranges didn't fit. 0 for every kernel that isn't forged.
    pub fn given_up_entry_count(&self) -> usize {
        self.given_up_entry_count
    }

    /// Class of a run-time address: the ladder of `classify()` in `policy/classify.h`.
    ///
    /// `slide`: run-time minus linked address, modulo 2^64; `None` while it isn't known.
    pub fn classify(&self, address: u64, slide: Option<u64>) -> CodeClass {
        if address >> 63 == 0 {
            return CodeClass::User;
        }
        let Some(slide) = slide else { return CodeClass::Unknown };
        let linked = address.wrapping_sub(slide);
        if self.ranges.is_empty() || !(self.text_start..self.text_end).contains(&linked) {
            return CodeClass::Unknown;
        }
        let after = self.ranges.partition_point(|range| range.start <= linked);
        match after.checked_sub(1).map(|index| self.ranges[index]) {
            Some(range) if linked < range.end => range.class,
            _ => CodeClass::KernelOther,
        }
    }

    /// Bytes of text that have a class of the catalogue.
    pub fn classed_bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }
}

/// Bounds of the kernel's text: the linker's symbols, or for want of them the first and the last symbol of
/// code.
pub(super) fn text_of(table: &SymbolTable) -> (u64, u64) {
    if let Some(bounds) = table.text_bounds() {
        return (bounds.start, bounds.end);
    }
    let mut code = table.iter().filter(|symbol| symbol.is_text() && symbol.address >> 63 == 1);
    let Some(first) = code.next() else { return (0, 0) };
    (first.address, code.last().unwrap_or(first).end)
}

fn clip(ranked: RankedRange, text_start: u64, text_end: u64) -> Option<RankedRange> {
    let ClassRange { start, end, class } = ranked.range;
    let end = end.min(start.saturating_add(FUNCTION_BYTES_MAX)).min(text_end);
    let start = start.max(text_start);
    (start < end).then_some(RankedRange { range: ClassRange { start, end, class }, ..ranked })
}

/// `sorted` by start, then rank; ranks from `given_up` on are left out.
fn merge(sorted: &[RankedRange], given_up: usize) -> Vec<ClassRange> {
    let mut merged: Vec<ClassRange> = Vec::new();
    for ranked in sorted.iter().filter(|ranked| ranked.rank < given_up) {
        let mut range = ranked.range;
        match merged.last_mut() {
            Some(last) if range.start <= last.end && range.class == last.class => {
                last.end = last.end.max(range.end);
            }
            Some(last) if range.start < last.end => {
                range.start = last.end;
                if range.start < range.end {
                    merged.push(range);
                }
            }
            _ => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BASE: u64 = 0xffff_ffff_8100_0000;

    fn ranked(start: u64, bytes: u64, class: CodeClass, rank: usize) -> RankedRange {
        let start = BASE + start;
        RankedRange { range: ClassRange { start, end: start + bytes, class }, rank }
    }

    fn map(matched: &[RankedRange]) -> ClassMap {
        ClassMap::build((BASE, BASE + 0x100_0000), matched)
    }

    #[test]
    fn neighbours_of_one_class_become_one_range_and_gaps_stay() {
        use CodeClass::{Idle, LockHolder};
        let map = map(&[
            ranked(0x40, 0x40, LockHolder, 0),
            ranked(0x00, 0x40, LockHolder, 1),
            ranked(0x80, 0x10, Idle, 2),
            ranked(0xa0, 0x10, Idle, 2),
        ]);
        let spans: Vec<_> = map.ranges().iter().map(|r| (r.start - BASE, r.end - BASE, r.class)).collect();
        assert_eq!(spans, [(0, 0x80, LockHolder), (0x80, 0x90, Idle), (0xa0, 0xb0, Idle)]);
    }

    #[test]
    fn the_ladder_of_classify_is_user_unknown_range_other() {
        let map = map(&[ranked(0x100, 0x10, CodeClass::TlbShootdown, 0)]);
        assert_eq!(map.classify(0x40_1000, Some(0)), CodeClass::User);
        assert_eq!(map.classify(BASE + 0x100, None), CodeClass::Unknown);
        assert_eq!(map.classify(BASE - 1, Some(0)), CodeClass::Unknown);
        assert_eq!(map.classify(BASE + 0x100_0000, Some(0)), CodeClass::Unknown);
        assert_eq!(map.classify(BASE + 0x20_0100, Some(0x20_0000)), CodeClass::TlbShootdown);
        assert_eq!(map.classify(BASE + 0x10f, Some(0)), CodeClass::TlbShootdown);
        assert_eq!(map.classify(BASE + 0x110, Some(0)), CodeClass::KernelOther);
    }

    #[test]
    fn two_classes_at_one_address_give_it_to_the_first_entry() {
        let map = map(&[ranked(0, 16, CodeClass::Idle, 7), ranked(0, 16, CodeClass::IrqHandler, 3)]);
        assert_eq!(map.classify(BASE, Some(0)), CodeClass::IrqHandler);
    }

    #[test]
    fn too_many_ranges_cost_the_last_entries_theirs() {
        let many = |rank, from: u64| {
            (0..400u64).map(move |index| ranked(from + index * 0x40, 0x10, CodeClass::LockHolder, rank))
        };
        let matched: Vec<_> = many(5, 0x10_0000).chain(many(2, 0)).collect();
        let map = map(&matched);
        assert_eq!((map.ranges().len(), map.given_up_entry_count()), (400, 1));
        assert_eq!(map.classify(BASE, Some(0)), CodeClass::LockHolder);
        assert_eq!(map.classify(BASE + 0x10_0000, Some(0)), CodeClass::KernelOther);
    }

    #[test]
    fn a_forged_entry_alone_is_cut_at_the_limit() {
        let forged: Vec<_> =
            (0..9000u64).map(|i| ranked(i * 0x40, 0x10, CodeClass::TlbShootdown, 0)).collect();
        assert_eq!(map(&forged).ranges().len(), RANGES_MAX);
    }

    #[test]
    fn a_function_without_a_neighbour_doesnt_swallow_the_kernel() {
        let map = map(&[ranked(0, 0x80_0000, CodeClass::TlbShootdown, 0)]);
        assert_eq!(map.classed_bytes(), FUNCTION_BYTES_MAX);
    }

    fn any_ranked() -> impl Strategy<Value = RankedRange> {
        (0u64..0x4000, 1u64..0x200, 3usize..9, 0usize..12)
            .prop_map(|(start, bytes, class, rank)| ranked(start, bytes, CodeClass::ALL[class], rank))
    }

    proptest! {
        #[test]
        fn ranges_are_sorted_disjoint_bounded_and_agree_with_a_linear_reference(
            matched in proptest::collection::vec(any_ranked(), 0..120),
            probes in proptest::collection::vec(0u64..0x4400, 40),
        ) {
            let map = map(&matched);
            prop_assert!(map.ranges().len() <= RANGES_MAX);
            prop_assert!(map.ranges().iter().all(|range| range.start < range.end));
            prop_assert!(map.ranges().is_sorted_by(|a, b| a.end <= b.start));
            for probe in probes {
                let address = BASE + probe;
                let classes: Vec<_> = matched
                    .iter()
                    .filter(|r| (r.range.start..r.range.end).contains(&address))
                    .map(|r| r.range.class)
                    .collect();
                let class = map.classify(address, Some(0));
                if matched.is_empty() {
                    prop_assert_eq!(class, CodeClass::Unknown);
                } else if classes.is_empty() {
                    prop_assert_eq!(class, CodeClass::KernelOther);
                } else {
                    prop_assert!(classes.contains(&class));
                }
            }
        }

        #[test]
        fn a_slide_moves_every_class_with_it(
            matched in proptest::collection::vec(any_ranked(), 1..40), probe in 0u64..0x4400, slide in 0u64..512,
        ) {
            let (map, slide) = (map(&matched), slide << 21);
            prop_assert_eq!(
                map.classify(BASE + probe, Some(0)),
                map.classify(BASE + probe + slide, Some(slide))
            );
        }
    }
}
