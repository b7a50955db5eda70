//! Valid scenarios at which `--check` once found fault. Each is the shortest form of what was drawn or sent
//! in; the policies are those that it was found under.

use microslice_engine::simulate;
use microslice_experiments::scenario::{Overrides, parse};
use microslice_model::config::SimulationConfig;
use microslice_model::events::NoTrace;

/// An idle pCPU looked for work at the busiest one alone, whose vCPUs might not come.
const BUSIEST_IS_PINNED: &str = r#"
duration = "50 ms"
host = {extends = "scale-up", llc_pcpus = 1}
[[vm]]
name = "v0"
vcpus = 6
weight = 1
kernel = {extends = "linux-3.2"}
workloads = [{name = "w0", threads = 1, pin = 5, program = [{shootdown = "3 us"}]}]
[[vm]]
name = "v1"
vcpus = 3
affinity = [1, 5]
kernel = {extends = "linux-4.4"}
workloads = [{name = "w0", threads = 3, program = [{repeat = 1, body = [{compute = "lognormal 500 ns sigma 4"}]}]}]
"#;

/// Five VMs are pinned to two pCPUs, where others may wait, too.
const TWO_PCPUS_ARE_CROWDED: &str = r#"
duration = "50 ms"
host = {extends = "xeon-e5645", pcpus = 8, llc_pcpus = 2}
[[vm]]
name = "v0"
vcpus = 4
copies = 5
affinity = [6, 7]
kernel = {extends = "linux-modern"}
workloads = [{name = "w0", threads = "per vcpu", pin = 1, program = [{lock = "page_allocator", hold = "mix 50 us with 50 % of 1 us"}]}]
[[vm]]
name = "v2"
vcpus = 2
kernel = {extends = "linux-3.2"}
[[vm]]
name = "v3"
vcpus = 1
weight = 1
kernel = {extends = "linux-4.4"}
workloads = [{name = "w0", threads = 1, program = [{sleep = "lognormal 50 us sigma 0"}]}]
"#;

/// Turns that are shorter than a switch, or shorter than their window.
const SHORT_TURNS: &str = r#"
duration = "50 ms"
host = {extends = "xeon-x5550", pcpus = 2, llc_pcpus = 0}
[[vm]]
name = "v0"
vcpus = 2
kernel = {extends = "linux-4.4"}
workloads = [{name = "w0", threads = 1, program = [{shootdown = "exponential 20 ms"}]}]
[[vm]]
name = "v1"
vcpus = 1
copies = 2
kernel = {extends = "linux-4.4"}
workloads = [{name = "w0", threads = 1, program = [{lock = "slp", hold = "500 ns"}], lock = [{name = "slp", symbol = "get_page_from_freelist"}]}]
"#;

fn passes(scenario: &str, policies: &[&str]) {
    for policy in policies {
        let overrides = Overrides { policy: Some((*policy).into()), ..Overrides::default() };
        let scenario =
            parse("found", scenario, &overrides).unwrap_or_else(|error| panic!("{policy}: {error}"));
        let config = SimulationConfig { check: true, ..scenario.config };
        simulate(&config, &mut NoTrace).unwrap_or_else(|error| panic!("{policy}: {error}"));
    }
}

#[test]
fn an_idle_pcpu_takes_whoever_may_run_there() {
    for scenario in [BUSIEST_IS_PINNED, TWO_PCPUS_ARE_CROWDED] {
        passes(scenario, &["cfs", "balance", "lc-balance", "coordinated", "eevdf", "eevdf-flat"]);
    }
}

#[test]
fn short_turns_with_short_windows_are_as_long_as_due() {
    let turns = [20, 50, 100].map(|turn| format!("eevdf+base_slice={turn} us+delay_preemption=1 us"));
    let looks = turns.clone().map(|policy| policy + "+delay_look=1 us");
    for policy in turns.iter().chain(&looks) {
        passes(SHORT_TURNS, &[policy]);
    }
}
