//! What a trial says: per arm and VM by how much it differs from the first arm, and what that is worth.

use super::{ALL_VMS, Better, Block, Broken, Ended, Measured, Outcome, Plan};
use crate::machine::preflight::kernel;
use microslice_metrics::Estimate;
use microslice_metrics::counted;
use microslice_metrics::html::Page;
use microslice_metrics::plot::{Bar, BarChart, BarSeries};
use microslice_metrics::table::Table;
use microslice_metrics::trial::{Compared, PAIRS_MIN, Pairs, Verdict, compare_all};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// What the operator's own figures are of.
pub const HOST: &str = "(asked)";
/// Columns of the table on the screen.
const SHOWN: [Outcome; 6] = [
    Outcome::Work,
    Outcome::Cpus,
    Outcome::Ready,
    Outcome::WaitP99,
    Outcome::FeltWait,
    Outcome::ShootdownP99,
];
/// VMs of the table on the screen.
const VMS_SHOWN: usize = 10;
/// Differences of a sentence.
const NAMED_MAX: usize = 6;
/// A difference worth finding.
const WORTH: f64 = 0.05;

/// A figure that was measured.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Figure {
    Seen(Outcome),
    /// The operator's own: more is better.
    Asked(String),
}

impl Figure {
    pub fn name(&self) -> &str {
        match self {
            Self::Seen(outcome) => outcome.name(),
            Self::Asked(name) => name,
        }
    }

    fn better(&self) -> Better {
        match self {
            Self::Seen(outcome) => outcome.better(),
            Self::Asked(_) => Better::More,
        }
    }

    fn show(&self, value: f64) -> String {
        match self {
            Self::Seen(outcome) => outcome.show(value),
            Self::Asked(_) => format!("{value:.4}"),
        }
    }

    fn of(&self, block: &Block, vm: &str) -> Option<f64> {
        match self {
            Self::Seen(outcome) => block.vms.get(vm)?.figures.get(outcome).copied(),
            Self::Asked(name) => (vm == HOST).then(|| block.asked.get(name).copied()).flatten(),
        }
    }
}

/// A figure of a VM in an arm, compared with the first arm.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub arm: usize,
    pub vm: String,
    pub figure: Figure,
    pub compared: Compared,
}

/// What a difference means for the VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    Better,
    Worse,
    /// It is there, and neither good nor bad by itself.
    Differs,
    CannotTell,
}

impl Row {
    pub fn meaning(&self) -> Meaning {
        match (self.compared.verdict(), self.figure.better()) {
            (Verdict::CannotTell, _) => Meaning::CannotTell,
            (_, Better::Neither) => Meaning::Differs,
            (Verdict::Less, Better::Less) | (Verdict::More, Better::More) => Meaning::Better,
            _ => Meaning::Worse,
        }
    }

    fn sentence(&self) -> String {
        let Compared { control, treatment, ratio, .. } = &self.compared;
        let of = if [ALL_VMS, HOST].contains(&self.vm.as_str()) {
            String::new()
        } else {
            format!("{}: ", self.vm)
        };
        format!(
            "{of}{} {} -> {} ({:.2} to {:.2} times)",
            self.figure.name(),
            self.figure.show(*control),
            self.figure.show(*treatment),
            ratio.low,
            ratio.high
        )
    }
}

/// A trial and what it says.
pub struct Verdicts<'t> {
    pub plan: &'t Plan,
    pub measured: &'t Measured,
    pub rows: Vec<Row>,
    /// True if VMs go by their own names.
    pub names: bool,
    /// What VMs are called by that, and what the operator's own figures are of.
    pub(super) aliases: BTreeMap<String, String>,
}

impl<'t> Verdicts<'t> {
    pub fn of(plan: &'t Plan, measured: &'t Measured, names: bool) -> Self {
        let aliases = aliases(measured, names);
        let asked = plan.asked.iter().map(|asked| Figure::Asked(asked.name.clone()));
        let figures: Vec<Figure> = Outcome::ALL.into_iter().map(Figure::Seen).chain(asked).collect();
        let of_all = || aliases.iter().flat_map(|vm| figures.iter().map(move |figure| (vm, figure)));
        let mut rows = Vec::new();
        for arm in 1..plan.arms.len() {
            let pairs_of = |vm: &str, figure: &Figure| -> Pairs {
                let of = |block: &Option<Block>| figure.of(block.as_ref()?, vm);
                measured.rounds.iter().map(|round| [of(&round[0]), of(&round[arm])]).collect()
            };
            let pairs: Vec<Pairs> = of_all().map(|((vm, _), figure)| pairs_of(vm, figure)).collect();
            for (((_, alias), figure), compared) in of_all().zip(compare_all(&pairs)) {
                if let Some(compared) = compared {
                    rows.push(Row { arm, vm: alias.clone(), figure: figure.clone(), compared });
                }
            }
        }
        Self { plan, measured, rows, names, aliases }
    }

    pub(super) fn of_arm(&self, arm: usize) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.arm == arm)
    }

    /// One word on an arm: "better", "worse", "mixed", "can't tell", or "ended".
    pub fn verdict(&self, arm: usize) -> &'static str {
        let has = |meaning| self.of_arm(arm).any(|row| row.meaning() == meaning);
        match (self.measured.ended.contains_key(&arm), has(Meaning::Better), has(Meaning::Worse)) {
            (true, ..) => "ended",
            (_, true, true) => "mixed",
            (_, true, false) => "better",
            (_, false, true) => "worse",
            _ => "can't tell",
        }
    }

    pub fn to_text(&self) -> String {
        let mut text = format!("{}\n", self.heading());
        for arm in 1..self.plan.arms.len() {
            text.push_str(&format!("\n{}: {}\n{}", self.title(arm), self.verdict(arm), self.table(arm)));
            self.sentences(arm).iter().for_each(|sentence| text.push_str(&format!("> {sentence}\n")));
        }
        text
    }

    /// Why an arm was ended for good, if it was.
    pub fn why_ended(&self, arm: usize) -> Option<String> {
        Some(match self.measured.ended.get(&arm)? {
            Ended::Guard(Broken { vm, what }) => {
                format!("VM {} {what}", self.aliases.get(vm).map_or("?", String::as_str))
            }
            Ended::BrokeDown(cause) => format!("it broke down {cause}"),
        })
    }

    fn arm_name(&self, arm: usize) -> String {
        let arm = &self.plan.arms[arm];
        if self.names { arm.name.clone() } else { arm.anonymous_name() }
    }

    fn heading(&self) -> String {
        format!(
            "{} of {} s, seed {}{}. Work is {}.",
            counted(self.measured.rounds.len(), "round"),
            self.plan.block.as_secs_f64(),
            self.plan.seed,
            if self.measured.was_stopped { ", stopped before its time" } else { "" },
            if self.measured.counts_instructions {
                "instructions in guests' user mode"
            } else {
                "unknown: this host counts no instructions of guests. User time is by where vCPUs were stopped"
            },
        )
    }

    fn title(&self, arm: usize) -> String {
        format!("{} over {}", self.arm_name(arm), self.arm_name(0))
    }

    /// The figures that matter most, as ratios with their intervals.
    fn table(&self, arm: usize) -> Table {
        let columns_shown = SHOWN.map(|outcome| match outcome {
            Outcome::Work if !self.measured.counts_instructions => Outcome::UserTime,
            other => other,
        });
        let columns: Vec<String> = std::iter::once("VM".to_owned())
            .chain(columns_shown.iter().map(|outcome| format!(">{}", outcome.name())))
            .collect();
        let mut table = Table::new(&columns.iter().map(String::as_str).collect::<Vec<_>>());
        let mut vms: Vec<&str> =
            self.of_arm(arm).map(|row| row.vm.as_str()).filter(|vm| *vm != HOST).collect();
        vms.dedup();
        let told = |vm: &&str| {
            self.of_arm(arm).filter(|row| row.vm == *vm && row.meaning() != Meaning::CannotTell).count()
        };
        let left_out = vms.len().saturating_sub(VMS_SHOWN);
        vms.sort_by_key(|vm| std::cmp::Reverse(told(vm)));
        vms.truncate(VMS_SHOWN);
        vms.sort_unstable_by_key(|vm| (*vm == ALL_VMS, *vm));
        for vm in vms {
            let cell = |outcome: &Outcome| {
                let row = self.of_arm(arm).find(|row| row.vm == vm && row.figure == Figure::Seen(*outcome));
                row.map_or("-".to_owned(), |row| shown(&row.compared.ratio))
            };
            table.row(std::iter::once(vm.to_owned()).chain(columns_shown.iter().map(cell)));
        }
        if left_out > 0 {
            table.row(
                std::iter::once(format!("{left_out} more: --json"))
                    .chain(columns_shown.map(|_| String::new())),
            );
        }
        table
    }

    fn sentences(&self, arm: usize) -> Vec<String> {
        let mut sentences = Vec::new();
        if let Some(why) = self.why_ended(arm) {
            sentences.push(format!("It was ended for good: {why}."));
        }
        let asked = self.of_arm(arm).filter(|row| row.vm == HOST);
        sentences.extend(asked.map(|row| format!("{}: {}.", row.figure.name(), shown(&row.compared.ratio))));
        for (meaning, word) in
            [(Meaning::Better, "Better"), (Meaning::Worse, "Worse"), (Meaning::Differs, "Different")]
        {
            let mut rows: Vec<&Row> = self.of_arm(arm).filter(|row| row.meaning() == meaning).collect();
            rows.sort_by(|a, b| size(b).total_cmp(&size(a)));
            if !rows.is_empty() {
                let more = rows.len().saturating_sub(NAMED_MAX);
                let mut named: Vec<String> = rows.iter().take(NAMED_MAX).map(|row| row.sentence()).collect();
                if more > 0 {
                    named.push(format!("{more} more"));
                }
                sentences.push(format!("{word}: {}.", named.join("; ")));
            }
        }
        let all = self.of_arm(arm).count();
        let unknown: Vec<&Row> =
            self.of_arm(arm).filter(|row| row.meaning() == Meaning::CannotTell).collect();
        if !unknown.is_empty() {
            sentences.push(format!(
                "Can't tell: {} of {}{}.",
                unknown.len(),
                counted(all, "figure"),
                self.longer(&unknown)
            ));
        }
        sentences
    }

    /// How long a trial would have to be for half of these.
    fn longer(&self, unknown: &[&Row]) -> String {
        let mut pairs: Vec<usize> =
            unknown.iter().filter_map(|row| row.compared.pairs_to_tell(WORTH)).collect();
        pairs.sort_unstable();
        let Some(pairs) = pairs.get(pairs.len() / 2) else { return String::new() };
        let minutes = self.plan.round().as_secs_f64() * *pairs as f64 / 60.0;
        let time = counted(minutes.ceil() as usize, "minute");
        format!("; {time} would tell 5 % for half of them in four of five trials")
    }

    /// `{"microslice_trial": 1, "version", "host", "plan", "arms": [{"name", "verdict", "ended"}], "figures":
    /// [{"arm", "vm", "figure", "first", "value", "ratio", "low", "high", "pairs", "chance", "verdict"}],
    /// "blocks": [{"round", "arm", "vm", FIGURE: VALUE}]}`.
    pub fn to_json(&self, version: &str) -> Value {
        let arm = |at: usize| {
            json!({
                "name": self.arm_name(at),
                "verdict": if at == 0 { "first" } else { self.verdict(at) },
                "ended": self.why_ended(at),
            })
        };
        let figure = |row: &Row| {
            json!({
                "arm": self.arm_name(row.arm),
                "vm": row.vm,
                "figure": row.figure.name(),
                "first": row.compared.control,
                "value": row.compared.treatment,
                "ratio": row.compared.ratio.mean,
                "low": interval(&row.compared.ratio).map(|(low, _)| low),
                "high": interval(&row.compared.ratio).map(|(_, high)| high),
                "pairs": row.compared.ratio.count,
                "chance": row.compared.chance,
                "verdict": match row.meaning() {
                    Meaning::Better => "better",
                    Meaning::Worse => "worse",
                    Meaning::Differs => "different",
                    Meaning::CannotTell => "cannot_tell",
                },
            })
        };
        json!({
            "microslice_trial": 1,
            "version": version,
            "host": host(),
            "plan": {
                "arms": (0..self.plan.arms.len()).map(|arm| self.arm_name(arm)).collect::<Vec<_>>(),
                "block_s": self.plan.block.as_secs_f64(),
                "settle_s": self.plan.settle.as_secs_f64(),
                "seed": self.plan.seed,
                "rounds": self.measured.rounds.len(),
                "was_stopped": self.measured.was_stopped,
            },
            "work": if self.measured.counts_instructions { "instructions" } else { "unknown" },
            "arms": (0..self.plan.arms.len()).map(arm).collect::<Vec<_>>(),
            "figures": self.rows.iter().map(figure).collect::<Vec<_>>(),
            "blocks": self.blocks(),
        })
    }

    /// Every block as it was measured, so that others can compare them in their own way.
    fn blocks(&self) -> Vec<Value> {
        let mut blocks = Vec::new();
        for (round, arms) in self.measured.rounds.iter().enumerate() {
            for (arm, block) in arms.iter().enumerate() {
                let Some(block) = block else { continue };
                let start = |vm: &str| {
                    let object = json!({"round": round, "arm": self.arm_name(arm), "vm": vm});
                    object.as_object().cloned().unwrap_or_default()
                };
                if !block.asked.is_empty() {
                    let mut object = start(HOST);
                    object.extend(block.asked.iter().map(|(name, value)| (name.clone(), json!(value))));
                    blocks.push(Value::Object(object));
                }
                for (name, had) in &block.vms {
                    let mut object = start(&self.aliases[name]);
                    object.extend(had.figures.iter().map(|(of, value)| (of.name().to_owned(), json!(value))));
                    object.insert("longest wait".into(), json!(had.longest_wait_ns));
                    blocks.push(Value::Object(object));
                }
            }
        }
        blocks
    }

    /// A page for a browser, with a picture per outcome.
    pub fn to_html(&self) -> String {
        let mut page = Page::new("A trial of schedulers");
        page.paragraph(&self.heading());
        for arm in 1..self.plan.arms.len() {
            page.heading(&format!("{}: {}", self.title(arm), self.verdict(arm)));
            self.sentences(arm).iter().for_each(|sentence| page.paragraph(sentence));
            page.table(&self.table(arm));
        }
        page.heading("Each figure, times the first arm's");
        let figures: BTreeSet<&Figure> = self.rows.iter().map(|row| &row.figure).collect();
        page.plots(&figures.into_iter().map(|figure| self.chart(figure)).collect::<Vec<_>>());
        page.render()
    }

    fn chart(&self, figure: &Figure) -> String {
        let of_figure = || self.rows.iter().filter(|row| row.figure == *figure);
        let vms: BTreeSet<&String> = of_figure().map(|row| &row.vm).collect();
        let series = (1..self.plan.arms.len()).map(|arm| {
            let bar = |vm: &&String| {
                let row = of_figure().find(|row| row.arm == arm && row.vm == **vm)?;
                let ratio = row.compared.ratio;
                let interval = Some(interval(&ratio)?);
                Some(Bar { value: ratio.mean, interval, published: None })
            };
            BarSeries { name: self.plan.arms[arm].name.clone(), bars: vms.iter().map(bar).collect() }
        });
        let series = series.collect();
        let chart = BarChart {
            title: figure.name().to_owned(),
            y_label: "times".into(),
            categories: vms.into_iter().cloned().collect(),
            series,
            reference: Some(1.0),
            logarithmic: true,
            ..BarChart::default()
        };
        chart.to_svg()
    }
}

/// A ratio with its interval, if there are pairs enough for one.
pub(super) fn shown(ratio: &Estimate) -> String {
    match ratio.count {
        count if count < PAIRS_MIN => format!("{:.2} ({})", ratio.mean, counted(count, "pair")),
        _ => format!("{:.2} ({:.2}-{:.2})", ratio.mean, ratio.low, ratio.high),
    }
}

pub(super) fn interval(ratio: &Estimate) -> Option<(f64, f64)> {
    (ratio.count >= PAIRS_MIN).then_some((ratio.low, ratio.high))
}

fn size(row: &Row) -> f64 {
    row.compared.ratio.mean.ln().abs()
}

/// What VMs are called: by their own names, or numbered; and what the operator's own figures are of.
fn aliases(measured: &Measured, names: bool) -> BTreeMap<String, String> {
    let blocks = measured.rounds.iter().flatten().flatten();
    let vms: BTreeSet<&String> = blocks.flat_map(|block| block.vms.keys()).collect();
    let mut number = 0;
    let alias = |name: &String| {
        number += u32::from(*name != ALL_VMS);
        let alias = if names || *name == ALL_VMS { name.clone() } else { format!("vm{number}") };
        (name.clone(), alias)
    };
    let host = (HOST.to_owned(), HOST.to_owned());
    vms.into_iter().map(alias).chain([host]).collect()
}

/// By what other hosts differ from this one: nothing that names it.
fn host() -> Value {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    json!({
        "cpu": model.map(|(_, model)| model),
        "pcpus": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        "kernel": kernel("osrelease"),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::Had;
    use super::*;

    pub fn plan() -> Plan {
        super::super::tests::plan(&["kernel", "beside"], 600)
    }

    /// Ten rounds in which waits are `ratio` times as long.
    pub fn measured(ratio: f64) -> Measured {
        let block = |at: usize, times: f64| {
            let noise = 1.0 + at as f64 % 3.0 / 10.0;
            let figures = [
                (Outcome::WaitP99, 1e6 * noise * times),
                (Outcome::Cpus, 2.0 * noise),
                (Outcome::UserTime, 1.5 * times),
            ];
            let had = Had { figures: figures.into(), longest_wait_ns: 0 };
            Some(Block { vms: [("web".to_owned(), had)].into(), ..Block::default() })
        };
        let rounds = (0..10).map(|at| vec![block(at, 1.0), block(at + 1, ratio)]).collect();
        Measured { rounds, ..Measured::default() }
    }

    #[test]
    fn shorter_waits_are_better_and_more_work_alone_is_not() {
        let (plan, measured) = (plan(), measured(0.5));
        let verdicts = Verdicts::of(&plan, &measured, true);
        assert_eq!(verdicts.verdict(1), "better");
        let text = verdicts.to_text();
        assert!(text.contains("Better: web: wait p99 1.") && !text.contains(HOST), "{text}");
        assert!(text.contains("Different: web: user time 1.50 -> 0.75"), "{text}");
        let json = verdicts.to_json("1.0");
        assert_eq!(json["arms"][1]["verdict"], "better");
        assert_eq!(json["blocks"].as_array().map(Vec::len), Some(20));
    }

    #[test]
    fn no_difference_cannot_be_told_and_says_how_long_it_would_take() {
        let (plan, measured) = (plan(), measured(1.0));
        let verdicts = Verdicts::of(&plan, &measured, true);
        assert_eq!(verdicts.verdict(1), "can't tell");
        let text = verdicts.to_text();
        assert!(
            text.contains("Can't tell: 3 of 3 figures; ") && text.contains("minutes would tell 5 %"),
            "{text}"
        );
    }

    #[test]
    fn names_of_vms_are_told_only_if_asked_for() {
        let (plan, measured) = (plan(), measured(0.5));
        let verdicts = Verdicts::of(&plan, &measured, false);
        let everything = format!("{}{}{}", verdicts.to_json("1.0"), verdicts.to_text(), verdicts.to_html());
        assert!(!everything.contains("web") && everything.contains("vm1"));
    }
}
