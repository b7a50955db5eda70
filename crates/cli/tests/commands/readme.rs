//! README's numbers as a test: its table is what the command beside it prints.

use crate::common::{microslice, text};
use crate::reports::observe_report;
use serde_json::Value;
use std::path::Path;

/// Rows of the table, and the policy that each stands for.
const ROWS: [(&str, &str); 4] = [
    ("`microslice run`", "beside"),
    ("`microslice run --scheduler microslice`", "microslice"),
    ("Linux's own once more, another seed", "eevdf (other seeds)"),
    ("Linux's own", "eevdf"),
];

fn readme() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md")).expect("README")
}

/// Returns the words of the only `microslice regret` command of the page, without the program's name.
fn command_of(page: &str) -> Vec<String> {
    let mut lines = page.lines().filter_map(|line| line.strip_prefix("microslice regret "));
    let (Some(line), None) = (lines.next(), lines.next()) else { panic!("README has one such command") };
    let mut words = vec!["regret".to_owned()];
    for (at, span) in line.split('\'').enumerate() {
        match at % 2 {
            0 => words.extend(span.split_whitespace().map(str::to_owned)),
            _ => words.push(span.to_owned()),
        }
    }
    words
}

/// Returns a row of the table as README writes it.
fn row(name: &str, policy: &Value) -> String {
    let number = |path: &str| policy.pointer(&format!("/{path}")).and_then(Value::as_f64).expect(path);
    let is_baseline = policy["policy"] == "eevdf";
    // "1", not "1.000": nothing was rounded.
    let ratio = |path: &str, digits: usize| match is_baseline {
        true => number(path).to_string(),
        false => format!("{:.digits$}", number(path)),
    };
    let felt = |wait: &str| ratio(&format!("felt_waits/{wait}/geometric_mean"), 2);
    format!(
        "| {name} | {} | {} | {} | {} | {} | {} | {:.1} ms |",
        ratio("work/mean", 3),
        ratio("throughput/least", 2),
        number("misses/work below 0.95/count"),
        felt("wake-up"),
        felt("shootdown"),
        felt("lock"),
        number("longest_waits_ns/p99") / 1e6,
    )
}

#[test]
#[ignore = "7 minutes of simulations: make test-long"]
fn the_table_is_what_its_command_prints() {
    let page = readme();
    let arguments = command_of(&page);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(["--json"]).collect();
    let output = microslice(&arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let policies = value["policies"].as_array().expect("policies");
    let rows = ROWS.map(|(name, policy)| {
        row(name, policies.iter().find(|of| of["policy"] == policy).expect("a policy of the command"))
    });
    assert!(
        rows.iter().all(|row| page.lines().any(|line| line == row)),
        "README's rows are:\n{}",
        rows.join("\n")
    );
}

/// The tables of README's screen are those that `observe` prints. Their rows are of two VMs on one machine.
#[test]
fn the_screen_has_the_columns_that_observe_prints() {
    fn words(line: &str) -> Vec<&str> {
        line.split_whitespace().collect()
    }
    let (page, screen) = (readme(), observe_report(60).to_text());
    let headers: Vec<_> = screen.lines().filter(|line| words(line).first() == Some(&"vm")).take(2).collect();
    assert_eq!(headers.len(), 2, "{screen}");
    for header in headers {
        assert!(page.lines().any(|line| words(line) == words(header)), "README has no line: {header}");
    }
}
