//! `microslice trial`: which scheduler is better for the VMs of this host, measured.
//!
//! Problem.   A prediction of what loading a scheduler would bring may be wrong. Two measurements one
//!            after the other differ by what the VMs did meanwhile.
//! Mechanism. A switchback experiment: arms take turns in blocks of some seconds, in an order drawn by a seed
//!            ([`microslice_metrics::trial`]). One observer watches all of them, and costs each the same. An
//!            arm is a process of its own ([`arms`]), which ends with this one. A guard that breaks ends an
//!            arm for good ([`guards`]).
//! Limits.    What a block leaves to the next one isn't seen, but for a time that doesn't count. VMs whose
//!            load changes from block to block need more blocks: the verdict says how many.

mod arms;
mod asked;
mod guards;
mod outcomes;
pub mod report;
mod requirement;
mod work;

pub use arms::Arm;
pub use asked::Asked;
pub use guards::{Broken, Guards};
pub use outcomes::{ALL_VMS, Better, Had, Outcome};
pub use requirement::Requirement;

use crate::HostError;
use crate::beside;
use crate::observe::Sampler;
use crate::observe::report::Report;
use crate::settings::Settings;
use arms::{Scheduler, remove_old_sockets};
use microslice_metrics::trial::{PAIRS_MIN, order};
use rustix::fs::FlockOperation;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use work::Instructions;

const LOCK: &str = "/run/microslice/trial.lock";
const POLL: Duration = Duration::from_millis(20);
/// The observer looks for VMs several times a second.
const VM_PATIENCE: Duration = Duration::from_secs(3);
/// An arm that breaks down so often is ended for good.
const FAILURES_MAX: u32 = 3;
/// About how long it takes to start an arm, and to stop it.
const CHANGE: Duration = Duration::from_millis(1500);

/// How a trial runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The first one is what the others are compared with.
    pub arms: Vec<Arm>,
    /// About how long it takes altogether.
    pub length: Duration,
    /// The measured time of a block.
    pub block: Duration,
    /// After each change, until it counts.
    pub settle: Duration,
    /// Draws the order of blocks.
    pub seed: u64,
    pub guards: Guards,
    pub asked: Vec<Asked>,
    /// Our own program, which runs the arms.
    pub program: PathBuf,
    /// Flags that all arms have, each with its value, unless an arm has it itself.
    pub common: Vec<Vec<String>>,
}

impl Plan {
    /// Returns how many rounds fit, each with a block of every arm.
    ///
    /// # Errors
    /// There is nothing to compare, or a verdict needs more rounds.
    pub fn rounds(&self) -> Result<usize, HostError> {
        let names: BTreeSet<&str> = self.arms.iter().map(|arm| arm.name.as_str()).collect();
        if self.arms.len() < 2 || names.len() < self.arms.len() {
            return Err(HostError::refused("a trial needs two arms or more, all of them different"));
        }
        let mut asked = BTreeSet::new();
        let is_taken = |name: &str| Outcome::ALL.iter().any(|outcome| outcome.name() == name);
        let taken = self.asked.iter().find(|of| is_taken(&of.name) || !asked.insert(&of.name));
        if let Some(Asked { name, .. }) = taken {
            return Err(HostError::refused(format!(
                "outcome {name:?}: another outcome, or a figure of the trial's own, is called so"
            )));
        }
        let round = self.round();
        let rounds = (self.length.as_secs_f64() / round.as_secs_f64()) as usize;
        if rounds < PAIRS_MIN {
            return Err(HostError::refused(format!(
                "{} s are {rounds} rounds of {:.1} s, and a verdict needs {PAIRS_MIN}: try --for {:.0}s",
                self.length.as_secs(),
                round.as_secs_f64(),
                (round * PAIRS_MIN as u32).as_secs_f64().ceil(),
            )));
        }
        Ok(rounds)
    }

    /// About how long a round takes.
    fn round(&self) -> Duration {
        (self.block + self.settle + CHANGE) * self.arms.len() as u32
    }
}

/// What was measured.
#[derive(Debug, Clone, Default)]
pub struct Measured {
    /// The figures of each round's blocks, by the number of their arm. `None`: there was no such block.
    pub rounds: Vec<Vec<Option<Block>>>,
    /// Arms that were ended for good, by number.
    pub ended: BTreeMap<usize, Ended>,
    /// True if instructions are counted here.
    pub counts_instructions: bool,
    /// True if it was stopped before its time.
    pub was_stopped: bool,
}

/// Why an arm was ended for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    Guard(Broken),
    BrokeDown(String),
}

/// What was measured in a block.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Block {
    pub vms: BTreeMap<String, Had>,
    /// By the names of the operator's outcomes.
    pub asked: BTreeMap<String, f64>,
}

/// Where progress and messages go.
pub struct Output<'o> {
    /// How far it is.
    pub progress: &'o dyn Fn(&str),
    /// A line for the operator.
    pub say: &'o dyn Fn(&str),
}

/// Runs the trial. When it returns the kernel's own scheduler is in charge, as it was before.
///
/// # Errors
/// The plan, an arm or an outcome can't be had: nothing was measured, and nothing is left changed.
pub fn run(
    settings: &Settings,
    plan: &Plan,
    stop: &AtomicBool,
    output: &Output<'_>,
) -> Result<Measured, HostError> {
    let rounds = plan.rounds()?;
    let _lock = lock(Path::new(LOCK))?;
    remove_old_sockets();
    nobody_else_schedules()?;
    for asked in &plan.asked {
        (output.progress)(&format!("trying outcome {}", asked.name));
        asked.ask(plan.block, stop)?;
    }
    for arm in &plan.arms {
        (output.progress)(&format!("trying arm {}", arm.name));
        arm.start(&plan.program, &plan.common, stop)?;
    }
    (output.progress)("starting to observe");
    let sampler = Sampler::start(settings.clone(), |_| ())?;
    let measured = Measured::default();
    let mut trial = Trial { plan, stop, output, sampler, instructions: Instructions::default(), measured };
    trial.wait_for_a_vm()?;
    trial.run(rounds)?;
    Ok(trial.measured)
}

fn lock(path: &Path) -> Result<File, HostError> {
    let failed = |cause: std::io::Error| HostError::refused(format!("{}: {cause}", path.display()));
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    let file = File::options().create(true).truncate(false).write(true).open(path).map_err(failed)?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
        HostError::refused(format!(
            "{}: another trial runs here: wait for its end, or stop it",
            path.display()
        ))
    })?;
    Ok(file)
}

/// A trial compares with the kernel's own scheduler, and takes back to it.
fn nobody_else_schedules() -> Result<(), HostError> {
    let state = std::fs::read_to_string("/sys/kernel/sched_ext/state").unwrap_or_default();
    if !["", "disabled"].contains(&state.trim()) {
        return Err(HostError::refused(format!(
            "a scheduler is loaded already (/sys/kernel/sched_ext/state: {}): stop it first",
            state.trim()
        )));
    }
    if beside::runs() {
        return Err(HostError::refused(
            "a `microslice run --scheduler beside` runs here already: stop it first",
        ));
    }
    Ok(())
}

struct Trial<'t> {
    plan: &'t Plan,
    stop: &'t AtomicBool,
    output: &'t Output<'t>,
    sampler: Sampler,
    instructions: Instructions,
    measured: Measured,
}

impl Trial<'_> {
    fn wait_for_a_vm(&mut self) -> Result<(), HostError> {
        let began = Instant::now();
        while self.sampler.sample()?.vms.iter().all(|vm| vm.is_gone) {
            if self.stop.load(Ordering::Relaxed) {
                return Err(HostError::broken("interrupted"));
            }
            if began.elapsed() > VM_PATIENCE {
                return Err(HostError::refused("no VM runs here: start the VMs that the trial is about"));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    fn run(&mut self, rounds: usize) -> Result<(), HostError> {
        let began = Instant::now();
        let mut failures = vec![0u32; self.plan.arms.len()];
        let mut is_short = vec![BTreeSet::new(); self.plan.arms.len()];
        for (at, arms) in order(self.plan.arms.len(), rounds, self.plan.seed).into_iter().enumerate() {
            let mut round = vec![None; self.plan.arms.len()];
            for arm in arms {
                if self.measured.ended.contains_key(&arm) {
                    continue;
                }
                (self.output.progress)(&format!(
                    "round {} of {rounds}, {}",
                    at + 1,
                    self.plan.arms[arm].name
                ));
                let block = self.block(arm);
                if self.stop.load(Ordering::Relaxed) {
                    self.measured.was_stopped = true;
                    return Ok(());
                }
                match block {
                    Ok(block) => round[arm] = Some(block),
                    Err(error) => {
                        (self.output.say)(&format!("a block is lost: {error}"));
                        failures[arm] += 1;
                        if failures[arm] == FAILURES_MAX {
                            self.end(arm, Ended::BrokeDown(format!("{FAILURES_MAX} times: {error}")));
                        }
                    }
                }
            }
            self.judge(&round, &mut is_short);
            self.measured.rounds.push(round);
            // Without what the others are compared with, or without others, there is nothing to go on for.
            let is_over = self.measured.ended.contains_key(&0);
            let is_late = began.elapsed() > self.plan.length && at + 1 >= PAIRS_MIN;
            if is_over || is_late || self.measured.ended.len() + 1 == self.plan.arms.len() {
                break;
            }
        }
        Ok(())
    }

    /// Ends the arms that broke a guard in this round.
    fn judge(&mut self, round: &[Option<Block>], is_short: &mut [BTreeSet<String>]) {
        let Some((Some(first), others)) = round.split_first() else { return };
        for (at, block) in others.iter().enumerate() {
            let Some(block) = block else { continue };
            let broken = self.plan.guards.broken_by(&block.vms, &first.vms, &mut is_short[at + 1]);
            if let Some(broken) = broken {
                self.end(at + 1, Ended::Guard(broken));
            }
        }
    }

    fn end(&mut self, arm: usize, why: Ended) {
        let said = match &why {
            Ended::Guard(Broken { vm, what }) => format!("VM {vm:?} {what}"),
            Ended::BrokeDown(cause) => format!("it broke down {cause}"),
        };
        (self.output.say)(&format!("arm {:?} is over: {said}", self.plan.arms[arm].name));
        self.measured.ended.insert(arm, why);
    }

    /// A block of an arm: from its start to its end.
    fn block(&mut self, arm: usize) -> Result<Block, HostError> {
        let is_kernel = self.plan.arms[arm].is_kernel();
        if is_kernel {
            nobody_else_schedules()?;
        }
        let mut scheduler = self.plan.arms[arm].start(&self.plan.program, &self.plan.common, self.stop)?;
        self.wait(self.plan.settle, &mut scheduler)?;
        let (before, retired_before) = self.sample()?;
        self.wait(self.plan.block, &mut scheduler)?;
        let (after, retired) = self.sample()?;
        if is_kernel {
            nobody_else_schedules()?;
        }
        let seen = after.since(&before);
        let counted: BTreeMap<String, u64> = retired
            .into_iter()
            .filter_map(|(name, count)| Some((name.clone(), count.checked_sub(*retired_before.get(&name)?)?)))
            .collect();
        self.measured.counts_instructions |= !counted.is_empty();
        let mut asked = BTreeMap::new();
        for outcome in &self.plan.asked {
            match outcome.ask(self.plan.block, self.stop) {
                Ok(number) => drop(asked.insert(outcome.name.clone(), number)),
                Err(_) if self.stop.load(Ordering::Relaxed) => {}
                Err(error) => (self.output.say)(&format!("a figure is missing: {error}")),
            }
        }
        Ok(Block { vms: outcomes::of_block(&only_in_both(seen, &before), &counted), asked })
    }

    /// Waits, unless the trial is stopped or its scheduler ends.
    fn wait(&self, time: Duration, scheduler: &mut Option<Scheduler>) -> Result<(), HostError> {
        let began = Instant::now();
        while began.elapsed() < time && !self.stop.load(Ordering::Relaxed) {
            if let Some(error) = scheduler.as_mut().and_then(Scheduler::end) {
                return Err(error);
            }
            std::thread::sleep(POLL.min(time));
        }
        Ok(())
    }

    /// What has been seen, and what each VM's vCPUs have retired.
    fn sample(&mut self) -> Result<(Report, BTreeMap<String, u64>), HostError> {
        let seen = self.sampler.sample()?;
        let mut retired = BTreeMap::new();
        let mut threads = BTreeSet::new();
        for vm in seen.vms.iter().filter(|vm| !vm.is_gone) {
            let of_vm: Vec<u32> = vm.figures.vcpus.iter().map(|vcpu| vcpu.tid).collect();
            threads.extend(of_vm.iter().copied());
            if let Some(count) = self.instructions.of(&of_vm) {
                retired.insert(vm.name.clone(), count);
            }
        }
        self.instructions.keep(|thread| threads.contains(&thread));
        Ok((seen, retired))
    }
}

/// A VM that came or went within a block has no figures of it.
fn only_in_both(mut seen: Report, before: &Report) -> Report {
    seen.vms.retain(|vm| before.vms.iter().any(|old| !old.is_gone && old.is_same(vm)));
    seen
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub fn plan(arms: &[&str], seconds: u64) -> Plan {
        Plan {
            arms: arms.iter().map(|arm| Arm::parse(arm).expect("an arm")).collect(),
            length: Duration::from_secs(seconds),
            block: Duration::from_secs(5),
            settle: Duration::from_secs(2),
            seed: 1,
            guards: Guards { longest_wait: Duration::from_secs(1), least_share: 0.5 },
            asked: Vec::new(),
            program: "microslice".into(),
            common: Vec::new(),
        }
    }

    #[test]
    fn a_trial_has_as_many_rounds_as_fit() {
        assert_eq!(plan(&["kernel", "beside"], 1200).rounds().expect("rounds"), 70);
        let error = plan(&["kernel", "beside"], 60).rounds().expect_err("too short").to_string();
        assert_eq!(error, "60 s are 3 rounds of 17.0 s, and a verdict needs 6: try --for 102s");
    }

    #[test]
    fn arms_are_two_or_more_and_all_different() {
        for arms in [&["kernel"][..], &["beside", " beside "], &[]] {
            assert!(plan(arms, 1200).rounds().is_err_and(|error| error.is_refusal()), "{arms:?}");
        }
    }

    #[test]
    fn an_outcome_is_called_like_no_other() {
        for names in [["a", "a"], ["a", "wait p99"]] {
            let asked = names.map(|name| Asked::parse(&format!("{name}=echo 1")).expect("an outcome")).into();
            let plan = Plan { asked, ..plan(&["kernel", "beside"], 1200) };
            assert!(plan.rounds().is_err_and(|error| error.to_string().contains("is called so")));
        }
    }

    #[test]
    fn a_second_trial_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run/trial.lock");
        let first = lock(&path).expect("the first");
        assert!(lock(&path).is_err_and(|error| error.to_string().contains("another trial")));
        drop(first);
        assert!(lock(&path).is_ok());
    }
}
