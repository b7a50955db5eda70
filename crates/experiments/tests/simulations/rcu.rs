//! RCU: read sections, and writers that wait for grace periods. Every run has the checkers on.

use crate::common::{compute, policies, run};
use microslice_engine::report::{GraceReport, RunReport};
use microslice_experiments::scenario::{Overrides, parse};
use microslice_model::config::*;

const READS: &str =
    "{ compute = \"exponential 20 us\" }, { rcu_read = \"2 us\", symbol = \"link_path_walk\" }";

/// A VM of so many vCPUs on as many pCPUs: this program on each, and a writer. With another VM that computes,
/// or none.
fn config(
    vcpus: usize,
    program: &str,
    policy: &str,
    others: bool,
    settings: &[(&str, &str)],
) -> SimulationConfig {
    let other = "[[vm]]\nname = \"other\"\nvcpus = 4\nkernel = \"linux-6.18\"\n\
                 workloads = [{ use = \"lookbusy\", threads = \"per vcpu\" }]\n";
    let text = format!(
        "warmup = \"100 ms\"\nduration = \"3 s\"\n\
         host = {{ extends = \"xeon-e5645\", pcpus = 4, llc_pcpus = 4 }}\n\
         [[vm]]\nname = \"target\"\nvcpus = {vcpus}\nkernel = \"linux-6.18\"\n\
         workloads = [{{ name = \"program\", threads = \"per vcpu\", \
         program = [{program}, {{ progress = 1 }}] }},\n\
         {{ name = \"writer\", threads = 1, \
         program = [{{ compute = \"50 us\" }}, {{ synchronize_rcu = 1 }}, {{ progress = 1 }}] }}]\n{}",
        if others { other } else { "" }
    );
    let settings = settings.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
    let overrides = Overrides { policy: Some(policy.into()), settings, ..Overrides::default() };
    let mut config =
        parse("test", &text, &overrides).unwrap_or_else(|error| panic!("{policy}: {error}")).config;
    config.check = true;
    config
}

fn grace(report: &RunReport) -> &GraceReport {
    report.vms[0].grace_periods.as_ref().expect("it has a writer")
}

fn mean_ms(report: &RunReport) -> f64 {
    grace(report).lengths.mean().expect("some were") / 1e6
}

#[test]
fn alone_a_grace_period_takes_two_ticks() {
    for vcpus in [1, 4] {
        let report = run(&config(vcpus, READS, "eevdf", false, &[]));
        let lengths = &grace(&report).lengths;
        let (least, most) = (lengths.min().expect("some"), lengths.max().expect("some"));
        // A vCPU learns of it at its next tick, and reports at the one behind.
        assert!(least > 3 * MS && most < 9 * MS, "{vcpus}: {least} to {most} ns");
        assert_eq!(grace(&report).holdouts.reading, 0);
    }
}

#[test]
fn idle_vcpus_hold_no_grace_period_up() {
    let report = run(&config(4, "{ sleep = \"50 ms\" }", "eevdf", false, &[]));
    assert!(mean_ms(&report) < 5.0, "{}", mean_ms(&report));
}

#[test]
fn preempted_vcpus_hold_grace_periods_up_reading_or_not() {
    let only_user = "{ compute = \"1 ms\" }";
    for program in [READS, only_user] {
        let alone = mean_ms(&run(&config(4, program, "credit", false, &[])));
        let report = run(&config(4, program, "credit", true, &[]));
        let beside = mean_ms(&report);
        assert!(beside > 3.0 * alone, "{program}: {alone} ms, then {beside} ms");
        let holdouts = grace(&report).holdouts;
        assert!(holdouts.in_user_mode > 5 * holdouts.reading, "{holdouts:?}");
        assert_eq!(holdouts.reading > 0, program == READS, "{holdouts:?}");
    }
}

#[test]
fn dense_readers_let_grace_periods_end() {
    let dense = "{ rcu_read = \"exponential 200 us\", symbol = \"link_path_walk\" }";
    let report = run(&config(4, dense, "eevdf", false, &[]));
    assert!(grace(&report).lengths.count() > 150, "{:?}", grace(&report).lengths.count());
    // In one that takes longer than two ticks it waits for the section's end.
    let long = "{ rcu_read = \"30 ms\", symbol = \"link_path_walk\" }";
    assert!(mean_ms(&run(&config(4, long, "eevdf", false, &[]))) > 20.0);
}

#[test]
fn unmarked_readers_are_waited_for_until_user_mode() {
    let in_kernel = "{ kernel = \"20 ms\", symbol = \"link_path_walk\" }, { compute = \"8 ms\" }";
    let on = |kernel: &str| {
        let setting = ("vm.target.kernel", kernel);
        mean_ms(&run(&config(4, in_kernel, "credit", false, &[setting])))
    };
    let (marked, unmarked) = (on("\"linux-6.18\""), on("\"linux-4.4\""));
    assert!(marked < 10.0 && unmarked > 15.0, "{marked}, {unmarked}");
}

#[test]
fn many_writers_share_grace_periods_under_every_policy() {
    for policy in policies(1) {
        let mut config = config(4, READS, &policy, true, &[]);
        config.duration_ns = 500 * MS;
        let workloads = &mut config.vms[0].workloads;
        workloads[1].threads = 7;
        workloads[1].program = vec![compute(300 * US), Phase::Synchronize, Phase::Progress { units: 1 }];
        let locks = &mut config.vms[0].kernel.locks;
        locks.push(LockConfig {
            name: RCU_NODE.into(),
            kind: None,
            irqs_off: true,
            instances: 1,
            symbol: "dput".into(),
        });
        let report = run(&config);
        let (updates, periods) = (report.vms[0].workloads[1].units_done, grace(&report).lengths.count());
        // Each of seven waits for the rest of one and for the next one, or for one of its own.
        assert!(
            periods > 2 && updates >= periods && updates <= 7 * (periods + 2),
            "{policy}: {updates} in {periods}"
        );
        assert!(report.vms[0].lock_acquisitions[RCU_NODE] >= periods, "{policy}");
    }
}

#[test]
fn a_vm_without_writers_has_no_grace_periods() {
    let mut config = config(4, READS, "eevdf", false, &[]);
    config.vms[0].workloads.truncate(1);
    assert_eq!(run(&config).vms[0].grace_periods, None);
}

#[test]
fn a_sleeping_lock_of_rcu_is_refused() {
    let text = "host = \"homelab\"\npolicy = \"eevdf\"\nduration = \"1 s\"\n\
                [[vm]]\nname = \"a\"\nvcpus = 1\nworkloads = [\"lookbusy\"]\n\
                kernel = { extends = \"linux-6.18\", \
                lock = [{ name = \"rcu_node\", kind = \"sleeping\", symbol = \"dput\" }] }\n";
    let error = parse("test", text, &Overrides::default()).expect_err("it sleeps").to_string();
    assert!(error.contains("lock `rcu_node` can't sleep: RCU takes it in interrupts"), "{error}");
}
