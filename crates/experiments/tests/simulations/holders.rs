//! Holders and heirs: who is asked for by what guests count, and what a guest gains by lying there. Every run
//! has the checkers on.

use crate::common::run;
use microslice_engine::report::RunReport;
use microslice_experiments::scenario::{Overrides, parse};
use microslice_model::config::{MS, SimulationConfig};
use microslice_policy::Cause;

/// Both designs, by what they know who holds a lock.
fn variants(rules: &str) -> [String; 2] {
    ["microslice:1", "beside"].map(|policy| format!("{policy}{rules}"))
}

fn read(text: &str, policy: &str) -> SimulationConfig {
    let overrides = Overrides { policy: Some(policy.to_owned()), ..Overrides::default() };
    let mut config = parse("test.toml", text, &overrides).unwrap_or_else(|error| panic!("{error}")).config;
    config.check = true;
    config
}

/// Eight vCPUs that take one lock of this kind, beside sixteen that compute, on eight pCPUs. `exits`: their
/// pause loops do.
fn contended(kind: &str, exits: bool, policy: &str) -> RunReport {
    let text = format!(
        r#"
        host = {{ extends = "xeon-e5645", pcpus = 8, smt_threads = 1, ple = {{ enabled = {exits} }} }}
        warmup = "200 ms"
        duration = "1 s"
        [[vm]]
        name = "locks"
        vcpus = 8
        kernel = {{ extends = "linux-6.18", listed_holds = "0 %" }}
        workloads = [{{ name = "w", threads = "per vcpu",
            lock = [{{ name = "own", kind = "{kind}", symbol = "get_page_from_freelist" }}],
            program = [{{ compute = "60 us" }}, {{ lock = "own", hold = "20 us" }}, {{ progress = 1 }}] }}]
        [[vm]]
        name = "hogs"
        vcpus = 16
        kernel = "linux-modern"
        workloads = [{{ name = "hog", threads = "per vcpu", program = [{{ compute = "1 ms" }}] }}]
    "#
    );
    run(&read(&text, policy))
}

fn accelerations(report: &RunReport, cause: Cause) -> u64 {
    report.pool.accelerations().filter(|(_, of, _)| *of == cause).map(|(.., count)| count).sum()
}

#[test]
fn a_holder_in_unlisted_code_is_asked_for_by_counter() {
    for (by_symbols, by_counter) in variants("").into_iter().zip(variants("+critical_by=counter")) {
        let report = contended("pv-queued", true, &by_symbols);
        assert_eq!(accelerations(&report, Cause::Holder), 0, "{by_symbols}");
        assert_eq!(accelerations(&report, Cause::LockYield), 0, "{by_symbols}");
        let report = contended("pv-queued", true, &by_counter);
        // Grace comes first, where there is some.
        let helped = accelerations(&report, Cause::Holder) + report.pool.graces;
        assert!(helped > 0, "{by_counter}");
    }
}

#[test]
fn heirs_make_more_of_a_lock_handed_on_in_line() {
    for policy in ["microslice", "microslice:1", "beside"] {
        for exits in [true, false] {
            let [report, more] = ["", "+heirs=true"]
                .map(|heirs| contended("queued", exits, &format!("{policy}+critical_by=counter{heirs}")));
            let [units, more_units] = [&report, &more].map(|report| report.vms[0].workloads[0].units_done);
            // In groups the kernel's own yields find heirs, too, where spins exit.
            let (part, of) = if policy == "beside" && exits { (1, 1) } else { (4, 5) };
            assert!(more_units * part > units * of, "{policy}, exits {exits}: {units}, {more_units}");
            assert!(accelerations(&more, Cause::Heir) > 0, "{policy}");
            assert_eq!(accelerations(&report, Cause::Heir), 0, "{policy}");
        }
    }
}

/// Two VMs that never sleep on four pCPUs, in kernel code; the first shows that of its counter. Returns its
/// share of what is due to it, and the longest wait for a pCPU.
fn liar(shown: &str, code: &str, policy: &str) -> (f64, u64) {
    let vm = |name: &str, shown: &str| {
        format!(
            r#"
            [[vm]]
            name = "{name}"
            vcpus = 4
            kernel = {{ extends = "linux-6.18", shown_count = "{shown}" }}
            workloads = [{{ name = "w", threads = "per vcpu",
                program = [{{ kernel = "1 ms", symbol = "{code}" }}] }}]
            "#
        )
    };
    let text = format!(
        "host = {{ extends = \"xeon-e5645\", pcpus = 4, smt_threads = 1 }}\n{}{}{}",
        "warmup = \"500 ms\"\nduration = \"4 s\"\n",
        vm("liar", shown),
        vm("honest", "honest")
    );
    let report = run(&read(&text, policy));
    let share = report.vms[0].run_ns as f64 / report.vms[0].due_ns as f64;
    (share, report.wait_to_run.max().unwrap_or(0))
}

#[test]
fn a_guest_that_lies_about_what_it_holds_gains_nothing() {
    for policy in variants("+critical_by=counter+heirs=true") {
        // Waiters' code makes it look for heirs.
        for code in ["handle_mm_fault", "native_queued_spin_lock_slowpath", "get_page_from_freelist"] {
            let (_, honest_wait_ns) = liar("honest", code, &policy);
            for shown in ["held", "nothing", "flipping"] {
                let (share, wait_ns) = liar(shown, code, &policy);
                assert!((0.5..=1.02).contains(&share), "{policy}, {shown} in {code}: {share}");
                assert!(wait_ns <= honest_wait_ns * 3 + MS, "{policy}, {shown} in {code}: {wait_ns} ns");
            }
        }
    }
}
