//! Cgroups around VMs: weights by levels, and limits above a VM's own. Every run has the checkers on.

use microslice_engine::report::RunReport;
use microslice_engine::{SimError, simulate};
use microslice_experiments::scenario::{Overrides, ScenarioError, parse};
use microslice_model::config::SimulationConfig;
use microslice_model::events::NoTrace;

/// Those that know cgroups around VMs.
const POLICIES: [&str; 5] = ["eevdf", "eevdf-ipi", "beside", "microslice:0", "microslice"];
const BUSY: &str = "[{ use = \"lookbusy\", threads = 4 }]";
const IDLE: &str =
    "[{ name = \"naps\", threads = 1, program = [{ sleep = \"1 s\" }, { compute = \"1 us\" }] }]";

/// VMs of four vCPUs on four pCPUs: a name, a cgroup or none, and what it runs.
fn read(cgroups: &str, vms: &[(&str, &str, &str)], policy: &str) -> Result<SimulationConfig, ScenarioError> {
    let mut text = format!(
        "host = {{ extends = \"xeon-e5645\", pcpus = 4, smt_threads = 1 }}\nwarmup = \"1500 ms\"\nduration = \"3 s\"\n{cgroups}\n"
    );
    for (name, cgroup, workloads) in vms {
        text += &format!("[[vm]]\nname = \"{name}\"\nvcpus = 4\nkernel = \"linux-modern\"\n{cgroup}\n");
        text += &format!("workloads = {workloads}\n");
    }
    let overrides = Overrides { policy: Some(policy.to_owned()), ..Overrides::default() };
    Ok(parse("mine.toml", &text, &overrides)?.config)
}

fn try_run(cgroups: &str, vms: &[(&str, &str, &str)], policy: &str) -> Result<RunReport, SimError> {
    let mut config = read(cgroups, vms, policy).unwrap_or_else(|error| panic!("{error}"));
    config.check = true;
    simulate(&config, &mut NoTrace)
}

/// The pCPUs that each VM had.
fn cpus(cgroups: &str, vms: &[(&str, &str, &str)], policy: &str) -> Vec<f64> {
    let report = try_run(cgroups, vms, policy).unwrap_or_else(|error| panic!("{policy}: {error}"));
    report.vms.iter().map(|vm| vm.run_ns as f64 / report.measured_ns as f64).collect()
}

/// Within 7 %, or 1 % of the host, which boosts may take.
fn is_near(cpus: &[f64], due: &[f64]) -> bool {
    let are_near = |(cpus, due): (&f64, &f64)| (cpus - due).abs() <= (due * 0.07).max(0.04);
    cpus.len() == due.len() && cpus.iter().zip(due).all(are_near)
}

const TENANTS: &str = "[[cgroup]]\nname = \"one\"\n[[cgroup]]\nname = \"three\"\n";
const A: &str = "cgroup = \"one\"";
const B: &str = "cgroup = \"three\"";

#[test]
fn a_cgroups_weight_counts_among_its_siblings_only() {
    let vms = [("a", A, BUSY), ("b", B, BUSY), ("c", B, BUSY), ("d", B, BUSY)];
    for policy in POLICIES {
        let equal = cpus(TENANTS, &vms, policy);
        assert!(is_near(&equal, &[2.0, 2.0 / 3.0, 2.0 / 3.0, 2.0 / 3.0]), "{policy}: {equal:?}");
        let heavy = TENANTS.replace("\"one\"", "\"one\"\nweight = 768");
        let heavy = cpus(&heavy, &vms, policy);
        assert!(is_near(&heavy, &[3.0, 1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0]), "{policy}: {heavy:?}");
    }
}

#[test]
fn an_idle_vm_leaves_its_part_to_its_siblings() {
    let vms = [("a", A, BUSY), ("b", B, BUSY), ("c", B, IDLE)];
    for policy in POLICIES {
        let cpus = cpus(TENANTS, &vms, policy);
        assert!(is_near(&cpus[..2], &[2.0, 2.0]), "{policy}: {cpus:?}");
    }
}

#[test]
fn cgroups_in_cgroups_share_their_parents_part() {
    let levels = "[[cgroup]]\nname = \"outer\"\n[[cgroup]]\nname = \"one\"\nparent = \"outer\"\n[[cgroup]]\nname = \"three\"\nparent = \"outer\"\nweight = 128\n";
    let vms = [("a", A, BUSY), ("b", B, BUSY), ("c", B, BUSY), ("d", "weight = 512", BUSY)];
    for policy in POLICIES {
        let cpus = cpus(levels, &vms, policy);
        let outer = 4.0 / 3.0;
        let due = [outer * 2.0 / 3.0, outer / 6.0, outer / 6.0, 2.0 * outer];
        assert!(is_near(&cpus, &due), "{policy}: {cpus:?} for {due:?}");
    }
}

#[test]
fn reports_say_what_is_due_by_levels() {
    let vms = [("a", A, BUSY), ("b", B, BUSY), ("c", B, BUSY)];
    let report = try_run(TENANTS, &vms, "microslice:0").expect("it runs");
    let due: Vec<f64> = report.vms.iter().map(|vm| vm.due_ns as f64 / report.measured_ns as f64).collect();
    assert!(is_near(&due, &[2.0, 1.0, 1.0]), "{due:?}");
    assert!(report.fairness_error_permille <= 10, "{}", report.fairness_error_permille);
}

#[test]
fn a_limit_above_vms_holds_for_all_of_them_together() {
    let limited = TENANTS.replace("\"three\"", "\"three\"\ncpu_max = \"120000 100000\"");
    let vms = [("a", A, BUSY), ("b", B, BUSY), ("c", B, BUSY)];
    for policy in POLICIES {
        let cpus = cpus(&limited, &vms, policy);
        let tenant = cpus[1] + cpus[2];
        assert!((1.08..1.23).contains(&tenant), "{policy}: {cpus:?}");
        assert!(cpus.iter().sum::<f64>() > 3.9, "{policy}: {cpus:?}");
        assert!(is_near(&cpus[1..], &[tenant / 2.0; 2]), "{policy}: {cpus:?}");
    }
}

#[test]
fn the_tighter_of_two_limits_around_each_other_counts() {
    let own = "cgroup = \"three\"\ncpu_max = \"40000 100000\"";
    for (outer, due) in [("200000 100000", [0.4, 1.6]), ("60000 100000", [0.3, 0.3])] {
        let limited = TENANTS.replace("\"three\"", &format!("\"three\"\ncpu_max = \"{outer}\""));
        for policy in POLICIES {
            let cpus = cpus(&limited, &[("b", own, BUSY), ("c", B, BUSY)], policy);
            assert!(cpus[0] < 0.41 && cpus[0] + cpus[1] < (due[0] + due[1]) * 1.03, "{policy}: {cpus:?}");
            assert!(cpus[0] + cpus[1] > (due[0] + due[1]) * 0.9, "{policy}: {cpus:?}");
        }
    }
}

#[test]
fn what_cgroups_can_not_be_is_refused_by_name() {
    let vms = [("a", A, BUSY)];
    let refused = |cgroups: &str| read(cgroups, &vms, "eevdf").expect_err("it is wrong").to_string();
    let error = refused("[[cgroup]]\nname = \"two\"");
    assert!(
        error.starts_with("mine.toml:10:") && error.contains("no cgroup `one` stands before it"),
        "{error}"
    );
    assert!(refused("[[cgroup]]\nname = \"one\"\nparent = \"one\"").contains("no cgroup `one`"));
    assert!(refused("[[cgroup]]\nname = \"one\"\n[[cgroup]]\nname = \"one\"").contains("a second cgroup"));
    assert!(refused("[[cgroup]]\nname = \"one\"\nweight = 0").contains("`weight`"));
    let mut deep = "[[cgroup]]\nname = \"c0\"\n".to_owned();
    (1..9).for_each(|at| deep += &format!("[[cgroup]]\nname = \"c{at}\"\nparent = \"c{}\"\n", at - 1));
    assert!(refused(&deep).contains("more than 8 cgroups around one another"), "{}", refused(&deep));
    for policy in ["credit", "eevdf-flat", "cfs", "micro"] {
        let error = try_run(TENANTS, &vms, policy).expect_err("it knows none").to_string();
        assert!(error.starts_with("cgroup one: this policy knows no cgroups"), "{policy}: {error}");
    }
}
