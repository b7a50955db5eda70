//! Classes and slides on the stock kernels in `.cache/kernels` (`make kernels`).

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic};
use microslice_symbols::critical::{Catalogue, Check, KernelVersion, MatchedSymbol};
use microslice_symbols::preempt_count::CounterSymbols;
use microslice_symbols::slide::{Landmarks, Observation, SlideFinder, SlideState, halt_sites_of};
use microslice_symbols::{CodeClass, Kernel, source};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The newest image of each series and flavour in the cache, by release. Read once: the tests share them.
fn kernels() -> &'static BTreeMap<String, Kernel> {
    static KERNELS: OnceLock<BTreeMap<String, Kernel>> = OnceLock::new();
    KERNELS.get_or_init(|| {
        let images = images();
        if images.is_empty() {
            writeln!(std::io::stderr(), "SKIPPED: no kernel in .cache/kernels; `make kernels` fetches them")
                .expect("stderr");
        }
        let open = |path: &Path| source::open(path).unwrap_or_else(|error| panic!("{error}")).kernel;
        images.into_values().map(|(release, path)| (release, open(&path))).collect()
    })
}

/// Release and path by version and flavour; a later release takes the place of an earlier one.
fn images() -> BTreeMap<(Option<KernelVersion>, &'static str), (String, PathBuf)> {
    let cache = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/kernels");
    let read = |directory: PathBuf| std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<(String, PathBuf)> = read(cache)
        .flat_map(|package| read(package.path().join("boot")))
        .filter_map(|entry| {
            Some((entry.file_name().to_str()?.strip_prefix("vmlinuz-")?.to_owned(), entry.path()))
        })
        .collect();
    found.sort();
    let flavour = |release: &str| ["-cloud-", "-rt-"].into_iter().find(|flavour| release.contains(flavour));
    let key = |release: &str| (KernelVersion::of_release(release), flavour(release).unwrap_or_default());
    found.into_iter().map(|(release, path)| (key(&release), (release, path))).collect()
}

fn check(kernel: &Kernel) -> Check {
    Catalogue::linux().check(&kernel.symbols)
}

fn at_least(release: &str, major: u16, minor: u16) -> bool {
    KernelVersion::of_release(release).is_some_and(|version| version >= KernelVersion::new(major, minor))
}

#[test]
fn every_row_of_table_3_is_matched_or_explained_on_every_kernel() {
    for (release, kernel) in kernels() {
        let check = check(kernel);
        assert_eq!(check.rows.len(), 28, "{release}");
        for row in &check.rows {
            assert!(!row.matched.is_empty() || row.reason.is_some(), "{release}: {}", row.paper);
        }
        let coverage = &check.coverage;
        assert_eq!(coverage.rows_unexplained, 0, "{release}: {coverage}");
        // flush_tlb_current_task is gone since 4.12; kernels without preemption inline the unlock of irq
        // locks.
        assert!(coverage.rows_matched >= 26, "{release}: {coverage}");
        assert_eq!(coverage.entries_given_up, 0, "{release}");
        assert!((80..=256).contains(&coverage.ranges), "{release}: {coverage}");
        // Critical code is a small part of a kernel: a class that covers much of it would accelerate
        // everything.
        assert!(coverage.classed_bytes * 100 < coverage.text_bytes, "{release}: {coverage}");
        for companion in &check.companions {
            assert!(!companion.matched.is_empty(), "{release}: {}", companion.paper);
        }
        eprintln!("{release}: {coverage}");
    }
}

#[test]
fn the_functions_that_decide_about_yields_have_their_class() {
    use CodeClass::{Idle, IrqHandler, LockHolder, LockWaiter, ReschedIpi, TlbShootdown};
    let expected = [
        ("smp_call_function_many_cond", TlbShootdown),
        ("smp_call_function_single", TlbShootdown),
        ("flush_tlb_mm_range", TlbShootdown),
        ("sysvec_call_function", TlbShootdown),
        ("asm_sysvec_call_function_single", TlbShootdown),
        ("native_queued_spin_lock_slowpath", LockWaiter),
        ("__pv_queued_spin_lock_slowpath", LockWaiter),
        ("osq_lock", LockWaiter),
        ("_raw_spin_unlock_irqrestore", LockHolder),
        ("get_page_from_freelist", LockHolder),
        ("sysvec_reschedule_ipi", ReschedIpi),
        ("try_to_wake_up", ReschedIpi),
        ("irq_enter_rcu", IrqHandler),
        ("asm_common_interrupt", IrqHandler),
        ("net_rx_action", IrqHandler),
        ("default_idle", Idle),
        ("native_halt", Idle),
        ("poll_idle", Idle),
        ("do_syscall_64", CodeClass::KernelOther),
        ("schedule", CodeClass::KernelOther),
    ];
    for (release, kernel) in kernels() {
        let map = check(kernel).map;
        for (name, class) in expected {
            let symbol = kernel.symbols.by_name(name).next().unwrap_or_else(|| panic!("{release}: {name}"));
            assert_eq!(map.classify(symbol.address, Some(0)), class, "{release}: {name}");
            assert_eq!(map.classify(symbol.end - 1, Some(0)), class, "{release}: end of {name}");
            let slide = 0x3a20_0000;
            assert_eq!(map.classify(symbol.address + slide, Some(slide)), class, "{release}: {name}, moved");
        }
    }
}

/// Every instruction of a function, decoded from its first byte.
fn disassemble(kernel: &Kernel, symbol: &MatchedSymbol) -> Vec<Instruction> {
    let code = kernel.code.as_ref().expect("an image has code");
    let bytes = code.at(symbol.start, (symbol.end - symbol.start) as usize).unwrap();
    Decoder::with_ip(64, bytes, symbol.start, DecoderOptions::NONE).into_iter().collect()
}

/// What compilers and the kernel's build fill the room between functions with.
fn is_padding(instruction: &Instruction) -> bool {
    matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Int3 | Mnemonic::Endbr64)
}

/// After it, control doesn't go on to the next byte: the address behind it belongs to another function. A
/// call is one only where the callee doesn't return (`__stack_chk_fail`, `do_exit`).
fn leaves(instruction: &Instruction) -> bool {
    matches!(
        instruction.mnemonic(),
        Mnemonic::Ret | Mnemonic::Jmp | Mnemonic::Ud2 | Mnemonic::Iretq | Mnemonic::Call
    )
}

#[test]
fn ranges_begin_and_end_where_their_functions_do() {
    for (release, kernel) in kernels() {
        let (check, mut looked_at) = (check(kernel), 0);
        let entries = check.rows.iter().chain(&check.companions);
        for symbol in entries.flat_map(|entry| &entry.matched) {
            let instructions = disassemble(kernel, symbol);
            let place = format!("{release}: {} at {:x}", symbol.name, symbol.start);
            assert!(instructions.iter().all(|instruction| !instruction.is_invalid()), "{place}: no code");
            let end = instructions.last().map(Instruction::next_ip);
            assert_eq!(end, Some(symbol.end), "{place}: the end cuts an instruction");
            let Some(last) = instructions.iter().rfind(|instruction| !is_padding(instruction)) else {
                assert!(symbol.name.starts_with("__pfx_"), "{place}: nothing but padding");
                continue;
            };
            assert!(leaves(last), "{place}: runs on into the next function: {:?}", last.code());
            assert_eq!(
                check.map.classify(symbol.start, Some(0)),
                check.map.classify(symbol.end - 1, Some(0))
            );
            looked_at += 1;
        }
        assert!(looked_at > 100, "{release}: {looked_at}");
    }
}

/// Functions that hold one loop each; where it is in more than one, another version or build has it
/// elsewhere.
const SPINS: [(&[&str], CodeClass); 8] = [
    (&["smp_call_function_many_cond"], CodeClass::TlbShootdown),
    (&["smp_call_function_single", "__smp_call_function_single"], CodeClass::TlbShootdown),
    (&["native_queued_spin_lock_slowpath"], CodeClass::LockWaiter),
    (&["__pv_queued_spin_lock_slowpath"], CodeClass::LockWaiter),
    (&["queued_write_lock_slowpath", "rtlock_slowlock_locked"], CodeClass::LockWaiter),
    (&["osq_lock"], CodeClass::LockWaiter),
    (&["mutex_spin_on_owner", "__rt_mutex_slowlock_locked"], CodeClass::LockWaiter),
    (&["poll_idle"], CodeClass::Idle),
];

#[test]
fn the_loops_that_spin_are_where_the_classes_say() {
    for (release, kernel) in kernels() {
        let map = check(kernel).map;
        for (names, class) in SPINS {
            let is_part = |symbol: &str, name: &&str| {
                symbol.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            let parts =
                kernel.symbols.iter().filter(|symbol| names.iter().any(|name| is_part(symbol.name, name)));
            let pauses = parts.flat_map(|symbol| {
                let name = symbol.name.to_owned();
                disassemble(kernel, &MatchedSymbol { name, start: symbol.address, end: symbol.end })
            });
            let pauses = pauses.filter(|instruction| instruction.mnemonic() == Mnemonic::Pause);
            let classes: Vec<_> = pauses.map(|pause| map.classify(pause.ip(), Some(0))).collect();
            assert!(!classes.is_empty(), "{release}: {names:?} don't spin");
            assert!(classes.iter().all(|&found| found == class), "{release}: {names:?}: {classes:?}");
        }
    }
}

#[test]
fn a_kernel_has_a_handful_of_hlt_and_the_idle_loops_is_one_of_them() {
    for (release, kernel) in kernels() {
        let sites = halt_sites_of(kernel);
        assert!((6..=12).contains(&sites.len()), "{release}: {sites:x?}");
        let text = kernel.symbols.text_bounds().unwrap();
        let after_boot = sites.iter().filter(|&&site| (text.start..text.end).contains(&site)).count();
        assert!((6..=10).contains(&after_boot), "{release}: {after_boot}");
        let idle = if at_least(release, 6, 6) { "pv_native_safe_halt" } else { "native_safe_halt" };
        let holders: Vec<_> =
            sites.iter().map(|&site| kernel.symbols.lookup(site).unwrap().symbol.name).collect();
        assert!(holders.contains(&idle) && holders.contains(&"native_halt"), "{release}: {holders:?}");
        let mut low_bits: Vec<_> = sites.iter().map(|site| site & 0x1f_ffff).collect();
        low_bits.sort_unstable();
        low_bits.dedup();
        assert_eq!(low_bits.len(), sites.len(), "{release}: the low 21 bits tell the sites apart");
    }
}

#[test]
fn the_slide_is_found_from_halts_at_any_two_megabyte_step() {
    const FIRMWARE: u64 = 0xf_d2a6;
    for (release, kernel) in kernels() {
        let sites = halt_sites_of(kernel);
        let landmarks = Landmarks::new(&kernel.symbols, &sites);
        let entry = kernel.symbols.address_of("entry_SYSCALL_64").unwrap();
        for slide in [0u64, 0x20_0000, 0x280_0000, 0x3a20_0000] {
            for &site in &sites {
                let mut finder = SlideFinder::new(landmarks.clone());
                assert_eq!(finder.observe_halt(FIRMWARE), Observation::Outside);
                finder.observe_halt(site + slide);
                let candidate = SlideState::Candidate { slide: Some(slide) };
                assert_eq!(finder.state(), candidate, "{release}: {site:x}");
                finder.observe_lstar(entry + slide);
                assert_eq!(finder.accepted(), Some(slide), "{release}: {site:x}");
                finder.observe_halt(site + (slide ^ 0x40_0000));
                assert_eq!(finder.accepted(), None, "{release}: rebooted to another slide");
            }
        }
    }
}

/// Where this kernel's idle loop halts.
fn idle_halt(kernel: &Kernel) -> u64 {
    let is_idle =
        |&site: &u64| kernel.symbols.lookup(site).unwrap().symbol.name.ends_with("native_safe_halt");
    halt_sites_of(kernel).into_iter().find(is_idle).unwrap()
}

#[test]
fn a_map_without_code_finds_the_slide_from_the_functions_that_halt() {
    for (release, kernel) in kernels() {
        let mut finder = SlideFinder::new(Landmarks::new(&kernel.symbols, &[]));
        let halt = idle_halt(kernel) + 0x1240_0000;
        finder.observe_halt(halt);
        finder.observe_halt(halt);
        assert_eq!(finder.accepted(), Some(0x1240_0000), "{release}");
    }
}

#[test]
fn the_idle_loop_of_another_kernel_is_never_taken_for_ones_own() {
    let kernels = kernels();
    for (release, kernel) in kernels {
        let landmarks = Landmarks::new(&kernel.symbols, &halt_sites_of(kernel));
        for (other_release, other) in kernels.iter().filter(|(other, _)| *other != release) {
            let mut finder = SlideFinder::new(landmarks.clone());
            finder.observe_halt(idle_halt(other));
            finder.observe_halt(idle_halt(other));
            assert_eq!(finder.accepted(), None, "{other_release} taken for {release}");
        }
    }
}

#[test]
fn every_kernel_names_what_leads_to_its_preemption_counters() {
    for (release, kernel) in kernels() {
        CounterSymbols::of(&kernel.symbols).unwrap_or_else(|name| panic!("{release}: no {name}"));
    }
}
