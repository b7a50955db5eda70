//! What commits and proposals to KVM say that they gain on hardware, in simulated hosts and guests of today.

use super::plots::section;
use super::runs::{Experiment, RunTable, mean};
use super::study::{Shape, Study};
use super::{FigureResult, Reproduction};
use microslice_engine::report::RunReport;
use microslice_metrics::html::Page;
use microslice_metrics::plot::{Bar, BarChart, BarSeries};

const DEFAULT: &str = "eevdf";
/// The directed yield before `vcpu->ready`.
const UNREADY: &str = "eevdf+boosts_woken=false";
/// The groups that are predicted, and their programs.
const GROUPS: [(&str, &[&str]); 6] = [
    ("ready", &["ebizzy"]),
    ("pv_ipi", &["ebizzy"]),
    ("directed_yield_v1", &["dbench", "dedup", "vips"]),
    ("directed_yield_v3", &["dbench", "dedup", "vips"]),
    ("steal_governor", &["compute"]),
    ("halt_polling", &["round_trip"]),
];
/// A number that is predicted well enough is off by no more than this factor.
const FACTOR: f64 = 1.5;
/// Of published gains below it only an interval is asked.
const SMALL: f64 = 0.03;

/// Commits and proposals to KVM, 2015 to 2026.
#[derive(Debug)]
pub struct Kvm;

/// A run with what a number is about, and one without it.
struct Pair {
    with: Experiment,
    without: Experiment,
    /// The number is the part of the time that is saved, not more work.
    saves_time: bool,
}

impl Study for Kvm {
    fn name(&self) -> &'static str {
        "kvm"
    }

    fn title(&self) -> &'static str {
        "KVM's own commits (2015 to 2026)"
    }

    fn paper(&self) -> &'static str {
        "Commits to KVM and proposals on its mailing lists: vcpu->ready, PV IPIs, directed yields, steal governor, halt polling"
    }

    fn numbers(&self) -> &'static str {
        "paper-results/kvm.toml"
    }

    fn kinds(&self) -> &'static str {
        "Predicted: nothing was fitted to any of it. Programs are assumptions, but dedup and vips, which are those of eurosys18. \
         Version 3 of the directed yield stands for version 1, whose own rules aren't modelled."
    }

    fn unit(&self, _id: &str) -> &'static str {
        "ratio"
    }

    fn is_calibrated(&self, _id: &str) -> bool {
        false
    }

    fn experiments_of(&self, group: &str) -> Vec<Experiment> {
        let programs =
            GROUPS.iter().find(|(name, _)| *name == group).map_or(&[][..], |(_, programs)| programs);
        let pairs = programs.iter().flat_map(|program| (1..=4).filter_map(|vms| pair(group, program, vms)));
        pairs.flat_map(|pair| [pair.with, pair.without]).collect()
    }

    fn measure(&self, id: &str, runs: &RunTable) -> Vec<f64> {
        let parts: Vec<&str> = id.split('.').collect();
        let [group, program, vms] = parts.as_slice() else { return Vec::new() };
        let Some(vms) = vms.strip_prefix("vms_").and_then(|vms| vms.parse().ok()) else { return Vec::new() };
        gains(runs, group, program, vms)
    }

    fn shapes(&self, runs: &RunTable) -> Vec<Shape> {
        let numbers = super::published(self);
        let of_group = |(group, _): &(&'static str, &[&str])| {
            let of_group = numbers.iter().filter(|number| super::group_of(&number.id) == *group);
            let pairs: Option<Vec<(f64, f64)>> =
                of_group.map(|number| Some((number.value, mean(&self.measure(&number.id, runs))?))).collect();
            let near = |pairs: &[(f64, f64)]| pairs.iter().filter(|pair| is_near(**pair)).count();
            Shape {
                claim: format!(
                    "{group}: the direction is right, and half of the numbers are within a factor of {FACTOR}"
                ),
                holds: pairs.as_ref().map(|pairs| {
                    pairs.iter().all(|(theirs, ours)| theirs.abs() < SMALL || theirs * ours > 0.0)
                        && 2 * near(pairs) >= pairs.len()
                }),
                seen: pairs.map_or(String::new(), |pairs| {
                    let ours: Vec<f64> = pairs.iter().map(|(_, ours)| *ours).collect();
                    format!("{} of {} are near: {ours:.3?}", near(&pairs), pairs.len())
                }),
            }
        };
        GROUPS.iter().map(of_group).collect()
    }

    fn draw(&self, page: &mut Page, reproduction: &Reproduction) {
        page.paragraph("Bars are means; red diamonds are the published numbers.");
        let bar = |figure: &FigureResult| {
            let ours = figure.ours?;
            let interval = (ours.count > 1).then_some((ours.low, ours.high));
            Some(Bar { value: ours.mean, interval, published: Some(figure.paper) })
        };
        let charts = GROUPS.map(|(group, _)| {
            let prefix = format!("{group}.");
            let figures: Vec<_> =
                reproduction.figures.iter().filter(|figure| figure.id.starts_with(&prefix)).collect();
            BarChart {
                title: group.to_owned(),
                y_label: "gain, as a part".to_owned(),
                categories: figures.iter().map(|figure| figure.id[prefix.len()..].to_owned()).collect(),
                series: vec![BarSeries {
                    name: "simulated".to_owned(),
                    bars: figures.into_iter().map(bar).collect(),
                }],
                ..BarChart::default()
            }
        });
        section(page, "What each gains", charts.into());
    }
}

/// The runs behind a number; `None`: it has none.
fn pair(group: &str, program: &str, vms: u32) -> Option<Pair> {
    let run = |scenario: &str, policy: &str| Experiment::new(scenario, policy).set("vm.guest.copies", vms);
    let (with, without, saves_time) = match (group, vms) {
        ("ready", 1..=3) => (run("kvm-ebizzy", DEFAULT), run("kvm-ebizzy", UNREADY), false),
        ("pv_ipi", 1) => {
            let of = |by_hypercall: bool| {
                run("kvm-ebizzy", DEFAULT)
                    .set("vm.guest.vcpus", 64)
                    .set("vm.guest.kernel.pv_ipi", by_hypercall)
            };
            (of(true), of(false), false)
        }
        ("directed_yield_v1" | "directed_yield_v3", 2..=4) => {
            let scenario = format!("li2026-{program}");
            let saves_time = group == "directed_yield_v3" && program != "dbench";
            (run(&scenario, "eevdf-ipi"), run(&scenario, DEFAULT), saves_time)
        }
        ("steal_governor", 4) => {
            let of = |vcpus: u32| run("kvm-steal-governor", DEFAULT).set("vm.guest.vcpus", vcpus);
            (of(2), of(8), false)
        }
        ("halt_polling", 1) => {
            let of = |polls: &str| {
                Experiment::new("kvm-request-response", DEFAULT).set("host.kvm.halt_poll_ns", polls)
            };
            (of("200 us"), of("0 us"), true)
        }
        _ => return None,
    };
    Some(Pair { with, without, saves_time })
}

fn throughput(report: &RunReport) -> f64 {
    report.vms.iter().flat_map(|vm| &vm.workloads).map(|workload| workload.units_per_s).sum()
}

/// Seed by seed.
fn gains(runs: &RunTable, group: &str, program: &str, vms: u32) -> Vec<f64> {
    let Some(pair) = pair(group, program, vms) else { return Vec::new() };
    let (with, without) = (runs.of(&pair.with, throughput), runs.of(&pair.without, throughput));
    let gain = |(with, without): (&f64, &f64)| {
        if pair.saves_time { 1.0 - without / with } else { with / without - 1.0 }
    };
    with.iter().zip(&without).map(gain).collect()
}

/// Within the factor; of a small one anything small.
fn is_near((theirs, ours): (f64, f64)) -> bool {
    if theirs.abs() < SMALL {
        return ours.abs() <= SMALL;
    }
    theirs * ours > 0.0 && (theirs / ours).max(ours / theirs) <= FACTOR
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduction::published::published;
    use microslice_experiments::scenario::load;

    #[test]
    fn every_number_but_that_of_s390_has_its_runs() {
        for number in published(&Kvm) {
            let parts: Vec<&str> = number.id.split('.').collect();
            let vms = parts[2].strip_prefix("vms_").and_then(|vms| vms.parse().ok()).expect("vms_N");
            let pair = pair(parts[0], parts[1], vms);
            assert_eq!(pair.is_some(), parts[0] != "directed_yield_s390", "{}", number.id);
            let experiments = Kvm.experiments_of(parts[0]);
            for experiment in pair.iter().flat_map(|pair| [&pair.with, &pair.without]) {
                assert!(experiments.contains(experiment), "{}", number.id);
                load(&experiment.scenario, &experiment.overrides()).unwrap_or_else(|error| panic!("{error}"));
            }
        }
    }

    #[test]
    fn near_is_within_a_factor_and_small_is_near_small() {
        assert!(is_near((0.10, 0.14)) && is_near((0.10, 0.07)) && is_near((-0.10, -0.12)));
        assert!(!is_near((0.10, 0.16)) && !is_near((0.10, -0.10)) && !is_near((0.10, 0.0)));
        assert!(is_near((0.017, -0.01)) && !is_near((0.017, 0.04)));
    }
}
