//! Classification of guest instruction pointers: exact, between, below, above, and against a linear search.

use microslice_policy::*;
use proptest::prelude::*;

const TEXT: u64 = 0xffff_ffff_8100_0000;

fn range(start: u64, end: u64, class: GuestClass) -> ClassRange {
    ClassRange { start: TEXT + start, end: TEXT + end, guest_class: class.into(), reserved: 0 }
}

fn code(ranges: &[ClassRange]) -> GuestCode {
    GuestCode::new(TEXT, TEXT + 0x10_0000, ranges).unwrap()
}

#[test]
fn an_address_takes_the_class_of_the_range_that_holds_it() {
    let code = code(&[
        range(0x100, 0x200, GuestClass::LockHolder),
        range(0x200, 0x280, GuestClass::TlbShootdown),
        range(0x400, 0x401, GuestClass::Idle),
    ]);
    let at = |offset: u64| classify(&code, &GuestLayout::slid_by(0), TEXT + offset);
    assert_eq!(at(0xff), GuestClass::KernelOther);
    assert_eq!(at(0x100), GuestClass::LockHolder);
    assert_eq!(at(0x1ff), GuestClass::LockHolder);
    assert_eq!(at(0x200), GuestClass::TlbShootdown);
    assert_eq!(at(0x280), GuestClass::KernelOther);
    assert_eq!(at(0x400), GuestClass::Idle);
    assert_eq!(at(0x401), GuestClass::KernelOther);
}

#[test]
fn the_slide_is_taken_off_before_the_search() {
    let code = code(&[range(0x100, 0x200, GuestClass::LockHolder)]);
    let layout = GuestLayout::slid_by(0x3a20_0000);
    assert_eq!(classify(&code, &layout, TEXT + 0x3a20_0100), GuestClass::LockHolder);
    assert_eq!(classify(&code, &layout, TEXT + 0x100), GuestClass::Unknown);
}

#[test]
fn user_addresses_are_user_whatever_is_known_of_the_guest() {
    let code = code(&[]);
    for rip in [0, 0x40_1000, 0x7fff_ffff_ffff_ffff] {
        assert_eq!(classify(&code, &GuestLayout::UNKNOWN, rip), GuestClass::User);
    }
}

#[test]
fn without_symbols_or_slide_or_outside_the_text_kernel_code_is_unknown() {
    let known = code(&[range(0x100, 0x200, GuestClass::LockHolder)]);
    assert_eq!(classify(&known, &GuestLayout::UNKNOWN, TEXT + 0x100), GuestClass::Unknown);
    assert_eq!(classify(&code(&[]), &GuestLayout::slid_by(0), TEXT + 0x100), GuestClass::Unknown);
    for outside in [TEXT - 1, TEXT + 0x10_0000, u64::MAX] {
        assert_eq!(classify(&known, &GuestLayout::slid_by(0), outside), GuestClass::Unknown);
    }
}

#[test]
fn a_range_count_beyond_the_table_is_no_table() {
    let mut forged = code(&[range(0x100, 0x200, GuestClass::LockHolder)]);
    forged.range_count = 513;
    assert_eq!(classify(&forged, &GuestLayout::slid_by(0), TEXT + 0x100), GuestClass::Unknown);
}

#[test]
fn ranges_that_the_search_could_not_rely_on_are_refused() {
    let good = range(0x100, 0x200, GuestClass::LockHolder);
    for (ranges, at) in [
        (vec![range(0x100, 0x100, GuestClass::Idle)], 0),
        (vec![good, range(0x1ff, 0x300, GuestClass::Idle)], 1),
        (vec![good, range(0x10, 0x20, GuestClass::Idle)], 1),
        (vec![range(0x100, 0x10_0001, GuestClass::Idle)], 0),
    ] {
        let refused = GuestCode::new(TEXT, TEXT + 0x10_0000, &ranges);
        assert_eq!(refused.unwrap_err(), GuestCodeError::OutOfOrder(at));
    }
    let many: Vec<_> = (0..513).map(|i| range(i * 16, i * 16 + 8, GuestClass::Idle)).collect();
    assert_eq!(GuestCode::new(TEXT, TEXT + 0x10_0000, &many).unwrap_err(), GuestCodeError::TooMany(513));
}

fn sorted_ranges() -> impl Strategy<Value = Vec<ClassRange>> {
    proptest::collection::vec((0u64..64, 1u64..64, 0u32..9), 0..=512).prop_map(|pieces| {
        let mut at = 0;
        pieces
            .into_iter()
            .map(|(gap, length, class)| {
                let start = at + gap;
                at = start + length;
                ClassRange { start: TEXT + start, end: TEXT + at, guest_class: Code::raw(class), reserved: 0 }
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn the_binary_search_agrees_with_a_linear_one(ranges in sorted_ranges(), offset in 0u64..0x1_1000) {
        let code = code(&ranges);
        let rip = TEXT + offset;
        let linear = ranges.iter().find(|range| range.start <= rip && rip < range.end);
        let expected = match linear {
            _ if ranges.is_empty() => GuestClass::Unknown,
            Some(range) => range.guest_class.get().unwrap(),
            None => GuestClass::KernelOther,
        };
        prop_assert_eq!(classify(&code, &GuestLayout::slid_by(0), rip), expected);
    }
}
