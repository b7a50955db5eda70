//! Uhlig et al., VM'04: what its published numbers and the shapes of its plots are in simulated runs.

mod plots;
mod recovery;
mod stealing;

use super::Reproduction;
use super::runs::{Experiment, RunTable, mean, target};
use super::study::{Shape, Study};
use microslice_engine::report::{BalanceSample, GuestTimes, RunReport};
use microslice_experiments::scenario::{Overrides, load};
use microslice_metrics::html::Page;
use microslice_model::config::{DelayPreemptionConfig, GuestKernelConfig, SchedulerKind, SimulationConfig};

const PLAIN: &str = "stride";
const SAFE: &str = "stride+delay_preemption=1 ms";
const HINTED: &str = "stride+delay_preemption=1 ms+delay_unsafe=hinted";
/// 8,000 cycles of 700 MHz.
const SAFE_POINTS: &str = "stride+delay_preemption=1 ms+delay_safe_points=11430 ns";

const POVRAY: &str = "vm04-povray";
const APACHE: &str = "vm04-apache2";
const BUILD: &str = "vm04-build";
const WEB: &str = "vm04-web";
const BALLOON: &str = "vm04-balloon";

/// "Often": in so many of all configurations, our number.
const OFTEN: f64 = 1.0 / 3.0;
/// "On par": within so much, our number.
const ON_PAR: f64 = 0.03;
const MS: u64 = 1_000_000;
/// Of the experiment of Figure 9: B runs between these, and A has settled.
const B_RUNS_NS: [u64; 2] = [10_000 * MS, 34_000 * MS];

/// Uhlig et al.: towards scalable multiprocessor virtual machines.
#[derive(Debug)]
pub struct Vm04;

impl Study for Vm04 {
    fn name(&self) -> &'static str {
        "vm04"
    }

    fn title(&self) -> &'static str {
        "VM'04"
    }

    fn paper(&self) -> &'static str {
        r#"Uhlig et al., "Towards Scalable Multiprocessor Virtual Machines""#
    }

    fn numbers(&self) -> &'static str {
        "paper-results/vm04.toml"
    }

    fn kinds(&self) -> &'static str {
        "Calibrated: the programs were fitted to it (what locks and kernels do alone, and how much a web server loses at \
             most), or it is a parameter. Predicted: nothing was fitted to it."
    }

    fn groups_without_numbers(&self) -> &'static [&'static str] {
        &["table2", "figure2", "figure3", "section4", "figure6", "figure7", "figure8"]
    }

    fn unit(&self, id: &str) -> &'static str {
        let last = id.rsplit('.').next().unwrap_or_default();
        match last {
            _ if id.starts_with("table1") || last.ends_with("_us") && id.starts_with("parameters") => "us",
            _ if last.ends_with("_ms") => "ms",
            "safe_point_injection_cycles" => "cycles",
            _ => "ratio",
        }
    }

    /// All but what Figures 7 and 8 show.
    fn is_calibrated(&self, id: &str) -> bool {
        !id.ends_with("extended_lock_hold_and_wait_with_avoidance")
    }

    fn experiments_of(&self, group: &str) -> Vec<Experiment> {
        let plain = |scenario: &str| Experiment::new(scenario, PLAIN);
        let traced = || [POVRAY, APACHE, BUILD].map(plain).to_vec();
        match group {
            "table1" | "table2" | "section2" | "section3" | "figure2" | "figure3" => traced(),
            "section5" | "figure6" | "figure7" | "figure8" => {
                let forced =
                    [SAFE, SAFE_POINTS].map(|policy| Experiment::new(&format!("{APACHE}-load"), policy));
                let bars = PCPUS.iter().flat_map(|&pcpus| {
                    SHARES.iter().flat_map(move |&share| Scheme::ALL.map(|scheme| web(scheme, pcpus, share)))
                });
                bars.chain(forced).collect()
            }
            "section4" => stealing::experiments(),
            "figure9" => Guest::ALL.map(balloon).to_vec(),
            _ => Vec::new(),
        }
    }

    fn measure(&self, id: &str, runs: &RunTable) -> Vec<f64> {
        let parts: Vec<&str> = id.split('.').collect();
        let traced = |scenario: &str, value: fn(&GuestTimes) -> f64| {
            runs.each(scenario, PLAIN, |report| value(times(report)))
        };
        match parts.as_slice() {
            ["table1", program, number] => {
                let scenario = if *program == "povray" { POVRAY } else { APACHE };
                match *number {
                    "avg" => {
                        traced(scenario, |times| times.lock_holds.mean().map_or(f64::NAN, |ns| ns / 1e3))
                    }
                    _ => traced(scenario, |times| {
                        times.lock_holds.max().map_or(f64::NAN, |ns| ns as f64 / 1e3)
                    }),
                }
            }
            ["section2", "probability_preempted_while_holding", which] => {
                // Of the traced runs, as the paper has it: the part of the time that a vCPU holds a lock.
                let scenario = if *which == "cpu_bound" { POVRAY } else { APACHE };
                runs.each(scenario, PLAIN, |report| {
                    times(report).lock_holds.sum() as f64
                        / (report.measured_ns as f64 * target(report).vcpus as f64)
                })
            }
            ["section2", "holds_below_20us"] => {
                let both = [POVRAY, APACHE]
                    .map(|scenario| traced(scenario, |times| part_up_to(&times.lock_holds, 20)));
                both[0].iter().zip(&both[1]).map(|(left, right)| left.min(*right)).collect()
            }
            ["section3", "unsafe_time", number] => unsafe_time(number, &traced),
            ["parameters", name] => parameter(name).into_iter().collect(),
            ["section5", "web_throughput_gain_max"] => gain_max(runs),
            ["section5", "extended_lock_hold_and_wait_with_avoidance"] => extended_with_avoidance(runs),
            ["figure9", ..] => runs.of(&balloon(Guest::Balloons), share_on_first_pcpu),
            _ => Vec::new(),
        }
    }

    fn shapes(&self, runs: &RunTable) -> Vec<Shape> {
        let [balloons, plain, today] =
            Guest::ALL.map(|guest| mean(&runs.of(&balloon(guest), threads_on_first_pcpu)));
        vec![
            avoidance_shape(runs),
            on_par_shape(runs),
            yield_shape(runs, Scheme::PessimisticYield),
            extended_shape(runs, "held", extended_holds),
            extended_shape(runs, "waited for", extended_waits),
            waits_grow_shape(runs),
            unsafe_shape(runs),
            safe_point_shape(runs),
            Shape {
                claim: "Figure 9: balloons move threads off the slow vCPU, which is due 2.3 of 10".to_owned(),
                // Queues that differ by a quarter are let be: three threads and six balloons beside seven
                // threads.
                holds: balloons.zip(plain).map(|(with, without)| with < 3.5 && without > 4.5),
                seen: balloons.zip(plain).map_or(String::new(), |(with, without)| {
                    format!("{with:.1} threads with balloons, {without:.1} without")
                }),
            },
            Shape {
                claim: "Figure 9: a kernel of today moves them by itself".to_owned(),
                holds: today.map(|threads| threads < 3.5),
                seen: today.map_or(String::new(), |threads| format!("{threads:.1} threads")),
            },
            recovery::shape(runs),
            stealing::shape(runs),
        ]
    }

    fn draw(&self, page: &mut Page, reproduction: &Reproduction) {
        plots::draw(page, reproduction);
    }
}

/// A bar of Figures 6 to 8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    Spin,
    DelayedPreemption,
    SafeStates,
    PessimisticYield,
    OptimisticYield,
}

impl Scheme {
    pub const ALL: [Self; 5] = [
        Self::Spin,
        Self::DelayedPreemption,
        Self::SafeStates,
        Self::PessimisticYield,
        Self::OptimisticYield,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Spin => "spinlocks",
            Self::DelayedPreemption => "delayed preemption (hints)",
            Self::SafeStates => "safe states",
            Self::PessimisticYield => "pessimistic yield",
            Self::OptimisticYield => "optimistic yield",
        }
    }
}

/// pCPUs, and a web server's share of them in per cent.
pub const PCPUS: [u32; 3] = [2, 3, 4];
pub const SHARES: [u32; 4] = [15, 20, 25, 33];
/// How many processes each vCPU has.
const PROCESSES: u32 = 14;

/// One bar of Figure 6.
pub fn web(scheme: Scheme, pcpus: u32, share: u32) -> Experiment {
    let policy = match scheme {
        Scheme::DelayedPreemption => HINTED,
        Scheme::SafeStates => SAFE,
        _ => PLAIN,
    };
    let mut experiment = Experiment::new(WEB, policy)
        .set("host.pcpus", pcpus)
        .set("vm.load.vcpus", pcpus)
        .set("vm.load.weight", 1000 - 20 * share);
    for vm in ["web-1", "web-2"] {
        let of_vm = |key: &str| format!("vm.{vm}.{key}");
        experiment = experiment.set(&of_vm("vcpus"), pcpus).set(&of_vm("weight"), 10 * share);
        experiment = experiment.set(&of_vm("workloads.webserver.threads"), PROCESSES * pcpus);
        experiment = match scheme {
            Scheme::DelayedPreemption => experiment.set(&of_vm("kernel.preemption_hint"), "\"1 ms\""),
            Scheme::PessimisticYield => experiment.set(&of_vm("kernel.lock_kind"), "\"yield\""),
            Scheme::OptimisticYield => experiment.set(&of_vm("kernel.lock_kind"), "\"spin-yield\""),
            Scheme::Spin | Scheme::SafeStates => experiment,
        };
    }
    experiment
}

/// A guest of Figure 9: balancing by queue length with and without balloons, and what a kernel of today does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guest {
    Balloons,
    Plain,
    Today,
}

impl Guest {
    pub const ALL: [Self; 3] = [Self::Balloons, Self::Plain, Self::Today];

    pub fn name(self) -> &'static str {
        match self {
            Self::Balloons => "with balloons",
            Self::Plain => "without",
            Self::Today => "today's, by capacity",
        }
    }
}

pub fn balloon(guest: Guest) -> Experiment {
    let experiment = Experiment::new(BALLOON, PLAIN);
    let without = |experiment: Experiment| experiment.set("vm.a.kernel.balloons", false);
    match guest {
        Guest::Balloons => experiment,
        Guest::Plain => without(experiment),
        Guest::Today => without(experiment).set("vm.a.kernel.balance", "\"capacity\""),
    }
}

/// Of a traced program one value per seed.
type Traced<'a> = &'a dyn Fn(&str, fn(&GuestTimes) -> f64) -> Vec<f64>;

fn unsafe_time(number: &str, traced: Traced<'_>) -> Vec<f64> {
    match number {
        "apache2_avg_ms" => traced(APACHE, |times| times.unsafe_times.mean().map_or(f64::NAN, |ns| ns / 1e6)),
        "apache2_stddev_ms" => traced(APACHE, GuestTimes::unsafe_deviation_ms),
        "apache2_below_200us" => traced(APACHE, |times| part_up_to(&times.unsafe_times, 200)),
        "apache2_below_1ms" => traced(APACHE, |times| part_up_to(&times.unsafe_times, 1_000)),
        "povray_below_20us" => traced(POVRAY, |times| part_up_to(&times.unsafe_times, 20)),
        "apache2_time_in_safe_state" => traced(APACHE, |times| {
            times.safe_ns as f64 / (times.safe_ns as f64 + times.unsafe_times.sum() as f64)
        }),
        "safe_point_injection_cycles" => safe_point_cycles().into_iter().collect(),
        _ => Vec::new(),
    }
}

/// Of a run whose scenario asks for it.
fn times(report: &RunReport) -> &GuestTimes {
    target(report).guest_times.as_ref().expect("the scenario has `guest_times`")
}

/// Which part of the times is at most so many us.
fn part_up_to(times: &microslice_metrics::Histogram, us: u64) -> f64 {
    times.count_up_to(us * 1_000) as f64 / times.count() as f64
}

fn configured(scenario: &str, policy: &str) -> Option<SimulationConfig> {
    let overrides = Overrides { policy: Some(policy.to_owned()), ..Overrides::default() };
    load(scenario, &overrides).ok().map(|scenario| scenario.config)
}

fn safe_point_cycles() -> Option<f64> {
    let delay: DelayPreemptionConfig = configured(WEB, SAFE_POINTS)?.delay?;
    // 0.7 cycles a nanosecond.
    Some((delay.safe_point_ns? as f64 * 0.7).round())
}

/// The paper's parameters, read back from the policies and the kernel that have them.
fn parameter(name: &str) -> Option<f64> {
    let config = configured(WEB, SAFE)?;
    match (name, &config.scheduler) {
        ("slice_ms", SchedulerKind::Stride(stride)) => Some(stride.slice_ns as f64 / 1e6),
        ("preemption_window_ms", _) => Some(config.delay?.window_ns as f64 / 1e6),
        ("optimistic_yield_spin_us", _) => {
            let kernel: &GuestKernelConfig = &config.vms[0].kernel;
            Some(kernel.yield_spin_ns as f64 / 1e3)
        }
        _ => None,
    }
}

/// Files a second of both web servers.
pub fn web_throughput(report: &RunReport) -> f64 {
    report.vms[..2].iter().flat_map(|vm| &vm.workloads).map(|workload| workload.units_per_s).sum()
}

/// Wall-clock time of locks held for longer than a millisecond, by that of a web server's vCPUs.
pub fn extended_holds(report: &RunReport) -> f64 {
    extended(report, |times| times.extended_holds_ns)
}

/// Likewise, of waits for them.
pub fn extended_waits(report: &RunReport) -> f64 {
    extended(report, |times| times.extended_waits_ns)
}

fn extended(report: &RunReport, value: fn(&GuestTimes) -> u64) -> f64 {
    let vm = target(report);
    value(times(report)) as f64 / (report.measured_ns as f64 * vm.vcpus as f64)
}

fn configurations() -> impl Iterator<Item = (u32, u32)> {
    PCPUS.into_iter().flat_map(|pcpus| SHARES.map(|share| (pcpus, share)))
}

/// Of all configurations the greatest gain over plain spinlocks, seed by seed.
fn gain_max(runs: &RunTable) -> Vec<f64> {
    let gains = configurations().flat_map(|(pcpus, share)| {
        let of = |scheme| runs.of(&web(scheme, pcpus, share), web_throughput);
        let plain = of(Scheme::Spin);
        [Scheme::DelayedPreemption, Scheme::SafeStates].map(|scheme| {
            of(scheme).iter().zip(&plain).map(|(with, without)| with / without - 1.0).collect::<Vec<f64>>()
        })
    });
    greatest(gains)
}

/// Seed by seed.
fn greatest(values: impl Iterator<Item = Vec<f64>>) -> Vec<f64> {
    values
        .reduce(|left, right| left.iter().zip(&right).map(|(left, right)| left.max(*right)).collect())
        .unwrap_or_default()
}

fn extended_with_avoidance(runs: &RunTable) -> Vec<f64> {
    greatest(configurations().flat_map(|(pcpus, share)| {
        [Scheme::DelayedPreemption, Scheme::SafeStates].into_iter().flat_map(move |scheme| {
            let of = |value: fn(&RunReport) -> f64| runs.of(&web(scheme, pcpus, share), value);
            [of(extended_holds), of(extended_waits)]
        })
    }))
}

/// What A polled while B ran.
fn while_b_runs(report: &RunReport) -> impl Iterator<Item = &BalanceSample> {
    let runs = |sample: &&BalanceSample| (B_RUNS_NS[0]..B_RUNS_NS[1]).contains(&sample.time_ns);
    report.vms[0].balance.iter().filter(runs)
}

/// What A had of pCPU 0 while B ran.
fn share_on_first_pcpu(report: &RunReport) -> f64 {
    let samples: Vec<_> = while_b_runs(report).collect();
    match (samples.first(), samples.last()) {
        (Some(first), Some(last)) => {
            (last.run_ns[0] - first.run_ns[0]) as f64 / (last.time_ns - first.time_ns) as f64
        }
        _ => f64::NAN,
    }
}

/// A's threads on its slow vCPU while B ran, on average.
fn threads_on_first_pcpu(report: &RunReport) -> f64 {
    let (mut sum, mut count) = (0, 0);
    for sample in while_b_runs(report) {
        (sum, count) = (sum + sample.threads[0], count + 1);
    }
    sum as f64 / f64::from(count)
}

/// Mean throughputs of all configurations under a scheme.
fn throughputs(runs: &RunTable, scheme: Scheme) -> Option<Vec<f64>> {
    configurations()
        .map(|(pcpus, share)| mean(&runs.of(&web(scheme, pcpus, share), web_throughput)))
        .collect()
}

fn of_plain(runs: &RunTable, scheme: Scheme) -> Option<Vec<f64>> {
    let (with, plain) = (throughputs(runs, scheme)?, throughputs(runs, Scheme::Spin)?);
    Some(with.iter().zip(plain).map(|(with, plain)| with / plain).collect())
}

fn range(ratios: &[f64]) -> (f64, f64) {
    (ratios.iter().copied().fold(f64::INFINITY, f64::min), ratios.iter().copied().fold(0.0, f64::max))
}

fn avoidance_shape(runs: &RunTable) -> Shape {
    let ratios = of_plain(runs, Scheme::DelayedPreemption);
    let held = |ratios: &Vec<f64>| {
        let (least, most) = range(ratios);
        least > 1.0 - ON_PAR && most > 1.1 && most < 1.5
    };
    Shape {
        claim: "Figure 6: avoiding preempted holders beats plain spinlocks, by up to a quarter or so"
            .to_owned(),
        holds: ratios.as_ref().map(held),
        seen: ratios.map_or(String::new(), |ratios| {
            let (least, most) = range(&ratios);
            format!("{least:.2} to {most:.2} times their throughput")
        }),
    }
}

fn on_par_shape(runs: &RunTable) -> Shape {
    let ratios = throughputs(runs, Scheme::SafeStates).zip(throughputs(runs, Scheme::DelayedPreemption));
    let ratios = ratios.map(|(safe, hinted)| {
        safe.iter().zip(hinted).map(|(safe, hinted)| safe / hinted).collect::<Vec<_>>()
    });
    Shape {
        claim: "Figure 6: safe states are on par with hints".to_owned(),
        holds: ratios.as_ref().map(|ratios| {
            let (least, most) = range(ratios);
            least > 1.0 - ON_PAR && most < 1.0 + ON_PAR
        }),
        seen: ratios.map_or(String::new(), |ratios| {
            let (least, most) = range(&ratios);
            format!("{least:.2} to {most:.2} times their throughput")
        }),
    }
}

fn yield_shape(runs: &RunTable, scheme: Scheme) -> Shape {
    let ratios = of_plain(runs, scheme);
    let worse = |ratios: &[f64]| ratios.iter().filter(|ratio| **ratio < 1.0).count();
    Shape {
        claim: format!("Figure 6: {} locks are often worse than plain spinlocks", scheme.name()),
        holds: ratios.as_ref().map(|ratios| worse(ratios) as f64 >= OFTEN * ratios.len() as f64),
        seen: ratios.map_or(String::new(), |ratios| {
            let (least, most) = range(&ratios);
            format!(
                "in {} of {} configurations; {least:.2} to {most:.2} times their throughput",
                worse(&ratios),
                ratios.len()
            )
        }),
    }
}

/// The greatest of all configurations' means.
fn most(runs: &RunTable, scheme: Scheme, value: fn(&RunReport) -> f64) -> Option<f64> {
    let each: Option<Vec<f64>> =
        configurations().map(|(pcpus, share)| mean(&runs.of(&web(scheme, pcpus, share), value))).collect();
    each.map(|each| range(&each).1)
}

fn extended_shape(runs: &RunTable, what: &str, value: fn(&RunReport) -> f64) -> Shape {
    let parts: Option<Vec<f64>> = Scheme::ALL.into_iter().map(|scheme| most(runs, scheme, value)).collect();
    Shape {
        claim: format!(
            "Figures 7 and 8: with avoidance locks are {what} for long in less than 1 % of the time, with all others in more"
        ),
        holds: parts.as_ref().map(|parts| {
            parts[1] < 0.01 && parts[2] < 0.01 && [0, 3, 4].into_iter().all(|other| parts[other] > 0.01)
        }),
        seen: parts.map_or(String::new(), |parts| {
            let list: Vec<String> = parts.iter().map(|part| format!("{:.2} %", 100.0 * part)).collect();
            format!("spin, hints, safe states, yields: {}", list.join(", "))
        }),
    }
}

fn waits_grow_shape(runs: &RunTable) -> Shape {
    let waits: Option<Vec<f64>> = PCPUS
        .into_iter()
        .map(|pcpus| mean(&runs.of(&web(Scheme::Spin, pcpus, SHARES[0]), extended_waits)))
        .collect();
    Shape {
        claim: "Figure 8: plain spinlocks are waited for the longer, the more processors there are"
            .to_owned(),
        holds: waits.as_ref().map(|waits| waits.is_sorted()),
        seen: waits.map_or(String::new(), |waits| {
            let list: Vec<String> = waits.iter().map(|part| format!("{:.1} %", 100.0 * part)).collect();
            format!("with 2, 3, 4 at 15 %: {}", list.join(", "))
        }),
    }
}

fn unsafe_shape(runs: &RunTable) -> Shape {
    let means = |scenario: &str| {
        let of = |value: fn(&GuestTimes) -> Option<f64>| {
            mean(&runs.each(scenario, PLAIN, |report| value(times(report)).map_or(f64::NAN, |ns| ns / 1e3)))
        };
        of(|times| times.unsafe_times.mean()).zip(of(|times| times.lock_holds.mean()))
    };
    let seen = means(BUILD).zip(means(APACHE));
    Shape {
        claim: "Figure 2: a kernel build's unsafe times are less than 10 us longer than its locks', Apache's three orders of magnitude".to_owned(),
        holds: seen.map(|((unsafe_us, lock_us), (apache_us, apache_lock_us))| {
            unsafe_us < lock_us + 10.0 && (apache_us / apache_lock_us).log10().round() >= 3.0
        }),
        seen: seen.map_or(String::new(), |((unsafe_us, lock_us), (apache_us, apache_lock_us))| {
            format!("build {unsafe_us:.1} and {lock_us:.1} us, Apache {apache_us:.0} and {apache_lock_us:.1} us")
        }),
    }
}

/// What the paper proposes for forced preemptions, and doesn't measure.
fn safe_point_shape(runs: &RunTable) -> Shape {
    let scenario = format!("{APACHE}-load");
    let forced = |policy: &str| {
        mean(&runs.each(&scenario, policy, |report| {
            let delays = report.delays.unwrap_or_default();
            delays.ended_forced as f64 / (delays.ended_forced + delays.ended_safe).max(1) as f64
        }))
    };
    let parts = forced(SAFE).zip(forced(SAFE_POINTS));
    Shape {
        claim:
            "3.3: where a guest is hardly ever safe, safe points that are put in spare it forced preemptions"
                .to_owned(),
        holds: parts.map(|(without, with)| without > 0.5 && with < 0.75 * without),
        seen: parts.map_or(String::new(), |(without, with)| {
            format!(
                "Apache as traced: {:.0} % of put-off preemptions are forced, {:.0} % with safe points",
                100.0 * without,
                100.0 * with
            )
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduction::published::{group_of, published};

    #[test]
    fn all_experiments_exist_and_have_the_papers_host() {
        for group in ["table1", "section2", "section3", "section4", "section5", "figure9"] {
            let experiments = Vm04.experiments_of(group);
            assert!(!experiments.is_empty(), "{group}");
            for experiment in experiments {
                let config = load(&experiment.scenario, &experiment.overrides()).expect("built in").config;
                assert!(config.host.pcpus <= 4 && !config.host.ple.enabled, "{experiment:?}");
                assert!(matches!(config.scheduler, SchedulerKind::Stride(_)));
            }
        }
    }

    #[test]
    fn parameters_are_the_papers() {
        for number in published(&Vm04).into_iter().filter(|number| group_of(&number.id) == "parameters") {
            assert_eq!(Vm04.measure(&number.id, &RunTable::default()), [number.value], "{}", number.id);
        }
        assert_eq!(safe_point_cycles(), Some(8001.0), "a nanosecond is the least");
    }

    #[test]
    fn web_servers_have_the_shares_that_they_should() {
        for (pcpus, share) in configurations() {
            let experiment = web(Scheme::Spin, pcpus, share);
            let config = load(&experiment.scenario, &experiment.overrides()).expect("built in").config;
            let weights: Vec<u32> = config.vms.iter().map(|vm| vm.weight).collect();
            assert_eq!(weights.iter().sum::<u32>(), 1000);
            assert_eq!(weights[..2], [10 * share; 2]);
        }
    }
}
