//! Is a prediction right? Scenarios that are known are profiled as `microslice observe` would have seen them.
//! What the model that is fitted to such a profile predicts is compared with what the scenario itself does
//! under another policy.
//!
//! `cargo test --workspace --locked --test studies -- what_if --nocapture` prints the table of
//! docs/lab/what-if.md.

use microslice_engine::simulate;
use microslice_experiments::batch::BatchProgress;
use microslice_experiments::scenario::{Overrides, parse};
use microslice_metrics::profile::Profile;
use microslice_model::events::NoTrace;
use microslice_policy::GuestClass;
use microslice_studies::regret;
use microslice_studies::what_if::{Figure, Fit, Row, fit, predict, profile_of};

const SEEDS: u64 = 2;
/// Changes that are smaller have no direction: seeds differ by as much.
const UNCHANGED: f64 = 0.1;
/// What "size within two times" means of a ratio.
const TWICE: f64 = 2.0;

/// A file of `scenarios/`, measured for two seconds.
fn built_in(name: &str) -> String {
    let text = microslice_experiments::scenario::built_in(&format!("{name}.toml")).expect(name);
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
        let unchanged = |ratio: f64| (ratio - 1.0).abs() < UNCHANGED;
        (self.truth > 1.0) == (self.predicted > 1.0) || unchanged(self.truth) && unchanged(self.predicted)
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
    let fit = fit(&profile, None, &progress).expect("a model");
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

fn assert_holds(missed: Vec<String>) {
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn shootdowns_and_work_change_as_predicted_on_the_papers_hosts() {
    let names = ["dedup-swaptions", "vips-swaptions", "memclone-swaptions", "li2026-vips"];
    assert_holds(names.into_iter().flat_map(|name| misses(name, &built_in(name))).collect());
}

#[test]
fn shootdowns_and_work_change_as_predicted_on_hosts_that_nobody_chose() {
    let seeds = [1, 2, 5];
    assert_holds(
        seeds
            .into_iter()
            .flat_map(|seed| {
                misses(&format!("regret {seed}"), &regret::scenario(regret::Hosts::Papers, seed))
            })
            .collect(),
    );
}

/// docs/how-to/what-if.md says what is missed, and why: a model that gets better changes that page.
#[test]
fn what_is_missed_is_what_the_page_says() {
    let missed = misses("regret 6", &regret::scenario(regret::Hosts::Papers, 6));
    assert_eq!(missed.len(), 4, "the sizes of four VMs' shootdowns: {missed:?}");
    assert!(missed.iter().all(|one| one.contains("shootdown_p50")), "{missed:?}");
    let missed = misses("asplos13-dedup-freqmine", &built_in("asplos13-dedup-freqmine"));
    assert_eq!(missed.len(), 1, "the size of its shootdowns: {missed:?}");
    assert!(missed[0].contains("shootdown_p50"), "{missed:?}");
}

#[test]
#[ignore = "make test-long: twice as long as the others together"]
fn shootdowns_and_work_change_as_predicted_where_that_takes_longer() {
    let names = ["li2026-dedup", "exim-swaptions", "gmake-swaptions"];
    let mut missed: Vec<String> = names.into_iter().flat_map(|name| misses(name, &built_in(name))).collect();
    missed.extend(
        [3, 4].into_iter().flat_map(|seed| {
            misses(&format!("regret {seed}"), &regret::scenario(regret::Hosts::Papers, seed))
        }),
    );
    assert_holds(missed);
}

/// What can be counted in two ways is the same.
#[test]
fn the_observer_sees_what_the_simulator_counts() {
    let overrides = Overrides { policy: Some("eevdf".into()), ..Overrides::default() };
    let config = parse("known.toml", &built_in("dedup-swaptions"), &overrides).expect("a scenario").config;
    let profile = profile_of(&config, &BatchProgress::default()).expect("it runs");
    let report = simulate(&config, &mut NoTrace).expect("it runs");
    for (seen, counted) in profile.vms.iter().zip(&report.vms) {
        assert_eq!((seen.ran_ns, seen.ready_ns), (counted.run_ns, counted.wait_ns), "{}", counted.name);
        let ended: u64 = counted.preemptions_by_class.values().sum();
        assert!(seen.turns_ended.total() >= ended, "those that spinners gave up are among them");
        assert_eq!(
            seen.turns_ended.lock_holder > 0,
            counted.preemptions_by_class.contains_key(&GuestClass::LockHolder)
        );
        let calls = &seen.interrupts.call_function;
        // Those that merge with a pending one are among the former only.
        assert!(
            calls.sent >= counted.call_function_ipis && calls.sent < 2 * counted.call_function_ipis.max(1)
        );
        // A call is seen to wait again if a recipient was woken, and ran, before the next one was called.
        assert!(seen.shootdowns.count <= calls.sent && calls.waits.count <= calls.sent);
        let sleeps = seen.wakeups();
        assert!(
            sleeps <= counted.yields.halt + u64::from(seen.vcpus),
            "{sleeps} wake-ups, {:?}",
            counted.yields
        );
    }
    let [target, corunner] = profile.vms.as_slice() else { panic!("two VMs") };
    assert!(target.shootdowns.count > 100 && target.shootdowns.p50_ns > 100_000, "{:?}", target.shootdowns);
    assert_eq!((corunner.shootdowns.count, corunner.interrupts.call_function.sent), (0, 0));
}

/// A guest that computes and nothing else has nothing to be fitted but that.
#[test]
fn a_host_of_two_hogs_is_predicted_to_share_alike() {
    let hog = "vcpus = 2\nkernel = 'linux-modern'\nworkloads = [{ name = 'hog', threads = 'per vcpu', program = [{ compute = '1 ms' }] }]\n";
    let text = format!(
        "host = {{ extends = 'xeon-e5645', pcpus = 2, llc_pcpus = 0 }}\nduration = '1 s'\n         [[vm]]\nname = 'a'\n{hog}[[vm]]\nname = 'b'\n{hog}"
    );
    let profile = profiled(&text);
    assert!(profile.vms.iter().all(|vm| vm.share(vm.ready_ns) > 0.4), "{profile:?}");
    assert_holds(misses("hogs", &text));
}
