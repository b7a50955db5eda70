//! The catalogue: what it must hold, and what is refused with the line where it stands.

use microslice_symbols::critical::{Catalogue, How};
use microslice_symbols::{Cause, Place};
use proptest::prelude::*;

const LINUX: &str = include_str!("../../../../critical/linux.toml");

/// Table 3 of the paper: module and operation, in its order.
const TABLE_3: [(&str, &str); 28] = [
    ("irq", "irq_enter"),
    ("irq", "irq_exit"),
    ("irq", "handle_percpu_irq"),
    ("kernel", "smp_call_function_single"),
    ("kernel", "smp_call_function_many"),
    ("mm", "do_flush_tlb_all"),
    ("mm", "flush_tlb_all"),
    ("mm", "native_flush_tlb_others"),
    ("mm", "flush_tlb_func"),
    ("mm", "flush_tlb_current_task"),
    ("mm", "flush_tlb_mm_range"),
    ("mm", "flush_tlb_page"),
    ("mm", "leave_mm"),
    ("mm", "get_page_from_freelist"),
    ("mm", "free_one_page"),
    ("mm", "release_pages"),
    ("sched", "scheduler_ipi"),
    ("sched", "resched_curr"),
    ("sched", "kick_process"),
    ("sched", "sched_ttwu_pending"),
    ("sched", "ttwu_do_activate"),
    ("sched", "ttwu_do_wakeup"),
    ("spinlock", "__raw_spin_unlock"),
    ("spinlock", "__raw_spin_unlock_irq"),
    ("spinlock", "__raw_spin_unlock_irqrestore"),
    ("spinlock", "__raw_spin_unlock_bh"),
    ("rwsem", "__rwsem_do_wake"),
    ("rwsem", "rwsem_wake"),
];

#[test]
fn the_rows_are_table_3_entry_by_entry() {
    let rows = Catalogue::linux().rows;
    let named: Vec<_> = rows.iter().map(|row| (row.module.as_str(), row.paper.as_str())).collect();
    assert_eq!(named, TABLE_3);
}

#[test]
fn every_row_names_the_papers_own_function_and_what_it_means() {
    for row in Catalogue::linux().rows {
        let names: Vec<_> = row.successors.iter().flat_map(|successor| &successor.symbols).collect();
        assert!(names.contains(&&row.paper), "{}", row.paper);
        assert!(
            !row.meaning.is_empty() && row.file.ends_with(".c") || row.file.ends_with(".h"),
            "{}",
            row.paper
        );
    }
}

#[test]
fn every_successor_cites_a_kernel_file_in_a_version_that_has_it() {
    let catalogue = Catalogue::linux();
    for entry in catalogue.entries() {
        for successor in &entry.successors {
            let names = successor.symbols.join(", ");
            assert!(successor.file.contains('/'), "{names}: {}", successor.file);
            assert!(catalogue.reviewed.contains(successor.read_in), "{names}");
            assert!(successor.versions.contains(successor.read_in), "{names}: cited where it isn't");
            assert!(!successor.why.is_empty(), "{names}");
        }
        for reason in entry.left_out.iter().map(|left| &left.why).chain(entry.absences.iter().map(|a| &a.why))
        {
            assert!(!reason.is_empty(), "{}", entry.paper);
        }
    }
}

#[test]
fn a_function_that_ended_has_a_successor_or_a_reason() {
    for row in Catalogue::linux().rows {
        let ended = row.successors.iter().any(|s| s.how == How::Same && s.versions.until.is_some());
        let goes_on = row.successors.iter().any(|s| s.versions.until.is_none());
        assert!(!ended || goes_on || !row.absences.is_empty(), "{}", row.paper);
    }
}

fn refused(text: &str) -> (u64, String) {
    let error = Catalogue::from_toml(text).unwrap_err();
    assert_eq!(error.to_string().lines().count(), 1);
    let Place::Line(line) = error.place else { panic!("{error}") };
    let Cause::Malformed(cause) = error.cause else { panic!("{error}") };
    (line, cause)
}

const HEAD: &str = "format = 1\nfamily = \"linux\"\narchitecture = \"x86_64\"\nreviewed_first = \"4.4\"\nreviewed_last = \"7.2\"\n";
const ROW: &str = "[[row]]\npaper = \"leave_mm\"\nmodule = \"mm\"\nfile = \"tlb.c\"\nmeaning = \"m\"\nclass = \"tlb_shootdown\"\n";
const SUCCESSOR: &str = "[[row.successor]]\nsymbols = [\"leave_mm\"]\nhow = \"same\"\nsince = \"4.4\"\n\
                         file = \"a/b.c\"\nversion = \"7.2\"\nwhy = \"kept\"\n";

#[test]
fn the_smallest_catalogue_is_one_row_with_one_successor() {
    let catalogue = Catalogue::from_toml(&format!("{HEAD}{ROW}{SUCCESSOR}")).unwrap();
    assert_eq!((catalogue.rows.len(), catalogue.companions.len()), (1, 0));
}

#[test]
fn what_is_wrong_is_told_with_its_line() {
    let whole = format!("{HEAD}{ROW}{SUCCESSOR}");
    let with = |from: &str, to: &str| {
        assert!(whole.contains(from));
        refused(&whole.replacen(from, to, 1))
    };
    assert_eq!(
        with("format = 1", "format = 2"),
        (1, "format 2 isn't 1, the one that this program reads".into())
    );
    let (line, cause) = with("\"4.4\"", "\"4\"");
    assert_eq!((line, cause.as_str()), (4, "\"4\" isn't a kernel version such as \"6.12\""));
    let (line, cause) = with("how = \"same\"", "how = \"equal\"");
    assert!(line == 14 && cause.contains("equal"), "{line} {cause}");
    let (line, cause) = with("class = \"tlb_shootdown\"", "class = \"user\"");
    assert!(line == 7 && cause.contains("user follows from the address alone"), "{line} {cause}");
    let (line, cause) = with("[\"leave_mm\"]", "[\"leave mm\"]");
    assert!(line == 13 && cause.contains("isn't the name of a function"), "{line} {cause}");
    let (line, cause) = with("[\"leave_mm\"]", "[]");
    assert!(line == 7 && cause.contains("no symbols"), "{line} {cause}");
    let (line, cause) = with("why = \"kept\"", "because = \"kept\"");
    assert!(line >= 12 && cause.contains("because"), "{line} {cause}");
    let (line, _) = refused("format = 1\nfamily = \"linux");
    assert_eq!(line, 2);
    assert!(refused(HEAD).1.contains("nothing would be critical"));
    assert!(refused(&format!("{HEAD}{ROW}")).1.contains("no [[….successor]]"));
}

#[test]
fn one_function_has_one_class() {
    let idle = ROW.replace("tlb_shootdown", "idle").replace("\"leave_mm\"", "\"other\"");
    let (line, cause) = refused(&format!("{HEAD}{ROW}{SUCCESSOR}{idle}{SUCCESSOR}"));
    assert!(
        line > 20 && cause == "leave_mm is idle here and tlb_shootdown above: one class a function",
        "{line} {cause}"
    );
}

#[test]
fn a_catalogue_that_is_too_large_is_refused_before_it_is_parsed() {
    let error = Catalogue::from_toml(&" ".repeat((1 << 20) + 1)).unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
    let names: Vec<String> = (0..5000).map(|i| format!("\"f{i}\"")).collect();
    let many = format!("{HEAD}{ROW}{}", SUCCESSOR.replace("\"leave_mm\"", &names.join(",")));
    assert!(refused(&many).1.contains("more than 4096 functions"));
}

proptest! {
    #[test]
    fn no_text_is_too_strange(text in "\\PC{0,200}") {
        let _ = Catalogue::from_toml(&text);
    }

    #[test]
    fn damage_anywhere_gives_one_line_or_a_catalogue(at in 0..LINUX.len(), cut in 0usize..200, insert in "[\\[\\]\"=a1\n]{0,4}") {
        let mut bytes = LINUX.as_bytes().to_vec();
        let end = (at + cut).min(bytes.len());
        bytes.splice(at..end, insert.bytes());
        if let Err(error) = Catalogue::from_toml(&String::from_utf8_lossy(&bytes)) {
            prop_assert_eq!(error.to_string().lines().count(), 1);
        }
    }
}
