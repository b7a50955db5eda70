//! The paper's own scheduler against its baseline: Figures 7a to 11 and Table 2.
//!
//! Gains are what is taken off an execution time, since that is what the plots show.

use super::{BASELINE, COMMUNICATING, SHOOT_DOWN, extreme, parameters, solo};
use crate::reproduction::runs::{
    Experiment, RunTable, corunner_time, mean, over_one_run, target, target_time, time_of,
};
use crate::reproduction::study::Shape;
use microslice_engine::report::{RunReport, VmReport};

const BALANCE: &str = "balance";
pub const LOAD_CONSCIOUS: &str = "lc-balance";
pub const RESCHED_DP: &str = "lc-balance+resched_dp=true";
pub const COORDINATED: &str = "coordinated";
pub const RESCHED_CO: &str = "coordinated+resched_co=true";

/// Figure 9's bars, a to e.
pub const POLICIES: [&str; 5] = [BASELINE, BALANCE, LOAD_CONSCIOUS, RESCHED_DP, COORDINATED];
/// Figure 8's; Resched-DP alone is in none of its plots.
pub const FIGURE8: [&str; 4] = [BASELINE, BALANCE, LOAD_CONSCIOUS, COORDINATED];

/// Figure 7a: preemption delays in us, and the policies that have them.
pub const DELAYS: [(f64, &str); 5] = [
    (100.0, "lc-balance+resched_dp=true+delay=100 us"),
    (200.0, "lc-balance+resched_dp=true+delay=200 us"),
    (300.0, "lc-balance+resched_dp=true+delay=300 us"),
    (500.0, "lc-balance+resched_dp=true+delay=500 us"),
    (1000.0, "lc-balance+resched_dp=true+delay=1000 us"),
];
/// The paper's delay, from the first access to the interrupt controller on.
pub const EARLY: &str = "lc-balance+resched_dp=true+early_dp=true";
/// The one that the paper chose, and from where on its curve is flat: indices of [`DELAYS`].
const CHOSEN: usize = 3;
const FLAT_FROM: usize = 2;
/// "Without further noticeable reduction": our number, a part of what is preempted without delay.
const NOTICEABLE: f64 = 0.1;

/// Figure 7a's programs, beside dedup.
pub const DELAYED: [&str; 3] = ["bodytrack", "facesim", "streamcluster"];
/// Of Figure 9's programs those whose behaviour the text tells.
pub const MIXED: [&str; 6] = ["bodytrack", "facesim", "streamcluster", "dedup", "ferret", "vips"];
/// Table 2's and Figure 11's.
pub const WITH_PLE: [&str; 4] = ["streamcluster", "facesim", "ferret", "vips"];

const SINGLE_SOLO: &str = "asplos13-single-solo";
/// Figure 10: streamcluster beside bodytrack, with barriers that spin before they block, and with such that
/// block.
pub const SPINS: &str = "asplos13-spin";
const BLOCKS: &str = "asplos13-block";
pub const SPINS_SOLO: &str = "asplos13-spin-solo";
/// "Close to one": our number.
const CLOSE_TO_ONE: f64 = 1.1;

pub fn beside(program: &str, other: &str) -> String {
    format!("asplos13-{program}-{other}")
}

/// The experiments behind a group of figures.
pub fn experiments_of(group: &str) -> Vec<Experiment> {
    let all = |programs: &[&str], other: &str, policies: &[&str]| -> Vec<Experiment> {
        let scenarios = programs.iter().map(|program| beside(program, other));
        scenarios
            .flat_map(|scenario| policies.iter().map(move |policy| Experiment::new(&scenario, policy)))
            .collect()
    };
    match group {
        "figure7a" => {
            let delays = DELAYS.map(|(_, policy)| policy);
            all(&DELAYED, "delay", &[&[LOAD_CONSCIOUS, EARLY][..], &delays].concat())
        }
        "figure8" => {
            [all(&COMMUNICATING, "single", &FIGURE8), vec![Experiment::new(SINGLE_SOLO, BASELINE)]].concat()
        }
        "figure9" => {
            let alone = all(&[&MIXED[..], &["freqmine"]].concat(), "solo", &[BASELINE]);
            [alone, all(&MIXED, "freqmine", &POLICIES), all(&MIXED, "dedup", &POLICIES)].concat()
        }
        "figure7b" | "figure7c" => parameters::experiments_of(group),
        "figure10" => {
            let both = |scenario| [COORDINATED, RESCHED_CO].map(|policy| Experiment::new(scenario, policy));
            [&both(SPINS)[..], &both(BLOCKS), &[Experiment::new(SPINS_SOLO, BASELINE)]].concat()
        }
        "figure11" | "table2" => all(&WITH_PLE, "ple", &[BASELINE, COORDINATED]),
        _ => Vec::new(),
    }
}

/// One value per seed, in the published number's unit.
pub fn measure(parts: &[&str], runs: &RunTable) -> Vec<f64> {
    match parts {
        ["figure7a", _, "lhp_reduction_max"] => {
            let reductions = DELAYED.map(|program| {
                reduction(
                    runs,
                    &beside(program, "delay"),
                    [DELAYS[CHOSEN].1, LOAD_CONSCIOUS],
                    preempted_holders,
                )
            });
            extreme(&reductions, f64::max)
        }
        ["figure7a", _, "stable_from_us"] => stable_from_us(runs),
        ["figure8", "uvf_vs_baseline", end] => figure8(runs, BASELINE, end),
        ["figure8", "uvf_vs_lc_balance", end] => figure8(runs, LOAD_CONSCIOUS, end),
        ["figure8", "up_vm_slowdown_max_balance"] => slowdown_max(runs, BALANCE),
        ["figure10", _, number] => figure10(runs, number),
        ["figure11", _, "improvement", end] => {
            let gains = WITH_PLE.map(|program| {
                reduction(runs, &beside(program, "ple"), [COORDINATED, BASELINE], target_time)
            });
            extreme(&gains, end_of(end))
        }
        ["table2", program] => {
            reduction(runs, &beside(program, "ple"), [COORDINATED, BASELINE], pause_loop_exits)
        }
        _ => Vec::new(),
    }
}

/// What Resched-Co takes off.
fn figure10(runs: &RunTable, number: &str) -> Vec<f64> {
    let less = |scenario, value| reduction(runs, scenario, [RESCHED_CO, COORDINATED], value);
    match number {
        "resched_co_gain_spin_then_block" => less(SPINS, target_time),
        "resched_co_gain_block" => less(BLOCKS, target_time),
        "block_wait_reduction" => {
            less(SPINS, |report| over_one_run(report, target(report).barrier_waits.slept()))
        }
        "departure_barrier_wait_reduction" => {
            less(SPINS, |report| over_one_run(report, target(report).barrier_waits.at_departure()))
        }
        "resched_ipi_reduction" => less(SPINS, |report| {
            let vm = target(report);
            over_one_run(report, vm.ipis_sent - vm.call_function_ipis)
        }),
        _ => Vec::new(),
    }
}

fn end_of(end: &str) -> fn(f64, f64) -> f64 {
    if end == "low" { f64::min } else { f64::max }
}

/// By how much of it a value is less under the first policy than under the second one.
fn reduction(runs: &RunTable, scenario: &str, [of, to]: [&str; 2], value: fn(&RunReport) -> f64) -> Vec<f64> {
    runs.relative(scenario, of, to, value).into_iter().map(|ratio| 1.0 - ratio).collect()
}

/// Over one run of the target.
fn preempted_holders(report: &RunReport) -> f64 {
    over_one_run(report, target(report).holder_preemptions.get("futex").copied().unwrap_or(0))
}

/// Over one run of the target.
pub fn pause_loop_exits(report: &RunReport) -> f64 {
    let yields = &target(report).yields;
    over_one_run(report, yields.ple + yields.ipi)
}

/// All programs' preempted holders, seed by seed.
pub fn all_preempted_holders(runs: &RunTable, policy: &str) -> Vec<f64> {
    let each = DELAYED.map(|program| runs.each(&beside(program, "delay"), policy, preempted_holders));
    let seeds = each.iter().map(Vec::len).min().unwrap_or(0);
    (0..seeds).map(|seed| each.iter().map(|values| values[seed]).sum()).collect()
}

/// The least delay behind which no longer one makes a noticeable difference.
fn stable_from_us(runs: &RunTable) -> Vec<f64> {
    let without = all_preempted_holders(runs, LOAD_CONSCIOUS);
    let with = DELAYS.map(|(_, policy)| all_preempted_holders(runs, policy));
    let of_seed = |(seed, without): (usize, &f64)| -> Option<f64> {
        let counts: Option<Vec<f64>> = with.iter().map(|counts| counts.get(seed).copied()).collect();
        let counts = counts?;
        let is_flat = |from: usize| {
            counts[from..].iter().all(|count| (count - counts[from]).abs() <= NOTICEABLE * without)
        };
        (0..counts.len()).find(|&from| is_flat(from)).map(|from| DELAYS[from].0)
    };
    without.iter().enumerate().filter_map(of_seed).collect()
}

fn figure8(runs: &RunTable, than: &str, end: &str) -> Vec<f64> {
    let gains = COMMUNICATING
        .map(|program| reduction(runs, &beside(program, "single"), [COORDINATED, than], target_time));
    extreme(&gains, end_of(end))
}

/// Mean time of the four single-vCPU VMs beside a program, relative to one that is alone.
pub fn single_slowdown(runs: &RunTable, program: &str, policy: &str) -> Vec<f64> {
    let alone = runs.each(SINGLE_SOLO, BASELINE, target_time);
    let times = runs.each(&beside(program, "single"), policy, |report| {
        let singles: &[VmReport] = &report.vms[1..];
        singles.iter().map(|vm| time_of(Some(vm))).sum::<f64>() / singles.len() as f64
    });
    times.iter().zip(&alone).map(|(time, alone)| time / alone).collect()
}

/// The greatest of all programs.
fn slowdown_max(runs: &RunTable, policy: &str) -> Vec<f64> {
    extreme(&COMMUNICATING.map(|program| single_slowdown(runs, program, policy)), f64::max)
}

/// The sum of both VMs' speeds relative to that alone.
pub fn weighted_speedup(runs: &RunTable, program: &str, other: &str, policy: &str) -> Vec<f64> {
    let speeds = |program: &str, time: fn(&RunReport) -> f64, scenario: &str| -> Vec<f64> {
        let alone = runs.each(&solo(program), BASELINE, target_time);
        let beside = runs.each(scenario, policy, time);
        alone.iter().zip(beside).map(|(alone, beside)| alone / beside).collect()
    };
    let scenario = beside(program, other);
    let (targets, others) =
        (speeds(program, target_time, &scenario), speeds(other, corunner_time, &scenario));
    targets.iter().zip(others).map(|(target, other)| target + other).collect()
}

/// All claims about the paper's scheduler.
pub fn shapes(runs: &RunTable) -> Vec<Shape> {
    let delayed = DELAYED.iter().flat_map(|program| delay_shapes(runs, program));
    let shot_down = SHOOT_DOWN.iter().map(|program| shootdown_shape(runs, program));
    let singles = [(BALANCE, true), (LOAD_CONSCIOUS, false), (COORDINATED, false)]
        .map(|(policy, slows)| single_shape(runs, policy, slows));
    let mixes = [
        ("freqmine", BALANCE, BASELINE),
        ("dedup", LOAD_CONSCIOUS, BALANCE),
        ("dedup", COORDINATED, RESCHED_DP),
    ]
    .map(|(other, policy, than)| mix_shape(runs, other, policy, than));
    let figure7 = delayed.chain(early_shape(runs)).chain(parameters::shapes(runs));
    figure7.chain(shot_down).chain(singles).chain(mixes).chain([barrier_shape(runs)]).collect()
}

/// Figure 7a, of one program.
fn delay_shapes(runs: &RunTable, program: &str) -> [Shape; 2] {
    let of = |policy: &str| {
        mean(&runs.relative(&beside(program, "delay"), policy, LOAD_CONSCIOUS, preempted_holders))
    };
    let left: Option<Vec<f64>> = DELAYS.iter().map(|(_, policy)| of(policy)).collect();
    let seen = left.as_ref().map_or(String::new(), |left| {
        let list: Vec<String> = left.iter().map(|left| format!("{left:.2}")).collect();
        format!("with 100, 200, 300, 500, 1,000 us, without 1: {}", list.join(" "))
    });
    let is_flat =
        |left: &Vec<f64>| left[FLAT_FROM..].iter().all(|count| (count - left[FLAT_FROM]).abs() <= NOTICEABLE);
    let halved = left.as_ref().map(|left| left[CHOSEN] < 0.5);
    let about = format!("{program} beside dedup");
    [
        Shape {
            claim: format!("{about}: Resched-DP takes more than half of its preempted futex-queue holders"),
            holds: halved,
            seen: seen.clone(),
        },
        Shape {
            claim: format!("{about}: a delay beyond 300 us takes no more"),
            holds: left.as_ref().map(is_flat),
            seen,
        },
    ]
}

/// Figure 7a's other line: what preempts a holder while it prepares its IPI.
fn early_shape(runs: &RunTable) -> [Shape; 1] {
    let of = |policy| mean(&all_preempted_holders(runs, policy));
    let counts = of(DELAYS[CHOSEN].1).zip(of(EARLY));
    [Shape {
        claim: "Figure 7a: early delayed preemption leaves fewer preempted holders yet".to_owned(),
        holds: counts.map(|(late, early)| early.is_finite() && early < late),
        seen: counts.map_or(String::new(), |(late, early)| format!("over a run {late:.0} -> {early:.0}")),
    }]
}

/// Figure 10a.
fn barrier_shape(runs: &RunTable) -> Shape {
    let gain = |scenario| mean(&reduction(runs, scenario, [RESCHED_CO, COORDINATED], target_time));
    let gains = gain(SPINS).zip(gain(BLOCKS));
    Shape {
        claim:
            "streamcluster: Resched-Co helps barriers that spin before they block more than those that block"
                .to_owned(),
        holds: gains.map(|(spins, blocks)| spins.is_finite() && spins > 0.0 && spins > blocks),
        seen: gains.map_or(String::new(), |(spins, blocks)| {
            format!("off its time: spin-then-block {:.1} %, block {:.1} %", spins * 100.0, blocks * 100.0)
        }),
    }
}

/// Figure 9a: freqmine hardly preempts, so what is gained there is gained by TLB-Co.
fn shootdown_shape(runs: &RunTable, program: &str) -> Shape {
    let scenario = beside(program, "freqmine");
    let gain = |policies| mean(&reduction(runs, &scenario, policies, target_time));
    let gains = gain([RESCHED_DP, LOAD_CONSCIOUS]).zip(gain([COORDINATED, RESCHED_DP]));
    Shape {
        claim: format!("{program} beside freqmine: TLB-Co is what it gains by, more than by Resched-DP"),
        holds: gains.map(|(delay, answers)| answers.is_finite() && answers > 0.0 && answers > delay),
        seen: gains.map_or(String::new(), |(delay, answers)| {
            format!("off its time: Resched-DP {:.1} %, TLB-Co {:.1} %", delay * 100.0, answers * 100.0)
        }),
    }
}

/// Figure 8b.
fn single_shape(runs: &RunTable, policy: &str, slows: bool) -> Shape {
    let slowdown = mean(&slowdown_max(runs, policy));
    let [claim, holds] =
        if slows { ["slows single-vCPU VMs", "more"] } else { ["doesn't slow single-vCPU VMs", "less"] };
    Shape {
        claim: format!("{policy} {claim} (at the most {holds} than {CLOSE_TO_ONE} times)"),
        holds: slowdown.map(|times| times.is_finite() && (times > CLOSE_TO_ONE) == slows),
        seen: slowdown.map_or(String::new(), |times| format!("{times:.2} times")),
    }
}

/// Figure 9: mean weighted speedup of all programs beside one.
fn mix_shape(runs: &RunTable, other: &str, policy: &str, than: &str) -> Shape {
    let speedup = |policy: &str| -> Option<f64> {
        let each: Option<Vec<f64>> =
            MIXED.iter().map(|program| mean(&weighted_speedup(runs, program, other, policy))).collect();
        mean(&each?)
    };
    let speedups = speedup(than).zip(speedup(policy));
    Shape {
        claim: format!("beside {other}: {policy} has a greater weighted speedup than {than}"),
        holds: speedups.map(|(before, after)| after.is_finite() && after > before),
        seen: speedups.map_or(String::new(), |(before, after)| format!("{before:.3} -> {after:.3}")),
    }
}
