//! Bounds on waits: whoever has one waits no longer, the others have what they had.

use crate::common::run;
use microslice_engine::report::{RunReport, VmReport};
use microslice_experiments::scenario::{Overrides, parse};
use microslice_model::config::*;

/// Four VMs on four pCPUs, one of them bounded by its own `keys`.
fn crowded(policy: &str, keys: &str) -> RunReport {
    let vm = |name: &str, keys: &str, workload: &str| {
        format!(
            "[[vm]]\nname = \"{name}\"\nvcpus = 4\nkernel = \"linux-modern\"\n{keys}\nworkloads = [\"{workload}\"]\n"
        )
    };
    let text = format!(
        "host = {{ extends = \"xeon-e5645\", pcpus = 4, smt_threads = 1 }}\nwarmup = \"100 ms\"\n\
         duration = \"2 s\"\n{}{}{}{}",
        vm("own", keys, "swaptions"),
        vm("gmake", "", "gmake"),
        vm("dedup", "", "dedup"),
        vm("hog", "weight = 512", "swaptions"),
    );
    let overrides = Overrides { policy: Some(policy.to_owned()), ..Overrides::default() };
    let config = parse("crowded.toml", &text, &overrides).unwrap_or_else(|error| panic!("{error}")).config;
    run(&SimulationConfig { check: true, ..config })
}

fn longest_ns(vm: &VmReport) -> u64 {
    vm.longest_waits.iter().max().copied().expect("seconds")
}

/// The geometric mean over the VMs.
fn work(report: &RunReport) -> f64 {
    let logarithms = report.vms.iter().map(|vm| (vm.workloads[0].units_done as f64).ln());
    (logarithms.sum::<f64>() / report.vms.len() as f64).exp()
}

#[test]
fn nobody_waits_much_longer_than_the_hosts_bound() {
    for policy in ["beside", "microslice"] {
        let (free, bounded) = (crowded(policy, ""), crowded(&format!("{policy}+max_wait=10 ms"), ""));
        assert!(free.vms.iter().any(|vm| longest_ns(vm) > 14 * MS), "{policy}: nothing to bound");
        for vm in &bounded.vms {
            assert!(longest_ns(vm) < 12 * MS, "{policy}, {}: {}", vm.name, longest_ns(vm));
        }
        let part = work(&bounded) / work(&free);
        assert!((0.96..1.04).contains(&part), "{policy}: {part} of the work");
        assert!(bounded.fairness_error_permille < free.fairness_error_permille + 20, "{policy}");
    }
}

#[test]
fn a_vm_may_have_its_own_bound_or_none() {
    for policy in ["beside", "microslice"] {
        let own = crowded(policy, "max_wait = \"10 ms\"");
        assert!(longest_ns(&own.vms[0]) < 12 * MS, "{policy}: {}", longest_ns(&own.vms[0]));
        assert!(own.vms[1..].iter().any(|vm| longest_ns(vm) > 14 * MS), "{policy}: others have none");
        let none = crowded(&format!("{policy}+max_wait=10 ms"), "max_wait = \"none\"");
        assert!(longest_ns(&none.vms[0]) > 12 * MS, "{policy}: {}", longest_ns(&none.vms[0]));
    }
}

#[test]
fn without_overcommit_a_bound_changes_nothing() {
    let config = |policy: &str| crate::common::scenario("dedup-solo", policy, 200 * MS);
    let (free, mut bounded) = (run(&config("beside")), run(&config("beside+max_wait=10 ms")));
    assert_eq!(bounded.pool.acceleration_count(), 0);
    assert_eq!(bounded.vms[0].late_waits.take(), Some(0));
    assert_eq!(bounded.vms, free.vms);
}

#[test]
fn bounds_that_cannot_be_kept_are_refused() {
    let refused = |policy: &str, vm: &str| {
        let text = format!(
            "host = {{ extends = \"xeon-e5645\", pcpus = 2, llc_pcpus = 0, smt_threads = 1 }}\nduration = \"1 s\"\n\
             [[vm]]\nname = \"a\"\nvcpus = 64\nkernel = \"linux-modern\"\n{vm}\nworkloads = [\"swaptions\"]\n"
        );
        let overrides = Overrides { policy: Some(policy.to_owned()), ..Overrides::default() };
        parse("bad.toml", &text, &overrides).expect_err("a bound").to_string()
    };
    assert_eq!(
        refused("beside+max_wait=50 us", ""),
        "--policy: +max_wait: `max_wait`: `50 us` isn't allowed, only 1 ms to 1 s"
    );
    assert_eq!(
        refused("beside+max_wait=5 ms", ""),
        "--policy: +max_wait: 64 vCPUs on 2 pCPUs can't have that `max_wait`; the least is 6.4 ms"
    );
    assert_eq!(
        refused("beside", "max_wait = \"5 ms\""),
        "bad.toml:7:12: 64 vCPUs on 2 pCPUs can't have that `max_wait`; the least is 6.4 ms"
    );
    assert_eq!(
        refused("microslice", "max_wait = \"10 bananas\""),
        "bad.toml:7:12: `max_wait`: unknown unit `bananas`; allowed: ns, us, ms, s, min"
    );
}
