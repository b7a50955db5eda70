//! `microslice simulate`, `compare` and `reproduce` as their users meet them.

use crate::common::{Files, await_handler, microslice, refuse, text};
use std::path::Path;
use std::process::Command;

/// Two VMs on two pCPUs: preemptions, a contended lock and shootdowns within some milliseconds.
const TINY: &str = r#"
description = "tiny"
seed = 3
duration = "60 ms"
host = { extends = "xeon-e5645", pcpus = 2, llc_pcpus = 2 }
policy = { extends = "micro", pool = 1, slice = "1 ms", tick = "1 ms", ratelimit = "0 us" }

[[vm]]
name = "left"
vcpus = 2
kernel = "linux-4.4"
workloads = [{ name = "locks", threads = "per vcpu", address_space = "shared", program = [
    { compute = "exponential 200 us" },
    { lock = "page_allocator", hold = "20 us" },
    { shootdown = "1 us" },
    { progress = 1 },
] }]

[[vm]]
name = "right"
vcpus = 1
kernel = "linux-4.4"
workloads = ["lookbusy"]
"#;

fn succeed(arguments: &[&str]) -> String {
    let output = microslice(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn a_bad_scenario_is_one_line_with_file_line_and_column_and_exit_code_2() {
    let files = Files::new();
    for (from, to, expected) in [
        ("vcpus = 2", "vpcus = 2", "10:1: unknown key `vpcus` in a VM; allowed: "),
        ("\"60 ms\"", "\"60\"", "4:12: `duration`: `60` has no unit"),
        ("pcpus = 2,", "pcpus = 0,", "`pcpus` is a whole number from 1"),
        (
            "\"page_allocator\"",
            "\"no_such_lock\"",
            "unknown lock `no_such_lock`; this VM's kernel and workload define: ",
        ),
        ("\"20 us\"", "\"-20 us\"", "`hold`: negative"),
        ("vcpus = 2", "vcpus = = 2", "not valid TOML"),
    ] {
        let file = files.write("bad.toml", &TINY.replacen(from, to, 1));
        let error = refuse(&["simulate", &file]);
        assert!(error.contains(&file) && error.contains(expected), "{error}");
    }
}

#[test]
fn a_workload_that_deadlocks_is_reported_with_what_each_thread_waits_for() {
    let files = Files::new();
    let program = "{ compute = \"200 us\" }, { receive = \"jobs\" }, { send = \"jobs\" },";
    let file = files.write(
        "stuck.toml",
        &TINY.replacen("{ compute = \"exponential 200 us\" },", program, 1).replace("[\"lookbusy\"]", "[]"),
    );
    let error = refuse(&["simulate", &file]);
    assert!(error.contains("deadlock") && error.contains("jobs"), "{error}");
}

#[test]
fn a_scenario_that_does_not_exist_lists_the_built_in_ones() {
    let error = refuse(&["simulate", "gmake-swaption"]);
    assert!(error.contains("no scenario `gmake-swaption`") && error.contains("gmake-swaptions"), "{error}");
    assert!(refuse(&["simulate", "/no/such/file.toml"]).contains("/no/such/file.toml"));
}

#[test]
fn the_list_says_which_functions_are_critical() {
    let list = succeed(&["simulate", "--list=symbols"]);
    let critical =
        list.lines().find(|line| line.starts_with("of these critical in linux-4.4: ")).expect("a line");
    assert!(critical.contains("get_page_from_freelist (lock_holder)"), "{critical}");
    assert!(!critical.contains("mutex_lock ") && !critical.contains("_raw_spin_lock "), "{critical}");
}

#[test]
fn the_list_says_what_each_scenario_and_policy_is() {
    let list = succeed(&["simulate", "--list"]);
    let line = |name: &str| list.lines().find(|line| line.starts_with(name)).expect("a line");
    let of_dedup = "12    2     24  dedup against swaptions: two VMs of 12 vCPUs";
    assert!(line("dedup-swaptions ").contains(of_dedup), "{}", line("dedup-swaptions "));
    assert!(line("eevdf ").contains("Linux EEVDF"), "{list}");
    assert!(refuse(&["simulate", "--list=songs"]).contains("[possible values: all, symbols]"));
}

#[test]
fn an_output_that_cannot_be_written_is_refused_before_the_run() {
    let files = Files::new();
    let file = files.write("tiny.toml", TINY);
    refuse(&["simulate", &file, "--trace", "/no/such/folder/trace.pftrace"]);
    refuse(&["simulate", &file, "--html", "/no/such/folder/page.html"]);
    let endless = ["--set", "duration=60 min"];
    let page = ["--html", "/no/such/folder/page.html"];
    let error = refuse(&[&["compare", &file, "--policies", "credit"], &endless[..], &page].concat());
    assert_eq!(error, "microslice: /no/such/folder/page.html: No such file or directory (os error 2)\n");
    refuse(&[&["reproduce", "eurosys18", "--seeds", "1000"], &page[..]].concat());
}

#[test]
fn two_outputs_in_one_file_are_refused() {
    let files = Files::new();
    let (file, both) = (files.write("tiny.toml", TINY), files.name("both"));
    let error = refuse(&["simulate", &file, "--trace", &both, "--html", &both]);
    assert!(error.contains("two outputs can't share one file"), "{error}");
    let detour = files.name("./both");
    refuse(&["simulate", &file, "--trace", &both, "--html", &detour]);
}

#[test]
fn an_output_does_not_replace_a_scenario() {
    let files = Files::new();
    let scenario = files.write("mine.toml", TINY);
    for option in ["--html", "--trace"] {
        let error = refuse(&["simulate", &scenario, option, &scenario]);
        assert!(error.trim_end().ends_with("mine.toml: an output would replace this TOML file"), "{error}");
    }
    assert_eq!(std::fs::read_to_string(&scenario).expect("still there"), TINY);
}

#[test]
fn ctrl_c_ends_a_run_with_exit_code_130_and_leaves_no_file() {
    let files = Files::new();
    let file = files.write("endless.toml", &TINY.replacen("60 ms", "60 min", 1));
    let outputs = files.path("outputs");
    for (command, option) in [("simulate", "--trace"), ("compare", "--html")] {
        std::fs::create_dir(&outputs).expect("a folder");
        let target = outputs.join("file").display().to_string();
        let policies: &[&str] = if command == "compare" { &["--policies", "credit,micro:1"] } else { &[] };
        let mut run = Command::new(env!("CARGO_BIN_EXE_microslice"))
            .args([&[command, &file, option, &target], policies].concat())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("the binary starts");
        await_handler(&mut run);
        let killed = Command::new("kill").args(["-INT", &run.id().to_string()]).status().expect("kill");
        assert!(killed.success());
        let output = run.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
        assert!(text(&output.stderr).ends_with("microslice: interrupted\n"), "{}", text(&output.stderr));
        assert!(output.stdout.is_empty());
        std::fs::remove_dir(&outputs).expect("nothing is left in it");
    }
}

#[test]
fn more_seeds_than_there_are_are_refused() {
    let last = u64::MAX.to_string();
    refuse(&["compare", "gmake-solo", "--policies", "credit", "--seed", &last]);
    refuse(&["reproduce", "eurosys18", "--seed", &last]);
}

#[test]
fn the_same_seed_gives_byte_identical_figures_and_traces() {
    let files = Files::new();
    let file = files.write("tiny.toml", TINY);
    let run = |seed: &str, trace: &str| {
        let json =
            succeed(&["simulate", &file, "--seed", seed, "--json", "--check", "--trace", &files.name(trace)]);
        (json, std::fs::read(files.path(trace)).expect("a trace"))
    };
    let (first, again, other) = (run("7", "a.pftrace"), run("7", "b.pftrace"), run("8", "c.pftrace"));
    assert!(first == again, "same seed");
    assert!(first != other, "other seed");
}

/// Compares with what is recorded, line by line. `UPDATE_SNAPSHOTS=1 cargo test -p microslice-cli` records
/// anew after a change of the model; then read the difference. `insta` takes 5 s to build for these lines.
fn assert_as_recorded(name: &str, ours: &str) {
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/commands/snapshots").join(name);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::create_dir_all(recorded.parent().expect("a folder")).expect("created");
        std::fs::write(&recorded, ours).expect("written");
    }
    let expected = std::fs::read_to_string(&recorded).expect("what is recorded");
    let differing = ours.lines().zip(expected.lines()).position(|(ours, theirs)| ours != theirs);
    assert!(
        ours == expected,
        "line {:?} of {} differs: {:?}",
        differing.map(|line| line + 1),
        recorded.display(),
        differing.and_then(|line| ours.lines().nth(line))
    );
}

#[test]
fn the_tiny_scenarios_trace_is_as_recorded() {
    let files = Files::new();
    let file = files.write("tiny.toml", TINY);
    let short = ["--set", "duration=12 ms"];
    succeed(&[&["simulate", &file, "--check", "--trace", &files.name("tiny.txt")], &short[..]].concat());
    let trace = std::fs::read_to_string(files.path("tiny.txt")).expect("a trace");
    assert_as_recorded("tiny.trace.txt", &trace);
}

/// A change to one scheduler may change another one by accident, and then the paper's figures, which take too
/// long for a test: half a second of two of its scenarios shows it.
#[test]
fn what_each_policy_does_with_the_papers_scenarios_is_as_recorded() {
    let mut table = String::new();
    for scenario in ["dedup-swaptions", "exim-swaptions"] {
        for policy in [
            "credit",
            "credit-1ms",
            "micro",
            "micro:2",
            "micro-xen",
            "micro-xen:3",
            "eevdf",
            "eevdf-flat",
            "eevdf-ipi",
            "beside",
            "microslice",
        ] {
            let short = ["--set", "duration=500 ms", "--set", "warmup=0 ms"];
            let run = [&["simulate", scenario, "--policy", policy, "--json"], &short[..]].concat();
            let json: serde_json::Value = serde_json::from_str(&succeed(&run)).expect("JSON");
            let figures = json["figures"].as_array().expect("figures");
            let of_both = |name: &str| -> Vec<f64> {
                let these = figures.iter().filter(|figure| figure["figure"] == name);
                these.map(|figure| figure["value"].as_f64().expect("a number")).collect()
            };
            // Not by sum(): of nothing that is -0.
            let total = |name: &str| of_both(name).iter().fold(0.0, |sum, count| sum + count);
            table += &format!(
                "{scenario} {policy}: {} events, work {:?}/s, {} yields, {} accelerations\n",
                json["events"],
                of_both("throughput"),
                total("yields"),
                total("accelerations")
            );
        }
    }
    assert_as_recorded("policies.txt", &table);
}

#[test]
fn json_names_every_figure_with_unit_and_labels_and_carries_the_configuration() {
    let files = Files::new();
    let file = files.write("tiny.toml", TINY);
    let json: serde_json::Value =
        serde_json::from_str(&succeed(&["simulate", &file, "--json"])).expect("JSON");
    let figures = json["figures"].as_array().expect("figures");
    let throughput = figures.iter().find(|figure| figure["figure"] == "throughput").expect("throughput");
    assert_eq!((&throughput["unit"], &throughput["labels"]["vm"]), (&"1/s".into(), &"left".into()));
    assert_eq!(json["configuration"]["host"]["pcpus"], 2);
    assert_eq!(json["seed"], 3);
}

#[test]
fn a_description_does_not_command_the_terminal() {
    let files = Files::new();
    let file = files.write("tiny.toml", &TINY.replacen("\"tiny\"", "\"a\\u001b[2Jb\"", 1));
    assert!(succeed(&["simulate", &file]).starts_with("a\u{fffd}[2Jb\n"));
    let error = refuse(&["simulate", "no\x1b[2J/such.toml"]);
    assert!(!error.contains('\x1b'), "{error:?}");
}

#[test]
fn a_page_is_self_contained() {
    let files = Files::new();
    let file = files.write("tiny.toml", &TINY.replacen("\"tiny\"", "\"a\\u001b[2Jb\"", 1));
    succeed(&["simulate", &file, "--html", &files.name("page.html")]);
    let page = std::fs::read_to_string(files.path("page.html")).expect("a page");
    assert!(!page.chars().any(|c| c.is_control() && c != '\n'), "what the description has");
    assert!(page.contains("<svg") && page.contains("</html>"));
    assert!(!page.contains("<script") && !page.contains("src=") && !page.contains("href="));
}

#[test]
fn compare_gives_one_column_per_policy_with_intervals_in_the_same_order_every_time() {
    let files = Files::new();
    let file = files.write("tiny.toml", TINY);
    let arguments = ["compare", &file, "--policies", "credit,micro:1,eevdf", "--seeds", "3"];
    let (first, again) = (succeed(&arguments), succeed(&arguments));
    assert_eq!(first, again);
    let header = first.lines().find(|line| line.starts_with("figure")).expect("a header");
    let columns: Vec<&str> = header.split_whitespace().collect();
    assert_eq!(columns, ["figure", "of", "credit", "micro:1", "eevdf"]);
    assert!(first.contains('±'));
}

#[test]
fn compare_shows_policies_with_other_parameters_relative_to_the_first_one() {
    let files = Files::new();
    let file = files.write("tiny.toml", TINY);
    let policies = "micro:1,micro:1+grace=10,micro:1+micro_slice=1 ms";
    let arguments = ["compare", &file, "--policies", policies, "--seeds", "2"];
    let table = succeed(&[&arguments[..], &["--relative"]].concat());
    let row = table.lines().find(|line| line.starts_with("throughput")).expect("a throughput");
    assert!(row.contains("/s") && row.contains("1.000 ± 0.000"), "grace is 10 anyway: {row}");
    assert!(!table.contains(" -  "), "rows without any ratio say nothing: {table}");
    let json: serde_json::Value =
        serde_json::from_str(&succeed(&[&arguments[..], &["--json"]].concat())).expect("JSON");
    let figures = json["figures"].as_array().expect("figures");
    let throughput = figures.iter().find(|figure| figure["figure"] == "throughput").expect("a throughput");
    let of = |map: &str, policy: &str| throughput[map][policy]["mean"].as_f64().expect("a mean");
    assert_eq!(of("relative_to_first", "micro:1"), 1.0);
    assert_eq!(of("policies", "micro:1"), of("policies", "micro:1+grace=10"));
    let ratio = of("relative_to_first", "micro:1+micro_slice=1 ms");
    assert!(ratio.is_finite() && ratio != 1.0, "ten times the micro slice changes nothing: {ratio}");
    let error = refuse(&["compare", &file, "--policies", "micro:1,micro:1+grace=101"]);
    assert!(error.starts_with("microslice: --policies: +grace: `grace` is a whole number"), "{error}");
}

#[test]
fn compare_refuses_an_unknown_policy_with_the_known_ones() {
    let error = refuse(&["compare", "gmake-swaptions", "--policies", "credit,fifo"]);
    assert!(error.starts_with("microslice: --policies: no policy `fifo`"), "{error}");
    assert!(error.contains("micro:N"), "{error}");
}

#[test]
fn a_policy_among_the_settings_is_refused_where_an_option_names_it() {
    let setting = ["--set", "policy=micro"];
    let error = refuse(&[&["simulate", "gmake-solo", "--policy", "credit"], &setting[..]].concat());
    assert!(error.starts_with("microslice: --set policy: the policy is that of `--policy`: "), "{error}");
    let error = refuse(&[&["compare", "gmake-solo", "--policies", "credit"], &setting[..]].concat());
    assert!(error.starts_with("microslice: --set policy: the policy is that of `--policies`: "), "{error}");
}

/// With every row looked for among all others, and every run's configuration and report kept, it took minutes
/// and gigabytes.
#[test]
fn compare_takes_many_vms_and_refuses_what_does_not_fit() {
    let files = Files::new();
    let text = TINY.replacen("name = \"right\"", "name = \"right\"\ncopies = 8000", 1);
    let file = files.write("many.toml", &text.replacen("60 ms", "1 ms", 1));
    let arguments = ["compare", &file, "--policies", "credit,eevdf", "--json", "--seeds"];
    let json: serde_json::Value =
        serde_json::from_str(&succeed(&[&arguments[..], &["2"]].concat())).expect("JSON");
    let figures = json["figures"].as_array().expect("figures");
    assert_eq!(figures.iter().filter(|figure| figure["figure"] == "cpu_time").count(), 8001);
    let error = refuse(&[&arguments[..], &["1000"]].concat());
    assert!(error.starts_with("microslice: --seeds: 2000 runs of 8001 VMs have up to "), "{error}");
}

#[test]
fn compare_refuses_a_policy_that_is_named_twice() {
    let error = refuse(&["compare", "gmake-swaptions", "--policies", "credit,micro:1,credit"]);
    assert_eq!(error, "microslice: --policies: `credit` is named twice\n");
    refuse(&["compare", "gmake-swaptions", "--policies", "credit, credit"]);
}

#[test]
fn reproduce_refuses_an_unknown_figure_with_the_known_ones() {
    let error = refuse(&["reproduce", "eurosys18", "--only", "figure99"]);
    assert!(error.contains("table4b") && error.contains("figure4"), "{error}");
    let error = refuse(&["reproduce", "eurosys18", "--only", "table4b.gedup"]);
    assert!(error.contains("table4b.dedup.corun.avg"), "{error}");
}

#[test]
fn reproduce_gives_paper_and_ours_for_every_number_of_a_group() {
    // Parameters need no run; the groups with runs are measured by `make bench` and by hand.
    let json = succeed(&["reproduce", "eurosys18", "--only", "parameters", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let figures = json["figures"].as_array().expect("figures");
    let slice =
        figures.iter().find(|figure| figure["id"] == "parameters.micro_slice_us").expect("the micro slice");
    assert_eq!((slice["paper"].as_f64(), slice["ours"].as_f64()), (Some(100.0), Some(100.0)));
    assert_eq!(slice["kind"], "calibrated");
    assert_eq!(slice["ci95"], serde_json::json!([100.0, 100.0]));
    assert_eq!(figures.len(), 5);
    let keys =
        |json: &serde_json::Value| json.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&json), ["seed", "events", "elapsed_s", "figures"]);
    assert_eq!(keys(slice), ["id", "unit", "paper", "ours", "ci95", "kind"]);
    let one = succeed(&["reproduce", "eurosys18", "--only", "parameters.micro_slice_us", "--json"]);
    assert_eq!(one.matches("\"id\"").count(), 1, "{one}");
}

#[test]
fn help_ends_with_examples() {
    for command in ["simulate", "compare", "reproduce", "regret"] {
        assert!(
            succeed(&[command, "--help"]).contains(&format!("Examples:\n  microslice {command}")),
            "{command}"
        );
    }
}

/// The values of `--set` in a page, as written there: `path=value`, quotes for the shell taken off. Those
/// that follow one another belong together.
fn settings_of(page: &str) -> Vec<(&str, Vec<String>)> {
    let mut together: Vec<(&str, Vec<String>)> = Vec::new();
    let mut end = 0;
    for (at, flag) in page.match_indices("--set ") {
        let (before, rest) = (&page[..at], &page[at + flag.len()..]);
        let quoted = rest.split_once("='").filter(|(path, _)| !path.contains(char::is_whitespace));
        let setting = match quoted {
            Some((path, rest)) => format!("{path}={}", rest.split('\'').next().unwrap_or_default()),
            None => rest.split(['`', ')', ' ', '\n']).next().unwrap_or_default().to_owned(),
        };
        let between = page.get(end..at).unwrap_or("another");
        let follows = between.chars().all(|c| c.is_whitespace() || ['\'', '\\'].contains(&c));
        end = at + flag.len() + setting.len() + if quoted.is_some() { 2 } else { 0 };
        if !setting.contains('=') || setting.contains("VALUE") {
            continue;
        }
        if let (true, Some((_, settings))) = (follows, together.last_mut()) {
            settings.push(setting);
            continue;
        }
        let paragraph = before.rsplit("\n\n").next().unwrap_or_default();
        let command = paragraph.rsplit_once("microslice simulate ").map(|(_, rest)| rest);
        let scenario = command.and_then(|rest| rest.split_whitespace().next());
        together.push((scenario.filter(|name| built_in(name)).unwrap_or("gmake-swaptions"), vec![setting]));
    }
    together
}

fn built_in(name: &str) -> bool {
    microslice_experiments::scenario::built_in(&format!("{name}.toml")).is_some()
}

#[test]
fn every_setting_that_the_documentation_shows_is_accepted() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    for page in
        ["reference/scenarios.md", "explanation/reproduction.md", "lab/reproduction.md", "lab/rules.md"]
    {
        let text = std::fs::read_to_string(docs.join(page)).expect(page);
        let settings = settings_of(&text);
        assert!(settings.len() > 1, "{page}: {settings:?}");
        for (scenario, settings) in settings {
            // The last of two settings counts: the run is a short one, whatever the page says.
            let short = ["duration=1 ms".to_owned(), "warmup=0 us".to_owned()];
            let settings = settings.iter().chain(&short).flat_map(|setting| ["--set", setting]);
            succeed(&["simulate", scenario].into_iter().chain(settings).collect::<Vec<_>>());
        }
    }
}
