//! Measures the tables of docs/lab/holders.md, and prints them as they stand there.
//!
//! `cargo run --release -p microslice-studies --example holders -- [grow] TABLE`. With `grow`, pause-loop
//! windows double at each exit, as KVM's do. TABLE is
//!
//! - `programs`: the papers', with guests of today; or only those that are named behind it;
//! - `random 40 52001`: so many scenarios, from that seed;
//! - `locks`: one contended lock, by its kind, with pause-loop exits and without.

use microslice_engine::report::{RunReport, VmReport};
use microslice_engine::simulate;
use microslice_experiments::batch::{BatchProgress, run_numbered};
use microslice_experiments::scenario::{Overrides, load, parse};
use microslice_model::config::SimulationConfig;
use microslice_studies::regret;

const PROGRAMS: [&str; 8] =
    ["gmake", "memclone", "dedup", "vips", "exim", "psearchy", "blackscholes", "spec-cpu"];
/// Of each program under each policy.
const SEEDS: u64 = 3;
/// Whose kernels hold their locks where Debian's do.
const GUEST: &str = "linux-6.18";
/// A variation of each policy: by what holders are known, and whether heirs are tried.
const RULES: [&str; 5] = [
    "",
    "+critical_by=counter",
    "+critical_by=both",
    "+critical_by=counter+heirs=true",
    "+critical_by=both+heirs=true",
];

type Settings = Vec<(String, String)>;
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What a policy made of a VM in a scenario's runs.
struct Figures {
    /// Units of work.
    work: f64,
    /// How long its woken threads waited at the 99th percentile.
    felt_ns: f64,
    /// How long its waiters waited for a lock, at the 99th percentile of the worst of its locks.
    lock_ns: f64,
}

/// Of each VM.
struct Outcome(Vec<Figures>);

impl Outcome {
    fn of(reports: &[RunReport]) -> Self {
        let vm = |at: usize| {
            let of_each = |figure: fn(&VmReport) -> f64| mean(reports.iter().map(|run| figure(&run.vms[at])));
            Figures { work: of_each(work), felt_ns: of_each(felt_ns), lock_ns: of_each(lock_ns) }
        };
        Self((0..reports[0].vms.len()).map(vm).collect())
    }
}

/// The geometric mean over a VM's workloads; none at all is a number, too.
fn work(vm: &VmReport) -> f64 {
    mean(vm.workloads.iter().map(|workload| workload.units_done as f64 + 1.0))
}

/// Less than a micro slice is felt by nobody.
fn felt_ns(vm: &VmReport) -> f64 {
    vm.wake_waits.percentile(99.0).unwrap_or(0).max(100_000) as f64
}

fn lock_ns(vm: &VmReport) -> f64 {
    let waits = vm.lock_waits.values().filter_map(|waits| waits.percentile(99.0));
    waits.max().unwrap_or(0).max(1) as f64
}

/// The geometric mean.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value.ln(), count + 1));
    (sum / f64::from(count.max(1))).exp()
}

fn policies() -> Vec<String> {
    let with_rules = |policy: &'static str| RULES.map(|rules| format!("{policy}{rules}"));
    ["eevdf".to_owned()].into_iter().chain(with_rules("microslice")).chain(with_rules("beside")).collect()
}

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let grow = words.first().is_some_and(|word| word == "grow");
    let host = if grow { settings(&[("host.ple.window_grow", "2")]) } else { Settings::new() };
    match words[usize::from(grow)..].split_first().map(|(table, rest)| (table.as_str(), rest)) {
        Some(("programs", programs)) => show_programs(programs, &host),
        Some(("random", [scenarios, seed])) => show_random(scenarios.parse()?, seed.parse()?, &host),
        Some(("locks", [])) => show_locks(&host),
        _ => Err("usage: holders [grow] programs [PROGRAM…] | random SCENARIOS SEED | locks".into()),
    }
}

fn settings(all: &[(&str, &str)]) -> Settings {
    all.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// Of each policy the target's and the co-runner's work, and the target's felt waits, relative to `eevdf`.
fn show_programs(wanted: &[String], host: &Settings) -> Result<(), Failure> {
    let programs: Vec<&str> = PROGRAMS
        .into_iter()
        .filter(|program| wanted.is_empty() || wanted.iter().any(|w| w == program))
        .collect();
    let config = |job: usize| {
        let (program, policy, seed) = place(job, policies().len(), SEEDS as usize);
        let kernels = [("vm.target.kernel", GUEST), ("vm.corunner.kernel", GUEST)];
        let times = [("warmup", "500 ms"), ("duration", "3 s")];
        let settings = [settings(&kernels), settings(&times), host.clone()].concat();
        let overrides =
            Overrides { policy: Some(policies()[policy].clone()), seed: Some(seed as u64 + 1), settings };
        Ok(load(&format!("{}-swaptions", programs[program]), &overrides)?.config)
    };
    let outcomes = outcomes(programs.len(), SEEDS as usize, &config)?;
    show_pairs(&programs, &outcomes, |vm| vm.felt_ns);
    Ok(())
}

/// Likewise, of a VM whose vCPUs take one lock, beside one that computes; waits are for the lock.
fn show_locks(host: &Settings) -> Result<(), Failure> {
    let kinds = ["ticket", "queued", "pv-queued", "test-and-set"];
    let names = kinds.map(|kind| [kind.to_owned(), format!("{kind}, no exits")]);
    let config = |job: usize| {
        let (column, policy, seed) = place(job, policies().len(), SEEDS as usize);
        let text = contended(kinds[column / 2], column % 2 == 0);
        let (policy, seed) = (Some(policies()[policy].clone()), Some(seed as u64 + 1));
        let settings = host.clone();
        Ok(parse("locks.toml", &text, &Overrides { policy, seed, settings })?.config)
    };
    let names = names.concat();
    let outcomes = outcomes(names.len(), SEEDS as usize, &config)?;
    show_pairs(&names, &outcomes, |vm| vm.lock_ns);
    Ok(())
}

/// Eight vCPUs that take a lock of this kind for 20 us after each 60, beside sixteen that compute, on eight
/// pCPUs. `exits`: pause loops do.
fn contended(kind: &str, exits: bool) -> String {
    format!(
        r#"
        host = {{ extends = "xeon-e5645", pcpus = 8, smt_threads = 1, ple = {{ enabled = {exits} }} }}
        warmup = "500 ms"
        duration = "3 s"
        [[vm]]
        name = "target"
        vcpus = 8
        kernel = "{GUEST}"
        workloads = [{{ name = "w", threads = "per vcpu",
            lock = [{{ name = "own", kind = "{kind}", symbol = "get_page_from_freelist" }}],
            program = [{{ compute = "60 us" }}, {{ lock = "own", hold = "20 us" }}, {{ progress = 1 }}] }}]
        [[vm]]
        name = "hogs"
        vcpus = 16
        kernel = "{GUEST}"
        workloads = [{{ name = "hog", threads = "per vcpu",
            program = [{{ compute = "1 ms" }}, {{ progress = 1 }}] }}]
        "#
    )
}

/// A row of each policy, a column of each scenario of two VMs.
fn show_pairs(names: &[impl AsRef<str>], outcomes: &[Vec<Outcome>], waits_ns: fn(&Figures) -> f64) {
    println!("| | {} |", names.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(" | "));
    for (number, policy) in policies().iter().enumerate().skip(1) {
        let cell = |of_policies: &Vec<Outcome>| {
            let [first, this] = [&of_policies[0].0, &of_policies[number].0];
            format!(
                "{:.2}, {:.2}; {:.3}",
                this[0].work / first[0].work,
                this[1].work / first[1].work,
                waits_ns(&this[0]) / waits_ns(&first[0])
            )
        };
        println!("| `{policy}` | {} |", outcomes.iter().map(cell).collect::<Vec<_>>().join(" | "));
    }
}

/// Of each scenario under each policy.
const RUNS: usize = 2;

/// Of each policy work and felt waits of all VMs, relative to `eevdf`: means, and how many scenarios lose.
fn show_random(scenarios: usize, first_seed: u64, host: &Settings) -> Result<(), Failure> {
    let config = |job: usize| {
        let (scenario, policy, run) = place(job, policies().len(), RUNS);
        let number = first_seed + scenario as u64;
        let text = regret::scenario(regret::Hosts::Papers, number)
            .replace("\"linux-modern\"", &format!("\"{GUEST}\""));
        let (policy, seed) = (Some(policies()[policy].clone()), Some(number + run as u64));
        let overrides = Overrides { policy, seed, settings: host.clone() };
        Ok(parse(&regret::file_name(number), &text, &overrides)?.config)
    };
    let outcomes = outcomes(scenarios, RUNS, &config)?;
    println!("| policy | work | below 0.95 | above 1.05 | felt p99 | above 1.1 |");
    for (number, policy) in policies().iter().enumerate().skip(1) {
        let ratios = |figure: fn(&Figures) -> f64| -> Vec<f64> {
            let ratio = |of_policies: &Vec<Outcome>| {
                let pairs = of_policies[number].0.iter().zip(&of_policies[0].0);
                mean(pairs.map(|(this, first)| figure(this) / figure(first)))
            };
            outcomes.iter().map(ratio).collect()
        };
        let (work, felt) = (ratios(|vm| vm.work), ratios(|vm| vm.felt_ns));
        let count = |values: &[f64], is_one: fn(f64) -> bool| values.iter().filter(|&&v| is_one(v)).count();
        println!(
            "| `{policy}` | {:.3} | {} | {} | {:.2} | {} |",
            mean(work.iter().copied()),
            count(&work, |ratio| ratio < 0.95),
            count(&work, |ratio| ratio > 1.05),
            mean(felt.iter().copied()),
            count(&felt, |ratio| ratio > 1.1),
        );
    }
    Ok(())
}

/// Of a job, the scenario, the policy, and the run.
fn place(job: usize, policies: usize, runs: usize) -> (usize, usize, usize) {
    (job / runs / policies, job / runs % policies, job % runs)
}

/// Runs everything, on all cores: of each scenario what each policy made.
fn outcomes(
    scenarios: usize,
    runs: usize,
    config: &(dyn Fn(usize) -> Result<SimulationConfig, Failure> + Sync),
) -> Result<Vec<Vec<Outcome>>, Failure> {
    let jobs = scenarios * policies().len() * runs;
    let reports = run_numbered(jobs, jobs as u64 * 3_500_000_000, &BatchProgress::default(), |job, sink| {
        let config = config(job)?;
        Ok::<RunReport, Failure>(simulate(&config, sink)?)
    });
    let reports = reports.map_err(|(job, error)| format!("job {job}: {error}"))?;
    let of_scenario = |reports: &[RunReport]| reports.chunks(runs).map(Outcome::of).collect();
    Ok(reports.chunks(policies().len() * runs).map(of_scenario).collect())
}
