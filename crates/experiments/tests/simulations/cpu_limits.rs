//! `cpu.max` of VMs. Every run has the checkers on.

use crate::common::policies;
use microslice_engine::report::{RunReport, VmReport};
use microslice_engine::simulate;
use microslice_experiments::scenario::{Overrides, parse};
use microslice_model::events::NoTrace;

/// A VM with this program, held to so much of four pCPUs, beside one that computes.
fn run(program: &str, cpu_max: &str, others: usize, policy: &str) -> RunReport {
    let text = format!(
        r#"
        host = {{ extends = "xeon-e5645", pcpus = 4, smt_threads = 1 }}
        warmup = "500 ms"
        duration = "3 s"
        [[vm]]
        name = "limited"
        vcpus = 4
        cpu_max = "{cpu_max}"
        kernel = "linux-modern"
        workloads = [{{ use = "{program}", threads = 4 }}]
        [[vm]]
        name = "other"
        vcpus = 4
        kernel = "linux-modern"
        workloads = [{{ use = "lookbusy", threads = {} }}]
        "#,
        others.max(1)
    );
    let text = if others == 0 { &text[..text.rfind("[[vm]]").expect("two")] } else { &text };
    let overrides = Overrides { policy: Some(policy.to_owned()), ..Overrides::default() };
    let mut config = parse("mine.toml", text, &overrides).unwrap_or_else(|error| panic!("{error}")).config;
    config.check = true;
    simulate(&config, &mut NoTrace).unwrap_or_else(|error| panic!("{policy}: {error}"))
}

fn cpus(report: &RunReport, vm: &VmReport) -> f64 {
    vm.run_ns as f64 / report.measured_ns as f64
}

#[test]
fn a_limited_vm_gets_its_quota_and_others_the_rest() {
    for policy in policies(1) {
        for (cpu_max, due) in [("150000 100000", 1.5), ("40000", 0.4), ("20000 10000", 2.0)] {
            let report = run("lookbusy", cpu_max, 4, &policy);
            let [limited, other] = [0, 1].map(|vm: usize| cpus(&report, &report.vms[vm]));
            assert!(limited < due * 1.02, "{policy}, {cpu_max}: {limited}");
            // Without lending a micro pCPU idles, and a lottery is exact in the long run only.
            if policy.starts_with("microslice") || !policy.starts_with("micro") && policy != "lottery" {
                assert!(limited > due * 0.9, "{policy}, {cpu_max}: {limited}");
                assert!(limited + other > 3.9, "{policy}, {cpu_max}: {limited} and {other}");
            }
        }
    }
}

#[test]
fn a_limited_vm_alone_rests_though_pcpus_idle() {
    for policy in ["eevdf", "eevdf-flat", "cfs", "microslice", "microslice:0", "beside"] {
        let report = run("gmake", "150000 100000", 0, policy);
        let vm = &report.vms[0];
        assert!((1.4..1.53).contains(&cpus(&report, vm)), "{policy}: {}", cpus(&report, vm));
        assert!(vm.throttled_ns > Some(report.measured_ns), "{policy}: {:?}", vm.throttled_ns);
    }
}

#[test]
fn a_limit_that_is_never_reached_changes_nothing_but_turns() {
    for policy in ["eevdf", "credit"] {
        let [within, without] = ["4000000 1000000", "max"].map(|max| run("gmake", max, 4, policy));
        assert_eq!(within.vms[0].throttled_ns, Some(0));
        assert_eq!(without.vms[0].throttled_ns, None);
        assert_eq!(within.vms[0].run_ns, without.vms[0].run_ns, "{policy}");
    }
}
