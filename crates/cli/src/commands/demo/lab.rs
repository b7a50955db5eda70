//! The demo's real vCPUs: the lab's VMs on this machine's own KVM at full speed, in a trial of a minute.

use super::screen::Block;
use super::this_binary;
use microslice_metrics::plot::{Bar, BarChart, BarSeries};
use microslice_metrics::table::Table;
use microslice_metrics::trial::{Compared, Verdict};
use microslice_metrics::{Estimate, Unit};
use microslice_testbed::lab::Lab;
use microslice_testbed::trial::{self, Figure, LOADS, Load, Pairs, Plan};
use serde_json::{Value, json};

/// The trial, or why there is none.
pub type Outcome = Result<(Plan, Pairs), String>;

/// Needs KVM and root; what else is missing, the daemon says.
pub fn run(tell: &dyn Fn(&str)) -> Outcome {
    if let Some(why) = Lab::missing() {
        return Err(why.into());
    }
    let plan = Plan::of_a_minute(this_binary().map_err(|failure| failure.to_string())?);
    let pairs = Lab::open().and_then(|lab| trial::run(&lab, &plan, tell));
    pairs.map(|pairs| (plan, pairs)).map_err(|error| error.to_string())
}

/// The screen's block, or the line that says why there is nothing to show.
pub fn block(outcome: &Outcome) -> Block {
    let heading = "REAL vCPUS".into();
    let Ok((plan, pairs)) = outcome else {
        let why = outcome.as_ref().err().map_or("", String::as_str);
        let about = format!("none: {}.", why.lines().next().unwrap_or_default());
        return Block {
            heading,
            about,
            table: Table::default(),
            notes: Vec::new(),
            reading: Vec::new(),
            charts: Vec::new(),
        };
    };
    let machine = trial::machine();
    let text = |key: &str| machine[key].as_str().unwrap_or("an unknown one").to_owned();
    let figures = trial::figures(pairs);
    Block {
        heading,
        about: format!(
            "on this machine's own KVM ({} CPUs, {}, Linux {}), the kernel's own scheduler with boosts (--beside) over \
             it without. {} pairs of blocks of {} s. The guests are programs of ours; KVM's yields of spinners \
             are missing. Behind each ratio: its 95 % interval.",
            machine["pcpus"],
            text("cpu"),
            text("kernel"),
            pairs.len(),
            plan.block.as_secs_f64(),
        ),
        table: table(&figures),
        notes: vec![boosts(pairs)],
        reading: reading(&figures),
        charts: vec![chart(&figures)],
    }
}

type Row = (&'static Load, Figure, Compared);

/// A row for each VM.
fn table(figures: &[Row]) -> Table {
    let mut table = Table::new(&["VM", ">work", ">CPUs", ">wait p50", ">p99"]);
    for load in &LOADS {
        let cell = |figure: Figure| {
            let of = figures.iter().find(|(of, this, _)| *of == load && *this == figure);
            of.map_or("-".into(), |(_, _, compared)| interval(&compared.ratio))
        };
        let cells = std::iter::once(load.name.to_owned()).chain(Figure::ALL.map(cell));
        table.row(cells.collect::<Vec<_>>());
    }
    table
}

fn interval(ratio: &Estimate) -> String {
    let number = |value: f64| if value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") };
    format!("{} ({}-{})", number(ratio.mean), number(ratio.low), number(ratio.high))
}

fn boosts(pairs: &Pairs) -> String {
    let mean = |of: &dyn Fn(&trial::Block) -> f64| {
        pairs.iter().map(|pair| of(&pair[1])).sum::<f64>() / pairs.len().max(1) as f64
    };
    format!(
        "{:.0} boosts a second; the helper had {:.3} CPUs.",
        mean(&|block| block.boosts_per_second),
        mean(&|block| block.helper_cpus)
    )
}

/// What differs, and what can't be told.
fn reading(figures: &[Row]) -> Vec<String> {
    let of = |verdict: Verdict, show: &dyn Fn(&Row) -> Option<String>| -> Vec<String> {
        figures.iter().filter(|row| row.2.verdict() == verdict).filter_map(show).collect()
    };
    let name = |(load, figure, _): &Row| Some(format!("{}: {}", load.name, figure.name(load)?));
    let change = |row: &Row| {
        let (_, figure, Compared { control, treatment, .. }) = row;
        Some(format!("{} {} -> {}", name(row)?, shown(*figure, *control), shown(*figure, *treatment)))
    };
    let sentences = [
        ("Less", of(Verdict::Less, &change)),
        ("More", of(Verdict::More, &change)),
        ("Can't be told", of(Verdict::CannotTell, &name)),
    ];
    let said = sentences.into_iter().filter(|(_, all)| !all.is_empty());
    said.map(|(what, all)| format!("{what}: {}.", all.join("; "))).collect()
}

fn shown(figure: Figure, value: f64) -> String {
    match figure {
        Figure::Work => format!("{value:.0}/s"),
        Figure::Cpus => format!("{value:.2}"),
        Figure::Latency(_) => Unit::Nanoseconds.show(value * 1e3),
    }
}

fn chart(figures: &[Row]) -> BarChart {
    let bar = |compared: &Compared| {
        let Estimate { mean, low, high, .. } = compared.ratio;
        Some(Bar { value: mean, interval: Some((low, high)), ..Bar::default() })
    };
    let name = |(load, figure, _): &Row| format!("{}: {}", load.name, figure.name(load).unwrap_or_default());
    BarChart {
        title: "With boosts, over without".into(),
        y_label: "times".into(),
        categories: figures.iter().map(name).collect(),
        series: vec![BarSeries {
            name: "beside".into(),
            bars: figures.iter().map(|(_, _, compared)| bar(compared)).collect(),
        }],
        reference: Some(1.0),
        logarithmic: true,
        ..BarChart::default()
    }
}

/// The trial's object, or `{"missing": WHY}`.
pub fn to_json(outcome: &Outcome) -> Value {
    match outcome {
        Ok((plan, pairs)) => trial::to_json(plan, pairs),
        Err(why) => json!({ "missing": why }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::screen;
    use super::*;
    use microslice_testbed::measure::Measurement;

    fn vms(work: u64, wait_us: u64) -> trial::Block {
        let vm = |load: &Load| {
            let waits =
                |(kind, _): (&str, _)| (kind.to_owned(), std::iter::repeat_n(wait_us * 1000, 200).collect());
            let work = [("worker".to_owned(), work)].into();
            let latency = load.latency.map(waits).into_iter().collect();
            (Measurement { windows: 1, seconds: 1.0, work, latency }, 0.5)
        };
        trial::Block { vms: LOADS.iter().map(vm).collect(), ..trial::Block::default() }
    }

    #[test]
    fn the_block_has_intervals_and_says_what_differs() {
        let pairs = (0..6).map(|at| [vms(1000 + at, 8000 + 100 * at), vms(1500, 80)]).collect();
        let outcome = Ok((Plan::of_a_minute("microslice".into()), pairs));
        let text = screen::to_text(&[block(&outcome)]);
        assert!(text.lines().all(|line| line.chars().count() <= screen::COLUMNS_MAX), "{text}");
        assert!(text.contains("0.01 (0.01-0.01)") && text.contains("1.50 (1.49-1.50)"), "{text}");
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("> More: locks: work 1002/s -> 1500/s"), "{text}");
        assert!(words.contains("> Can't be told: locks: CPUs; "), "{text}");
        assert!(to_json(&outcome)["figures"].as_array().is_some_and(|all| all.len() == 14));
    }

    #[test]
    fn without_a_lab_a_line_says_why() {
        let outcome = Err("/dev/kvm can't be opened here".to_owned());
        let text = screen::to_text(&[block(&outcome)]);
        assert_eq!(text.trim_end(), "REAL vCPUS: none: /dev/kvm can't be opened here.");
        assert_eq!(to_json(&outcome)["missing"], "/dev/kvm can't be opened here");
    }
}
