//! Is a prediction right? Scenarios that are known are profiled as `microslice observe` would have seen them. What the model that is fitted
//! to such a profile predicts is compared with what the scenario itself does under another policy.
//!
//! `cargo test --workspace --locked --test what_if -- --nocapture` prints the table of docs/what-if.md.

use microslice_metrics::profile::Profile;
use microslice_sim::batch::BatchProgress;
use microslice_sim::regret;
use microslice_sim::scenario::{Overrides, parse};
use microslice_sim::what_if::{Figure, Fit, Row, fit, predict, profile_of};

const SEEDS: u64 = 2;
/// Changes that are smaller have no direction: seeds differ by as much.
const UNCHANGED: f64 = 0.1;
/// What "size within two times" means of a ratio.
const TWICE: f64 = 2.0;

/// A file of `scenarios/`, measured for two seconds.
fn built_in(name: &str) -> String {
    let path = format!("{}/../../scenarios/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let line = |line: &str| match line.split(' ').next() {
        Some("duration") => "duration = \"2 s\"".to_owned(),
        Some("warmup") => "warmup = \"500 ms\"".to_owned(),
        _ => line.to_owned(),
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn profiled(text: &str) -> Profile {
    let overrides = Overrides { policy: Some("eevdf".into()), ..Overrides::default() };
    let config = parse("known.toml", text, &overrides).expect("a scenario").config;
    let profile = profile_of(&config, &BatchProgress::default()).expect("it runs");
    // Through the file, as a host's comes.
    Profile::parse("p.json", &profile.to_text()).expect("it is read again")
}

/// How many times a VM's figure under eevdf that under microslice is; `None` where it has none.
fn ratio(rows: &[Row], vm: usize, names: &[String], figure: Figure) -> Option<f64> {
    let row = rows.iter().find(|row| row.vm == names[vm] && row.figure == figure)?;
    row.ratios[1].map(|ratio| ratio.mean)
}

/// Of one figure of one VM.
#[derive(Debug)]
struct Comparison {
    what: String,
    truth: f64,
    predicted: f64,
}

impl Comparison {
    fn has_right_direction(&self) -> bool {
        let direction =
            |ratio: f64| if (ratio - 1.0).abs() < UNCHANGED { 0 } else { (ratio - 1.0).signum() as i32 };
        direction(self.truth) * direction(self.predicted) >= 0
    }

    fn is_within_twice(&self) -> bool {
        let off = self.predicted / self.truth;
        (1.0 / TWICE..=TWICE).contains(&off)
    }

    fn holds(&self) -> bool {
        self.has_right_direction() && self.is_within_twice()
    }
}

/// Work of each VM, and the median of its shootdowns if it makes some a second.
fn compare(name: &str, text: &str) -> (Fit, Vec<Comparison>) {
    let progress = BatchProgress::default();
    let profile = profiled(text);
    let fit = fit(&profile, &progress).expect("a model");
    let policies = ["eevdf".to_owned(), "microslice".to_owned()];
    let truth = predict(text, &policies, &profile, SEEDS, &progress).expect("the known scenario runs");
    let predicted = predict(&fit.model.to_scenario(), &policies, &profile, SEEDS, &progress)
        .expect("so does the fitted one");
    let known: Vec<String> = profile.vms.iter().map(|vm| vm.name.clone().unwrap_or_default()).collect();
    let fitted: Vec<String> = fit.model.vms.iter().map(|vm| vm.name.clone()).collect();
    let mut comparisons = Vec::new();
    for (vm, vm_name) in known.iter().enumerate() {
        for figure in [Figure::Work, Figure::ShootdownP50] {
            let makes_some = profile.vms[vm].interrupts.call_function.sent as f64 > 20.0 * profile.seconds;
            let (Some(truth), Some(predicted)) =
                (ratio(&truth, vm, &known, figure), ratio(&predicted, vm, &fitted, figure))
            else {
                continue;
            };
            if figure == Figure::Work || makes_some {
                let what = format!("{name} {vm_name} {}", figure.name());
                comparisons.push(Comparison { what, truth, predicted });
            }
        }
    }
    (fit, comparisons)
}

/// Prints a row for each, and says which don't hold.
fn misses(name: &str, text: &str) -> Vec<String> {
    let (fit, comparisons) = compare(name, text);
    println!("{name}: the model is off by {:.0} %, costs x {:.2}", fit.error * 100.0, fit.model.cost_factor);
    for Comparison { what, truth, predicted } in &comparisons {
        println!("| {what} | {truth:.2} | {predicted:.2} |");
    }
    comparisons.iter().filter(|one| !one.holds()).map(|one| format!("{one:?}")).collect()
}

#[test]
fn explore() {
    for name in [
        "dedup-swaptions",
        "vips-swaptions",
        "li2026-vips",
        "li2026-dedup",
        "asplos13-dedup-freqmine",
        "gmake-swaptions",
        "exim-swaptions",
        "memclone-swaptions",
    ] {
        let begun = std::time::Instant::now();
        let missed = misses(name, &built_in(name));
        println!("{name}: {:.1} s, missed {missed:?}", begun.elapsed().as_secs_f64());
    }
    for seed in 1..=12 {
        let text = regret::scenario(seed);
        let missed = misses(&format!("regret {seed}"), &text);
        println!("missed {missed:?}");
    }
}
