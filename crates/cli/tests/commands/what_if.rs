//! `microslice simulate --profile` as its users meet it.

use crate::common::{Files, microslice, refuse, text};
use serde_json::Value;

/// As a host of two pCPUs would be seen: a VM that calls its siblings, and one that only computes.
const PROFILE: &str = r#"{
  "format": "microslice profile",
  "version": 1,
  "seconds": 10.0,
  "host": {
    "pcpus": 2, "llc_pcpus": 0, "smt_threads": 1, "scheduler": "kernel", "base_slice_ns": 2800000, "sees_interrupts": true
  },
  "vms": [
    {
      "name": "web", "vcpus": 2, "weight": 100, "affinity": [], "kernel": "6.18", "classes_are_known": true,
      "observed_ns": 20000000000, "ran_ns": 9000000000, "ready_ns": 6000000000,
      "waits": { "count": 12000, "total_ns": 6000000000, "p50_ns": 400000, "p99_ns": 3000000, "max_ns": 9000000 },
      "turns_ended": {
        "unknown": 0, "user": 1800, "kernel_other": 50, "lock_holder": 0, "lock_waiter": 0, "tlb_shootdown": 150,
        "resched_ipi": 0, "irq_handler": 0, "idle": 0
      },
      "pause_exits": 4000, "directed_yields": 0, "lock_halts": 0,
      "interrupts": {
        "other": { "sent": 0, "waits": NONE },
        "reschedule": { "sent": 0, "waits": NONE },
        "call_function": { "sent": 5000, "waits": NONE },
        "virq": { "sent": 0, "waits": NONE },
        "timer": { "sent": 0, "waits": NONE }
      },
      "shootdowns": { "count": 900, "total_ns": 2000000000, "p50_ns": 2000000, "p99_ns": 6000000, "max_ns": 7000000 }
    },
    {
      "name": "hog", "vcpus": 2, "weight": 100, "affinity": [], "kernel": null, "classes_are_known": false,
      "observed_ns": 20000000000, "ran_ns": 10900000000, "ready_ns": 9100000000,
      "waits": { "count": 3000, "total_ns": 9100000000, "p50_ns": 2800000, "p99_ns": 6000000, "max_ns": 9000000 },
      "turns_ended": {
        "unknown": 3000, "user": 0, "kernel_other": 0, "lock_holder": 0, "lock_waiter": 0, "tlb_shootdown": 0,
        "resched_ipi": 0, "irq_handler": 0, "idle": 0
      },
      "pause_exits": 0, "directed_yields": 0, "lock_halts": 0,
      "interrupts": {
        "other": { "sent": 0, "waits": NONE },
        "reschedule": { "sent": 0, "waits": NONE },
        "call_function": { "sent": 0, "waits": NONE },
        "virq": { "sent": 0, "waits": NONE },
        "timer": { "sent": 0, "waits": NONE }
      },
      "shootdowns": NONE
    }
  ]
}
"#;

/// A profile with a part of it changed.
fn profile(files: &Files, from: &str, to: &str) -> String {
    let none = r#"{ "count": 0, "total_ns": 0, "p50_ns": 0, "p99_ns": 0, "max_ns": 0 }"#;
    let text = PROFILE.replace("NONE", none);
    assert!(text.contains(from), "{from}");
    files.write("p.json", &text.replacen(from, to, 1))
}

#[test]
fn a_profile_of_another_version_or_a_damaged_one_is_one_line_and_exit_code_2() {
    let files = Files::new();
    for (from, to, expected) in [
        ("\"version\": 1", "\"version\": 2", "p.json: a profile of version 2; this program reads version 1"),
        ("microslice profile", "shopping list", "p.json: not a profile: "),
        ("\"vcpus\": 2", "\"vcpus\": 0", "p.json: vms[0].vcpus: 0; allowed: 1 to 4096"),
        ("\"ran_ns\": 9000000000", "\"ran_ns\": -1", "p.json:11:"),
        ("\"pause_exits\": 4000", "\"pause_exits\": 18446744073709551615", "p.json: vms[0].pause_exits: "),
        ("\"pcpus\": 2", "\"pcpus\": 2,,", "p.json:6:"),
        ("\"scheduler\": \"kernel\"", "\"scheduler\": \"lavd\"", "p.json: host.scheduler: "),
    ] {
        let error = refuse(&["simulate", "--profile", &profile(&files, from, to)]);
        assert!(error.starts_with("microslice: ") && error.contains(expected), "{error}");
    }
    let error = refuse(&["simulate", "--profile", &files.name("none.json")]);
    assert!(error.contains("none.json: No such file"), "{error}");
    let error = refuse(&["simulate", "--profile", &files.write("list.json", "[]")]);
    assert!(
        error.contains("list.json:1:") && error.contains("expected a profile, which is a JSON object"),
        "{error}"
    );
    std::fs::write(files.path("bytes.json"), [0xff, 0xfe]).expect("written");
    assert!(refuse(&["simulate", "--profile", &files.name("bytes.json")]).contains("not UTF-8 text"));
}

#[test]
fn options_that_do_not_belong_together_and_policies_that_there_are_not_are_refused() {
    let files = Files::new();
    let profile = profile(&files, "web", "web");
    for arguments in [
        &["simulate", "gmake-solo", "--profile", &profile][..],
        &["simulate", "gmake-solo", "--policies", "eevdf"],
        &["simulate", "--profile", &profile, "--trace", "t.txt"],
        &["simulate", "--profile", &profile, "--seeds", "0"],
    ] {
        refuse(arguments);
    }
    let error = refuse(&["simulate", "--profile", &profile, "--policies", "eevdf,nobody", "--seeds", "1"]);
    assert!(error.contains("--policies") && error.contains("nobody"), "{error}");
    let error = refuse(&["simulate", "--profile", &profile, "--policies", "eevdf,eevdf", "--seeds", "1"]);
    assert!(error.contains("`eevdf` is named twice"), "{error}");
}

#[test]
fn a_prediction_has_each_vm_its_fit_and_what_it_cannot_know_and_its_scenario_runs() {
    let files = Files::new();
    let profile = profile(&files, "web", "web");
    let scenario = files.name("fitted.toml");
    let arguments = ["simulate", "--profile", &profile, "--policies", "eevdf,microslice:1", "--seeds", "2"];
    let output = microslice(&[&arguments[..], &["--write-scenario", &scenario]].concat());
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for expected in [
        "web  shootdown_p50",
        "hog  work",
        "It can't know:",
        "Note: hog: what its guest was doing is unknown",
    ] {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
    let written = std::fs::read_to_string(&scenario).expect("written");
    assert!(written.contains("shootdown") && written.contains("base_slice = \"2800000 ns\""), "{written}");
    let run = microslice(&["simulate", &scenario, "--set", "duration=100 ms", "--check"]);
    assert!(run.status.success(), "{}", text(&run.stderr));

    let json = microslice(&[&arguments[..], &["--json"]].concat());
    let json: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    let predictions = json["predictions"].as_array().expect("a list");
    let work =
        predictions.iter().find(|row| row["vm"] == "web" && row["figure"] == "work").expect("web's work");
    assert!(work["policies"]["microslice:1"]["mean"].as_f64() > Some(0.1), "{work}");
    assert_eq!(work["relative_to_first"]["eevdf"]["mean"], 1.0);
    let fitted = &json["fit"]["vms"][0]["figures"]["calls/s"];
    let off = fitted["model"].as_f64().expect("a number") / fitted["profile"].as_f64().expect("a number");
    assert!((0.5..2.0).contains(&off), "{fitted}");
}

#[test]
fn a_vm_bound_to_the_last_pcpu_is_predicted() {
    let files = Files::new();
    let profile = profile(&files, "\"affinity\": []", "\"affinity\": [1]");
    let output = microslice(&["simulate", "--profile", &profile, "--seeds", "1"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).starts_with("2 VMs on 2 pCPUs, observed for "), "{}", text(&output.stdout));
}

#[test]
fn a_host_whose_costs_were_measured_is_a_name_or_a_file() {
    let files = Files::new();
    let profile = profile(&files, "web", "web");
    let measured = include_str!("../../../../scenarios/hosts/testbed.toml");
    let file = files.write("measured.toml", measured);
    let predicted = |host: &str| {
        let output =
            microslice(&["simulate", "--profile", &profile, "--host", host, "--seeds", "1", "--json"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        json["predictions"].clone()
    };
    assert_eq!(predicted("testbed"), predicted(&file));
    let none = files.name("none.toml");
    let error = refuse(&["simulate", "--profile", &profile, "--host", &none, "--seeds", "1"]);
    assert!(error.contains("none.toml: No such file"), "{error}");
}

/// The page docs/how-to/what-if.md has it beside it: stock guests on an emulated host.
#[test]
fn the_sample_profile_of_the_page_is_fitted_and_predicted() {
    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/how-to/what-if-sample.json");
    let output = microslice(&["simulate", "--profile", sample, "--seeds", "1", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let vms: Vec<_> = json["fit"]["vms"].as_array().expect("VMs").iter().map(|vm| &vm["vm"]).collect();
    assert_eq!(vms, ["web", "hog"]);
    let rows = json["predictions"].as_array().expect("a list");
    let shootdowns = rows.iter().find(|row| row["vm"] == "web" && row["figure"] == "shootdown_p50");
    let beside = &shootdowns.expect("web's shootdowns")["policies"]["beside"]["mean"];
    assert!(beside.as_f64() > Some(0.0), "{beside}");
}
