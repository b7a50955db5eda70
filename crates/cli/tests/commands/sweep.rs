//! `microslice sweep` as its user meets it: whatever ends it, the same command goes on, and the results are
//! the same.

use crate::common::{PROGRAM, complaint, refusal, text};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Nothing here takes a tenth of it.
const PATIENCE: Duration = Duration::from_secs(120);

const SCENARIO: &str = r#"
host = { extends = "xeon-e5645", pcpus = 2, llc_pcpus = 2 }
duration = "20 ms"
[[vm]]
name = "left"
vcpus = 2
kernel = "linux-4.4"
workloads = [{ name = "locks", threads = "per vcpu", address_space = "shared", program = [
    { compute = "exponential 20 us" },
    { lock = "page_allocator", hold = "5 us" },
    { progress = 1 },
] }]
[[vm]]
name = "right"
vcpus = 2
kernel = "linux-4.4"
workloads = ["lookbusy"]
"#;

/// 60 runs.
const SWEEP: &str = r#"
description = "small"
scenarios = ["mine.toml"]
policies = ["eevdf", "microslice"]
seeds = 10
[[setting]]
name = "one"
[[setting]]
name = "two"
set = ["vm.left.vcpus=1"]
[[setting]]
name = "three"
set = ["vm.right.copies=2"]
"#;
const RUNS: usize = 60;

struct Desk(tempfile::TempDir);

impl Desk {
    fn new() -> Self {
        let desk = Self(tempfile::tempdir().expect("a folder"));
        desk.write("mine.toml", SCENARIO);
        desk.write("small.toml", SWEEP);
        desk
    }

    /// With runs that last long enough to be stopped.
    fn of_long_runs() -> Self {
        let desk = Self::new();
        desk.write("mine.toml", &SCENARIO.replace("20 ms", "500 ms"));
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("written");
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).expect("a folder").flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<_> =
            names.filter(|name| !["mine.toml", "small.toml"].contains(&name.as_str())).collect();
        names.sort();
        names
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.current_dir(self.0.path()).args(["sweep", "small.toml"]).args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the binary starts")
    }

    fn succeed(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    fn refuse(&self, arguments: &[&str]) -> String {
        refusal(&self.run(arguments))
    }

    fn start(&self, arguments: &[&str]) -> Child {
        let mut command = self.command(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts")
    }

    /// Runs that the journal has, half a line included.
    fn lines(&self) -> usize {
        std::fs::read_to_string(self.path(JOURNAL)).map_or(0, |text| text.lines().count().saturating_sub(1))
    }

    /// Waits until the journal has that many, or everything is done.
    fn await_lines(&self, lines: usize) {
        let begun = Instant::now();
        while self.lines() < lines && !self.path(RESULTS).exists() {
            assert!(begun.elapsed() < PATIENCE, "{} of {lines} lines: {:?}", self.lines(), self.names());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

const RESULTS: &str = "small.results.jsonl";
const JOURNAL: &str = "small.results.jsonl.part-1-of-1";

#[test]
fn a_sweep_that_is_killed_again_and_again_ends_with_the_same_results() {
    let calm = Desk::of_long_runs();
    let table = calm.succeed(&["--all"]);
    let mut kills = 0;
    // A machine that stops this test for a while may see sweeps end before they are killed.
    for _ in 0..5 {
        let desk = Desk::of_long_runs();
        let mut made = 0;
        while !desk.path(RESULTS).exists() {
            let mut sweep = desk.start(&[]);
            desk.await_lines(made + 3);
            sweep.kill().expect("killed");
            sweep.wait().expect("gone");
            if desk.path(RESULTS).exists() {
                break;
            }
            let now = desk.lines();
            assert!(now >= made, "a kill loses nothing that was made: {made}, then {now}");
            (kills, made) = (kills + 1, now);
        }
        assert_eq!(desk.succeed(&["--all"]), table);
        assert_eq!(desk.read(RESULTS), calm.read(RESULTS));
        assert_eq!(desk.names(), [RESULTS], "nothing else is left");
        if kills > 3 {
            return;
        }
    }
    panic!("{kills} kills only");
}

#[test]
fn a_damaged_line_costs_one_run() {
    let desk = Desk::new();
    desk.write("small.toml", &SWEEP.replace("seeds = 10", "seeds = 1"));
    let table = desk.succeed(&[]);
    let results = desk.read(RESULTS);
    let damaged = results.replacen("\"figures\":[{\"figure\"", "\"figures\":[{\"fagure\"", 1);
    assert_ne!(damaged, results);
    desk.write(RESULTS, &damaged);
    let error = desk.refuse(&[]);
    let expected = format!(
        "{RESULTS}:2: damaged: the line of run 1 is expected here; rename it to {JOURNAL}, \
         and run the sweep again: it makes what is damaged\n"
    );
    assert!(error.ends_with(&expected), "{error}");
    assert_eq!(desk.read(RESULTS), damaged, "nothing is lost");
    std::fs::rename(desk.path(RESULTS), desk.path(JOURNAL)).expect("renamed");
    let output = desk.run(&[]);
    let again = format!("{JOURNAL}: 1 damaged line: what isn't whole is made again\n");
    assert_eq!(complaint(&output), again + "5 of 6 runs were made before\n");
    assert_eq!((text(&output.stdout), desk.read(RESULTS)), (table, results));
    assert_eq!(desk.names(), [RESULTS]);
}

#[test]
fn ctrl_c_keeps_what_was_made_and_says_how_to_go_on() {
    for signal in ["-INT", "-TERM"] {
        // As above.
        let interrupted = (0..5).find_map(|_| {
            let desk = Desk::of_long_runs();
            let sweep = desk.start(&[]);
            desk.await_lines(2);
            let sent = Command::new("kill").args([signal, &sweep.id().to_string()]).status().expect("kill");
            let output = sweep.wait_with_output().expect("it ends");
            (sent.success() && !desk.path(RESULTS).exists()).then_some((desk, output))
        });
        let (desk, output) = interrupted.expect("a sweep under way");
        let said = complaint(&output);
        assert_eq!(output.status.code(), Some(130), "{said}");
        assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
        let kept = desk.lines();
        let expected = format!(
            "microslice: interrupted: {kept} of {RUNS} runs are kept beside {RESULTS}; the same command goes on from there\n"
        );
        assert_eq!(said, expected);
        assert_eq!(desk.names(), [JOURNAL]);
        assert!(desk.read(JOURNAL).ends_with('\n'), "no half line");
        let output = desk.run(&[]);
        assert!(output.status.success());
        assert_eq!(complaint(&output), format!("{kept} of {RUNS} runs were made before\n"));
    }
}

#[test]
fn parts_and_their_merge_are_what_one_process_makes() {
    let whole = Desk::new();
    let (table, json) = (whole.succeed(&[]), whole.succeed(&["--json"]));
    let desk = Desk::new();
    desk.succeed(&["--part", "2/3", "--jobs", "1"]);
    let error = desk.refuse(&["--merge"]);
    assert!(
        error.contains(&format!("{RESULTS}: 40 of {RUNS} runs are missing, the first is run 1 ")),
        "{error}"
    );
    assert!(error.ends_with("; unfinished parts of 3: 1,3\n"), "{error}");
    desk.succeed(&["--part", "3/3"]);
    desk.succeed(&["--part", "1/3"]);
    assert_eq!(desk.succeed(&["--merge"]), table);
    assert_eq!(desk.succeed(&["--merge", "--json"]), json);
    assert_eq!(desk.read(RESULTS), whole.read(RESULTS));
    assert_eq!(desk.names(), [RESULTS]);
    // What parts have left is completed by one process, too.
    let begun = Desk::new();
    begun.succeed(&["--part", "2/7"]);
    assert_eq!(begun.succeed(&[]), table);
    assert_eq!(begun.read(RESULTS), whole.read(RESULTS));
}

#[test]
fn the_means_are_those_of_compare() {
    let desk = Desk::new();
    let json: serde_json::Value = serde_json::from_str(&desk.succeed(&["--json"])).expect("JSON");
    let group = &json["groups"][1];
    assert_eq!((group["scenario"].as_str(), group["setting"].as_str()), (Some("mine.toml"), Some("two")));
    let compare = Command::new(PROGRAM)
        .current_dir(desk.0.path())
        .args(["compare", "mine.toml", "--policies", "eevdf,microslice", "--seed", "1", "--seeds", "10"])
        .args(["--set", "vm.left.vcpus=1", "--json"])
        .output()
        .expect("the binary starts");
    let compare: serde_json::Value = serde_json::from_slice(&compare.stdout).expect("JSON");
    let means = |figures: &serde_json::Value| -> Vec<(String, f64)> {
        let figures = figures.as_array().expect("a list").iter().flat_map(|figure| {
            let policies = figure["policies"].as_object().expect("an object").iter();
            policies.filter_map(move |(policy, estimate)| {
                let name = format!("{} {} {policy}", figure["figure"], figure["labels"]);
                Some((name, estimate["mean"].as_f64()?))
            })
        });
        figures.collect()
    };
    let (ours, theirs) = (means(&group["figures"]), means(&compare["figures"]));
    assert!(ours.len() > 20 && ours.len() == theirs.len(), "{} and {}", ours.len(), theirs.len());
    for ((name, our), (other, their)) in ours.iter().zip(&theirs) {
        assert_eq!(name, other);
        assert!((our - their).abs() <= their.abs() * 1e-12, "{name}: {our} and {their}");
    }
}

#[test]
fn a_full_disk_is_one_line_and_what_fits_is_kept() {
    let calm = Desk::new();
    calm.succeed(&[]);
    let desk = Desk::new();
    let limited = Command::new("sh")
        .current_dir(desk.0.path())
        .args(["-c", "ulimit -f 32; exec \"$@\"", "sh", PROGRAM, "sweep", "small.toml"])
        .output()
        .expect("it starts");
    let said = complaint(&limited);
    assert_eq!(limited.status.code(), Some(2), "{said}");
    assert_eq!(said, format!("microslice: {JOURNAL}: File too large (os error 27)\n"));
    let kept = desk.lines();
    assert!(kept > 0 && kept < RUNS && desk.read(JOURNAL).ends_with('\n'), "{kept} whole lines");
    // Nor is there room for the results themselves, when all runs are made.
    for part in ["1/2", "2/2"] {
        desk.succeed(&["--part", part]);
    }
    let limited = Command::new("sh")
        .current_dir(desk.0.path())
        .args(["-c", "ulimit -f 32; exec \"$@\"", "sh", PROGRAM, "sweep", "small.toml", "--merge"])
        .output()
        .expect("it starts");
    let said = complaint(&limited);
    assert_eq!((limited.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains(&format!("{RESULTS}: File too large")), "{said}");
    assert!(!desk.names().iter().any(|name| name.starts_with('.') || name == RESULTS), "{:?}", desk.names());
    desk.succeed(&[]);
    assert_eq!(desk.read(RESULTS), calm.read(RESULTS));
}

#[test]
fn what_cannot_be_swept_is_refused_before_anything_runs() {
    let desk = Desk::new();
    desk.write("small.toml", &SWEEP.replace("seeds = 10", "seedz = 10"));
    assert!(desk.refuse(&[]).contains("small.toml:5:1: unknown key `seedz` in a sweep; allowed: "));
    desk.write("small.toml", SWEEP);
    assert!(
        desk.refuse(&["--results", "/no/such/folder/x"])
            .contains("/no/such/folder/x.part-1-of-1: No such file")
    );
    assert!(
        desk.refuse(&["--results", "mine.toml"]).contains("mine.toml:1: isn't a file of a sweep's results; ")
    );
    assert!(desk.refuse(&["--results", "/dev/null"]).contains("/dev/null: isn't a file"));
    assert!(desk.refuse(&["--part", "4/3"]).contains("expected K/N"));
    assert!(desk.refuse(&["--wait"]).contains("--slurm"));
    assert!(desk.refuse(&["--", "--partition=x"]).contains("--slurm"));
    assert!(desk.refuse(&["--part", "1/3", "--merge"]).contains("cannot be used with"));
    assert!(
        desk.refuse(&["--merge"])
            .contains("60 of 60 runs are missing, the first is run 1 (mine.toml, one, eevdf, seed 1)\n")
    );
    assert!(desk.names().is_empty(), "{:?}", desk.names());
    desk.succeed(&["--part", "1/60"]);
    desk.write("mine.toml", &SCENARIO.replace("20 us", "21 us"));
    let error = desk.refuse(&[]);
    assert!(error.contains("part-1-of-60:1: results of another sweep: "), "{error}");
    assert!(error.ends_with("; name another file by --results, or move this one away\n"), "{error}");
    assert_eq!(desk.succeed(&["--results", "other.jsonl"]).lines().next(), Some("small"));
}

#[test]
fn runs_that_fail_are_named_and_the_others_are_shown() {
    let desk = Desk::new();
    let stuck = SCENARIO
        .replace("[\"lookbusy\"]", "[]")
        .replace("{ progress", "{ receive = 'q' }, { send = 'q' }, { progress");
    desk.write("stuck.toml", &stuck);
    let sweep = SWEEP
        .replace("[\"mine.toml\"]", "[\"mine.toml\", \"stuck.toml\"]")
        .replace("seeds = 10", "seeds = 2");
    desk.write("small.toml", &sweep);
    let output = desk.run(&[]);
    let said = complaint(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    let expected = "microslice: 12 of 24 runs failed, the first is run 13 (stuck.toml, one, eevdf, seed 1): deadlock at ";
    assert!(said.starts_with(expected) && said.lines().count() == 1, "{said}");
    assert!(text(&output.stdout).contains("throughput"), "{}", text(&output.stdout));
    let json: serde_json::Value = serde_json::from_slice(&desk.run(&["--json"]).stdout).expect("JSON");
    assert_eq!(json["failed"].as_array().map(Vec::len), Some(12));
}

#[test]
fn the_example_is_a_sweep() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/sweeps/slices.toml");
    let desk = Desk::new();
    desk.write("small.toml", &std::fs::read_to_string(example).expect("the example"));
    assert!(desk.refuse(&["--merge"]).contains("36 of 36 runs are missing"));
}
