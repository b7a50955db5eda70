//! The demo that `make demo` runs: minutes, and one screen.

use super::screen::{self, Block};
use super::{Demo, guests, host, lab, plan_of, simulated};
use crate::failure::Failure;
use crate::output::{self, OutputFile};
use crate::progress;
use microslice_testbed::Pv;
use microslice_testbed::demo::{Plan, Round};
use microslice_testbed::peers::{self, Boot, Comparison};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Per phase, of which there are five: both guests alone, and three schedulers. On a quiet machine with two
/// cores a host and two guests boot in 44 s, and each phase of ours takes 30 s more. That is 260 s of the six
/// minutes.
pub const SECONDS: u64 = 25;
/// Here micro-slicing shows most: PV helpers take away most of what it is for.
const ROUND: Round = Round { pv: Pv::Off, pause_exits: false };

pub fn run(args: &Demo) -> Result<(), Failure> {
    output::refuse_same_file(args.json.as_deref(), args.html.as_deref())?;
    let json = OutputFile::wanted(args.json.as_deref(), &[])?;
    let html = OutputFile::wanted(args.html.as_deref(), &[])?;
    // The emulator dies with this process, and a process can wait for signals once.
    let stop = progress::stoppable_within(Some(Duration::ZERO))?;
    let plan = Plan { schedulers: guests::schedulers(), rounds: vec![ROUND], ..plan_of(args, SECONDS)? };
    let start = Instant::now();
    let tell = |what: &str| output::say(format_args!("demo: {:>4} s  {what}", start.elapsed().as_secs()));
    tell("simulating: Linux's own scheduler and ours");
    let simulated = simulated::run(simulated::SEEDS, &stop)?;
    tell("real vCPUs on this machine's own KVM: one minute");
    let lab = lab::run(&tell);
    let boot = || host(args, ROUND.pause_exits);
    let mut boots: Vec<Boot> = Vec::new();
    let comparison = Comparison { plan: &plan, boots: 1, missing: &[], boot: &boot, progress: &tell };
    let outcome = peers::run(&comparison, &mut |boot| boots.push(boot));
    let mut blocks = vec![simulated.block(), lab::block(&lab)];
    // Without a boot the first part is worth having.
    if outcome.is_ok() {
        blocks.push(guests::block(&plan, &boots, !args.here));
    }
    // First: minutes of measuring shall not be lost to a full terminal log.
    if let Some(file) = json {
        let mut json = to_json(simulated.to_json(), guests::to_json(&plan, &boots), &blocks);
        json["lab"] = lab::to_json(&lab);
        file.finish_with(&format!("{json:#}\n"))?;
    }
    if let Some(file) = html {
        file.finish_with(&screen::to_page(&blocks))?;
    }
    output::print(&screen::to_text(&blocks))?;
    outcome.map_err(Failure::broken)
}

/// The guests' object, with what was simulated, and each block's sentences.
fn to_json(simulated: Value, mut guests: Value, blocks: &[Block]) -> Value {
    guests["simulated"] = simulated;
    guests["reading"] =
        blocks.iter().map(|block| json!({ "of": block.heading, "sentences": block.reading })).collect();
    guests
}

#[cfg(test)]
mod tests {
    use super::*;
    use microslice_testbed::demo::{Phase, Scheduler};
    use microslice_testbed::measure::{Latency, Measurement};
    use microslice_testbed::peers::{Measured, Row};
    use std::rc::Rc;

    /// Of mix: CPUs, work, and in ms what half of its shootdowns take, the longest of them, and wake-ups.
    type Figures = (f64, u64, [f64; 3]);

    fn phase(scheduler: Scheduler, (cpus, work, [p50, p99, wake]): Figures, samples: usize) -> Phase {
        let waits = |usual: f64, long: f64| -> Latency {
            let rare = (samples / 20).max(1);
            let ms = std::iter::repeat_n(usual, samples - rare).chain(std::iter::repeat_n(long, rare));
            ms.map(|ms| (ms * 1e6) as u64).collect()
        };
        let latency =
            [("shootdown".to_owned(), waits(p50, p99)), ("wake".to_owned(), waits(wake / 10.0, wake))];
        let measured = |work: u64| Measurement {
            windows: 1,
            seconds: 1.0,
            work: [("worker".to_owned(), work)].into(),
            ..Measurement::default()
        };
        let mix = Measurement { latency: latency.into(), ..measured(work) };
        let hog_cpus = if scheduler == Scheduler::Alone { 3.9 } else { 3.95 - cpus };
        Phase {
            scheduler,
            round: ROUND,
            vms: vec![("mix".into(), mix), ("hog".into(), measured((hog_cpus * 1800.0) as u64))],
            cpus: vec![Some(cpus), Some(hog_cpus)],
            statistics: (scheduler != Scheduler::Kernel && scheduler != Scheduler::Alone).then(statistics),
            profile: None,
            context_switches: 0,
            seconds: 1.0,
        }
    }

    fn statistics() -> Value {
        json!({ "accelerations": { "total": 1900, "by_cause": {
            "call_function_ipi": 1200, "ple": 0, "resched_ipi": 400, "tlb_yield": 200, "virq": 90, "lock_halt": 10,
        }}})
    }

    fn boot(figures: [Option<Figures>; 3], samples: usize) -> Boot {
        let alone = Rc::new(phase(Scheduler::Alone, (3.2, 4000, [1.1, 6.0, 12.0]), samples));
        let row = |(scheduler, of): (Scheduler, Option<Figures>)| {
            let phase = of.map(|of| phase(scheduler, of, samples));
            let measured = phase.map(|phase| Measured { phase, alone: Rc::clone(&alone) });
            Row {
                scheduler,
                outcome: measured.ok_or_else(|| format!("it doesn't load <b>{}", "x".repeat(300))),
            }
        };
        Boot { rows: guests::schedulers().into_iter().zip(figures).map(row).collect() }
    }

    fn plan() -> Plan {
        Plan { schedulers: guests::schedulers(), rounds: vec![ROUND], ..super::super::stretched(10) }
    }

    fn text(boot: Boot) -> String {
        screen::to_text(&[guests::block(&plan(), &[boot], true)])
    }

    /// Like those of an emulated host, without PV helpers.
    const USUAL: [Option<Figures>; 3] = [
        Some((2.8, 3400, [18.9, 84.0, 40.0])),
        Some((1.94, 2300, [105.0, 340.0, 200.0])),
        Some((1.93, 2250, [11.9, 212.0, 230.0])),
    ];
    /// All of it worse, for every reason.
    const WORST: [Option<Figures>; 3] = [
        Some((2.0, 3400, [18.9, 84.0, 40.0])),
        Some((1.0, 1700, [20.0, 900.0, 4000.0])),
        Some((0.5, 250, [999.0, 9999.0, 9999.0])),
    ];

    #[test]
    fn the_guests_block_is_a_table_and_what_it_says() {
        let expected = include_str!("snapshots/guests.txt");
        assert_eq!(text(boot(USUAL, 300)), expected, "\n{}", text(boot(USUAL, 300)));
    }

    #[test]
    fn figures_that_are_missing_are_dashes() {
        for (figures, samples) in
            [([None; 3], 300), (USUAL, 2), ([USUAL[0], None, USUAL[2]], 300), ([None, None, USUAL[2]], 20)]
        {
            let text = text(boot(figures, samples));
            assert!(text.lines().any(|line| line.contains(" - ") || line.ends_with(" -")), "{text}");
            assert!(text.lines().all(|line| line.chars().count() <= screen::COLUMNS_MAX), "{text}");
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        }
        let text = text(boot([USUAL[0], None, USUAL[2]], 300));
        assert!(text.contains("pool off: it doesn't load") && text.contains('…'), "{text}");
    }

    #[test]
    fn the_whole_fits_on_one_screen() {
        let simulated = simulated::run(1, &Default::default()).expect("it runs");
        for figures in [USUAL, WORST, [USUAL[0], None, USUAL[2]], [None; 3]] {
            let blocks = [simulated.block(), guests::block(&plan(), &[boot(figures, 300)], true)];
            let text = screen::to_text(&blocks);
            assert!(text.lines().all(|line| line.chars().count() <= screen::COLUMNS_MAX), "{text}");
            assert!(text.lines().count() <= 40, "{} lines\n{text}", text.lines().count());
        }
    }

    #[test]
    fn json_has_every_phase_and_what_the_screen_shows() {
        let boots = [boot([USUAL[0], None, USUAL[2]], 300)];
        let block = guests::block(&plan(), &boots, true);
        let json = to_json(json!({ "seeds": 1 }), guests::to_json(&plan(), &boots), &[block]);
        let names: Vec<&str> = json["phases"]
            .as_array()
            .expect("phases")
            .iter()
            .filter_map(|phase| phase["name"].as_str())
            .collect();
        assert_eq!(names, ["alone, PV off", "kernel's own, PV off", "1 micro, PV off"]);
        assert_eq!(json["phases"][2]["accelerations"]["by_cause"]["call_function_ipi"], 1200);
        assert_eq!(json["over_alone"][2]["vms"][0]["shootdown_p50_us"]["runs"], 1);
        assert!(json["failed"]["pool off"].as_str().is_some_and(|cause| cause.len() > 300), "{json}");
        assert_eq!(json["simulated"]["seeds"], 1);
        assert!(json["reading"][0]["sentences"][0].as_str().is_some_and(|text| text.contains("mix")));
    }

    #[test]
    fn the_page_draws_both_parts_and_escapes_what_a_scheduler_said() {
        let boots = [boot([USUAL[0], None, USUAL[2]], 300)];
        let page = screen::to_page(&[guests::block(&plan(), &boots, false)]);
        assert_eq!(page.matches("<svg ").count(), 2);
        assert!(page.contains("&lt;b&gt;") && !page.contains("<b>"), "{page}");
        assert!(page.contains("on this host") && !page.contains("emulated"), "{page}");
        assert!(!page.contains("<script") && !page.contains("src="), "{page}");
    }
}
