//! Threads of the host beside VMs. Every run has the checkers on.

use crate::common::policies;
use microslice_engine::report::RunReport;
use microslice_engine::simulate;
use microslice_experiments::scenario::{Overrides, ScenarioError, parse};
use microslice_model::config::SimulationConfig;
use microslice_model::events::NoTrace;

/// A VM that computes on four pCPUs, beside tasks.
fn read(tasks: &str, policy: &str) -> Result<SimulationConfig, ScenarioError> {
    let text = format!(
        r#"
        warmup = "500 ms"
        duration = "2 s"
        [host]
        extends = "xeon-e5645"
        pcpus = 4
        smt_threads = 1
        costs = {{ halt = "20 us" }}
        [[vm]]
        name = "guest"
        vcpus = 4
        kernel = "linux-modern"
        workloads = [{{ use = "lookbusy", threads = 4 }}]
        [[task]]
        name = "tasks"
        {tasks}
        "#
    );
    let overrides = Overrides { policy: Some(policy.to_owned()), ..Overrides::default() };
    Ok(parse("mine.toml", &text, &overrides)?.config)
}

fn run(tasks: &str, policy: &str) -> RunReport {
    let mut config = read(tasks, policy).unwrap_or_else(|error| panic!("{error}"));
    config.check = true;
    simulate(&config, &mut NoTrace).unwrap_or_else(|error| panic!("{policy}: {error}"))
}

const BUSY: &str = "program = [{ compute = \"exponential 1 ms\" }, { progress = 1 }]";

#[test]
fn tasks_share_by_their_cgroups_weight_and_keep_its_limit() {
    for policy in ["eevdf", "microslice:0", "microslice"] {
        for (keys, due) in
            [("threads = 4", 2.0), ("threads = 8\nweight = 85", 1.0), ("cpu_max = \"50000\"", 0.5)]
        {
            let report = run(&format!("{keys}\n{BUSY}"), policy);
            let cpus = report.vms[1].run_ns as f64 / report.measured_ns as f64;
            assert!((due * 0.93..due * 1.07).contains(&cpus), "{policy}, {keys}: {cpus}");
        }
    }
}

#[test]
fn naps_of_a_daemon_are_no_halts_and_not_accelerated() {
    let naps = "threads = 4\nprogram = [{ compute = \"50 us\" }, { sleep = \"2 ms\" }, { progress = 1 }]";
    for policy in policies(1) {
        let report = run(naps, &policy);
        let daemon = &report.vms[1];
        assert_eq!(daemon.yields.total(), 0, "{policy}");
        assert_eq!(report.pool.acceleration_count(), 0, "{policy}");
        assert!(daemon.workloads[0].units_done > 100, "{policy}");
    }
}

#[test]
fn a_task_does_nothing_that_only_guests_do() {
    let refused = |keys: &str| read(keys, "eevdf").expect_err("it is wrong").to_string();
    let error = refused("program = [{ shootdown = \"1 us\" }]");
    assert!(error.ends_with("repeat, sometimes, and send and receive of a channel only"), "{error}");
    let error = refused(&format!("vcpus = 4\n{BUSY}"));
    assert!(
        error.contains("unknown key `vcpus` in a task; allowed: name, threads, weight, cgroup"),
        "{error}"
    );
    assert!(refused(BUSY.replace("1 ms", "1 h").as_str()).starts_with("mine.toml:16:"));
}
