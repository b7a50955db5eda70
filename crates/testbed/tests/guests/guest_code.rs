//! The guest's locks (`guest/locks/`) without a guest: among threads, and in every order of their steps. And
//! how many balloons are due (`guest/balloon/`). In guests: `behaviours`.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

const KINDS: [&str; 3] = ["pv-ticket", "oticket", "iticket"];
/// The kernel's own spinlock, waited for in line.
const LINE: &str = "line";
/// Without an order.
const YIELDING: [&str; 2] = ["yield", "spin-yield"];

fn guest() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest")
}

/// A program of `guest/tests` and where it lies. `mutate` may change the locks before it is built.
fn build(program: &str, mutate: impl Fn(String) -> String) -> (tempfile::TempDir, PathBuf) {
    let scratch = tempfile::tempdir().expect("temporary directory");
    for file in [
        "balloon/balloons.h",
        "locks/access.h",
        "locks/lock_line.h",
        "locks/pv_ticket.h",
        "locks/yield_lock.h",
        "tests/kernel_waiters.h",
        &format!("tests/{program}.c"),
    ] {
        let text = std::fs::read_to_string(guest().join(file)).expect(file);
        let to = scratch.path().join(file);
        std::fs::create_dir_all(to.parent().expect("a folder")).expect("folder");
        std::fs::write(to, if file.starts_with("locks/") { mutate(text) } else { text }).expect("write");
    }
    let binary = scratch.path().join(program);
    let mut compiler = Command::new("gcc");
    compiler.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&binary);
    let compiled = compiler.arg(scratch.path().join(format!("tests/{program}.c"))).output().expect("gcc");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    (scratch, binary)
}

/// The line that it printed.
fn run(binary: &Path, arguments: &[&str]) -> Value {
    let output = Command::new(binary).args(arguments).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
}

#[test]
fn locks_exclude_keep_their_order_and_lose_no_kick_among_threads() {
    let (_scratch, torture) = build("torture", |text| text);
    let seconds = if std::env::var_os("MICROSLICE_TEST_LONG").is_some() { "600" } else { "2" };
    std::thread::scope(|scope| {
        for kind in KINDS.into_iter().chain(YIELDING).chain([LINE]) {
            let torture = &torture;
            scope.spawn(move || {
                // Tickets wrap around a few turns after the start.
                let seen = run(torture, &[kind, "6", seconds, "32700"]);
                println!("{seen}");
                for fault in ["overlaps", "overtakings"] {
                    assert_eq!(seen[fault], 0, "{seen}");
                }
                assert_eq!(seen["stalled"], false, "{seen}");
                let happens = if YIELDING.contains(&kind) { ["taken", "yields"] } else { ["halts", "kicks"] };
                for happened in happens {
                    assert!(seen[happened].as_u64() > Some(100), "little was tried: {seen}");
                }
            });
        }
    });
}

#[test]
fn a_yield_lock_that_is_taken_without_a_look_is_found_out() {
    let (_scratch, torture) = build("torture", |text| {
        let right = "!LOCK_LOAD(&lock->holder) && LOCK_COMPARE_SWAP(&lock->holder, 0, cpu + 1)";
        text.replace(right, "(LOCK_STORE(&lock->holder, cpu + 1), 1)")
    });
    for kind in YIELDING {
        let seen = run(&torture, &[kind, "6", "2"]);
        assert!(seen["overlaps"].as_u64() > Some(0), "{seen}");
    }
}

/// What was found with so many threads, rounds and preemptions.
fn explore(binary: &Path, kind: &str, bounds: [&str; 3]) -> Value {
    run(binary, &[kind, bounds[0], bounds[1], bounds[2]])
}

#[test]
fn no_order_of_steps_breaks_a_lock() {
    let (_scratch, interleavings) = build("interleavings", |text| text);
    for kind in KINDS.into_iter().chain([LINE]) {
        for bounds in [["2", "2", "4"], ["3", "1", "3"], ["3", "2", "2"]] {
            let seen = explore(&interleavings, kind, bounds);
            println!("{bounds:?}: {seen}");
            assert_eq!(seen["fault"], "", "{kind} {bounds:?}: {seen}");
            assert!(seen["paths"].as_u64() > Some(1_000), "{bounds:?}: {seen}");
        }
    }
}

/// The lock with one thing wrong, and what comes of it.
fn fault_of(kind: &str, right: &str, wrong: &str) -> String {
    let header = if kind == LINE { "GUEST_LOCK_LINE_H" } else { "GUEST_PV_TICKET_H" };
    let (_scratch, interleavings) = build("interleavings", |text| {
        if text.contains(header) {
            assert_eq!(text.matches(right).count(), 1, "the lock has changed: {right}");
        }
        text.replace(right, wrong)
    });
    let preemptions = if kind == LINE { "4" } else { "3" };
    explore(&interleavings, kind, ["3", "1", preemptions])["fault"].as_str().expect("a word").to_owned()
}

const LOST: &str = "all who are left have halted";

#[test]
fn a_waiter_that_halts_without_a_last_look_is_found_out() {
    let looks = "\t/* A holder that lets go from here on sees both; one that did so before is seen here. */\n\tif (!ticket_is_turn(LOCK_LOAD(&lock->head), ticket)) {\n";
    for kind in KINDS {
        assert_eq!(fault_of(kind, looks, "if (1) {"), LOST, "{kind}");
    }
}

#[test]
fn a_waiter_that_says_too_late_that_it_halts_is_found_out() {
    let who = "\tLOCK_FETCH_OR(waiting, bit);\n";
    let that = "\tLOCK_FETCH_OR(&lock->head, (u16)TICKET_SOMEBODY_HALTS);\n";
    let looks = "\t/* A holder that lets go from here on sees both; one that did so before is seen here. */\n\tif (!ticket_is_turn(LOCK_LOAD(&lock->head), ticket)) {\n";
    let right = format!("{who}{that}{looks}");
    let wrong = format!("{that}{looks}{who}");
    assert_eq!(fault_of("pv-ticket", &right, &wrong), LOST);
}

#[test]
fn halts_that_are_forgotten_while_a_waiter_is_there_are_found_out() {
    let right = "if (LOCK_LOAD(&lock->both) == seen)\n\t\tLOCK_COMPARE_SWAP(&lock->both, seen, (u32)next << 16 | ticket);";
    let wrong = "if (seen)\n\t\tLOCK_STORE(&lock->head, ticket);";
    assert_eq!(fault_of("pv-ticket", right, wrong), LOST);
}

#[test]
fn a_lock_that_is_taken_a_ticket_early_is_found_out() {
    let right = "return !((head ^ ticket) & (u16)~TICKET_SOMEBODY_HALTS);";
    let wrong = "return (u16)(ticket - head) <= TICKET_STEP;";
    assert_eq!(fault_of("pv-ticket", right, wrong), "two hold the lock");
}

#[test]
fn a_word_that_is_overwritten_is_found_out() {
    let right = "if (LOCK_COMPARE_SWAP(word, seen, WORD_LOCKED))\n\t\t\t\treturn;\n\t\t\tcontinue;";
    let wrong = "{\n\t\t\t\tLOCK_STORE(word, WORD_LOCKED);\n\t\t\t\treturn;\n\t\t\t}";
    // The word is overwritten while a holder is to kick somebody.
    assert_eq!(fault_of(LINE, right, wrong), "nobody is to be kicked");
}

#[test]
fn pending_beside_the_kernels_head_is_found_out() {
    let right = "\t\tif (seen >> WORD_TAIL_SHIFT) {\n";
    let wrong = format!(
        "\t\tif (seen & WORD_LOCKED_MASK && !(seen & WORD_PENDING))\n\
         \t\t\tLOCK_STORE(&lock->pending, 1);\n{right}"
    );
    assert_eq!(fault_of(LINE, right, &wrong), "it doesn't end");
}

#[test]
fn a_waiter_that_stays_in_its_line_is_found_out() {
    assert_eq!(fault_of(LINE, "== 1 ? (u64)0 : seen - 1", "== 1 ? (u64)0 : seen"), "a line stays");
}

#[test]
fn balloons_are_due_as_the_paper_says_but_not_for_small_differences_nor_without_bounds() {
    let (_scratch, balloons) = build("balloons", |text| text);
    // Of each vCPU: its share, the fastest one's, their sum, and threads; as in the simulator's test.
    for (of, due) in [
        (["300", "1000", "1300", "10"], 6),
        (["1000", "1000", "1300", "10"], 0),
        (["500", "1000", "2499", "3"], 1),
        (["0", "0", "0", "10"], 0),
        (["901", "1000", "1901", "10"], 0),
        (["0", "1000", "1000", "4294967295"], 16),
        (["1000", "300", "1300", "10"], 0),
    ] {
        assert_eq!(run(&balloons, &of), due, "{of:?}");
    }
    // What the host took, of how long; counters may jump.
    for (of, share) in [
        (["0", "500000000"], 1000),
        (["350000000", "500000000"], 301),
        (["500000000", "500000000"], 0),
        (["18446744073709551615", "500000000"], 0),
        (["5", "0"], 1000),
    ] {
        assert_eq!(run(&balloons, &of), share, "{of:?}");
    }
}
