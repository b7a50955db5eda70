//! Figure 1, who sends IPIs, and Figure 3, which spinlocks are waited for. The text has no numbers of the
//! latter, and of the former those of three programs.

use super::{BASELINE, COMMUNICATING, OF_FUTEX, SILENT, corun, solo};
use crate::reproduction::runs::{Experiment, RunTable, mean, target};
use crate::reproduction::study::Shape;
use microslice_engine::report::{RunReport, VmReport};

/// The futex's queue has a lock of this name.
const FUTEX: &str = "futex";
/// "Suffer from excessive spinning on the wait-queue lock of mm's semaphore" (3.1.1): the lock of the
/// semaphore's sleepers in each program.
const OF_SEM_WAIT: [(&str, &str); 2] = [("dedup", "mmap_sem.wait_lock"), ("vips", "address_space.wait_lock")];
/// "Mostly": our number.
const MOSTLY: f64 = 0.5;

pub fn experiments_of_figure1() -> Vec<Experiment> {
    let all = COMMUNICATING.iter().chain(&SILENT);
    all.map(|program| Experiment::new(&solo(program), BASELINE)).collect()
}

pub fn experiments_of_figure3() -> Vec<Experiment> {
    let all = OF_FUTEX.into_iter().chain(OF_SEM_WAIT.map(|(program, _)| program));
    all.map(|program| Experiment::new(&corun(program), BASELINE)).collect()
}

pub fn shapes(runs: &RunTable) -> Vec<Shape> {
    let futex = OF_FUTEX.iter().map(|program| lock_shape(runs, program, FUTEX, "the futex's queue"));
    let sem =
        OF_SEM_WAIT.iter().map(|(program, lock)| lock_shape(runs, program, lock, "mmap_sem's sleepers"));
    [ipi_shape(runs)].into_iter().chain(futex).chain(sem).collect()
}

/// "Communication-intensive" are all but three (3.1.1, "refer to their IPI rates in Figure 1").
fn ipi_shape(runs: &RunTable) -> Shape {
    let rate = |program: &&str| mean(&runs.each(&solo(program), BASELINE, ipis_per_s_and_vcpu));
    let [communicating, silent] =
        [&COMMUNICATING[..], &SILENT].map(|programs| programs.iter().map(rate).collect::<Option<Vec<f64>>>());
    let rates =
        communicating.zip(silent).map(|(rates, silent)| (rates, silent.into_iter().fold(0.0, f64::max)));
    let seen = rates.as_ref().map(|(rates, silent)| {
        let rates = COMMUNICATING.iter().zip(rates).map(|(program, rate)| format!("{program} {rate:.0}"));
        format!(
            "per second and vCPU: {}; the others at most {silent:.0}",
            rates.collect::<Vec<_>>().join(", ")
        )
    });
    Shape {
        claim: "Figure 1: alone, each of ten programs sends more IPIs than the three silent ones".to_owned(),
        holds: rates.map(|(rates, silent)| rates.iter().all(|&rate| rate > silent)),
        seen: seen.unwrap_or_default(),
    }
}

fn ipis_per_s_and_vcpu(report: &RunReport) -> f64 {
    let seconds = report.measured_ns as f64 / 1e9;
    target(report).ipis_sent as f64 / seconds / target(report).vcpus as f64
}

fn lock_shape(runs: &RunTable, program: &str, lock: &str, name: &str) -> Shape {
    let shares = runs.each(&corun(program), BASELINE, |report| share_of_waits(target(report), lock));
    let share = mean(&shares);
    Shape {
        claim: format!("Figure 3: {program} waits for spinlocks mostly for that of {name}"),
        holds: share.map(|share| share > MOSTLY),
        seen: share.map_or(String::new(), |share| format!("{:.0} % of the time", share * 100.0)),
    }
}

/// A part of the time that a VM waits for spinlocks; 0 if it waits for none. Locks that sleep have a list,
/// whose lock is one.
fn share_of_waits(vm: &VmReport, lock: &str) -> f64 {
    let spins = |name: &str| !vm.lock_acquisitions.contains_key(&format!("{name}.wait_lock"));
    let waits = vm.lock_waits.iter().filter(|(name, _)| spins(name));
    let all: u128 = waits.map(|(_, waits)| waits.sum()).sum();
    let of_lock = vm.lock_waits.get(lock).map_or(0, |waits| waits.sum());
    of_lock as f64 / all.max(1) as f64
}
