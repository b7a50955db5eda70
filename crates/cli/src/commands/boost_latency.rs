//! `microslice boost-latency`: what a boost takes on this host, for its operator and for the simulator.

use crate::failure::Failure;
use crate::interrupt;
use crate::output::{self, OutputFile};
use clap::Args;
use microslice_host::beside::latency::{self, Means, Measured, Plan};
use microslice_metrics::table::Table;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// More would leave the boosted thread hardly a moment in which it isn't.
const BOOSTED_PERCENT_MAX: u64 = 50;
/// Of the normal distribution: 90 % lie below so many standard deviations.
const SIGMAS_OF_P90: f64 = 1.2816;

/// How soon a thread runs that `run --scheduler beside` boosts on this host, and what the helper needs
#[derive(Args)]
#[command(after_help = "Examples:
  microslice boost-latency                                 ten seconds, a thousand boosts in each
  microslice boost-latency --output boosts.toml            for scenarios: [host] boosts = \"boosts.toml\"
  microslice boost-latency --deadline                      SCHED_DEADLINE in place of SCHED_FIFO
  microslice boost-latency --group /sys/fs/cgroup/vm       of a thread in that control group

A thread of this process is boosted, with no guest and no BPF program, while others keep all pCPUs busy. Needs
CAP_SYS_NICE, and two pCPUs.")]
pub struct BoostLatency {
    /// How long it is measured
    #[arg(long, value_name = "SEC", default_value_t = 10.0)]
    seconds: f64,
    /// Boosts a second
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// Length of a boost
    #[arg(long, value_name = "US", default_value_t = 100, value_parser = clap::value_parser!(u64).range(10..=100_000))]
    micro_slice_us: u64,
    /// Boost by SCHED_DEADLINE, which `run --scheduler beside` does only where the kernel refuses SCHED_FIFO
    #[arg(long)]
    deadline: bool,
    /// Boost a thread of this control group
    #[arg(long, value_name = "FOLDER")]
    group: Option<PathBuf>,
    /// What was measured as JSON
    #[arg(long)]
    json: bool,
    /// Write what the simulator's hosts take as their `boosts` to this file
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub fn run(args: BoostLatency) -> Result<(), Failure> {
    let plan = plan_of(&args)?;
    let file = OutputFile::wanted(args.output.as_deref(), &[])?;
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    interrupt::on_signal(Some(interrupt::GRACE), move || flag.store(true, Ordering::Relaxed))?;
    let measured = latency::measure(&plan, &stop);
    let measured = measured.map_err(|error| {
        if error.is_refusal() { Failure::bad_input(error) } else { Failure::broken(error) }
    })?;
    if stop.load(Ordering::Relaxed) {
        return Err(Failure::interrupted());
    }
    let figures = Figures::of(&measured);
    if figures.ran.is_empty() {
        return Err(Failure::broken(format_args!(
            "none of {} boosts was seen from its request to its end ({} came to nothing): measure for longer",
            measured.boosts, measured.missed
        )));
    }
    if let Some(file) = file {
        file.finish_with(&to_scenario(&args, &measured, &figures))?;
    }
    if args.json {
        return output::print(&format!("{}\n", to_json(&args, &measured, &figures)));
    }
    output::print(&to_text(&measured, &figures))
}

fn plan_of(args: &BoostLatency) -> Result<Plan, Failure> {
    if !(0.1..=3600.0).contains(&args.seconds) {
        return Err(Failure::bad_input(format_args!("--seconds {}: allowed: 0.1 to 3600", args.seconds)));
    }
    let boosted_percent = u64::from(args.rate) * args.micro_slice_us / 10_000;
    if boosted_percent > BOOSTED_PERCENT_MAX {
        return Err(Failure::bad_input(format_args!(
            "--rate {} --micro-slice-us {}: the thread would be boosted for {boosted_percent} % of the time; at most \
             {BOOSTED_PERCENT_MAX} % are measured",
            args.rate, args.micro_slice_us
        )));
    }
    Ok(Plan {
        duration: Duration::from_secs_f64(args.seconds),
        rate: args.rate,
        slice: Duration::from_micros(args.micro_slice_us),
        means: if args.deadline { Means::Deadline } else { Means::RealTime },
        group: args.group.clone(),
    })
}

/// Times in nanoseconds, in ascending order.
struct Figures {
    heard: Vec<u64>,
    ran: Vec<u64>,
    back: Vec<u64>,
}

impl Figures {
    fn of(measured: &Measured) -> Self {
        let sorted = |of: fn(&latency::Boosted) -> u64| {
            let mut times: Vec<_> = measured.boosted.iter().map(of).collect();
            times.sort_unstable();
            times
        };
        Self {
            heard: sorted(|boost| boost.heard),
            ran: sorted(|boost| boost.ran),
            back: sorted(|boost| boost.back),
        }
    }

    fn named(&self) -> [(&'static str, &[u64]); 3] {
        [
            ("request until the helper heard", &self.heard),
            ("request until it ran", &self.ran),
            ("the way back", &self.back),
        ]
    }
}

/// The least time that so many per cent don't exceed, in us; 0 of none.
fn percentile_us(sorted: &[u64], percent: f64) -> f64 {
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).map_or(0.0, |&ns| ns as f64 / 1000.0)
}

const PERCENTILES: [(&str, f64); 5] =
    [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p999", 99.9), ("max", 100.0)];

/// Median (us) and sigma of the log-normal distribution that has this median and this p90.
fn log_normal(sorted: &[u64]) -> (f64, f64) {
    let (median, p90) = (percentile_us(sorted, 50.0), percentile_us(sorted, 90.0));
    let sigma = if median > 0.0 { (p90 / median).ln() / SIGMAS_OF_P90 } else { 0.0 };
    (median, sigma)
}

fn means_of(measured: &Measured) -> &'static str {
    match measured.by_deadline {
        0 => "SCHED_FIFO",
        count if count == measured.boosts => "SCHED_DEADLINE",
        _ => "SCHED_FIFO and SCHED_DEADLINE",
    }
}

fn kernel() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let known = |c: &char| c.is_ascii_alphanumeric() || "-_.+".contains(*c);
    release.chars().filter(known).collect()
}

/// What `boosts` of a host is (docs/reference/scenarios.md).
fn to_scenario(args: &BoostLatency, measured: &Measured, figures: &Figures) -> String {
    let (median, sigma) = log_normal(&figures.ran);
    let of = |times: &[u64]| {
        PERCENTILES.map(|(name, percent)| format!("{name} {:.1}", percentile_us(times, percent))).join(", ")
    };
    let BoostLatency { seconds, rate, micro_slice_us, .. } = args;
    format!(
        "description = \"What a boost takes on a host\"\n\
         source = \"microslice boost-latency --seconds {seconds} --rate {rate} --micro-slice-us {micro_slice_us}: Linux {}, {} pCPUs, \
         {} boosts by {}; others had {:.0} % of the pCPUs\"\n\
         comment = \"measured in us: request until it ran {}; the way back {}\"\n\
         fitted_to = \"median and p90\"\n\
         latency = \"lognormal {median:.1} us sigma {sigma:.2}\"\n\
         give_back = \"{:.1} us\"\n\
         helper = \"{:.1} us\"\n",
        kernel(),
        measured.pcpus,
        figures.ran.len(),
        means_of(measured),
        measured.others * 100.0,
        of(&figures.ran),
        of(&figures.back),
        percentile_us(&figures.back, 50.0),
        measured.helper_ns_per_boost() / 1000.0,
    )
}

fn to_json(args: &BoostLatency, measured: &Measured, figures: &Figures) -> Value {
    let percentiles = |times: &[u64]| {
        let mut all = serde_json::Map::new();
        all.insert("count".into(), times.len().into());
        all.extend(
            PERCENTILES.map(|(name, percent)| (name.to_owned(), json!(percentile_us(times, percent)))),
        );
        Value::Object(all)
    };
    let (median, sigma) = log_normal(&figures.ran);
    json!({
        "kernel": kernel(),
        "pcpus": measured.pcpus,
        "seconds": measured.seconds,
        "rate": args.rate,
        "micro_slice_us": args.micro_slice_us,
        "means": means_of(measured),
        "boosts": measured.boosts,
        "returns": measured.returns,
        "missed": measured.missed,
        "refused": measured.refused,
        "heard_us": percentiles(&figures.heard),
        "ran_us": percentiles(&figures.ran),
        "back_us": percentiles(&figures.back),
        "log_normal": { "median_us": median, "sigma": sigma },
        "helper": {
            "ran_ns": measured.helper_ns,
            "us_per_boost": measured.helper_ns_per_boost() / 1000.0,
            "percent_of_a_pcpu_at_1000_a_second": measured.helper_ns_per_boost() / 1e4,
        },
        "others_had": measured.others,
    })
}

fn to_text(measured: &Measured, figures: &Figures) -> String {
    let mut columns = vec!["us"];
    columns.extend([">p50", ">p90", ">p99", ">p99.9", ">max"]);
    let mut table = Table::new(&columns);
    for (name, times) in figures.named() {
        let times = PERCENTILES.map(|(_, percent)| format!("{:.1}", percentile_us(times, percent)));
        table.row(std::iter::once(name.to_owned()).chain(times));
    }
    let (median, sigma) = log_normal(&figures.ran);
    format!(
        "{table}\n\
         boosts   {} by {}, {} taken back, {} seen to their end, {} came to nothing, {} refused; {:.0} a second\n\
         helper   {:.1} us of a pCPU per boost: {:.2} % of one per 1,000 boosts a second\n\
         fit      lognormal {median:.1} us sigma {sigma:.2}, to the median and the p90 until it ran\n\
         others   had {:.0} % of the time of {} pCPUs\n",
        measured.boosts,
        means_of(measured),
        measured.returns,
        figures.ran.len(),
        measured.missed,
        measured.refused,
        measured.boosts as f64 / measured.seconds,
        measured.helper_ns_per_boost() / 1000.0,
        measured.helper_ns_per_boost() / 1e4,
        measured.others * 100.0,
        measured.pcpus,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use latency::Boosted;

    fn measured() -> Measured {
        let boosted = (1..=100).map(|at| Boosted { heard: at, ran: at * 1000, back: at * 100 }).collect();
        Measured { boosted, boosts: 100, returns: 100, helper_ns: 600_000, pcpus: 2, ..Measured::default() }
    }

    fn args() -> BoostLatency {
        BoostLatency {
            seconds: 1.0,
            rate: 1000,
            micro_slice_us: 100,
            deadline: false,
            group: None,
            json: false,
            output: None,
        }
    }

    #[test]
    fn a_percentile_is_a_time_that_was_measured() {
        let times: Vec<u64> = (1..=100).map(|at| at * 1000).collect();
        assert_eq!([50.0, 99.0, 100.0].map(|percent| percentile_us(&times, percent)), [50.0, 99.0, 100.0]);
        assert_eq!((percentile_us(&[7000], 1.0), percentile_us(&[], 50.0)), (7.0, 0.0));
    }

    #[test]
    fn the_fit_has_the_median_and_the_p90() {
        let times: Vec<u64> = (1..=100).map(|at| at * 1000).collect();
        let (median, sigma) = log_normal(&times);
        assert!((median * (sigma * SIGMAS_OF_P90).exp() - 90.0).abs() < 1e-9, "{median} {sigma}");
    }

    #[test]
    fn a_scenarios_host_takes_the_file_as_it_is_written() {
        use microslice_experiments::scenario::{Overrides, load};
        use microslice_model::config::{BoostCosts, Duration};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("boosts.toml");
        let text = to_scenario(&args(), &measured(), &Figures::of(&measured()));
        std::fs::write(&path, &text).unwrap();
        let settings = vec![("host.boosts".to_owned(), path.display().to_string())];
        let overrides = Overrides { policy: Some("beside".into()), settings, seed: None };
        let scenario = load("dedup-swaptions", &overrides).unwrap_or_else(|error| panic!("{error}: {text}"));
        let latency = Duration::LogNormal { median_ns: 50_000, sigma_permille: 460 };
        assert_eq!(
            scenario.config.host.boosts,
            BoostCosts { latency, give_back_ns: 5_000, helper_ns: 6_000 }
        );
    }

    #[test]
    fn a_thread_that_is_boosted_most_of_the_time_is_not_measured() {
        let refused = plan_of(&BoostLatency { rate: 10_000, ..args() }).unwrap_err().to_string();
        assert!(refused.starts_with("--rate 10000 --micro-slice-us 100: "), "{refused}");
        assert!(plan_of(&BoostLatency { seconds: f64::NAN, ..args() }).is_err());
    }
}
