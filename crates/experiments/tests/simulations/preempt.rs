//! Preemption modes of the host (`preempt=`). Every run has the checkers on.

use microslice_engine::report::RunReport;
use microslice_engine::simulate;
use microslice_experiments::scenario::{Overrides, parse};
use microslice_model::events::NoTrace;

/// A heartbeat beside a VM that computes, on one pCPU; guests' ticks exit as often as said.
fn run(preempt: &str, tick: &str, policy: &str) -> RunReport {
    let text = format!(
        r#"
        host = {{ extends = "homelab", pcpus = 1, smt_threads = 1, preempt = "{preempt}" }}
        warmup = "200 ms"
        duration = "4 s"
        [[vm]]
        name = "heart"
        vcpus = 1
        kernel = {{ extends = "linux-modern", tick = "{tick}" }}
        workloads = [{{ name = "beats", threads = 1, program = [{{ sleep = "uniform 5 ms to 9 ms" }}, {{ compute = "100 us" }}, {{ progress = 1 }}] }}]
        [[vm]]
        name = "hog"
        vcpus = 1
        kernel = {{ extends = "linux-modern", tick = "{tick}" }}
        workloads = ["lookbusy"]
        "#
    );
    let overrides = Overrides { policy: Some(policy.to_owned()), ..Overrides::default() };
    let mut config = parse("mine.toml", &text, &overrides).unwrap_or_else(|error| panic!("{error}")).config;
    config.check = true;
    simulate(&config, &mut NoTrace).unwrap_or_else(|error| panic!("{policy}: {error}"))
}

fn mean_lateness_ns(report: &RunReport) -> f64 {
    report.vms[0].timer_lateness.mean().expect("it beats")
}

#[test]
fn with_lazy_preemption_a_woken_vcpu_waits_for_an_exit() {
    let [full, lazy] = ["full", "lazy"].map(|preempt| mean_lateness_ns(&run(preempt, "1 Hz", "eevdf")));
    assert!(full < 400_000.0, "{full} ns late");
    // Ticks of the host come every 4 ms, and the sleep's end anywhere between them.
    assert!((1_200_000.0..2_800_000.0).contains(&lazy), "{lazy} ns late");
    // The other guest's timer is an exit, too.
    let ticking = mean_lateness_ns(&run("lazy", "1000 Hz", "eevdf"));
    assert!((300_000.0..900_000.0).contains(&ticking), "{ticking} ns late");
}

#[test]
fn boosts_and_sched_ext_preempt_at_once_all_the_same() {
    for policy in ["microslice:0", "microslice", "credit"] {
        assert_eq!(run("full", "250 Hz", policy), run("lazy", "250 Hz", policy), "{policy}");
    }
    let [unhelped, boosted] =
        ["eevdf", "beside"].map(|policy| mean_lateness_ns(&run("lazy", "1 Hz", policy)));
    assert!(boosted * 2.0 < unhelped, "woken vCPUs that wait are boosted: {boosted} ns late, not {unhelped}");
}
