//! Timers of sleeping threads, and how late they come.

use microslice_engine::simulate;
use microslice_experiments::scenario::{Overrides, parse};
use microslice_metrics::Histogram;
use microslice_model::events::NoTrace;

/// A heartbeat every 10 ms, beside so many VMs that always compute, on one pCPU.
fn lateness_of_a_heartbeat(hogs: usize) -> Histogram {
    let mut text = r#"
        host = { extends = "xeon-e5645", pcpus = 1, smt_threads = 1 }
        duration = "4 s"
        [[vm]]
        name = "heart"
        vcpus = 1
        kernel = "linux-modern"
        workloads = [{ name = "beats", threads = 1, program = [{ sleep = "10 ms" }, { compute = "200 us" }, { progress = 1 }] }]
    "#
    .to_owned();
    if hogs > 0 {
        text += &format!("[[vm]]\nname = \"hog\"\ncopies = {hogs}\nvcpus = 1\nkernel = \"linux-modern\"\n");
        text += "workloads = [\"swaptions\"]\n";
    }
    let overrides = Overrides { policy: Some("eevdf".to_owned()), ..Overrides::default() };
    let mut config = parse("timers.toml", &text, &overrides).unwrap_or_else(|error| panic!("{error}")).config;
    config.check = true;
    let mut report = simulate(&config, &mut NoTrace).unwrap_or_else(|error| panic!("{error}"));
    report.vms.swap_remove(0).timer_lateness
}

#[test]
fn a_timer_is_late_while_its_vcpu_waits() {
    let [alone, crowded] = [0, 8].map(lateness_of_a_heartbeat);
    let late_ns = |lateness: &Histogram| lateness.percentile(99.0).expect("it beats");
    assert!(late_ns(&alone) < 30_000, "{alone:?}");
    assert!(late_ns(&crowded) > 1_000_000, "{crowded:?}");
    // A sleep begins where the work before it ends: the rate says the same as the figure.
    let mean_ns = (4_000_000_000 / crowded.count()).saturating_sub(10_200_000);
    let said_ns = crowded.mean().expect("it beats") as u64;
    assert!(mean_ns + 100_000 > said_ns, "{mean_ns} ns between beats beyond 10.2 ms, {said_ns} ns late");
}
