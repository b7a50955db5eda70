//! Both worlds report the same figures by the same names, and none that nobody fills.

use crate::reports::readings;
use microslice_host::output::monitoring::Reading;
use microslice_metrics::figures;
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;

/// Scenarios that have, together, all that the simulator can measure: a network, work that ends, a limit,
/// locks of queues, and a writer of RCU.
const SIMULATED: [&[&str]; 4] = [
    &["iperf-udp-mixed", "--policy", "microslice"],
    &["dedup-swaptions", "--policy", "micro:1", "--set", "vm.corunner.cpu_max=50000 100000"],
    &["queue-domains"],
    &["rcu"],
];

/// What the simulator fills in a run of `arguments`.
fn simulated(arguments: &[&str]) -> BTreeSet<String> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let mut simulate = Command::new(env!("CARGO_BIN_EXE_microslice"));
    simulate.current_dir(root).arg("simulate").args(arguments).args(["--json", "--set", "duration=200 ms"]);
    let output = simulate.output().expect("run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let entries = report["figures"].as_array().expect("figures").iter();
    entries.map(|entry| entry["figure"].as_str().expect("a name").to_owned()).collect()
}

fn ids(reading: &dyn Reading) -> BTreeSet<String> {
    reading.snapshot().entries().iter().map(|entry| entry.figure.id.to_owned()).collect()
}

#[test]
fn every_figure_is_filled_by_a_real_host_or_by_the_simulator() {
    let mut filled: BTreeSet<String> = SIMULATED.iter().flat_map(|arguments| simulated(arguments)).collect();
    filled.extend(readings(10).iter().flat_map(|known| ids(&*known.served)));
    let defined: BTreeSet<String> = figures::ALL.iter().map(|figure| figure.id.to_owned()).collect();
    assert_eq!(defined.difference(&filled).collect::<Vec<_>>(), Vec::<&String>::new(), "nobody fills these");
}

/// Names of all members of all objects in it.
fn keys(value: &Value) -> BTreeSet<String> {
    match value {
        Value::Object(members) => {
            members.iter().flat_map(|(name, of)| keys(of).into_iter().chain([name.clone()])).collect()
        }
        Value::Array(elements) => elements.iter().flat_map(keys).collect(),
        _ => BTreeSet::new(),
    }
}

#[test]
fn what_a_real_host_prints_is_called_as_what_it_serves() {
    for known in readings(10) {
        let printed = keys(&known.printed);
        // Times have their unit in their names.
        let is_printed =
            |id: &String| ["", "_ns", "_us"].iter().any(|unit| printed.contains(&format!("{id}{unit}")));
        let missing: Vec<String> = ids(&*known.served).into_iter().filter(|id| !is_printed(id)).collect();
        assert!(missing.is_empty(), "{missing:?} of {printed:?}");
    }
}
