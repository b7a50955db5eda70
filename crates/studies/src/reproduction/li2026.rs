//! Li's table of semantics-aware directed yield, version 3: what it saves in simulated runs of dedup and
//! vips, which stay as they are.

use super::plots::section;
use super::runs::{Experiment, RunTable, mean};
use super::study::{Shape, Study};
use super::{FigureResult, Reproduction};
use microslice_engine::report::RunReport;
use microslice_metrics::html::Page;
use microslice_metrics::plot::{Bar, BarChart, BarSeries};

const DEFAULT: &str = "eevdf";
const PROPOSED: &str = "eevdf-ipi";
const OURS: &str = "microslice";
const PROGRAMS: [&str; 2] = ["dedup", "vips"];
const VMS: [u32; 3] = [2, 3, 4];
/// "Never behind": no more than this, our number.
const BEHIND: f64 = 0.98;

/// Li: semantics-aware directed yield for KVM, version 3 (a proposal on the kernel's mailing list).
#[derive(Debug)]
pub struct Li2026;

impl Study for Li2026 {
    fn name(&self) -> &'static str {
        "li2026"
    }

    fn title(&self) -> &'static str {
        "Li's directed yield (2026)"
    }

    fn paper(&self) -> &'static str {
        r#"Li, "Semantics-aware directed yield for oversubscribed KVM", version 3 of a proposal on the kernel's mailing list"#
    }

    fn numbers(&self) -> &'static str {
        "proposals/li2026.toml"
    }

    fn kinds(&self) -> &'static str {
        "Predicted: nothing was fitted to it; dedup and vips are those of eurosys18, the kernel is linux-modern."
    }

    fn unit(&self, _id: &str) -> &'static str {
        "ratio"
    }

    fn is_calibrated(&self, _id: &str) -> bool {
        false
    }

    fn experiments_of(&self, group: &str) -> Vec<Experiment> {
        if group != "latency" {
            return Vec::new();
        }
        let of_size = |program| VMS.iter().map(move |&vms| (program, vms));
        let sizes = PROGRAMS.into_iter().flat_map(of_size);
        sizes
            .flat_map(|(program, vms)| {
                [DEFAULT, PROPOSED, OURS].map(|policy| experiment(program, vms, policy))
            })
            .collect()
    }

    fn measure(&self, id: &str, runs: &RunTable) -> Vec<f64> {
        let parts: Vec<&str> = id.split('.').collect();
        let ["latency", program, vms] = parts.as_slice() else { return Vec::new() };
        let Some(vms) = vms.strip_prefix("vms_").and_then(|vms| vms.parse().ok()) else { return Vec::new() };
        relative(runs, program, vms, PROPOSED).iter().map(|relative| 1.0 - 1.0 / relative).collect()
    }

    fn shapes(&self, runs: &RunTable) -> Vec<Shape> {
        let shape = |program: &str| {
            let of = |policy| -> Option<Vec<f64>> {
                VMS.iter().map(|&vms| mean(&relative(runs, program, vms, policy))).collect()
            };
            let both = of(OURS).zip(of(PROPOSED));
            Shape {
                claim: format!(
                    "{program}: `{OURS}` is behind neither `{DEFAULT}` nor `{PROPOSED}` with 2, 3 and 4 VMs"
                ),
                holds: both.as_ref().map(|(ours, proposed)| {
                    ours.iter().zip(proposed).all(|(ours, proposed)| *ours >= BEHIND * proposed.max(1.0))
                }),
                seen: both.map_or(String::new(), |(ours, proposed)| {
                    format!("of `{DEFAULT}`'s work {ours:.2?}, `{PROPOSED}` {proposed:.2?}")
                }),
            }
        };
        PROGRAMS.map(shape).into()
    }

    fn draw(&self, page: &mut Page, reproduction: &Reproduction) {
        page.paragraph(&format!(
            "Bars are means over {} seed(s) with 95 % confidence intervals; red diamonds are the published numbers.",
            reproduction.seeds.len()
        ));
        let bar = |figure: &FigureResult| {
            let ours = figure.ours?;
            let interval = (ours.count > 1).then_some((ours.low, ours.high));
            Some(Bar { value: ours.mean, interval, published: Some(figure.paper) })
        };
        let charts = PROGRAMS.map(|program| {
            let of_program = format!("latency.{program}.");
            let figures = reproduction.figures.iter().filter(|figure| figure.id.starts_with(&of_program));
            BarChart {
                title: program.to_owned(),
                y_label: "part of the time".to_owned(),
                categories: VMS.map(|vms| format!("{vms} VMs")).into(),
                series: vec![BarSeries { name: PROPOSED.to_owned(), bars: figures.map(bar).collect() }],
                ..BarChart::default()
            }
        });
        section(page, "Time that is saved with 2, 3 and 4 VMs", charts.into());
    }
}

fn experiment(program: &str, vms: u32, policy: &str) -> Experiment {
    Experiment::new(&format!("li2026-{program}"), policy).set("vm.guest.copies", vms)
}

fn throughput(report: &RunReport) -> f64 {
    report.vms.iter().flat_map(|vm| &vm.workloads).map(|workload| workload.units_per_s).sum()
}

/// Of the default's throughput, seed by seed.
fn relative(runs: &RunTable, program: &str, vms: u32, policy: &str) -> Vec<f64> {
    let of = |policy| runs.of(&experiment(program, vms, policy), throughput);
    of(policy).iter().zip(of(DEFAULT)).map(|(with, without)| with / without).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduction::published::published;
    use microslice_experiments::scenario::load;
    use microslice_model::config::SchedulerKind;

    #[test]
    fn all_experiments_have_16_vcpus_in_each_vm_and_each_number_has_its_runs() {
        let experiments = Li2026.experiments_of("latency");
        for experiment in &experiments {
            let config = load(&experiment.scenario, &experiment.overrides()).expect("built in").config;
            assert_eq!(config.host.pcpus, 16);
            assert!(config.vms.iter().all(|vm| vm.vcpus == 16) && (2..=4).contains(&config.vms.len()));
            let SchedulerKind::Eevdf(eevdf) = config.scheduler else { continue };
            assert!(eevdf.groups && eevdf.ipi_aware == (experiment.policy == PROPOSED));
        }
        let numbers = published(&Li2026);
        assert_eq!(numbers.len(), 6);
        for number in numbers {
            let parts: Vec<&str> = number.id.split('.').collect();
            let vms = parts[2].strip_prefix("vms_").and_then(|vms| vms.parse().ok()).expect("vms_N");
            for policy in [DEFAULT, PROPOSED] {
                assert!(experiments.contains(&experiment(parts[1], vms, policy)), "{}", number.id);
            }
        }
    }
}
