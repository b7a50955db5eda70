//! The promise table (`crates/promises`), as far as the simulator runs it: each row under each scheduler that
//! promises VMs their shares. Every run has the checkers on.

use microslice_engine::report::RunReport;
use microslice_engine::simulate;
use microslice_experiments::scenario::{Overrides, parse};
use microslice_model::events::NoTrace;
use microslice_promises::{ALL, Kind, Load, Party, Promise, World};

/// Whichever pCPUs share queues.
const DOMAINS: [&str; 3] = ["host", "llc", "pcpu"];

/// What a policy doesn't keep with some seed, by the row's name. It is told if that changes for the better.
///
/// The VM of three vCPUs has 0.56 with the second seed. Why isn't known.
const MISSED: [(&str, &str); 2] = [("UNEVEN_HOGS", "coordinated"), ("UNEVEN_HOGS", "cfs")];

const SEEDS: [u64; 2] = [1, 2];
/// What isn't theirs are switches and exits.
const USED_BY_HOGS_MIN: f64 = 0.95;

/// Those that promise VMs shares by weight on several pCPUs. `lottery` does on one (`shares.rs`).
fn policies() -> Vec<String> {
    let by_domain = |policy: &'static str| DOMAINS.map(|domain| format!("{policy}+domain={domain}"));
    let ours = ["microslice:0", "microslice:1", "microslice"].into_iter().flat_map(by_domain);
    ours.chain(["coordinated", "cfs", "eevdf"].map(str::to_owned)).collect()
}

fn workload(load: Load) -> &'static str {
    match load {
        Load::Compute => r#""swaptions""#,
        Load::Doze => {
            r#"{ name = "dozes", threads = "per vcpu", program = [
                { compute = "exponential 1 ms" }, { sleep = "exponential 100 us" }, { progress = 1 },
            ] }"#
        }
        Load::Shootdowns => {
            r#"{ name = "shoots", threads = "per vcpu", address_space = "shared", program = [
                { compute = "exponential 50 us" }, { shootdown = "1 us" }, { progress = 1 },
            ] }"#
        }
        Load::Fork => panic!("guests that fork aren't modelled here"),
    }
}

fn vm(party: &Party) -> String {
    if let (Kind::Tasks { count, nice: 0 }, Load::Compute) = (party.kind, party.does) {
        return format!(
            "[[task]]\nname = \"{}\"\nthreads = {count}\nweight = {}\n\
             program = [{{ compute = \"exponential 1 ms\" }}, {{ progress = 1 }}]\n",
            party.name, party.weight
        );
    }
    let Kind::Vm { vcpus, vmm_threads: 0 } = party.kind else { panic!("{party:?} is no VM of vCPUs alone") };
    let affinity =
        if party.pcpus.is_empty() { String::new() } else { format!("affinity = {:?}", party.pcpus) };
    let (name, weight, workload) = (party.name, party.weight, workload(party.does));
    let cpu_max = party.limit.map_or_else(String::new, |limit| format!("cpu_max = \"{}\"", limit.text()));
    format!(
        "[[vm]]\nname = \"{name}\"\nvcpus = {vcpus}\nkernel = \"linux-4.4\"\nweight = {weight}\n{affinity}\n{cpu_max}\n\
         workloads = [{workload}]\n"
    )
}

/// On a host of two last-level caches.
fn run(row: &Promise, policy: &str, seed: u64) -> RunReport {
    let (pcpus, llc_pcpus) = (row.pcpus, row.pcpus.div_ceil(2));
    let mut text = format!(
        "host = {{ extends = \"xeon-e5645\", pcpus = {pcpus}, llc_pcpus = {llc_pcpus}, smt_threads = 1 }}\n\
         warmup = \"1 s\"\nduration = \"4 s\"\n"
    );
    text.extend(row.parties.iter().map(vm));
    let overrides = Overrides { policy: Some(policy.to_owned()), seed: Some(seed), ..Overrides::default() };
    let mut config =
        parse("promises.toml", &text, &overrides).unwrap_or_else(|error| panic!("{error}")).config;
    config.check = true;
    simulate(&config, &mut NoTrace).unwrap_or_else(|error| panic!("{}, {policy}: {error}", row.name))
}

/// What isn't as promised with any of the seeds.
fn broken(row: &Promise, policy: &str) -> Vec<String> {
    SEEDS.into_iter().flat_map(|seed| broken_with(row, policy, seed)).collect()
}

fn broken_with(row: &Promise, policy: &str, seed: u64) -> Vec<String> {
    let report = run(row, policy, seed);
    let all_ns: u64 = report.vms.iter().map(|vm| vm.run_ns).sum();
    let mut found = Vec::new();
    for (party, vm) in row.parties.iter().zip(&report.vms) {
        let (share, due) = match party.limit {
            Some(limit) => (vm.run_ns as f64 / report.measured_ns as f64, limit.cpus()),
            None => (vm.run_ns as f64 / all_ns as f64, row.share(party.name)),
        };
        if !row.simulator.is_kept(due)(share) {
            found.push(format!("seed {seed}: {} has {share:.3}, due {due:.3}", party.name));
        }
    }
    let used = all_ns as f64 / (f64::from(row.pcpus) * report.measured_ns as f64);
    let is_busy = |party: &Party| party.does == Load::Compute && party.limit.is_none();
    if row.parties.iter().all(is_busy) && used < USED_BY_HOGS_MIN {
        found.push(format!("seed {seed}: VMs that always compute have {used:.3} of the host"));
    }
    if let (Some(longest), Some(waited_ns)) = (row.longest_wait, report.wait_to_run.max())
        && u128::from(waited_ns) > longest.as_nanos()
    {
        found.push(format!("seed {seed}: a vCPU waited for {waited_ns} ns"));
    }
    found
}

#[test]
fn each_row_of_the_promise_table_is_kept_under_each_scheduler_that_promises_shares() {
    let mut wrong = Vec::new();
    for (name, row) in ALL.iter().filter(|(_, row)| matches!(row.simulator, World::Runs { .. })) {
        for policy in policies() {
            let found = broken(row, &policy);
            if found.is_empty() == MISSED.contains(&(*name, policy.as_str())) {
                wrong.push(format!("{}, {policy}: {}", row.name, found.join("; ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
