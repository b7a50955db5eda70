//! `microslice regret` as its user meets it.

use crate::common::{microslice, refuse, text};
use std::path::Path;

fn succeed(arguments: &[&str]) -> String {
    let output = microslice(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder").flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

const BRIEF: [&str; 7] = ["regret", "--scenarios", "2", "--seed", "7", "--policies", "eevdf,microslice"];

#[test]
fn the_worst_scenarios_are_files_that_simulate_takes_and_numbers_are_the_same_each_time() {
    let desk = tempfile::tempdir().expect("a folder");
    let (worst, page) = (desk.path().join("worst"), desk.path().join("regret.html"));
    let (worst, page) = (worst.to_str().expect("UTF-8"), page.to_str().expect("UTF-8"));
    let json = succeed(&[&BRIEF[..], &["--json", "--worst", worst, "--html", page]].concat());
    assert_eq!(json, succeed(&[&BRIEF[..], &["--json"]].concat()));
    let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let policies = value["policies"].as_array().expect("a list");
    let names: Vec<_> = policies.iter().map(|of| of["policy"].as_str().expect("a name")).collect();
    assert_eq!(names, ["eevdf", "microslice", "eevdf (other seeds)"]);
    assert_eq!(policies[0]["throughput"]["geometric_mean"], 1.0);
    assert_eq!(value["by_scenario"].as_array().map(Vec::len), Some(2));
    assert_eq!(names_in(Path::new(worst)), ["regret-7.toml", "regret-8.toml"]);
    assert!(std::fs::read_to_string(page).expect("a page").contains("</html>"));
    let file = format!("{worst}/regret-7.toml");
    let run = succeed(&["simulate", &file, "--policy", "eevdf", "--set", "duration=5 ms"]);
    assert!(run.starts_with("regret 7: ") && run.contains("throughput"), "{run}");
    let again = refuse(&[&BRIEF[..], &["--worst", worst]].concat());
    assert!(again.ends_with("worst: isn't empty; name a new folder\n"), "{again}");
}

#[test]
fn the_table_has_a_row_for_each_policy_and_names_the_worst_scenarios() {
    let table = succeed(&BRIEF);
    assert!(
        table.starts_with("2 scenarios from seed 7, hosts four of five of today; relative to eevdf\n"),
        "{table}"
    );
    for title in [
        "\nWork\n",
        "\nFelt waits: ",
        "\nMisses: ",
        "\nWork by how ",
        "\nWork of VMs ",
        "\nShares: ",
        "\nWorst scenarios",
    ] {
        assert!(table.contains(title), "{title}: {table}");
    }
    assert_eq!(table.matches("\nmicroslice ").count(), 7, "{table}");
}

#[test]
fn what_cannot_be_compared_is_refused_before_anything_runs() {
    let desk = tempfile::tempdir().expect("a folder");
    let worst = desk.path().join("worst");
    let worst = worst.to_str().expect("UTF-8");
    let error = refuse(&["regret", "--policies", "eevdf,no-such", "--worst", worst]);
    assert!(error.contains("--policies: no policy `no-such`; built in: "), "{error}");
    assert!(names_in(desk.path()).is_empty(), "no folder is left");
    assert!(refuse(&["regret", "--policies", "eevdf,eevdf"]).contains("`eevdf` is named twice"));
    assert!(refuse(&["regret", "--seed", "18446744073709551615"]).contains("there aren't 100 scenarios"));
    assert!(refuse(&["regret", "--precision", "20 %"]).contains("not between 0.1 % and 10 %"));
    assert!(refuse(&["regret", "--precision", "1", "--policies", "eevdf"]).contains("name two"));
    assert!(refuse(&["regret", "--scenarios", "0"]).contains("1..=10000"));
    assert!(refuse(&["regret", "--worst", "/no/such/folder"]).contains("No such file"));
}
