//! Measures the tables of docs/lab/holders.md, and prints them as they stand there.
//!
//! ```sh
//! cargo run --release -p microslice-studies --example holders -- programs              # all of them
//! cargo run --release -p microslice-studies --example holders -- programs exim gmake
//! cargo run --release -p microslice-studies --example holders -- random 40 52001
//! ```
//!
//! Tables: `programs` (the papers', with guests of today), `random` (so many scenarios, from that seed).

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

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What a policy made of a scenario's runs: of each VM its units of work, and how long its woken threads
/// waited at the 99th percentile.
struct Outcome(Vec<(f64, f64)>);

impl Outcome {
    fn of(reports: &[RunReport]) -> Self {
        let vm = |at: usize| {
            let of_each = |figure: fn(&VmReport) -> f64| mean(reports.iter().map(|run| figure(&run.vms[at])));
            (of_each(work), of_each(felt_ns))
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
    match words.split_first().map(|(table, rest)| (table.as_str(), rest)) {
        Some(("programs", programs)) => show_programs(programs),
        Some(("random", [scenarios, seed])) => show_random(scenarios.parse()?, seed.parse()?),
        _ => Err("usage: holders programs [PROGRAM…] | random SCENARIOS SEED".into()),
    }
}

/// Of each policy the target's and the co-runner's work, and the target's felt waits, relative to `eevdf`.
fn show_programs(wanted: &[String]) -> Result<(), Failure> {
    let programs: Vec<&str> = PROGRAMS
        .into_iter()
        .filter(|program| wanted.is_empty() || wanted.iter().any(|w| w == program))
        .collect();
    let config = |job: usize| {
        let (program, policy, seed) = place(job, policies().len(), SEEDS as usize);
        let settings = [
            ("vm.target.kernel", GUEST),
            ("vm.corunner.kernel", GUEST),
            ("warmup", "500 ms"),
            ("duration", "3 s"),
        ];
        let settings = settings.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
        let overrides =
            Overrides { policy: Some(policies()[policy].clone()), seed: Some(seed as u64 + 1), settings };
        Ok(load(&format!("{}-swaptions", programs[program]), &overrides)?.config)
    };
    let outcomes = outcomes(programs.len(), SEEDS as usize, &config)?;
    println!("| | {} |", programs.join(" | "));
    for (number, policy) in policies().iter().enumerate().skip(1) {
        let cell = |of_policies: &Vec<Outcome>| {
            let [first, this] = [&of_policies[0].0, &of_policies[number].0];
            format!(
                "{:.2}, {:.2}; {:.2}",
                this[0].0 / first[0].0,
                this[1].0 / first[1].0,
                this[0].1 / first[0].1
            )
        };
        println!("| `{policy}` | {} |", outcomes.iter().map(cell).collect::<Vec<_>>().join(" | "));
    }
    Ok(())
}

/// Of each policy work and felt waits of all VMs, relative to `eevdf`: means, and how many scenarios lose.
fn show_random(scenarios: usize, first_seed: u64) -> Result<(), Failure> {
    let config = |job: usize| {
        let (scenario, policy, run) = place(job, policies().len(), regret::RUNS as usize);
        let number = first_seed + scenario as u64;
        let text = regret::scenario(number).replace("\"linux-modern\"", &format!("\"{GUEST}\""));
        let (policy, seed) = (Some(policies()[policy].clone()), Some(number + run as u64));
        let overrides = Overrides { policy, seed, settings: Vec::new() };
        Ok(parse(&regret::file_name(number), &text, &overrides)?.config)
    };
    let outcomes = outcomes(scenarios, regret::RUNS as usize, &config)?;
    println!("| policy | work | below 0.95 | above 1.05 | felt p99 | above 1.1 |");
    for (number, policy) in policies().iter().enumerate().skip(1) {
        let ratios = |figure: fn(&(f64, f64)) -> f64| -> Vec<f64> {
            let ratio = |of_policies: &Vec<Outcome>| {
                let pairs = of_policies[number].0.iter().zip(&of_policies[0].0);
                mean(pairs.map(|(this, first)| figure(this) / figure(first)))
            };
            outcomes.iter().map(ratio).collect()
        };
        let (work, felt) = (ratios(|vm| vm.0), ratios(|vm| vm.1));
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
