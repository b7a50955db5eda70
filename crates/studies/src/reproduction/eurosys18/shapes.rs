//! The shapes that the paper's plots show, as claims that hold or don't.

use super::{UNAFFECTED, jitter_ms};
use crate::reproduction::ABOUT_ZERO_MS;
use crate::reproduction::runs::{
    BASELINE, DYNAMIC, RunTable, STATIC, mean, over_one_run, per_work, target, target_time,
};
use crate::reproduction::study::Shape;
use microslice_engine::report::{RunReport, Yields};

/// "About flat": within 15 % of the best of the range (memclone differs by less in Figure 4).
const FLAT: f64 = 1.15;
/// "Close to the static best": Figure 6 shows losses of about 5 %.
const CLOSE: f64 = 1.10;
/// "Unaffected": the paper's own overhead is 2 to 3 %.
const UNAFFECTED_MAX: f64 = 1.03;

/// All claims. Where a run that one is about made no progress its numbers are infinite, and it doesn't hold.
pub fn shapes(runs: &RunTable) -> Vec<Shape> {
    let mut shapes = Vec::new();
    for workload in ["dedup", "vips"] {
        shapes.push(shootdown_shape(runs, workload));
    }
    shapes.push(static_shape(runs, "gmake", "gmake is best with one micro-sliced pCPU", |times| {
        (0..6).all(|count| times[0] <= times[count])
    }));
    shapes.push(static_shape(runs, "memclone", "memclone is about flat from one to three", |times| {
        let best = times[..3].iter().copied().fold(f64::INFINITY, f64::min);
        times[..3].iter().all(|time| *time <= best * FLAT)
    }));
    for workload in ["exim", "psearchy"] {
        let claim = format!("{workload} gains with one micro-sliced pCPU");
        shapes.push(static_shape(runs, workload, &claim, |times| times[0] < 1.0));
    }
    for workload in ["gmake", "memclone", "dedup", "vips", "exim"] {
        shapes.push(dynamic_shape(runs, workload));
    }
    for workload in ["gmake", "memclone", "dedup", "vips", "exim"] {
        shapes.push(yields_shape(runs, workload));
    }
    for workload in ["dedup", "vips"] {
        shapes.push(cause_shape(runs, workload, "by IPIs", |yields| yields.ipi));
    }
    for workload in ["gmake", "memclone", "exim"] {
        shapes.push(cause_shape(runs, workload, "pause-loop exits for locks", |yields| yields.ple));
    }
    shapes.push(halts_shape(runs));
    for scenario in UNAFFECTED {
        shapes.push(unaffected_shape(runs, scenario));
    }
    shapes.push(network_shape(runs));
    shapes
}

/// Execution times of the target with 1 to 6 micro-sliced pCPUs, relative to the baseline.
fn static_times(runs: &RunTable, workload: &str) -> Option<Vec<f64>> {
    let scenario = format!("{workload}-swaptions");
    STATIC.iter().map(|policy| mean(&runs.relative(&scenario, policy, BASELINE, target_time))).collect()
}

fn static_shape(runs: &RunTable, workload: &str, claim: &str, holds: impl Fn(&[f64]) -> bool) -> Shape {
    let times = static_times(runs, workload);
    let seen = times.as_ref().map_or(String::new(), |times| {
        let list: Vec<String> = times.iter().map(|time| format!("{time:.2}")).collect();
        format!("time with 1 to 6, baseline 1: {}", list.join(" "))
    });
    let holds = |times: Vec<f64>| times.iter().all(|time| time.is_finite()) && holds(&times);
    Shape { claim: claim.to_owned(), holds: times.map(holds), seen }
}

fn shootdown_shape(runs: &RunTable, workload: &str) -> Shape {
    let claim = format!(
        "{workload} is worse than the baseline with one, best with two or three, worse again from four"
    );
    static_shape(runs, workload, &claim, |times| {
        let best = times.iter().copied().fold(f64::INFINITY, f64::min);
        let best_in_the_middle = times[1] == best || times[2] == best;
        times[0] > 1.0 && best_in_the_middle && times[3..].iter().all(|time| *time > best)
    })
}

fn dynamic_shape(runs: &RunTable, workload: &str) -> Shape {
    let scenario = format!("{workload}-swaptions");
    let ratio = runs.best_static(&scenario).and_then(|best| {
        mean(&runs.relative(&scenario, DYNAMIC, best, target_time)).map(|ratio| (best, ratio))
    });
    Shape {
        claim: format!("{workload}: the dynamic pool is close to the best static one"),
        holds: ratio.map(|(_, ratio)| ratio <= CLOSE),
        seen: ratio.map_or(String::new(), |(best, ratio)| format!("{ratio:.2} times the time of {best}")),
    }
}

fn yields_shape(runs: &RunTable, workload: &str) -> Shape {
    let scenario = format!("{workload}-swaptions");
    // Per unit of work: a target that gets further in the same time may yield more often.
    let yields = |report: &RunReport| per_work(target(report).yields.total() as f64, target_time(report));
    let reduced = runs.best_static(&scenario).and_then(|best| {
        let fixed = mean(&runs.relative(&scenario, best, BASELINE, yields))?;
        let dynamic = mean(&runs.relative(&scenario, DYNAMIC, BASELINE, yields))?;
        Some((fixed, dynamic))
    });
    Shape {
        claim: format!("{workload}: fewer yields with micro-sliced pCPUs, static and dynamic"),
        holds: reduced.map(|(fixed, dynamic)| fixed < 1.0 && dynamic < 1.0),
        seen: reduced.map_or(String::new(), |(fixed, dynamic)| {
            format!("yields of one run, baseline 1: static {fixed:.2}, dynamic {dynamic:.2}")
        }),
    }
}

/// Yields of one cause in one run: their part of the baseline's, and what is left of them with the dynamic
/// pool. The baseline has none: infinite.
fn yields_by(runs: &RunTable, workload: &str, of: fn(&Yields) -> u64) -> Option<(f64, f64)> {
    let scenario = format!("{workload}-swaptions");
    let part = runs.each(&scenario, BASELINE, |report| {
        let yields = &target(report).yields;
        of(yields) as f64 / yields.total().max(1) as f64
    });
    let of_one_run = |policy| {
        mean(&runs.each(&scenario, policy, |report| over_one_run(report, of(&target(report).yields))))
    };
    let (before, after) = of_one_run(BASELINE).zip(of_one_run(DYNAMIC))?;
    Some((mean(&part)?, after / before))
}

/// "Dominant": more than half of all.
fn cause_shape(runs: &RunTable, workload: &str, cause: &str, of: fn(&Yields) -> u64) -> Shape {
    let seen = yields_by(runs, workload, of);
    Shape {
        claim: format!("Figure 7: most of {workload}'s yields are {cause}, and get fewer"),
        holds: seen.map(|(part, left)| part > 0.5 && left < 1.0),
        seen: seen.map_or(String::new(), |(part, left)| {
            format!("{:.0} % of the baseline's; dynamic {left:.2} times as many", 100.0 * part)
        }),
    }
}

/// "Many": a tenth of all, our number.
fn halts_shape(runs: &RunTable) -> Shape {
    let seen = yields_by(runs, "dedup", |yields| yields.halt);
    Shape {
        claim: "Figure 7: dedup halts often in the baseline, and less with micro-sliced pCPUs".to_owned(),
        holds: seen.map(|(part, left)| part > 0.1 && left < 1.0),
        seen: seen.map_or(String::new(), |(part, left)| {
            format!("{:.0} % of the baseline's yields; dynamic {left:.2} times as many", 100.0 * part)
        }),
    }
}

fn unaffected_shape(runs: &RunTable, scenario: &str) -> Shape {
    let ratio = mean(&runs.relative(scenario, DYNAMIC, BASELINE, target_time));
    Shape {
        claim: format!("{scenario}: unaffected within 3 %"),
        holds: ratio.map(|ratio| ratio <= UNAFFECTED_MAX),
        seen: ratio.map_or(String::new(), |ratio| format!("{ratio:.3} times the baseline's time")),
    }
}

fn network_shape(runs: &RunTable) -> Shape {
    let network = |scenario: &str,
                   policy: &str,
                   value: fn(&microslice_engine::report::NetworkReport) -> f64| {
        mean(&runs.each(scenario, policy, |report| target(report).network.as_ref().map_or(f64::NAN, value)))
    };
    let numbers = (|| {
        let jitter = |policy| network("iperf-udp-mixed", policy, jitter_ms);
        let throughput = |policy| network("iperf-tcp-mixed", policy, |network| network.throughput_mbps);
        Some([jitter(BASELINE)?, jitter(DYNAMIC)?, throughput(BASELINE)?, throughput(DYNAMIC)?])
    })();
    Shape {
        claim: "mixed I/O: jitter above 8 ms becomes about 0, TCP gets faster".to_owned(),
        holds: numbers
            .map(|[before, after, slow, fast]| before > 8.0 && after < ABOUT_ZERO_MS && fast > slow),
        seen: numbers.map_or(String::new(), |[before, after, slow, fast]| {
            format!("jitter {before:.2} -> {after:.2} ms, TCP {slow:.0} -> {fast:.0} Mbit/s")
        }),
    }
}
