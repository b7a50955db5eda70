//! `microslice regret`: policies on programs that nobody chose, relative to the first of them.

use super::simulate::failure_of;
use crate::failure::Failure;
use crate::output::{self, OutputFile};
use crate::progress::{self, ProgressLine};
use clap::Args;
use microslice_metrics::html::Page;
use microslice_metrics::plot::{Bar, BarChart, BarSeries};
use microslice_metrics::table::Table;
use microslice_metrics::{Estimate, Unit};
use microslice_studies::regret::{
    self, Distribution, FELT_WAITS, Group, Hosts, RegretError, ScenarioResult, Summary, summaries,
};
use serde_json::{Value as Json, json};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// More than these nobody waits for; their results fit into memory.
const SCENARIOS_MAX: u64 = 10_000;
const POLICIES_MAX: usize = 32;
/// The worst scenarios of a policy that are shown and written, by work and by waits.
const WORST: usize = 5;

/// Draw hosts, VMs and programs at random, and show what each policy loses and gains there
#[derive(Args)]
#[command(after_help = "Examples:
  microslice regret
  microslice regret --scenarios 50 --seed 1000 --policies eevdf,microslice:0,microslice
  microslice regret --hosts today --scenarios 2000 --precision '0.5 %' --policies 'microslice,microslice+patience=0 us'
  microslice regret --policies 'eevdf,microslice,microslice+patience=0 us' --html regret.html
  microslice regret --scenarios 200 --worst worst       then microslice compare worst/regret-17.toml --policies eevdf,microslice

One seed is one scenario, the same on every machine. Each runs once under each policy; the last row is the first policy once
more with other seeds: what two runs differ by that differ in nothing else. Work is the geometric mean over VMs of work done
relative to the first policy, with its 95 % interval. Felt waits are each VM's 99th percentile relative to its own under the
first policy: of wake-ups, shootdowns, acquisitions of locks, waits for a pCPU by their length, and the longest of these.")]
pub struct Regret {
    /// Which hosts and guests are drawn
    #[arg(long, value_enum, default_value_t = Population::Mixed)]
    hosts: Population,

    /// How many scenarios; with --precision at most
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=SCENARIOS_MAX))]
    scenarios: u64,

    /// Seed of the first scenario
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Policies, with commas between; all are compared with the first one
    #[arg(
        long,
        value_name = "A,B,C",
        value_delimiter = ',',
        default_value = "eevdf,eevdf-flat,beside,microslice:0,microslice,microslice+patience=0 us"
    )]
    policies: Vec<String>,

    /// End when half of the 95 % interval of each policy's mean work is no more than that, from 0.1 % to 10 %
    #[arg(long, value_name = "PERCENT", value_parser = parse_precision)]
    precision: Option<f64>,

    /// Print JSON, each scenario's numbers included
    #[arg(long)]
    json: bool,

    /// Write a self-contained page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write the worst scenarios of each policy into this new folder, as files that `simulate` and `compare`
    /// take
    #[arg(long, value_name = "DIR")]
    worst: Option<PathBuf>,

    /// Verify the model's invariants in every run (slower)
    #[arg(long)]
    check: bool,
}

/// Hosts and guests that are drawn.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Population {
    /// Four of five of today, the rest like those of the papers
    Mixed,
    /// Linux 6.12 on processors with APICv, AVIC or IPI virtualization
    Today,
    /// Like those of the papers
    Papers,
}

/// Reads "0.5 %", "0.5%" or "0.5", as a part of 1.
fn parse_precision(text: &str) -> Result<f64, String> {
    let percent: f64 =
        text.trim_end_matches('%').trim().parse().map_err(|_| "no number, such as 0.5".to_owned())?;
    match percent {
        percent if (0.1..=10.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err("not between 0.1 % and 10 %".to_owned()),
    }
}

pub fn run(args: Regret) -> Result<(), Failure> {
    let regret = regret_of(&args)?;
    let progress = progress::stoppable()?;
    let worst = args.worst.as_deref().map(WorstFolder::create).transpose()?;
    let html = OutputFile::wanted(args.html.as_deref(), &[])?;
    let results = {
        let what = format!("comparing on {} scenarios", regret.scenarios);
        let _line = ProgressLine::of_batch(what, progress.clone());
        regret.run(&progress).map_err(failure)?
    };
    let all = summaries(&regret.policies, &results);
    if let Some(folder) = &worst {
        folder.write(regret.hosts, &all)?;
    }
    if let Some(file) = html {
        file.finish_with(&page(&headline(&regret, results.len()), &all))?;
    }
    if args.json {
        return output::print_json(&json_of(&regret, &results, &all));
    }
    output::print(&format!("{}\n\n{}", headline(&regret, results.len()), text_of(&all)))
}

fn regret_of(args: &Regret) -> Result<regret::Regret, Failure> {
    let policies: Vec<String> = args.policies.iter().map(|policy| policy.trim().to_owned()).collect();
    if policies.len() > POLICIES_MAX {
        return Err(Failure::bad_input(format!("--policies: at most {POLICIES_MAX}")));
    }
    if let Some(twice) = (1..policies.len()).find(|&at| policies[..at].contains(&policies[at])) {
        return Err(Failure::bad_input(format!("--policies: `{}` is named twice", policies[twice])));
    }
    // A seed of a file is at most the largest signed number; a scenario's last run has the one after it.
    let last = args.seed.checked_add(args.scenarios + 1);
    if last.is_none_or(|last| last > i64::MAX as u64) {
        let cause = format!("--seed {}: there aren't {} scenarios from there", args.seed, args.scenarios);
        return Err(Failure::bad_input(cause));
    }
    if args.precision.is_some() && policies.len() < 2 {
        return Err(Failure::bad_input(
            "--precision: it is of the policies after the first; name two with --policies",
        ));
    }
    let hosts = match args.hosts {
        Population::Mixed => Hosts::Mixed,
        Population::Today => Hosts::Today,
        Population::Papers => Hosts::Papers,
    };
    Ok(regret::Regret {
        policies,
        hosts,
        scenarios: args.scenarios,
        precision: args.precision,
        first_seed: args.seed,
        check: args.check,
    })
}

fn failure(error: RegretError) -> Failure {
    match &error {
        RegretError::Scenario(error) => Failure::bad_input(error),
        RegretError::Run { scenario, policy, seed, error } => {
            failure_of(&format!("regret scenario {scenario} under {policy}, seed {seed}"), error)
        }
    }
}

/// A new folder for the worst scenarios, before anything runs. It goes again if nothing comes into it.
struct WorstFolder(PathBuf);

impl WorstFolder {
    /// Files of another comparison beside these would be taken for its worst, and none is replaced.
    fn create(folder: &Path) -> Result<Self, Failure> {
        let refuse = |cause: &str| Failure::bad_input(format!("{}: {cause}", folder.display()));
        match std::fs::read_dir(folder).map(|mut entries| entries.next().is_some()) {
            Ok(true) => return Err(refuse("isn't empty; name a new folder")),
            Ok(false) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {
                std::fs::create_dir(folder).map_err(|error| refuse(&error.to_string()))?;
            }
            Err(error) => return Err(refuse(&error.to_string())),
        }
        Ok(Self(folder.to_owned()))
    }

    fn write(&self, hosts: Hosts, all: &[Summary]) -> Result<(), Failure> {
        for seed in worst_of_all(all) {
            let path = self.0.join(regret::file_name(seed));
            OutputFile::create(&path, &[])?.finish_with(&regret::scenario(hosts, seed))?;
        }
        Ok(())
    }
}

impl Drop for WorstFolder {
    fn drop(&mut self) {
        // One with files in it stays.
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Of every policy that is compared, but for the first one.
fn worst_of_all(all: &[Summary]) -> BTreeSet<u64> {
    let compared = compared(all).iter();
    compared.flat_map(|of| [of.least_throughput(WORST), of.longest_waits(WORST)].concat()).collect()
}

/// Neither the first policy nor what it is with other seeds.
fn compared(all: &[Summary]) -> &[Summary] {
    all.get(1..all.len() - 1).unwrap_or_default()
}

fn headline(regret: &regret::Regret, scenarios: usize) -> String {
    let hosts = match regret.hosts {
        Hosts::Mixed => "four of five of today",
        Hosts::Today => "of today",
        Hosts::Papers => "like those of the papers",
    };
    format!(
        "{scenarios} scenarios from seed {}, hosts {hosts}; relative to {}",
        regret.first_seed, regret.policies[0]
    )
}

fn text_of(all: &[Summary]) -> String {
    let tables = tables(all).map(|(title, table)| format!("{title}\n{table}\n"));
    format!("{}Worst scenarios (seeds)\n{}", tables.concat(), worst_table(all))
}

fn tables(all: &[Summary]) -> [(&'static str, Table); 6] {
    [
        ("Work", work_table(all)),
        ("Felt waits: mean; and no vCPU waited longer in so many seconds", felt_table(all)),
        (
            "Misses: scenarios by work, and VMs with felt waits above 1.25; how many more than the first policy has \
             with other seeds, beside two standard deviations of that",
            miss_table(all),
        ),
        ("Work by how interrupts reach vCPUs", group_table(all, |of| &of.interrupts)),
        ("Work of VMs by what they run", group_table(all, |of| &of.programs)),
        (
            "Shares: the largest difference of a VM's from what is due (scenarios without pinned or limited VMs)",
            share_table(all),
        ),
    ]
}

const QUANTILES: [(&str, f64); 5] =
    [(">least", 0.0), (">p5", 0.05), (">median", 0.5), (">p95", 0.95), (">most", 1.0)];

fn quantiles(of: &Distribution, show: fn(f64) -> String) -> Vec<String> {
    QUANTILES.iter().map(|&(_, part)| shown(of.quantile(part), show)).collect()
}

fn shown(value: Option<f64>, show: fn(f64) -> String) -> String {
    value.map_or("-".to_owned(), show)
}

fn ratio(value: f64) -> String {
    format!("{value:.3}")
}

fn milliseconds(ns: f64) -> String {
    format!("{:.1} ms", ns / 1e6)
}

fn percent(value: f64) -> String {
    format!("{:.1} %", value * 100.0)
}

/// A mean of ratios with half of its interval.
fn estimate(of: Option<Estimate>) -> String {
    of.map_or("-".to_owned(), |of| format!("{:.3} ± {:.3}", of.mean, of.half_width()))
}

fn work_table(all: &[Summary]) -> Table {
    let names = QUANTILES.iter().map(|(name, _)| *name);
    let columns = ["policy", ">mean"].into_iter().chain(names);
    let counts = [">3 % behind the best", ">accelerations"];
    let mut table = Table::new(&columns.chain(counts).collect::<Vec<_>>());
    for of in all {
        let counts = &of.counts;
        let mut row = vec![of.policy.clone(), estimate(of.work())];
        row.extend(quantiles(&of.throughput, ratio));
        row.push(counts.behind_best.to_string());
        row.push(Unit::Count.show(of.accelerations as f64));
        table.row(row);
    }
    table
}

fn miss_table(all: &[Summary]) -> Table {
    let kinds = all.first().map(|of| of.misses.as_slice()).unwrap_or_default();
    let names = kinds.iter().map(|miss| format!(">{}", miss.what));
    let names = ["policy".to_owned()].into_iter().chain(names).chain(["never worse".to_owned()]);
    let names = names.collect::<Vec<_>>();
    let mut table = Table::new(&names.iter().map(String::as_str).collect::<Vec<_>>());
    for of in all {
        let cell = |miss: &regret::Miss| {
            let worse = if miss.is_worse() { " worse" } else { "" };
            format!("{} ({:+}, {:.0}){worse}", miss.count, miss.more, miss.two_deviations)
        };
        let mut row = vec![of.policy.clone()];
        row.extend(of.misses.iter().map(cell));
        row.push(if of.is_never_worse() { "yes" } else { "no" }.to_owned());
        table.row(row);
    }
    table
}

fn felt_table(all: &[Summary]) -> Table {
    let words = FELT_WAITS.map(|wait| format!(">{}", wait.word()));
    let names = ["policy".to_owned()].into_iter().chain(words).collect::<Vec<_>>();
    let mut names = names.iter().map(String::as_str).collect::<Vec<_>>();
    names.extend([">99 % of seconds", ">all seconds", ">skew"]);
    let mut table = Table::new(&names);
    for of in all {
        let mut row = vec![of.policy.clone()];
        for felt in &of.felt {
            row.push(shown(felt.ratios.geometric_mean(), ratio));
        }
        row.extend([0.99, 1.0].map(|part| shown(of.longest_waits.quantile(part), milliseconds)));
        row.push(shown(of.skew.mean(), percent));
        table.row(row);
    }
    table
}

fn group_table(all: &[Summary], groups: fn(&Summary) -> &[Group]) -> Table {
    let first = all.first().map(groups).unwrap_or_default();
    let count = |group: &Group| group.work.map_or(0, |work| work.count);
    let names = first.iter().map(|group| format!(">{} ({})", group.name, count(group)));
    let names = ["policy".to_owned()].into_iter().chain(names).collect::<Vec<_>>();
    let mut table = Table::new(&names.iter().map(String::as_str).collect::<Vec<_>>());
    for of in all {
        let works = groups(of).iter().map(|group| estimate(group.work));
        table.row([of.policy.clone()].into_iter().chain(works).collect::<Vec<_>>());
    }
    table
}

fn share_table(all: &[Summary]) -> Table {
    let names = QUANTILES.iter().map(|(name, _)| *name);
    let columns = ["policy", ">mean"].into_iter().chain(names).chain([">above 2 %", ">of"]);
    let mut table = Table::new(&columns.collect::<Vec<_>>());
    for of in all {
        let mut row = vec![of.policy.clone(), shown(of.share_error.mean(), percent)];
        row.extend(quantiles(&of.share_error, percent));
        row.extend([of.counts.share_off_by_2_percent, of.share_error.len()].map(|count| count.to_string()));
        table.row(row);
    }
    table
}

fn worst_table(all: &[Summary]) -> Table {
    let mut table = Table::new(&["policy", "least work", "felt waits that grew most"]);
    let value_of = |of: &Summary, seed: u64, value: fn(&regret::Verdict) -> f64| {
        of.verdicts.iter().find(|verdict| verdict.seed == seed).map_or(f64::NAN, value)
    };
    for of in compared(all) {
        let cell = |seeds: Vec<u64>, value: fn(&regret::Verdict) -> f64| {
            let cells = seeds.into_iter().map(|seed| format!("{seed} ({:.2})", value_of(of, seed, value)));
            cells.collect::<Vec<_>>().join(", ")
        };
        table.row([
            of.policy.clone(),
            cell(of.least_throughput(WORST), |verdict| verdict.throughput),
            cell(of.longest_waits(WORST), regret::Verdict::worst_wait),
        ]);
    }
    table
}

fn distribution(of: &Distribution) -> Json {
    let quantile = |part| of.quantile(part);
    json!({
        "count": of.len(), "mean": of.mean(), "geometric_mean": of.geometric_mean(),
        "least": quantile(0.0), "p5": quantile(0.05), "median": quantile(0.5), "p95": quantile(0.95),
        "p99": quantile(0.99), "most": quantile(1.0),
    })
}

fn felt_waits(felt: &[regret::Felt]) -> serde_json::Map<String, Json> {
    let of = |(wait, felt): (&regret::FeltWait, &regret::Felt)| {
        let mut numbers = distribution(&felt.ratios);
        numbers["above_1.25"] = json!(felt.above_125);
        (wait.word().to_owned(), numbers)
    };
    FELT_WAITS.iter().zip(felt).map(of).collect()
}

fn misses(misses: &[regret::Miss]) -> serde_json::Map<String, Json> {
    let of = |miss: &regret::Miss| {
        let numbers = json!({
            "count": miss.count,
            "more": miss.more,
            "two_deviations": miss.two_deviations,
            "is_worse": miss.is_worse(),
        });
        (miss.what.clone(), numbers)
    };
    misses.iter().map(of).collect()
}

fn groups(groups: &[Group]) -> serde_json::Map<String, Json> {
    let of = |group: &Group| {
        (group.name.to_owned(), json!({ "work": group.work, "felt_waits": felt_waits(&group.felt) }))
    };
    groups.iter().map(of).collect()
}

fn json_of(regret: &regret::Regret, results: &[ScenarioResult], all: &[Summary]) -> Json {
    let policies: Vec<Json> = all
        .iter()
        .map(|of| {
            json!({
                "policy": of.policy,
                "work": of.work(),
                "throughput": distribution(&of.throughput),
                "felt_waits": felt_waits(&of.felt),
                "by_interrupts": groups(&of.interrupts),
                "by_programs": groups(&of.programs),
                "longest_waits_ns": distribution(&of.longest_waits),
                "skew": distribution(&of.skew),
                "share_error": distribution(&of.share_error),
                "misses": misses(&of.misses),
                "never_worse": of.is_never_worse(),
                "behind_best_by_3_percent": of.counts.behind_best,
                "share_off_by_2_percent": of.counts.share_off_by_2_percent,
                "accelerations": of.accelerations,
            })
        })
        .collect();
    let of_vm = |felt: &regret::FeltTimes| -> serde_json::Map<String, Json> {
        FELT_WAITS.iter().map(|&wait| (wait.word().to_owned(), json!(felt.ns(wait)))).collect()
    };
    let of_scenario = |(at, result): (usize, &ScenarioResult)| {
        let by_policy: serde_json::Map<String, Json> = all
            .iter()
            .zip(&result.outcomes)
            .map(|(of, outcome)| {
                let verdict = &of.verdicts[at];
                let numbers = json!({
                    "throughput": verdict.throughput,
                    "felt_waits_ns": outcome.felt.iter().map(of_vm).collect::<Vec<_>>(),
                    "share_error": verdict.share_error,
                    "accelerations": outcome.accelerations,
                });
                (of.policy.clone(), numbers)
            })
            .collect();
        json!({
            "seed": result.seed, "interrupts": result.interrupts, "programs": result.programs, "policies": by_policy,
        })
    };
    json!({
        "first_seed": regret.first_seed,
        "scenarios": results.len(),
                "policies": policies,
        "by_scenario": results.iter().enumerate().map(of_scenario).collect::<Vec<_>>(),
    })
}

fn page(headline: &str, all: &[Summary]) -> String {
    let mut page = Page::new("Regret: policies on programs that nobody chose");
    page.paragraph(headline);
    page.plots(&[chart("Work", all, |of| &of.throughput).to_svg()]);
    for (title, table) in tables(all) {
        page.heading(title);
        page.table(&table);
    }
    page.heading("Worst scenarios (seeds)");
    page.table(&worst_table(all));
    page.render()
}

/// A group of bars for each policy: from its least scenario to its best one.
fn chart(title: &str, all: &[Summary], of: fn(&Summary) -> &Distribution) -> BarChart {
    let bar = |value| Bar { value, interval: None, published: None };
    let series = QUANTILES.map(|(name, part)| BarSeries {
        name: name.trim_start_matches('>').to_owned(),
        bars: all.iter().map(|summary| of(summary).quantile(part).map(bar)).collect(),
    });
    BarChart {
        title: title.to_owned(),
        y_label: "times the first policy's".to_owned(),
        categories: all.iter().map(|summary| summary.policy.clone()).collect(),
        series: series.into(),
        reference: Some(1.0),
        logarithmic: true,
        ..BarChart::default()
    }
}
