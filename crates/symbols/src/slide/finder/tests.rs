use super::*;
use crate::{Identity, SymbolTable, SymbolTableBuilder};
use proptest::prelude::*;

const TEXT: u64 = 0xffff_ffff_8100_0000;
const ENTRY: u64 = TEXT + 0x20_0080;
const SAFE_HALT: u64 = TEXT + 0x1_0000;
/// Two of them share their low 21 bits, which no real kernel was seen to have.
const SITES: [u64; 4] = [SAFE_HALT + 0xe, TEXT + 0x5_0001, TEXT + 0x25_0001, TEXT + 0x7_0033];

fn table() -> SymbolTable {
    let mut builder = SymbolTableBuilder::new();
    for (address, name) in [
        (TEXT, "_stext"),
        (SAFE_HALT, "pv_native_safe_halt"),
        (SAFE_HALT + 0x20, "default_idle_call"),
        (ENTRY, "entry_SYSCALL_64"),
        (TEXT + 0x100_0000, "_etext"),
    ] {
        builder.push(address, 'T', name).unwrap();
    }
    builder.finish(Identity::default())
}

fn finder() -> SlideFinder {
    SlideFinder::new(Landmarks::new(&table(), &SITES))
}

#[test]
fn firmware_user_code_and_modules_say_nothing() {
    let mut finder = finder();
    for address in [0, 0xf_fff0, 0x7f00_0000_1000, 0xffff_8880_0000_1000, 0xffff_ffff_c000_0000, u64::MAX] {
        assert_eq!(finder.observe_halt(address), Observation::Outside);
        assert_eq!(finder.observe_lstar(address), Observation::Outside);
    }
    assert_eq!(finder.state(), SlideState::Unknown);
}

#[test]
fn one_halt_makes_a_candidate_and_the_second_is_believed() {
    let mut finder = finder();
    let slide = 0x280_0000;
    assert_eq!(finder.observe_halt(SITES[0] + slide), Observation::Agrees);
    assert_eq!(finder.state(), SlideState::Candidate { slide: Some(slide) });
    assert_eq!(finder.accepted(), None);
    finder.observe_halt(SITES[0] + slide);
    assert_eq!(finder.accepted(), Some(slide));
}

#[test]
fn the_address_behind_the_hlt_counts_like_the_hlt() {
    let mut finder = finder();
    finder.observe_halt(SITES[0] + 0x20_0000);
    finder.observe_halt(SITES[0] + 0x20_0000 + 1);
    assert_eq!(finder.accepted(), Some(0x20_0000));
}

#[test]
fn a_halt_and_lstar_that_agree_are_enough() {
    let mut finder = finder();
    finder.observe_lstar(ENTRY + 0x3a20_0000);
    finder.observe_lstar(ENTRY + 0x3a20_0000);
    assert_eq!(finder.accepted(), None, "the same register twice is one witness");
    finder.observe_halt(SITES[0] + 0x3a20_0000);
    assert_eq!(finder.accepted(), Some(0x3a20_0000));
}

#[test]
fn lstar_decides_between_two_slides_that_a_halt_allows() {
    let mut finder = finder();
    finder.observe_halt(SITES[2] + 0x40_0000);
    assert_eq!(finder.state(), SlideState::Candidate { slide: None });
    finder.observe_halt(SITES[2] + 0x40_0000);
    assert_eq!(finder.accepted(), None, "however often it halts there");
    finder.observe_lstar(ENTRY + 0x40_0000);
    assert_eq!(finder.accepted(), Some(0x40_0000));
}

#[test]
fn vmcoreinfo_that_disagrees_drops_the_slide() {
    let mut finder = finder();
    finder.observe_halt(SITES[0] + 0x20_0000);
    finder.observe_halt(SITES[0] + 0x20_0000);
    assert_eq!(finder.observe_kernel_offset(0x60_0000), Observation::Disagrees);
    assert_eq!(
        finder.state(),
        SlideState::Contradicted(Contradiction::OffsetElsewhere { offset: 0x60_0000 })
    );
    assert_eq!(finder.accepted(), None);
}

#[test]
fn a_reboot_drops_the_slide_and_its_first_halt_starts_the_next_one() {
    let mut finder = finder();
    for _ in 0..3 {
        finder.observe_halt(SITES[0] + 0x280_0000);
    }
    let rebooted = SITES[0] + 0x1000_0000;
    assert_eq!(finder.observe_halt(rebooted), Observation::Disagrees);
    assert_eq!(
        finder.state(),
        SlideState::Contradicted(Contradiction::HaltElsewhere {
            address: rebooted,
            slide: Some(0x1000_0000)
        })
    );
    finder.observe_halt(rebooted);
    assert_eq!(finder.accepted(), Some(0x1000_0000));
}

#[test]
fn another_kernel_is_recognised_by_a_halt_where_this_one_has_none() {
    let mut finder = finder();
    finder.observe_halt(SITES[0]);
    finder.observe_halt(SITES[0]);
    assert_eq!(finder.accepted(), Some(0), "nokaslr is slide 0");
    let elsewhere = TEXT + 0x12_3456;
    assert_eq!(finder.observe_halt(elsewhere), Observation::Disagrees);
    assert_eq!(finder.state(), SlideState::Contradicted(Contradiction::NoHaltThere { address: elsewhere }));
    let SlideState::Contradicted(why) = finder.state() else { unreachable!() };
    assert_eq!(
        why.to_string(),
        "the halt at 0xffffffff81123456 is at no hlt of this kernel: the guest runs another one"
    );
}

#[test]
fn a_patched_hlt_in_a_halting_function_is_no_contradiction() {
    let mut finder = finder();
    finder.observe_halt(SITES[0] + 0x20_0000);
    finder.observe_halt(SITES[0] + 0x20_0000);
    assert_eq!(finder.observe_halt(SAFE_HALT + 0x20_0000 + 5), Observation::Compatible);
    assert_eq!(finder.accepted(), Some(0x20_0000));
}

#[test]
fn without_code_halts_are_matched_against_whole_functions() {
    let mut finder = SlideFinder::new(Landmarks::new(&table(), &[]));
    finder.observe_halt(SAFE_HALT + 0x600_0000 + 0x11);
    finder.observe_halt(SAFE_HALT + 0x600_0000 + 0x11);
    assert_eq!(finder.accepted(), Some(0x600_0000));
}

#[test]
fn a_table_without_landmarks_finds_nothing_and_says_so() {
    let empty = SymbolTableBuilder::new().finish(Identity::default());
    let mut finder = SlideFinder::new(Landmarks::new(&empty, &[]));
    assert_eq!(finder.observe_halt(TEXT + 1), Observation::NoLandmark);
    assert_eq!(finder.observe_lstar(TEXT + 1), Observation::NoLandmark);
    assert_eq!(finder.state(), SlideState::Unknown);
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Halt(u64),
    Lstar(u64),
    Offset(u64),
}

fn any_event() -> impl Strategy<Value = Event> {
    let near = (0u64..4, prop_oneof![3 => Just(0u64), 1 => 0u64..3]);
    prop_oneof![
        4 => (0..SITES.len(), near.clone()).prop_map(|(site, (slide, off))| Event::Halt(SITES[site] + (slide << 21) + off)),
        2 => near.clone().prop_map(|(slide, off)| Event::Lstar(ENTRY + (slide << 21) + off)),
        1 => near.prop_map(|(slide, off)| Event::Offset((slide << 21) + off)),
        1 => any::<u64>().prop_map(Event::Halt),
        1 => any::<u64>().prop_map(Event::Lstar),
    ]
}

/// Does the event, taken alone, speak for this slide?
fn speaks_for(event: Event, slide: u64) -> bool {
    match event {
        Event::Halt(address) => {
            SITES.iter().any(|site| [*site, site + 1].contains(&address.wrapping_sub(slide)))
        }
        Event::Lstar(address) => address.wrapping_sub(slide) == ENTRY,
        Event::Offset(offset) => offset == slide,
    }
}

proptest! {
    #[test]
    fn an_accepted_slide_has_two_witnesses_and_none_against_it(
        events in proptest::collection::vec(any_event(), 0..40),
    ) {
        let mut finder = finder();
        let mut testimony = Vec::new();
        for event in events {
            let observation = match event {
                Event::Halt(address) => finder.observe_halt(address),
                Event::Lstar(address) => finder.observe_lstar(address),
                Event::Offset(offset) => finder.observe_kernel_offset(offset),
            };
            match observation {
                Observation::Agrees => testimony.push(event),
                Observation::Disagrees => testimony = vec![event],
                _ => {}
            }
            if let Some(slide) = finder.accepted() {
                prop_assert!(slide.is_multiple_of(2 << 20) && slide < 1 << 30);
                let speaking = testimony.iter().filter(|&&event| speaks_for(event, slide)).count();
                prop_assert!(speaking >= 2, "{slide:#x} {testimony:x?}");
                let against = testimony.iter().skip(1).filter(|&&event| !speaks_for(event, slide)).count();
                prop_assert_eq!(against, 0, "{:#x} {:x?}", slide, &testimony);
            }
        }
    }

    #[test]
    fn any_slide_that_kaslr_can_choose_is_found_from_two_halts(slide in 0u64..480, site in 0usize..1) {
        let mut finder = finder();
        let slide = slide << 21;
        finder.observe_halt(SITES[site] + slide);
        finder.observe_halt(SITES[3] + slide);
        prop_assert_eq!(finder.accepted(), Some(slide));
    }
}
