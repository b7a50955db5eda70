//! Grace is for turns that are over (docs/explanation/regret.md, Grace that keeps the woken waiting).

use microslice_engine::simulate;
use microslice_experiments::scenario::{Overrides, parse};
use microslice_model::events::NoTrace;
use microslice_studies::regret;

/// What Linux has learnt since 4.5: none of it.
const OLD_GUEST: [(&str, &str); 8] = [
    ("lock_kind", "\"pv-queued\""),
    ("thread_scheduler", "\"fifo\""),
    ("thread_slice", "\"3 ms\""),
    ("steal_time", "false"),
    ("mutex_handoff", "false"),
    ("pv_ipi", "false"),
    ("ttwu_queue", "false"),
    ("lazy_tlb", "false"),
];

/// The scenario that `microslice regret` draws from that seed, with guests of before.
fn drawn_with_old_guests(seed: u64) -> String {
    const MODERN: &str = "kernel = { extends = \"linux-modern\"";
    let old = |line: &str| {
        let added = OLD_GUEST.iter().filter(|(key, _)| !line.contains(&format!("{key} =")));
        let added: String = added.map(|(key, value)| format!(", {key} = {value}")).collect();
        format!("{}\n", line.replace(MODERN, &format!("{MODERN}{added}")))
    };
    let scenario = regret::scenario(regret::Hosts::Papers, seed)
        .replace("kernel = \"linux-modern\"", &format!("{MODERN} }}"));
    scenario.lines().map(old).collect()
}

/// Work of the first workload of a VM of that scenario.
fn work_of_drawn(seed: u64, vm: usize, policy: &str) -> u64 {
    let overrides = Overrides { policy: Some(policy.to_owned()), seed: Some(seed), ..Overrides::default() };
    let scenario = parse("drawn.toml", &drawn_with_old_guests(seed), &overrides);
    let config = scenario.unwrap_or_else(|error| panic!("{error}")).config;
    let report = simulate(&config, &mut NoTrace).unwrap_or_else(|error| panic!("{error}"));
    report.vms[vm].workloads[0].units_done
}

#[test]
fn a_vcpu_woken_to_take_a_mutex_is_not_kept_waiting_by_the_grace_of_vms_that_send_calls() {
    // Of regret 31038: kept waiting, it was asked for by calls, and lost its boost to a micro slice, in which
    // it spun for the mutex.
    let [helped, without_grace] =
        ["microslice", "microslice+grace=0"].map(|policy| work_of_drawn(31038, 0, policy));
    assert!(helped * 2 > without_grace, "with grace {helped}, without {without_grace}");
}
