//! A paper's evaluation, run again: every published number next to ours, and the shapes of the plots.
//!
//! A new one is a file that implements [`Study`], and an entry of [`STUDIES`].

mod apsys15;
mod asplos13;
mod eurosys18;
mod kvm;
mod li2026;
mod plots;
mod published;
mod runs;
mod study;
mod vm04;

pub use eurosys18::{Sensitivity, SensitivityRow};
pub use plots::{page, shape_table, table};
pub use runs::{Experiment, ReproductionError, RunTable};
pub use study::{Shape, Study};

use microslice_experiments::batch::BatchProgress;
use microslice_metrics::Estimate;
use published::{Published, group_of, published};

/// Every study that `microslice reproduce` knows.
pub const STUDIES: [&dyn Study; 6] =
    [&eurosys18::Eurosys18, &asplos13::Asplos13, &vm04::Vm04, &apsys15::Apsys15, &li2026::Li2026, &kvm::Kvm];

/// "Within" the paper's number: by so much of it.
const WITHIN: f64 = 0.25;
/// "About 0" for a jitter in ms. The paper's text has no number; of the baseline's "> 8", which its plot
/// reaches to, this is a sixteenth. It isn't what a stream alone has (0.003 ms).
const ABOUT_ZERO_MS: f64 = 0.5;

/// One published number and ours.
#[derive(Debug, Clone, PartialEq)]
pub struct FigureResult {
    pub id: String,
    pub unit: &'static str,
    pub paper: f64,
    /// `>`, `>=`, `<` or `about`, if the paper gives no plain number.
    pub relation: Option<String>,
    /// `None`: no run has it (such as a wait that never happened), or one of them made no progress.
    pub ours: Option<Estimate>,
    /// How many runs there were, whether they have it or not.
    pub runs: usize,
    /// In how many of them a VM that it is about made no progress.
    pub stalled: usize,
    pub calibrated: bool,
}

/// Everything that a reproduction found.
#[derive(Debug)]
pub struct Reproduction {
    pub study: &'static dyn Study,
    pub seeds: Vec<u64>,
    pub events: u64,
    pub figures: Vec<FigureResult>,
    pub shapes: Vec<Shape>,
    pub runs: RunTable,
}

/// Ids of all published numbers.
pub fn ids(study: &dyn Study) -> Vec<String> {
    published(study).into_iter().map(|number| number.id).collect()
}

/// Groups of figures that `--only` may name, in the paper's order.
pub fn groups(study: &dyn Study) -> Vec<String> {
    let mut groups = Vec::new();
    for number in published(study) {
        if !groups.iter().any(|group| group == group_of(&number.id)) {
            groups.push(group_of(&number.id).to_owned());
        }
    }
    groups.extend(study.groups_without_numbers().iter().map(|&group| group.to_owned()));
    groups.sort();
    groups
}

/// Runs the experiments of all groups, or of one, and measures every published number.
pub fn reproduce(
    study: &'static dyn Study,
    only: Option<&str>,
    seeds: &[u64],
    progress: &BatchProgress,
) -> Result<Reproduction, ReproductionError> {
    let runs = RunTable::run(&experiments(study, only), seeds, &|_| {}, progress)?;
    let figures = figures_of(study, &runs, only);
    let shapes = study.shapes(&runs);
    Ok(Reproduction {
        study,
        seeds: seeds.to_vec(),
        events: runs.events(),
        figures,
        shapes: shapes.into_iter().filter(|shape| shape.holds.is_some()).collect(),
        runs,
    })
}

fn experiments(study: &dyn Study, only: Option<&str>) -> Vec<Experiment> {
    let groups = groups(study);
    let chosen = groups.iter().filter(|group| only.is_none_or(|only| only == *group));
    let mut experiments: Vec<Experiment> = chosen.flat_map(|group| study.experiments_of(group)).collect();
    experiments.sort();
    experiments.dedup();
    experiments
}

fn figures_of(study: &dyn Study, runs: &RunTable, only: Option<&str>) -> Vec<FigureResult> {
    let chosen =
        published(study).into_iter().filter(|number| only.is_none_or(|only| only == group_of(&number.id)));
    chosen.map(|number| result_of(study, runs, number)).collect()
}

fn result_of(study: &dyn Study, runs: &RunTable, number: Published) -> FigureResult {
    let values = study.measure(&number.id, runs);
    FigureResult {
        unit: study.unit(&number.id),
        calibrated: study.is_calibrated(&number.id),
        ours: runs::estimate(&values),
        runs: values.len(),
        stalled: runs::stalled(&values),
        paper: number.value,
        relation: number.relation,
        id: number.id,
    }
}

impl FigureResult {
    /// `calibrated` or `predicted`.
    pub fn kind(&self) -> &'static str {
        if self.calibrated { "calibrated" } else { "predicted" }
    }

    /// Ours divided by the paper's; none where the paper has 0.
    pub fn ratio(&self) -> Option<f64> {
        self.ours.map(|ours| ours.mean / self.paper).filter(|ratio| ratio.is_finite())
    }

    /// Whether ours is as the paper says: within 25 % of its number, or beyond its limit. Without a value it
    /// isn't.
    pub fn holds(&self) -> bool {
        let Some(ours) = self.ours.map(|ours| ours.mean) else { return false };
        match self.relation.as_deref() {
            Some(">") => ours > self.paper,
            Some(">=") => ours >= self.paper,
            Some("<") => ours < self.paper,
            Some("about") if self.paper == 0.0 => ours.abs() < ABOUT_ZERO_MS,
            _ => (ours - self.paper).abs() <= WITHIN * self.paper.abs(),
        }
    }

    /// What the reader has to know of the runs behind our number, if it isn't simply all of them.
    pub fn remark(&self) -> Option<String> {
        let with = self.ours.map_or(0, |ours| ours.count);
        if self.stalled > 0 {
            Some(format!("{} of {} without progress", self.stalled, self.runs))
        } else {
            (with < self.runs).then(|| format!("{with} of {} runs", self.runs))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(relation: Option<&str>, paper: f64, values: &[f64]) -> FigureResult {
        FigureResult {
            id: "figure9.udp_jitter_ms.baseline".to_owned(),
            unit: "ms",
            paper,
            relation: relation.map(str::to_owned),
            ours: runs::estimate(values),
            runs: values.len(),
            stalled: runs::stalled(values),
            calibrated: false,
        }
    }

    #[test]
    fn a_plain_number_holds_within_25_per_cent_and_a_limit_beyond_it() {
        let holds = |relation, paper, ours| figure(relation, paper, &[ours]).holds();
        assert!(holds(None, 8.0, 6.0) && holds(None, 8.0, 10.0));
        assert!(!holds(None, 8.0, 5.9) && !holds(None, 8.0, 10.1));
        assert!(holds(Some(">"), 8.0, 80.0) && !holds(Some(">"), 8.0, 8.0));
        assert!(holds(Some("<"), 0.01, 0.009) && !holds(Some("<"), 0.01, 0.01));
        assert!(holds(Some(">="), 1.0, 1.0) && !holds(Some(">="), 1.0, 0.97));
        assert!(holds(Some("about"), 0.0, 0.33) && !holds(Some("about"), 0.0, 0.5));
    }

    #[test]
    fn a_number_without_a_value_does_not_hold_and_says_why() {
        let of_some = figure(None, 8.0, &[8.0, f64::NAN]);
        assert!(of_some.holds());
        assert_eq!(of_some.remark().as_deref(), Some("1 of 2 runs"));
        let of_none = figure(Some(">"), 8.0, &[f64::NAN]);
        assert!(!of_none.holds());
        assert_eq!(of_none.remark().as_deref(), Some("0 of 1 runs"));
        let stalled = figure(Some(">"), 8.0, &[9.0, f64::INFINITY]);
        assert!(!stalled.holds());
        assert_eq!(stalled.remark().as_deref(), Some("1 of 2 without progress"));
        assert_eq!(figure(None, 8.0, &[8.0]).remark(), None);
    }

    /// Path and value of every number in the paper's file; `"> 8"` is one, `"about 0"` too.
    fn leaves(path: &str, value: &toml::Value, found: &mut Vec<(String, f64)>) {
        match value {
            toml::Value::Table(table) => {
                for (key, inner) in table {
                    let inner_path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    leaves(&inner_path, inner, found);
                }
            }
            toml::Value::String(text) => {
                let number = text.split_whitespace().find_map(|word| word.parse().ok());
                found.push((path.to_owned(), number.expect(path)));
            }
            _ => {
                let number = value.as_float().or(value.as_integer().map(|number| number as f64));
                found.push((path.to_owned(), number.expect(path)));
            }
        }
    }

    #[test]
    fn every_published_number_is_measured_once_its_runs_are_made() {
        // Long enough for progress everywhere: passes of blackscholes take a tenth of a second.
        let short = |config: &mut microslice_model::config::SimulationConfig| {
            config.warmup_ns = 0;
            config.duration_ns = 400_000_000;
        };
        let runs =
            RunTable::run(&experiments(&eurosys18::Eurosys18, None), &[1], &short, &BatchProgress::default())
                .expect("short runs");
        let figures = figures_of(&eurosys18::Eurosys18, &runs, None);
        let text =
            microslice_experiments::scenario::built_in("paper-results/eurosys18.toml").expect("embedded");
        let mut numbers = Vec::new();
        leaves("", &toml::Value::Table(text.parse().expect("TOML")), &mut numbers);
        assert_eq!(figures.len(), numbers.len());
        for (path, value) in numbers {
            // An id has every word of the number's path, but for a table's second name, which only says its
            // unit.
            let words = path.split('.').enumerate().filter(|(at, _)| *at != 1 || !path.starts_with("table"));
            let words: Vec<&str> = words.flat_map(|(_, part)| part.split('_')).collect();
            let found: Vec<_> = figures
                .iter()
                .filter(|figure| figure.id.split(['.', '_']).eq(words.iter().copied()))
                .collect();
            assert_eq!(found.len(), 1, "{path}");
            assert_eq!(found[0].paper, value, "{path}");
            assert_eq!((found[0].runs, found[0].remark()), (1, None), "{path}");
        }
        assert!(eurosys18::Eurosys18.shapes(&runs).iter().all(|shape| !shape.claim.is_empty()));
    }

    /// So long a run of everything, with one seed.
    fn short_reproduction(study: &'static dyn Study, duration_ns: u64) -> Reproduction {
        let short = |config: &mut microslice_model::config::SimulationConfig| {
            config.warmup_ns = 0;
            config.duration_ns = duration_ns;
        };
        let runs = RunTable::run(&experiments(study, None), &[1], &short, &BatchProgress::default())
            .expect("short runs");
        let (figures, shapes) = (figures_of(study, &runs, None), study.shapes(&runs));
        Reproduction { study, seeds: vec![1], events: 0, figures, shapes, runs }
    }

    /// Devices have no locks of an HVM guest's here.
    const UNMEASURED: &str = "figure10.overcommit_2_to_1.hvm_io_thread_contention";

    #[test]
    fn every_number_of_vm04_and_apsys15_has_its_runs_and_every_plot_is_drawn() {
        let titles_of: [(&'static dyn Study, u64, &[&str]); 2] = [
            (
                &vm04::Vm04,
                60_000_000,
                &["Tables 1 and 2", "Figures 2 and 3", "Figure 6:", "Figures 7 and 8:"],
            ),
            (
                &apsys15::Apsys15,
                15_000_000,
                &[
                    "Figure 2:",
                    "Figure 4:",
                    "Figure 6:",
                    "Figures 7 and 8:",
                    "Figure 9:",
                    "Figure 10:",
                    "Figure 11:",
                ],
            ),
        ];
        for (study, duration_ns, titles) in titles_of {
            let reproduction = short_reproduction(study, duration_ns);
            for figure in &reproduction.figures {
                assert_eq!(figure.runs, usize::from(figure.id != UNMEASURED), "{}", figure.id);
            }
            assert!(reproduction.shapes.iter().all(|shape| !shape.claim.is_empty()));
            let drawn = page(&reproduction);
            for title in titles {
                assert!(drawn.contains(title), "{title}");
            }
        }
    }

    #[test]
    fn every_number_of_asplos13_has_its_runs_and_every_plot_is_drawn() {
        let short = |config: &mut microslice_model::config::SimulationConfig| {
            config.warmup_ns = 0;
            config.duration_ns = 100_000_000;
        };
        let study: &'static dyn Study = &asplos13::Asplos13;
        let runs = RunTable::run(&experiments(study, None), &[1], &short, &BatchProgress::default())
            .expect("short runs");
        let figures = figures_of(study, &runs, None);
        for figure in &figures {
            assert_eq!(figure.runs, 1, "{}", figure.id);
        }
        let shapes = study.shapes(&runs);
        let drawn = page(&Reproduction { study, seeds: vec![1], events: 0, figures, shapes, runs });
        for title in [
            "Figure 1:",
            "Table 1:",
            "Figure 2:",
            "Figure 7a:",
            "Figures 7b and 7c:",
            "Figure 8:",
            "Figure 9:",
            "Figure 10:",
            "Figure 11 and Table 2:",
        ] {
            assert!(drawn.contains(title), "{title}");
        }
    }
}
