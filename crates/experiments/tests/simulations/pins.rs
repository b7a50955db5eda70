//! vCPUs with one pCPU each: they run there under every policy, and micro pools stay away from them. Every
//! run has the checkers on.

use crate::common::policies;
use microslice_engine::report::RunReport;
use microslice_engine::simulate;
use microslice_experiments::scenario::{Overrides, parse};
use microslice_model::events::{TraceEvent, TraceSink};
use std::collections::BTreeSet;

/// A VM that builds on pCPUs 3, 2, 1 and 0, and one that computes on pCPUs 0, 1, 2 and 3.
const PAIR: &str = r#"
    host = { extends = "xeon-e5645", pcpus = 4, smt_threads = 1 }
    warmup = "500 ms"
    duration = "1500 ms"
    [[vm]]
    name = "build"
    vcpus = 4
    vcpupin = [3, 2, 1, 0]
    kernel = "linux-modern"
    workloads = ["gmake"]
    [[vm]]
    name = "hog"
    vcpus = 4
    pinned = true
    kernel = "linux-modern"
    workloads = [{ use = "lookbusy", threads = 4 }]
"#;

/// Where each vCPU ran.
#[derive(Default)]
struct Places(BTreeSet<(u32, u32)>);

impl TraceSink for Places {
    fn event(&mut self, _: u64, event: &TraceEvent) {
        if let TraceEvent::Running { vcpu, pcpu, .. } = event {
            self.0.insert((vcpu.number(), pcpu.number()));
        }
    }
}

fn run(text: &str, policy: &str) -> (RunReport, Places) {
    let overrides = Overrides { policy: Some(policy.to_owned()), ..Overrides::default() };
    let mut config = parse("mine.toml", text, &overrides).unwrap_or_else(|error| panic!("{error}")).config;
    config.check = true;
    let mut places = Places::default();
    let report = simulate(&config, &mut places).unwrap_or_else(|error| panic!("{policy}: {error}"));
    (report, places)
}

#[test]
fn pinned_vcpus_run_there_and_no_pcpu_idles() {
    for policy in policies(1) {
        let (report, Places(places)) = run(PAIR, &policy);
        let pins = [3, 2, 1, 0, 0, 1, 2, 3];
        assert!((0..).zip(pins).all(|place| places.contains(&place)), "{policy}: {places:?}");
        assert_eq!(places.len(), pins.len(), "{policy}: {places:?}");
        let idle = report.pcpus.idle_ns as f64 / (4 * report.measured_ns) as f64;
        assert!(idle < 0.01, "{policy}: {idle} of the time");
    }
}

#[test]
fn vms_that_are_pinned_to_the_same_pcpus_share_them() {
    let hogs = PAIR.replace(r#"["gmake"]"#, r#"[{ use = "lookbusy", threads = 4 }]"#);
    for policy in ["eevdf", "credit", "micro", "microslice:0", "microslice"] {
        let (report, _) = run(&hogs, policy);
        let [first, second] = [0, 1].map(|vm: usize| report.vms[vm].run_ns as f64);
        let share = first / (first + second);
        assert!((0.45..0.55).contains(&share), "{policy}: {share}");
    }
}

#[test]
fn the_pool_is_of_pcpus_that_nobody_is_pinned_to() {
    let text = PAIR.replace("pcpus = 4", "pcpus = 8").replace("[3, 2, 1, 0]", "[7, 6, 5, 4]");
    for policy in ["micro:2", "microslice:2"] {
        assert_eq!(run(&text, policy).0.pool.mean_micro_pcpus, 0.0, "{policy}: none is left");
        let free = text.replace("[7, 6, 5, 4]", "[7, 6, 6, 7]");
        assert_eq!(run(&free, policy).0.pool.mean_micro_pcpus, 2.0, "{policy}: pCPUs 4 and 5");
    }
}
