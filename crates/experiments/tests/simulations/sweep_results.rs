//! Sweeps: what their file may say, and journals that are cut off, damaged, of another sweep, or of parts.

use microslice_experiments::batch::BatchProgress;
use microslice_experiments::scenario::ScenarioError;
use microslice_experiments::sweep::{
    Journal, Journals, Part, RunName, Sweep, SweepError, WriteError, are_there, groups, ranges,
};
use microslice_metrics::checksum::seal;
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Some milliseconds of two VMs on one pCPU.
const SCENARIO: &str = r#"
host = { extends = "xeon-e5645", pcpus = 1, llc_pcpus = 1, smt_threads = 1 }
duration = "4 ms"
[[vm]]
name = "left"
vcpus = 1
kernel = "linux-4.4"
workloads = [{ name = "busy", threads = 1, program = [{ compute = "exponential 100 us" }, { progress = 1 }] }]
[[vm]]
name = "right"
vcpus = 1
kernel = "linux-4.4"
workloads = ["lookbusy"]
"#;

const SWEEP: &str = r#"
description = "small"
scenarios = ["a.toml", "b.toml"]
policies = ["eevdf", "credit-1ms"]
seeds = 2
seed = 7
set = ["warmup=1 ms"]
[[setting]]
name = "short"
[[setting]]
name = "long"
set = ["duration=8 ms"]
"#;

struct Desk(TempDir);

impl Desk {
    fn new() -> Self {
        let desk = Self(tempfile::tempdir().expect("a folder"));
        desk.write("a.toml", SCENARIO);
        desk.write("b.toml", &SCENARIO.replace("100 us", "150 us"));
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("written");
    }

    fn try_load(&self, text: &str) -> Result<Sweep, ScenarioError> {
        self.write("sweep.toml", text);
        Sweep::load(self.path("sweep.toml").to_str().expect("UTF-8"))
    }

    fn load(&self, text: &str) -> Sweep {
        self.try_load(text).unwrap_or_else(|error| panic!("{error}"))
    }

    /// What a file that can't be a sweep is refused with, without the folder.
    fn refuse(&self, text: &str) -> String {
        let error = self.try_load(text).expect_err(text).to_string();
        error.replace(&format!("{}/", self.0.path().display()), "")
    }

    fn results(&self) -> PathBuf {
        self.path("results.jsonl")
    }
}

/// Makes what is left of a part.
fn make(sweep: &Sweep, results: &Path, part: Part) -> Result<(), SweepError> {
    let (journal, _) = Journal::open(sweep, results, part)?;
    let left = Journals::scan(sweep, results)?.left(part);
    sweep.run(&left, 2, &BatchProgress::default(), |_, line| journal.append(line))
}

/// What the journals are together.
fn merged(sweep: &Sweep, results: &Path) -> Result<Vec<u8>, SweepError> {
    let mut bytes = Vec::new();
    match Journals::scan(sweep, results)?.write(&mut bytes, || false) {
        Ok(()) => Ok(bytes),
        Err(WriteError::Read(error)) => Err(error),
        Err(WriteError::Write(error)) => panic!("{error}"),
    }
}

#[test]
fn runs_are_numbered_scenario_by_scenario_the_seed_fastest() {
    let desk = Desk::new();
    let sweep = desk.load(SWEEP);
    assert_eq!(sweep.runs(), 16);
    let name = |run| {
        let RunName { number, scenario, setting, policy, seed } = sweep.name(run);
        format!("{number} {scenario} {setting} {policy} {seed}")
    };
    assert_eq!(name(0), "1 a.toml short eevdf 7");
    assert_eq!(name(3), "4 a.toml short credit-1ms 8");
    assert_eq!(name(4), "5 a.toml long eevdf 7");
    assert_eq!(name(15), "16 b.toml long credit-1ms 8");
}

#[test]
fn what_a_sweep_cannot_say_is_refused_with_its_place() {
    let desk = Desk::new();
    for (from, to, expected) in [
        (
            "seeds = 2",
            "seedz = 2",
            "sweep.toml:5:1: unknown key `seedz` in a sweep; allowed: scenarios, policies, ",
        ),
        ("seeds = 2", "seeds = 0", "sweep.toml:5:9: `seeds` is a whole number from 1 to 10000, not 0"),
        ("\"b.toml\"", "\"c.toml\"", "sweep.toml:3:24: "),
        ("\"b.toml\"", "\"no-such\"", "sweep.toml:3:24: no scenario `no-such`; built in: "),
        ("\"b.toml\"", "\"a.toml\"", "sweep.toml:3:24: `scenarios`: \"a.toml\" is named twice"),
        ("\"eevdf\"", "\"eevdv\"", "sweep.toml:4:13: no policy `eevdv`; built in: "),
        ("\"eevdf\"", "\"micro:9\"", "sweep.toml:4:13"),
        ("\"eevdf\"", "3", "sweep.toml:4:13: expected text, found a whole number"),
        ("\"warmup=1 ms\"", "\"warmup\"", "sweep.toml:7:8: expected PATH=VALUE"),
        ("\"warmup=1 ms\"", "\"wurmup=1 ms\"", "sweep.toml:7:8: unknown key `wurmup` in a scenario"),
        ("\"warmup=1 ms\"", "\"seed=3\"", "sweep.toml:7:8: each run has a seed of its own"),
        ("\"warmup=1 ms\"", "\"policy=credit\"", "sweep.toml:7:8: the policy is that of `policies`: "),
        (
            "\"warmup=1 ms\"",
            "\"vm.middle.vcpus=1\"",
            "sweep.toml:7:8: no entry `middle`; there are: left, right",
        ),
        ("name = \"long\"", "name = \"short\"", "sweep.toml:11:8: two settings are named `short`"),
        (
            "name = \"long\"",
            "named = \"long\"",
            "sweep.toml:11:1: unknown key `named` in a setting; allowed: name, set",
        ),
        ("scenarios = [\"a.toml\", \"b.toml\"]", "", "sweep.toml:1:1: a sweep needs `scenarios`"),
        ("seeds = 2", "seeds = = 2", "sweep.toml:5:9: not valid TOML: "),
    ] {
        let error = desk.refuse(&SWEEP.replacen(from, to, 1));
        assert!(error.starts_with(expected) && !error.contains('\n'), "{to}: {error}");
    }
    let missing = Sweep::load("/no/such/sweep.toml").expect_err("there is none").to_string();
    assert!(missing.starts_with("/no/such/sweep.toml: No such file"), "{missing}");
}

#[test]
fn parts_in_any_order_have_the_same_results_as_one_process() {
    let desk = Desk::new();
    let sweep = desk.load(SWEEP);
    make(&sweep, &desk.path("whole"), Part::WHOLE).expect("made");
    let whole = merged(&sweep, &desk.path("whole")).expect("complete");
    for number in [3, 1] {
        make(&sweep, &desk.results(), Part { number, of: 3 }).expect("made");
    }
    let missing = merged(&sweep, &desk.results()).expect_err("a part is missing").to_string();
    let expected = "5 of 16 runs are missing, the first is run 2 (a.toml, short, eevdf, seed 8); unfinished parts of 3: 2";
    assert_eq!(missing, expected);
    make(&sweep, &desk.results(), Part { number: 2, of: 3 }).expect("made");
    assert_eq!(merged(&sweep, &desk.results()).expect("complete"), whole);
    assert_eq!(whole.iter().filter(|&&byte| byte == b'\n').count(), 17);
    // Another process, with another number of parts, has nothing left to do.
    let left = Journals::scan(&sweep, &desk.results()).expect("read").left(Part { number: 1, of: 2 });
    assert!(left.is_empty());
}

#[test]
fn a_journal_cut_off_at_any_byte_is_completed_to_the_same_results() {
    let desk = Desk::new();
    let sweep = desk.load(&SWEEP.replace("\"a.toml\", ", ""));
    make(&sweep, &desk.results(), Part::WHOLE).expect("made");
    let journal = Part::WHOLE.path(&desk.results());
    let bytes = fs::read(&journal).expect("a journal");
    let results = merged(&sweep, &desk.results()).expect("complete");
    let text = String::from_utf8(results.clone()).expect("UTF-8");
    let lines: Vec<&str> = text.lines().skip(1).collect();
    let ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at);
    let around_ends = ends.flat_map(|at| [at.saturating_sub(1), at, at + 1, at + 2]);
    let cuts = (0..bytes.len()).step_by(211).chain(around_ends).filter(|&cut| cut <= bytes.len());
    for cut in cuts {
        fs::write(&journal, &bytes[..cut]).expect("cut");
        let (journal, had_half_a_line) =
            Journal::open(&sweep, &desk.results(), Part::WHOLE).expect("it goes on");
        assert_eq!(had_half_a_line, cut > 0 && bytes[cut - 1] != b'\n', "cut at {cut}");
        let left = Journals::scan(&sweep, &desk.results()).expect("read").left(Part::WHOLE);
        let whole_lines = bytes[..cut].iter().filter(|&&byte| byte == b'\n').count().saturating_sub(1);
        assert_eq!(left.len(), lines.len() - whole_lines, "cut at {cut}");
        left.iter().for_each(|&run| journal.append(lines[run]).expect("appended"));
        assert_eq!(merged(&sweep, &desk.results()).expect("complete"), results, "cut at {cut}");
    }
}

#[test]
fn lines_that_are_of_no_run_do_not_count_and_runs_made_twice_have_to_agree() {
    let desk = Desk::new();
    let sweep = desk.load(SWEEP);
    make(&sweep, &desk.results(), Part::WHOLE).expect("made");
    let results = String::from_utf8(merged(&sweep, &desk.results()).expect("complete")).expect("UTF-8");
    let lines: Vec<&str> = results.lines().collect();
    let damages = [
        lines[2].replace("\"seed\":8", "\"seed\":9"),
        lines[2].replace("\"run\":2", "\"run\":99"),
        lines[2].replace("\"figures\":", "\"figurez\":"),
        lines[2].replace("\"figure\":", "\"fagure\":"),
        lines[2].replacen("\"value\":", "\"value\":1", 1),
        format!("{}{}", &lines[2][..40], lines[2]),
        "\0\0\0".to_owned(),
        String::new(),
    ];
    for damage in damages {
        assert_ne!(damage, lines[2]);
        fs::write(Part::WHOLE.path(&desk.results()), results.replacen(lines[2], &damage, 1))
            .expect("written");
        let journals = Journals::scan(&sweep, &desk.results()).expect("read");
        assert_eq!((journals.damaged(), journals.left(Part::WHOLE)), (1, vec![1]), "{damage}");
    }
    fs::write(Part::WHOLE.path(&desk.results()), &results).expect("written");
    let second = Part { number: 2, of: 2 };
    let twice = |line: &str| {
        fs::write(second.path(&desk.results()), format!("{}\n{line}\n", lines[0])).expect("written")
    };
    twice(lines[2]);
    assert_eq!(merged(&sweep, &desk.results()).expect("complete"), results.as_bytes());
    let changed = lines[2].replacen("\"value\":", "\"value\":1", 1);
    let (object, _) = changed.rsplit_once(",\"crc32\"").expect("a checksum");
    twice(&seal(&format!("{object}}}"), lines[0].as_bytes()));
    let error = merged(&sweep, &desk.results()).expect_err("they differ").to_string();
    assert!(
        error.contains("part-2-of-2:2: run 2 isn't what it is in ") && error.contains("part-1-of-1: "),
        "{error}"
    );
}

/// Small results and their journal.
struct Made {
    desk: Desk,
    sweep: Sweep,
    results: Vec<u8>,
}

thread_local! {
    static MADE: Made = {
        let desk = Desk::new();
        let sweep = desk.load(&SWEEP.replace("\"a.toml\", ", ""));
        make(&sweep, &desk.results(), Part::WHOLE).expect("made");
        let results = merged(&sweep, &desk.results()).expect("complete");
        Made { desk, sweep, results }
    };
}

proptest! {
    #[test]
    fn a_flipped_bit_costs_only_the_runs_of_its_line(at: prop::sample::Index, bit in 0..8) {
        MADE.with(|Made { desk, sweep, results }| {
            let path = Part::WHOLE.path(&desk.results());
            let mut bytes = results.clone();
            let at = at.index(bytes.len());
            bytes[at] ^= 1u8 << bit;
            fs::write(&path, &bytes).expect("written");
            let (journal, _) = Journal::open(sweep, &desk.results(), Part::WHOLE).expect("it goes on");
            let left = Journals::scan(sweep, &desk.results()).expect("read").left(Part::WHOLE);
            prop_assert!(left.len() <= 2, "{left:?}: a line, or two that became one");
            let text = std::str::from_utf8(results).expect("UTF-8");
            let lines: Vec<&str> = text.lines().skip(1).collect();
            left.iter().for_each(|&run| journal.append(lines[run]).expect("appended"));
            prop_assert_eq!(&merged(sweep, &desk.results()).expect("complete"), results);
            // Results that were damaged later are refused, and lose no more as a journal.
            fs::write(desk.path("done"), &bytes).expect("written");
            let read = are_there(sweep, &desk.path("done")).and_then(|_| groups(sweep, &desk.path("done")));
            let error = read.expect_err("damaged").to_string();
            prop_assert!(error.contains("damaged: ") && error.contains("; rename it to "), "{error}");
            Ok(())
        })?;
    }
}

#[test]
fn results_of_another_sweep_are_refused_and_a_description_makes_no_other() {
    let desk = Desk::new();
    let sweep = desk.load(SWEEP);
    make(&sweep, &desk.results(), Part::WHOLE).expect("made");
    fs::write(desk.path("done"), merged(&sweep, &desk.results()).expect("complete")).expect("written");
    let same = desk.load(&SWEEP.replace("\"small\"", "\"the same\""));
    assert!(are_there(&same, &desk.path("done")).expect("it is"));
    assert!(!are_there(&same, &desk.path("none")).expect("it isn't"));
    desk.write("b.toml", &SCENARIO.replace("100 us", "151 us"));
    for (other, what) in [
        (SWEEP.to_owned(), "a scenario's file"),
        (SWEEP.replace("seed = 7", "seed = 8"), "seeds"),
        (SWEEP.replace("\"eevdf\"", "\"eevdf-flat\""), "a policy"),
        (SWEEP.replace("8 ms", "9 ms"), "a setting"),
    ] {
        let other = desk.load(&other);
        let refusals = [
            are_there(&other, &desk.path("done")).expect_err(what),
            Journals::scan(&other, &desk.results()).map(drop).expect_err(what),
            Journal::open(&other, &desk.results(), Part::WHOLE).map(drop).expect_err(what),
        ];
        for error in refusals {
            assert!(error.to_string().contains(":1: results of another sweep: "), "{what}: {error}");
        }
    }
    let text = fs::read_to_string(desk.path("done")).expect("results");
    let model = text.split("\"model\":\"").nth(1).and_then(|text| text.get(..16)).expect("a fingerprint");
    for (from, to, expected) in [
        (model, "0123456789abcdef", ":1: results of another version of the simulator; "),
        ("_sweep\":2", "_sweep\":1", ":1: results in another format; "),
        ("microslice", "macroslice", ":1: isn't a file of a sweep's results; "),
    ] {
        // Its lines aren't of this sweep either, or they would tell what it is.
        let (first, _) = text.split_once('\n').expect("a line");
        desk.write("done", &format!("{}\n", first.replacen(from, to, 1)));
        let error = are_there(&sweep, &desk.path("done")).expect_err(to).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_scenario_that_changes_under_way_ends_the_sweep() {
    let desk = Desk::new();
    let sweep = desk.load(SWEEP);
    desk.write("a.toml", &SCENARIO.replace("100 us", "99 us"));
    let error =
        make(&sweep, &desk.results(), Part::WHOLE).expect_err("it isn't what was asked for").to_string();
    assert!(error.contains("sweep.toml:3:14: \"a.toml\" has changed since this sweep began"), "{error}");
}

#[test]
fn a_part_is_written_by_one_process_at_a_time() {
    let desk = Desk::new();
    let sweep = desk.load(SWEEP);
    let part = Part { number: 1, of: 2 };
    let (_held, _) = Journal::open(&sweep, &desk.results(), part).expect("the first");
    let error = Journal::open(&sweep, &desk.results(), part).map(drop).expect_err("the second").to_string();
    assert!(error.ends_with("part-1-of-2: another process writes this part of the sweep"), "{error}");
    Journal::open(&sweep, &desk.results(), Part { number: 2, of: 2 }).expect("another part");
}

#[test]
fn a_run_that_deadlocks_is_a_result_and_counts_in_no_mean() {
    let desk = Desk::new();
    let stuck = "{ receive = 'q' }, { send = 'q' }, { progress = 1 }";
    desk.write("b.toml", &SCENARIO.replace("{ progress = 1 }", stuck).replace("[\"lookbusy\"]", "[]"));
    let sweep = desk.load(SWEEP);
    make(&sweep, &desk.results(), Part::WHOLE).expect("it goes on");
    fs::write(desk.path("done"), merged(&sweep, &desk.results()).expect("complete")).expect("written");
    let (groups, failed) = groups(&sweep, &desk.path("done")).expect("read");
    assert_eq!(groups.len(), 4);
    assert!(
        groups[1]
            .rows
            .iter()
            .any(|row| row.figure.id == "throughput" && row.estimates.iter().all(Option::is_some))
    );
    assert!(groups[2].rows.is_empty() && groups[3].rows.is_empty());
    assert_eq!(failed.iter().map(|failed| failed.run).collect::<Vec<_>>(), (8..16).collect::<Vec<_>>());
    assert!(failed.iter().all(|failed| failed.kind == "deadlock" && failed.cause.contains("deadlock at ")));
}

#[test]
fn damaged_results_are_refused_with_their_line() {
    let desk = Desk::new();
    let sweep = desk.load(SWEEP);
    make(&sweep, &desk.results(), Part::WHOLE).expect("made");
    let results = String::from_utf8(merged(&sweep, &desk.results()).expect("complete")).expect("UTF-8");
    let lines: Vec<&str> = results.split_inclusive('\n').collect();
    let swapped = [&lines[..3], &[lines[4], lines[3]], &lines[5..]].concat().concat();
    for (text, line, run) in
        [(lines[..9].concat(), 10, 9), (swapped, 4, 3), (format!("{results}{}", lines[1]), 18, 17)]
    {
        desk.write("done", &text);
        let error = groups(&sweep, &desk.path("done")).expect_err("damaged").to_string();
        assert!(
            error.contains(&format!("done:{line}: damaged: the line of run {run} is expected here")),
            "{error}"
        );
    }
}

#[test]
fn parts_are_read_and_numbers_are_shown_as_job_arrays_have_them() {
    assert_eq!("3/20".parse(), Ok(Part { number: 3, of: 20 }));
    for bad in ["0/2", "3/2", "1", "1/0", "a/b", "1/2/3", "-1/2", "1/1000001"] {
        assert!(bad.parse::<Part>().is_err(), "{bad}");
    }
    assert_eq!(ranges(&[1, 2, 3, 7, 9, 10]), "1-3,7,9-10");
    let runs: Vec<usize> = (0..10).filter(|&run| Part { number: 2, of: 4 }.has(run)).collect();
    assert_eq!(runs, [1, 5, 9]);
}
