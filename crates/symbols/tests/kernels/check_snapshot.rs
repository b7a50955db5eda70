//! What `check` says of small kernels, whole, as snapshots. `MICROSLICE_UPDATE_SNAPSHOTS=1 cargo test` writes
//! them anew.

use microslice_symbols::critical::{Catalogue, Check, EntryCheck};
use microslice_symbols::{Identity, SymbolTable, SymbolTableBuilder};
use std::fmt::Write;
use std::path::Path;

const TEXT: u64 = 0xffff_ffff_8100_0000;

/// A kernel with these functions, 0x100 bytes each, in this order.
fn kernel(release: Option<&str>, functions: &[&str]) -> SymbolTable {
    let mut builder = SymbolTableBuilder::new();
    let mut push = |address, name| builder.push(address, 't', name).unwrap();
    push(TEXT, "_stext");
    for (index, name) in functions.iter().enumerate() {
        push(TEXT + 0x1000 + 0x100 * index as u64, name);
    }
    push(TEXT + 0x1000 + 0x100 * functions.len() as u64, "after_the_last");
    push(TEXT + 0x10_0000, "_etext");
    let release = release.map(str::to_owned);
    builder.finish(Identity { release, build_id: Some("0123abcd".into()), banner: None })
}

fn written(check: &Check) -> String {
    let mut text = String::new();
    for entry in check.rows.iter().chain(&check.companions) {
        write_entry(&mut text, entry);
    }
    writeln!(text, "{}", check.coverage).unwrap();
    for range in check.map.ranges() {
        writeln!(text, "{:x}-{:x} {}", range.start - TEXT, range.end - TEXT, range.class).unwrap();
    }
    text
}

fn write_entry(text: &mut String, entry: &EntryCheck) {
    writeln!(text, "{} {} {}", entry.module, entry.paper, entry.class).unwrap();
    for symbol in &entry.matched {
        writeln!(text, "    {:x}-{:x} {}", symbol.start - TEXT, symbol.end - TEXT, symbol.name).unwrap();
    }
    if let Some(reason) = &entry.reason {
        writeln!(text, "    reason: {reason}").unwrap();
    }
    for left_out in &entry.left_out {
        writeln!(text, "    left out: {}: {}", left_out.symbols.join(", "), left_out.reason).unwrap();
    }
}

fn compare(name: &str, check: &Check) {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels/snapshots").join(format!("{name}.txt"));
    let now = written(check);
    if std::env::var_os("MICROSLICE_UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, &now).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap();
    for (line, (now, kept)) in now.lines().zip(kept.lines()).enumerate() {
        assert_eq!(now, kept, "{}:{}", path.display(), line + 1);
    }
    assert_eq!(now.lines().count(), kept.lines().count(), "{}", path.display());
}

#[test]
fn a_6_12_kernel_with_clones_parts_and_padding() {
    let functions = [
        "__pfx_irq_enter_rcu",
        "irq_enter_rcu",
        "__irq_exit_rcu",
        "smp_call_function_many_cond",
        "smp_call_function_single",
        "flush_tlb_func",
        "flush_tlb_mm_range",
        "native_flush_tlb_multi",
        "unrelated",
        "leave_mm.part.0",
        "get_page_from_freelist",
        "get_page_from_freelist.cold",
        "free_one_page.constprop.0",
        "folios_put_refs",
        "sysvec_reschedule_ipi",
        "asm_sysvec_reschedule_ipi",
        "resched_curr",
        "try_to_wake_up",
        "ttwu_do_activate.isra.0",
        "_raw_spin_unlock",
        "_raw_spin_unlock_irq",
        "_raw_spin_unlock_irqrestore",
        "rwsem_mark_wake",
        "rwsem_wake.isra.0",
        "native_smp_send_reschedule",
        "native_queued_spin_lock_slowpath",
        "pv_native_safe_halt",
        "default_idle.llvm.1234567890",
        "switch_mm_irqs_off",
    ];
    compare("check_6_12", &Catalogue::linux().check(&kernel(Some("6.12.43-test"), &functions)));
}

#[test]
fn a_4_4_kernel_has_the_papers_own_functions() {
    let catalogue = Catalogue::linux();
    let own: Vec<&str> = catalogue.rows.iter().map(|row| row.paper.as_str()).collect();
    let mut functions: Vec<&str> = own.iter().filter(|name| !name.starts_with("__raw")).copied().collect();
    functions.extend(["_raw_spin_lock", "_raw_spin_unlock_irqrestore", "_raw_spin_unlock_bh"]);
    functions.extend(["smp_reschedule_interrupt", "native_smp_send_reschedule", "queued_spin_lock_slowpath"]);
    let check = catalogue.check(&kernel(Some("4.4.0-210-generic"), &functions));
    assert_eq!((check.coverage.rows_matched, check.coverage.rows_unexplained), (26, 0));
    compare("check_4_4", &check);
}

#[test]
fn a_kernel_of_one_processor_lacks_what_it_never_needs() {
    let functions =
        ["irq_enter_rcu", "get_page_from_freelist", "flush_tlb_mm_range", "rwsem_wake", "default_idle"];
    compare("check_uniprocessor", &Catalogue::linux().check(&kernel(Some("6.1.0-tiny"), &functions)));
}

#[test]
fn a_table_of_an_unknown_future_kernel_says_what_was_looked_for() {
    let functions = ["native_smp_send_reschedule", "_raw_spin_lock", "unrelated"];
    compare("check_9_1", &Catalogue::linux().check(&kernel(Some("9.1.0"), &functions)));
    compare("check_no_release", &Catalogue::linux().check(&kernel(None, &functions)));
}

#[test]
fn a_table_without_functions_has_no_ranges_and_a_reason_for_every_row() {
    let check = Catalogue::linux().check(&kernel(None, &[]));
    assert_eq!(check.map.ranges().len(), 0);
    assert!(check.rows.iter().all(|row| row.matched.is_empty() && row.reason.is_some()));
}

#[test]
fn a_forged_table_of_endless_clones_stays_within_the_limits() {
    let mut builder = SymbolTableBuilder::new();
    builder.push(TEXT, 'T', "_stext").unwrap();
    builder.push(TEXT + 0x800_0000, 'T', "_etext").unwrap();
    let names: Vec<String> = Catalogue::linux()
        .entries()
        .flat_map(|entry| &entry.successors)
        .flat_map(|successor| successor.symbols.clone())
        .collect();
    let mut address = TEXT + 0x1000;
    for clone in 0..200 {
        for name in &names {
            builder.push(address, 't', &format!("{name}.isra.{clone}")).unwrap();
            builder.push(address + 0x10, 't', "between").unwrap();
            address += 0x20;
        }
    }
    let check = Catalogue::linux().check(&builder.finish(Identity::default()));
    assert!(check.map.ranges().len() <= 512);
    assert!(check.coverage.entries_given_up > 0);
    assert!(check.coverage.to_string().contains("entries given up"), "{}", check.coverage);
    assert!(check.rows.iter().all(|row| row.matched.len() <= 64 * names.len()));
}
